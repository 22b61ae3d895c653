package life

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/backupfile"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

func (a *app) restoreCommand() *cobra.Command {
	var key string
	var yes bool
	cmd := &cobra.Command{
		Use:   "restore FILE --key KEY",
		Short: "Put a backup in the place of the state, with your signature; everything stays halted until you resume",
		Long: `Verifies the file, and has each program put its own part in the place of its state: the log first, then the vault, then the
executor and egress. Stop Durward before; services keep running. What was there is kept beside it, in before-restore-….

What happened since the backup is not in it. So the vault and every sink are halted, at an epoch a million above every one that the
backup and the state before know: no grant, approval or session of before counts, and nothing that was spent can be
spent again. "durward resume" begins anew when you have looked.

A log that goes on from a backup is another history than the one that others saw. You sign which head it had, by your own
checkpoint, and how many records are lost; that is the log's next record. Your own checkpoint is moved aside.
Other operators, witnesses and relays refuse the log until they do the same.`,
		Example:           "  sudo systemctl stop durward.target\n  sudo durward restore /srv/backups/durward-2026-01-31 --key backup.key",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFiles(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.restore(cmd.Context(), args[0], key, yes)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the file with the age identity that opens it")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	cli.CompleteFlag(cmd, "key", cli.CompleteFiles())
	return cmd
}

func (a *app) restore(ctx context.Context, path, key string, yes bool) error {
	programs, err := a.programs()
	if err != nil {
		return err
	}
	slices.Reverse(programs) // the log first
	cfg, err := a.operatorConfig()
	if err != nil {
		return err
	}
	identities, opening, err := readIdentities(key)
	if err != nil {
		return err
	}
	roots, err := trust.Open(cfg.TrustDir)
	if err != nil {
		return cli.Failed("Bring that folder back from where you keep it: backups are verified by it, and do not hold it. Nothing was changed.", "trust folder: %s", clean.Line(err.Error(), 300))
	}
	defer roots.Close()
	f, err := backupfile.Open(path, roots.Current().LogKeys)
	if err != nil {
		return cli.Failed("Nothing was changed.", "%s cannot be restored: %s", path, reason(err))
	}
	defer func() { _ = f.Close() }() // it is read
	for _, p := range programs {
		if !f.Has(p.name) {
			return cli.Failed("Nothing was changed. If it was added after that backup: move "+cli.ShellWord(p.config)+" away while you restore, and back; durward resume takes it along.",
				"%s holds nothing of %s, which is installed here", path, p.name)
		}
		running, err := p.running(ctx)
		if err != nil {
			return cli.Denied("Run it with sudo.", "the state of %s cannot be reached: %s", p.name, reason(err))
		}
		if running {
			return cli.Failed("sudo systemctl stop durward.target, or: durward down", "%s is running", p.name)
		}
	}
	if err := opens(f, programs[0].name, opening); err != nil { // before anybody signs
		return cli.Failed("Nothing was changed.", "%s cannot be restored: %s", path, reason(err))
	}
	seen, err := history.Open(ctx, history.Config{Audit: cfg.Audit.Identity, Trust: roots, StateDir: cfg.StateDir, Now: a.Now})
	if err != nil {
		return cli.Failed("Find out why, before you restore anything.", "the checkpoint that you kept: %s", reason(err))
	}
	defer func() { _ = seen.Close() }() // nothing was kept with it
	known := seen.BeforeRestore()
	st, err := a.agree(cfg, f.List, known)
	if err != nil {
		return err
	}
	signer, err := signedchange.FindSigner(cfg, a.Streams.Getenv)
	if err != nil {
		return noSigner(err)
	}
	document := approval.Document{Statement: st, About: about(path, f.List, st.Restore, known.Size)}
	if err := a.ShowDocument(document); err != nil {
		return err
	}
	if err := a.Confirm(ctx, "Sign, and put this backup in the place of the state?", yes); err != nil {
		return err
	}
	signed, err := signer.Sign(ctx, []*statement.Statement{st}, a.Touch)
	if err != nil {
		return err
	}
	preface := backup.Preface(identities, signed[0].GetStatement(), signed[0].GetSignature())
	for _, p := range programs[1:] { // the first judges its own before it changes anything
		if err := p.restore(ctx, f, backup.Judge+preface); err != nil {
			return cli.Failed("Nothing was changed.", "%s cannot be restored: %s: %s", path, p.name, strings.TrimPrefix(reason(err), "nothing was changed: "))
		}
	}
	for _, p := range programs {
		if err := p.restore(ctx, f, preface); err != nil {
			return cli.Failed("Mend that and run the same command again, before anything is started.", "the restore broke off at %s: %s", p.name, reason(err))
		}
		a.Out.Remark("%s %s", a.Out.Green("✓"), p.name)
	}
	if st.Restore.Lost > 0 { // else the log that goes on extends what was seen of it
		if err := seen.SetAside(a.Now()); err != nil {
			return cli.Failed("Move it away by hand.", "the checkpoint that you kept of the log before stays: %s", reason(err))
		}
	}
	return a.Show(map[string]any{"restored": f.List, "lost": st.Restore.Lost}, func() {
		a.Out.Printf("%s The state is that of %s. Start Durward, look, and then: %s resume\n", a.Out.Green("✓"), st.Restore.Made, a.Typed())
	})
}

// restore hands the program its part of a file, behind what says how.
func (p program) restore(ctx context.Context, f *backupfile.File, preface string) error {
	part, err := f.Part(p.name)
	if err != nil {
		return err
	}
	return errors.Join(p.run(ctx, io.MultiReader(strings.NewReader(preface), part), nil, "-restore"), part.Close())
}

// opens reads a service's part as far as its key.
func opens(f *backupfile.File, service string, identities []age.Identity) error {
	part, err := f.Part(service)
	if err != nil {
		return err
	}
	defer part.Close()
	in := bufio.NewReader(part)
	if _, err := backup.ReadHead(in); err != nil {
		return err
	}
	_, err = backup.Decrypt(in, identities)
	return err
}

// operatorConfig is this operator's; or, under sudo, that of the operator who called it.
func (a *app) operatorConfig() (installdir.Config, error) {
	cfg, err := a.Config()
	own, found := signedchange.FindOperator(cfg, a.Streams.Getenv)
	switch {
	case found == nil:
		return own, nil
	case err == nil:
		return cfg, noSigner(found)
	case os.Geteuid() == 0 && install.OnHost():
		return cfg, noSigner(errors.New("root has no key"))
	}
	return cfg, err
}

// noSigner is that nobody is here who could sign.
func noSigner(err error) error {
	return cli.Denied("Run it with sudo, as an operator.", "only an operator's signature lets the log go on: %s", reason(err))
}

// agree is the statement: which log goes on, and what is lost.
func (a *app) agree(cfg installdir.Config, list backupfile.List, known logproof.Checkpoint) (*statement.Statement, error) {
	log := list.Log()
	if log == nil || "spiffe://"+log.Origin != cfg.Audit.Identity {
		return nil, cli.Failed("Nothing was changed.", "the backup is of another log than %s", cfg.Audit.Identity)
	}
	r := &statement.Restore{Made: statement.FormatTime(list.Made), Size: log.Size, Root: log.Root, OldSize: log.Size, OldRoot: log.Root}
	if known.Size > r.Size {
		r.OldSize, r.OldRoot, r.Lost = known.Size, hex.EncodeToString(known.Root[:]), known.Size-r.Size
	}
	if known.Size == r.Size && hex.EncodeToString(known.Root[:]) != r.Root {
		return nil, cli.Failed("Find out which of them is false.", "THE BACKUP IS OF ANOTHER LOG than the one that you kept a checkpoint of")
	}
	signer := approval.Signer{Operator: cfg.Operator, Now: a.Now()}
	st := signer.Retention(statement.KindRestore, cfg.Audit.Identity, list.Epoch()+backup.EpochJump)
	st.Restore = r
	return st, nil
}

// about says what happens. known is the size of the log by the newest checkpoint that the operator kept; 0: they kept none.
func about(path string, list backupfile.List, r *statement.Restore, known uint64) []approval.Line {
	out := []approval.Line{
		{Kind: approval.Heading, Text: "The state of " + r.Made + " takes the place of what is here, from " + clean.Visible(path)},
		{Text: fmt.Sprintf("  made by durward %s, %s", clean.Visible(list.Version), clean.Count(len(list.Parts), "part"))},
		{Text: fmt.Sprintf("  the log goes on at %s; you know of %d", clean.Count(r.Size, "record"), known)},
	}
	switch {
	case known < r.Size:
		out = append(out, approval.Line{Kind: approval.Danger, Text: "  how many records came after the backup and are lost is not known here"})
	case r.Lost > 0:
		out = append(out, approval.Line{Kind: approval.Danger, Text: "  " + clean.Count(r.Lost, "record is lost, and whatever it tells", "records are lost, and whatever they tell")})
	}
	return append(out, approval.Line{Text: "  everything stays halted until you resume; no grant, approval or session of before counts"})
}

// readIdentities returns the lines of an identity file, and what they say.
func readIdentities(path string) (out []string, identities []age.Identity, err error) {
	if path == "" {
		return nil, nil, cli.Usage("It is the file that durward backup --new-key wrote.", "--key is missing")
	}
	raw, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return nil, nil, cli.Usage("", "the key cannot be read: %s", reason(err))
	}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	if identities, err = age.ParseIdentities(strings.NewReader(strings.Join(out, "\n"))); err != nil {
		return nil, nil, cli.Usage("It is the file that durward backup --new-key wrote; a passphrase has to be taken off before.", "%s holds no age identity", path)
	}
	return out, identities, nil
}
