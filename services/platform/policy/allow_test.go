package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cedar-policy/cedar-go"

	"durward.internal/services/platform/contract"
)

func TestAllowRefuses(t *testing.T) {
	sw := native(t, "switch_mode")
	values := func(name string, v ...string) map[string][]string { return map[string][]string{name: v} }
	for _, c := range []struct {
		name   string
		client string
		tool   contract.Tool
		args   map[string][]string
		want   string
	}{
		{"a client that breaks out", `x", action, resource); permit (principal == Client::"y`, sw, nil, "is no client's id"},
		{"a client of capitals", "Cursor", sw, nil, "is no client's id"},
		{"no tool", "cursor", contract.Tool{Name: "swich_mode", Source: "native"}, nil, `did you mean "switch_mode"?`},
		{"a tool that breaks out", "cursor", contract.Tool{Name: `x", resource);`, Source: "mcp:web"}, nil, "there is no tool"},
		{"desktop control", "cursor", downstream(write, "desktop:click"), nil, "desktop control asks"},
		{"no such argument", "cursor", sw, values("model", "x"), "has no argument model"},
		{"an argument that breaks out", "cursor", sw, values(`mode_id == "x" || true`, "x"), "has no argument"},
		{"no values", "cursor", sw, values("mode_id"), "takes 1 to 200 values"},
		{"a value that breaks out", "cursor", sw, values("mode_id", `x"].contains(1) || true || ["`), "is not of its form"},
		{"a value of another type", "cursor", sw, values("margin_mib_override", "1 || true"), "is no whole number"},
		{"a number written twice", "cursor", sw, values("margin_mib_override", "007"), "is no whole number"},
		{"no tier", "cursor", native(t, "security_config"), values("tier_ceiling_override", "TIER_DENIED"), "none of the names"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if id, text, err := Allow(c.client, c.tool, c.args, "", time.Time{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q; %s\n%s", err, c.want, id, text)
			}
		})
	}
}

func TestAllow(t *testing.T) {
	sw := native(t, "switch_mode")
	args := map[string][]string{"mode_id": {"coding", "chat", "chat"}, "margin_mib_override": {"256"}}
	const want = `// cursor may call switch_mode without asking: margin_mib_override 256, mode_id chat or coding.
// as agreed on Monday
@id("allow/cursor/switch_mode/dabb8f90")
permit (
  principal in Client::"cursor",
  action == Action::"callWithoutApproval:switch_mode",
  resource
)
when { context.arguments has margin_mib_override && context.arguments.margin_mib_override == 256 }
when { ["chat", "coding"].contains(context.arguments.mode_id) };
`
	id, text, err := Allow("cursor", sw, args, "as agreed\non Monday", time.Time{})
	if err != nil || text != want || id != "allow/cursor/switch_mode/dabb8f90" {
		t.Fatalf("%v %s\n%s", err, id, text)
	}
	slices.Reverse(args["mode_id"])
	if again, same, err := Allow("cursor", sw, args, "as agreed on Monday", time.Time{}); err != nil || again != id || same != text {
		t.Errorf("the same again is %v\n%s", err, same)
	}
	s := compiledSet(t, system("policy/allow.cedar", text))
	if problems := Check([]Source{system("policy/allow.cedar", text)}, Known{Unattended: nativeTools()}); len(problems) > 0 {
		t.Error(problems)
	}
	for raw, verdict := range map[string]Verdict{
		`{"mode_id":"chat"}`:                               Ask,
		`{"margin_mib_override":257,"mode_id":"chat"}`:     Ask,
		`{"margin_mib_override":256,"mode_id":"research"}`: Ask,
		`{"margin_mib_override":256,"mode_id":"chat"}`:     Run,
	} {
		if d := s.Decide(call(sw, arguments(raw))); d.Verdict != verdict {
			t.Errorf("%s: %v", raw, d.Verdict)
		}
	}
	if d := s.Decide(call(sw, arguments(`{"margin_mib_override":256,"mode_id":"chat"}`), func(c *Call) { c.Agent = "coder" })); d.Verdict != Run || d.Rule.ID != id {
		t.Errorf("an agent of the client: %+v", d)
	}
}

func TestAllowUntil(t *testing.T) {
	id, text, err := Allow("cursor", native(t, "start_service"), nil, "", monday.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if other, _, _ := Allow("cursor", native(t, "start_service"), nil, "", time.Time{}); other == id {
		t.Error("a rule that ends has the id of one that does not")
	}
	s := compiledSet(t, system("policy/allow.cedar", text))
	if d := s.Decide(call(native(t, "start_service"))); d.Verdict != Run {
		t.Errorf("before its end: %+v", d)
	}
	if d := s.Decide(call(native(t, "start_service"), func(c *Call) { c.Now = monday.Add(time.Hour) })); d.Verdict != Ask {
		t.Errorf("at its end: %+v", d)
	}
}

// hostile are texts that try to be more than a text.
var hostile = []string{
	`"`, `\`, `\"`, `"; permit (principal, action, resource); //`, "\n", "a\nforbid", "\r\npermit (principal, action, resource);", "*/", "//", "\x00", "\u202e", "\u2028permit",
	`\u{22}`, `")`, `"] || true || ["`, "*", `\*`, "{", "}}", "é", "🚪", strings.Repeat("x", 300), "@id(\"x\")", " ", "",
}

// TestNoTextBreaksOutOfARule: a pinned value and a note are text, whatever they hold.
func TestNoTextBreaksOutOfARule(t *testing.T) {
	tool := native(t, "switch_mode")
	// A tool whose argument takes any text at all.
	tool.InputSchema = map[string]any{"properties": map[string]any{"mode_id": map[string]any{"type": "string"}}, "required": []string{"mode_id"}}
	for _, value := range hostile {
		id, text, err := Allow("cursor", tool, map[string][]string{"mode_id": {value, "chat"}}, value, time.Time{})
		if err != nil {
			if len(value) <= maxAllowedValue {
				t.Errorf("%q: %v", value, err)
			}
			continue
		}
		list, err := cedar.NewPolicyListFromBytes("", []byte(text))
		if err != nil || len(list) != 1 {
			t.Fatalf("%q: %v\n%s", value, err, text)
		}
		s := compiledSet(t, system("policy/allow.cedar", text+"// after\n"))
		if n := len(s.Rules()) - len(compiledSet(t).Rules()); n != 1 || s.Rules()[len(s.Rules())-1].ID != id {
			t.Errorf("%q: %d rules", value, n)
		}
		if d := s.Decide(call(tool, arguments(`{"mode_id":"other"}`))); d.Verdict != Ask {
			t.Errorf("%q: anything runs: %+v\n%s", value, d, text)
		}
		quoted, _ := jsonText(value)
		if d := s.Decide(call(tool, arguments(`{"mode_id":`+quoted+`}`))); d.Verdict != Run {
			t.Errorf("%q itself: %+v\n%s", value, d, text)
		}
	}
}
