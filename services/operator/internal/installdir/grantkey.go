package installdir

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"time"

	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/trust"
)

const (
	// grantKeyLife is how long a signing key of the vault's is trusted: as long as an authority, so that an installation does not stop for it.
	grantKeyLife = pki.AuthorityLife
	// grantKeyDue is how long before its end the next key is made, and people are told of it; grantKeyLate is when it is urgent.
	grantKeyDue  = 90 * 24 * time.Hour
	grantKeyLate = 14 * 24 * time.Hour
)

// GrantKey is a signing key of the vault's, with which it signs grants and permits.
type GrantKey struct {
	KID       string    `json:"kid"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	// Due: it ends so soon that the next one is to be made, or a clock that was ahead made it. Late: that is urgent.
	Due  bool `json:"due,omitempty"`
	Late bool `json:"late,omitempty"`
}

func judgeGrantKey(s trust.GrantSigner, now time.Time) GrantKey {
	left, ahead := s.NotAfter.Sub(now), now.Before(s.NotBefore)
	return GrantKey{s.KID, s.NotBefore.UTC(), s.NotAfter.UTC(), left < grantKeyDue || ahead, left < grantKeyLate || ahead}
}

// ReadGrantKey returns the key that a trust folder trusts the longest from now.
func ReadGrantKey(trustDir string, now time.Time) (GrantKey, error) {
	signers, err := trust.ReadGrantSigners(trustDir)
	if err != nil {
		return GrantKey{}, err
	}
	begun := slices.DeleteFunc(slices.Clone(signers), func(s trust.GrantSigner) bool { return now.Before(s.NotBefore) })
	if len(begun) == 0 {
		begun = signers
	}
	return judgeGrantKey(slices.MaxFunc(begun, func(a, b trust.GrantSigner) int { return a.NotAfter.Compare(b.NotAfter) }), now), nil
}

// Sentence says until when what is signed with the key is accepted.
func (k GrantKey) Sentence(now time.Time) string {
	const form = "2006-01-02 15:04 MST"
	switch subject := k.KID + ", with which the vault signs, "; {
	case now.Before(k.NotBefore):
		return subject + "counts only from " + k.NotBefore.Format(form) + ", by this host's clock"
	case now.Before(k.NotAfter):
		return subject + "ends at " + k.NotAfter.Format(form)
	default:
		return subject + "ended at " + k.NotAfter.Format(form) + ": nothing that it signs is accepted"
	}
}

// NewGrantKey makes the vault's first signing key.
func NewGrantKey() ([]byte, error) {
	key, err := grant.GenerateKey(kid(1))
	if err != nil {
		return nil, err
	}
	return key.Format(), nil
}

const kidForm = "grant-%d"

func kid(number int) string { return fmt.Sprintf(kidForm, number) }

// GrantSigners is the trust folder's file of the vault's signing keys for an installation whose first key lies at path.
func GrantSigners(path string, now time.Time) ([]byte, error) {
	key, err := grant.LoadKey(path)
	if err != nil {
		return nil, err
	}
	return trust.FormatGrantSigners([]trust.GrantSigner{signer(key, now)}), nil
}

func signer(key grant.Key, now time.Time) trust.GrantSigner {
	// The day before: clocks differ, and a day is not worth a failed start.
	from := now.UTC().Truncate(24*time.Hour).AddDate(0, 0, -1)
	// ed25519.PrivateKey's public half is always an ed25519.PublicKey.
	public, _ := key.Private.Public().(ed25519.PublicKey)
	return trust.GrantSigner{KID: key.KID, Key: public, NotBefore: from, NotAfter: from.Add(grantKeyLife)}
}

// Succession is the vault's next signing key.
type Succession struct {
	// Old is the key that it follows, and KID its own name.
	Old GrantKey
	KID string
	// Signers is the trust folder's file with both, the old one until its end. It is written before Key, the next key's own file: what is
	// signed with a key that nobody knows is refused.
	Signers, Key []byte
}

// SucceedGrantKey makes the key that follows the one in a file where that is due. Else, or where the two files do not say when it ends, it
// returns nil: the vault does not start with such files, and says why.
func SucceedGrantKey(file, trustDir string, now time.Time) (*Succession, error) {
	present, unread := grant.LoadKey(file)
	signers, unknown := trust.ReadGrantSigners(trustDir)
	called := func(kid string) func(trust.GrantSigner) bool {
		return func(s trust.GrantSigner) bool { return s.KID == kid }
	}
	at := slices.IndexFunc(signers, called(present.KID))
	if unread != nil || unknown != nil || at < 0 {
		return nil, nil
	}
	old := judgeGrantKey(signers[at], now)
	if !old.Due {
		return nil, nil
	}
	number := 0
	_, _ = fmt.Sscanf(present.KID, kidForm, &number) // a human's key may be called anything
	for number++; slices.ContainsFunc(signers, called(kid(number))); {
		number++
	}
	next, err := grant.GenerateKey(kid(number))
	if err != nil {
		return nil, err
	}
	signers = slices.DeleteFunc(signers, func(s trust.GrantSigner) bool { return !now.Before(s.NotAfter) })
	return &Succession{Old: old, KID: next.KID, Key: next.Format(), Signers: trust.FormatGrantSigners(append(signers, signer(next, now)))}, nil
}
