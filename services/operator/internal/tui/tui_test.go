package tui

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
)

const executorID = "spiffe://durward.local/executor/local"

var update = flag.Bool("update", false, "write the golden screens anew")

//go:embed testdata
var testdata embed.FS

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// desk is a backend that notes what it is asked for.
type desk struct {
	calls      []string
	passphrase bool
	held       bool
	signErr    error
	cardReason string
	// plan is a step of the executor's plan before its last.
	plan []string
	// logs are what a service's log says.
	logs [][]string
}

func (d *desk) note(format string, args ...any) {
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}

func (d *desk) Follow(context.Context, func(tea.Msg)) {}

func (d *desk) Card(_ context.Context, op *vaultv1.Operation, number string) approval.Card {
	if d.cardReason != "" {
		return approval.Card{Number: number, Operation: op, Problem: d.cardReason}
	}
	return approval.Card{Number: number, Operation: op, Preview: d.preview()}
}

// preview is what the executor says now.
func (d *desk) preview() *executorv1.PreviewCallResponse {
	p := preview()
	p.Plan = append(slices.Clone(d.plan), p.Plan...)
	return p
}

func preview() *executorv1.PreviewCallResponse {
	return &executorv1.PreviewCallResponse{Epoch: 3, Audience: executorID, Plan: []string{"start demo-chat"},
		Subject: &callv1.Subject{Label: "service demo-chat", Entry: []byte(`{"argv":["/usr/bin/demo","a","b","c","d","e"],"id":"demo-chat"}`)}}
}

func (d *desk) signer() approval.Signer {
	id, err := identity.Parse(executorID)
	if err != nil {
		panic(err)
	}
	return approval.Signer{Operator: "alice", Executor: id, Now: testNow}
}

func (d *desk) Approve(_ context.Context, op *vaultv1.Operation, number string) (*Proposal, error) {
	d.note("approve %s", op.GetOperationId()[:4])
	st, err := d.signer().Approve(op, preview())
	if err != nil {
		return nil, err
	}
	return d.proposal(op, number, approval.DocumentOf(st, preview().GetSubject().GetEntry())), nil
}

func (d *desk) Scope(_ context.Context, op *vaultv1.Operation, number string, w approval.Within) (*Proposal, error) {
	d.note("scope %s %s %d %v %v %v", op.GetOperationId()[:4], w.For, w.Uses, w.Free, w.Tools, w.Any)
	scope, err := approval.NewScope(op, w)
	if err != nil {
		return nil, err
	}
	st, err := d.signer().Scope(scope, []*executorv1.PreviewCallResponse{preview()})
	if err != nil {
		return nil, err
	}
	return d.proposal(op, number, approval.ScopeSheet(st, []*executorv1.PreviewCallResponse{preview()})), nil
}

func (d *desk) proposal(op *vaultv1.Operation, number string, document approval.Document) *Proposal {
	card := approval.Card{Number: number, Operation: op, Preview: d.preview()}
	document.About = card.Sheet(testNow)
	return &Proposal{Number: number, Document: document, Card: card}
}

func (d *desk) Deny(_ context.Context, id, reason string) error {
	d.note("deny %s %s", id[:4], reason)
	return nil
}

func (d *desk) Mute(_ context.Context, principal string, length time.Duration) error {
	d.note("mute %s %s", principal, length)
	return nil
}

func (d *desk) Act(_ context.Context, tool, service string) (*Proposal, error) {
	d.note("act %s %s", tool, service)
	call, err := approval.NewCall(tool, []byte(`{"service_id":"`+service+`"}`))
	if err != nil {
		return nil, err
	}
	st, err := d.signer().Command(call, preview(), 3)
	if err != nil {
		return nil, err
	}
	document := approval.DocumentOf(st, preview().GetSubject().GetEntry())
	document.About = []approval.Line{{Kind: approval.Heading, Text: "WRITE  " + tool + " service_id=" + service}}
	return &Proposal{Number: tool + " " + service, Document: document, Then: func(context.Context) (string, error) {
		d.note("then %s", service)
		return service + " is well", nil
	}}, nil
}

func (d *desk) Logs(_ context.Context, service string, tell func([]string)) error {
	d.note("logs %s", service)
	for _, lines := range d.logs {
		tell(lines)
	}
	return nil
}

func (d *desk) Revoke(_ context.Context, id string) error {
	d.note("revoke %s", id[:4])
	return nil
}

func (d *desk) Halt(context.Context) []Halted {
	d.note("halt")
	return []Halted{{Process: "vault", Epoch: 4}, {Process: "executor", Problem: "it did not answer\x1b[2J in time"}}
}

func (d *desk) NeedsPassphrase() (bool, error) { return d.passphrase && !d.held, nil }

func (d *desk) Sign(_ context.Context, p *Proposal, passphrase []byte) (string, error) {
	d.note("sign %s %s %s", p.Document.Statement.Kind, p.Number, passphrase)
	return "signed", d.signErr
}

func (d *desk) Held() (time.Time, bool) { return testNow.Add(4 * time.Minute), d.held }

func (d *desk) Lock() { d.held = false; d.note("lock") }

// stage is a screen that is driven by hand.
type stage struct {
	t     *testing.T
	m     *Model
	d     *desk
	clock time.Time
	quit  bool
	// suspended: Ctrl-Z gave the terminal back.
	suspended bool
}

func newStage(t *testing.T, width, height int) *stage {
	t.Helper()
	s := &stage{t: t, d: &desk{}, clock: testNow}
	s.m = New(t.Context(), Config{Backend: s.d, Now: func() time.Time { return s.clock }})
	s.send(tea.WindowSizeMsg{Width: width, Height: height})
	return s
}

// The whole screen is drawn anew every five seconds, and two after a change of size.
func TestRepaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 80, 24)
		var at []int
		for second := range 14 {
			if second == 9 {
				s.send(tea.WindowSizeMsg{Width: 80, Height: 25})
			}
			_, cmd := s.m.Update(tick(testNow))
			if both, ok := cmd().(tea.BatchMsg); ok && both[1]() == tea.ClearScreen() {
				at = append(at, second+1)
			}
		}
		if want := []int{2, 7, 11}; !slices.Equal(at, want) {
			t.Errorf("drawn anew after %v seconds, want %v", at, want)
		}
	})
}

// send passes a message, and what its commands answer, as the program would.
func (s *stage) send(msg tea.Msg) {
	s.t.Helper()
	_, cmd := s.m.Update(msg)
	s.run(cmd)
	s.check()
}

func (s *stage) run(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case tea.BatchMsg:
		for _, c := range msg {
			s.run(c)
		}
	case tea.QuitMsg:
		s.quit = true
	case tea.SuspendMsg:
		s.suspended = true
	case tick, nil:
	default:
		_, next := s.m.Update(msg)
		s.run(next)
	}
}

// check holds every screen to its size, and to holding nothing that a terminal obeys but our own colours.
func (s *stage) check() {
	s.t.Helper()
	lines := s.m.screen()
	if len(lines) > s.m.height {
		s.t.Fatalf("%d lines on a screen of %d", len(lines), s.m.height)
	}
	for _, line := range lines {
		if w := max(ansi.StringWidth(line), ansi.StringWidthWc(line)); w > s.m.width {
			s.t.Fatalf("a line of %d on a screen of %d: %q", w, s.m.width, line)
		}
		if strings.ContainsFunc(ansi.Strip(line), commands) || !onlyColours(line) {
			s.t.Fatalf("the terminal would obey %q", line)
		}
	}
}

// onlyColours reports whether every escape code of a line is a colour (SGR).
func onlyColours(line string) bool {
	for {
		_, rest, found := strings.Cut(line, "\x1b")
		if !found {
			return true
		}
		end := strings.IndexFunc(rest, func(r rune) bool { return r >= '@' && r <= '~' && r != '[' })
		if !strings.HasPrefix(rest, "[") || end < 0 || rest[end] != 'm' {
			return false
		}
		line = rest[end+1:]
	}
}

func (s *stage) text() string { return ansi.Strip(strings.Join(s.m.screen(), "\n")) }

var special = map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "down": tea.KeyDown, "up": tea.KeyUp, "tab": tea.KeyTab,
	"end": tea.KeyEnd, "pgdown": tea.KeyPgDown, "backspace": tea.KeyBackspace}

func (s *stage) keys(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if code, ok := special[name]; ok {
			s.send(tea.KeyPressMsg{Code: code})
			continue
		}
		if name == "ctrl+c" || name == "ctrl+u" || name == "ctrl+z" {
			s.send(tea.KeyPressMsg{Code: rune(name[5]), Mod: tea.ModCtrl})
			continue
		}
		for _, r := range name {
			s.send(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
}

func (s *stage) sees(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		if !strings.Contains(s.text(), text) {
			s.t.Errorf("%q is not on the screen:\n%s", text, s.text())
		}
	}
}

func (s *stage) asked(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.d.calls, want) {
		s.t.Errorf("asked for %q, want %q", s.d.calls, want)
	}
	s.d.calls = nil
}

func operation(n int, tool string) *vaultv1.Operation {
	found, _ := contract.Lookup(tool)
	return &vaultv1.Operation{
		OperationId: fmt.Sprintf("%04x", n) + strings.Repeat("0", 28), State: vaultv1.OperationState_OPERATION_STATE_PENDING,
		Principal: "claude-code", Session: "s-abc", Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true, Tool: found.Ref(), Tier: found.Tier,
		Arguments: []byte(`{"service_id":"demo-chat"}`), AgentReason: "please", Audience: executorID, Epoch: 3, RequestId: "r-1",
		AskedAt: timestamppb.New(testNow.Add(time.Duration(n) * time.Second)), ExpiresAt: timestamppb.New(testNow.Add(29 * time.Minute)),
	}
}

func standing(kind string) *vaultv1.Standing {
	return &vaultv1.Standing{StandingId: grant.NewID(), Kind: kind, Operator: "alice", Principal: "cursor", Session: "s-zzz", Uses: 5, UsesLeft: 3,
		GrantedAt: timestamppb.New(testNow), ExpiresAt: timestamppb.New(testNow.Add(time.Hour))}
}

// TestNothingIsSignedUnseen: not before the end was on the screen, not by a key that was typed before, not for another request.
func TestNothingIsSignedUnseen(t *testing.T) {
	s := newStage(t, 80, 10)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
	s.keys("a")
	s.asked("approve 0001")
	s.sees("WRITE  start_service", "esc back", "not all of it fits here")
	s.keys("y")
	s.asked()
	// Not all that is signed fits on the screen; nor is it seen by scrolling what is there.
	s.clock = s.clock.Add(time.Second)
	s.keys("end", "y")
	s.sees("v shows it whole")
	s.asked()
	s.keys("v")
	s.sees("read to its end", "more lines below")
	s.clock = s.clock.Add(time.Second)
	s.keys("y")
	s.sees("There is more below")
	s.asked()
	s.keys("end")
	s.sees("the end", "y sign it")
	s.keys("y")
	s.asked("sign approve " + s.m.numbers()[operation(1, "start_service").GetOperationId()] + " ")
	s.sees("signed")

	// What fits is signed without the rest, and no longer once the screen is too small for it.
	s = newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
	s.keys("a")
	s.sees("You sign: start_service", "y sign it", "v the statement whole")
	s.clock = s.clock.Add(time.Second)
	s.send(tea.WindowSizeMsg{Width: 80, Height: 10})
	s.clock = s.clock.Add(time.Second)
	s.keys("y")
	s.asked("approve 0001")
	s.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	s.clock = s.clock.Add(time.Second)
	s.keys("y")
	s.asked("sign approve " + s.m.numbers()[operation(1, "start_service").GetOperationId()] + " ")
	// A document that fits is not signed by a key that was on its way.
	s = newStage(t, 200, 60)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
	s.keys("ay")
	s.asked("approve 0001")
	s.clock = s.clock.Add(time.Second)
	// Its request is decided elsewhere while the document is looked at.
	s.send(Vault{Operations: []*vaultv1.Operation{operation(2, "start_service")}})
	s.sees("does not wait any more")
	s.keys("y")
	s.asked()
	// Esc signs nothing.
	s.keys("a", "esc", "y")
	s.asked("approve 0002")
}

// TestABannerPushesNothingOffThatIsSigned: where what appears beside a document takes lines that it needs, it is not signed by what was seen.
func TestABannerPushesNothingOffThatIsSigned(t *testing.T) {
	for name, msg := range map[string]tea.Msg{
		"problems": Problems{"executor": "away", "vault": "away", "services": "away"}, "a remark": done{job: -1, text: strings.Repeat("said ", 60)},
		"halted":    haltedMsg{job: -1, halted: []Halted{{Process: "vault"}, {Process: "executor"}}},
		"dangerous": Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}, Standing: []*vaultv1.Standing{standing("dangerous"), standing("dangerous")}},
	} {
		s := newStage(t, 80, 24)
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
		s.keys("a")
		for height := 24; height > 7 && strings.Contains(s.text(), "y sign it"); height-- { // down to the lowest screen that holds it
			s.send(tea.WindowSizeMsg{Width: 80, Height: height - 1})
		}
		s.send(tea.WindowSizeMsg{Width: 80, Height: s.m.height + 1})
		s.clock = s.clock.Add(time.Second)
		s.sees("y sign it", "You sign: start_service")
		s.d.calls = nil
		s.send(msg)
		s.clock = s.clock.Add(time.Second)
		if name != "a remark" { // which a key takes away
			s.keys("y")
			s.asked()
		}
		if strings.Contains(s.text(), "y sign it") {
			t.Errorf("%s: it is offered to sign what is not on the screen:\n%s", name, s.text())
		}
	}
}

// TestTheSheetIsAsOfNow: the plan above what is signed is the one that the statement was made of, not the one from when the request came.
func TestTheSheetIsAsOfNow(t *testing.T) {
	for name, early := range map[string]*desk{"another plan": {}, "no plan": {cardReason: "the executor is away"}} {
		for _, keys := range [][]string{{"a"}, {"s", "enter"}} {
			s := newStage(t, 120, 40)
			s.m.backend, s.d = early, early
			s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
			now := &desk{plan: []string{"stop embed first"}}
			s.m.backend, s.d = now, now
			s.keys(keys...)
			s.sees("y sign it", "stop embed first")
			if strings.Contains(s.text(), "the executor is away") {
				t.Errorf("%s: the screen has what was:\n%s", name, s.text())
			}
			s.keys("esc")
			s.sees("stop embed first")
		}
	}
}

// TestTheSheetIsOfWhatIsSigned: a vault that says other arguments of the request once its statement is made has them not shown above it.
func TestTheSheetIsOfWhatIsSigned(t *testing.T) {
	for key, deliver := range map[string]func(*stage) func(){
		"a": func(s *stage) func() { return s.hold("a") },
		"s": func(s *stage) func() {
			s.keys("s")
			_, cmd := s.m.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
			return func() { s.run(cmd) }
		},
	} {
		s := newStage(t, 120, 40)
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
		show := deliver(s)
		other := operation(1, "start_service")
		other.Arguments = []byte(`{"service_id":"harmless"}`)
		s.send(Vault{Operations: []*vaultv1.Operation{other}})
		show()
		s.sees("y sign it", "start_service service_id=demo-chat")
		if strings.Contains(s.text(), "harmless") {
			t.Errorf("%s: what is signed stands under another call:\n%s", key, s.text())
		}
	}
}

// TestAPlanThatCouldNotBeHadIsAskedForAgain: the chosen request is looked at again until the executor answers.
func TestAPlanThatCouldNotBeHadIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 120, 40)
		looks := 0
		after := func(seconds int) {
			t.Helper()
			for range seconds {
				_, cmd := s.m.Update(tick(testNow))
				both, _ := cmd().(tea.BatchMsg)
				for _, c := range both[min(2, len(both)):] { // behind the next tick and the drawing
					looks++
					s.run(c)
				}
			}
		}
		s.d.cardReason = "the executor is away"
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
		after(repaintEvery)
		s.sees("no plan: the executor is away")
		s.d.cardReason = ""
		after(repaintEvery)
		s.sees("start demo-chat")
		after(2 * repaintEvery)
		if looks != 2 {
			t.Errorf("looked at it %d times more, want 2", looks)
		}
	})
}

// TestCursorStaysOnItsRequest: a list that moves takes no key to another request.
func TestCursorStaysOnItsRequest(t *testing.T) {
	s := newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(5, "start_service"), operation(7, "stop_service")}})
	s.keys("down")
	s.send(Vault{Operations: []*vaultv1.Operation{operation(6, "start_service"), operation(5, "start_service"), operation(7, "stop_service")}})
	s.keys("d", "no", "enter")
	s.asked("deny 0007 no")
	// What is gone while a reason is typed is not denied in another's place.
	s.keys("d", "reason")
	s.send(Vault{Operations: []*vaultv1.Operation{operation(5, "start_service")}})
	s.keys("enter")
	if slices.ContainsFunc(s.d.calls, func(c string) bool { return strings.HasPrefix(c, "deny") }) {
		t.Errorf("%q", s.d.calls)
	}
}

// TestNoKeyGoesToWhatTheFilterHides: what a newer look at a request says may not match the filter any more. The cursor stays on it then, and
// no key reaches it, nor another one in its place.
func TestNoKeyGoesToWhatTheFilterHides(t *testing.T) {
	s := newStage(t, 80, 24)
	s.d.cardReason = "unheard of"
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service"), operation(2, "stop_service")}})
	s.keys("/")
	s.keys(strings.Split("unheard", "")...)
	s.keys("enter")
	s.d.cardReason = ""
	s.keys("enter", "esc")
	if text := s.text(); strings.Contains(text, "start_service") || strings.Contains(text, "›") {
		t.Errorf("the cursor is on what is not chosen:\n%s", text)
	}
	s.keys("d", "n", "o", "enter")
	s.asked()
	s.keys("down", "d", "n", "o", "enter")
	s.asked("deny " + operation(2, "stop_service").GetOperationId()[:4] + " no")
}

// hold passes a key whose answer is on its way still, and returns what delivers it.
func (s *stage) hold(key string) (deliver func()) {
	s.t.Helper()
	_, cmd := s.m.Update(tea.KeyPressMsg{Code: rune(key[0]), Text: key})
	return func() {
		s.run(cmd)
		s.check()
	}
}

// TestALateSheetIsDropped: what a look brings is shown as the answer to the last look alone, never under another request's card,
// over what is read or typed, or after it was given up.
func TestALateSheetIsDropped(t *testing.T) {
	ops := []*vaultv1.Operation{operation(1, "start_service"), operation(2, "stop_service")}
	for name, between := range map[string]func(*stage){
		"given up":                     func(s *stage) { s.keys("esc") },
		"given up, and a reason typed": func(s *stage) { s.keys("esc", "down", "d", "no: wh") },
		"a panic":                      func(s *stage) { s.keys("p", "p", "p") },
		"gone meanwhile":               func(s *stage) { s.send(Vault{Operations: ops[1:]}) },
		"given up, and help read":      func(s *stage) { s.keys("esc", "?") },
	} {
		s := newStage(t, 200, 60)
		s.send(Vault{Operations: ops})
		deliver := s.hold("a")
		between(s)
		before := s.m.mode
		deliver()
		if s.m.mode != before || s.m.proposal != nil || s.m.looking {
			t.Errorf("%s: the late sheet is on the screen:\n%s", name, s.text())
		}
		s.clock = s.clock.Add(time.Second)
		s.keys("y", "esc", "y")
		if slices.ContainsFunc(s.d.calls, func(c string) bool { return strings.HasPrefix(c, "sign") }) {
			t.Errorf("%s: signed: %q", name, s.d.calls)
		}
	}
	// Until it comes the cursor stays, and nothing else is begun; then it is under its own card.
	s := newStage(t, 200, 60)
	s.send(Vault{Operations: ops})
	deliver := s.hold("a")
	s.keys("down", "d", "m", "s", "r", "?", "/", "enter", "y")
	s.sees("looking at it", "esc give up looking")
	s.asked()
	deliver()
	s.sees("WRITE  start_service", "You sign: ")
	if strings.Contains(s.text(), "stop_service") {
		t.Errorf("another request's card is over it:\n%s", s.text())
	}
	// The first of two looks ends neither the second nor its line.
	s = newStage(t, 200, 60)
	s.send(Vault{Operations: ops})
	first := s.hold("a")
	s.keys("esc", "down")
	second := s.hold("a")
	first()
	if s.m.proposal != nil || !s.m.looking {
		t.Errorf("the first answer was taken for the second:\n%s", s.text())
	}
	second()
	s.sees("stop_service", "You sign: ")
	if strings.Contains(s.text(), "start_service") {
		t.Errorf("another request's card is over it:\n%s", s.text())
	}
	// What ends meanwhile, as a denial, ends no look.
	s = newStage(t, 200, 60)
	s.send(Vault{Operations: ops})
	deny := s.hold("d")
	deny()
	_, cmd := s.m.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
	s.keys("p", "p", "p")
	s.run(cmd)
	s.sees("denied.")
	look := s.hold("a")
	s.send(done{job: s.m.job - 1, text: "something else ended"})
	if !s.m.looking {
		t.Error("another job's end ended the look")
	}
	look()
	s.sees("You sign: ")
}

// TestTheRestOfWhatIsTypedGoesNowhere: a request that goes while somebody types takes neither the rest of a passphrase into
// another request's reason, nor a letter of it as a command.
func TestTheRestOfWhatIsTypedGoesNowhere(t *testing.T) {
	for name, typing := range map[string][]string{
		"passphrase": {"y", "correct horse"}, "reason": {"esc", "d", "correct horse"}, "mute": {"esc", "m", "1"}, "scope": {"esc", "s", "1"},
	} {
		s := newStage(t, 200, 60)
		s.d.passphrase = true
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service"), operation(2, "stop_service")}})
		s.keys("a")
		s.clock = s.clock.Add(time.Second)
		s.keys(typing...)
		s.d.calls = nil
		s.send(Vault{Operations: []*vaultv1.Operation{operation(2, "stop_service")}, Standing: []*vaultv1.Standing{standing("scope")}})
		s.sees("does not wait any more", "enter or esc back")
		s.keys("d battery staple p", "r", "m", "L", "q", "y", "backspace", "tab")
		s.send(tea.PasteMsg{Content: "d battery staple"})
		if s.m.selected != "" || len(s.m.editor.text) > 0 || strings.Contains(s.text(), "battery") {
			t.Errorf("%s: it was taken:\n%s", name, s.text())
		}
		s.keys("enter")
		s.asked()
		if s.quit || s.m.mode != modeList {
			t.Errorf("%s: enter does not end it", name)
		}
		s.send(Vault{Operations: []*vaultv1.Operation{operation(2, "stop_service")}})
		s.keys("d", "no", "enter")
		s.asked("deny 0002 no")
	}
}

func TestPassphrase(t *testing.T) {
	s := newStage(t, 200, 60)
	s.d.passphrase = true
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
	s.keys("a")
	s.clock = s.clock.Add(time.Second)
	s.keys("y", "pqL secret")
	s.sees("Passphrase of your signing key: ••••••••••")
	if strings.Contains(s.text(), "secret") {
		t.Errorf("the passphrase is on the screen:\n%s", s.text())
	}
	s.keys("enter")
	number := s.m.numbers()[operation(1, "start_service").GetOperationId()]
	s.asked("approve 0001", "sign approve "+number+" pqL secret")
	// Nothing of it is left behind.
	if len(s.m.editor.text) > 0 {
		t.Error("the passphrase is still there")
	}
	s.d.held = true
	s.sees("key open 3:59 (L locks)")
	s.keys("L")
	s.asked("lock")
	s.keys("q")
	s.asked("lock")
	if !s.quit {
		t.Error("q does not end it")
	}
}

// Ctrl-Z gives the terminal back as quitting does, with nothing held or half decided, where a shell is there to continue it.
func TestCtrlZ(t *testing.T) {
	for _, shell := range []bool{false, true} {
		s := newStage(t, 80, 24)
		s.m.shell, s.d.passphrase = shell, true
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
		s.keys("a")
		s.clock = s.clock.Add(time.Second)
		s.keys("y", "secret")
		s.d.calls = nil
		s.keys("ctrl+z")
		if s.suspended != shell || (s.m.mode == modeList) != shell || (len(s.m.editor.text) == 0) != shell {
			t.Errorf("with a shell %v: suspended %v, %q typed:\n%s", shell, s.suspended, string(s.m.editor.text), s.text())
		}
		if shell {
			s.asked("lock")
			continue
		}
		s.asked()
	}
}

func TestScopeForm(t *testing.T) {
	s := newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
	for _, bad := range [][]string{{"ctrl+u", "9h"}, {"ctrl+u", "soon"}, {"tab", "ctrl+u", "0"}, {"tab", "ctrl+u", "x"}, {"tab", "tab", "tab", "tab", "ctrl+u", "perhaps"}} {
		s.keys("s")
		s.keys(bad...)
		s.keys("enter")
		s.asked()
		if s.m.mode != modeScope || !s.m.bad {
			t.Errorf("%v was taken:\n%s", bad, s.text())
		}
		s.keys("esc")
	}
	s.keys("s", "ctrl+u", "2h", "tab", "ctrl+u", "20", "tab", "tab", "stop_service", "enter")
	s.asked("scope 0001 2h0m0s 20 [] [stop_service] false")
	s.sees("Without asking you again", "may call start_service,", "│ stop_service")
	// A bearer client's request has no scope.
	s.keys("esc")
	bearer := operation(1, "start_service")
	bearer.KeyBound = false
	s.send(Vault{Operations: []*vaultv1.Operation{bearer}})
	s.keys("s")
	s.sees("Only a key-bound client")
	s.asked()
}

func TestMuteAndRevoke(t *testing.T) {
	s := newStage(t, 80, 24)
	st := standing("scope")
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}, Standing: []*vaultv1.Standing{st, standing("dangerous")},
		Muted: []*vaultv1.Mute{{Principal: "bob", Until: timestamppb.New(testNow)}}})
	s.keys("m", "ctrl+u", "25h", "enter")
	s.asked()
	s.keys("ctrl+u", "2h", "enter")
	s.asked("mute claude-code 2h0m0s")
	s.keys("r")
	s.sees("DANGEROUS MODE", "3 of 5 uses left", "bob is muted")
	s.keys("r")
	s.asked("revoke " + st.GetStandingId()[:4])
	// A hostile vault's names go nowhere.
	hostile := operation(2, "start_service")
	hostile.Principal = "x\x1b[2J"
	s.send(Vault{Operations: []*vaultv1.Operation{hostile}, Standing: []*vaultv1.Standing{{StandingId: "../../x\x1b"}}})
	s.keys("m", "r", "r", "enter")
	s.asked()
}

// TestWhatIsEndedIsOnTheScreen: the list of what stands may be longer than the screen, and no key ends what it does not show.
func TestWhatIsEndedIsOnTheScreen(t *testing.T) {
	for _, height := range []int{24, 7} {
		s := newStage(t, 80, height)
		var all []*vaultv1.Standing
		for i := range 40 {
			one := standing("scope")
			one.StandingId = fmt.Sprintf("%04x", i) + strings.Repeat("0", 28)
			one.Principal = fmt.Sprintf("client-%d", i)
			all = append(all, one)
		}
		s.send(Vault{Standing: all})
		s.keys("r")
		for i := range all {
			if text := s.text(); !strings.Contains(text, fmt.Sprintf("› scope  client-%d,", i)) || i < 30 && !strings.Contains(text, "durward standing") {
				t.Fatalf("at %d lines number %d is under the cursor, and the screen is\n%s", height, i, text)
			}
			s.keys("down")
		}
		s.sees("more: ↑")
		s.keys("enter")
		s.asked("revoke 0027")
	}
}

// A panic takes one key on every page, held or pressed three times within three seconds; another key in between takes it back.
func TestPanicIsOneKeyHeld(t *testing.T) {
	for name, keys := range map[string][]string{"list": nil, "detail": {"enter"}, "sheet": {"a"}, "revoke": {"r"}, "help": {"?"}} {
		s := newStage(t, 80, 24)
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
		s.keys(keys...)
		s.keys("p", "p", "down", "p", "p")
		s.sees("hold p, or press it twice more")
		s.clock = s.clock.Add(4 * time.Second)
		s.keys("p", "p")
		if slices.Contains(s.d.calls, "halt") {
			t.Errorf("%s: two presses are a panic", name)
		}
		s.keys("p")
		if !slices.Contains(s.d.calls, "halt") {
			t.Errorf("%s: no panic", name)
		}
		s.sees("vault halted, epoch 4", "executor did not halt")
	}
	// It is a letter where text is typed.
	s := newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service")}})
	s.keys("d", "p", "enter")
	s.asked("deny 0001 p")
}

// A halt shows for as long as it lasts, with the way out, whoever called it.
func TestHaltedBanner(t *testing.T) {
	s := newStage(t, 80, 24)
	s.send(Vault{Halted: true, Epoch: 7})
	s.keys("esc")
	s.sees("HALTED (epoch 7): every change is refused", "durward resume")
	s.send(Vault{Epoch: 8})
	if strings.Contains(s.text(), "HALTED") {
		t.Error("it is over, and the banner shows")
	}
}

func TestDangerBanner(t *testing.T) {
	s := newStage(t, 80, 24)
	s.send(Vault{Standing: []*vaultv1.Standing{standing("scope")}})
	if strings.Contains(s.text(), "DANGEROUS") {
		t.Error("a scope is no danger")
	}
	s.send(Vault{Standing: []*vaultv1.Standing{standing("dangerous")}})
	s.sees("DANGEROUS MODE: cursor (s-zzz) until")
	s.clock = s.clock.Add(2 * time.Hour)
	if strings.Contains(s.text(), "DANGEROUS") {
		t.Error("it is over, and the banner shows")
	}
}

// TestHostileNames: nothing that anybody says moves the cursor, hides, or looks like the screen's own (SEC-T1, T2).
func TestHostileNames(t *testing.T) {
	hostile := "\x1b[2J\x1b]0;owned\x07\u202eevil\u200b\r\nK7F3  READ  harmless\u009b31m" + strings.Repeat("日本", 40) + strings.Repeat("ก\u0e33\u0e33", 99) + "\x00\xff"
	for _, size := range [][2]int{{80, 24}, {200, 60}, {20, 6}} {
		s := newStage(t, size[0], size[1])
		op := operation(1, "switch_mode")
		op.Principal, op.Session, op.ClientName, op.AgentReason, op.Rule = hostile, hostile, hostile, hostile, hostile
		op.Arguments, op.Audience, op.RequestId, op.DecidedBy = []byte(hostile), hostile, hostile, hostile
		past := operation(2, "stop_service")
		past.State, past.Principal, past.DecidedBy = vaultv1.OperationState_OPERATION_STATE_DONE, hostile, hostile
		st := standing("dangerous")
		st.Principal, st.Session = hostile, hostile
		s.d.cardReason = hostile
		s.send(Vault{Operations: []*vaultv1.Operation{op, operation(3, "stop_service")}, History: []*vaultv1.Operation{past},
			Standing: []*vaultv1.Standing{st}, Muted: []*vaultv1.Mute{{Principal: hostile}}})
		s.send(Services{{ServiceId: hostile, Model: hostile}})
		s.send(Host{&executorv1.GetHostResponse{Gpus: []*executorv1.GpuHolders{{Gpu: &executorv1.Gpu{Name: hostile, Problem: hostile}}}}})
		s.send(Problems{"vault": hostile})
		s.send(done{err: errors.New(hostile)})
		for _, keys := range [][]string{{"down"}, {"up"}, {"enter"}, {"end"}, {"esc"}, {"a"}, {"esc"}, {"r"}, {"esc"}, {"?"}, {"esc"}, {"/"}} {
			s.keys(keys...)
		}
		s.send(tea.PasteMsg{Content: hostile})
		s.keys("enter")
	}
}

// TestAPaddedReasonIsNoCard: text that is padded to fill lines begins none, wherever the screen breaks it.
func TestAPaddedReasonIsNoCard(t *testing.T) {
	const forged = "K7F3  READ  service_info  on executor/local"
	for pad := range 200 {
		s := newStage(t, 80, 24)
		op := operation(1, "start_service")
		op.AgentReason = "x\"" + strings.Repeat(" ", pad) + forged
		op.Arguments = []byte(`{"service_id":"x` + strings.Repeat(" ", pad) + forged + `"}`)
		s.send(Vault{Operations: []*vaultv1.Operation{op}})
		s.keys("enter")
		for line := range strings.Lines(s.text()) {
			if strings.HasPrefix(strings.TrimLeft(line, " ›"), "K7F3") {
				t.Fatalf("padded by %d, it looks like a card:\n%s", pad, s.text())
			}
		}
	}
}

// TestNothingIsCutSilently: what does not fit says so, and is there behind enter.
func TestNothingIsCutSilently(t *testing.T) {
	s := newStage(t, 80, 24)
	long := operation(1, "start_service")
	long.AgentReason = strings.Repeat("word ", 2000)
	s.send(Vault{Operations: []*vaultv1.Operation{long, operation(2, "stop_service"), operation(3, "stop_service")}})
	s.sees("more lines: enter", "stop_service")
	s.keys("enter")
	s.sees("more lines below")
	var seen strings.Builder
	for range 400 {
		seen.WriteString(s.text())
		if strings.Contains(s.text(), "the end") {
			break
		}
		s.keys("pgdown")
	}
	if got := strings.Count(seen.String(), "word"); got < 1900 {
		t.Errorf("of 2000 words %d can be read", got)
	}
	// More requests than lines.
	var many []*vaultv1.Operation
	for n := range 60 {
		many = append(many, operation(n+1, "stop_service"))
	}
	s.keys("esc")
	s.send(Vault{Operations: many})
	s.sees("60 waiting", "more wait: ↑↓")
	for range 59 {
		s.keys("down")
	}
	s.keys("d", "enter")
	if last := s.d.calls[len(s.d.calls)-1]; last != "deny 003c " {
		t.Errorf("the last one cannot be reached: %q", last)
	}
}

func TestScreens(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 60}} {
		s := newStage(t, size[0], size[1])
		s.sees("has not answered yet")
		op := operation(1, "switch_mode")
		op.Arguments = []byte(`{"mode_id":"coding","plan_digest":"` + strings.Repeat("a", 64) + `"}`)
		past := operation(9, "stop_service")
		past.State, past.DecidedBy = vaultv1.OperationState_OPERATION_STATE_DENIED, "spiffe://durward.local/operator/alice"
		s.send(Vault{Operations: []*vaultv1.Operation{op, operation(2, "stop_service")}, History: []*vaultv1.Operation{past}})
		s.send(Services{{ServiceId: "chat", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Model: "demo-1b"}, {ServiceId: "coder"}})
		s.send(Host{&executorv1.GetHostResponse{Gpus: []*executorv1.GpuHolders{{Gpu: &executorv1.Gpu{MemoryTotalMib: 24576, MemoryUsedMib: 9216, MemoryFreeMib: 15360, Services: []string{"chat"}}}}}})
		s.sees("2 waiting", "DESTRUCTIVE  switch_mode mode_id=coding", approval.Destructive[:40], "stop_service service_id=demo-chat",
			"── services", "chat", "running", "GPU 0", "█", "15.0 GiB free of 24.0 GiB", "── history", "denied by alice", "a approve", "p PANIC")
		s.send(Problems{"vault": "the vault cannot be reached"})
		s.sees("vault: the vault cannot be reached", "2 waiting")
		s.send(Problems{})
		if strings.Contains(s.text(), "cannot be reached") {
			t.Error("a problem that is over is shown")
		}
		s.keys("/", "coding", "enter")
		s.sees(`1 match "coding"`)
		s.keys("/", "esc", "?")
		s.sees("PANIC, held or pressed three times", "esc back")
		s.keys("q")
		if s.quit {
			t.Error("q in help ends everything")
		}
	}
}

// TestGoldenScreens: the screen of a person who has something to decide, as a terminal of 80 columns and 24 lines shows it.
func TestGoldenScreens(t *testing.T) {
	s := newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service"), operation(2, "start_service")}})
	s.send(Services{{ServiceId: "chat", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Model: "demo-1b"}, {ServiceId: "coder", State: executorv1.ServiceState_SERVICE_STATE_STOPPED}})
	s.send(Host{&executorv1.GetHostResponse{Gpus: []*executorv1.GpuHolders{{Gpu: &executorv1.Gpu{MemoryTotalMib: 24576, MemoryUsedMib: 9216, MemoryFreeMib: 15360, Services: []string{"chat"}}}}}})
	for _, screen := range []struct{ name, key string }{{"waiting", ""}, {"request", "enter"}, {"approval", "a"}, {"help", "?"}, {"services", "tab"}} {
		if screen.key != "" {
			s.keys(screen.key)
		}
		file := "testdata/" + screen.name + ".txt"
		got := s.text() + "\n"
		s.keys("esc", "esc")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := testdata.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got); if it is meant to, run: make golden-accept\n%s", file, diff)
		}
	}
}
