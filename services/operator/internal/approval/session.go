package approval

import (
	"errors"
	"slices"
	"strings"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// ErrNoSuchSession means that no open session has the name.
var ErrNoSuchSession = errors.New("no such session")

const sessionPrefix = "s-"

// SessionNumbers counts each client's open sessions, the oldest first: for people to tell them apart. A number changes when an
// older session ends, so nothing is granted by it.
func SessionNumbers(sessions []*vaultv1.OpenSession) map[string]int {
	sorted := slices.Clone(sessions)
	slices.SortFunc(sorted, func(a, b *vaultv1.OpenSession) int {
		if c := a.GetOpenedAt().AsTime().Compare(b.GetOpenedAt().AsTime()); c != 0 {
			return c
		}
		return strings.Compare(a.GetSession(), b.GetSession())
	})
	count, numbers := map[string]int{}, map[string]int{}
	for _, s := range sorted {
		count[s.GetPrincipal()]++
		numbers[s.GetSession()] = count[s.GetPrincipal()]
	}
	return numbers
}

// FindSession returns the open session whose reference is name, or begins with it: at least 4 characters behind "s-", which may
// be left out.
func FindSession(name string, sessions []*vaultv1.OpenSession) (*vaultv1.OpenSession, error) {
	name = strings.TrimPrefix(strings.ToLower(name), sessionPrefix)
	if len(name) < shortLength {
		return nil, ErrNoSuchSession
	}
	var found []*vaultv1.OpenSession
	for _, s := range sessions {
		if strings.HasPrefix(strings.TrimPrefix(s.GetSession(), sessionPrefix), name) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return nil, ErrNoSuchSession
	case 1:
		return found[0], nil
	}
	var candidates []string
	for _, s := range found {
		candidates = append(candidates, s.GetSession())
	}
	return nil, &AmbiguousError{Number: name, Candidates: candidates}
}

// Phrase is what a person types to turn dangerous mode on: it names the client and the session, so that it cannot be typed for
// another one out of habit.
func Phrase(s *vaultv1.OpenSession) string {
	ref := strings.TrimPrefix(s.GetSession(), sessionPrefix)
	return "dangerous " + s.GetPrincipal() + " " + ref[:min(len(ref), 6)]
}
