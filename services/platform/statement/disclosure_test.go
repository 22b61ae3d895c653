package statement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/reference"
)

func TestDisclosuresAreThoseOfTheArguments(t *testing.T) {
	ref := reference.Reference{Class: reference.PII, Type: "EMAIL", ID: reference.NewID()}
	salt := []byte(strings.Repeat("k", 32))
	arguments := fmt.Appendf(nil, `{"to":%q}`, "mail "+ref.Marshal())
	good := Disclosure{
		Pointer: "/to", Ref: ref.ID.String(), Type: "EMAIL", Hint: "m•••@example.org",
		Commitment: DisclosureCommitment(salt, "/to", ref.ID.String(), "EMAIL", "maria@example.org"),
	}
	for name, change := range map[string]func(*Statement){
		"one too many":        func(s *Statement) { s.Disclosures = append(s.Disclosures, good) },
		"another place":       func(s *Statement) { s.Disclosures[0].Pointer = "/cc" },
		"a wildcard":          func(s *Statement) { s.Disclosures[0].Pointer = "*" },
		"another reference":   func(s *Statement) { s.Disclosures[0].Ref = reference.NewID().String() },
		"another type":        func(s *Statement) { s.Disclosures[0].Type = "PHONE" },
		"no hint":             func(s *Statement) { s.Disclosures[0].Hint = "" },
		"a hint without end":  func(s *Statement) { s.Disclosures[0].Hint = strings.Repeat("m", maxHint+1) },
		"a hint that hides":   func(s *Statement) { s.Disclosures[0].Hint = "m\u202e" },
		"no commitment":       func(s *Statement) { s.Disclosures[0].Commitment = "" },
		"of another kind":     func(s *Statement) { s.Kind = KindCommand },
		"without a reference": func(s *Statement) { s.Arguments = []byte(`{"to":"x"}`) },
	} {
		s := &Statement{Kind: KindApprove, Arguments: arguments, Disclosures: []Disclosure{good}}
		must(t, s.checkDisclosures())
		change(s)
		if err := s.checkDisclosures(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := &Statement{Disclosures: []Disclosure{good}}
	if !s.Discloses("/to", good.Ref, "EMAIL", salt, "maria@example.org") {
		t.Error("its own value is refused: this test proves nothing")
	}
	if s.Discloses("/to", good.Ref, "EMAIL", salt, "mallory@example.org") || s.Discloses("/to", good.Ref, "EMAIL", salt[1:], "maria@example.org") {
		t.Error("another value or salt is taken")
	}
	// What another place, reference or type discloses, with a commitment of its own to that, is told apart by each of the three.
	for _, one := range [][3]string{{"/cc", good.Ref, "EMAIL"}, {"/to", "other", "EMAIL"}, {"/to", good.Ref, "PHONE"}} {
		s.Disclosures[0].Commitment = DisclosureCommitment(salt, one[0], one[1], one[2], "maria@example.org")
		if s.Discloses(one[0], one[1], one[2], salt, "maria@example.org") {
			t.Errorf("%q is disclosed by what discloses another", one)
		}
	}
	if _, err := canonical.ParseDigest(good.Commitment); err != nil {
		t.Error(err)
	}
}
