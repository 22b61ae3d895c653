package credentials

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/signingkey"
)

// A service that got a value under a grant that is over may hold it, and the operator is told.
func TestOutlived(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	a := &app{App: &cli.App{Now: func() time.Time { return now }}}
	grant := func(service string, ends time.Duration) *vaultv1.CredentialGrant {
		g := &vaultv1.CredentialGrant{Services: []string{service}}
		if ends != 0 {
			g.EndsAt = timestamppb.New(now.Add(ends))
		}
		return g
	}
	const ended, revoked = ", and its grant ended 2:00:00 ago: it may hold it until it is stopped", ", and is granted it no more: it may hold it until it is stopped"
	for name, c := range map[string]struct {
		service string
		grants  []*vaultv1.CredentialGrant
		want    string
	}{
		"granted":                  {"llm", []*vaultv1.CredentialGrant{grant("llm", 0)}, ""},
		"granted for a while":      {"llm", []*vaultv1.CredentialGrant{grant("llm", time.Hour)}, ""},
		"over":                     {"llm", []*vaultv1.CredentialGrant{grant("llm", -2*time.Hour)}, ended},
		"over now":                 {"llm", []*vaultv1.CredentialGrant{grant("llm", -2*time.Hour), grant("other", 0)}, ended},
		"over here, granted there": {"llm", []*vaultv1.CredentialGrant{grant("llm", -2*time.Hour), grant("llm", time.Hour)}, ""},
		"revoked":                  {"llm", []*vaultv1.CredentialGrant{grant("other", 0)}, revoked},
		"a request":                {"https://api.example", nil, ""},
	} {
		if got := a.outlived(&vaultv1.Credential{Grants: c.grants}, &vaultv1.Use{Service: c.service}); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Where nobody can be asked for a value, it is the value that is missing, and no passphrase of the signing key.
func TestUnasked(t *testing.T) {
	a, _, said := clitest.Printing(false)
	const want = "durward: there is no terminal to ask for the value at\n  Run the command at a terminal, or give the value with --file or --stdin.\n"
	if code := a.Explain(unasked(signingkey.ErrNeedsHuman, "the value", "--file or --stdin")); code != cli.ExitDenied || said.String() != want {
		t.Errorf("exit code %d, %q", code, said)
	}
	if err := unasked(context.Canceled, "the value", "--stdin"); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
