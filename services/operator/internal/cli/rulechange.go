package cli

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
)

// SignedChange is what the help of every command that changes rules ends with.
const SignedChange = `
The difference is shown first, then the statement about it, which you sign with your key. The file is replaced
whole, with its comments and order kept; the vault reads it again within a second; the change is recorded with
the digests before and after. Without a terminal and a key it changes nothing and says which file and line to
edit: no agent and no process changes the rules, only a human does.`

// RuleFlags are the flags of commands that change rules.
func (a *App) RuleFlags(cmd *cobra.Command, userName *string, yes *bool) {
	if userName != nil {
		cmd.Flags().StringVar(userName, "user", "", "change the rules of this user's clients instead of everybody's")
	}
	cmd.Flags().BoolVar(yes, "yes", false, "do not ask before signing; a protected key asks for its passphrase all the same")
}

// RuleFile is a file of rules in the layer of a user, or for "" in the host's, and its name in records.
func RuleFile(cfg installdir.Config, base, userName string) (path, name string, err error) {
	name = base
	if userName != "" {
		if err := security.CheckUser(userName); err != nil {
			return "", "", Usage("", "--user: %v", err)
		}
		name = security.FolderUsers + "/" + userName + "/" + base
	}
	return filepath.Join(cfg.SecurityDir, filepath.FromSlash(name)), name, nil
}

// ClientUser is the user that clients.yaml gives a client; of one that is not there, an error that says so.
func ClientUser(cfg installdir.Config, id string) (string, error) {
	if id == "" {
		return "", nil
	}
	list, err := client.Admitted(cfg.Clients)
	if err != nil {
		return "", Usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 1000))
	}
	var names []string
	for _, c := range list {
		if c.ID == id {
			return c.User, nil
		}
		names = append(names, c.ID)
	}
	return "", Usage(DidYouMean(config.Suggest(id, names), "See: durward client list"), "there is no client %s", clean.Visible(id))
}

// UserUnknown says that rules of a user bind nobody; "": they bind somebody, or it cannot be told.
func UserUnknown(cfg installdir.Config, userName string) string {
	list, err := client.Admitted(cfg.Clients)
	if err != nil || userName == "" || slices.Contains(client.Users(list), userName) {
		return ""
	}
	text := "no client has the user " + clean.Visible(userName) + " (clients.yaml): its rules bind nobody"
	if near := config.Suggest(userName, client.Users(list)); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, ", ") + "?"
	}
	return text
}

// WarnOfUser says beside the difference that it would bind nobody.
func (a *App) WarnOfUser(cfg installdir.Config, userName string) {
	if text := UserUnknown(cfg, userName); text != "" {
		a.Out.Remark("%s", a.Out.Yellow("Careful: "+text+"."))
	}
}

// AskPatience bounds how long a question beside a command's own waits for the vault; the command goes on without the answer.
const AskPatience = 2 * time.Second

// RuleChange is a change of rules: what it is for records, and the files that it concerns.
type RuleChange struct {
	// Action is for records: "config set approvals.wait_s".
	Action string
	// Plans works the changes out. It is called with the configuration's lock held.
	Plans func() ([]*signedchange.Plan, error)
	// Made is what Plans makes for the change and shows a digest of, "a token": where the change is not made it is gone. "": nothing.
	Made string
	// Before shows what a person should know beside the difference. May be nil.
	Before func() error
	// Ready is called when everything is agreed, signed and announced, right before the first file is written. May be nil.
	Ready func() error
	// Beside is a further statement, shown and signed with those of the files; Keep writes it down, right before the first file is written.
	// Both or neither.
	Beside func(operator string, epoch uint64) (*statement.Statement, error)
	Keep   func(signed *callv1.HumanStatement) (signedchange.File, error)
	Yes    bool
	// Unsigned: the change takes a right away, or root lets the first operator in. It is signed where a key can be asked for, and
	// made all the same where none can.
	Unsigned bool
}

// ChangeRules is the one way to change a file that holds rules: the difference is shown, then the statement, whole; a person
// agrees and signs; the vault is told; the files are replaced; and it is recorded (CFG-4). Where no key can be asked for it
// changes nothing and says which file and line to edit (CFG-5).
func (a *App) ChangeRules(ctx context.Context, cfg installdir.Config, r RuleChange) (*signedchange.Result, error) {
	release, err := a.Home.Lock("config")
	if errors.Is(err, installdir.ErrLocked) {
		return nil, Failed("Try again.", "another durward command is changing the configuration")
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = release() }() // ends with this process at the latest
	plans, err := r.Plans()
	_, ours := errors.AsType[*Problem](err)
	if broken, ok := errors.AsType[*signedchange.EditError](err); ok && !ours {
		return nil, Failed("The file is "+clean.Visible(broken.Path)+".", "%s", clean.Line(err.Error(), 500))
	}
	if err != nil {
		return nil, err
	}
	plans = signedchange.Effective(plans)
	if len(plans) == 0 && r.Beside == nil {
		return &signedchange.Result{Files: []signedchange.File{}, InForce: true}, nil
	}
	byHand := ""
	if len(plans) > 0 {
		byHand = signedchange.WhereToEdit(plans) + When(r.Made != "", ", with "+r.Made+" of your own: what is shown here is gone")
	}
	if err := signedchange.Signable(cfg, plans); err != nil && !r.Unsigned {
		return nil, Usage(byHand, "%v", err)
	}
	if problems := signedchange.Try(cfg, plans); len(problems) > 0 {
		return nil, Usage("Nothing was written.", "the vault would refuse it: %s", clean.Block(strings.Join(problems, "\n"), 4000))
	}
	for _, p := range plans {
		a.ShowPlan(p)
	}
	if r.Before != nil {
		if err := r.Before(); err != nil {
			return nil, err
		}
	}
	for _, p := range plans {
		if err := p.Writable(); err != nil {
			return nil, Denied("Run it with sudo, or edit as who owns the file: "+byHand, "this user may not change the rules")
		}
	}
	signer, err := signedchange.FindSigner(cfg, a.Streams.Getenv)
	reason := ""
	switch {
	case err != nil:
		reason = "there is no signing key to ask for: " + err.Error()
	case !r.Yes && !output.IsTerminal(a.Streams.In):
		reason = "there is no terminal to ask at, and only a human changes the rules"
	}
	if reason != "" && !r.Unsigned {
		return nil, Denied(byHand, "%s", reason)
	}
	vault := signedchange.Vault{Epoch: 1}
	if connected, s, err := a.Connect(ctx); err == nil {
		defer s.Close()
		ctx, vault = connected, signedchange.Reach(connected, s.Peers)
	}
	if reason != "" {
		return a.changeUnsigned(ctx, cfg, r, plans, vault, reason)
	}
	statements := make([]*statement.Statement, len(plans))
	for i, p := range plans {
		statements[i] = signedchange.Statement(signer.Operator, cfg.Vault.Identity, vault.Epoch, a.Now(), p.Change())
		if err := a.showConfigStatement(statements[i]); err != nil {
			return nil, err
		}
	}
	if r.Beside != nil {
		beside, err := r.Beside(signer.Operator, vault.Epoch)
		if err == nil {
			err = a.showConfigStatement(beside)
		}
		if err != nil {
			return nil, err
		}
		statements = append(statements, beside)
	}
	if vault.Policy == nil && len(plans) > 0 {
		a.Out.Remark("%s", a.Out.Yellow("The vault cannot be reached: it will find the change by itself and record it as found."))
	}
	if err := a.Confirm(ctx, "Sign and change it?", r.Yes); err != nil {
		return nil, err
	}
	signed, err := signer.Sign(ctx, statements, a.Touch)
	if err != nil && r.Unsigned && ctx.Err() == nil {
		return a.changeUnsigned(ctx, cfg, r, plans, vault, PublicText(err))
	}
	if errors.Is(err, signingkey.ErrNeedsHuman) {
		return nil, Denied(byHand, "%v", signingkey.ErrNeedsHuman)
	}
	if err != nil {
		return nil, err
	}
	return a.makeChanges(ctx, cfg, r, plans, signed, vault)
}

// changeUnsigned makes a change that needs no signature where there is none, and says so.
func (a *App) changeUnsigned(ctx context.Context, cfg installdir.Config, r RuleChange, plans []*signedchange.Plan, vault signedchange.Vault, reason string) (*signedchange.Result, error) {
	a.Out.Remark("%s", a.Out.Yellow("It is changed without a signature, and recorded so: "+clean.Line(reason, 300)+"."))
	return a.makeChanges(ctx, cfg, r, plans, nil, vault)
}

// makeChanges makes what was agreed to, and records it.
func (a *App) makeChanges(
	ctx context.Context, cfg installdir.Config, r RuleChange, plans []*signedchange.Plan, signed []*callv1.HumanStatement, vault signedchange.Vault,
) (*signedchange.Result, error) {
	warn := func(text string) { a.Out.Remark("%s", a.Out.Yellow(text)) }
	record := func(f signedchange.File, statement string) {
		a.Record(ctx, &auditv1.Body{
			Action: clean.Line(r.Action, 128), Summary: clean.Line(r.Action, 500), Persistent: true, DecisionSource: "operator:" + cfg.Operator,
			Details: map[string]string{"file": clean.Line(f.Name, 256), "digest_before": cmp.Or(f.Before, "none"), "digest_after": cmp.Or(f.After, "none"),
				"statement": statement},
		})
	}
	var kept *signedchange.File
	if r.Beside != nil {
		beside := signed[len(plans)]
		signed = signed[:len(plans)]
		ready := r.Ready
		r.Ready = func() error {
			if ready != nil {
				if err := ready(); err != nil {
					return err
				}
			}
			f, err := r.Keep(beside)
			if err == nil {
				kept = &f
				record(f, signedchange.StatementDigest(beside))
			}
			return err
		}
		if len(plans) == 0 {
			if err := r.Ready(); err != nil {
				return nil, err
			}
		}
	}
	out, err := signedchange.Make(ctx, signedchange.Making{
		Config: cfg, Plans: plans, Signed: signed, Optional: r.Unsigned, Vault: vault, Ready: r.Ready, Warn: warn, Explain: PublicText, Record: record,
	})
	if out != nil && kept != nil {
		out.Files, out.Unseen = append(out.Files, *kept), append(out.Unseen, kept.Name)
	}
	if _, unwritten := errors.AsType[*signedchange.WriteError](err); unwritten {
		return nil, Failed("See what it is now: durward config show", "%v", err)
	}
	if err != nil {
		return nil, err
	}
	waiting, err := out.Await(ctx, vault)
	if _, refused := errors.AsType[*signedchange.RefusedError](err); refused {
		return out, Failed("It stays as it was before, until the file is corrected.", "%v", err)
	}
	if waiting != "" {
		warn("The vault has not taken up " + clean.Visible(waiting) +
			": is its security_dir (vault.yaml) the folder that was changed? See: " + a.Typed() + " config show")
	}
	return out, err
}

// ReportRules says what became of a change.
func (a *App) ReportRules(out *signedchange.Result, err error, done string) error {
	if err != nil {
		return err
	}
	return a.Show(out, func() {
		switch {
		case len(out.Files) == 0:
			a.Out.Printf("Nothing to change: it is so already.\n")
		case out.InForce:
			a.Out.Printf("%s %s, and it is in force.\n", a.Out.Green("✓"), done)
		case len(out.Unseen) > 0:
			a.Out.Printf("%s %s.\n", a.Out.Green("✓"), done)
			if out.Adopted {
				a.Out.Printf("  At the vault it is in force.\n")
			}
			for _, name := range out.Unseen {
				a.Out.Printf("  %s is written; %s within a second, and it is recorded if it is refused: %s audit search\n", clean.Visible(name), reader(name), a.Typed())
			}
		default:
			a.Out.Printf("%s %s.\n", a.Out.Green("✓"), done)
		}
	})
}

// reader says which process reads a file by itself.
func reader(name string) string {
	switch name {
	case signedchange.FileExecutor:
		return "the executor reads it"
	case signedchange.FileEgress:
		return "egress reads it"
	case signedchange.FileGateway:
		return "the gateway reads it"
	}
	return "each process reads it"
}

// placeLine is the line of a difference that says where the next group stands.
var placeLine = pattern.New(`^ @ [0-9]+$`)

// ShowPlan prints the difference, made visible.
func (a *App) ShowPlan(p *signedchange.Plan) {
	out := a.Display()
	what := ""
	switch {
	case p.Before == nil:
		what = "  (new)"
	case p.After == nil:
		what = "  (taken away)"
	}
	out.Printf("%s  %s%s\n", out.Bold(clean.Visible(p.Name)), out.Dim(clean.Visible(p.Path)), what)
	for _, line := range signedchange.Diff(p.Before, p.After) {
		text := clean.Visible(line)
		switch {
		case line[0] == '+':
			text = out.Green(text)
		case line[0] == '-':
			text = out.Red(text)
		case placeLine().MatchString(line):
			text = out.Dim(text)
		}
		out.Printf("  %s\n", text)
	}
}

// showConfigStatement prints what is about to be signed, whole.
func (a *App) showConfigStatement(st *statement.Statement) error {
	raw, err := st.Marshal()
	if err != nil {
		return err
	}
	out := a.Display()
	out.Printf("%s\n", out.Bold("The statement that you sign, whole:"))
	for _, line := range approval.Lines(raw) {
		out.Printf("  %s\n", line)
	}
	return nil
}

// recordPatience bounds how long a change of a file waits for audit; what cannot be sent is kept and sent later.
const recordPatience = 2 * time.Second

// Record writes a change to the log, or keeps it until audit can be reached; the change itself is made already.
func (a *App) Record(ctx context.Context, body *auditv1.Body) {
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	sent, left, err := a.tryRecord(ctx, body)
	a.RequestID = ""
	refused, isRefused := errors.AsType[*history.Refusal](err)
	switch {
	case isRefused:
		a.Out.Remark("%s", a.Out.Red("the change is made, and "+PublicText(refused)))
	case err != nil:
		a.Out.Remark("%s", a.Out.Red("the change is made and could not be recorded: "+PublicText(err)))
	case left:
		a.Out.Remark("%s", a.Out.Dim("another durward command has the log: the change is made, and the next command that reads the log records it"))
	case !sent:
		a.Out.Remark("%s", a.Out.Dim("audit cannot be reached: the change is made and will be recorded when it can"))
	}
}

// tryRecord reports whether the record was sent; or left, since another command has the log.
func (a *App) tryRecord(ctx context.Context, body *auditv1.Body) (sent, left bool, err error) {
	err = a.Run(ctx, func(ctx context.Context, s *Session) error {
		l, err := a.OpenLog(ctx, s)
		if left = errors.Is(err, history.ErrBusy); left {
			return history.Leave(s.Config.StateDir, a.Now(), auditv1.Kind_KIND_CONFIG_CHANGED, a.RequestID, body)
		}
		if err != nil {
			return err
		}
		sent, err = l.Write(ctx, auditv1.Kind_KIND_CONFIG_CHANGED, a.RequestID, body)
		return errors.Join(err, l.Close())
	})
	return sent, left, err
}

// OpenLog opens the operator's view of the log. A record that waited for audit and that audit will not have is told.
func (a *App) OpenLog(ctx context.Context, s *Session) (*history.Log, error) {
	return history.Open(ctx, history.Config{
		Client: s.Audit.Log, Audit: s.Config.Audit.Identity, Writer: s.Identity().String(), Trust: s.Trust, StateDir: s.Config.StateDir, Now: a.Now,
		OnRefused: func(r *history.Refusal) { a.Out.Remark("%s", a.Out.Red(PublicText(r))) },
	})
}
