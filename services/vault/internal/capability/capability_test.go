package capability

import (
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/reference"
)

func TestACapabilityIsForOneUse(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	i := New(func() time.Time { return now })
	use := Use{Session: "s-1", Kind: "egress", Sink: "spiffe://d/egress/main", Pointer: "/body", Call: [32]byte{1}}
	ref := reference.NewID()
	for name, change := range map[string]func(*Use){
		"another session":             func(u *Use) { u.Session = "s-2" },
		"another kind":                func(u *Use) { u.Kind = "executor" },
		"another sink":                func(u *Use) { u.Sink += "2" },
		"another argument":            func(u *Use) { u.Pointer = "/url" },
		"a wildcard":                  func(u *Use) { u.Pointer = "*" },
		"an argument below":           func(u *Use) { u.Pointer += "/0" },
		"no argument":                 func(u *Use) { u.Pointer = "" },
		"another call":                func(u *Use) { u.Call[31] = 1 },
		"a boundary that moved":       func(u *Use) { u.Kind, u.Sink = u.Kind+u.Sink[:1], u.Sink[1:] },
		"a session with what follows": func(u *Use) { u.Session, u.Kind = u.Session+u.Kind, "" },
	} {
		other := use
		change(&other)
		if _, err := i.Spend(i.Issue(ref, use), other); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	whole := i.Issue(ref, use)
	for at := range whole {
		for bit := range 8 {
			edited := []byte(string(whole))
			edited[at] ^= 1 << bit
			if _, err := i.Spend(edited, use); !errors.Is(err, ErrInvalid) {
				t.Fatalf("with bit %d of byte %d changed: %v", bit, at, err)
			}
		}
		if _, err := i.Spend(whole[:at], use); !errors.Is(err, ErrInvalid) {
			t.Fatalf("%d bytes of it: %v", at, err)
		}
	}
	if _, err := New(i.now).Spend(whole, use); !errors.Is(err, ErrInvalid) {
		t.Errorf("another process: %v", err)
	}
	if got, err := i.Spend(whole, use); err != nil || got != ref {
		t.Errorf("its own use: %v, %v", got, err)
	}
	if _, err := i.Spend(whole, use); !errors.Is(err, ErrInvalid) {
		t.Errorf("a second time: %v", err)
	}
	late := i.Issue(ref, use)
	now = now.Add(Life)
	if _, err := i.Spend(late, use); !errors.Is(err, ErrInvalid) {
		t.Errorf("at its end: %v", err)
	}
	// What was used is remembered as long as it could be used, and no longer.
	for range 100 {
		if _, err := i.Spend(i.Issue(ref, use), use); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * Life)
	if _, err := i.Spend(i.Issue(ref, use), use); err != nil || len(i.spent) != 1 {
		t.Errorf("%d are remembered, %v", len(i.spent), err)
	}
}

func TestGuessesOpenNothing(t *testing.T) {
	i := New(time.Now)
	use := Use{Session: "s-1", Kind: "egress", Sink: "x", Pointer: "/a"}
	whole := i.Issue(reference.NewID(), use)
	guess := []byte(strings.Repeat("x", size))
	for range 200_000 {
		copy(guess, whole[:1+keyID+8])
		_, _ = rand.Read(guess[1+keyID+8:])
		if _, err := i.Spend(guess, use); err == nil {
			t.Fatal("a guess was taken")
		}
	}
	if _, err := i.Spend(whole, use); err != nil {
		t.Error("the capability itself is refused: this test proves nothing")
	}
}

// BenchmarkRedeem makes a capability and spends it, as each delivered value needs.
func BenchmarkRedeem(b *testing.B) {
	i, ref := New(time.Now), reference.NewID()
	use := Use{Session: "s-1", Kind: "egress", Sink: "spiffe://d/egress/main", Pointer: "/body"}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if got, err := i.Spend(i.Issue(ref, use), use); err != nil || got != ref {
			b.Fatal(got, err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	for name, at := range map[string]int{"p50-µs": len(took) / 2, "p99-µs": (len(took)*99 - 1) / 100} {
		b.ReportMetric(float64(took[at].Nanoseconds())/1000, name)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "redeemed/s")
}
