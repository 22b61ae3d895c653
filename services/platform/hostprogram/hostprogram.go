// Package hostprogram runs the system's own programs that say how the host is: busctl, nvidia-smi. Each is run by its absolute path with
// arguments of the caller's, no shell and an environment that is empty but for what such programs need, for a bounded time; what it
// writes is bounded. What it writes is not trusted: the caller parses it.
package hostprogram

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

const (
	timeout = 5 * time.Second
	// maxOutput is far more than a host with hundreds of services has to say.
	maxOutput = 4 << 20
)

// ErrOutput means that a program wrote more than it has to say.
var ErrOutput = errors.New("it writes more than it should")

// Find returns the path of one of the system's programs.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("%s is not on this host", name)
	}
	return path, nil
}

// Run runs a program by its absolute path and returns what it writes to its standard output.
func Run(ctx context.Context, program string, args ...string) ([]byte, error) {
	if !filepath.IsAbs(program) {
		return nil, fmt.Errorf("%s: not an absolute path", program)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // programs of the system by their paths, with arguments of ours
	// With the last of them busctl finds the user's own manager.
	cmd.Env = []string{"LANG=C", "LC_ALL=C", "PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=/run/user/" + strconv.Itoa(os.Getuid())}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	out := &bounded{}
	cmd.Stdout = out
	err := cmd.Run()
	if out.over {
		err = ErrOutput // which ended the program
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return out.text, nil
}

// bounded refuses more than maxOutput.
type bounded struct {
	text []byte
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.text)+len(p) > maxOutput {
		b.over = true
		return 0, ErrOutput
	}
	b.text = append(b.text, p...)
	return len(p), nil
}
