package drill

import (
	"bytes"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/deploy/e2e/harness"
)

// agentLines are the attacks of an agent with a shell, which runs as the operator's own user where the operator's key has a
// passphrase.
func agentLines() []Line {
	return []Line{
		// Its control is the same agent where the key has none, as in development mode.
		{"agent-pty", nil, agentTerminal},
		{"agent-operator-certificate", map[string]string{harness.Vault: "approval"}, operatorCertificate},
	}
}

// passphrase protects the operator's key while the agent tries.
const passphrase = "correct horse battery staple"

// patience is how long an attempt may wait for what it is asked and does not know; what should succeed has minutes.
const patience, minutes = 3 * time.Second, 2 * time.Minute

// agentTerminal runs `durward approve` in terminals of its own. Its effects are decisions in the vault's store.
func agentTerminal(w *world) (trials, effects int) {
	id := w.ask(w.open(), "start_service", idle)
	if !w.weak {
		defer w.protectKey()()
	}
	decided := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND state != 1`, id)
	}
	within := patience
	if w.weak {
		within = minutes
	}
	for _, a := range w.attempts(id) {
		trials++
		w.terminal(a, within)
		if effects = decided(); w.caught(effects) {
			return trials, effects
		}
	}
	effects = decided()
	if !w.weak {
		// With the passphrase the very same way leads to an approval: it was not the terminal that was in the way.
		w.terminal(attempt{args: []string{"--home", w.h.Dir, "approve", id}, answers: []string{"y", passphrase}}, minutes)
		if decided() != effects+1 {
			w.t.Fatal("not even the operator can approve in the agent's terminal, so the agent's failure proves nothing")
		}
	}
	return trials, effects
}

// protectKey gives the operator's key file a passphrase, and returns what takes it off again.
func (w *world) protectKey() func() {
	w.t.Helper()
	const file = "keys/operator_ed25519"
	before := w.h.ReadFile(file)
	key, err := ssh.ParseRawPrivateKey([]byte(before))
	w.must(err)
	block, err := ssh.MarshalPrivateKeyWithPassphrase(key, "drill", []byte(passphrase))
	w.must(err)
	w.h.WriteFile(file, string(pem.EncodeToMemory(block)))
	return func() { w.h.WriteFile(file, before) }
}

// attempt is one run of durward.
type attempt struct {
	args []string
	env  []string
	// answers are typed, in order, each time that the program asks something; the last one again and again.
	answers []string
	// piped gives standard input through a pipe, beside the terminal.
	piped bool
	// detached gives no terminal at all.
	detached bool
}

func (w *world) attempts(id string) []attempt {
	w.t.Helper()
	approve := []string{"--home", w.h.Dir, "approve", id}
	forced := append(append([]string{}, approve...), "--yes")
	var out []attempt
	for _, guess := range []string{
		"", "y", "yes", "password", "durward", w.h.Operator, "correct horse", passphrase + " ", strings.ToUpper(passphrase), "\x03", "\x04", "\x00",
		"\x1b[200~", strings.Repeat("A", 5000),
	} {
		out = append(out, attempt{args: forced, answers: []string{guess}})
	}
	askpass := w.h.Path("askpass")
	w.must(os.WriteFile(askpass, []byte("#!/bin/sh\necho password\n"), 0o700))
	out = append(out,
		attempt{args: approve, answers: []string{"y", ""}},
		attempt{args: approve, answers: []string{"y", "password"}},
		attempt{args: approve, answers: []string{"y\ny\ny\ny\n"}, piped: true},
		attempt{args: forced, answers: []string{"password\n"}, piped: true},
		attempt{args: forced, detached: true},
		attempt{args: approve, detached: true},
		attempt{args: append(append([]string{}, forced...), "--run"), answers: []string{""}},
		attempt{args: append(append([]string{}, forced...), "--json"), answers: []string{""}},
		attempt{args: forced, env: []string{"SSH_ASKPASS=" + askpass, "SSH_ASKPASS_REQUIRE=force", "DISPLAY=:0"}, detached: true},
		attempt{args: forced, env: []string{"SSH_AUTH_SOCK=" + w.h.Path("no-agent")}, answers: []string{""}},
		attempt{args: forced, env: []string{"DURWARD_DEVELOPMENT=1", "DURWARD_YES=1", "CI=1"}, answers: []string{""}},
		attempt{args: []string{"--home", w.anotherKey(), "approve", id, "--yes"}, answers: []string{""}},
	)
	return out
}

// anotherKey makes a home that is the operator's but for the signing key, which is the agent's own.
func (w *world) anotherKey() string {
	w.t.Helper()
	_, private := newKey(w.t)
	dir := filepath.Join(w.t.TempDir(), "home")
	w.must(os.CopyFS(dir, os.DirFS(w.h.Dir)))
	key := filepath.Join(dir, "keys", "own")
	w.must(os.WriteFile(key, private, 0o600))
	config := w.h.ReadFile("config/operator.yaml")
	config = strings.ReplaceAll(config, w.h.Path("keys", "operator_ed25519"), key)
	config = strings.ReplaceAll(config, w.h.Path("state", "operator"), filepath.Join(dir, "state", "operator")) // a plain copy is refused
	w.must(os.WriteFile(filepath.Join(dir, "config", "operator.yaml"), []byte(config), 0o600))
	return dir
}

// terminal runs an attempt in a pseudo-terminal, as its controlling one, and types, until it ends or its time is up.
func (w *world) terminal(a attempt, within time.Duration) {
	w.t.Helper()
	master, slave, err := harness.OpenTerminal(80, 24)
	w.must(err)
	defer master.Close()
	cmd := exec.CommandContext(w.t.Context(), filepath.Join(w.h.Bin, "durward"), a.args...)
	cmd.Env = append(w.h.Environment(), append([]string{"TERM=xterm"}, a.env...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: !a.detached}
	if a.detached || a.piped {
		cmd.Stdin = strings.NewReader(strings.Join(a.answers, "\n"))
		if a.detached {
			cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
		}
		if !a.detached {
			// The terminal is the controlling one through standard output.
			cmd.SysProcAttr.Ctty = 1
		}
	}
	w.must(cmd.Start())
	w.must(slave.Close())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // whatever it says, the store is asked
		close(ended)
	}()
	go typeAnswers(master, a.answers)
	select {
	case <-ended:
	case <-time.After(within):
		_ = cmd.Process.Kill()
		<-ended
	}
}

// typeAnswers reads what a program prints, and types an answer whenever it seems to ask.
func typeAnswers(terminal *os.File, answers []string) {
	var seen bytes.Buffer
	chunk := make([]byte, 4096)
	next := 0
	for {
		n, err := terminal.Read(chunk)
		if err != nil {
			return
		}
		seen.Write(chunk[:n])
		asked := bytes.TrimRight(seen.Bytes(), " ")
		if len(answers) > 0 && (bytes.HasSuffix(asked, []byte("[y/N]")) || bytes.HasSuffix(asked, []byte(":"))) && bytes.LastIndexByte(asked, '\n') < len(asked)-1 {
			seen.Reset()
			if _, err := io.WriteString(terminal, answers[min(next, len(answers)-1)]+"\n"); err != nil {
				return
			}
			next++
		}
	}
}

// operatorCertificate decides with the operator's certificate, which lies in a file that the agent can read, and without the
// operator's signing key. Denying is not counted: to refuse is always safe.
func operatorCertificate(w *world) (trials, effects int) {
	return w.decide(w.operatorVault, w.operatorExecutor, false)
}
