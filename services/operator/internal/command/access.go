package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/approval"
	filechange "durward.internal/services/operator/internal/change"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// recordPatience bounds how long a change of a file waits for audit; what cannot be sent is kept and sent later.
const recordPatience = 2 * time.Second

// changeFile replaces a human-owned file by what edit makes of it, atomically and one change at a time, and records the
// change with the digests before and after (CFG-4).
func (a *app) changeFile(ctx context.Context, cfg home.Config, path, action string, edit func([]byte) ([]byte, error)) error {
	release, err := a.home.Lock("config")
	if errors.Is(err, home.ErrLocked) {
		return failed("Try again.", "another durward command is changing the configuration")
	}
	if err != nil {
		return err
	}
	defer func() { _ = release() }() // ends with this process at the latest
	before, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	after, err := edit(before)
	if err != nil {
		return err
	}
	if bytes.Equal(before, after) {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := home.WriteFile(path, after, info.Mode().Perm()); err != nil {
		return err
	}
	was, is := canonical.Digest(before), canonical.Digest(after)
	a.record(ctx, cfg, &auditv1.Body{
		Action: action, Summary: action, Persistent: true, DecisionSource: "operator:" + cfg.Operator,
		Details: map[string]string{"file": filepath.Base(path), "digest_before": canonical.FormatDigest(was[:]), "digest_after": canonical.FormatDigest(is[:])},
	})
	return nil
}

// record writes a change to the log, or keeps it until audit can be reached; the change itself is made already.
func (a *app) record(ctx context.Context, cfg home.Config, body *auditv1.Body) {
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	sent, err := a.tryRecord(ctx, cfg, body)
	a.requestID = ""
	var refused *history.Refusal
	switch {
	case errors.As(err, &refused):
		a.out.Remark("%s", a.out.Red("the change is made, and "+publicText(refused)))
	case err != nil:
		a.out.Remark("%s", a.out.Red("the change is made and could not be recorded: "+publicText(err)))
	case !sent:
		a.out.Remark("%s", a.out.Dim("audit cannot be reached: the change is made and will be recorded when it can"))
	}
}

func (a *app) tryRecord(ctx context.Context, cfg home.Config, body *auditv1.Body) (bool, error) {
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return false, err
	}
	defer s.close()
	l, err := history.Open(ctx, history.Config{
		Client: s.Audit.Log, Audit: cfg.Audit.Identity, Writer: s.Identity().String(), Trust: s.Trust, StateDir: cfg.StateDir, Now: a.now,
		OnRefused: a.refused,
	})
	if err != nil {
		return false, err
	}
	sent, err := l.Write(ctx, auditv1.Kind_KIND_CONFIG_CHANGED, a.requestID, body)
	return sent, errors.Join(err, l.Close())
}

// refused tells of a record that waited for audit and that audit will not have.
func (a *app) refused(r *history.Refusal) { a.out.Remark("%s", a.out.Red(publicText(r))) }

var operatorName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

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
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return a.addOperator(cmd.Context(), cfg, args[0], args[1], yesAdd)
		},
	}
	a.ruleFlags(add, nil, &yesAdd)
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Who may approve",
		RunE:    func(*cobra.Command, []string) error { return a.listOperators() },
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
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return a.revokeOperator(cmd.Context(), cfg, args[0], yesRevoke)
		},
	}
	a.ruleFlags(revoke, nil, &yesRevoke)
	cmd.AddCommand(add, list, revoke)
	return cmd
}

// fileSigners is allowed_signers in statements and records.
const fileSigners = "trust/" + trust.FileAllowedSigners

// planSigners works a change of allowed_signers out.
func planSigners(cfg home.Config, edited func([]byte) ([]byte, error)) ([]*filechange.Plan, error) {
	p, err := filechange.Prepare(filepath.Join(cfg.TrustDir, trust.FileAllowedSigners), fileSigners, edited)
	if err != nil {
		var ours *problem
		if !errors.As(err, &ours) {
			err = failed("", "%s", clean.Line(err.Error(), 500))
		}
		return nil, err
	}
	return []*filechange.Plan{p}, nil
}

func (a *app) addOperator(ctx context.Context, cfg home.Config, name, file string, yes bool) error {
	if !operatorName.MatchString(name) {
		return usage("", "an operator's name is a-z, 0-9, _ and -, at most 32, beginning with a letter or digit")
	}
	key, err := keys.ReadPublic(file)
	if err != nil {
		return usage("Give the .pub file of an OpenSSH key.", "%s", clean.Line(err.Error(), 300))
	}
	if !strings.HasSuffix(key.Type(), "ed25519") && key.Type() != ssh.KeyAlgoSKED25519 && key.Type() != ssh.KeyAlgoSKECDSA256 {
		return usage("Make one: ssh-keygen -t ed25519 (or ed25519-sk for a security key).", "keys of type %s are not accepted", clean.Visible(key.Type()))
	}
	_, keyless := a.signingSide(cfg)
	root := cfg.TrustDir == install.TrustDir && os.Geteuid() == 0 && keyless != nil
	edited := func(before []byte) ([]byte, error) {
		signers, err := trust.ParseAllowedSigners(before)
		if err != nil {
			return nil, usage("Correct trust/allowed_signers first.", "%s", clean.Line(err.Error(), 300))
		}
		for _, s := range signers.All() {
			if bytes.Equal(s.Key.Marshal(), key.Marshal()) {
				return nil, usage("", "%s holds this key already", clean.Visible(s.Operator))
			}
		}
		if len(before) > 0 && before[len(before)-1] != '\n' {
			before = append(bytes.Clone(before), '\n')
		}
		return append(before, []byte(trust.FormatSigner(name, key, statement.Namespace)+"\n")...), nil
	}
	out, err := a.changeRules(ctx, cfg, ruleChange{action: "operator add " + name, yes: yes, unsigned: root, plans: func() ([]*filechange.Plan, error) {
		return planSigners(cfg, edited)
	}, before: func() error {
		a.display().Printf("%s\n", a.out.Red(name+" can approve everything from now on that you can, with the key "+ssh.FingerprintSHA256(key)+"."))
		return nil
	}})
	return a.reportRules(out, err, name+" may approve with "+ssh.FingerprintSHA256(key))
}

func (a *app) listOperators() error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(cfg.TrustDir, trust.FileAllowedSigners))
	if err != nil {
		return fmt.Errorf("allowed signers: %w", err)
	}
	signers, err := trust.ParseAllowedSigners(raw)
	if err != nil {
		return usage("Correct trust/allowed_signers.", "%s", clean.Line(err.Error(), 300))
	}
	type row struct {
		Operator    string `json:"operator"`
		Type        string `json:"type"`
		Fingerprint string `json:"fingerprint"`
	}
	rows, cells := []row{}, [][]string{}
	for _, s := range signers.All() {
		r := row{s.Operator, s.Key.Type(), ssh.FingerprintSHA256(s.Key)}
		rows = append(rows, r)
		cells = append(cells, []string{clean.Visible(r.Operator), r.Type, r.Fingerprint})
	}
	if a.json {
		return a.out.Value(map[string]any{"operators": rows})
	}
	a.out.Table([]string{"OPERATOR", "KEY", "FINGERPRINT"}, cells)
	return nil
}

func (a *app) revokeOperator(ctx context.Context, cfg home.Config, name string, yes bool) error {
	installed := cfg.TrustDir == install.TrustDir
	if installed && os.Geteuid() != 0 {
		return denied("sudo durward operator revoke "+clean.Line(name, 64), "who may approve is root's to say")
	}
	known := installed && operatorName.MatchString(name) && install.Knows("/", name)
	edited := func(before []byte) ([]byte, error) {
		var after []byte
		left := 0
		for line := range bytes.Lines(before) {
			first, _, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
			if first == name {
				continue
			}
			if first != "" && !strings.HasPrefix(first, "#") {
				left++
			}
			after = append(after, line...)
		}
		if len(after) == len(before) && known {
			return before, nil // never let in, or half revoked: the rest goes on
		}
		if len(after) == len(before) {
			return nil, usage("See: durward operator list", "there is no operator %s", clean.Visible(name))
		}
		if left == 0 {
			return nil, usage("Add another one first: durward operator add NAME KEYFILE.pub", "%s is the last operator: nobody could approve or resume any more", clean.Visible(name))
		}
		return after, nil
	}
	out, err := a.changeRules(ctx, cfg, ruleChange{
		action: "operator revoke " + clean.Line(name, 64), yes: yes, unsigned: true, plans: func() ([]*filechange.Plan, error) { return planSigners(cfg, edited) },
	})
	if err == nil && known {
		err = a.revokeInstalled(ctx, cfg, name)
	}
	if err != nil {
		return err
	}
	if len(out.Files) == 0 && !a.json {
		a.out.Printf("%s may no longer approve.\n", clean.Visible(name)) // and could not before: the rest was left to do
	} else if err := a.reportRules(out, nil, clean.Visible(name)+" may no longer approve"); err != nil {
		return err
	}
	if known && !a.json {
		a.out.Printf("Nor connect: the certificate is revoked, and the next session of the Unix user is in none of Durward's groups.\n" +
			"End the sessions that are open: loginctl terminate-user USER\n")
	}
	return nil
}

// revokeInstalled takes away what an installation of this host gave to an operator beside the right to approve.
func (a *app) revokeInstalled(ctx context.Context, cfg home.Config, name string) error {
	id, err := install.OperatorIdentity(name)
	if err != nil {
		return err
	}
	err = a.changeFile(ctx, cfg, filepath.Join(cfg.TrustDir, trust.FileRevoked), "operator revoke "+name+": identity", func(before []byte) ([]byte, error) {
		after, err := install.Ban(before, id)
		if err != nil {
			return nil, failed("Enter it there by hand, and run the command again: "+id, "trust/%s: %s", trust.FileRevoked, clean.Line(err.Error(), 300))
		}
		return after, nil
	})
	if err != nil {
		return err
	}
	if err := install.Revoke(ctx, "/", name, runProgram); err != nil {
		return failed("Correct it and run the command again.", "%s", clean.Block(err.Error(), 2000))
	}
	return nil
}

func (a *app) certCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "The processes' certificates",
		Long:  `Certificates live 24 hours. "durward up" renews them by itself at half their life.`,
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "Who each certificate is for, and when it ends",
		RunE: func(*cobra.Command, []string) error {
			if _, err := a.config(); err != nil {
				return err
			}
			return a.certStatus()
		},
	}
	renew := &cobra.Command{
		Use:   "renew",
		Short: "Issue new certificates now",
		Long:  "Issues a new certificate to every process and to this program; running processes take them up within a second.",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			renewed, err := a.home.RenewCertificates(cfg.Operator, a.now(), true)
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Value(map[string]any{"renewed": renewed})
			}
			a.out.Printf("%s renewed: %s\n", a.out.Green("✓"), strings.Join(renewed, ", "))
			return nil
		},
	}
	cmd.AddCommand(status, renew)
	return cmd
}

func (a *app) certStatus() error {
	certificates := a.home.Certificates()
	now := a.now()
	if a.json {
		return a.out.Value(map[string]any{"certificates": certificates})
	}
	rows := make([][]string, 0, len(certificates))
	bad := 0
	for _, c := range certificates {
		left := a.out.Red(c.Problem)
		switch {
		case c.Problem != "":
			bad++
		case now.After(c.NotAfter):
			bad++
			left = a.out.Red("expired " + approval.Duration(now.Sub(c.NotAfter)) + " ago")
		default:
			left = approval.Duration(c.NotAfter.Sub(now))
		}
		rows = append(rows, []string{c.Role, c.Identity, left})
	}
	a.out.Table([]string{"PROCESS", "IDENTITY", "EXPIRES IN"}, rows)
	if bad > 0 {
		return failed("Issue new ones: durward cert renew", "%d of %d certificates cannot be used", bad, len(certificates))
	}
	return nil
}

// programVersion asks a server program for its version.
func programVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b, err := exec.CommandContext(ctx, path, "-version").Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	return clean.Line(string(b), 100), nil
}
