package installdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/trust"
)

const day = 24 * time.Hour

// signed is a home of its own, and change changes what its trust folder says of the vault's signing keys.
func signed(t *testing.T) (h Home, change func(func(signers []trust.GrantSigner))) {
	t.Helper()
	h, err := At(filepath.Join(t.TempDir(), "home"))
	if err != nil {
		t.Fatal(err)
	}
	prepare(t, h)
	return h, func(to func([]trust.GrantSigner)) {
		t.Helper()
		signers, err := trust.ReadGrantSigners(h.Trust())
		if err != nil {
			t.Fatal(err)
		}
		to(signers)
		if err := os.WriteFile(h.Trust(trust.FileGrantSigners), trust.FormatGrantSigners(signers), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func prepare(t *testing.T, h Home) (made []string) {
	t.Helper()
	made, err := h.Init(Options{Development: true, Operator: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// signs returns the key that the vault would sign with, and those that are trusted now.
func signs(t *testing.T, h Home) (kid string, trusted []string) {
	t.Helper()
	key, err := grant.LoadKey(h.Key("grant.key"))
	roots, err2 := trust.Read(h.Trust())
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	for _, s := range roots.GrantSigners {
		if known, err := roots.GrantKey(s.KID, time.Now()); err == nil {
			trusted = append(trusted, s.KID)
			if s.KID == key.KID && !known.Equal(key.Private.Public()) {
				t.Errorf("%s is trusted as another key", s.KID)
			}
		}
	}
	return key.KID, trusted
}

func TestGrantKeyIsSucceeded(t *testing.T) {
	h, change := signed(t)
	ends := func(at int, after time.Duration) func() {
		return func() {
			change(func(s []trust.GrantSigner) { s[at].NotAfter = time.Now().Add(after) })
		}
	}
	var before []byte
	for _, c := range []struct {
		name    string
		change  func()
		made    bool
		kid     string
		trusted []string
	}{
		{"time enough", ends(0, 91*day), false, "grant-1", []string{"grant-1"}},
		{"it ends soon", ends(0, 89*day), true, "grant-2", []string{"grant-1", "grant-2"}},
		{"the old one ends", ends(0, -day), false, "grant-2", []string{"grant-2"}},
		{"the next one ends soon", func() {
			var err error
			if before, err = os.ReadFile(h.Key("grant.key")); err != nil {
				t.Fatal(err)
			}
			ends(1, day)()
		}, true, "grant-3", []string{"grant-2", "grant-3"}},
		{"a writer was killed between the two files", func() {
			if err := os.WriteFile(h.Key("grant.key"), before, 0o600); err != nil {
				t.Fatal(err)
			}
		}, true, "grant-4", []string{"grant-2", "grant-3", "grant-4"}},
		{"a clock that was ahead made it", func() {
			change(func(s []trust.GrantSigner) { s[2].NotBefore = time.Now().Add(day) })
		}, true, "grant-5", []string{"grant-2", "grant-3", "grant-5"}},
	} {
		c.change()
		made := prepare(t, h)
		if kid, trusted := signs(t, h); kid != c.kid || c.made != cmp.Equal(made, []string{"keys/grant.key"}) || !cmp.Equal(trusted, c.trusted) {
			t.Errorf("%s: makes %q, signs with %s of %q", c.name, made, kid, trusted)
		}
		if made := prepare(t, h); len(made) > 0 {
			t.Errorf("%s: a second call makes %q", c.name, made)
		}
	}
	if signers, err := trust.ReadGrantSigners(h.Trust()); err != nil || signers[0].KID != "grant-2" {
		t.Errorf("what has ended is left: %+v, %v", signers, err)
	}
}

func TestReadGrantKey(t *testing.T) {
	h, change := signed(t)
	roots, err := trust.Read(h.Trust())
	if err != nil {
		t.Fatal(err)
	}
	if end := roots.GrantSigners[0].NotAfter; roots.Bundle[0].NotAfter.Sub(end) > 3*day {
		t.Errorf("it ends at %s, long before the authority", end)
	}
	from, until := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC), time.Date(2036, 1, 31, 0, 0, 0, 0, time.UTC)
	change(func(s []trust.GrantSigner) { s[0].NotBefore, s[0].NotAfter = from, until })
	for _, c := range []struct {
		now       time.Time
		due, late bool
		says      string
	}{
		{from.Add(-day), true, true, "counts only from 2026-01-31 00:00 UTC, by this host's clock"},
		{until.Add(-91 * day), false, false, "ends at 2036-01-31 00:00 UTC"},
		{until.Add(-89 * day), true, false, "ends at 2036-01-31 00:00 UTC"},
		{until.Add(-13 * day), true, true, "ends at 2036-01-31 00:00 UTC"},
		{until, true, true, "ended at 2036-01-31 00:00 UTC: nothing that it signs is accepted"},
	} {
		got, err := ReadGrantKey(h.Trust(), c.now)
		if says := got.Sentence(c.now); err != nil || got != (GrantKey{"grant-1", from, until, c.due, c.late}) || says != "grant-1, with which the vault signs, "+c.says {
			t.Errorf("%s: %+v, %q, %v", c.now, got, says, err)
		}
	}
}
