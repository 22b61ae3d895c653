package credential

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/safe"
	"durward.internal/services/vault/internal/store"
)

// TestArgumentsThatSendNothing: a credential goes where a call's own arguments refer to it and send it, and to no other origin.
func TestArgumentsThatSendNothing(t *testing.T) {
	t.Parallel()
	ask := safe.Ask{Origin: "https://a.example", Names: []string{"hf"}}
	const url = `{"url":"https://a.example/x"}`
	for name, c := range map[string]struct {
		arguments string
		names     []string
	}{
		"no reference":     {url, nil},
		"another":          {url, []string{"github"}},
		"another origin":   {`{"url":"https://b.example/x"}`, []string{"hf"}},
		"another port":     {`{"url":"https://a.example:8443/x"}`, []string{"hf"}},
		"without TLS":      {`{"url":"http://a.example/x"}`, []string{"hf"}},
		"no url":           {`{}`, []string{"hf"}},
		"no url's text":    {`{"url":"::"}`, []string{"hf"}},
		"no JSON":          {`{`, []string{"hf"}},
		"a user's name":    {`{"url":"https://a.example@b.example/x"}`, []string{"hf"}},
		"a url that is no": {`{"url":7}`, []string{"hf"}},
	} {
		if err := refers([]byte(c.arguments), c.names, ask); err == nil {
			t.Errorf("%s: it is sent", name)
		}
	}
	if err := refers([]byte(url), []string{"github", "hf"}, ask); err != nil {
		t.Errorf("nothing is sent, so that nothing is proved: %v", err)
	}
	if err := new(Service).sendsNow(&store.Operation{ToolName: "none", Arguments: []byte(url)}, ask); err == nil || err.Error() != "its tool is not known" {
		t.Errorf("a tool that there is not: %v", err)
	}
}

// TestWhatAnOperatorCanMend is told as what it is, and everything else stays inside.
func TestWhatAnOperatorCanMend(t *testing.T) {
	t.Parallel()
	for cause, code := range map[error]callv1.Code{
		keyring.ErrSealed: callv1.Code_CODE_SEALED, keyring.ErrPassphrase: callv1.Code_CODE_DENIED,
		keyring.ErrNoNext: callv1.Code_CODE_CONFLICT, keyring.ErrNoPassphrase: callv1.Code_CODE_CONFLICT,
		safe.ErrUnknown: callv1.Code_CODE_NOT_FOUND, safe.ErrNotGranted: callv1.Code_CODE_NOT_FOUND,
		safe.ErrExists: callv1.Code_CODE_CONFLICT, safe.ErrNewest: callv1.Code_CODE_CONFLICT, safe.ErrVersion: callv1.Code_CODE_CONFLICT,
		safe.ErrCommitment: callv1.Code_CODE_INVALID_ARGUMENT, store.ErrStatementUsed: callv1.Code_CODE_CONFLICT,
	} {
		if err := asFault("hf", fmt.Errorf("below: %w", cause)); !fault.Is(err, code) {
			t.Errorf("%v became %v", cause, err)
		}
	}
	other := errors.New("something else")
	if err := asFault("hf", other); !errors.Is(err, other) || errors.As(err, new(*fault.Error)) {
		t.Errorf("%v", err)
	}
}

// TestAClientIsNamedForACredential: one that a call refers to is sent only where the line of its client in clients.yaml names it.
func TestAClientIsNamedForACredential(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "clients.yaml")
	const line = "\n  - {id: %s, token_sha256: '%064x', channel: cli, tier_ceiling: WRITE, credentials: [%s]}"
	testfile.Write(t, file, fmt.Appendf([]byte("clients:"), line+line, "named", 1, "hf", "other", 2, "github"))
	registry, err := clients.Open(clients.Config{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Close)
	s := New(Config{Clients: registry})
	for client, sends := range map[string]bool{"named": true, "other": false, "unknown": false} {
		err := s.sendsNow(&store.Operation{
			ToolName: "http_request", Principal: client, Arguments: []byte(`{"url":"https://a.example/x","method":"GET","credentials":{"authorization":{"$credential":"hf"}}}`),
		}, safe.Ask{Origin: "https://a.example", Names: []string{"hf"}})
		if (err == nil) != sends {
			t.Errorf("%s: %v", client, err)
		}
	}
}
