package life

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
)

// etc is where an installed host has its configuration.
const etc = "/etc/durward"

// program is one of the programs that keep state, which copy and put back their own as their own users.
type program struct {
	name, config string
	// installed: it runs as a user of its own.
	installed bool
	// stateDir and logKey are of its configuration.
	stateDir, logKey string
}

// keepers are the programs with state, those whose records and effects follow from the others' first.
var keepers = []string{"executor", "egress", "vault", "audit"}

// programs are those of this host; as root, those that are installed.
func (a *app) programs() ([]program, error) {
	installed := false
	if os.Geteuid() == 0 && !a.Home.Runs() {
		_, err := os.Stat(filepath.Join(etc, "audit.yaml"))
		installed = err == nil
	}
	if !installed && a.Home.Runs() { // a copy of a home names the state of the home that it was copied from
		if _, err := a.Config(); err != nil {
			return nil, err
		}
	}
	var out []program
	for _, name := range keepers {
		p := program{name: name, config: a.Home.Config(name), installed: installed}
		if installed {
			p.config = filepath.Join(etc, name+".yaml")
		}
		raw, err := os.ReadFile(p.config)
		if errors.Is(err, os.ErrNotExist) && name == "egress" {
			continue
		}
		if errors.Is(err, os.ErrPermission) {
			return nil, cli.Denied("Run it with sudo.", "this user may not read %s", p.config)
		}
		if err != nil {
			return nil, cli.Failed("Run it as root on an installed host, or as the user of the home.", "there is no configuration %s", p.config)
		}
		var file struct {
			StateDir string `yaml:"state_dir"`
			LogKey   string `yaml:"log_key"`
		}
		if err := yaml.Unmarshal(raw, &file); err != nil {
			return nil, cli.Usage("", "%s: %v", p.config, clean.Line(err.Error(), 300))
		}
		p.stateDir, p.logKey = file.StateDir, file.LogKey
		if installed && p.logKey != "" { // systemd hands audit a copy
			p.logKey = filepath.Join(etc, "keys", filepath.Base(p.logKey))
		}
		out = append(out, p)
	}
	return out, nil
}

// A process that is told to stop takes a moment: systemd's stop of a target does not wait for what is part of it.
const stopPatience, stopLook = 2 * time.Second, 50 * time.Millisecond

// running reports whether a process keeps its state there, and goes on to for a while.
func (p program) running(ctx context.Context) (bool, error) {
	f, err := os.Open(p.stateDir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for left := stopPatience; ; left -= stopLook {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		if left <= 0 || !clock.Sleep(ctx, stopLook) {
			return true, ctx.Err()
		}
	}
}

// run runs the program with these flags, as its own user. Its complaint is the error.
func (p program) run(ctx context.Context, in io.Reader, out io.Writer, flags ...string) error {
	folder, err := cli.OwnFolder()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(folder, p.name), append([]string{"-config", p.config}, flags...)...) // #nosec G204 -- our own program beside this one
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &said
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	if p.installed {
		if cmd.SysProcAttr, err = installdir.AsUser("durward-" + p.name); err != nil {
			return err
		}
	} else {
		cmd.Args = append(cmd.Args, "-development") // one user has all of a home
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		if last := strings.TrimPrefix(lines[len(lines)-1], p.name+": "); last != "" {
			return errors.New(clean.Line(last, 500))
		}
		return err
	}
	return nil
}
