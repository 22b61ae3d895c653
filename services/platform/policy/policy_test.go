package policy

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

const (
	read        = optionsv1.Tier_TIER_READ
	write       = optionsv1.Tier_TIER_WRITE
	destructive = optionsv1.Tier_TIER_DESTRUCTIVE
)

// monday is 10:30 on a Monday.
var monday = time.Date(2026, 3, 2, 10, 30, 0, 0, time.UTC)

func native(t testing.TB, name string) contract.Tool {
	t.Helper()
	tool, ok := contract.Lookup(name)
	if !ok {
		t.Fatalf("there is no tool %s", name)
	}
	return tool
}

// downstream is a tool of a downstream server, with tags as it may have.
func downstream(tier optionsv1.Tier, tags ...string) contract.Tool {
	return contract.Tool{Name: "fetch", Source: "mcp:web", Tier: tier, Tags: tags}
}

// call is a key-bound client's at the terminal, that policy has nothing against.
func call(tool contract.Tool, change ...func(*Call)) Call {
	c := Call{
		Client: "cursor", User: "alice", Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true, Ceiling: destructive,
		Tool: tool, Arguments: []byte(`{}`), Now: monday,
	}
	switch tool.Resource {
	case "Service":
		c.Arguments = []byte(`{"service_id":"chat-70b"}`)
	case "Mode":
		c.Arguments = []byte(`{"mode_id":"chat"}`)
	case "Model":
		c.Arguments = []byte(`{"model_id":"qwen"}`)
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func compiledSet(t testing.TB, sources ...Source) *Set {
	t.Helper()
	s, err := Compile(sources)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func system(name, text string) Source { return Source{Layer: System, Name: name, Text: []byte(text)} }

func bearer(c *Call)    { c.KeyBound = false }
func dangerous(c *Call) { c.Dangerous = true }
func messaging(c *Call) {
	c.Channel, c.ChannelName, c.KeyBound = callv1.Channel_CHANNEL_MESSAGING, "signal", false
}
func api(c *Call)     { c.Channel = callv1.Channel_CHANNEL_API }
func desktop(c *Call) { c.DesktopAllowed = true }
func ceiling(t optionsv1.Tier) func(*Call) {
	return func(c *Call) { c.Ceiling = t }
}
func arguments(raw string) func(*Call) { return func(c *Call) { c.Arguments = []byte(raw) } }

// allowAll is the most that a human could write.
const allowAll = `@id("all") permit (principal, action, resource);`

// TestDefault is the built-in rules alone, and with a file that permits everything beside them.
func TestDefault(t *testing.T) {
	status, start, stop := native(t, "gpu_status"), native(t, "start_service"), native(t, "switch_mode")
	future := status
	future.Tier = 9
	none := status
	none.Tier = 0
	for _, c := range []struct {
		name string
		call Call
		// rule decides without a file; wide is the verdict with a file that permits everything.
		verdict Verdict
		rule    string
		wide    Verdict
	}{
		{"no tier at all", call(none), Deny, "no-such-tier", Deny},
		{"a tier of the future", call(future), Deny, "above-the-ceiling", Deny},
		{"no ceiling", call(status, ceiling(0)), Deny, "above-the-ceiling", Deny},
		{"write above a read ceiling", call(start, ceiling(read)), Deny, "above-the-ceiling", Deny},
		{"write above a read ceiling in dangerous mode", call(start, ceiling(read), dangerous), Deny, "above-the-ceiling", Deny},
		{"destructive above a write ceiling", call(downstream(destructive), ceiling(write)), Deny, "above-the-ceiling", Deny},
		{"a change over messaging", call(start, messaging), Deny, "messaging-only-reads", Deny},
		{"a change over messaging in dangerous mode", call(start, messaging, dangerous), Deny, "messaging-only-reads", Deny},
		{"desktop control that is off", call(downstream(write, "desktop:click")), Deny, "desktop-is-off", Deny},
		{"a screenshot that only looks, off", call(downstream(read, "desktop:screenshot")), Deny, "desktop-is-off", Deny},
		{"a screenshot over messaging", call(downstream(read, "desktop:screenshot"), messaging, desktop), Deny, "desktop-is-off", Deny},
		{"a shell over the API", call(downstream(write, "shell"), api), Deny, "no-shell-from-elsewhere", Deny},
		{"a shell over SSH", call(downstream(write, "shell"), func(c *Call) { c.Remote = true }), Deny, "no-shell-from-elsewhere", Deny},
		{"a server of this host over SSH", call(downstream(read, "shell:notes"), func(c *Call) { c.Remote = true }), Deny, "no-shell-from-elsewhere", Deny},
		{"a shell over nobody knows what", call(downstream(write, "shell"), func(c *Call) { c.Channel = 0 }), Deny, "no-shell-from-elsewhere", Deny},

		{"a change", call(start), Ask, "may-be-asked-for", Run},
		{"a destructive change", call(stop), Ask, "may-be-asked-for", Run},
		{"a change by a bearer", call(start, bearer), Ask, "may-be-asked-for", Ask},
		{"a change by a bearer in dangerous mode", call(start, bearer, dangerous), Ask, "bearer-changes-ask", Ask},
		{"an unknown tool", call(downstream(write)), Ask, "may-be-asked-for", Ask},
		{"an unknown tool that only looks", call(downstream(read)), Ask, "may-be-asked-for", Ask},
		{"an unknown tool in dangerous mode", call(downstream(write), dangerous), Ask, "may-be-asked-for", Ask},
		{"desktop control", call(downstream(write, "desktop:click"), desktop), Ask, "may-be-asked-for", Ask},
		{"desktop control in dangerous mode", call(downstream(write, "desktop:click"), desktop, dangerous), Ask, "may-be-asked-for", Ask},
		{"a shell at the terminal", call(downstream(write, "shell")), Ask, "may-be-asked-for", Ask},

		{"a look", call(status), Run, "read-runs", Run},
		{"a look by a bearer", call(status, bearer, ceiling(read)), Run, "read-runs", Run},
		{"a look over messaging", call(status, messaging), Run, "read-runs", Run},
		{"a change in dangerous mode", call(start, dangerous), Run, "dangerous-mode-runs", Run},
		{"a destructive change in dangerous mode", call(stop, dangerous), Run, "dangerous-mode-runs", Run},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := compiledSet(t).Decide(c.call)
			if d.Verdict != c.verdict || d.Rule.ID != c.rule {
				t.Errorf("%v by %s (%s), want %v by %s", d.Verdict, d.Rule.ID, d.Reason, c.verdict, c.rule)
			}
			if d.Rule.Layer != BuiltIn || d.Rule.Line == 0 || d.Rule.File != DefaultName || d.Reason == "" || d.RetryAfter != 0 {
				t.Errorf("the decision is %+v", d)
			}
			if wide := compiledSet(t, system("policy/all.cedar", allowAll)).Decide(c.call); wide.Verdict != c.wide {
				t.Errorf("beside a file that permits everything: %v by %s, want %v", wide.Verdict, wide.Rule.ID, c.wide)
			}
		})
	}
	if (Decision{}).Verdict != Deny {
		t.Error("the zero decision does not deny")
	}
}

// TestEveryToolHasADecision: the three tiers behave as they always did, for every tool that there is.
func TestEveryToolHasADecision(t *testing.T) {
	s := compiledSet(t)
	for _, tool := range contract.Tools() {
		want := Ask
		if tool.Tier == read {
			want = Run
		}
		if d := s.Decide(call(tool, bearer)); d.Verdict != want || d.Tier != tool.Tier {
			t.Errorf("%s: %v, want %v", tool.Name, d.Verdict, want)
		}
		if v, ok := s.Always(call(tool, bearer)); v != want || !ok {
			t.Errorf("%s: always %v, %t; want %v", tool.Name, v, ok, want)
		}
		if d := s.Decide(call(tool, ceiling(tool.Tier-1))); d.Verdict != Deny {
			t.Errorf("%s above the ceiling: %v", tool.Name, d.Verdict)
		}
	}
}

// The built-in rules are part of every grant's digest: a change of them is a decision.
func TestDefaultIsPinnedAndChecked(t *testing.T) {
	d := compiledSet(t).Digest()
	const want = "f20918bdcba9b097c660e44f419988f118902e1a3758b0c42a1c69b7e6fdd176"
	if got := hex.EncodeToString(d[:]); got != want {
		t.Errorf("the digest of the built-in rules is %s, want %s", got, want)
	}
	v := validate.New(schema())
	for _, r := range compiledSet(t).rules {
		if err := v.Policy(r.ID, r.ast()); err != nil {
			t.Error(err)
		}
		if r.because == "" || strings.Contains(r.ID, "#") {
			t.Errorf("%s:%d has no @id or no @because", r.File, r.Line)
		}
	}
}

// TestLayersBindWhomTheyAreAbout: rules of a layer are about its clients alone.
func TestLayersBindWhomTheyAreAbout(t *testing.T) {
	start := native(t, "start_service")
	const allow = `@id("allow") permit (principal, action in Action::"callWithoutApproval", resource);`
	const deny = `@id("deny") forbid (principal, action, resource);`
	const denyTools = "tools: {start_service: {tier: DENIED}}\n"
	as := func(client, user string) func(*Call) { return func(c *Call) { c.Client, c.User = client, user } }
	for _, c := range []struct {
		name    string
		sources []Source
		call    Call
		want    Verdict
		rule    string
	}{
		{"another user's forbid", []Source{{Layer: User, User: "bob", Name: "users/bob/policy/a.cedar", Text: []byte(deny)}}, call(start), Ask, "may-be-asked-for"},
		{"another user's permit", []Source{{Layer: User, User: "bob", Name: "users/bob/policy/a.cedar", Text: []byte(allow)}}, call(start), Ask, "may-be-asked-for"},
		{"a user's permit and a client without a user", []Source{{Layer: User, User: "bob", Name: "users/bob/policy/a.cedar", Text: []byte(allow)}}, call(start, as("cursor", "")), Ask, "may-be-asked-for"},
		{"the user's own forbid", []Source{{Layer: User, User: "alice", Name: "users/alice/policy/a.cedar", Text: []byte(deny)}}, call(start), Deny, "deny"},
		{"the user's own permit", []Source{{Layer: User, User: "alice", Name: "users/alice/policy/a.cedar", Text: []byte(allow)}}, call(start), Run, "allow"},
		{"the user's permit against the system's forbid", []Source{
			{Layer: User, User: "alice", Name: "users/alice/policy/a.cedar", Text: []byte(allowAll)}, system("policy/a.cedar", deny),
		}, call(start), Deny, "deny"},
		{"the project of another client", []Source{{Layer: Project, Clients: []string{"other"}, Name: "projects/1.yaml", Text: []byte(denyTools)}}, call(start), Ask, "may-be-asked-for"},
		{"the client's own project", []Source{{Layer: Project, Clients: []string{"other", "cursor"}, Name: "projects/1.yaml", Text: []byte(denyTools)}}, call(start), Deny, "tools/start_service/tier"},
		{"a project for every client", []Source{{Layer: Project, Name: "projects/1.yaml", Text: []byte("settings: {tier_ceiling: WRITE}\n" + denyTools)}}, call(start), Deny, "tools/start_service/tier"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := compiledSet(t, c.sources...).Decide(c.call); d.Verdict != c.want || d.Rule.ID != c.rule {
				t.Errorf("%v by %s, want %v by %s", d.Verdict, d.Rule.ID, c.want, c.rule)
			}
		})
	}
}

func TestPrincipals(t *testing.T) {
	start := native(t, "start_service")
	agent := func(c *Call) { c.Agent = "coder" }
	for _, c := range []struct {
		scope string
		call  Call
		want  Verdict
	}{
		{`principal == Agent::"cursor/coder"`, call(start), Ask},
		{`principal == Agent::"other/coder"`, call(start, agent), Ask},
		{`principal == Client::"cursor"`, call(start, agent), Ask},
		{`principal in User::"bob"`, call(start), Ask},
		{`principal in Channel::"api"`, call(start), Ask},
		{`principal is Agent`, call(start), Ask},
		{`principal == Client::"cursor"`, call(start), Run},
		{`principal in Client::"cursor"`, call(start, agent), Run},
		{`principal == Agent::"cursor/coder"`, call(start, agent), Run},
		{`principal is Agent in User::"alice"`, call(start, agent), Run},
		{`principal in User::"alice"`, call(start, agent), Run},
		{`principal in Channel::"cli"`, call(start), Run},
	} {
		text := `permit (` + c.scope + `, action in [Action::"callWithoutApproval:start_service", Action::"callWithoutApproval:stop_service"], resource);`
		s := compiledSet(t, system("policy/a.cedar", text))
		if d := s.Decide(c.call); d.Verdict != c.want {
			t.Errorf("%s as %s/%s: %v, want %v", c.scope, c.call.Client, c.call.Agent, d.Verdict, c.want)
		}
		if v, ok := s.Always(c.call); v != c.want || !ok {
			t.Errorf("%s as %s/%s: always %v, %t, want %v", c.scope, c.call.Client, c.call.Agent, v, ok, c.want)
		}
	}
	forbid := `forbid (principal in Channel::"messaging:signal", action == Action::"call:gpu_status", resource);`
	if d := compiledSet(t, system("policy/a.cedar", forbid)).Decide(call(native(t, "gpu_status"), messaging)); d.Verdict != Deny {
		t.Errorf("a forbid for a messaging platform: %v", d.Verdict)
	}
}

func TestConditions(t *testing.T) {
	sw, start := native(t, "switch_mode"), native(t, "start_service")
	at := func(when time.Time) func(*Call) { return func(c *Call) { c.Now = when } }
	for _, c := range []struct {
		name, rule string
		call       Call
		want       Verdict
	}{
		{"another argument", `permit (principal, action == Action::"callWithoutApproval:switch_mode", resource) when { ["coding"].contains(context.arguments.mode_id) };`, call(sw), Ask},
		{"an absent argument", `permit (principal, action == Action::"callWithoutApproval:switch_mode", resource) when { context.arguments has margin_mib_override && context.arguments.margin_mib_override > 5 };`, call(sw), Ask},
		{"another resource", `permit (principal, action == Action::"callWithoutApproval:start_service", resource == Service::"embed");`, call(start), Ask},
		{"at night", `permit (principal, action == Action::"callWithoutApproval:start_service", resource) when { context.time.hour >= 9 && context.time.hour < 17 && context.time.weekday <= 5 };`, call(start, at(monday.Add(12*time.Hour))), Ask},
		{"on Sunday", `permit (principal, action == Action::"callWithoutApproval:start_service", resource) when { context.time.weekday <= 5 };`, call(start, at(monday.Add(-time.Hour*24))), Ask},
		{"the argument", `permit (principal, action == Action::"callWithoutApproval:switch_mode", resource) when { ["coding", "chat"].contains(context.arguments.mode_id) };`, call(sw), Run},
		{"a number", `permit (principal, action == Action::"callWithoutApproval:switch_mode", resource) when { context.arguments has margin_mib_override && context.arguments.margin_mib_override > 5 };`, call(sw, arguments(`{"margin_mib_override":6,"mode_id":"x"}`)), Run},
		{"the resource", `permit (principal, action == Action::"callWithoutApproval:start_service", resource == Service::"chat-70b");`, call(start), Run},
		{"the resource in a condition", `permit (principal, action == Action::"callWithoutApproval:start_service", resource) when { resource == Service::"chat-70b" };`, call(start), Run},
		{"the resource's kind", `permit (principal, action in Action::"callWithoutApproval", resource is Service);`, call(start), Run},
		{"the host", `permit (principal, action in Action::"callWithoutApproval", resource == Host::"this");`, call(native(t, "gpu_status")), Run},
		{"at noon on Monday", `permit (principal, action == Action::"callWithoutApproval:start_service", resource) when { context.time.weekday == 1 && context.time.hour == 12 && context.time.minute == 30 };`, call(start, at(monday.Add(2*time.Hour))), Run},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := compiledSet(t, system("policy/a.cedar", c.rule))
			if d := s.Decide(c.call); d.Verdict != c.want {
				t.Errorf("%v by %s, want %v", d.Verdict, d.Rule.ID, c.want)
			}
			if v, ok := s.Always(c.call); ok && v != c.want {
				t.Errorf("always %v", v)
			}
		})
	}
}

// overflows cannot be evaluated on a second call of the day.
const overflows = `when { context.calls.day * 9223372036854775807 > 0 }`

func TestWhatCannotBeEvaluatedFailsClosed(t *testing.T) {
	start := native(t, "start_service")
	often := func(c *Call) { c.Counts.Day = 2 }
	forbid := compiledSet(t, system("policy/a.cedar", `@id("x") forbid (principal, action == Action::"call:start_service", resource) `+overflows+`;`))
	d := forbid.Decide(call(start, often))
	if d.Verdict != Deny || !d.Rule.Failed || d.Rule.ID != "x" {
		t.Errorf("a forbid: %+v", d)
	}
	if d := forbid.Decide(call(start)); d.Verdict != Ask {
		t.Errorf("a forbid that can be evaluated: %+v", d)
	}
	permit := compiledSet(t, system("policy/a.cedar", `@id("x") permit (principal, action == Action::"callWithoutApproval:start_service", resource) `+overflows+`;`))
	if d = permit.Decide(call(start, often)); d.Verdict != Ask || !d.Rule.Failed || d.Rule.ID != "x" {
		t.Errorf("a permit: %+v", d)
	}
	unasked := compiledSet(t, system("policy/a.cedar", `@id("x") forbid (principal, action in Action::"callWithoutApproval", resource) `+overflows+`;`))
	if d = unasked.Decide(call(native(t, "gpu_status"), often)); d.Verdict != Ask || !d.Rule.Failed {
		t.Errorf("a forbid of running unasked: %+v", d)
	}
}

func TestArgumentsThatRulesCannotRead(t *testing.T) {
	tool := downstream(write)
	many := `{"list":[` + strings.Repeat("1,", 2000) + `2]}`
	deny := compiledSet(t, system("policy/a.cedar", `forbid (principal, action == Action::"call:mcp:web:fetch", resource) when { context.arguments has x };`))
	for _, raw := range []string{many, `[]`, `null`, `{`, `{} {}`} {
		if d := deny.Decide(call(tool, arguments(raw))); d.Verdict != Deny || d.Rule.ID != Unreadable {
			t.Errorf("%.20s: %+v", raw, d)
		}
	}
	if d := deny.Decide(call(tool, arguments(""))); d.Verdict != Ask {
		t.Errorf("no arguments: %+v", d)
	}
	// What is permitted by them is not, and all else is as it was.
	known := system("tools.yaml", "tools: {\"mcp:web:fetch\": {tier: READ}}\n")
	allow := compiledSet(t, known, system("policy/a.cedar", `permit (principal, action == Action::"callWithoutApproval:mcp:web:fetch", resource) when { context.arguments has x };`))
	if d := allow.Decide(call(tool, arguments(many))); d.Verdict != Run || d.Rule.ID != "tools/mcp:web:fetch/tier" {
		t.Errorf("a permit beside: %+v", d)
	}
	// Values that Cedar has not are their text; null is there.
	look := compiledSet(t, system("policy/a.cedar", `forbid (principal, action == Action::"call:mcp:web:fetch", resource)
when { context.arguments.a == "1.5" && context.arguments.b == "1e30" && context.arguments has c && context.arguments.d.contains("x") && context.arguments.e.f == true };`))
	if d := look.Decide(call(tool, arguments(`{"a":1.5,"b":1e30,"c":null,"d":["x","x"],"e":{"f":true}}`))); d.Verdict != Deny || d.Rule.Failed {
		t.Errorf("other values: %+v", d)
	}
}

// TestTheFirstRuleIsNamed: whatever order files and rules are given in.
func TestTheFirstRuleIsNamed(t *testing.T) {
	text := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "@id(\"d%d\") forbid (principal, action == Action::\"call:start_service\", resource);\n", i)
		}
		return b.String()
	}
	sources := []Source{
		{Layer: Project, Name: "projects/1.yaml", Text: []byte("tools: {start_service: {tier: DENIED}}")},
		{Layer: User, User: "alice", Name: "users/alice/policy/a.cedar", Text: []byte(text(3))},
		system("policy/z.cedar", `@id("z") forbid (principal, action, resource);`),
		system("policy/b.cedar", text(5)),
	}
	var digest [32]byte
	for i := range 8 {
		s := compiledSet(t, sources...)
		d := s.Decide(call(native(t, "start_service")))
		want := Rule{ID: "d0", Layer: System, File: "policy/b.cedar", Line: 1, Forbids: true}
		if diff := cmp.Diff(want, d.Rule); diff != "" {
			t.Fatal(diff)
		}
		if i > 0 && s.Digest() != digest {
			t.Fatal("the digest depends on the order of the sources")
		}
		digest = s.Digest()
		sources = append(sources[1:], sources[0])
	}
	for i := range sources {
		changed := slices.Clone(sources)
		changed[i].Text = append(slices.Clone(changed[i].Text), '\n')
		if compiledSet(t, changed...).Digest() == digest {
			t.Errorf("a change of %s is no change of the digest", changed[i].Name)
		}
	}
	rules := compiledSet(t, sources...).Rules()
	if rules[0].Layer != BuiltIn || rules[len(rules)-1].Layer != Project {
		t.Errorf("the rules are not in the order of their layers: %+v", rules)
	}
}
