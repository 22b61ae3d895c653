package life

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/operator/internal/backupfile"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
)

// recipientsFile, beside the programs' configuration, holds whom backups are encrypted to.
const recipientsFile = "backup-recipients"

func (a *app) backupCommand() *cobra.Command {
	var to []string
	var newKey string
	var keep int
	cmd := &cobra.Command{
		Use:   "backup FILE|FOLDER",
		Short: "Copy the state of all processes into one encrypted file, while they run",
		Long: `Has each program that keeps state (audit, vault, executor, egress) copy its own, as its own user, encrypted to the
age recipients that --to or the file ` + recipientsFile + ` beside the configuration names. This program sees none
of it. A list of the parts is signed by the log's key, and "durward restore" takes no other.

The processes go on. What they do leaves the executor first and the log last, so the copies are made in that order:
each thing that one part knows, the parts behind it know too.

Not in it: /etc/durward or the home's keys and rules, which only humans change; the keys of personal data, so that what was
destroyed stays destroyed; records that had not reached the log; a state that PostgreSQL keeps.

FILE may be a folder: the file gets a name of its own in it, by the time, and --keep removes the oldest of those names
when the new one is whole.

As root where Durward was installed, or from durward-backup.timer; elsewhere as the user of the home. --new-key makes a key pair to
encrypt to: keep its file away from this host, since who has it can read every backup that was encrypted to it.`,
		Example: "  durward backup --new-key backup.key\n  sudo durward backup /srv/backups/durward-$(date +%F) --to age1…\n" +
			"  sudo durward backup /srv/backups --keep 14",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cli.CompleteFiles(),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case newKey != "" && len(args) == 0 && len(to) == 0:
				return a.backupKey(newKey)
			case newKey != "" || len(args) == 0:
				return cli.Usage("durward backup FILE", "name the file to write, or --new-key and nothing else")
			}
			return a.backup(cmd.Context(), args[0], to, keep)
		},
	}
	cmd.Flags().StringSliceVar(&to, "to", nil, "an age recipient (age1…) who can open it; repeatable")
	cmd.Flags().IntVar(&keep, "keep", 0, "of the backups in a folder, keep the newest so many (default: all)")
	cmd.Flags().StringVar(&newKey, "new-key", "", "write an age identity into this `file`, which must not exist, print its recipient, and make no backup")
	cli.CompleteFlag(cmd, "new-key", cli.CompleteFiles())
	cli.CompleteFlag(cmd, "keep", cli.OneOf("7", "14", "30"))
	return cmd
}

func (a *app) backupKey(path string) error {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	if err := installdir.CreateFile(path, fmt.Appendf(nil, "# public key: %s\n%s\n", identity.Recipient(), identity), 0o600); err != nil {
		return cli.Failed("", "the key was not written: %s", clean.Line(err.Error(), 300))
	}
	recipient := identity.Recipient().String()
	return a.Show(map[string]string{"recipient": recipient, "identity_file": path}, func() { a.Out.Printf("%s\n", recipient) })
}

func (a *app) backup(ctx context.Context, path string, to []string, keep int) error {
	info, err := os.Stat(path)
	folder := err == nil && info.IsDir()
	switch {
	case folder:
		path = filepath.Join(path, backupfile.Name(a.Now()))
	case keep > 0:
		return cli.Usage("Give a folder.", "--keep is for the backups in a folder, and %s is none", path)
	}
	programs, err := a.programs()
	if err != nil {
		return err
	}
	audit := programs[len(programs)-1]
	recipients, err := readRecipients(filepath.Join(filepath.Dir(audit.config), recipientsFile), to)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(audit.logKey)
	if err != nil {
		return cli.Denied("Run it with sudo.", "this user may not read the log's key, which signs the list of parts")
	}
	signer, err := note.NewSigner(strings.TrimSpace(string(raw)))
	if err != nil {
		return cli.Failed("", "%s is no key of a log", audit.logKey)
	}
	w, err := backupfile.Create(path, a.Streams.Version, a.Now())
	if err != nil {
		return unmade(path, "", err)
	}
	for _, p := range programs {
		if err := w.Add(p.name, func(out io.Writer) error {
			return p.run(ctx, nil, out, "-backup", recipients)
		}); err != nil {
			w.Abort()
			return unmade(path, "Nothing was written.", fmt.Errorf("%s: %w", p.name, err))
		}
	}
	list, err := w.Finish(signer)
	if err != nil {
		return unmade(path, "", err)
	}
	var removed []string
	if keep > 0 {
		if removed, err = backupfile.Keep(path, keep); err != nil {
			return cli.Failed("The new backup is whole.", "older backups were not removed: %s", reason(err))
		}
	}
	made := map[string]any{"file": path, "list": list}
	if len(removed) > 0 {
		made["removed"] = removed
	}
	return a.Show(made, func() {
		for _, p := range list.Parts {
			a.Out.Printf("  %-9s %d bytes\n", p.Head.Service, p.Bytes)
		}
		a.Out.Printf("%s %s: %s of the log, encrypted to %s\n", a.Out.Green("✓"), path, clean.Count(list.Log().Size, "record"), clean.Count(strings.Count(recipients, ",")+1, "recipient"))
		for _, name := range removed {
			a.Out.Printf("  removed %s\n", name)
		}
	})
}

// unmade is why there is no backup at path. What a program itself has no room for, it says in words.
func unmade(path, hint string, err error) error {
	why := reason(err)
	if errors.Is(err, syscall.ENOSPC) {
		why = "the disk of the folder " + filepath.Dir(path) + " is full"
	}
	return cli.Failed(hint, "the backup was not made: %s", why)
}

// reason is why a file could not be written, in words.
func reason(err error) string {
	if errors.Is(err, syscall.ENOSPC) {
		return "the disk is full"
	}
	return clean.Line(err.Error(), 500)
}

// readRecipients are those that were given, or else those of the file, which no other user may write.
func readRecipients(path string, given []string) (string, error) {
	if len(given) == 0 {
		raw, err := os.ReadFile(path)
		if err != nil {
			return "", cli.Usage("Give --to, or write them into that file: durward backup --new-key backup.key", "nobody is named to encrypt to: there is no %s", path)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o022 != 0 {
			return "", cli.Denied("chmod go-w "+cli.ShellWord(path), "%s can be written by others, who could have backups encrypted to themselves", path)
		}
		for line := range strings.Lines(string(raw)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				given = append(given, line)
			}
		}
	}
	for _, recipient := range given {
		if strings.HasPrefix(strings.ToUpper(recipient), "AGE-SECRET-KEY-") { // which is not printed
			return "", cli.Usage("Its recipient begins with age1: durward backup --new-key prints it.", "an age identity is given, which opens backups, and a recipient is asked for")
		}
		if _, err := age.ParseRecipients(strings.NewReader(recipient)); err != nil {
			return "", cli.Usage("Give it whole, as durward backup --new-key prints it.", "%q is no age recipient", clean.Line(recipient, 100))
		}
	}
	all := strings.Join(given, ",")
	if _, err := age.ParseRecipients(strings.NewReader(strings.Join(given, "\n"))); err != nil {
		return "", cli.Usage("A recipient begins with age1.", "%s", clean.Line(err.Error(), 300))
	}
	return all, nil
}
