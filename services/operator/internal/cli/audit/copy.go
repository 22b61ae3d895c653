package audit

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
)

const (
	// keeper is the program that has the log, which alone may read its key and its databases; keeperUser runs it on an installed host.
	keeper     = "audit"
	keeperUser = "durward-audit"
	// installed is audit's configuration on such a host, and keys the folder of which systemd hands keys to units that run.
	installed, keys, credentials = "/etc/durward/audit.yaml", "/etc/durward/keys", "/run/credentials/"
)

func (a *app) auditCopyCommand() *cobra.Command {
	var from string
	var damaged bool
	cmd := &cobra.Command{
		Use:   "copy NEW.yaml",
		Short: "Move the log to another database, or out of a damaged one",
		Long: `Brings the log from the database in audit's configuration to the empty one in NEW.yaml, a second configuration of
audit: another state_dir, or a PostgreSQL database. Every entry is verified and the tree computed anew, so receipts,
exports and checkpoints stay good. Stop audit before. The old database is closed, and an audit that is started on it
says where the log is. What broke off goes on when the same command is run again.

With --damaged it brings what can be proved out of a damaged database, and changes nothing in that: bodies that are
not what was recorded are left out, and "durward audit verify" names those records.

The program audit does it, since it alone may read the log's key and its databases. Run this as root where Durward
was installed with "durward install": it changes to audit's own user. Elsewhere run it as the user of the home.`,
		Example:           "  sudo systemctl stop durward-audit && sudo durward audit copy /etc/durward/audit-new.yaml\n  durward audit copy ~/.durward/config/audit-new.yaml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFiles("yaml", "yml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.copyLog(cmd.Context(), from, args[0], damaged)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "audit's present configuration (of the home; as root "+installed+")")
	cli.CompleteFlag(cmd, "from", cli.CompleteFiles("yaml", "yml"))
	cmd.Flags().BoolVar(&damaged, "damaged", false, "leave out bodies that are not what was recorded, and leave the old database as it is")
	return cmd
}

func (a *app) copyLog(ctx context.Context, from, to string, damaged bool) error {
	as := os.Geteuid()
	if from == "" {
		if from = a.Home.Config(keeper); as == 0 {
			if _, err := os.Stat(installed); err == nil {
				from = installed
			}
		}
	}
	if from == a.Home.Config(keeper) && a.Home.Runs() { // a copy of a home names the log of the home that it was copied from
		if _, err := a.Config(); err != nil {
			return err
		}
	}
	for _, file := range []string{from, to} {
		if _, err := os.Stat(file); err != nil {
			return cli.Usage("Write the new configuration beside the present one, with another state_dir or database.", "there is no configuration %s", file)
		}
	}
	folder, err := cli.OwnFolder()
	if err != nil {
		return err
	}
	args := []string{"-config", from, "-copy", to}
	if damaged {
		args = append(args, "-damaged")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(folder, keeper), args...) // #nosec G204 -- our own program beside this one
	cmd.Stdout, cmd.Stderr = a.Streams.Out, a.Streams.Err
	if a.Machine() {
		cmd.Stdout = a.Streams.Err
	}
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + a.Streams.Getenv("HOME"), "TMPDIR=" + a.Streams.Getenv("TMPDIR")}
	if from == installed {
		if cmd.SysProcAttr, err = installdir.AsUser(keeperUser); err != nil {
			return cli.Failed("Run it on the host where Durward was installed.", "%v", err)
		}
		key, err := handOver(cmd, from)
		if err != nil {
			return cli.Failed("Run it with sudo.", "the log's key cannot be handed to audit: %v", err)
		}
		defer key.Close()
	} else {
		cmd.Args = append(cmd.Args, "-development") // one user has all of a home
	}
	// Ctrl-C reaches the whole group: the part that is under way ends, and the next run goes on there.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == cli.ExitUsage:
		return cli.Usage("Correct the configuration that it names.", "the log was not copied")
	case err != nil:
		return cli.Failed("What audit said stands above. A copy that broke off goes on when the same command is run again.", "the log was not copied")
	}
	return a.Show(map[string]string{"copied": from, "to": to}, func() {
		a.Out.Printf("%s Put %s in the place of %s, and start audit.\n", a.Out.Green("✓"), to, from)
	})
}

// handOver gives audit the log's key as systemd does, where log_key names what systemd takes away while the unit is stopped: in a file
// that audit's user alone can read, and that no folder shows. The caller closes it once audit has ended.
func handOver(cmd *exec.Cmd, from string) (_ *os.File, err error) {
	raw, err := os.ReadFile(from)
	if err != nil {
		return nil, err
	}
	var file struct {
		LogKey string `yaml:"log_key"`
	}
	if err := yaml.Unmarshal(raw, &file); err != nil || !strings.HasPrefix(file.LogKey, credentials) {
		return nil, nil //nolint:nilerr,nilnil // audit says what is wrong with its file, or reads the key itself
	}
	key, err := os.ReadFile(filepath.Join(keys, filepath.Base(file.LogKey)))
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("log.key", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "log.key")
	_, err = f.Write(key)
	as := cmd.SysProcAttr.Credential
	if err = errors.Join(err, f.Chmod(0o600), f.Chown(int(as.Uid), int(as.Gid))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	cmd.ExtraFiles = []*os.File{f}
	cmd.Args = append(cmd.Args, "-log-key", "/proc/self/fd/3")
	return f, nil
}
