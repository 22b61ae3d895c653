package tui

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

func services(ids ...string) Services {
	var out Services
	for _, id := range ids {
		out = append(out, &executorv1.ServiceSummary{ServiceId: id, State: executorv1.ServiceState_SERVICE_STATE_STOPPED})
	}
	return out
}

// TestServicesAreChosenAndActedOn: each key's own tool, on the service under the cursor, signed for what was shown.
func TestServicesAreChosenAndActedOn(t *testing.T) {
	for key, tool := range map[string]string{"s": "start_service", "x": "stop_service", "z": "sleep_service", "w": "wake_service"} {
		s := newStage(t, 80, 24)
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service")}})
		s.send(services("chat", "coder", "embed"))
		s.keys("tab", "down")
		s.sees("› coder", "s start", "x stop", "tab requests")
		s.keys(key)
		s.asked("act " + tool + " coder")
		s.sees(tool+" service_id=coder", "You sign: "+tool)
		// Not by a key that was on its way; and the end of an agent's request ends nothing of it.
		s.keys("y")
		s.asked()
		s.send(Vault{})
		s.clock = s.clock.Add(time.Second)
		s.keys("y")
		s.asked("sign command "+tool+" coder ", "then coder")
		s.sees("coder is well")
	}
}

// TestADocumentOfAServiceIsDroppedWhereTheCursorHasLeft: as that of a request is.
func TestADocumentOfAServiceIsDroppedWhereTheCursorHasLeft(t *testing.T) {
	for name, between := range map[string]func(*stage){
		"given up":          func(s *stage) { s.keys("esc") },
		"back to requests":  func(s *stage) { s.keys("esc", "tab") },
		"another service":   func(s *stage) { s.keys("esc", "down") },
		"a reason is typed": func(s *stage) { s.keys("esc", "tab", "d", "no") },
	} {
		s := newStage(t, 80, 24)
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service")}})
		s.send(services("chat", "coder"))
		s.keys("tab")
		deliver := s.hold("s")
		between(s)
		deliver()
		if s.m.proposal != nil || s.m.mode == modeSheet {
			t.Errorf("%s: the late document is on the screen:\n%s", name, s.text())
		}
	}
	// A request's document is not one of a service either.
	s := newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service")}})
	s.send(services("chat"))
	s.keys("tab")
	deliver := s.hold("s")
	s.send(proposed{job: s.m.job, operation: operation(1, "stop_service").GetOperationId(), proposal: &Proposal{}})
	if s.m.mode == modeSheet {
		t.Error("another look's document is shown")
	}
	deliver()
}

// TestAPassphraseForACommandOutlivesRequests: what is typed for a person's own command is taken by that alone.
func TestAPassphraseForACommandOutlivesRequests(t *testing.T) {
	s := newStage(t, 80, 24)
	s.d.passphrase = true
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service")}})
	s.send(services("chat"))
	s.keys("tab", "s")
	s.clock = s.clock.Add(time.Second)
	s.keys("y", "sesame")
	s.send(Vault{})
	s.send(services())
	s.keys("enter")
	s.asked("act start_service chat", "sign command start_service chat sesame", "then chat")
}

// TestLogsAreFollowed: the newest lines are on the screen while its end is, hostile ones as text, and leaving ends it.
func TestLogsAreFollowed(t *testing.T) {
	s := newStage(t, 80, 24)
	var lines []string
	for n := range 2 * KeptLines {
		lines = append(lines, fmt.Sprintf("line %04d", n))
	}
	s.d.logs = [][]string{lines, {"K7F3  READ  \x1b[2Jforged"}}
	s.send(services("chat"))
	s.keys("tab", "l")
	s.asked("logs chat")
	s.sees("│ line 0999", "│ K7F3  READ", "the end")
	s.keys("g")
	s.sees("chat's own words:", "line 0501")
	if strings.Contains(s.text(), "line 0500") {
		t.Error("more lines are kept than there is room for")
	}
	followed := s.m.logs
	s.keys("esc")
	if s.m.mode != modeList || s.m.logs != nil {
		t.Error("esc does not end it")
	}
	s.send(logLines{followed, []string{"late"}})
	if strings.Contains(s.text(), "late") {
		t.Error("what comes late is shown")
	}
}

// TestALogIsOpenedWhileSomethingIsSigned: what is signed meanwhile ends as it would, and the next decision is taken.
func TestALogIsOpenedWhileSomethingIsSigned(t *testing.T) {
	s := newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service")}})
	s.send(services("chat"))
	s.keys("tab", "s")
	s.clock = s.clock.Add(time.Second)
	deliver := s.hold("y")
	s.keys("l")
	deliver()
	s.keys("esc")
	if s.m.busy != "" {
		t.Errorf("the screen goes on to say %q", s.m.busy)
	}
	s.keys("tab", "a")
	s.asked("act start_service chat", "logs chat", "sign command start_service chat ", "then chat", "approve 0001")
}

// TestTheMouseChoosesAndDecidesNothing: a click puts the cursor on a request or a service, the wheel moves and scrolls.
func TestTheMouseChoosesAndDecidesNothing(t *testing.T) {
	s := newStage(t, 80, 24)
	s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service"), operation(2, "start_service")}})
	s.send(services("chat", "coder", "embed"))
	click := func(text string) {
		t.Helper()
		y := slices.IndexFunc(strings.Split(s.text(), "\n"), func(line string) bool { return strings.Contains(line, text) })
		if y < 0 {
			t.Fatalf("%q is not on the screen:\n%s", text, s.text())
		}
		s.send(tea.MouseClickMsg{X: 5, Y: y, Button: tea.MouseLeft})
	}
	click("WRITE  start_service")
	if s.m.selected != operation(2, "start_service").GetOperationId() || s.m.onServices {
		t.Errorf("chosen: %s", s.m.selected)
	}
	click("coder")
	if s.m.service != "coder" || !s.m.onServices {
		t.Errorf("chosen: %s", s.m.service)
	}
	s.send(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	if s.m.service != "embed" {
		t.Errorf("the wheel chose %s", s.m.service)
	}
	click("stop_service")
	s.send(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	if s.m.selected != operation(2, "start_service").GetOperationId() {
		t.Errorf("the wheel chose %s", s.m.selected)
	}
	// Wherever it is clicked on a document, nothing is signed.
	s.keys("a")
	s.d.calls = nil
	s.clock = s.clock.Add(time.Second)
	for y := range 24 {
		for _, button := range []tea.MouseButton{tea.MouseLeft, tea.MouseRight, tea.MouseMiddle} {
			s.send(tea.MouseClickMsg{X: 1, Y: y, Button: button})
		}
		s.send(tea.MouseWheelMsg{Button: tea.MouseWheelUp})
	}
	s.asked()
	if s.m.mode != modeSheet || s.m.View().MouseMode != tea.MouseModeCellMotion {
		t.Errorf("mode %v", s.m.mode)
	}
}

// TestTheServiceUnderTheCursorIsOnTheScreen of many, whatever the screen's size.
func TestTheServiceUnderTheCursorIsOnTheScreen(t *testing.T) {
	var ids []string
	for n := range 40 {
		ids = append(ids, fmt.Sprintf("service-%02d", n))
	}
	for _, height := range []int{24, 60} {
		s := newStage(t, 80, height)
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "stop_service")}})
		s.send(services(ids...))
		s.keys("tab")
		for _, id := range ids {
			s.sees("› " + id)
			s.keys("down")
		}
		s.sees("more: tab")
		// It stays on its service when others come and go.
		s.send(services("new", "service-39", "other"))
		s.sees("› service-39")
		s.send(services())
		if s.m.onServices || s.m.service != "" {
			t.Error("the cursor is on a service that is not there")
		}
		s.keys("tab", "s", "l")
	}
}

// TestTheHelpBarHasWholeEntries: as many as there is room for, the panic first.
func TestTheHelpBarHasWholeEntries(t *testing.T) {
	for width := 20; width < 120; width++ {
		s := newStage(t, width, 24)
		s.send(services("chat"))
		lines := strings.Split(s.text(), "\n")
		bar := strings.TrimRight(lines[len(lines)-1], " ")
		if !strings.HasPrefix(bar, "p PANIC") || !strings.HasPrefix("p PANIC  a approve  s scope  d deny  m mute  tab services  ? help  q quit  enter all  r revoke  ", bar+"  ") {
			t.Errorf("at %d: %q", width, bar)
		}
		if width >= 80 && !strings.Contains(bar, "q quit") {
			t.Errorf("a terminal %d wide does not say how to leave: %q", width, bar)
		}
	}
}

// The service that the keys act on is on the screen, however small that is and however much else there is to show.
func TestTheChosenServiceIsSeen(t *testing.T) {
	var services Services
	for i := range 40 {
		services = append(services, &executorv1.ServiceSummary{ServiceId: fmt.Sprintf("chat-%02d", i)})
	}
	var gpus []*executorv1.GpuHolders
	for i := range 8 {
		gpus = append(gpus, &executorv1.GpuHolders{Gpu: &executorv1.Gpu{Index: uint32(i), MemoryTotalMib: 24576}})
	}
	for height := 6; height <= 30; height++ {
		s := newStage(t, 40, height)
		s.send(Vault{Operations: []*vaultv1.Operation{operation(1, "start_service"), operation(2, "stop_service")}})
		s.send(services)
		s.send(Host{&executorv1.GetHostResponse{Gpus: gpus}})
		s.keys("tab")
		for _, service := range services {
			s.sees("› " + service.GetServiceId())
			s.keys("down")
		}
	}
}
