package tui

import (
	"context"
	"fmt"
	"slices"

	tea "charm.land/bubbletea/v2"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
)

// KeptLines is how many lines of a log are kept.
const KeptLines = 500

// servicePattern is what a service's id is; what is called otherwise is shown and not acted on.
var servicePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`)

// serviceTools are the tools behind the keys of a service.
var serviceTools = map[string]string{"s": "start_service", "x": "stop_service", "z": "sleep_service", "w": "wake_service"}

// serviceKey takes a key that is about the service under the cursor.
func (m *Model) serviceKey(name string) tea.Cmd {
	switch name {
	case "up", "k":
		m.moveService(-1)
		return nil
	case "down", "j":
		m.moveService(1)
		return nil
	}
	if !servicePattern().MatchString(m.service) {
		m.say("No service is chosen.")
		return nil
	}
	if name == "l" || name == "enter" {
		return m.follow()
	}
	tool, ok := serviceTools[name]
	if !ok || m.busy != "" {
		return nil
	}
	service := m.service
	job := m.begin("looking at it")
	m.looking, m.own = true, true
	return m.call(func(ctx context.Context) tea.Msg {
		p, err := m.backend.Act(ctx, tool, service)
		return proposed{job: job, service: service, proposal: p, err: err}
	})
}

// moveService moves the cursor among the services. It stays on its service when the list changes.
func (m *Model) moveService(by int) {
	if len(m.services) == 0 {
		m.service, m.onServices = "", false
		return
	}
	at := slices.IndexFunc(m.services, func(s *executorv1.ServiceSummary) bool { return s.GetServiceId() == m.service })
	if at < 0 && m.own {
		return // its document is on the screen
	}
	m.service = m.services[max(0, min(at+by, len(m.services)-1))].GetServiceId()
}

// logs are a service's log that is followed.
type logs struct {
	end   context.CancelFunc
	lines chan []string
}

// follow opens the log of the service under the cursor. It is no job: what a key began before goes on, and ends as such.
func (m *Model) follow() tea.Cmd {
	ctx, cancel := context.WithCancel(m.ctx)
	l := &logs{end: cancel, lines: make(chan []string, KeptLines)}
	service := m.service
	m.mode, m.lines, m.scroll, m.logs = modeLogs, []approval.Line{{Kind: approval.Heading, Text: clean.Visible(service) + "'s own words:"}}, 0, l
	return tea.Batch(func() tea.Msg {
		defer close(l.lines)
		err := m.backend.Logs(ctx, service, func(lines []string) {
			select {
			case l.lines <- lines:
			case <-ctx.Done():
			}
		})
		if err == nil || ctx.Err() != nil {
			return nil
		}
		return done{job: -1, err: err}
	}, l.next())
}

// next waits for the next lines.
func (l *logs) next() tea.Cmd {
	return func() tea.Msg {
		lines, ok := <-l.lines
		if !ok {
			return nil
		}
		return logLines{l, lines}
	}
}

// tookLines adds lines to the log that is on the screen, and stays at its end where that was.
func (m *Model) tookLines(msg logLines) tea.Cmd {
	if m.mode != modeLogs || m.logs != msg.of {
		return nil
	}
	atEnd := m.scroll >= m.lastScroll()
	for _, text := range msg.lines {
		m.lines = append(m.lines, approval.Line{Text: "│ " + text})
	}
	if over := len(m.lines) - 1 - KeptLines; over > 0 {
		m.lines = slices.Delete(m.lines, 1, 1+over)
	}
	if atEnd {
		m.scroll = m.lastScroll()
	}
	return m.logs.next()
}

// finish runs what goes on after something was signed, for as long as it takes.
func (m *Model) finish(then func(context.Context) (string, error)) tea.Cmd {
	return func() tea.Msg {
		text, err := then(m.ctx)
		return done{job: -1, text: text, err: err}
	}
}

// row is a line of the list, and what a click on it chooses.
type row struct {
	text               string
	operation, service string
}

func rowsOf(lines []string) []row {
	out := make([]row, len(lines))
	for i, text := range lines {
		out[i].text = text
	}
	return out
}

// serviceRows are the services, at most so many lines, the one under the cursor among them.
func (m *Model) serviceRows(most int) []row {
	if len(m.services) == 0 || most < 2 {
		return nil
	}
	room := most - 1
	first := 0
	if len(m.services) > room {
		room--
		at := slices.IndexFunc(m.services, func(s *executorv1.ServiceSummary) bool { return s.GetServiceId() == m.service })
		first = max(0, min(at-room/2, len(m.services)-room))
	}
	out := []row{{text: dim("── services")}}
	for _, s := range m.services[first:min(first+room, len(m.services))] {
		out = append(out, row{text: m.serviceLine(s), service: s.GetServiceId()})
	}
	if hidden := len(m.services) - room; hidden > 0 {
		out = append(out, row{text: dim(fmt.Sprintf("  … %d more: tab ↑↓", hidden))})
	}
	return out
}

func (m *Model) serviceLine(s *executorv1.ServiceSummary) string {
	state := contract.WordOf(s.GetState())
	painted := fmt.Sprintf("%-10s", state)
	switch s.GetState() {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING:
		painted = green(painted)
	case executorv1.ServiceState_SERVICE_STATE_FAILED:
		painted = red(painted)
	default: // no colour
	}
	mark, name := "  ", fmt.Sprintf("%-28s", clean.Line(s.GetServiceId(), 28))
	if m.onServices && s.GetServiceId() == m.service {
		mark, name = "› ", bold(name)
	}
	return mark + name + " " + painted + " " + dim(clean.Line(s.GetModel(), 64))
}

// click chooses what is under the pointer. It decides nothing.
func (m *Model) click(at tea.Mouse) {
	if at.Button != tea.MouseLeft || m.mode != modeList || m.looking {
		return
	}
	rows := m.list(m.room())
	y := at.Y - len(m.head())
	if y < 0 || y >= len(rows) {
		return
	}
	switch {
	case rows[y].operation != "":
		m.selected, m.onServices = rows[y].operation, false
	case rows[y].service != "":
		m.service, m.onServices = rows[y].service, true
	}
}

// wheelLines is how far one turn of the wheel scrolls.
const wheelLines = 3

// wheel scrolls a text, and moves the cursor of a list.
func (m *Model) wheel(turn tea.Mouse) {
	by := 1
	if turn.Button == tea.MouseWheelUp {
		by = -1
	} else if turn.Button != tea.MouseWheelDown {
		return
	}
	switch {
	case m.looking:
	case m.mode == modeDetail, m.mode == modeSheet, m.mode == modeHelp, m.mode == modeLogs:
		m.scroll += by * wheelLines
		m.lookedAt()
	case m.mode == modeList && m.onServices:
		m.moveService(by)
	case m.mode == modeList:
		m.move(by)
	}
}
