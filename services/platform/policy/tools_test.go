package policy

import (
	"strings"
	"testing"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

func tools(text string) Source { return system("tools.yaml", text) }

func project(text string, clients ...string) Source {
	return Source{Layer: Project, Clients: clients, Name: "projects/1.yaml", Text: []byte(text)}
}

func TestToolsFilesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		source Source
		want   string
	}{
		{"empty", tools(""), "tools.yaml: the file is empty"},
		{"two documents", tools("tools: {}\n---\ntools: {}\n"), "a second document"},
		{"an anchor", tools("tools: &a {}\n"), "anchors, aliases and merges"},
		{"a duplicate", tools("tools:\n  gpu_status: {}\n  gpu_status: {}\n"), `tools.yaml:3:3: mapping key "gpu_status" already defined`},
		{"an unknown key", tools("tools:\n  gpu_status:\n    teir: READ\n"), `tools.yaml:3:5: unknown key "teir" in tools.gpu_status; did you mean "tier"?`},
		{"settings where they are not", tools("settings: {}\n"), "unknown key"},
		{"an unknown tool", tools("tools:\n  swich_mode: {}\n"), `tools.yaml:2:3: there is no tool swich_mode; did you mean "switch_mode"?`},
		{"a tool of no source", tools("tools:\n  'nobody:x': {}\n"), "mcp:SERVER:NAME"},
		{"a tier that is none", tools("tools:\n  gpu_status:\n    tier: WRITER\n"), "tools.yaml:3:5: tier is READ, WRITE, DESTRUCTIVE or DENIED"},
		{"a tier that is no word", tools("tools:\n  gpu_status:\n    tier: UNSPECIFIED\n"), "tier is READ"},
		{"a lower tier that asks all the same", tools("tools:\n  switch_mode:\n    tier: WRITE\n"), "READ lets it run without asking"},
		{"a number of the wrong type", tools("tools:\n  gpu_status:\n    session_limit: many\n"), "tools.yaml:3:20"},
		{"no calls at all", tools("tools:\n  gpu_status:\n    session_limit: 0\n"), "tools.yaml:3:5: session_limit is 1 to"},
		{"fewer than none", tools("tools:\n  gpu_status:\n    budget:\n      day: -1\n"), "tools.yaml:4:7: budget.day is 1 to"},
		{"too long an interval", tools("tools:\n  gpu_status:\n    min_interval_s: 99999999\n"), "min_interval_s is 1 to"},
		{"a limit of a tool that the vault answers", tools("tools:\n  security_config:\n    budget: {day: 1}\n"), "tools.yaml:3:14: the vault answers security_config on a session's permit and counts no calls"},
		{"an interval of one", tools("tools:\n  wait_operation:\n    min_interval_s: 9\n"), "tools.yaml:3:5: the vault answers wait_operation"},
		{"a client that can be none", tools("tools:\n  gpu_status:\n    opt_in: ['a\") || true || (\"']\n"), "is no client's id"},
		{"a project that lowers", project("tools:\n  start_service:\n    tier: READ\n"), "projects/1.yaml:3:5: a project cannot lower a tier"},
		{"a project that lowers another source's", project("tools:\n  'mcp:web:fetch':\n    tier: READ\n"), "a project cannot lower a tier"},
		{"too large", tools("tools: {}\n#" + strings.Repeat("x", maxFileBytes)), "larger than 256 KiB"},
		{"too many", tools("tools:\n" + manyTools(maxTools+1)), "more than 500 tools"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Compile([]Source{c.source})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestALoweredTierIsNotAll: what tools.yaml lets run, the executor has to let run as well.
func TestALoweredTierIsNotAll(t *testing.T) {
	lowered := []Source{tools("tools:\n  stop_service:\n    tier: READ\n  gpu_status:\n    tier: READ\n  switch_mode:\n    session_limit: 3\n")}
	got := Check(lowered, Known{})
	if len(got) != 1 || !got[0].Warning || got[0].Line != 3 || !strings.Contains(got[0].Text, "stop_service run without asking also needs an entry in the executor's file") {
		t.Errorf("got %v", got)
	}
	if got := Check(lowered, Known{Unattended: []string{"stop_service"}}); len(got) != 0 {
		t.Errorf("with an entry: %v", got)
	}
	if _, err := Compile(lowered); err != nil {
		t.Error(err)
	}
}

func manyTools(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("  'mcp:web:t" + strings.Repeat("x", i%50) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + "': {}\n")
	}
	return b.String()
}

func TestTiers(t *testing.T) {
	status, start, sw := native(t, "gpu_status"), native(t, "start_service"), native(t, "switch_mode")
	const night = `forbid (principal, action, resource) when { context.tier == "WRITE" };`
	for _, c := range []struct {
		name    string
		sources []Source
		call    Call
		want    Verdict
		tier    optionsv1.Tier
		rule    string
	}{
		{"denied", []Source{tools("tools: {gpu_status: {tier: DENIED}}")}, call(status), Deny, read, "tools/gpu_status/tier"},
		{"denied, and permitted by everything else", []Source{tools("tools: {start_service: {tier: DENIED}}"), system("policy/a.cedar", allowAll)}, call(start, dangerous), Deny, write, "tools/start_service/tier"},
		{"raised above the ceiling", []Source{tools("tools: {gpu_status: {tier: WRITE}}")}, call(status, ceiling(read)), Deny, write, "above-the-ceiling"},
		{"raised beyond what messaging may", []Source{tools("tools: {gpu_status: {tier: WRITE}}")}, call(status, messaging), Deny, write, "messaging-only-reads"},
		{"raised out of what is forbidden", []Source{system("policy/a.cedar", `@id("w") `+night), tools("tools: {start_service: {tier: DESTRUCTIVE}}")}, call(start), Deny, destructive, "w"},
		{"raised", []Source{tools("tools: {gpu_status: {tier: WRITE}}")}, call(status), Ask, write, "may-be-asked-for"},
		{"raised twice", []Source{tools("tools: {gpu_status: {tier: WRITE}}"), project("tools: {gpu_status: {tier: DESTRUCTIVE}}")}, call(status), Ask, destructive, "may-be-asked-for"},
		{"raised by the project, for whom a human allowed it", []Source{system("policy/a.cedar", allowAll), project("tools: {gpu_status: {tier: WRITE}}")}, call(status), Ask, write, "tools/gpu_status/tier"},
		{"lowered by one human and raised by another", []Source{
			tools("tools: {start_service: {tier: DESTRUCTIVE}}"), {Layer: User, User: "alice", Name: "users/alice/tools.yaml", Text: []byte("tools: {start_service: {tier: READ}}")},
		}, call(start), Ask, destructive, "may-be-asked-for"},
		{"lowered, for a bearer", []Source{tools("tools: {start_service: {tier: READ}}")}, call(start, bearer), Ask, write, "bearer-changes-ask"},
		{"another source's that nobody lowered", []Source{tools("tools: {'mcp:web:fetch': {}}")}, call(downstream(write)), Ask, write, "may-be-asked-for"},
		{"another source's, known in a project alone", []Source{project("tools: {'mcp:web:fetch': {}}")}, call(downstream(read)), Ask, read, "may-be-asked-for"},
		{"another source's, known to another user alone", []Source{{Layer: User, User: "bob", Name: "users/bob/tools.yaml", Text: []byte("tools: {'mcp:web:fetch': {}}")}}, call(downstream(read)), Ask, read, "may-be-asked-for"},
		{"a tool that borrows a native one's name", []Source{tools("tools: {gpu_status: {}}")}, call(renamed(downstream(read), "gpu_status")), Ask, read, "may-be-asked-for"},
		{"another source's that looks", []Source{tools("tools: {'mcp:web:fetch': {}}")}, call(downstream(read)), Run, read, "read-runs"},
		{"another source's, lowered", []Source{tools("tools: {'mcp:web:fetch': {tier: READ}}")}, call(downstream(write)), Run, write, "tools/mcp:web:fetch/tier"},
		{"lowered", []Source{tools("tools: {switch_mode: {tier: READ}}")}, call(sw), Run, sw.Tier, "tools/switch_mode/tier"},
		{"raised, in dangerous mode", []Source{tools("tools: {gpu_status: {tier: DESTRUCTIVE}}")}, call(status, dangerous), Run, destructive, "dangerous-mode-runs"},
		{"the same", []Source{tools("tools: {gpu_status: {tier: READ}}")}, call(status), Run, read, "read-runs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := compiledSet(t, c.sources...)
			d := s.Decide(c.call)
			if d.Verdict != c.want || d.Tier != c.tier || d.Rule.ID != c.rule {
				t.Errorf("%v at %v by %s, want %v at %v by %s", d.Verdict, d.Tier, d.Rule.ID, c.want, c.tier, c.rule)
			}
			if v, ok := s.Always(c.call); ok && v != c.want {
				t.Errorf("always %v", v)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	start := native(t, "start_service")
	text := `tools:
  start_service:
    min_interval_s: 30
    session_limit: 8
    opt_in: [cursor, claude]
    budget:
      session: 9
      day: 50
      month: 100
`
	s := compiledSet(t, tools(text))
	counted := func(n Counts) func(*Call) { return func(c *Call) { c.Counts = n } }
	for _, c := range []struct {
		name   string
		counts Counts
		rule   string
		line   int
		after  time.Duration
	}{
		{"just now", Counts{Last: monday.Add(-time.Second)}, "tools/start_service/interval", 3, 29 * time.Second},
		{"a moment too soon", Counts{Last: monday.Add(-29*time.Second - 900*time.Millisecond)}, "tools/start_service/interval", 3, time.Second},
		{"the clock was set back", Counts{Last: monday.Add(time.Hour)}, "tools/start_service/interval", 3, time.Hour + 30*time.Second},
		{"the session", Counts{Session: 8}, "tools/start_service/session-limit", 4, 8 * time.Hour},
		{"the day", Counts{Day: 50}, "tools/start_service/budget-day", 8, 13*time.Hour + 30*time.Minute},
		{"the month", Counts{Month: 100}, "tools/start_service/budget-month", 9, 29*24*time.Hour + 13*time.Hour + 30*time.Minute},
		{"all of them", Counts{Session: 9, Day: 50, Month: 101, Last: monday}, "tools/start_service/interval", 3, 29*24*time.Hour + 13*time.Hour + 30*time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := s.Decide(call(start, counted(c.counts)))
			if d.Verdict != Deny || d.Rule.ID != c.rule || d.Rule.Line != c.line || d.RetryAfter != c.after {
				t.Errorf("%v by %s:%d, after %v; want %s:%d, after %v", d.Verdict, d.Rule.ID, d.Rule.Line, d.RetryAfter, c.rule, c.line, c.after)
			}
			// Nothing that a human permits lifts it, dangerous mode neither.
			wide := compiledSet(t, tools(text), system("policy/a.cedar", allowAll))
			if d := wide.Decide(call(start, counted(c.counts), dangerous)); d.Verdict != Deny {
				t.Errorf("with everything permitted: %v", d.Verdict)
			}
			// A denial that waiting does not end is told instead.
			if d := s.Decide(call(start, counted(c.counts), ceiling(read))); d.RetryAfter != 0 || d.Rule.ID != "above-the-ceiling" {
				t.Errorf("above the ceiling: %+v", d)
			}
		})
	}
	if d := s.Decide(call(start, func(c *Call) { c.Client = "other" })); d.Verdict != Deny || d.Rule.ID != "tools/start_service/opt-in" || d.RetryAfter != 0 {
		t.Errorf("a client that was not named: %+v", d)
	}
	within := Counts{Session: 7, Day: 49, Month: 99, Last: monday.Add(-30 * time.Second)}
	if d := s.Decide(call(start, counted(within), func(c *Call) { c.Agent = "coder" })); d.Verdict != Ask {
		t.Errorf("within every limit: %+v", d)
	}
	if _, ok := s.Always(call(start)); ok {
		t.Error("a tool with limits is always decided alike")
	}
	if !s.Counted("cursor", "start_service") || s.Counted("cursor", "stop_service") {
		t.Error("the wrong calls are counted")
	}
	scoped := compiledSet(t, system("policy/a.cedar", `forbid (principal in Client::"cursor", action in Action::"call", resource) when { context.calls.day > 3 };`))
	if !scoped.Counted("cursor", "gpu_status") || scoped.Counted("other", "gpu_status") {
		t.Error("the wrong clients are counted")
	}
}

func renamed(tool contract.Tool, name string) contract.Tool {
	tool.Name = name
	return tool
}
