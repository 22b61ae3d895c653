package safe

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
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
	t    *testing.T
	now  time.Time
	used byte
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
	w := &world{t: t, now: time.Unix(1_800_000_000, 0).UTC()}
	clock := func() time.Time { return w.now }
	ring, err := keyring.Open(t.Context(), keyring.Config{
		Store: state, Source: keyring.SourceFile, File: filepath.Join(dir, keyring.File), Now: clock, Logger: platformtest.Logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Safe = New(state, ring, clock)
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
		Sink: egress, Origins: []string{"https://a.example"}, Header: "Authorization", Scheme: "Bearer", Agents: []string{"claude"},
		Until: statement.FormatTime(w.now.Add(time.Hour)),
	})
	start := Ask{Sink: executor, Service: "llm", Principal: "claude", Names: []string{"hf"}}
	request := Ask{Sink: egress, Origin: "https://a.example", Header: "Authorization", Principal: "claude", Names: []string{"hf"}}
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
		"another header":                  with(request, func(a *Ask) { a.Header = "X-Token" }),
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
