package session

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/vault/internal/clients"
)

func TestHandles(t *testing.T) {
	table := New(time.Now, 0)
	client := &clients.Client{ID: "a", Sessions: 100}
	seen := map[string]bool{}
	for range 100 {
		id, s, err := table.Open(client, "")
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] || seen[s.Ref] || len(id) != 32 || strings.Contains(s.Ref, id) {
			t.Fatalf("handle %q, reference %q", id, s.Ref)
		}
		seen[id], seen[s.Ref] = true, true
		if got, err := table.Find(id); err != nil || got != s {
			t.Errorf("find: %v, %v", got, err)
		}
		// The public reference opens nothing.
		if _, err := table.Find(s.Ref); err == nil {
			t.Error("found by its reference")
		}
		if _, err := table.Find(strings.ToUpper(id)); err == nil && strings.ToUpper(id) != id {
			t.Error("found by another spelling")
		}
	}
}

func TestCapHoldsUnderLoad(t *testing.T) {
	table := New(time.Now, 10)
	client := &clients.Client{ID: "a", Sessions: 7}
	var opened atomic.Int32
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, _, err := table.Open(client, ""); err == nil {
				opened.Add(1)
			}
		})
	}
	wg.Wait()
	if opened.Load() != 7 || table.Count() != 7 {
		t.Errorf("%d opened, %d there", opened.Load(), table.Count())
	}
}

func TestSweep(t *testing.T) {
	now := time.Now()
	table := New(func() time.Time { return now }, 0)
	client := &clients.Client{ID: "a", Sessions: 3}
	_, idle, _ := table.Open(client, "")
	busyID, _, _ := table.Open(client, "")
	_, revoked, _ := table.Open(client, "")
	now = now.Add(IdleTimeout - time.Second)
	if _, err := table.Find(busyID); err != nil {
		t.Fatal(err)
	}
	ended := table.Sweep(func(s *Session) bool { return s != revoked })
	if len(ended) != 1 || ended[0] != revoked {
		t.Errorf("ended %v", ended)
	}
	now = now.Add(time.Second)
	ended = table.Sweep(func(*Session) bool { return true })
	if len(ended) != 1 || ended[0] != idle || table.Count() != 1 {
		t.Errorf("ended %v, %d left", ended, table.Count())
	}
	// Places are free again.
	for range 2 {
		if _, _, err := table.Open(client, ""); err != nil {
			t.Error(err)
		}
	}
}

func TestFreshRemembersAsLongAsAProofIsOfItsTime(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	table := New(func() time.Time { return now }, 0)
	keep := func(*Session) bool { return true }
	future := &callv1.Proof{Counter: 1, Time: now.Add(OpenSkew).Unix()}
	if !table.Fresh("a", future) || table.Fresh("a", future) {
		t.Error("not accepted exactly once")
	}
	if !table.Fresh("b", future) {
		t.Error("another client's opening is taken for this one's")
	}
	for range 20 {
		now = now.Add(30 * time.Second)
		table.Sweep(keep)
		if table.Fresh("a", future) {
			t.Fatalf("accepted again at %s", now)
		}
	}
	now = now.Add(2 * OpenSkew)
	table.Sweep(keep)
	if len(table.openings) != 0 {
		t.Errorf("%d openings are remembered for ever", len(table.openings))
	}
}
