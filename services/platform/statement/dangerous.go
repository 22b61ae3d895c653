package statement

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"durward.internal/services/platform/canonical"
)

// ConfirmAfter is how much later than a statement of kind dangerous its confirmation is made, by the operator's clock: time to read
// again what it means.
const ConfirmAfter = 5 * time.Second

// ErrHistorical: it was good when one signature was enough for dangerous mode. It stays evidence, and allows nothing.
var ErrHistorical = errors.New("the statement is of a version that allows nothing any more")

// ErrUnconfirmed: dangerous mode without its second statement.
var ErrUnconfirmed = errors.New("dangerous mode takes a second statement, by the same key, that confirms the first")

func versionOf(k Kind) int {
	if k == KindDangerous || k == KindConfirm {
		return VersionConfirmed
	}
	return Version
}

// historical reports whether it is of a version that is for verifying history alone.
func (s *Statement) historical() bool { return s.Kind == KindDangerous && s.Version == Version }

// Confirmation makes the second statement of dangerous mode: of the same party and end as the first, which is the signed bytes.
func Confirmation(first *Statement, signed []byte, id string, now time.Time) *Statement {
	digest := canonical.Digest(signed)
	return &Statement{
		Type: Type, Version: VersionConfirmed, Kind: KindConfirm, ID: id, Operator: first.Operator,
		IssuedAt: FormatTime(now), NotBefore: FormatTime(now), ExpiresAt: first.ExpiresAt,
		Epoch: first.Epoch, Audience: first.Audience, Principal: first.Principal, Session: first.Session, Channel: first.Channel,
		Confirms: canonical.FormatDigest(digest[:]),
	}
}

// ConfirmedBy reports whether second is the confirmation of v: nil, or ErrUnconfirmed with what differs.
func (v *Verified) ConfirmedBy(second *Verified) error {
	differs := func(what string) error { return fmt.Errorf("%w: %s", ErrUnconfirmed, what) }
	// check() parsed both before.
	first, _ := parseTime(v.IssuedAt)
	again, _ := parseTime(second.IssuedAt)
	switch {
	case v.Kind != KindDangerous || second.Kind != KindConfirm:
		return differs("kind")
	case second.Confirms != canonical.FormatDigest(v.Digest[:]):
		return differs("statement")
	case second.Operator != v.Operator || !bytes.Equal(second.Key.Marshal(), v.Key.Marshal()):
		return differs("key")
	case second.Epoch != v.Epoch || second.Audience != v.Audience || second.ExpiresAt != v.ExpiresAt:
		return differs("epoch, audience or end")
	case second.Principal != v.Principal || second.Session != v.Session || second.Channel != v.Channel:
		return differs("party")
	case again.Sub(first) < ConfirmAfter:
		return differs("time")
	}
	return nil
}
