package security

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
)

// Values are the settings that bind a session.
type Values struct {
	// WaitS is how long a request waits for a human.
	WaitS uint32
	// ScopeMaxS and ScopeMaxUses bound what a human may grant at once.
	ScopeMaxS, ScopeMaxUses uint32
	// DangerousMaxS bounds dangerous mode, where DangerousAllowed.
	DangerousMaxS uint32
	// FourEyes: who approves must not be the client's own user.
	FourEyes         bool
	DangerousAllowed bool
	DesktopAllowed   bool
	TierCeiling      optionsv1.Tier
	// MessagingTTLS is how long a messaging session lives; the others are requests a minute.
	MessagingTTLS, MessagingPerUser, MessagingPerRoom, MessagingInAll uint32
}

// Setting is one thing that can be set.
type Setting struct {
	// Name is dotted, as commands and records write it: "approvals.wait_s" is wait_s under approvals in the file.
	Name string
	// About is one line for a person.
	About string
	// Default is what holds where no file says anything.
	Default string

	// Numbers stand for every kind: a bool is 0 or 1, a tier its number.
	kind          kind
	min, max      uint32
	higherTighter bool
	put           func(*Values, uint32)
}

type kind int

const (
	number kind = iota
	flag
	tier
)

// Settings lists everything that can be set, in the order of the file.
func Settings() []Setting {
	return []Setting{
		{"approvals.wait_s", "how many seconds a request waits for a human", "1800", number, 60, 1800, false, func(v *Values, n uint32) { v.WaitS = n }},
		{"approvals.scope_max_s", "the longest that an approval within a scope may stand, in seconds", "28800", number, 60, 28800, false, func(v *Values, n uint32) { v.ScopeMaxS = n }},
		{"approvals.scope_max_uses", "the most calls that an approval within a scope may be for", "1000", number, 1, 1000, false, func(v *Values, n uint32) { v.ScopeMaxUses = n }},
		{"approvals.four_eyes", "who approves must be another person than the client's own user", "false", flag, 0, 1, true, func(v *Values, n uint32) { v.FourEyes = n == 1 }},
		{"dangerous.allowed", "whether a human may switch dangerous mode on", "true", flag, 0, 1, false, func(v *Values, n uint32) { v.DangerousAllowed = n == 1 }},
		{"dangerous.max_s", "the longest that dangerous mode may stand, in seconds", "28800", number, 60, 28800, false, func(v *Values, n uint32) { v.DangerousMaxS = n }},
		{"tier_ceiling", "the most that any client may ask for, whatever clients.yaml gives it", "DESTRUCTIVE", tier, 1, 3, false, func(v *Values, n uint32) { v.TierCeiling = optionsv1.Tier(n) }},
		{"desktop.allowed", "whether tools that control the desktop exist at all", "false", flag, 0, 1, false, func(v *Values, n uint32) { v.DesktopAllowed = n == 1 }},
		{"messaging.ttl_s", "how many seconds a messaging session lives", "86400", number, 60, 86400, false, func(v *Values, n uint32) { v.MessagingTTLS = n }},
		{"messaging.per_user_per_minute", "requests a minute for each messaging user", "10", number, 1, 600, false, func(v *Values, n uint32) { v.MessagingPerUser = n }},
		{"messaging.per_room_per_minute", "requests a minute for each messaging room", "20", number, 1, 600, false, func(v *Values, n uint32) { v.MessagingPerRoom = n }},
		{"messaging.per_minute", "requests a minute for all messaging together", "60", number, 1, 6000, false, func(v *Values, n uint32) { v.MessagingInAll = n }},
	}
}

// Find returns a setting by its name.
func Find(name string) (Setting, bool) {
	for _, s := range Settings() {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

// Suggest returns the names that an unknown one may have been meant to be, nearest first.
func Suggest(name string) []string {
	var known []string
	for _, s := range Settings() {
		known = append(known, s.Name)
	}
	near := config.Suggest(name, known)
	// "wait_s" for "approvals.wait_s".
	for _, k := range known {
		if strings.HasSuffix(k, "."+name) && !slices.Contains(near, k) {
			near = append(near, k)
		}
	}
	return near
}

// Bounds says in words what the setting takes.
func (s Setting) Bounds() string {
	switch s.kind {
	case flag:
		return "true or false"
	case tier:
		return "READ, WRITE or DESTRUCTIVE"
	}
	return fmt.Sprintf("a whole number from %d to %d", s.min, s.max)
}

// Choices are the values to choose from; nil: there are too many.
func (s Setting) Choices() []string {
	switch s.kind {
	case flag:
		return []string{"true", "false"}
	case tier:
		return []string{"READ", "WRITE", "DESTRUCTIVE"}
	}
	return nil
}

// Check reports why a value cannot be the setting's, in words that follow the setting's name.
func (s Setting) Check(value string) error {
	_, err := s.parse(value)
	return err
}

// parse takes one spelling of each value alone: what is shown, signed and read is the same text.
func (s Setting) parse(value string) (uint32, error) {
	switch s.kind {
	case flag, tier:
		for _, c := range s.Choices() {
			if c != value {
				continue
			}
			return map[string]uint32{"true": 1, "false": 0, "READ": uint32(optionsv1.Tier_TIER_READ), "WRITE": uint32(optionsv1.Tier_TIER_WRITE),
				"DESTRUCTIVE": uint32(optionsv1.Tier_TIER_DESTRUCTIVE)}[c], nil
		}
		return 0, fmt.Errorf("must be %s", s.Bounds())
	}
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || uint32(n) < s.min || uint32(n) > s.max || strconv.FormatUint(n, 10) != value {
		return 0, fmt.Errorf("must be %s", s.Bounds())
	}
	return uint32(n), nil
}

// text writes a value as parse reads it.
func (s Setting) text(n uint32) string {
	switch s.kind {
	case flag:
		return strconv.FormatBool(n == 1)
	case tier:
		return contract.TierName(optionsv1.Tier(n))
	}
	return strconv.FormatUint(uint64(n), 10)
}

// Tighter reports whether the value a lets less happen than b. Values that the setting does not take are not.
func (s Setting) Tighter(a, b string) bool {
	x, err1 := s.parse(a)
	y, err2 := s.parse(b)
	return err1 == nil && err2 == nil && s.tighter(x, y)
}
