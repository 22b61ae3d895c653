package root

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/pty"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/statement"
)

// terminal is a real pseudo-terminal; a goroutine keeps what the program draws.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	drawn  lockedBuffer
	// kind is what TERM says that it is.
	kind string
}

func openTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	master, slave, err := pty.Open(width, height)
	must(t, err)
	term := &terminal{t: t, master: master, slave: slave, kind: "xterm-256color"}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			// It is a buffer: writing to it cannot fail.
			_, _ = term.drawn.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = slave.Close()
		_ = master.Close()
	})
	return term
}

func (x *terminal) types(s string) {
	x.t.Helper()
	if _, err := x.master.WriteString(s); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) waitFor(text string) {
	x.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(x.drawn.String(), text); time.Sleep(5 * time.Millisecond) { // a terminal's text has no event
		if time.Now().After(deadline) {
			x.t.Fatalf("%q never came:\n%q", text, x.drawn.String())
		}
	}
}

// runAt runs durward at the terminal; the channel tells its exit code.
func (w *world) runAt(ctx context.Context, x *terminal, args ...string) <-chan int {
	code := make(chan int, 1)
	go func() {
		code <- Main(ctx, args, cli.Streams{In: x.slave, Out: x.slave, Err: x.slave,
			Getenv: func(name string) string {
				return map[string]string{"TERM": x.kind, "DURWARD_HOME": w.home.Dir}[name]
			}, Version: "test"})
	}()
	return code
}

func (x *terminal) ends(code <-chan int, want int) {
	x.t.Helper()
	select {
	case got := <-code:
		if got != want {
			x.t.Errorf("exit code %d, want %d:\n%q", got, want, x.drawn.String())
		}
	case <-time.After(15 * time.Second):
		x.t.Fatalf("it does not end:\n%q", x.drawn.String())
	}
}

// TestDangerousModeTakesAPerson: the phrase, the signature, the wait and the second confirmation; what was typed before a
// question is no answer to it.
func TestDangerousModeTakesAPerson(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withSessions()
	for _, c := range []struct{ session, want string }{
		{bearerSession, "key-bound"}, {chatSession, "no dangerous mode over messaging"}, {"s-nobody", "no open session"},
	} {
		x := openTerminal(t, 120, 40)
		x.ends(w.runAt(t.Context(), x, "dangerous", "enable", "--session", c.session), map[bool]int{true: cli.ExitUsage, false: cli.ExitDenied}[c.session == "s-nobody"])
		x.waitFor(c.want)
	}
	x := openTerminal(t, 120, 40)
	code := w.runAt(t.Context(), x, "dangerous", "enable", "--session", "aaaa", "--for", "30m")
	x.waitFor("Type this to go on")
	x.types("dangerous claude-code\n")
	x.ends(code, cli.ExitDenied)
	if len(w.signed)+len(w.calls) > 0 {
		t.Fatalf("signed %v, called %q", w.signed, w.calls)
	}
	x = openTerminal(t, 120, 40)
	began := time.Now()
	code = w.runAt(t.Context(), x, "dangerous", "enable", "--session", "aaaa", "--for", "30m")
	x.waitFor("Type this to go on")
	x.waitFor("DANGEROUS MODE for claude-code's session " + boundSession)
	x.types("dangerous claude-code aaaabb\n")
	x.waitFor("Asking again in 5 s")
	x.types("yes\n")
	x.waitFor("put it into force?")
	if took := time.Since(began); took < 5*time.Second {
		t.Errorf("it asked again after %s", took)
	}
	time.Sleep(200 * time.Millisecond) // nothing tells that nothing happens; an answer would be taken at once
	w.mu.Lock()
	if strings.Contains(strings.Join(w.calls, " "), "confirm") {
		t.Error("what was typed before the question confirmed it")
	}
	w.mu.Unlock()
	x.types("yes\n")
	x.ends(code, cli.ExitOK)
	x.waitFor("in force")
	x.waitFor("DANGEROUS MODE: claude-code")
	if len(w.signed) != 2 || w.signed[0].Kind != statement.KindDangerous || w.signed[0].Session != boundSession || w.signed[0].Uses != 200 ||
		w.signed[1].Kind != statement.KindConfirm {
		t.Fatalf("signed %+v", w.signed)
	}
	first, err := w.signed[0].Marshal()
	must(t, err)
	digest := canonical.Digest(first)
	if got := strings.Join(w.calls, ", "); got != "propose, confirm "+canonical.FormatDigest(digest[:]) {
		t.Errorf("called %s", got)
	}
}

// TestANoWithdrawsDangerousMode: a no, and Ctrl-C, take back what was signed and proposed, at the vault and at the executor.
func TestANoWithdrawsDangerousMode(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*terminal, context.CancelFunc){
		"no": func(x *terminal, _ context.CancelFunc) {
			x.waitFor("put it into force?")
			x.types("no\n")
		},
		"Ctrl-C while it waits": func(_ *terminal, interrupt context.CancelFunc) { interrupt() },
		"Ctrl-C at the question": func(x *terminal, interrupt context.CancelFunc) {
			x.waitFor("put it into force?")
			interrupt()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.withSessions()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			x := openTerminal(t, 120, 40)
			code := w.runAt(ctx, x, "dangerous", "enable", "--session", "aaaa", "--for", "30m")
			x.waitFor("Type this to go on")
			x.types("dangerous claude-code aaaabb\n")
			x.waitFor("Asking again in")
			leave(x, interrupt)
			<-code
			w.mu.Lock()
			defer w.mu.Unlock()
			if got := strings.Join(w.calls, ", "); got != "propose, revoke "+standingID+" , ended 1 at the executor" {
				t.Errorf("called %q", got)
			}
		})
	}
}

// TestWhatWasTypedBeforeIsNoAnswer: a yes that was typed ahead signs nothing.
func TestWhatWasTypedBeforeIsNoAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withSessions()
	w.asks("start_service", `{"service_id":"chat"}`)
	x := openTerminal(t, 120, 40)
	x.types("y\n")
	code := w.runAt(t.Context(), x, "approve", "01234567")
	x.waitFor("Sign and approve? (v: see it whole) [y/N]")
	time.Sleep(200 * time.Millisecond) // nothing tells that nothing happens; an answer would be taken at once
	w.mu.Lock()
	if len(w.signed) > 0 {
		t.Error("what was typed before the question answered it")
	}
	w.mu.Unlock()
	x.types("n\n")
	x.ends(code, cli.ExitDenied)
}

// TestAYesCountsForWhatWasOnTheScreen: where the terms do not fit, y signs only after v has shown everything.
func TestAYesCountsForWhatWasOnTheScreen(t *testing.T) {
	t.Parallel()
	for _, height := range []uint16{24, 7} {
		w := newWorld(t)
		w.withSessions()
		w.asks("start_service", `{"service_id":"chat"}`)
		x := openTerminal(t, 80, height)
		code := w.runAt(t.Context(), x, "approve", "01234567")
		if height < 24 {
			for range 2 {
				x.waitFor("before you sign. [v/N]")
				x.drawn.Reset()
				x.types("y\n")
			}
			x.waitFor("before you sign. [v/N]")
			if w.signedNow() > 0 || strings.Contains(x.drawn.String(), `"kind": "approve"`) {
				t.Fatalf("signed, or shown whole, by a yes:\n%s", x.drawn.String())
			}
			x.drawn.Reset()
			x.types("v\n")
			x.waitFor(`"kind": "approve"`)
		} else if x.waitFor("You sign: start_service on service chat, once, until"); strings.Contains(x.drawn.String(), `"kind": "approve"`) {
			t.Errorf("one screen holds the statement:\n%s", x.drawn.String())
		}
		x.waitFor("[y/N]")
		x.types("y\n")
		x.waitFor("approved.")
		x.waitFor("Carry it out from here now?")
		x.types("n\n")
		x.ends(code, cli.ExitOK)
		if w.signedNow() != 1 {
			t.Errorf("at %d lines %d statements were signed", height, w.signedNow())
		}
	}
}

func (w *world) signedNow() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.signed)
}

// TestSeveralAreApprovedTogether: one question for all that is WRITE, and one for each that is DESTRUCTIVE; what is refused keeps none
// of the others back. The question counts what is shown, and not what the executor has no answer for.
func TestSeveralAreApprovedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withSessions()
	plan := fmt.Sprintf(`{"mode_id":"coding","plan_digest":"%s"}`, w.digest())
	for i, c := range []struct{ tool, arguments, session string }{
		{"start_service", `{"service_id":"chat"}`, boundSession}, {"stop_service", `{"service_id":"chat"}`, boundSession},
		{"switch_mode", plan, boundSession}, {"switch_mode", plan, boundSession}, {"sleep_service", `{"service_id":"chat"}`, bearerSession},
		{"start_service", `{"service_id":"gone"}`, boundSession},
	} {
		op := w.asks(c.tool, c.arguments)
		op.OperationId, op.Session = strings.Repeat(strconv.Itoa(i+1), 32), c.session
	}
	x := openTerminal(t, 200, 60)
	code := w.runAt(t.Context(), x, "approve", "--all-of", boundSession[:8])
	x.waitFor("Sign and approve these 2? (v: see it whole) [y/N]")
	if drawn := x.drawn.String(); !strings.Contains(drawn, "start_service") || !strings.Contains(drawn, "stop_service") || strings.Contains(drawn, "switch_mode") {
		t.Errorf("the first question is about\n%s", drawn)
	}
	x.types("y\n")
	for _, answer := range []string{"n\n", "y\n"} {
		x.waitFor("Sign and approve? (v: see it whole) [y/N]")
		x.drawn.Reset()
		x.types(answer)
	}
	x.ends(code, cli.ExitDenied)
	w.mu.Lock()
	defer w.mu.Unlock()
	var operations []string
	for _, st := range w.signed {
		operations = append(operations, st.Operation[:1])
	}
	if got := strings.Join(operations, ""); got != "124" {
		t.Errorf("signed for %s, want the two and the second switch", got)
	}
	for _, args := range [][]string{{"approve"}, {"approve", "11111111", "--all-of", boundSession}, {"approve", "11111111", "22222222", "--scope"}, {"approve", "--all-of", "s-nobody"}} {
		if r := w.runLocked(args...); r.code != cli.ExitUsage {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// What somebody else decides on while several are read keeps none of those back that are signed with it.
func TestOneThatIsDecidedMeanwhileKeepsNoneBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withSessions()
	for i, tool := range []string{"start_service", "stop_service", "sleep_service"} {
		w.asks(tool, `{"service_id":"chat"}`).OperationId = strings.Repeat(strconv.Itoa(i+1), 32)
	}
	w.decided = strings.Repeat("2", 32)
	got := w.run("approve", "11111111", "22222222", "33333333", "--yes")
	states := ""
	for _, op := range w.running {
		states += op.GetState().String()[len("OPERATION_STATE_"):] + " "
	}
	if got.code != cli.ExitDenied || states != "APPROVED PENDING APPROVED " || strings.Count(got.out, "approved.") != 2 ||
		!strings.Contains(got.err, ": this operation was denied already") {
		t.Errorf("%s\n%+v", states, got)
	}
}

// runLocked is run for a test that holds the world.
func (w *world) runLocked(args ...string) ran {
	w.mu.Unlock()
	defer w.mu.Lock()
	return w.run(args...)
}

// TestATerminalThatOnlyPrints: what TERM=dumb names is told no place and no colour; what would be drawn are lines there.
func TestATerminalThatOnlyPrints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dumb := func() *terminal {
		x := openTerminal(t, 80, 24)
		x.kind = "dumb"
		return x
	}
	x := dumb()
	x.ends(w.runAt(t.Context(), x, "tui"), cli.ExitDenied)
	x.waitFor("there is no terminal to draw on")
	for command, line := range map[string]string{"watch": "chat                     running", "services -w": "chat                     running", "approvals --watch": "BX6A  done"} {
		ctx, cancel := context.WithCancel(t.Context())
		x := dumb()
		code := w.runAt(ctx, x, strings.Fields(command)...)
		x.waitFor(line)
		cancel()
		x.ends(code, cli.ExitOK)
		if drawn := x.drawn.String(); strings.Contains(drawn, "\x1b") {
			t.Errorf("%s: it is told %q", command, drawn)
		}
	}
}

// TestPlacesAreDim: the lines of a difference that say where it stands look like nothing else.
func TestPlacesAreDim(t *testing.T) {
	a, _, _ := clitest.Printing(false)
	x := openTerminal(t, 80, 24)
	a.Out = output.New(x.slave, x.slave, func(string) string { return "" })
	a.ShowPlan(&signedchange.Plan{Name: "tools.yaml", Path: "/x", Before: []byte("a\n@ 1\n"), After: []byte("b\n@ 1\n")})
	x.waitFor("@ 1")
	if drawn := x.drawn.String(); !strings.Contains(drawn, a.Out.Dim(" @ 1")) || strings.Contains(drawn, a.Out.Dim("-a")) {
		t.Errorf("%q", drawn)
	}
}

// protect puts a passphrase on the operator's key.
func (w *world) protect(t *testing.T, passphrase string) {
	t.Helper()
	cfg, err := w.home.Load()
	must(t, err)
	private, _, err := signingkey.Generate("alice", []byte(passphrase))
	must(t, err)
	testfile.Write(t, cfg.SigningKey, private)
}

// TestScreenAtATerminal drives the whole screen in a real pseudo-terminal: look, sign with a passphrase, panic, leave.
func TestScreenAtATerminal(t *testing.T) {
	for _, size := range [][2]uint16{{80, 24}, {200, 60}} {
		w := newWorld(t)
		w.withSessions()
		w.protect(t, "open sesame")
		w.asks("start_service", `{"service_id":"chat"}`)
		w.stands(statement.KindDangerous, boundSession)
		x := openTerminal(t, size[0], size[1])
		code := w.runAt(t.Context(), x, "tui")
		for _, text := range []string{"start_service", "services", "GPU 0", "DANGEROUS MODE"} {
			x.waitFor(text)
		}
		x.types("a")
		x.waitFor("You sign: ")
		x.types("v")
		x.waitFor("The statement that you sign")
		time.Sleep(500 * time.Millisecond) // what was on the screen for less is not signed
		x.types("G")
		x.waitFor("sign it")
		x.types("y")
		x.waitFor("Passphrase")
		x.types("open sesame\r")
		x.waitFor("approved.")
		x.waitFor("open 4:5")
		x.types("ppp")
		x.waitFor("vault halted, epoch 4")
		x.types("q")
		x.ends(code, cli.ExitOK)
		if strings.Contains(x.drawn.String(), "sesame") {
			t.Error("the passphrase was drawn")
		}
		if strings.Contains(x.drawn.String(), "\x1b[2J\x1b[2J") || strings.Contains(x.drawn.String(), "code\x1b[2J") {
			t.Error("a hostile name reached the terminal")
		}
		w.mu.Lock()
		if len(w.signed) != 1 || w.signed[0].Kind != statement.KindApprove {
			t.Errorf("signed %v", w.signed)
		}
		w.mu.Unlock()
	}
}

// TestWatchingApprovalsAtATerminal: the same keys, for what waits alone; and Ctrl-C ends it.
func TestWatchingApprovalsAtATerminal(t *testing.T) {
	w := newWorld(t)
	w.asks("start_service", `{"service_id":"chat"}`)
	x := openTerminal(t, 80, 24)
	code := w.runAt(t.Context(), x, "approvals", "--watch")
	x.waitFor("start_service")
	x.types("dnot now\r")
	x.waitFor("denied.")
	x.types("\x03")
	x.ends(code, cli.ExitOK)
	if got := strings.Join(w.calls, ","); got != "deny not now" {
		t.Errorf("called %s", got)
	}
	if strings.Contains(x.drawn.String(), "services") {
		t.Error("it shows more than what waits")
	}
}

// TestScreenOutlivesTheVault: a vault that goes away is said, and the screen goes on; nothing is left running behind it.
func TestScreenOutlivesTheVault(t *testing.T) {
	w := newWorld(t)
	w.asks("start_service", `{"service_id":"chat"}`)
	x := openTerminal(t, 80, 24)
	ctx, cancel := context.WithCancel(t.Context())
	code := w.runAt(ctx, x, "tui")
	x.waitFor("start_service")
	w.stopVault()
	x.waitFor("vault: ")
	x.types("j")
	w.mu.Lock()
	w.running = []*vaultv1.Operation{}
	w.mu.Unlock()
	w.startVault()
	x.waitFor("Nothing waits.")
	cancel()
	x.ends(code, cli.ExitOK)
}
