package domains

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/security/trusted"
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

// TestProjects: the domains that a trusted project blocks are blocked for its clients, by the copy of the digest that projects.yaml names
// and by no other; a project whose copy is not good leaves what was in force, with the reason told.
func TestProjects(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	copyOf := func(text string) (entry, file string) {
		digest := strings.TrimPrefix(canonical.DigestText([]byte(text)), "sha256:")
		return "projects: [{path: /p/durward.yaml, clients: [cursor], sha256: " + digest + "}]\n", filepath.Join(dir, "projects", digest+".yaml")
	}
	at := filepath.Join(dir, trusted.File)
	cfg := Config{Path: filepath.Join(dir, destination.File), Log: &noted{}, Logger: platformtest.Logger()}
	write(t, cfg.Path, "allow: [docs.example, wiki.example]\n")
	first := "domains: {block: [docs.example]}\n"
	entry, file := copyOf(first)
	write(t, at, entry)
	for text, why := range map[string]string{"": "it is not what a human trusted", first + "#\n": "it is not what a human trusted"} {
		write(t, file, text)
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("a copy %q: %v", text, err)
		}
	}
	loose := "domains:\n  allow: [\"*.example\"]\n"
	entry, looseFile := copyOf(loose)
	write(t, at, entry)
	write(t, looseFile, loose)
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), `.yaml:2:3: unknown key "allow" in domains`) {
		t.Errorf("a project that allows: %v", err)
	}
	entry, file = copyOf(first)
	write(t, at, entry)
	write(t, file, first)
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	judge := func(client, host string) destination.Verdict {
		v, _ := d.Current().Judge(destination.Party{Client: client}, destination.Destination{Host: host, Port: 443})
		return v
	}
	if judge("cursor", "docs.example") != destination.Blocked || judge("other", "docs.example") != destination.Allowed || judge("cursor", "wiki.example") != destination.Allowed {
		t.Fatalf("at the start: %+v", d.Current())
	}
	until := watched(t, d)
	second := "domains: {block: [wiki.example]}\n"
	entry, file = copyOf(second)
	write(t, at, entry) // its copy comes later
	until("that the copy is not there", func() bool { return d.Refused() != "" })
	if judge("cursor", "docs.example") != destination.Blocked {
		t.Error("what was in force is not")
	}
	write(t, file, second)
	until("another project's file", func() bool {
		return judge("cursor", "wiki.example") == destination.Blocked && judge("cursor", "docs.example") == destination.Allowed && d.Refused() == ""
	})
	entry, _ = copyOf(loose)
	write(t, at, entry)
	until("that a project allows", func() bool { return d.Refused() != "" })
	if judge("cursor", "wiki.example") != destination.Blocked || judge("cursor", "other.example") != destination.Unknown {
		t.Error("a project that allows changed something")
	}
	write(t, at, "projects: []\n")
	until("that nothing is trusted", func() bool { return judge("cursor", "wiki.example") == destination.Allowed && d.Refused() == "" })
}

// watched has the files watched until the test ends, and returns what waits for a change to be taken over.
func watched(t *testing.T, d *Domains) (until func(what string, is func() bool)) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { d.Watch(ctx) })
	t.Cleanup(watch.Wait)
	t.Cleanup(end)
	return func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(20 * time.Millisecond) { // nothing tells when a file was taken over
			if time.Now().After(deadline) {
				t.Fatalf("not taken over: %s; refused %q, %+v", what, d.Refused(), d.Current())
			}
		}
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

	until := watched(t, d)
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
