package statement

import (
	"crypto/hmac"
	"fmt"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/reference"
)

// Disclosure is one value that a call gives its sink in the place of a reference.
type Disclosure struct {
	// Pointer is where in the arguments the reference stands (RFC 6901), Ref is its own part (tkn_…).
	Pointer string `json:"pointer"`
	Ref     string `json:"ref"`
	Type    string `json:"type"`
	// Hint is the value as it was displayed: masked.
	Hint string `json:"hint"`
	// Commitment is DisclosureCommitment of the value: the sink accepts no other.
	Commitment string `json:"commitment"`
}

// Bounds of what one call discloses.
const (
	MaxDisclosures = 50
	// MaxDisclosed is how long the values are together, in bytes.
	MaxDisclosed = 8192
	maxHint      = 64
)

// DisclosureCommitment is what stands in a statement for a value: HMAC-SHA256 under a key that is made for it, over where the value goes,
// its type and itself, each with its length.
func DisclosureCommitment(key []byte, pointer, ref, kind, value string) string {
	return commitment(key, []byte("durward.disclosure.v1"), []byte(pointer), []byte(ref), []byte(kind), []byte(value))
}

// checkDisclosures holds the disclosures to the arguments: they are those of the references in them, all of them or none.
func (s *Statement) checkDisclosures() error {
	if len(s.Disclosures) == 0 {
		return nil
	}
	bad := func(what string) error { return fmt.Errorf("%w: %s", ErrMalformed, what) }
	if len(s.Disclosures) > MaxDisclosures || s.Kind != KindApprove {
		return bad("it discloses too much, or is of a kind that discloses nothing")
	}
	all, err := reference.InJSON(s.Arguments)
	if err != nil {
		return bad("its arguments are no JSON")
	}
	var personal []reference.Place
	for _, p := range all {
		if p.Class == reference.PII {
			personal = append(personal, p)
		}
	}
	if len(personal) != len(s.Disclosures) {
		return bad("its disclosures are not those of its arguments")
	}
	for i, d := range s.Disclosures {
		p := personal[i]
		if d.Pointer != p.Pointer || d.Ref != p.ID.String() || d.Type != p.Type {
			return bad("its disclosures are not those of its arguments")
		}
		if _, err := canonical.ParseDigest(d.Commitment); err != nil || d.Hint == "" || len(d.Hint) > maxHint || clean.Line(d.Hint, maxHint) != d.Hint {
			return bad("a disclosure says too little, or what cannot be displayed")
		}
	}
	return nil
}

// Discloses reports whether the statement lets the sink have this value there.
func (s *Statement) Discloses(pointer, ref, kind string, salt []byte, value string) bool {
	for _, d := range s.Disclosures {
		if d.Pointer == pointer && d.Ref == ref && d.Type == kind {
			return hmac.Equal([]byte(d.Commitment), []byte(DisclosureCommitment(salt, pointer, ref, kind, value)))
		}
	}
	return false
}
