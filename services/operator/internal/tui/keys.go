package tui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/platform/clean"
)

// longestMute is the longest that a client can be muted.
const longestMute = 24 * time.Hour

// key takes one key.
func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	if name == "ctrl+c" {
		return m.quit()
	}
	if name == "ctrl+z" {
		return m.suspend()
	}
	if m.mode.typing() {
		return m.typingKey(k, name)
	}
	m.note = ""
	if name == "p" {
		return m.panic()
	}
	m.presses = 0
	switch name {
	case "L":
		m.backend.Lock()
		m.say("The key is locked.")
		return nil
	case "esc", "backspace":
		m.halted = nil
		m.abandon()
		m.leave()
		return nil
	case "q":
		if m.mode == modeList {
			return m.quit()
		}
		m.abandon()
		m.leave()
		return nil
	}
	if m.looking {
		// A document is about to come; until then the cursor stays and nothing is begun.
		return nil
	}
	switch m.mode {
	case modeDetail, modeSheet, modeHelp, modeLogs:
		return m.readingKey(name)
	case modeRevoke:
		return m.revokeKey(name)
	default:
		return m.listKey(name)
	}
}

// quit ends the screen; the key is let go before anything else.
func (m *Model) quit() tea.Cmd {
	m.backend.Lock()
	m.leave()
	return tea.Quit
}

// suspend gives the terminal back to the shell until that continues the screen. It forgets what quit forgets.
func (m *Model) suspend() tea.Cmd {
	if !m.shell {
		return nil // nobody would continue it
	}
	m.backend.Lock()
	m.abandon()
	m.leave()
	return tea.Suspend
}

func (m *Model) listKey(name string) tea.Cmd {
	switch name {
	case "tab":
		m.onServices = !m.onServices && !m.small && len(m.services) > 0
		return nil
	case "/", "?", "r":
	default:
		if m.onServices {
			return m.serviceKey(name)
		}
	}
	switch name {
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "/":
		m.mode, m.editor = modeFilter, newEditor(m.filter)
	case "?":
		m.mode, m.lines, m.scroll = modeHelp, help(), 0
	case "r":
		m.mode, m.standing = modeRevoke, ""
		if len(m.vault.Standing) > 0 {
			m.standing = m.vault.Standing[0].GetStandingId()
		}
	case "enter", "a", "s", "d", "m":
		return m.decide(name)
	}
	return nil
}

// decide begins what a key does to the request under the cursor.
func (m *Model) decide(name string) tea.Cmd {
	op := m.pending(m.selected)
	if op == nil || m.mode == modeList && !slices.Contains(m.filtered(), op) {
		m.say("Nothing that waits is chosen.")
		return nil
	}
	switch name {
	case "enter":
		m.mode, m.lines, m.scroll = modeDetail, m.detail(m.selected), 0
		return m.look(op, m.card(op).Number)
	case "a":
		return m.propose("looking at it", func(ctx context.Context, number string) (*Proposal, error) {
			return m.backend.Approve(ctx, op, number)
		}, op)
	case "s":
		if !op.GetKeyBound() {
			m.note, m.bad = "Only a key-bound client can be let do more than one call. a approves this one.", true
			return nil
		}
		m.mode, m.form = modeScope, newForm()
	case "d":
		m.mode, m.editor = modeDeny, newEditor("")
	case "m":
		if client.CheckName(op.GetPrincipal()) != nil {
			m.note, m.bad = "That is no client's name.", true
			return nil
		}
		m.mode, m.editor = modeMute, newEditor("1h")
	}
	return nil
}

func (m *Model) propose(busy string, make func(context.Context, string) (*Proposal, error), op *vaultv1.Operation) tea.Cmd {
	if m.busy != "" {
		return nil
	}
	job, number := m.begin(busy), m.card(op).Number
	m.looking = true
	return m.call(func(ctx context.Context) tea.Msg {
		p, err := make(ctx, number)
		return proposed{job: job, operation: op.GetOperationId(), proposal: p, err: err}
	})
}

// start runs a job; f says what became of it.
func (m *Model) start(busy string, f func(context.Context) (string, error)) tea.Cmd {
	job := m.begin(busy)
	return m.call(func(ctx context.Context) tea.Msg {
		text, err := f(ctx)
		return done{job: job, text: text, err: err}
	})
}

// move moves the cursor among what waits.
func (m *Model) move(by int) {
	shown := m.filtered()
	if len(shown) == 0 {
		m.selected = ""
		return
	}
	at := slices.IndexFunc(shown, func(op *vaultv1.Operation) bool { return op.GetOperationId() == m.selected })
	if at >= 0 {
		at += by
	}
	m.selected = shown[max(0, min(at, len(shown)-1))].GetOperationId()
}

// readingKey scrolls, and signs a document whose end was seen.
func (m *Model) readingKey(name string) tea.Cmd {
	page := max(m.room()-1, 1)
	switch name {
	case "up", "k":
		m.scroll--
	case "down", "j", "enter":
		m.scroll++
	case "pgup":
		m.scroll -= page
	case "pgdown", "space", " ":
		m.scroll += page
	case "home", "g":
		m.scroll = 0
	case "end", "G":
		m.scroll = m.lastScroll()
	case "y":
		if m.mode == modeSheet {
			return m.signKey()
		}
	case "v":
		if m.mode == modeSheet {
			m.unfold(!m.whole)
			return nil
		}
	case "a", "s", "d", "m":
		if m.mode == modeDetail {
			return m.decide(name)
		}
	}
	m.lookedAt()
	return nil
}

func (m *Model) signKey() tea.Cmd {
	switch {
	case m.busy != "" || m.proposal == nil:
		return nil
	case !seen(m.now().Sub(m.shownAt), m.seenEnd):
		switch {
		case m.seenEnd:
		case m.whole:
			m.note, m.bad = "There is more below: read to its end first (space, end).", true
		default:
			m.note, m.bad = "Not all that you sign fits here: v shows it whole.", true
		}
		return nil
	}
	needs, err := m.backend.NeedsPassphrase()
	if err != nil {
		m.fail(err)
		return nil
	}
	if needs {
		m.mode, m.editor = modePassphrase, editor{masked: true}
		return nil
	}
	return m.sign(nil)
}

func (m *Model) sign(passphrase []byte) tea.Cmd {
	p := m.proposal
	m.leave()
	job := m.begin("signing " + p.Number + " (touch your security key if it blinks)")
	return m.call(func(ctx context.Context) tea.Msg {
		defer clear(passphrase)
		text, err := m.backend.Sign(ctx, p, passphrase)
		return done{job: job, text: text, err: err, then: p.Then}
	})
}

// target is what typed characters go to.
func (m *Model) target() *editor {
	if m.mode == modeScope {
		return &m.form.fields[m.form.at]
	}
	return &m.editor
}

// typed takes up what a live field says.
func (m *Model) typed() {
	if m.mode == modeFilter {
		m.filter = string(m.editor.text)
		m.move(0)
	}
}

func (m *Model) typingKey(k tea.KeyPressMsg, name string) tea.Cmd {
	if m.mode == modeGone {
		if name == "esc" || name == "enter" {
			m.leave()
		}
		return nil
	}
	switch name {
	case "esc":
		if m.mode == modeFilter {
			m.filter = ""
		}
		m.leave()
	case "enter":
		return m.entered()
	case "backspace":
		m.target().backspace()
		m.typed()
	case "ctrl+u":
		m.target().clear()
		m.typed()
	case "tab", "down":
		m.form.at = (m.form.at + 1) % len(m.form.fields)
	case "shift+tab", "up":
		m.form.at = (m.form.at + len(m.form.fields) - 1) % len(m.form.fields)
	default:
		m.target().insert(k.Text)
		m.typed()
	}
	return nil
}

// entered takes a typed line. What it says is checked before anything is dispatched.
func (m *Model) entered() tea.Cmd {
	if m.mode == modeFilter {
		m.mode = modeList
		return nil
	}
	if m.mode == modePassphrase && m.own {
		return m.sign([]byte(m.editor.take()))
	}
	op := m.pending(m.selected)
	if op == nil {
		m.leave()
		m.say("That request does not wait any more.")
		return nil
	}
	number := m.card(op).Number
	switch m.mode {
	case modePassphrase:
		return m.sign([]byte(m.editor.take()))
	case modeDeny:
		reason := m.editor.take()
		if len(reason) > 500 {
			m.note, m.bad = "A reason is at most 500 bytes.", true
			return nil
		}
		m.leave()
		return m.start("denying "+number, func(ctx context.Context) (string, error) {
			return number + " denied.", m.backend.Deny(ctx, op.GetOperationId(), reason)
		})
	case modeMute:
		length, err := duration(string(m.editor.text), time.Second, longestMute)
		if err != nil {
			m.fail(err)
			return nil
		}
		principal := op.GetPrincipal()
		m.leave()
		return m.start("muting "+clean.Visible(principal), func(ctx context.Context) (string, error) {
			return fmt.Sprintf("%s is muted for %s.", clean.Visible(principal), length), m.backend.Mute(ctx, principal, length)
		})
	case modeScope:
		within, err := m.form.within()
		if err != nil {
			m.fail(err)
			return nil
		}
		if m.busy == "" {
			m.leave()
		}
		return m.propose("looking at what the scope covers", func(ctx context.Context, number string) (*Proposal, error) {
			return m.backend.Scope(ctx, op, number, within)
		}, op)
	}
	return nil
}

func (m *Model) revokeKey(name string) tea.Cmd {
	at := max(slices.IndexFunc(m.vault.Standing, func(s *vaultv1.Standing) bool { return s.GetStandingId() == m.standing }), 0)
	switch name {
	case "up", "k":
		at--
	case "down", "j":
		at++
	case "r", "enter":
		id := m.standing
		if !approval.IsOperationID(id) {
			return nil
		}
		m.leave()
		return m.start("ending it", func(ctx context.Context) (string, error) { return "It has ended.", m.backend.Revoke(ctx, id) })
	}
	if n := len(m.vault.Standing); n > 0 {
		m.standing = m.vault.Standing[max(0, min(at, n-1))].GetStandingId()
	}
	return nil
}

// form is how far a scope reaches.
type form struct {
	fields [5]editor
	at     int
}

// The fields of a form.
var labels = [5]string{"for how long (8h at most)", "how often (1000 at most)", "free arguments (any value)", "further tools", "any definition (yes/no)"}

func newForm() form {
	return form{fields: [5]editor{newEditor("1h"), newEditor("10"), newEditor(""), newEditor(""), newEditor("no")}}
}

func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// within reads the form.
func (f form) within() (approval.Within, error) {
	text := func(i int) string { return strings.TrimSpace(string(f.fields[i].text)) }
	length, err := duration(text(0), approval.MinStanding, approval.MaxStanding)
	if err != nil {
		return approval.Within{}, err
	}
	uses, err := strconv.Atoi(text(1))
	if err != nil || uses < 1 || uses > approval.MaxUses {
		return approval.Within{}, errors.New("how often is a number from 1 to 1000")
	}
	w := approval.Within{For: length.Truncate(time.Second), Uses: uses, Free: words(text(2)), Tools: words(text(3))}
	switch strings.ToLower(text(4)) {
	case "yes", "y":
		w.Any = true
	case "no", "n", "":
	default:
		return approval.Within{}, errors.New("any definition is yes or no")
	}
	return w, nil
}
