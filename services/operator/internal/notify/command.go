package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"syscall"
	"time"
)

// commandTime bounds a run of an operator's command.
const commandTime = 10 * time.Second

// command runs a program of the operator's with the message as JSON on its standard input. Its arguments are the file's, whatever
// waits; what it writes is dropped.
type command struct{ argv []string }

func newCommand(argv []string) (command, error) {
	if len(argv) > maxArguments {
		return command{}, fmt.Errorf("program: at most %d arguments", maxArguments)
	}
	for _, word := range argv {
		if len(word) > maxArgument {
			return command{}, fmt.Errorf("program: an argument is at most %d bytes long", maxArgument)
		}
	}
	if !filepath.IsAbs(argv[0]) {
		return command{}, errors.New("program: begins with the program's absolute path")
	}
	return command{argv}, nil
}

func (c command) send(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...) // #nosec G204 -- the operator's own, from the operator's file
	cmd.Env, cmd.Dir = environment(os.Getenv), "/"
	cmd.Stdin = bytes.NewReader(m.json())
	// What it started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the command does not end within %s", commandTime)
	case errors.As(err, &exit):
		return fmt.Errorf("the command ends with %s", exit.ProcessState)
	default:
		return errors.New("the command cannot be started: is the program there, and may it be run?")
	}
}

// environment is all that a command has of the environment (ENV-1).
func environment(getenv func(string) string) []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "TERM=dumb"}
	if tz := getenv("TZ"); tz != "" {
		env = append(env, "TZ="+tz)
	}
	if me, err := user.Current(); err == nil {
		env = append(env, "HOME="+me.HomeDir, "USER="+me.Username)
	}
	return env
}
