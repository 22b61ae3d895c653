// Package tui is the operator's screen: what waits on top, then services, GPUs and history; one key for each decision.
//
// It runs in the operator's foreground program at a terminal. It believes nothing that it draws: what agents, clients and the
// vault say is made visible before it is laid out, and commands are checked before they are dispatched. It decides nothing by
// itself and holds no key: statements, signatures and calls are the Backend's. Everything but Run is a function of messages.
package tui

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
)

// Backend is what the screen needs of the operator's program. Each method may take as long as its context allows and is called
// from a goroutine of its own. Errors are shown as one line.
type Backend interface {
	// Follow tells what there is and what changes (Vault, Services, Host, Problems) until ctx ends, and goes on when a process is
	// restarted.
	Follow(ctx context.Context, tell func(tea.Msg))
	// Card looks at an operation as the executor has it.
	Card(ctx context.Context, op *vaultv1.Operation, number string) approval.Card
	// Approve and Scope make what is to be signed.
	Approve(ctx context.Context, op *vaultv1.Operation, number string) (*Proposal, error)
	Scope(ctx context.Context, op *vaultv1.Operation, number string, w approval.Within) (*Proposal, error)
	Deny(ctx context.Context, operationID, reason string) error
	Mute(ctx context.Context, principal string, length time.Duration) error
	// Act makes what is signed for a person's own call of a tool that takes a service.
	Act(ctx context.Context, tool, service string) (*Proposal, error)
	// Logs passes on a service's last lines, KeptLines at most, and each new one until ctx ends.
	Logs(ctx context.Context, service string, tell func(lines []string)) error
	Revoke(ctx context.Context, standingID string) error
	// Halt stops everything; it returns within about a second, whoever hangs.
	Halt(ctx context.Context) []Halted
	// NeedsPassphrase reports whether Sign takes one now: the key has one and is not held.
	NeedsPassphrase() (bool, error)
	// Sign signs what was shown and hands it in, and says what became of it.
	Sign(ctx context.Context, p *Proposal, passphrase []byte) (string, error)
	// Held is until when the key is held; Lock lets it go.
	Held() (until time.Time, ok bool)
	Lock()
}

// Proposal is a statement that a person is asked to sign.
type Proposal struct {
	Number   string
	Document approval.Document
	// Card is the request that the statement is about, with the executor's answer that it was made of, and stands in the document. Of a
	// person's own call it is empty.
	Card   approval.Card
	Submit func(context.Context, *callv1.HumanStatement) (string, error)
	// Then goes on after Submit for as long as it takes, and says how it ended; nil: there is nothing more.
	Then func(context.Context) (string, error)
}

// Halted is one process's answer to a panic.
type Halted struct {
	Process string
	Epoch   uint64
	Problem string
	Took    time.Duration
}

// What a Backend tells.
type (
	// Vault is what the vault says there is.
	Vault struct {
		// Operations wait, are approved or run; History ended, the newest first.
		Operations, History []*vaultv1.Operation
		Standing            []*vaultv1.Standing
		Muted               []*vaultv1.Mute
		// Halted says that the vault refuses every change, since Epoch.
		Halted bool
		Epoch  uint64
	}
	// Services are the executor's.
	Services []*executorv1.ServiceSummary
	// Host has the GPUs.
	Host struct{ *executorv1.GetHostResponse }
	// Problems are why a process does not answer, by its name; empty: all answer.
	Problems map[string]string
)

// Messages of the screen to itself.
type (
	tick    time.Time
	cardMsg struct{ card approval.Card }
	// proposed answers the look number job at an operation.
	proposed struct {
		job       int
		operation string
		// service: it is a person's own call about this one.
		service  string
		proposal *Proposal
		err      error
	}
	done struct {
		job  int
		text string
		err  error
		then func(context.Context) (string, error)
	}
	logLines struct {
		of    *logs
		lines []string
	}
	haltedMsg struct {
		job    int
		halted []Halted
	}
)

// mode is what the keys mean now.
type mode int

const (
	modeList mode = iota
	modeDetail
	modeSheet
	modePassphrase
	modeDeny
	modeMute
	modeScope
	modeRevoke
	modeLogs
	modeFilter
	modeHelp
	// modeGone is where typing ends up whose request does not wait any more: the rest of a passphrase or a reason is still on its
	// way, and is neither text nor command until enter or esc.
	modeGone
)

// typing reports whether keys are text.
func (m mode) typing() bool {
	return m == modeFilter || m == modeGone || m.deciding()
}

// deciding reports whether keys are text that is about one request.
func (m mode) deciding() bool {
	return m == modePassphrase || m == modeDeny || m == modeMute || m == modeScope
}

// Config is what a screen begins with.
type Config struct {
	Backend Backend
	// Small shows what waits alone.
	Small bool
	// Shell: a shell that controls jobs continues this program after Ctrl-Z.
	Shell bool
	// Now is the clock.
	Now func() time.Time
}

// Model is the screen.
type Model struct {
	backend Backend
	ctx     context.Context
	small   bool
	shell   bool
	now     func() time.Time

	width, height int
	// repaint is in how many ticks the whole screen is drawn anew: a terminal that changes its size may lose what is drawn meanwhile, and other
	// programs write on it.
	repaint int
	mode    mode
	vault   Vault
	// told: the vault has answered at least once.
	told     bool
	services Services
	host     *executorv1.GetHostResponse
	problems Problems
	cards    map[string]approval.Card
	loading  map[string]bool

	// selected is the operation under the cursor, by id, so that a list that moves takes no key to another one.
	selected string
	// service is the one under the services' cursor, by id. onServices: keys are about it, not about what waits.
	service    string
	onServices bool
	// own: what is looked at, or signed, is a person's own call, which no request's end ends.
	own bool
	// logs are what is followed of a service's log; nil: nothing.
	logs *logs
	// standing is the one under the cursor of the list that revokes.
	standing string
	filter   string
	scroll   int
	editor   editor
	form     form
	proposal *Proposal
	// lines are those of a detail or a document, unwrapped.
	lines []approval.Line
	// whole: the document is shown whole, instead of on one screen, which had the columns and lines of laid when it was laid out.
	whole bool
	laid  [2]int
	// shownAt is when a document appeared: keys typed before are no answer to it. seenEnd: all of it was on the screen.
	shownAt time.Time
	seenEnd bool
	// job numbers what keys start: busy tells of the last one, and no other's answer ends it. looking: it is to bring a document.
	job     int
	busy    string
	looking bool
	note    string
	bad     bool
	halted  []Halted
	// armed is when the panic key was first pressed, and presses how often since.
	armed   time.Time
	presses int
}

// In how many ticks the screen is drawn anew, and after a change of its size.
const (
	repaintEvery = 5
	repaintSoon  = 2
)

// patience bounds what a key starts; a panic has its own.
const patience = 30 * time.Second

// New returns a screen; ctx bounds everything that its keys start.
func New(ctx context.Context, c Config) *Model {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Model{
		backend: c.Backend, ctx: ctx, small: c.Small, shell: c.Shell, now: c.Now, width: 80, height: 24,
		cards: map[string]approval.Card{}, loading: map[string]bool{},
	}
}

// Init starts the clock.
func (m *Model) Init() tea.Cmd { return ticking() }

func ticking() tea.Cmd { return tea.Tick(time.Second, func(t time.Time) tea.Msg { return tick(t) }) }

// Update takes a message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	defer m.refit()
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 20), max(msg.Height, 6)
		m.lookedAt()
		m.repaint = repaintSoon
	case tick:
		if m.repaint--; m.repaint <= 0 {
			m.repaint = repaintEvery
			return m, tea.Batch(ticking(), tea.ClearScreen, m.lookAgain())
		}
		return m, ticking()
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.PasteMsg:
		if m.mode.typing() && m.mode != modeGone {
			m.target().insert(msg.Content)
			m.typed()
		}
	case Vault:
		return m, m.take(msg)
	case tea.MouseClickMsg:
		m.click(msg.Mouse())
	case tea.MouseWheelMsg:
		m.wheel(msg.Mouse())
	case Services:
		m.services = msg
		m.moveService(0)
	case logLines:
		return m, m.tookLines(msg)
	case Host:
		m.host = msg.GetHostResponse
	case Problems:
		m.problems = msg
	case cardMsg:
		id := msg.card.Operation.GetOperationId()
		delete(m.loading, id)
		if m.pending(id) != nil {
			m.cards[id] = msg.card
			if m.mode == modeDetail && m.selected == id {
				m.lines = m.detail(id)
			}
		}
	case proposed:
		m.brought(msg)
	case done:
		m.ended(msg.job)
		if msg.err != nil {
			m.fail(msg.err)
			break
		}
		m.say(msg.text)
		if msg.then != nil {
			return m, m.finish(msg.then)
		}
	case haltedMsg:
		m.ended(msg.job)
		m.halted = msg.halted
	}
	return m, nil
}

// take takes the vault's list: what is new is looked at, what is gone is forgotten, and the cursor stays on its operation.
func (m *Model) take(v Vault) tea.Cmd {
	m.vault, m.told = v, true
	var look []tea.Cmd
	live := map[string]bool{}
	numbers := m.numbers()
	for _, op := range m.waiting() {
		id := op.GetOperationId()
		live[id] = true
		if card, ok := m.cards[id]; ok {
			card.Operation, card.Number = op, numbers[id]
			m.cards[id] = card
		} else {
			look = append(look, m.look(op, numbers[id]))
		}
	}
	maps.DeleteFunc(m.cards, func(id string, _ approval.Card) bool { return !live[id] })
	if m.selected != "" && !live[m.selected] {
		m.gone()
		m.selected = ""
	}
	if m.selected == "" {
		if shown := m.filtered(); len(shown) > 0 && (m.mode == modeList || m.mode == modeFilter) {
			m.selected = shown[0].GetOperationId()
		}
	}
	return tea.Batch(look...)
}

// gone ends what was being decided about the request under the cursor. What is being typed is not taken up by whatever comes next.
func (m *Model) gone() {
	if m.own || !m.looking && !m.mode.deciding() && m.mode != modeSheet && m.mode != modeDetail {
		return
	}
	typing := m.mode.deciding()
	m.abandon()
	m.leave()
	if typing {
		m.mode = swallowing()
	}
	m.say("That request does not wait any more.")
}

// begin numbers a job and says what it does.
func (m *Model) begin(busy string) (job int) {
	m.job++
	m.busy, m.looking, m.own = busy, false, false
	return m.job
}

// ended notes that a job ended.
func (m *Model) ended(job int) {
	if job == m.job {
		m.busy, m.looking = "", false
	}
}

// abandon gives a look up: what it brings is dropped.
func (m *Model) abandon() {
	if m.looking {
		m.job++
		m.busy, m.looking = "", false
	}
}

// call runs f with a deadline, off the screen's own goroutine.
func (m *Model) call(f func(context.Context) tea.Msg) tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, patience)
		defer cancel()
		return f(ctx)
	}
}

// waiting are the operations that wait for a decision, the oldest first.
func (m *Model) waiting() []*vaultv1.Operation {
	var out []*vaultv1.Operation
	for _, op := range m.vault.Operations {
		if op.GetState() == vaultv1.OperationState_OPERATION_STATE_PENDING && approval.IsOperationID(op.GetOperationId()) {
			out = append(out, op)
		}
	}
	slices.SortStableFunc(out, func(a, b *vaultv1.Operation) int { return a.GetAskedAt().AsTime().Compare(b.GetAskedAt().AsTime()) })
	return out
}

// filtered are those of the waiting that the filter lets through.
func (m *Model) filtered() []*vaultv1.Operation {
	if m.filter == "" {
		return m.waiting()
	}
	var out []*vaultv1.Operation
	want := strings.ToLower(m.filter)
	for _, op := range m.waiting() {
		text := strings.Join(m.card(op).Lines(m.now()), " ")
		if strings.Contains(strings.ToLower(text), want) {
			out = append(out, op)
		}
	}
	return out
}

// pending returns an operation that waits, by its id.
func (m *Model) pending(id string) *vaultv1.Operation {
	for _, op := range m.waiting() {
		if op.GetOperationId() == id {
			return op
		}
	}
	return nil
}

func (m *Model) numbers() map[string]string {
	return approval.Numbers(output.Each(m.vault.Operations, (*vaultv1.Operation).GetOperationId))
}

// card is what is known of an operation.
func (m *Model) card(op *vaultv1.Operation) approval.Card {
	if card, ok := m.cards[op.GetOperationId()]; ok {
		return card
	}
	return approval.Card{Number: m.numbers()[op.GetOperationId()], Operation: op, Problem: "the executor is being asked"}
}

// leave goes back to the list and forgets what was typed.
func (m *Model) leave() {
	m.editor.clear()
	m.editor = editor{}
	if m.logs != nil {
		m.logs.end()
	}
	m.mode, m.proposal, m.lines, m.scroll, m.own, m.logs = modeList, nil, nil, 0, false, nil
}

func (m *Model) say(text string) { m.note, m.bad = text, false }

// fail shows why something was not done.
func (m *Model) fail(err error) { m.note, m.bad = clean.Line(err.Error(), 500), true }

// Panic takes the key three times within panicWithin, or held as long: one slip of a finger stops no host.
const (
	panicPresses = 3
	panicWithin  = 3 * time.Second
)

func (m *Model) panic() tea.Cmd {
	if now := m.now(); m.presses == 0 || now.Sub(m.armed) > panicWithin {
		m.armed, m.presses = now, 0
	}
	if m.presses++; m.presses < panicPresses {
		m.note, m.bad = "PANIC refuses every change until you resume: hold p, or press it twice more. Another key: no.", true
		return nil
	}
	m.presses, m.note = 0, ""
	m.halted = nil
	job := m.begin("panic: telling the vault and the executor")
	return func() tea.Msg { return haltedMsg{job, m.backend.Halt(m.ctx)} }
}

// dangers are the dangerous modes in force.
func (m *Model) dangers() (out []*vaultv1.Standing) {
	for _, s := range m.vault.Standing {
		if s.GetKind() == "dangerous" && s.GetExpiresAt().AsTime().After(m.now()) {
			out = append(out, s)
		}
	}
	return out
}

func duration(text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("a time from %s to %s: 30m, 2h", least, most)
	}
	return d, nil
}
