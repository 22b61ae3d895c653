package domains

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/platformtest"
)

// noted is a log that remembers.
type noted struct {
	mu      sync.Mutex
	records []*auditv1.Record
}

func (n *noted) Spool(_ context.Context, r *auditv1.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records = append(n.records, r)
	return nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLayers: the lists of the system and of users are read at the start and when they change, each by itself: one that is broken stays
// as it was good, with its reason told, and the others go on.
func TestLayers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	system, alices := filepath.Join(dir, destination.File), filepath.Join(dir, "users", "alice", destination.File)
	cfg := Config{Path: system, Log: &noted{}, Logger: platformtest.Logger()}
	write(t, system, "allow: [docs.example]\n")
	write(t, alices, "allow: [\"*.com\"]\n")
	if _, err := Open(cfg); err == nil {
		t.Fatal("a list that is not good is one to start with")
	}
	write(t, alices, "allow: [hers.example]\n")
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	alice, bob := destination.Party{Client: "cursor", User: "alice"}, destination.Party{Client: "other", User: "bob"}
	judge := func(of destination.Party, host string) destination.Verdict {
		v, _ := d.Current().Judge(of, destination.Destination{Host: host, Port: 443})
		return v
	}
	if judge(alice, "docs.example") != destination.Allowed || judge(alice, "hers.example") != destination.Allowed || judge(bob, "hers.example") != destination.Unknown ||
		judge(bob, "metadata.google.internal") != destination.Blocked {
		t.Fatalf("at the start: %+v", d.Current())
	}

	ctx, end := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { d.Watch(ctx) })
	defer watch.Wait()
	defer end()
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(20 * time.Millisecond) { // nothing tells when a file was taken over
			if time.Now().After(deadline) {
				t.Fatalf("not taken over: %s; refused %q, %+v", what, d.Refused(), d.Current())
			}
		}
	}
	write(t, alices, "allow: [hers.example, \"*.com\"]\n")
	write(t, system, "allow: [docs.example]\nblock: [bad.example]\n")
	until("a block beside a broken list", func() bool { return judge(alice, "bad.example") == destination.Blocked && d.Refused() != "" })
	if judge(alice, "hers.example") != destination.Allowed {
		t.Error("a list that is broken is not as it was good")
	}
	write(t, alices, "block: [docs.example]\n")
	until("the list, good again", func() bool {
		return judge(alice, "hers.example") == destination.Unknown && judge(alice, "docs.example") == destination.Blocked && d.Refused() == ""
	})
	if judge(bob, "docs.example") != destination.Allowed {
		t.Error("what a user blocks is blocked for another")
	}
	write(t, filepath.Join(dir, "users", "bob", destination.File), "allow: [his.example]\n")
	until("a new user's", func() bool { return judge(bob, "his.example") == destination.Allowed })
	write(t, filepath.Join(dir, "users", "carol", destination.File), "allow: [1]\n")
	until("that a new user's is broken", func() bool { return d.Refused() != "" })
	if err := os.RemoveAll(filepath.Join(dir, "users")); err != nil {
		t.Fatal(err)
	}
	until("that all users' are gone", func() bool { return judge(bob, "his.example") == destination.Unknown && d.Refused() == "" })
	found := map[string]int{}
	log := cfg.Log.(*noted)
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, r := range log.records {
		found[r.GetKind().String()+" "+r.GetBody().GetDetails()["file"]]++
	}
	for _, want := range []string{"KIND_CONFIG_FOUND domains.yaml", "KIND_CONFIG_REFUSED users/alice/domains.yaml", "KIND_CONFIG_FOUND users/bob/domains.yaml", "KIND_CONFIG_REFUSED users/carol/domains.yaml"} {
		if found[want] == 0 {
			t.Errorf("not recorded: %s; %v", want, found)
		}
	}
}
