package pty_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"durward.internal/services/operator/internal/pty"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// terminal is a person's: where they type, what programs read, and a check that its settings are as they were.
func terminal(t *testing.T) (person, tty *os.File, unchanged func()) {
	t.Helper()
	person, tty, err := pty.Open(80, 24)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(person.Close(), tty.Close())) })
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	must(t, err)
	return person, tty, func() {
		t.Helper()
		after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		must(t, err)
		if *after != *before {
			t.Errorf("the terminal was left as %+v, not %+v", after, before)
		}
	}
}

// TestAProgramHasATerminalOfItsOwn: it is asked and answers there, and once it has ended nothing of it, nor what it left running, has
// the terminal of whoever started it.
func TestAProgramHasATerminalOfItsOwn(t *testing.T) {
	person, tty, unchanged := terminal(t)

	cmd := exec.Command("sh", "-c", `tty; for fd in /proc/self/fd/* /proc/$$/fd/*; do readlink $fd; done
		printf 'Passphrase: \033[2J\302\233A' >/dev/tty; read answer; echo "read $answer" >&2
		trap '' HUP; sleep 60 & echo $! >&2`)
	var out, seen bytes.Buffer
	cmd.Stdout = &out
	must(t, first(person.WriteString("hello\n")))
	said, err := pty.Run(cmd, tty, &seen)
	must(t, err)
	lines := strings.Fields(said)
	t.Cleanup(func() { _ = exec.Command("kill", lines[len(lines)-1]).Run() }) // it may have ended

	if strings.Contains(out.String(), tty.Name()) || !strings.HasPrefix(out.String(), "/dev/pts/") {
		t.Errorf("its terminals, beside the starter's %s: %s", tty.Name(), out.String())
	}
	if said != seen.String() || !strings.Contains(said, "Passphrase: [2JA") || !strings.Contains(said, "read hello") {
		t.Errorf("it said %q, and shown was %q", said, seen.String())
	}
	unchanged()
	must(t, first(person.WriteString("yes\n")))
	if answer, err := bufio.NewReader(tty).ReadString('\n'); err != nil || answer != "yes\n" {
		t.Errorf("typed after its end, and read: %q, %v", answer, err)
	}
}

func first(_ int, err error) error { return err }

// TestAProgramThatCannotStart leaves the terminal as it was.
func TestAProgramThatCannotStart(t *testing.T) {
	_, tty, unchanged := terminal(t)
	if _, err := pty.Run(exec.Command(t.TempDir()+"/none"), tty, os.Stderr); err == nil {
		t.Error("a program that is not there ran")
	}
	unchanged()
}

// TestWithoutATerminal: what it asks for is read from where its starter reads.
func TestWithoutATerminal(t *testing.T) {
	var seen bytes.Buffer
	said, err := pty.Run(exec.Command("sh", "-c", `read answer; echo "read $answer" >&2; exit 3`), strings.NewReader("hello\n"), &seen)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || said != "read hello\n" || seen.String() != said {
		t.Errorf("it said %q, shown was %q: %v", said, seen.String(), err)
	}
}
