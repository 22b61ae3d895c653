package safe

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"durward.internal/services/platform/handover"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/store"
)

const (
	executor = "spiffe://d/executor/local"
	egress   = "spiffe://d/egress/local"
)

// world is a Safe with two credentials, each granted to nobody.
type world struct {
	*Safe
	t     *testing.T
	dir   string
	state *store.Store
	now   time.Time
	used  byte
	// known are the values that were told.
	known []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	state, err := store.Open(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := state.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, dir: dir, state: state, now: time.Unix(1_800_000_000, 0).UTC()}
	w.Safe = w.next(keyring.SourceFile)
	for _, name := range []string{"hf", "github"} {
		salt := bytes.Repeat([]byte{1}, statement.CommitmentKey)
		value := []byte("value of " + name)
		w.change(&statement.Credential{
			Action: statement.CredentialAdd, Name: name, Version: 1, Commitment: statement.Commitment(salt, name, 1, value),
			Delivery: statement.DeliveryEnvironment, Variable: "V_" + name,
		}, value, salt)
	}
	return w
}

// next is the Safe of another process on the same state.
func (w *world) next(source string) *Safe {
	w.t.Helper()
	clock := func() time.Time { return w.now }
	ring, err := keyring.Open(w.t.Context(), keyring.Config{
		Store: w.state, Source: source, File: filepath.Join(w.dir, keyring.File), Now: clock, Logger: platformtest.Logger(),
	})
	must(w.t, err)
	return New(w.state, ring, func(value []byte) { w.known = append(w.known, string(value)) }, clock)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) change(c *statement.Credential, value, salt []byte) {
	w.t.Helper()
	w.used++
	if err := w.Change(context.Background(), c, value, salt, store.UsedStatement{Digest: []byte{w.used}, UsedAt: w.now}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) grant(name string, g statement.CredentialGrants) {
	w.t.Helper()
	w.change(&statement.Credential{Action: statement.CredentialGrant, Name: name, CredentialGrants: g}, nil, nil)
}

// gets returns the value that is released.
func (w *world) gets(a Ask) (string, error) {
	var got string
	err := w.Release(context.Background(), a, func(values []handover.Value) error {
		got = string(values[0].Value)
		return nil
	})
	return got, err
}

// TestAGrantCoversWhatItNamesAlone
func TestAGrantCoversWhatItNamesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.grant("hf", statement.CredentialGrants{Sink: executor, Services: []string{"chat", "llm"}, Agents: []string{"claude", "codex/one"}})
	w.grant("hf", statement.CredentialGrants{
		Sink: egress, Origins: []string{"https://a.example"}, Place: "Authorization", Scheme: "Bearer", Agents: []string{"claude"},
		Until: statement.FormatTime(w.now.Add(time.Hour)),
	})
	start := Ask{Sink: executor, Service: "llm", Principal: "claude", Names: []string{"hf"}}
	request := Ask{Sink: egress, Origin: "https://a.example", Place: "Authorization", Principal: "claude", Names: []string{"hf"}}
	with := func(a Ask, change func(*Ask)) Ask { change(&a); return a }
	for name, a := range map[string]Ask{
		"another service":                 with(start, func(a *Ask) { a.Service = "other" }),
		"another sink":                    with(start, func(a *Ask) { a.Sink = "spiffe://d/executor/other" }),
		"another agent":                   with(start, func(a *Ask) { a.Principal = "cursor" }),
		"an agent's name for its client":  with(start, func(a *Ask) { a.Principal, a.Agent = "codex", "two" }),
		"a client with an agent's name":   with(start, func(a *Ask) { a.Principal = "codex" }),
		"a start without a call":          with(start, func(a *Ask) { a.Principal = "" }),
		"another credential":              with(start, func(a *Ask) { a.Names = []string{"github"} }),
		"one of two":                      with(start, func(a *Ask) { a.Names = []string{"hf", "github"} }),
		"an unknown one":                  with(start, func(a *Ask) { a.Names = []string{"none"} }),
		"a request by the executor":       with(request, func(a *Ask) { a.Sink = executor }),
		"a start by egress":               with(start, func(a *Ask) { a.Sink = egress }),
		"another origin":                  with(request, func(a *Ask) { a.Origin = "https://b.example" }),
		"the origin with another port":    with(request, func(a *Ask) { a.Origin = "https://a.example:8443" }),
		"another header":                  with(request, func(a *Ask) { a.Place = "X-Token" }),
		"a request of another's":          with(request, func(a *Ask) { a.Principal = "codex" }),
		"a request of nobody's":           with(request, func(a *Ask) { a.Principal = "" }),
		"neither a service nor an origin": {Sink: egress, Principal: "claude", Names: []string{"hf"}},
	} {
		if got, err := w.gets(a); !errors.Is(err, ErrNotGranted) || got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, c := range map[string]struct {
		ask  Ask
		want string
	}{
		"by its client":   {start, "value of hf"},
		"by its agent":    {with(start, func(a *Ask) { a.Principal, a.Agent = "codex", "one" }), "value of hf"},
		"by the operator": {with(start, func(a *Ask) { a.Principal = statement.CommandPrincipal("ada") }), "value of hf"},
		"in a header":     {request, "Bearer value of hf"},
	} {
		if got, err := w.gets(c.ask); err != nil || got != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// At its end it covers nothing, and the other sink's goes on.
	w.now = w.now.Add(time.Hour)
	if got, err := w.gets(request); !errors.Is(err, ErrNotGranted) {
		t.Errorf("after its end: %q, %v", got, err)
	}
	if _, err := w.gets(start); err != nil {
		t.Error(err)
	}
}

// TestUnattendedIsSaidByAHumanAlone
func TestUnattendedIsSaidByAHumanAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.grant("hf", statement.CredentialGrants{Sink: executor, Services: []string{"llm"}, Unattended: true})
	w.grant("github", statement.CredentialGrants{Sink: executor, Services: []string{"llm"}})
	alone := Ask{Sink: executor, Service: "llm", Names: []string{"hf"}}
	if got, err := w.gets(alone); err != nil || got != "value of hf" {
		t.Errorf("%q, %v", got, err)
	}
	alone.Names = []string{"hf", "github"}
	if got, err := w.gets(alone); !errors.Is(err, ErrNotGranted) || got != "" {
		t.Errorf("with one that is not granted so: %q, %v", got, err)
	}
	was, err := w.Revoke(t.Context(), "hf", "llm")
	if err != nil || len(was.Uses) != 1 {
		t.Errorf("%+v, %v", was, err)
	}
	alone.Names = []string{"hf"}
	if got, err := w.gets(alone); !errors.Is(err, ErrNotGranted) {
		t.Errorf("revoked: %q, %v", got, err)
	}
	if _, err := w.Revoke(t.Context(), "hf", "llm"); !errors.Is(err, ErrNotGranted) {
		t.Errorf("revoked twice: %v", err)
	}
}

// TestRefused: what Change and Remove refuse, which is said before it is recorded.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	salt, value := bytes.Repeat([]byte{1}, statement.CommitmentKey), []byte("another")
	with := func(action, name string, version int) *statement.Credential {
		return &statement.Credential{Action: action, Name: name, Version: version, Commitment: statement.Commitment(salt, name, version, value)}
	}
	for name, c := range map[string]struct {
		*statement.Credential
		want error
	}{
		"added twice":              {with(statement.CredentialAdd, "hf", 1), ErrExists},
		"another version of none":  {with(statement.CredentialRotate, "none", 2), ErrUnknown},
		"none is granted":          {with(statement.CredentialGrant, "none", 0), ErrUnknown},
		"a version is left out":    {with(statement.CredentialRotate, "hf", 3), ErrVersion},
		"a version that there was": {with(statement.CredentialRotate, "hf", 1), ErrVersion},
	} {
		if err := w.MayChange(t.Context(), c.Credential, value, salt); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for version, want := range map[uint32]error{1: ErrNewest, 9: ErrVersion} {
		if _, err := w.Remove(t.Context(), "hf", version); !errors.Is(err, want) {
			t.Errorf("version %d is removed: %v", version, err)
		}
	}
	if err := w.MayChange(t.Context(), with(statement.CredentialRotate, "hf", 2), value, salt); err != nil {
		t.Errorf("nothing is let through, so that nothing is proved: %v", err)
	}
}

// TestTwoInOneVariable: a service that would get one of two values, and nobody knows which, gets none.
func TestTwoInOneVariable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	salt, value := bytes.Repeat([]byte{1}, statement.CommitmentKey), []byte("another")
	w.change(&statement.Credential{
		Action: statement.CredentialAdd, Name: "hf2", Version: 1, Commitment: statement.Commitment(salt, "hf2", 1, value),
		Delivery: statement.DeliveryEnvironment, Variable: "V_hf",
	}, value, salt)
	for _, name := range []string{"hf", "hf2"} {
		w.grant(name, statement.CredentialGrants{Sink: executor, Services: []string{"llm"}})
	}
	a := Ask{Sink: executor, Service: "llm", Principal: "claude", Names: []string{"hf2"}}
	if got, err := w.gets(a); err != nil || got != "another" {
		t.Fatalf("%q, %v", got, err)
	}
	a.Names = []string{"hf", "hf2"}
	if got, err := w.gets(a); !errors.Is(err, ErrNotGranted) || got != "" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestWhatIsReleasedIsKnown: a value is told before it leaves, and again by the next process, with the versions that may be in use
// still; one that nobody got is not.
func TestWhatIsReleasedIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.grant("hf", statement.CredentialGrants{Sink: executor, Services: []string{"llm"}})
	if err := w.Recall(t.Context()); err != nil || w.known != nil {
		t.Fatalf("before any was released: %q, %v", w.known, err)
	}
	err := w.Release(t.Context(), Ask{Sink: executor, Service: "llm", Principal: "claude", Names: []string{"hf"}}, func([]handover.Value) error {
		if !slices.Equal(w.known, []string{"value of hf"}) {
			t.Errorf("when it leaves: %q", w.known)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	salt, value := bytes.Repeat([]byte{1}, statement.CommitmentKey), []byte("the next one")
	w.change(&statement.Credential{
		Action: statement.CredentialRotate, Name: "hf", Version: 2, Commitment: statement.Commitment(salt, "hf", 2, value), Delivery: statement.DeliveryEnvironment, Variable: "V_hf",
	}, value, salt)
	// A start without the key: nothing is known until it is there, and then all of it, once.
	w.known = nil
	key, away := filepath.Join(w.dir, keyring.File), filepath.Join(w.dir, "away")
	must(t, os.Rename(key, away))
	next := w.next(keyring.SourceFile)
	for range 2 {
		if err := next.Recall(t.Context()); !errors.Is(err, keyring.ErrSealed) || w.known != nil {
			t.Errorf("the next process, sealed: %q, %v", w.known, err)
		}
	}
	must(t, os.Rename(away, key))
	for range 2 {
		if err := next.Recall(t.Context()); err != nil || !slices.Equal(w.known, []string{"the next one", "value of hf"}) {
			t.Errorf("the next process: %q, %v", w.known, err)
		}
	}
}

// TestSealed: while no key is there nothing is let through, and what an argument holds is not told; all else goes on.
func TestSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.grant("hf", statement.CredentialGrants{Sink: executor, Services: []string{"llm"}})
	ask := Ask{Sink: executor, Service: "llm", Principal: "claude", Names: []string{"hf"}}
	if name, err := w.Holding(t.Context(), "the value of hf it is"); name != "hf" || err != nil {
		t.Fatalf("%q, %v", name, err)
	}
	sealed := w.next(keyring.SourcePassphrase)
	if err := sealed.Recall(t.Context()); err != nil || w.known != nil {
		t.Errorf("none was released: %q, %v", w.known, err)
	}
	salt, value := bytes.Repeat([]byte{1}, statement.CommitmentKey), []byte("another")
	rotate := &statement.Credential{Action: statement.CredentialRotate, Name: "hf", Version: 2, Commitment: statement.Commitment(salt, "hf", 2, value)}
	if err := sealed.MayChange(t.Context(), rotate, value, salt); !errors.Is(err, keyring.ErrSealed) {
		t.Errorf("a value is taken: %v", err)
	}
	if uses, err := sealed.MayRelease(t.Context(), ask); !errors.Is(err, keyring.ErrSealed) || uses != nil {
		t.Errorf("%v, %v", uses, err)
	}
	if name, err := sealed.Holding(t.Context(), "the value of hf it is"); name != "" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
	grant := &statement.Credential{Action: statement.CredentialGrant, Name: "hf"}
	if err := sealed.MayChange(t.Context(), grant, nil, nil); err != nil {
		t.Errorf("a grant: %v", err)
	}
}

// TestACredentialWithoutAValue, as no statement makes one, is none.
func TestACredentialWithoutAValue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.grant("hf", statement.CredentialGrants{Sink: executor, Services: []string{"llm"}})
	if err := w.state.RemoveCredential(t.Context(), "hf", 1); err != nil {
		t.Fatal(err)
	}
	if got, err := w.gets(Ask{Sink: executor, Service: "llm", Principal: "claude", Names: []string{"hf"}}); !errors.Is(err, ErrNotGranted) || got != "" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := w.Revoke(t.Context(), "hf", ""); !errors.Is(err, ErrUnknown) {
		t.Errorf("revoked: %v", err)
	}
}
