package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
)

// Output is what a command printed.
type Output struct {
	Stdout, Stderr string
	Code           int
}

// Environment is what the installation's programs inherit, and what a program that a test starts for it ought to.
func (h *Host) Environment() []string { return environment(h.root) }

// Command is a command line in the installation's environment.
func (h *Host) Command(line ...string) *exec.Cmd {
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = h.Environment()
	return cmd
}

// CLI is a command line of durward's on this installation, which its environment names.
func (h *Host) CLI(args ...string) *exec.Cmd {
	cmd := h.Command(append([]string{filepath.Join(h.Bin, "durward")}, args...)...)
	cmd.Env = append(cmd.Env, "DURWARD_HOME="+h.Dir)
	return cmd
}

// Run runs durward on this installation without a terminal, input as its standard input, and returns what it printed.
func (h *Host) Run(input string, args ...string) Output {
	h.t.Helper()
	cmd := h.CLI(args...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("durward %s: %v", strings.Join(args, " "), err)
	}
	return Output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// unreachable is durward's exit status when it did nothing, since a process did not answer in time or nothing could be recorded.
const unreachable = 3

// NotNow reports whether durward did nothing for now, as Envelope.NotNow does.
func (o Output) NotNow() bool { return o.Code == unreachable }

// Ask is Run without input, run again as long as durward says that it is not now.
func (h *Host) Ask(args ...string) Output {
	h.t.Helper()
	return Again(func() Output { return h.Run("", args...) })
}

// Durward is Ask for what must succeed. It returns the standard output.
func (h *Host) Durward(args ...string) string {
	h.t.Helper()
	out := h.Ask(args...)
	if out.Code != 0 {
		h.t.Fatalf("durward %s: exit status %d\n%s%s", strings.Join(args, " "), out.Code, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// DurwardJSON runs durward with --json, which must succeed, and decodes what it prints into v.
func (h *Host) DurwardJSON(v any, args ...string) {
	h.t.Helper()
	out := h.Durward(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		h.t.Fatalf("durward %s --json: %v\n%s", strings.Join(args, " "), err, out)
	}
}
