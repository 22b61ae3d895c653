//go:build real

package real

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"durward.internal/deploy/e2e/harness"
)

// screen is a terminal of tmux, which is a program's screen as a person sees it.
type screen struct {
	t      *testing.T
	socket string
}

// openScreen starts a program in a terminal of a size.
func openScreen(t *testing.T, columns, rows int, program ...string) *screen {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("REQUIRE_TMUX") == "1" {
			t.Fatal(err)
		}
		t.Skip("tmux is not installed: scripts/real.sh terminal")
	}
	s := &screen{t, filepath.Join(t.TempDir(), "tmux")}
	s.tmux(append([]string{"-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows)}, program...)...)
	// The server ends by itself when its program has ended.
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", s.socket, "kill-server").Run() })
	return s
}

func (s *screen) tmux(args ...string) string {
	s.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", s.socket}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(s.socket), "TERM=xterm-256color", "LANG=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

// text is what stands on the screen.
func (s *screen) text() string {
	s.t.Helper()
	return s.tmux("capture-pane", "-p")
}

func (s *screen) keys(keys ...string) {
	s.t.Helper()
	s.tmux(append([]string{"send-keys"}, keys...)...)
}

// sees waits until a text stands on the screen.
func (s *screen) sees(texts ...string) string {
	s.t.Helper()
	var last string
	for _, text := range texts {
		harness.Eventually(s.t, fmt.Sprintf("%q is on the screen", text), func() error {
			if last = s.text(); !strings.Contains(last, text) {
				return fmt.Errorf("it is not:\n%s", last)
			}
			return nil
		})
	}
	return last
}

// signs reads the sheet to its end, and signs it.
func (s *screen) signs() {
	s.t.Helper()
	s.sees("You sign: ")
	s.keys("v")
	s.sees("read to its end")
	time.Sleep(500 * time.Millisecond) // what is on the screen for less than that is not signed
	s.keys("G")
	s.sees("sign it")
	s.keys("y")
}

// where says which lines of a longer text are on the screen.
var where = regexp.MustCompile(`lines \d+ to \d+ of \d+`)

// changing is what differs from run to run.
var changing = regexp.MustCompile(`s-[a-z2-7]{4,}|/\S+|[0-9a-f]{4}·[0-9a-f]{4}|[0-9A-Z]{4}\b|[0-9]+`)

// masked is a screen without what differs from run to run.
func masked(text string) string { return changing.ReplaceAllString(text, "#") }

// TestScreenInATerminal: a person works with durward tui in a real terminal: looks, approves, denies, resizes, loses the vault and
// gets it back, and halts everything with one key. What an agent calls itself and says is text.
func TestScreenInATerminal(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 60}} {
		t.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(t *testing.T) {
			h := harness.Start(t, harness.Options{Catalog: harness.ModesCatalog})
			h.AddKeyBound("cursor", "--tier", "DESTRUCTIVE")
			agent := h.ConnectStdio("cursor")
			hostile := map[string]any{"service_id": harness.DemoService, "reason": "\x1b[2J\x1b]0;owned\x07 I\u202e am\u200b y\u0430ur \U000e0041friend " + strings.Repeat("x", 600)}
			asked := agent.Call("start_service", hostile)
			if asked.Status != "pending_approval" {
				t.Fatalf("%s", asked.Raw)
			}
			s := openScreen(t, size[0], size[1], filepath.Join(h.Bin, "durward"), "--home", h.Dir, "tui")
			first := s.sees("start_service", harness.DemoService, "GPU 0", "PANIC")
			for _, part := range []string{"#", "start_service", "cursor", "── services", "GPU # "} {
				if !strings.Contains(masked(first), part) {
					t.Errorf("the screen does not hold %q:\n%s", part, masked(first))
				}
			}
			s.onlyText(size)
			s.keys("Enter")
			whole := s.sees("agent says", "esc back", "untrusted", "lines 1 to")
			for page := whole; strings.Contains(page, "more lines below"); whole += page { // longer than a small screen
				s.keys("Space")
				before := where.FindString(page)
				harness.Eventually(t, "the next page", func() error {
					if page = s.text(); where.FindString(page) == before {
						return fmt.Errorf("it is not:\n%s", page)
					}
					return nil
				})
				s.onlyText(size)
			}
			if !strings.Contains(whole, "Arguments, whole") {
				t.Errorf("the arguments are not on the card:\n%s", whole)
			}
			if strings.ContainsRune(whole, '\u202e') || strings.ContainsRune(whole, '\u200b') {
				t.Errorf("invisible characters are on the screen:\n%q", whole)
			}
			s.onlyText(size)
			s.keys("Escape")
			s.sees("── services") // a key that follows at once would be another one, with Alt

			s.keys("a")
			s.signs()
			s.sees("approved")
			if e := agent.Call("wait_operation", asked.Next.Arguments); e.Status != "ok" || h.Starts(harness.DemoService) != 1 {
				t.Errorf("after the approval: %s", e.Raw)
			}
			stop := agent.Call("stop_service", map[string]any{"service_id": harness.DemoService})
			s.sees("stop_service")
			s.keys("d")
			s.keys("-l", "not while I work")
			s.keys("Enter")
			s.sees("denied")
			if e := agent.Call("wait_operation", stop.Next.Arguments); e.Status != "denied" {
				t.Errorf("after the denial: %s", e.Raw)
			}

			// Every size in between is drawn within itself.
			for _, other := range [][2]int{{40, 12}, {132, 43}, size} {
				s.tmux("resize-window", "-x", fmt.Sprint(other[0]), "-y", fmt.Sprint(other[1]))
				s.sees("PANIC")
				s.onlyText(other)
			}

			h.Process(harness.Vault).Kill()
			s.sees("vault: ")
			s.onlyText(size)
			h.StartProcess(harness.Vault)
			harness.Eventually(t, "the screen has the vault back", func() error {
				if text := s.text(); strings.Contains(text, "vault: ") {
					return fmt.Errorf("it does not:\n%s", text)
				}
				return nil
			})
			s.keys("p", "p", "p")
			s.sees("HALTED", "durward resume")
			if out := h.Run("", "start", harness.DemoService, "--yes"); out.Code != 4 {
				t.Errorf("after the panic: exit code %d: %s", out.Code, out.Stderr)
			}
			s.keys("q")
			harness.Eventually(t, "the screen is left", func() error {
				if exec.Command("tmux", "-S", s.socket, "has-session").Run() == nil {
					return errors.New("it is still there") // drawn no more: the server may end before it is asked for its screen
				}
				return nil
			})
		})
	}
}

// onlyText: the screen is within its size, and holds nothing that is not to be seen.
func (s *screen) onlyText(size [2]int) {
	s.t.Helper()
	text := s.text()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > size[1] {
		s.t.Errorf("%d lines on a screen of %d", len(lines), size[1])
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > size[0] {
			s.t.Errorf("a line of %d on a screen of %d: %q", n, size[0], line)
		}
		for _, r := range line {
			if !unicode.IsPrint(r) {
				s.t.Errorf("%U is on the screen: %q", r, line)
			}
		}
	}
	if title := s.tmux("display-message", "-p", "#{pane_title}"); strings.Contains(title, "owned") {
		s.t.Errorf("an agent named the terminal %q", title)
	}
}
