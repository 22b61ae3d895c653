//go:build real

package real

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"durward.internal/deploy/e2e/harness"
)

// screen is durward at a terminal.
type screen struct {
	*harness.Screen
	t *testing.T
}

// signs reads the sheet to its end, and signs it.
func (s *screen) signs() {
	s.t.Helper()
	s.Sees("You sign: ")
	s.Keys("v")
	s.Sees("read to its end")
	time.Sleep(500 * time.Millisecond) // what is on the screen for less than that is not signed
	s.Keys("G")
	s.Sees("sign it")
	s.Keys("y")
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
	if !harness.HasScreens(t) {
		t.Skip("tmux is not installed: scripts/real.sh terminal")
	}
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
			s := &screen{harness.OpenScreen(t, size[0], size[1], filepath.Join(h.Bin, "durward"), "--home", h.Dir, "tui"), t}
			first := s.Sees("start_service", harness.DemoService, "GPU 0", "PANIC")
			for _, part := range []string{"#", "start_service", "cursor", "── services", "GPU # "} {
				if !strings.Contains(masked(first), part) {
					t.Errorf("the screen does not hold %q:\n%s", part, masked(first))
				}
			}
			s.onlyText(size)
			s.Keys("Enter")
			whole := s.Sees("agent says", "esc back", "untrusted", "lines 1 to")
			for page := whole; strings.Contains(page, " below"); whole += page { // longer than a small screen
				s.Keys("Space")
				before := where.FindString(page)
				harness.Eventually(t, "the next page", func() error {
					if page = s.Text(); where.FindString(page) == before {
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
			s.Keys("Escape")
			s.Sees("── services") // a key that follows at once would be another one, with Alt

			s.Keys("a")
			s.signs()
			s.Sees("approved")
			if e := agent.Call("wait_operation", asked.Next.Arguments); e.Status != "ok" || h.Starts(harness.DemoService) != 1 {
				t.Errorf("after the approval: %s", e.Raw)
			}
			stop := agent.Call("stop_service", map[string]any{"service_id": harness.DemoService})
			s.Sees("stop_service")
			s.Keys("d")
			s.Keys("-l", "not while I work")
			s.Keys("Enter")
			s.Sees("denied")
			if e := agent.Call("wait_operation", stop.Next.Arguments); e.Status != "denied" {
				t.Errorf("after the denial: %s", e.Raw)
			}

			// Every size in between is drawn within itself.
			for _, other := range [][2]int{{40, 12}, {132, 43}, size} {
				s.Tmux("resize-window", "-x", fmt.Sprint(other[0]), "-y", fmt.Sprint(other[1]))
				s.Sees("PANIC")
				s.onlyText(other)
			}

			h.Process(harness.Vault).Kill()
			s.Sees("vault: ")
			s.onlyText(size)
			h.StartProcess(harness.Vault)
			harness.Eventually(t, "the screen has the vault back", func() error {
				if text := s.Text(); strings.Contains(text, "vault: ") {
					return fmt.Errorf("it does not:\n%s", text)
				}
				return nil
			})
			if size[0] == 80 {
				for range 2 { // what is wiped off comes back, and not only after a change of size
					s.Tmux("send-keys", "-R")
					s.Sees("PANIC")
				}
				s.onlyText(size)
			}
			s.Keys("p", "p", "p")
			s.Sees("HALTED", "durward resume")
			if out := h.Run("", "start", harness.DemoService, "--yes"); out.Code != 4 {
				t.Errorf("after the panic: exit code %d: %s", out.Code, out.Stderr)
			}
			s.Keys("q")
			harness.Eventually(t, "the screen is left", func() error {
				if s.There() {
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
	text := s.Text()
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
	if title := s.Tmux("display-message", "-p", "#{pane_title}"); strings.Contains(title, "owned") {
		s.t.Errorf("an agent named the terminal %q", title)
	}
}
