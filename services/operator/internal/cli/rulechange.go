package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	filechange "durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
)

// FileClients is clients.yaml in statements and records.
const FileClients = "clients.yaml"

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

const (
	// AskPatience bounds how long a change of a file waits for the vault to answer; it goes on without.
	AskPatience = 2 * time.Second
	// adoptPatience is how long the vault has to take a change up before this program stops looking.
	adoptPatience = 4 * time.Second
)

// RuleChange is a change of rules: what it is for records, and the files that it concerns.
type RuleChange struct {
	// Action is for records: "config set approvals.wait_s".
	Action string
	// Plans works the changes out. It is called with the configuration's lock held.
	Plans func() ([]*filechange.Plan, error)
	// Before shows what a person should know beside the difference. May be nil.
	Before func() error
	// Ready is called when everything is agreed, signed and announced, right before the first file is written. May be nil.
	Ready func() error
	Yes   bool
	// Unsigned: the change takes a right away, or root lets the first operator in. It is signed where a key can be asked for, and
	// made all the same where none can.
	Unsigned bool
}

// RulesChanged is what became of it, in --json too.
type RulesChanged struct {
	Files []ruleFile `json:"files"`
	// Announced: the vault has the signed statement.
	Announced bool `json:"announced"`
	// InForce: every file was seen to be in force. Of a file that another process than the vault reads nobody says so.
	InForce bool `json:"in_force"`
	// Unseen are files that their process reads by itself, within a second; what it refuses stands in its log and in audit's.
	Unseen []string `json:"unseen,omitempty"`
	// adopted: the vault has every file that is for it.
	adopted bool
}

type ruleFile struct {
	File   string `json:"file"`
	Path   string `json:"path"`
	Before string `json:"digest_before"`
	After  string `json:"digest_after"`
}

// ChangeRules is the one way to change a file that holds rules: the difference is shown, then the statement, whole; a person
// agrees and signs; the vault is told; the files are replaced; and it is recorded (CFG-4). Where no key can be asked for it
// changes nothing and says which file and line to edit (CFG-5).
func (a *App) ChangeRules(ctx context.Context, cfg installdir.Config, r RuleChange) (*RulesChanged, error) {
	release, err := a.Home.Lock("config")
	if errors.Is(err, installdir.ErrLocked) {
		return nil, Failed("Try again.", "another durward command is changing the configuration")
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = release() }() // ends with this process at the latest
	plans, err := r.Plans()
	if err != nil {
		return nil, err
	}
	plans = filechange.Effective(plans)
	if len(plans) == 0 {
		return &RulesChanged{Files: []ruleFile{}, InForce: true}, nil
	}
	byHand := filechange.WhereToEdit(plans)
	if err := filechange.Signable(cfg, plans); err != nil && !r.Unsigned {
		return nil, Usage(byHand, "%v", err)
	}
	if err := tryRules(cfg, plans); err != nil {
		return nil, err
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
	side, err := a.SigningSide(cfg)
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
	ctx, vault := a.vaultForChanges(ctx)
	defer vault.close()
	if reason != "" {
		return a.changeUnsigned(ctx, cfg, r, plans, vault, reason)
	}
	statements := make([]*statement.Statement, len(plans))
	for i, p := range plans {
		statements[i] = filechange.Statement(side.operator, cfg.Vault.Identity, vault.epoch, a.Now(), p.Change())
		if err := a.showConfigStatement(statements[i]); err != nil {
			return nil, err
		}
	}
	if vault.session == nil {
		a.Out.Remark("%s", a.Out.Yellow("The vault cannot be reached: it will find the change by itself and record it as found."))
	}
	if err := a.Confirm(ctx, "Sign and change it?", r.Yes); err != nil {
		return nil, err
	}
	signed, err := a.signAll(ctx, side, statements)
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
func (a *App) changeUnsigned(ctx context.Context, cfg installdir.Config, r RuleChange, plans []*filechange.Plan, vault changeVault, reason string) (*RulesChanged, error) {
	a.Out.Remark("%s", a.Out.Yellow("It is changed without a signature, and recorded so: "+clean.Line(reason, 300)+"."))
	return a.makeChanges(ctx, cfg, r, plans, nil, vault)
}

// makeChanges tells the vault, writes, and records: file by file, in order. Without signatures the vault is told nothing.
func (a *App) makeChanges(
	ctx context.Context, cfg installdir.Config, r RuleChange, plans []*filechange.Plan, signed []*callv1.HumanStatement, vault changeVault,
) (*RulesChanged, error) {
	out := &RulesChanged{Announced: vault.session != nil && signed != nil}
	for i, p := range plans {
		if vault.session != nil && signed != nil {
			err := vault.announce(ctx, signed[i])
			switch {
			case err == nil:
			case isAway(err):
				a.Out.Remark("%s", a.Out.Yellow("The vault went away: it will find the change by itself and record it as found."))
				out.Announced, vault.session = false, nil
			case r.Unsigned:
				a.Out.Remark("%s", a.Out.Yellow("The vault does not take the signature; it is changed without one: "+PublicText(err)))
				out.Announced, signed = false, nil
			default:
				return nil, fmt.Errorf("%s: %w", filechange.WhatStands(plans, i), err)
			}
		}
		if i == 0 && r.Ready != nil {
			if err := r.Ready(); err != nil {
				return nil, err
			}
		}
		if err := p.Write(); err != nil {
			return nil, Failed("See what it is now: durward config show", "%s: %v", filechange.WhatStands(plans, i), err)
		}
		c := p.Change()
		out.Files = append(out.Files, ruleFile{File: p.Name, Path: p.Path, Before: c.Before, After: c.After})
		// The statement itself stands in the vault's record, who verified it; its digest ties the two together.
		by := "none"
		if signed != nil {
			by = filechange.StatementDigest(signed[i])
		}
		a.Record(ctx, cfg, &auditv1.Body{
			Action: clean.Line(r.Action, 128), Summary: clean.Line(r.Action, 500), Persistent: true, DecisionSource: "operator:" + cfg.Operator,
			Details: map[string]string{"file": clean.Line(p.Name, 256), "digest_before": cmp.Or(c.Before, "none"), "digest_after": cmp.Or(c.After, "none"),
				"statement": by},
		})
	}
	var own []*filechange.Plan
	for _, p := range plans {
		if watchedByVault(cfg, p) {
			own = append(own, p)
		} else {
			out.Unseen = append(out.Unseen, p.Name)
		}
	}
	if len(own) == 0 {
		return out, nil
	}
	var err error
	out.adopted, err = a.awaitAdoption(ctx, vault, own)
	out.InForce = out.adopted && len(out.Unseen) == 0
	return out, err
}

// watchedByVault reports whether the vault says of a file what it has in force; every other file another process reads by itself.
func watchedByVault(cfg installdir.Config, p *filechange.Plan) bool {
	rel, err := filepath.Rel(cfg.SecurityDir, p.Path)
	return p.Name == FileClients || err == nil && filepath.IsLocal(rel)
}

// ReportRules says what became of a change.
func (a *App) ReportRules(out *RulesChanged, err error, done string) error {
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
			if out.adopted {
				a.Out.Printf("  At the vault it is in force.\n")
			}
			for _, name := range out.Unseen {
				a.Out.Printf("  %s is written; %s within a second, and it is recorded if it is refused: durward audit search\n", clean.Visible(name), reader(name))
			}
		default:
			a.Out.Printf("%s %s.\n", a.Out.Green("✓"), done)
		}
	})
}

// tryRules holds the files as they would be to what the vault would say of them. What was broken before is no reason to refuse.
func tryRules(cfg installdir.Config, plans []*filechange.Plan) error {
	overlay := map[string][]byte{}
	for _, p := range plans {
		if rel, err := filepath.Rel(cfg.SecurityDir, p.Path); err == nil && filepath.IsLocal(rel) {
			overlay[p.Name] = p.After
		}
	}
	if len(overlay) == 0 {
		return nil
	}
	options, done, err := SecurityOptions(cfg)
	if err != nil {
		return err
	}
	defer done()
	_, before := security.Look(options, nil)
	_, after := security.Look(options, overlay)
	known := map[string]bool{}
	for _, f := range before {
		known[f.Name+"\x00"+f.Problem] = true
	}
	var problems []string
	for _, f := range after {
		if _, ours := overlay[f.Name]; f.Problem != "" && (ours || !known[f.Name+"\x00"+f.Problem]) {
			problems = append(problems, ProblemLine(f))
		}
	}
	if len(problems) > 0 {
		return Usage("Nothing was written.", "the vault would refuse it: %s", clean.Block(strings.Join(problems, "\n"), 4000))
	}
	return nil
}

func ProblemLine(f security.File) string {
	if strings.HasPrefix(f.Problem, f.Name) {
		return f.Problem
	}
	return f.Name + ": " + f.Problem
}

// SecurityOptions is what to read of the security configuration. A folder that is not there yet is empty.
func SecurityOptions(cfg installdir.Config) (security.Options, func(), error) {
	if _, err := os.Stat(cfg.SecurityDir); !errors.Is(err, fs.ErrNotExist) {
		return security.Options{Dir: cfg.SecurityDir}, func() {}, nil
	}
	empty, err := os.MkdirTemp("", "durward-security-")
	if err != nil {
		return security.Options{}, nil, err
	}
	return security.Options{Dir: empty}, func() { _ = os.RemoveAll(empty) }, nil
}

// reader says which process reads a file by itself.
func reader(name string) string {
	switch name {
	case FileExecutor:
		return "the executor reads it"
	case FileGateway:
		return "the gateway reads it"
	}
	return "each process reads it"
}

// Names of files beside the security folder, in statements and records.
const (
	FileExecutor = "executor.yaml"
	FileGateway  = "gateway.yaml"
)
