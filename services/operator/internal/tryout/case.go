package tryout

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
)

// File is a file of cases.
type File struct {
	Cases []Case `yaml:"cases"`
}

// Case is one call, and what is to become of it. What is not given of the client is as clients.yaml has it.
type Case struct {
	// Name is for people; the call unless given.
	Name   string `yaml:"name"`
	Client string `yaml:"client"`
	Tool   string `yaml:"tool"`
	// Arguments of the call; none unless given.
	Arguments map[string]any `yaml:"arguments"`
	// Expect is runs, asks or denied. Rule is the id of the rule that is to decide; any unless given.
	Expect string `yaml:"expect"`
	Rule   string `yaml:"rule"`

	Agent     string `yaml:"agent"`
	User      string `yaml:"user"`
	Channel   string `yaml:"channel"`
	KeyBound  *bool  `yaml:"key_bound"`
	Ceiling   string `yaml:"tier_ceiling"`
	Dangerous bool   `yaml:"dangerous"`
	// At is when; now unless given. Calls are how often the client called the tool before.
	At    time.Time `yaml:"at"`
	Calls struct {
		Session    uint32 `yaml:"session"`
		Day        uint32 `yaml:"day"`
		Month      uint32 `yaml:"month"`
		SinceLastS uint32 `yaml:"since_last_s"`
	} `yaml:"calls"`
}

func (c Case) arguments() ([]byte, error) {
	if len(c.Arguments) == 0 {
		return []byte("{}"), nil
	}
	return json.Marshal(c.Arguments)
}

// Title is the case's name, or the call.
func (c Case) Title() string {
	if c.Name != "" {
		return clean.Visible(c.Name)
	}
	raw, err := c.arguments()
	if err != nil || len(c.Arguments) == 0 {
		return clean.Visible(c.Client + " " + c.Tool)
	}
	return clean.Visible(c.Client + " " + c.Tool + " " + string(raw))
}

// Call is what the vault would decide on, with the rules of state and the clients as they are known.
func (c Case) Call(state *security.State, known []client.Client, now time.Time) (policy.Call, error) {
	var none policy.Call
	switch c.Expect {
	case policy.Run.String(), policy.Ask.String(), policy.Deny.String():
	default:
		return none, fmt.Errorf("expect is runs, asks or denied")
	}
	caller, keyBound := client.Client{ID: c.Client, Channel: "cli", TierCeiling: "DESTRUCTIVE"}, true
	if i := slices.IndexFunc(known, func(k client.Client) bool { return k.ID == c.Client }); i >= 0 {
		caller, keyBound = known[i], known[i].Key != ""
	}
	if c.KeyBound != nil {
		keyBound = *c.KeyBound
	}
	user := cmp.Or(c.User, caller.User)
	kind, channelName, _ := strings.Cut(cmp.Or(c.Channel, caller.Channel), ":")
	channel, ok := callv1.Channel_value["CHANNEL_"+strings.ToUpper(kind)]
	ceiling, okTier := optionsv1.Tier_value["TIER_"+cmp.Or(c.Ceiling, caller.TierCeiling)]
	if !ok || !okTier {
		return none, fmt.Errorf("channel or tier_ceiling is none that there is")
	}
	tool, ok := contract.Lookup(c.Tool)
	if !ok {
		return none, fmt.Errorf("there is no tool %s", clean.Visible(c.Tool))
	}
	raw, err := c.arguments()
	if err != nil {
		return none, fmt.Errorf("arguments are none")
	}
	arguments, err := decode(tool, raw)
	if err != nil {
		return none, err
	}
	if !c.At.IsZero() {
		now = c.At
	}
	values := state.Values(caller.ID, user)
	counts := policy.Counts{Session: c.Calls.Session, Day: c.Calls.Day, Month: c.Calls.Month}
	if c.Calls.SinceLastS > 0 {
		counts.Last = now.Add(-time.Duration(c.Calls.SinceLastS) * time.Second)
	}
	return policy.Call{
		Client: caller.ID, Agent: c.Agent, User: user, Channel: callv1.Channel(channel), ChannelName: channelName, KeyBound: keyBound,
		Ceiling: min(optionsv1.Tier(ceiling), values.TierCeiling), Dangerous: c.Dangerous && keyBound && values.DangerousAllowed,
		DesktopAllowed: values.DesktopAllowed, Tool: tool, Arguments: arguments, Counts: counts, Now: now,
	}, nil
}
