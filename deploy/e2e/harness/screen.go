package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Screen is a terminal of tmux, which is a program's screen as a person sees it.
type Screen struct {
	t      testing.TB
	socket string
}

// HasScreens reports whether OpenScreen can be called: tmux is installed. With REQUIRE_TMUX=1 the test fails where it is not.
func HasScreens(t testing.TB) bool {
	t.Helper()
	_, err := exec.LookPath("tmux")
	if err != nil && os.Getenv("REQUIRE_TMUX") == "1" {
		t.Fatal(err)
	}
	return err == nil
}

// OpenScreen starts a program in a terminal of a size, until the test ends or Close.
func OpenScreen(t testing.TB, columns, rows int, program ...string) *Screen {
	t.Helper()
	s := &Screen{t, filepath.Join(t.TempDir(), "tmux")}
	s.Tmux(append([]string{"-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows)}, program...)...)
	t.Cleanup(s.Close)
	return s
}

// Close ends the program. It may have ended, and tmux with it.
func (s *Screen) Close() { _ = s.command("kill-server").Run() }

// There reports whether the program has not ended.
func (s *Screen) There() bool { return s.command("has-session").Run() == nil }

func (s *Screen) command(args ...string) *exec.Cmd {
	cmd := exec.Command("tmux", append([]string{"-S", s.socket}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(s.socket), "TERM=xterm-256color", "LANG=C.UTF-8"}
	return cmd
}

// Tmux is a command of tmux, and returns what it says.
func (s *Screen) Tmux(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

// Text is what stands on the screen.
func (s *Screen) Text() string {
	s.t.Helper()
	return s.Tmux("capture-pane", "-p")
}

// Keys presses keys, by tmux's names.
func (s *Screen) Keys(keys ...string) {
	s.t.Helper()
	s.Tmux(append([]string{"send-keys"}, keys...)...)
}

// Sees waits until texts stand on the screen, one after the other, and returns the last screen.
func (s *Screen) Sees(texts ...string) string {
	s.t.Helper()
	var last string
	for _, text := range texts {
		Eventually(s.t, fmt.Sprintf("%q is on the screen", text), func() error {
			if last = s.Text(); !strings.Contains(last, text) {
				return fmt.Errorf("it is not:\n%s", last)
			}
			return nil
		})
	}
	return last
}
