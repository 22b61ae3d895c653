package signingkey

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/statement"
)

// asked counts how often a passphrase was asked for.
type asked struct{ times int }

func (a *asked) ask(context.Context, string) ([]byte, error) {
	a.times++
	return []byte("secret"), nil
}

func aStatement() *statement.Statement {
	now := time.Now()
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindResume, ID: grant.NewID(), Operator: "alice",
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(time.Minute)),
		Epoch: 2, Audience: "spiffe://durward.local/executor/local",
	}
}

// held returns a holder of a new key with a passphrase, or without one.
func held(t *testing.T, passphrase string, life time.Duration) *Holder {
	t.Helper()
	private, _, err := Generate("alice", []byte(passphrase))
	must(t, err)
	file := filepath.Join(t.TempDir(), "key")
	testfile.Write(t, file, private)
	k, err := NewHolder(HolderConfig{For: life, Open: func(ctx context.Context, ask Asker) (*Signer, error) {
		return Source{File: file, Ask: ask}.Open(ctx)
	}})
	must(t, err)
	t.Cleanup(k.Close)
	return k
}

func TestNewRejects(t *testing.T) {
	open := func(context.Context, Asker) (*Signer, error) { return nil, nil }
	for name, c := range map[string]HolderConfig{
		"no key": {}, "more than five minutes": {Open: open, For: Longest + time.Second}, "less than nothing": {Open: open, For: -1},
	} {
		if _, err := NewHolder(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestKeyIsHeldForFiveMinutesAtMost(t *testing.T) {
	k := held(t, "secret", 0)
	synctest.Test(t, func(t *testing.T) {
		var a asked
		sign := func() {
			t.Helper()
			if _, err := k.Sign(t.Context(), aStatement(), a.ask); err != nil {
				t.Fatal(err)
			}
		}
		sign()
		time.Sleep(Longest - time.Second)
		sign()
		if a.times != 1 {
			t.Fatalf("asked %d times within five minutes, want once", a.times)
		}
		// Use does not renew it.
		time.Sleep(2 * time.Second)
		if _, ok := k.Held(); ok {
			t.Error("the key is held after five minutes")
		}
		sign()
		if a.times != 2 {
			t.Errorf("asked %d times after five minutes, want twice", a.times)
		}
		k.Lock()
		sign()
		if a.times != 3 {
			t.Errorf("asked %d times after a lock, want 3", a.times)
		}
		k.Close()
		if _, err := k.Sign(t.Context(), aStatement(), a.ask); !errors.Is(err, ErrClosed) {
			t.Errorf("a closed holder signs: %v", err)
		}
	})
}

// A timer that did not fire, as on a machine that slept, holds nothing longer.
func TestLateTimerHoldsNothingLonger(t *testing.T) {
	k := held(t, "secret", 0)
	var a asked
	if _, err := k.Sign(t.Context(), aStatement(), a.ask); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.timer.Stop()
	k.until = time.Now().Add(-time.Second).Round(0)
	k.mu.Unlock()
	if _, ok := k.Held(); ok {
		t.Error("held beyond its time")
	}
	if _, err := k.Sign(t.Context(), aStatement(), a.ask); err != nil || a.times != 2 {
		t.Errorf("asked %d times, %v", a.times, err)
	}
}

func TestWrongPassphraseHoldsNothing(t *testing.T) {
	k := held(t, "secret", 0)
	wrong := func(context.Context, string) ([]byte, error) { return []byte("wrong"), nil }
	if _, err := k.Sign(t.Context(), aStatement(), wrong); !errors.Is(err, ErrPassphrase) {
		t.Errorf("got %v", err)
	}
	if _, ok := k.Held(); ok {
		t.Error("a wrong passphrase left a key open")
	}
}

// A lock counts for the key that is being opened, too.
func TestALockWhileTheKeyIsOpenedHolds(t *testing.T) {
	k := held(t, "secret", 0)
	if _, err := k.Sign(t.Context(), aStatement(), func(context.Context, string) ([]byte, error) {
		k.Lock()
		return []byte("secret"), nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, ok := k.Held(); ok {
		t.Error("the key is held after a lock")
	}
}

// A key without a passphrase is asked of its file each time, as an agent's key is of the agent.
func TestOnlyAKeyWithAPassphraseIsHeld(t *testing.T) {
	k := held(t, "", 0)
	if _, err := k.Sign(t.Context(), aStatement(), nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := k.Held(); ok {
		t.Error("a key that nobody's passphrase protects is held")
	}
	if strings.Contains(ErrClosed.Error(), "/") {
		t.Error("an error names a path")
	}
}
