package admin

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
)

// notifyProgram tells an operator what waits. It is a program of its own so that this one, which signs, links nothing that dials out.
const notifyProgram = "durward-notify"

func (a *app) notifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Tell you where you are that something waits for you",
		Long: `Runs in the foreground and tells the destinations in config/notify.yaml what waits for your decision: on the
desktop, by ntfy, through a webhook of Slack, Mattermost or Discord, or through a command of your own.

It says who asks, which tool, its tier, the short number and the command that approves: no arguments and
nothing that an agent wrote. Its certificate lets it see that and do nothing else.
With --json each line that the program writes is an object.

First: durward notify install`,
		Example: "  durward notify install\n  durward notify test\n  durward notify",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.notifyLines(cmd.Context()) },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "install",
		Short: "Make the list of destinations, the certificate, and a unit of your own systemd",
		Long: `Makes what is missing: config/notify.yaml with your desktop as its one destination, the certificate of the
role "notifier", and ~/.config/systemd/user/durward-notify.service. What you have edited is kept.

On a host where Durward was installed (durward install) the certificate is root's to issue, which
"durward install --apply" does for each operator.`,
		RunE: a.Configured(func(_ context.Context, cfg installdir.Config, _ []string) error { return a.notifyInstall(cfg) }),
	}, &cobra.Command{
		Use:   "test",
		Short: "Send a made-up notification to each destination",
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.notifyTest(cmd.Context()) },
	})
	return cmd
}

// notifyLines runs the program in the foreground; for a program each line that it writes is an object of a stream.
func (a *app) notifyLines(ctx context.Context) error {
	if !a.Machine() {
		return a.notify(ctx, a.Streams.Out)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := a.notify(ctx, out)
		_ = out.Close() // of a pipe: it cannot fail
		ended <- err
	}()
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if err := a.ShowLine(map[string]string{"line": lines.Text()}, nil); err != nil {
			_ = said.Close() // of what is written after it nothing is waited for
			cancel()         // or it would tell of what waits beside the next one
			return errors.Join(err, <-ended)
		}
	}
	return <-ended
}

// notifyTest has the program try each destination.
func (a *app) notifyTest(ctx context.Context) error {
	if !a.Machine() {
		return a.notify(ctx, a.Streams.Out, "-test")
	}
	var said bytes.Buffer
	failed := a.notify(ctx, &said, "-test", "-json")
	var tried any
	if err := json.Unmarshal(said.Bytes(), &tried); err != nil {
		return cmp.Or(failed, err)
	}
	return cmp.Or(a.Show(tried, nil), failed)
}

// notify runs the program, which writes to out.
func (a *app) notify(ctx context.Context, out io.Writer, args ...string) error {
	file := a.Home.Config("notify")
	if _, err := os.Stat(file); err != nil {
		return cli.Failed("Make one: durward notify install", "there is no list of destinations: %s", file)
	}
	program, err := a.notifyPath()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"-config", file}, args...)...) // #nosec G204 -- our own program beside this one
	cmd.Stdout, cmd.Stderr = out, a.Streams.Err
	cmd.Env = append(childEnvironment(a.Streams.Getenv), cli.Environment(a.Streams.Getenv, "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")...)
	// Ctrl-C reaches the whole group, and it ends by itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil || ctx.Err() != nil:
		return nil
	case errors.As(err, &exit) && exit.ExitCode() == cli.ExitUsage:
		return cli.Usage("Correct it and try again.", "%s cannot be used", file)
	case errors.As(err, &exit) && len(args) > 0:
		return cli.Failed("Correct "+file+" and try again: durward notify test", "not every destination was reached")
	default:
		return cli.Failed("See above.", "%s has ended", notifyProgram)
	}
}

// notifyPath is where the program lies.
func (a *app) notifyPath() (string, error) {
	folder, err := cli.OwnFolder()
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, notifyProgram)
	if _, err := os.Stat(program); err != nil {
		return "", cli.Failed("Build every program: scripts/build.sh", "%s is not beside this program", notifyProgram)
	}
	return program, nil
}

func (a *app) notifyInstall(cfg installdir.Config) error {
	program, err := a.notifyPath()
	if err != nil {
		return err
	}
	command := a.Elsewhere()
	if command != clean.Plain(command) {
		command = "durward" // notify.yaml takes no other, so that no receiver takes it for markup
	}
	file, made, err := a.Home.InitNotify(cfg, command)
	if err != nil {
		return err
	}
	unit, err := a.notifyUnit(program, file)
	if err != nil {
		return err
	}
	return a.Show(map[string]any{"file": file, "made": made, "unit": unit}, func() {
		a.Out.Printf("%s %s\n", a.Out.Green("✓"), a.wasMade(file, made))
		a.Out.Printf("%s %s\n", a.Out.Green("✓"), unit)
		a.Out.Printf("Next   edit the destinations in it, then: %s notify test\n", a.Elsewhere())
		a.Out.Printf("       in this terminal:  %s notify\n", a.Elsewhere())
		a.Out.Printf("       or in background:  systemctl --user daemon-reload; systemctl --user enable --now durward-notify\n")
	})
}

func (a *app) wasMade(file string, made bool) string {
	if made {
		return file
	}
	return file + " is there already, and was kept"
}

// notifyUnit writes the unit for the operator's own systemd.
func (a *app) notifyUnit(program, file string) (string, error) {
	folder := a.Streams.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(folder) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("home folder: %w", err)
		}
		folder = filepath.Join(home, ".config")
	}
	path := filepath.Join(folder, "systemd", "user", notifyProgram+".service")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("unit: %w", err)
	}
	return path, installdir.WriteFile(path, []byte(unitOfNotify(program, file)), 0o600)
}

// unitOfNotify is a unit that has no rights but its user's, and fewer of those.
func unitOfNotify(program, file string) string {
	// systemd's own quoting: a backslash, a quote and % are its.
	word := func(path string) string {
		return strconv.Quote(strings.NewReplacer("%", "%%", "$", "$$").Replace(path))
	}
	return `# Written by durward notify install.
[Unit]
Description=Tells you that something waits for your decision (Durward)

[Service]
ExecStart=` + word(program) + ` -config ` + word(file) + `
Restart=on-failure
RestartSec=10
# Its configuration cannot be used, which no restart mends.
RestartPreventExitStatus=2
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
LimitCORE=0

[Install]
WantedBy=default.target
`
}
