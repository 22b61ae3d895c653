package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/rulefile"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/trust"
)

// changeFile replaces a human-owned file by what edit makes of it, atomically and one change at a time, and records the
// change with the digests before and after (CFG-4).
func (a *app) changeFile(ctx context.Context, cfg installdir.Config, path, action string, edit func([]byte) ([]byte, error)) error {
	release, err := a.Home.Lock("config")
	if errors.Is(err, installdir.ErrLocked) {
		return cli.Failed("Try again.", "another durward command is changing the configuration")
	}
	if err != nil {
		return err
	}
	defer func() { _ = release() }() // ends with this process at the latest
	p, err := signedchange.Prepare(path, filepath.Base(path), edit)
	if err != nil {
		return err
	}
	if p.Empty() {
		return nil
	}
	if err := p.Write(); err != nil {
		return err
	}
	change := p.Change()
	a.Record(ctx, &auditv1.Body{
		Action: action, Summary: action, Persistent: true, DecisionSource: "operator:" + cfg.Operator,
		Details: map[string]string{"file": change.File, "digest_before": cmp.Or(change.Before, "none"), "digest_after": change.After},
	})
	return nil
}

var operatorName = pattern.New(`^[a-z0-9][a-z0-9_-]{0,31}$`)

func (a *app) operatorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Who may approve: operators' signing keys",
		Long: `Edits trust/allowed_signers, the file in which every process looks up whose signature counts. Each process
takes a change up within a second.`,
	}
	var yesAdd, yesRevoke bool
	add := &cobra.Command{
		Use:   "add NAME KEYFILE.pub",
		Short: "Let a person approve with this key, with your signature",
		Long: `Enters a person's public key in allowed_signers: from then on that person can approve everything that you can.

The difference is shown first, then the statement about it, which you sign with your key; the vault records it. Root of an
installed host can do it where there is no key to ask for (nobody could let the first one in otherwise): the record says so.`,
		Example: "  durward operator add bob ~/bob_ed25519.pub",
		Args:    cobra.ExactArgs(2),
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			return a.addOperator(ctx, cfg, args[0], args[1], yesAdd)
		}),
	}
	a.RuleFlags(add, nil, &yesAdd)
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Who may approve",
		RunE:    a.Configured(a.listOperators),
	}
	revoke := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Take a person's right to approve away",
		Long: `Removes every key of the person from allowed_signers. On an installed host (durward install) the person's
certificate is revoked and removed too, the Unix user leaves Durward's groups, and durward install brings
neither back unless it is given --operator USER. What they signed before stays in the log; "durward
audit verify" then says that the signer is no longer known.

The difference is shown, and signed and announced where a key can be asked for. Taking a right away needs neither: without a
terminal or a key it is done all the same, and the record says that nobody signed.`,
		Example: "  durward operator revoke bob",
		Args:    cobra.ExactArgs(1),
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			return a.revokeOperator(ctx, cfg, args[0], yesRevoke)
		}),
	}
	a.RuleFlags(revoke, nil, &yesRevoke)
	cmd.AddCommand(add, list, revoke)
	return cmd
}

func (a *app) addOperator(ctx context.Context, cfg installdir.Config, name, file string, yes bool) error {
	if !operatorName().MatchString(name) {
		return cli.Usage("", "an operator's name is a-z, 0-9, _ and -, at most 32, beginning with a letter or digit")
	}
	key, err := signingkey.ReadPublic(file)
	if err != nil {
		return cli.Usage("Give the .pub file of an OpenSSH key.", "%s", clean.Line(err.Error(), 300))
	}
	if !strings.HasSuffix(key.Type(), "ed25519") && key.Type() != ssh.KeyAlgoSKED25519 && key.Type() != ssh.KeyAlgoSKECDSA256 {
		return cli.Usage("Make one: ssh-keygen -t ed25519 (or ed25519-sk for a security key).", "keys of type %s are not accepted", clean.Visible(key.Type()))
	}
	_, keyless := signedchange.FindSigner(cfg, a.Streams.Getenv)
	root := cfg.TrustDir == install.TrustDir && os.Geteuid() == 0 && keyless != nil
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "operator add " + name, Yes: yes, Unsigned: root, Plans: func() ([]*signedchange.Plan, error) {
		plans, err := rulefile.AddSigner(cfg, name, key)
		if held, ok := errors.AsType[*rulefile.HeldError](err); ok {
			return nil, cli.Usage("", "%s holds this key already", clean.Visible(held.Operator))
		}
		return plans, sayBadSigners(err)
	}, Before: func() error {
		a.Display().Printf("%s\n", a.Out.Red(name+" can approve everything from now on that you can, with the key "+ssh.FingerprintSHA256(key)+"."))
		return nil
	}})
	return a.ReportRules(out, err, name+" may approve with "+ssh.FingerprintSHA256(key))
}

// sayBadSigners says what to do about a file that has to be corrected; other errors it leaves alone.
func sayBadSigners(err error) error {
	if bad, ok := errors.AsType[*rulefile.SignersError](err); ok {
		return cli.Usage("Correct trust/allowed_signers first.", "%s", clean.Line(bad.Error(), 300))
	}
	return err
}

func (a *app) listOperators(_ context.Context, cfg installdir.Config, _ []string) error {
	raw, err := os.ReadFile(filepath.Join(cfg.TrustDir, trust.FileAllowedSigners))
	if err != nil {
		return fmt.Errorf("allowed signers: %w", err)
	}
	signers, err := rulefile.Signers(raw)
	if err != nil {
		return sayBadSigners(err)
	}
	type row struct {
		Operator    string `json:"operator"`
		Type        string `json:"type"`
		Fingerprint string `json:"fingerprint"`
	}
	rows := output.Each(signers, func(s trust.Signer) row { return row{s.Operator, s.Key.Type(), ssh.FingerprintSHA256(s.Key)} })
	return a.Show(map[string]any{"operators": rows}, func() {
		a.Out.Table([]string{"OPERATOR", "KEY", "FINGERPRINT"}, output.Each(rows, func(r row) []string { return []string{clean.Visible(r.Operator), r.Type, r.Fingerprint} }))
	})
}

func (a *app) revokeOperator(ctx context.Context, cfg installdir.Config, name string, yes bool) error {
	installed := cfg.TrustDir == install.TrustDir
	if installed && os.Geteuid() != 0 {
		return cli.Denied("sudo durward operator revoke "+clean.Line(name, 64), "who may approve is root's to say")
	}
	known := installed && operatorName().MatchString(name) && install.Knows("/", name)
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{
		Action: "operator revoke " + clean.Line(name, 64), Yes: yes, Unsigned: true, Plans: func() ([]*signedchange.Plan, error) {
			plans, err := rulefile.RemoveSigner(cfg, name, a.Now(), known) // known: never let in, or half revoked; the rest goes on
			switch {
			case errors.Is(err, rulefile.ErrNoOperator):
				return nil, cli.Usage("See: durward operator list", "there is no operator %s", clean.Visible(name))
			case errors.Is(err, rulefile.ErrLastOperator):
				return nil, cli.Usage("Add another one first: durward operator add NAME KEYFILE.pub",
					"%s is the last operator: nobody could approve or resume any more", clean.Visible(name))
			}
			return plans, sayBadSigners(err)
		},
	})
	if err == nil && known {
		err = a.revokeInstalled(ctx, cfg, name)
	}
	if err != nil {
		return err
	}
	if len(out.Files) == 0 && !a.Machine() {
		a.Out.Printf("%s may no longer approve.\n", clean.Visible(name)) // and could not before: the rest was left to do
	} else if err := a.ReportRules(out, nil, clean.Visible(name)+" may no longer approve"); err != nil {
		return err
	}
	if err := a.EndedAtSinks(ctx); err != nil {
		return err
	}
	if known && !a.Machine() {
		a.Out.Printf("Nor connect: the certificate is revoked, and the next session of the Unix user is in none of Durward's groups.\n" +
			"End the sessions that are open: loginctl terminate-user USER\n")
	}
	return nil
}

// revokeInstalled takes away what an installation of this host gave to an operator beside the right to approve.
func (a *app) revokeInstalled(ctx context.Context, cfg installdir.Config, name string) error {
	ids, err := install.Identities(name)
	if err != nil {
		return err
	}
	err = a.changeFile(ctx, cfg, filepath.Join(cfg.TrustDir, trust.FileRevoked), "operator revoke "+name+": identity", func(before []byte) ([]byte, error) {
		after := before
		for _, id := range ids {
			var err error
			if after, err = install.Ban(after, id); err != nil {
				return nil, cli.Failed("Enter it there by hand, and run the command again: "+id, "trust/%s: %s", trust.FileRevoked, clean.Line(err.Error(), 300))
			}
		}
		return after, nil
	})
	if err != nil {
		return err
	}
	if err := install.Revoke(ctx, "/", name, runProgram); err != nil {
		return cli.Failed("Correct it and run the command again.", "%s", clean.Block(err.Error(), 2000))
	}
	return nil
}
