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

// Run runs durward on this installation without a terminal, input as its standard input, and returns what it printed.
func (h *Host) Run(input string, args ...string) Output {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), filepath.Join(h.Bin, "durward"), append([]string{"--home", h.Dir}, args...)...)
	cmd.Env = environment()
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

// Durward runs durward, which must succeed, and returns its standard output.
func (h *Host) Durward(args ...string) string {
	h.t.Helper()
	out := h.Run("", args...)
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
