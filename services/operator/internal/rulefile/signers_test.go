package rulefile_test

import (
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/rulefile"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

func key(t *testing.T, seed byte) ssh.PublicKey {
	t.Helper()
	public := ed25519.NewKeyFromSeed(append(make([]byte, 31), seed)).Public()
	k, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var errUnreadable = errors.New("a *SignersError")

// TestSigners: whose key counts changes by whole operators, and never to nobody.
func TestSigners(t *testing.T) {
	cfg := installdir.Config{TrustDir: t.TempDir()}
	line := func(operator string, seed byte) string {
		return trust.FormatSigner(operator, key(t, seed), statement.Namespace) + "\n"
	}
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	retired := strings.Replace(line("bob", 2), " ", ` valid-before="20261130Z",`, 1)
	for _, test := range []struct {
		name, before string
		change       func() ([]*signedchange.Plan, error)
		want         string
		err          error
	}{
		{"a second one", "# ours\n" + line("ann", 1), func() ([]*signedchange.Plan, error) { return rulefile.AddSigner(cfg, "bob", key(t, 2)) },
			"# ours\n" + line("ann", 1) + line("bob", 2), nil},
		{"one of two", line("ann", 1) + "# c\n" + line("bob", 2) + line("ann", 3),
			func() ([]*signedchange.Plan, error) { return rulefile.RemoveSigner(cfg, "ann", now, false) }, "# c\n" + line("bob", 2), nil},
		{"the last one", "# c\n" + line("ann", 1), func() ([]*signedchange.Plan, error) { return rulefile.RemoveSigner(cfg, "ann", now, false) },
			"", rulefile.ErrLastOperator},
		{"the last whose key counts", line("ann", 1) + retired, func() ([]*signedchange.Plan, error) { return rulefile.RemoveSigner(cfg, "ann", now, false) },
			"", rulefile.ErrLastOperator},
		{"what no process would read", line("ann", 1) + line("bob", 2) + "carol no key\n",
			func() ([]*signedchange.Plan, error) { return rulefile.RemoveSigner(cfg, "ann", now, false) }, "", errUnreadable},
		{"one who has what no process reads", line("ann", 1) + "bob no key\n",
			func() ([]*signedchange.Plan, error) { return rulefile.RemoveSigner(cfg, "bob", now, false) }, line("ann", 1), nil},
		{"nobody", line("ann", 1), func() ([]*signedchange.Plan, error) { return rulefile.RemoveSigner(cfg, "bob", now, false) }, "", rulefile.ErrNoOperator},
		{"nobody, known elsewhere", line("ann", 1), func() ([]*signedchange.Plan, error) { return rulefile.RemoveSigner(cfg, "bob", now, true) }, line("ann", 1), nil},
	} {
		testfile.Write(t, filepath.Join(cfg.TrustDir, trust.FileAllowedSigners), test.before)
		plans, err := test.change()
		if _, ok := errors.AsType[*rulefile.SignersError](err); ok {
			err = errUnreadable
		}
		if !errors.Is(err, test.err) || test.err == nil && (len(plans) != 1 || string(plans[0].After) != test.want) {
			t.Errorf("%s: %+v, %v", test.name, plans, err)
		}
	}
	if held, ok := errors.AsType[*rulefile.HeldError](second(rulefile.AddSigner(cfg, "bob", key(t, 1)))); !ok || held.Operator != "ann" {
		t.Error("one key counts for two")
	}
}

func second(_ []*signedchange.Plan, err error) error { return err }
