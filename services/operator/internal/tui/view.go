package tui

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/bars"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

func bold(s string) string   { return lipgloss.NewStyle().Bold(true).Render(s) }
func dim(s string) string    { return lipgloss.NewStyle().Faint(true).Render(s) }
func red(s string) string    { return lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true).Render(s) }
func green(s string) string  { return lipgloss.NewStyle().Foreground(lipgloss.Green).Render(s) }
func yellow(s string) string { return lipgloss.NewStyle().Foreground(lipgloss.Yellow).Render(s) }
func banner(s string) string {
	return lipgloss.NewStyle().Background(lipgloss.Red).Foreground(lipgloss.BrightWhite).Bold(true).Render(s)
}

// View draws the screen.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.screen(), "\n"))
	v.AltScreen = true
	v.MouseMode = tea.MouseModeCellMotion
	return v
}

// screen lays the screen out: never more lines than there are, none wider than it is.
func (m *Model) screen() []string {
	head, foot := m.head(), m.foot()
	room := max(m.height-len(head)-len(foot), 1)
	var body []string
	switch m.mode {
	case modeDetail, modeSheet, modeHelp, modePassphrase, modeLogs:
		body = m.reading(room)
	case modeRevoke:
		body = m.revoking(room)
	default:
		for _, r := range m.list(room) {
			body = append(body, r.text)
		}
	}
	lines := slices.Concat(head, padded(body, room)[:room], foot)
	lines = lines[:min(len(lines), m.height)]
	for i, line := range lines {
		lines[i] = fit(line, m.width)
	}
	return lines
}

// room is how many lines a text to read has.
func (m *Model) room() int { return max(m.height-len(m.head())-len(m.foot()), 1) }

// head is the title and everything that must not be overlooked.
func (m *Model) head() []string {
	key := "key locked"
	if until, ok := m.backend.Held(); ok {
		key = "key open " + approval.Duration(until.Sub(m.now())) + " (L locks)"
	}
	waiting := len(m.waiting())
	title := bold("durward") + fmt.Sprintf("  %d waiting", waiting)
	if m.filter != "" {
		title += fmt.Sprintf(" (%d match %q)", len(m.filtered()), printable(m.filter))
	}
	lines := []string{title + dim("  "+key+"  "+m.now().Local().Format(time.TimeOnly))}
	for _, s := range m.dangers() {
		text := fmt.Sprintf("DANGEROUS MODE: %s (%s) until %s: changes run without asking. r ends it",
			clean.Line(s.GetPrincipal(), 64), clean.Line(s.GetSession(), 32), s.GetExpiresAt().AsTime().Local().Format("15:04"))
		for _, line := range wrap(text, m.width) {
			lines = append(lines, banner(line))
		}
	}
	if m.vault.Halted {
		for _, line := range wrap(fmt.Sprintf("HALTED (epoch %d): every change is refused. The way out, with your signature: durward resume", m.vault.Epoch), m.width) {
			lines = append(lines, banner(line))
		}
	}
	for _, h := range m.halted {
		if h.Problem != "" {
			lines = append(lines, red(oneLine("✗ "+h.Process+" did not halt: "+clean.Line(h.Problem, 200), m.width)))
		} else {
			lines = append(lines, red(fmt.Sprintf("■ %s halted, epoch %d (%d ms)", h.Process, h.Epoch, h.Took.Milliseconds())))
		}
	}
	for _, source := range slices.Sorted(maps.Keys(m.problems)) {
		lines = append(lines, red(oneLine(source+": "+clean.Line(m.problems[source], 200), m.width)))
	}
	// A screen of banners alone helps nobody.
	return lines[:min(len(lines), max(m.height/2, 1))]
}

// foot is what was said last, what is typed, and the keys.
func (m *Model) foot() []string {
	var lines []string
	switch {
	case m.busy != "":
		lines = append(lines, yellow(oneLine(m.busy+" …", m.width)))
	case m.note != "":
		for _, line := range clip(wrap(m.note, m.width), max(m.height/3, 2), "durward approvals") {
			if m.bad {
				lines = append(lines, red(line))
			} else {
				lines = append(lines, green(line))
			}
		}
	}
	switch m.mode {
	case modePassphrase:
		lines = append(lines, bold("Passphrase of your signing key: ")+m.editor.shown())
	case modeDeny:
		lines = append(lines, bold("Deny; the agent is told: ")+tail(m.editor.shown(), m.width-26))
	case modeMute:
		lines = append(lines, bold("Do not be asked by this client for: ")+m.editor.shown())
	case modeFilter:
		lines = append(lines, bold("Filter: ")+tail(m.editor.shown(), m.width-9))
	case modeScope:
		lines = append(lines, bold("Let the session repeat it without asking you:"))
		for i, label := range labels {
			text := fmt.Sprintf("  %-28s", label)
			if i == m.form.at {
				lines = append(lines, bold("›"+text[1:])+tail(m.form.fields[i].shown(), m.width-31))
			} else {
				lines = append(lines, text+tail(string(m.form.fields[i].text), m.width-31))
			}
		}
	}
	return append(lines, helpBar(m.keysLine(), m.width))
}

// tail is the end of a typed line, which is where it is typed.
func tail(s string, width int) string {
	if over := ansi.StringWidth(s) - width; over > 0 {
		return "…" + ansi.TruncateLeft(s, over+1, "")
	}
	return s
}

func (m *Model) keysLine() string {
	if m.looking {
		return "esc give up looking  p PANIC"
	}
	switch m.mode {
	case modeDetail:
		return "↑↓ space scroll  a approve  s scope  d deny  m mute  esc back  p PANIC"
	case modeSheet:
		switch {
		case !m.seenEnd && m.whole:
			return "↑↓ space end: read to its end  esc back  p PANIC"
		case !m.seenEnd:
			return "v the statement whole: not all of it fits here  esc back  p PANIC"
		case m.whole:
			return "y sign it  ↑↓ space scroll  v one screen  esc back, nothing is signed  p PANIC"
		}
		return "y sign it  v the statement whole  esc back, nothing is signed  p PANIC"
	case modeHelp:
		return "↑↓ space scroll  esc back"
	case modeLogs:
		return "↑↓ space scroll  end newest, and stay there  esc back  p PANIC"
	case modeRevoke:
		return "↑↓ choose  enter end it  esc back  p PANIC"
	case modeScope:
		return "tab next field  enter look at it  esc back"
	case modeGone:
		return "enter or esc back: what you typed went nowhere"
	case modePassphrase, modeDeny, modeMute, modeFilter:
		return "enter go on  esc back"
	}
	switch {
	case m.onServices:
		return "p PANIC  s start  x stop  z sleep  w wake  l logs  tab requests  ? help  q quit  r revoke"
	case m.small || len(m.services) == 0:
		return "p PANIC  a approve  s scope  d deny  m mute  ? help  q quit  enter all  r revoke"
	}
	return "p PANIC  a approve  s scope  d deny  m mute  tab services  ? help  q quit  enter all  r revoke"
}

// list is what waits on top, and the host below.
func (m *Model) list(room int) []row {
	if m.small {
		return m.approvals(room)
	}
	// What waits has at least half the screen, and what the rest leaves; the services have more while a person works with them, and three
	// lines on the smallest screen too: their heading, the chosen one and how many are hidden.
	rest, atMost := room/2, max(room/5, 2)
	if m.onServices {
		rest = max(rest, min(3, room-1))
		atMost = min(atMost, rest-3)
	}
	share := func(lines []string, most int) []row {
		taken := clip(lines, min(most, rest), "durward watch")
		rest -= len(taken)
		return rowsOf(taken)
	}
	gpus := share(m.gpuLines(), atMost)
	most := max(room/5, 3)
	if m.onServices {
		most = rest
	}
	services := m.serviceRows(min(most, rest))
	rest -= len(services)
	below := slices.Concat(gpus, services, share(m.historyLines(), max(rest, 0)))
	top := m.approvals(room - len(below))
	return append(padded(top, room-len(below)), below...)
}

// padded are at least n lines, the last ones empty.
func padded[T any](lines []T, n int) []T {
	return append(lines, make([]T, max(n-len(lines), 0))...)
}

// approvals are the cards: the one under the cursor as whole as fits, the others a line each.
func (m *Model) approvals(room int) []row {
	shown := m.filtered()
	if len(shown) == 0 {
		text := "  Nothing waits."
		switch {
		case !m.told:
			text = "  The vault has not answered yet."
		case m.filter != "":
			text = "  Nothing that waits matches the filter. / then esc clears it."
		}
		return rowsOf([]string{"", dim(text)})
	}
	at := max(slices.IndexFunc(shown, func(op *vaultv1.Operation) bool { return op.GetOperationId() == m.selected }), 0)
	// The card under the cursor keeps its room; the others are shown around it as far as there is some.
	card := m.cardLines(shown[at], room-min(len(shown)-1, room/3))
	others := max(room-len(card), 0)
	hidden := 0
	if others < len(shown)-1 {
		others = max(others-1, 0)
		hidden = len(shown) - 1 - others
	}
	first, last := at, at+1
	for ; others > 0 && last < len(shown); others-- {
		last++
	}
	for ; others > 0 && first > 0; others-- {
		first--
	}
	lines := m.titles(shown, first, at, last, card)
	if hidden > 0 {
		lines = append(lines, row{text: dim(fmt.Sprintf("  … %d more wait: ↑↓", hidden))})
	}
	return lines[:min(len(lines), room)]
}

func (m *Model) titles(shown []*vaultv1.Operation, first, at, last int, card []string) []row {
	var lines []row
	for i := first; i < last; i++ {
		id := shown[i].GetOperationId()
		if i == at {
			for _, text := range card {
				lines = append(lines, row{text: text, operation: id})
			}
			continue
		}
		c := m.card(shown[i])
		title := "  " + oneLine(c.Title(), m.width-2)
		if c.IsDestructive() {
			title = red(title)
		}
		lines = append(lines, row{text: title, operation: id})
	}
	return lines
}

func (m *Model) cardLines(op *vaultv1.Operation, room int) []string {
	c := m.card(op)
	var lines []string
	for i, text := range c.Lines(m.now()) {
		mark := "  "
		if i == 0 && !m.onServices && op.GetOperationId() == m.selected { // which the filter may hide by now
			mark = "› "
		}
		for j, part := range wrap(text, m.width-2) {
			if j > 0 {
				mark = "  "
			}
			lines = append(lines, mark+part)
		}
	}
	title := len(wrap(c.Title(), m.width-2))
	lines = clip(lines, max(room, 2), "enter")
	for i := range lines {
		switch {
		case c.IsDestructive() && (i < title || i == title):
			lines[i] = red(lines[i])
		case i < title:
			lines[i] = bold(lines[i])
		}
	}
	return lines
}

// detail is everything about an operation.
func (m *Model) detail(id string) []approval.Line {
	op := m.pending(id)
	if op == nil {
		return nil
	}
	c := m.card(op)
	lines := c.Sheet(m.now())
	add := func(kind approval.Kind, texts ...string) {
		for _, text := range texts {
			lines = append(lines, approval.Line{Kind: kind, Text: text})
		}
	}
	add(approval.Heading, "Arguments, whole:")
	add(approval.Plain, approval.Lines(op.GetArguments())...)
	if entry := c.Preview.GetSubject().GetEntry(); len(entry) > 0 {
		add(approval.Heading, "What it acts on, as the executor has it:")
		add(approval.Plain, approval.Lines(entry)...)
	}
	add(approval.Heading, "Names:")
	add(approval.Plain, "operation "+clean.Visible(op.GetOperationId()), "request   "+clean.Visible(op.GetRequestId()),
		"sink      "+clean.Visible(op.GetAudience()), fmt.Sprintf("waiting   %s, %d joined", clean.Count(op.GetWaiters(), "call"), op.GetJoined()))
	if op.GetRule() != "" {
		add(approval.Plain, "rule      "+clean.Visible(op.GetRule()))
	}
	return lines
}

// wrapped are the lines to read, at the screen's width.
func (m *Model) wrapped() []string {
	var out []string
	for _, line := range m.lines {
		for _, part := range wrap(line.Text, m.width) {
			switch line.Kind {
			case approval.Heading:
				part = bold(part)
			case approval.Danger:
				part = red(part)
			}
			out = append(out, part)
		}
	}
	return out
}

func (m *Model) lastScroll() int { return max(len(m.wrapped())-(m.room()-1), 0) }

// reading is a text that can be scrolled, with a line that says where one is.
func (m *Model) reading(room int) []string {
	lines := m.wrapped()
	page := max(room-1, 1)
	from := max(min(m.scroll, len(lines)-page), 0)
	to := min(from+page, len(lines))
	where := fmt.Sprintf("── lines %d to %d of %d", min(from+1, len(lines)), to, len(lines))
	if left := len(lines) - to; left > 0 {
		where += " · … " + clean.Count(left, "more line") + " below"
	} else {
		where += " · the end"
	}
	return append(padded(slices.Clone(lines[from:to]), page), dim(where))
}

func (m *Model) revoking(room int) []string {
	lines := []string{bold("What sessions may do without asking you:")}
	if len(m.vault.Standing) == 0 {
		lines = append(lines, dim("  nothing"))
	}
	at := 0
	for _, s := range m.vault.Standing {
		mark := "  "
		if s.GetStandingId() == m.standing {
			mark, at = "› ", len(lines)
		}
		text := fmt.Sprintf("%s  %s, session %s, %d of %d uses left, ends in %s", clean.Line(s.GetKind(), 16), clean.Line(s.GetPrincipal(), 64),
			clean.Line(s.GetSession(), 32), s.GetUsesLeft(), s.GetUses(), approval.Duration(s.GetExpiresAt().AsTime().Sub(m.now())))
		if s.GetKind() == "dangerous" {
			text = red(oneLine("DANGEROUS MODE  "+clean.Line(s.GetPrincipal(), 64)+", session "+clean.Line(s.GetSession(), 32)+
				", ends in "+approval.Duration(s.GetExpiresAt().AsTime().Sub(m.now())), m.width-2))
		} else {
			text = oneLine(text, m.width-2)
		}
		lines = append(lines, mark+text)
	}
	for _, mute := range m.vault.Muted {
		lines = append(lines, dim("  "+oneLine(fmt.Sprintf("%s is muted until %s: durward mute %s --off", clean.Line(mute.GetPrincipal(), 64),
			mute.GetUntil().AsTime().Local().Format("15:04"), clean.Line(mute.GetPrincipal(), 64)), m.width-2)))
	}
	// The line under the cursor is shown, with one above and one below for what is not.
	if above := min(at-room+3, at-1); above > 0 {
		lines = slices.Replace(lines, 1, 1+above, dim(fmt.Sprintf("  … %d more: ↑", above)))
	}
	return clip(lines, room, "durward standing")
}

func (m *Model) gpuLines() []string {
	if m.host == nil || len(m.host.GetGpus()) == 0 {
		return nil
	}
	var lines []string
	for _, holders := range m.host.GetGpus() {
		g := holders.GetGpu()
		name := fmt.Sprintf("GPU %d ", g.GetIndex())
		if g.GetProblem() != "" {
			lines = append(lines, name+red(oneLine(clean.Line(g.GetProblem(), 200), m.width-8)))
			continue
		}
		sizes := bars.Of(g)
		text := fmt.Sprintf(" %s free of %s", bars.Size(g.GetMemoryFreeMib()), bars.Size(g.GetMemoryTotalMib()))
		lines = append(lines, name+bars.Draw(sizes, max(min(m.width-len(name)-len(text), 100), 10), bars.Paint(green, red, yellow, dim))+text)
	}
	return lines
}

func (m *Model) historyLines() []string {
	var lines []string
	for _, op := range m.vault.Operations {
		if op.GetState() != vaultv1.OperationState_OPERATION_STATE_PENDING {
			lines = append(lines, m.pastLine(op))
		}
	}
	for _, op := range m.vault.History {
		lines = append(lines, m.pastLine(op))
	}
	if len(lines) == 0 {
		return nil
	}
	return append([]string{dim("── history")}, lines...)
}

func (m *Model) pastLine(op *vaultv1.Operation) string {
	state := contract.WordOf(op.GetState())
	at := op.GetDecidedAt().AsTime()
	if op.GetDecidedAt() == nil {
		at = op.GetAskedAt().AsTime()
	}
	if by := op.GetDecidedBy(); by != "" {
		state += " by " + approval.Person(by)
	}
	text := fmt.Sprintf("  %s  %s  %s %s  for %s", at.Local().Format("15:04:05"), state, clean.Line(op.GetTool().GetName(), 64),
		clean.Line(approval.Arguments(op.GetArguments()), 200), clean.Line(op.GetPrincipal(), 64))
	if output.Columns(text) > m.width {
		text = output.Cut(text, m.width-1) + "…"
	}
	return text
}

func help() []approval.Line {
	return output.Each(strings.Split(helpText, "\n"), func(text string) approval.Line { return approval.Line{Text: text} })
}

const helpText = `a      approve this one call: shows it on one screen, v shows it whole, y signs
s      approve within a scope: the session may repeat it without asking
d      deny, with a reason that the agent is told
m      mute the client that asks: it cannot ask you for a while
enter  everything about the request
r      what sessions may do without asking, and end it
tab    to the services and back: l or enter shows the log of the chosen one,
       s starts, x stops, z puts it to sleep, w wakes it, once you have signed
mouse  chooses a line and scrolls; it decides nothing (with shift it marks text)
/      show only what matches
p      PANIC, held or pressed three times: the vault and the executor refuse every change, at once
L      lock the signing key now; it locks by itself 5 minutes after its passphrase
q      quit; ctrl-z gives you the shell back until fg, and locks the key

What agents and clients say is shown with hostile characters as escapes, \u{202E}.
Nothing is cut without saying so: "… N more lines: enter".
Dangerous mode is turned on by durward dangerous enable, never here.`
