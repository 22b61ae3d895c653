package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/platformtest"
)

func TestCheck(t *testing.T) {
	const head = `@id("x") permit (principal, action == Action::"call:switch_mode", resource)`
	const look = `@id("x") forbid (principal, action == Action::"call:simulate_mode", resource)`
	others := 0
	for _, tool := range contract.Tools() {
		if tool.ResourceArgument != "mode_id" {
			others++
		}
	}
	for _, c := range []struct {
		name, text string
		// want is what Check says of the file, without its name; a warning is no error of Compile.
		want []string
	}{
		{"syntax", "\n  permit (principal, action resource);", []string{"2:37: cannot be read: resource stands where , is expected"}},
		{"an open text", `permit (principal, action, resource) when { "abc };`, []string{"1:45: cannot be read: literal not terminated"}},
		{"an id for a terminal", `@id("a\u{1b}[2J") permit (principal, action, resource);`, []string{"1:1: @id is at most 128 letters, digits and _.:/@+-"}},
		{"an id that is built in", `@id("read-runs") permit (principal, action, resource);`, []string{"1:1: the @id read-runs is taken by what is built in"}},
		{"an id of a tools.yaml", `@id("tools/x/tier") permit (principal, action, resource);`, []string{"1:1: the @id tools/x/tier is taken by what is built in"}},
		{"an id twice", head + ";\n" + head + ";", []string{"2:1: the @id x stands at policy/a.cedar:1 already"}},
		{"no such attribute", head + " when { context.nonsense };", []string{"1:1: x: the context of switch_mode has no nonsense"}},
		{"no such attribute of any call", `@id("x") forbid (principal, action, resource) when { context.nonsense };`, []string{"1:1: x: the context of a call has no nonsense"}},
		{"no such argument", head + ` when { context.arguments.model == "x" };`, []string{`1:1: x: model is no argument of switch_mode; write "context.arguments has model &&" before it`}},
		{"an argument that need not be there", head + " when { context.arguments.margin_mib_override < 7 };",
			[]string{`1:1: x: a call need not have the argument margin_mib_override; write "context.arguments has margin_mib_override &&" before it`}},
		{"another type", head + ` when { context.tier };`, []string{"1:1: x: unexpected type: expected Bool but saw String"}},
		{"types that never are equal", head + ` when { context.tier == 3 };`, []string{"1:1: x: the types Long and String are not compatible"}},
		{"an argument of some tools", `@id("x") permit (principal, action in Action::"call", resource) when { context.arguments.mode_id == "x" };`, []string{
			`1:1: x: a call need not have the argument mode_id; write "context.arguments has mode_id &&" before it`, // simulate_mode's
			`1:1: x: mode_id is no argument of describe_tool; write "context.arguments has mode_id &&" before it`,
			`1:1: x: mode_id is no argument of fetch_url; write "context.arguments has mode_id &&" before it`,
			fmt.Sprintf("1:1: x: %d more like it", others-2),
		}},
		{"a list for a word", look + ` when { context.arguments has start && context.arguments.start == "chat" };`, []string{"1:1: x: the types String and Set<String> are not compatible"}},
		{"a word of a list for a number", look + ` when { context.arguments has start && context.arguments.start.contains(3) };`, []string{"1:1: x: the types Long and String are not compatible"}},
		{"a key of a map", look + ` when { context.arguments has context_overrides && context.arguments.context_overrides.chat > 8192 };`, []string{`1:1: x: context_overrides need not have the key chat; write "context.arguments.context_overrides has chat &&" before it`}},
		{"a key of a map that is no word", look + ` when { context.arguments has context_overrides && context.arguments.context_overrides["qwen3-32b"] > 8192 };`,
			[]string{`1:1: x: context_overrides need not have the key qwen3-32b; write "context.arguments.context_overrides has "qwen3-32b" &&" before it`}},
		{"a key of a map, asked for", look + ` when { context.arguments has context_overrides && context.arguments.context_overrides has chat && context.arguments.context_overrides.chat > 8192 };`, nil},
		{"a forbid that forbids nothing", `@id("x") forbid (principal, action == Action::"call:swich_mode", resource);`,
			[]string{`1:1: x can never match: there is no tool swich_mode; did you mean "switch_mode"?`}},
		{"a forbid that a client walks around", `@id("x") forbid (principal == Client::"cursor", action, resource);`,
			[]string{`1:1: x can never match: == does not mean the client's agents, and a client chooses its agent; write principal in Client::"cursor"`}},
		{"a forbid of a group itself", `@id("x") forbid (principal, action == Action::"call", resource);`,
			[]string{`1:1: x can never match: Action::"call" stands for a group; write action in Action::"call"`}},

		{"a permit of no tool", `@id("x") permit (principal, action == Action::"call:swich_mode", resource);`,
			[]string{`1:1: warning: x can never match: there is no tool swich_mode; did you mean "switch_mode"?`}},
		{"a user as a caller", `@id("x") permit (principal == User::"alice", action, resource);`,
			[]string{`1:1: warning: x can never match: no call comes from a User itself; write principal in User::"alice"`}},
		{"a robot", `@id("x") permit (principal is Robot, action, resource);`, []string{"1:1: warning: x can never match: no call comes from a Robot; there are Client and Agent"}},
		{"no such action", `@id("x") permit (principal, action == Action::"view", resource);`,
			[]string{`1:1: warning: x can never match: Action::"view" is no action; there are Action::"call:TOOL" and Action::"callWithoutApproval:TOOL"`}},
		{"a tool about something else", `@id("x") permit (principal, action == Action::"call:switch_mode", resource is Service);`,
			[]string{"1:1: warning: x can never match: these tools are about a Mode, not a Service"}},
		{"no such thing", `@id("x") permit (principal, action, resource is Door);`,
			[]string{"1:1: warning: x can never match: no call is about a Door; there are Domain, Host, Mode, Model, Service"}},
		{"another host", `@id("x") permit (principal, action, resource == Host::"that");`, []string{`1:1: warning: x can never match: the host is Host::"this"`}},
		{"never", head + " when { false };", []string{"1:1: warning: x can never match: a condition is always false"}},
		{"never, worked out", head + " when { 1 + 1 == 3 };", []string{"1:1: warning: x can never match: a condition is always false"}},
		{"unless always", head + " unless { true };", []string{"1:1: warning: x can never match: a condition is always true"}},
		{"no such tier", head + ` when { context.tier == "read" };`, []string{"1:1: warning: x can never match: context.tier is one of READ, WRITE, DESTRUCTIVE"}},
		{"two at once", head + ` when { context.channel == "cli" } when { "api" == context.channel };`, []string{"1:1: warning: x can never match: context.channel cannot be two things at once"}},
		{"two arguments at once", head + ` when { context.arguments.mode_id == "a" && context.arguments.mode_id == "b" };`,
			[]string{"1:1: warning: x can never match: context.arguments.mode_id cannot be two things at once"}},
		{"no client's form", `@id("x") permit (principal in Client::"Cursor!", action, resource);`, []string{`1:1: warning: x: Client::"Cursor!" is no client's id`}},
		{"a client that is not there", `@id("x") permit (principal in Client::"cursr", action, resource);`, []string{`1:1: warning: x: no client is called cursr; did you mean "cursor"?`}},
		{"an agent's form", `@id("x") permit (principal == Agent::"coder", action, resource);`, []string{`1:1: warning: x: Agent::"coder" is no agent: agents are written Agent::"CLIENT/NAME"`}},
		{"no such channel, in a condition", head + ` when { principal in Channel::"fax" };`,
			[]string{`1:1: warning: x: Channel::"fax" is no channel; there are cli, desktop_ui, api, messaging and messaging:NAME`}},
		{"a user that is not there", `@id("x") permit (principal in User::"bob", action, resource);`, []string{`1:1: warning: x: no user is called bob`}},
		{"a tool that is not ours", `@id("x") permit (principal, action == Action::"call:mcp:web:fetch", resource) when { context.arguments.url like "https:*" };`,
			[]string{"1:1: warning: x looks at the arguments of a tool that is not ours: its conditions are not checked"}},

		{"how often, of a tool of the vault's", `@id("x") forbid (principal, action == Action::"call:security_config", resource) when { context.calls.day > 3 };`,
			[]string{"1:1: x: the vault answers security_config on a session's permit, whatever the arguments and however often: a rule about these does nothing there"}},
		{"arguments, of a tool of the vault's among others",
			`@id("x") forbid (principal, action in [Action::"call:gpu_status", Action::"call:wait_operation"], resource) when { context.arguments has x };`,
			[]string{"1:1: x: the vault answers wait_operation on a session's permit, whatever the arguments and however often: a rule about these does nothing there"}},
		{"a change that runs", `@id("x") permit (principal in Client::"cursor", action == Action::"callWithoutApproval:stop_service", resource);`,
			[]string{"1:1: warning: x: what lets stop_service run without asking also needs an entry in the executor's file (unattended); without one the executor refuses the call"}},
		{"a change of egress' that runs", `@id("x") permit (principal in Client::"cursor", action == Action::"callWithoutApproval:http_request", resource);`,
			[]string{"1:1: warning: x: what lets http_request run without asking also needs an entry in egress' file (unattended); without one egress refuses the call"}},
		{"all that runs", `@id("x") permit (principal in Client::"cursor", action, resource is Mode);`,
			[]string{"1:1: warning: x: what lets switch_mode run without asking also needs an entry in the executor's file (unattended); without one the executor refuses the call"}},

		{"a comment", "// nothing", nil},
		{"a tool of the vault's, by time", `@id("x") forbid (principal, action == Action::"call:security_config", resource) when { context.time.hour > 3 };`, nil},
		{"a READ that runs", `@id("x") permit (principal, action == Action::"callWithoutApproval:service_logs", resource);`, nil},
		{"what looks runs", `@id("x") permit (principal, action in Action::"callWithoutApproval", resource) when { context.tier == "READ" };`, nil},
		{"a change in dangerous mode", `@id("x") permit (principal, action == Action::"callWithoutApproval:stop_service", resource) when { context.dangerous };`, nil},
		{"a change that the executor lists", `@id("x") permit (principal, action == Action::"callWithoutApproval:start_service", resource);`, nil},
		{"a change that is forbidden", `@id("x") forbid (principal, action == Action::"callWithoutApproval:stop_service", resource);`, nil},
		{"everything", head + ` when { principal in User::"alice" && context.tier == "DESTRUCTIVE" && context.arguments.mode_id like "c*" };`, nil},
		{"a list and a map", look + ` when { context.arguments has start && context.arguments.start.containsAny(["chat", "embed"]) || context.arguments has context_overrides };`, nil},
		{"an argument that some tools have", `@id("x") permit (principal, action in Action::"call", resource) when { context.arguments has mode_id && context.arguments.mode_id == "x" };`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := system("policy/a.cedar", c.text)
			var got []string
			warnings := true
			for _, p := range Check([]Source{source}, Known{Clients: []string{"cursor"}, Users: []string{"alice"}, Unattended: []string{"start_service"}}) {
				got = append(got, strings.TrimPrefix(p.String(), "policy/a.cedar:"))
				warnings = warnings && p.Warning
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if _, err := Compile([]Source{source}); (err == nil) != warnings {
				t.Errorf("Compile: %v", err)
			}
		})
	}
}

func TestSourcesThatAreRefused(t *testing.T) {
	many := make([]Source, maxSources+1)
	for i := range many {
		many[i] = system(fmt.Sprintf("policy/%d.cedar", i), "")
	}
	large := make([]Source, 5)
	for i := range large {
		large[i] = system(fmt.Sprintf("policy/%d.cedar", i), "//"+strings.Repeat("x", 220<<10))
	}
	rules := strings.Repeat("permit(principal,action,resource);\n", 2600)
	for _, c := range []struct {
		name    string
		sources []Source
		want    string
	}{
		{"a project that permits", []Source{{Layer: Project, Name: "projects/a.cedar", Text: []byte(allowAll)}}, "projects/a.cedar:1:1: a project can only forbid"},
		{"no such layer", []Source{{Layer: BuiltIn, Name: "a.cedar"}}, "takes no files"},
		{"a user's without one", []Source{{Layer: User, Name: "a.cedar"}}, "without a user"},
		{"another kind of file", []Source{system("a.json", "{}")}, "neither a .cedar nor a .yaml file"},
		{"too many files", many, "more than 1024 files"},
		{"too much", large, "larger than 1024 KiB together"},
		{"a file too large", []Source{system("a.cedar", strings.Repeat(" ", maxFileBytes+1))}, "larger than 256 KiB"},
		{"too many rules", []Source{system("a.cedar", rules), system("b.cedar", rules)}, "more than 5000 rules"},
		{"no text", []Source{system("a.cedar", "\xff")}, "not UTF-8 text"},
		{"brackets", []Source{system("a.cedar", "permit (principal, action, resource) when { "+strings.Repeat("(", 100000))}, "nested deeper than 32 levels"},
		{"signs", []Source{system("a.cedar", "permit (principal, action, resource) when { "+strings.Repeat("!", 100000)+"true};")}, "more than 8 signs"},
		{"minus", []Source{system("a.cedar", "permit (principal, action, resource) when { 1 == "+strings.Repeat("- ", 100000)+"1};")}, "more than 8 signs"},
		{"ifs", []Source{system("a.cedar", "permit (principal, action, resource) when { "+strings.Repeat("if true then true else ", 9000)+"true};")}, `more than 32 times "if"`},
		{"a chain", []Source{system("a.cedar", "permit (principal, action, resource) when { context has a"+strings.Repeat(".a", 50000)+"};")}, "a chain of more than 16"},
		{"a sum", []Source{system("a.cedar", "permit (principal, action, resource) when { 1 == "+strings.Repeat("1+", 100000)+"1};")}, "more than 4096 words"},
		{"clauses", []Source{system("a.cedar", "permit (principal, action, resource) "+strings.Repeat("when{true}", 20000)+";")}, "more than 4096 words"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			if took := platformtest.CPU(t, func() { _, err = Compile(c.sources) }); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %.200v, want %q", err, c.want)
			}
			if !errors.As(err, new(Problems)) {
				t.Error("the error is no Problems")
			}
		})
	}
}

// TestBoundedRulesAreQuick: what the bounds let through neither blocks nor overflows, however it is made.
func TestBoundedRulesAreQuick(t *testing.T) {
	const head = `permit (principal, action in Action::"call", resource) when { `
	in := func(n int, one, between string) string {
		return strings.TrimSuffix(strings.Repeat(one+between, n), between)
	}
	for name, body := range map[string]string{
		"and":     in(1300, "true", "&&"),
		"or":      in(500, "context.tier==\"READ\"", "||"),
		"sum":     "0 < " + in(2000, "1", "+"),
		"set":     "[" + in(2000, "1", ",") + "].contains(1)",
		"nested":  strings.Repeat("(", 30) + "true" + strings.Repeat(")", 30),
		"has":     in(30, "(context.arguments has a.b.c.d.e.f.g.h.i.j.k.l.m.n)", "&&"),
		"ifs":     in(30, "if context.known then true else ", "") + "false",
		"like":    in(100, `context.channel like "*a*a*a*a*a*a*a*a*b"`, "||"),
		"records": strings.Repeat("{a:", 28) + "1" + strings.Repeat("}", 28) + " == context.time.hour || true",
	} {
		t.Run(name, func(t *testing.T) {
			if took := platformtest.CPU(t, func() {
				s, err := Compile([]Source{system("a.cedar", head+body+" };")})
				if err != nil {
					t.Logf("refused: %.200v", err)
				} else {
					s.Decide(call(native(t, "gpu_status")))
				}
			}); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
