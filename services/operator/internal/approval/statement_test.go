package approval

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/statement"
)

const executorID = "spiffe://durward.local/executor/local"

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func signer(t *testing.T) Signer {
	t.Helper()
	id, err := identity.Parse(executorID)
	must(t, err)
	return Signer{Operator: "alice", Executor: id, Now: testNow}
}

func operation(t *testing.T) *vaultv1.Operation {
	t.Helper()
	tool, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("no start_service")
	}
	return &vaultv1.Operation{
		OperationId: "0123456789abcdef0123456789abcdef", State: vaultv1.OperationState_OPERATION_STATE_PENDING,
		Principal: "claude-code", Session: "s-abc", Channel: callv1.Channel_CHANNEL_CLI, Tool: tool.Ref(), Tier: tool.Tier,
		Arguments: []byte(`{"service_id":"demo-chat"}`), AgentReason: "please \u202e", Audience: executorID, Epoch: 3,
		AskedAt: timestamppb.New(testNow.Add(-40 * time.Second)), ExpiresAt: timestamppb.New(testNow.Add(29*time.Minute + 20*time.Second)),
	}
}

func preview() *executorv1.PreviewCallResponse {
	return &executorv1.PreviewCallResponse{
		Subject: &callv1.Subject{Label: "service demo-chat", Entry: []byte(`{"argv":["/usr/bin/demo"],"id":"demo-chat"}`)},
		Plan:    []string{"start demo-chat"}, Epoch: 3, Audience: executorID,
	}
}

func TestApproveRefuses(t *testing.T) {
	other, _ := contract.Lookup("stop_service")
	for _, c := range []struct {
		name   string
		change func(*vaultv1.Operation, *executorv1.PreviewCallResponse)
		want   error
	}{
		{"unknown tool", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) { o.Tool.Name = "format_disk" }, ErrTool},
		{"another tool's definition", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) {
			o.Tool.DefinitionDigest = other.DefinitionDigest[:]
		}, ErrTool},
		{"another source", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) { o.Tool.Source = "mcp:x" }, ErrTool},
		{"a lower tier than the contract's", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) {
			o.Tier = optionsv1.Tier_TIER_READ
		}, ErrTool},
		{"arguments not canonical", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) {
			o.Arguments = []byte(`{"service_id": "demo-chat"}`)
		}, ErrArguments},
		{"arguments invalid", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) {
			o.Arguments = []byte(`{"service_id":"a;rm -rf /"}`)
		}, ErrArguments},
		{"an argument that the tool does not have", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) {
			o.Arguments = []byte(`{"force":true,"service_id":"demo-chat"}`)
		}, ErrArguments},
		{"the vault names another sink", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) {
			o.Audience = "spiffe://durward.local/executor/other"
		}, ErrTarget},
		{"the executor claims to be another", func(o *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			o.Audience, p.Audience = "spiffe://durward.local/executor/other", "spiffe://durward.local/executor/other"
		}, ErrTarget},
		{"an entry that is not canonical", func(_ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Subject.Entry = []byte(`{"b":1,"a":2}`)
		}, ErrTarget},
		{"no entry", func(_ *vaultv1.Operation, p *executorv1.PreviewCallResponse) { p.Subject = nil }, ErrTarget},
		{"asked for before a halt", func(_ *vaultv1.Operation, p *executorv1.PreviewCallResponse) { p.Epoch = 4 }, ErrEpoch},
		{"expired", func(o *vaultv1.Operation, _ *executorv1.PreviewCallResponse) { o.ExpiresAt = timestamppb.New(testNow) }, ErrExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			op, p := operation(t), preview()
			c.change(op, p)
			st, err := signer(t).Approve(op, p)
			if !errors.Is(err, c.want) || strings.HasPrefix(op.GetTool().GetSource(), "mcp:") != strings.Contains(err.Error(), "accepted anew") {
				t.Errorf("got %+v, %v; want %v", st, err, c.want)
			}
		})
	}
}

// The digests are of what is shown, whatever the vault says, and the statement covers the grant that the vault would make.
func TestApprove(t *testing.T) {
	op, p := operation(t), preview()
	st, err := signer(t).Approve(op, p)
	must(t, err)
	raw, err := st.Marshal()
	if err != nil {
		t.Fatalf("the statement is not well-formed: %v", err)
	}
	parsed, err := statement.Parse(raw)
	must(t, err)
	arguments, subject := canonical.Digest(op.GetArguments()), canonical.Digest(p.GetSubject().GetEntry())
	verified := &statement.Verified{Statement: parsed}
	grant := &callv1.Grant{
		OperationId: op.GetOperationId(), Use: 1, Principal: op.GetPrincipal(), Session: op.GetSession(), Channel: op.GetChannel(),
		Tool: op.GetTool(), ArgumentsDigest: arguments[:], SubjectDigest: subject[:], Audience: executorID, Epoch: 3,
	}
	tool, _ := contract.Lookup("start_service")
	if err := verified.Covers(grant, tool.Ref(), tool.Tier, op.GetArguments(), nil); err != nil {
		t.Errorf("the statement does not cover its operation: %v", err)
	}
	for name, change := range map[string]func(*callv1.Grant){
		"operation": func(g *callv1.Grant) { g.OperationId = strings.Repeat("f", 32) },
		"second":    func(g *callv1.Grant) { g.Use = 2 },
		"session":   func(g *callv1.Grant) { g.Session = "s-other" },
		"subject":   func(g *callv1.Grant) { g.SubjectDigest = arguments[:] },
	} {
		other, ok := proto.Clone(grant).(*callv1.Grant)
		if !ok {
			t.Fatal("clone")
		}
		change(other)
		if err := verified.Covers(other, tool.Ref(), tool.Tier, op.GetArguments(), nil); err == nil {
			t.Errorf("it covers another %s too", name)
		}
	}
	if st.ExpiresAt != "2026-01-02T03:33:25Z" || st.AgentReason != op.GetAgentReason() || st.Operator != "alice" {
		t.Errorf("statement %+v", st)
	}
}

func TestCommand(t *testing.T) {
	call, err := NewCall("stop_service", []byte(`{"service_id":"demo-chat"}`))
	must(t, err)
	if _, err := signer(t).Command(call, preview(), 2); !errors.Is(err, ErrEpoch) {
		t.Errorf("an executor that is ahead: %v", err)
	}
	st, err := signer(t).Command(call, preview(), 4)
	must(t, err)
	if _, err := st.Marshal(); err != nil {
		t.Errorf("not well-formed: %v", err)
	}
	if st.Principal != "operator:alice" || st.Epoch != 4 || st.Session != CommandSession || !IsOperationID(st.Operation) {
		t.Errorf("statement %+v", st)
	}
	again, err := signer(t).Command(call, preview(), 4)
	if err != nil || again.Operation == st.Operation || again.ID == st.ID {
		t.Errorf("two commands share an operation: %v", err)
	}
}

func TestResume(t *testing.T) {
	st := signer(t).Resume(executorID, 9)
	raw, err := st.Marshal()
	must(t, err)
	if parsed, err := statement.Parse(raw); err != nil || parsed.Kind != statement.KindResume || parsed.Epoch != 9 {
		t.Errorf("%+v, %v", parsed, err)
	}
}

// Nothing that an agent or a client says can hide, move the cursor, or look like the next line.
func TestCardShowsHostileTextAsEscapes(t *testing.T) {
	op := operation(t)
	op.ClientName = "nice\x1b[2K\rDENY"
	op.AgentReason = "line one\nK7F3  READ  harmless \u202eevil"
	p := preview()
	p.Plan = []string{"start \x1b[31mred"}
	lines := Card{Number: "K7F3", Operation: op, Preview: p}.Lines(testNow)
	text := strings.Join(lines, "\n")
	if strings.ContainsAny(text, "\x1b\r\u202e") {
		t.Errorf("hostile characters came through: %q", text)
	}
	if len(lines) != 5 {
		t.Errorf("%d lines, want 5: %q", len(lines), lines)
	}
	for _, want := range []string{"K7F3  WRITE  start_service service_id=demo-chat  on executor/local", "asked 0:40 ago", "expires 29:20",
		`\u{1B}[2K`, `agent says (untrusted): "line one\u{A}K7F3`, `\u{202E}`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

// An agent's text ends no quotation and brings no columns of its own; what is signed is the text itself.
func TestAnAgentsTextStaysQuoted(t *testing.T) {
	op := operation(t)
	op.AgentReason = `a" · approved by alice` + strings.Repeat(" ", 70) + "b"
	lines := Card{Number: "K7F3", Operation: op, Preview: preview()}.Lines(testNow)
	if last := lines[len(lines)-1]; !strings.HasSuffix(last, `"a\" · approved by alice b"`) {
		t.Errorf("the card says %q", last)
	}
	for reason, want := range map[string]string{`a\`: `"a\\"`, `a\" b`: `"a\\\" b"`, `a\u{202E}`: `"a\\u{5C}u{202E}"`, "a\u202e": `"a\u{202E}"`} {
		op.AgentReason = reason
		lines := Card{Number: "K7F3", Operation: op, Preview: preview()}.Lines(testNow)
		if last := lines[len(lines)-1]; !strings.HasSuffix(last, ": "+want) {
			t.Errorf("%s is shown as %q, want %s", reason, last, want)
		}
	}
	if st, err := signer(t).Approve(op, preview()); err != nil || st.AgentReason != op.AgentReason {
		t.Errorf("signed: %q, %v", st.AgentReason, err)
	}
}

func TestLinesAreWhole(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	raw, err := json.Marshal(map[string]string{"a": long, "b": "\u2066\x00"})
	must(t, err)
	text := strings.Join(Lines(raw), "\n")
	if !strings.Contains(text, long) {
		t.Error("a long value was cut")
	}
	if strings.ContainsRune(text, 0x2066) || !strings.Contains(text, `\u{2066}`) {
		t.Error("a bidirectional control came through")
	}
	if got := Lines([]byte("not json\x1b")); len(got) != 1 || got[0] != `not json\u{1B}` {
		t.Errorf("not JSON: %q", got)
	}
}

func TestArguments(t *testing.T) {
	for in, want := range map[string]string{
		`{}`:                           "",
		`{"b":1,"a":"x"}`:              "a=x b=1",
		`{"a":"two words"}`:            `a="two words"`,
		`{"a":""}`:                     `a=""`,
		`{"a":"x b=2"}`:                `a="x b=2"`,
		"{\"a\":\"\u202e\"}":           `a="\u{202E}"`,
		"no \x1b json":                 `no \u{1B} json`,
		`{"list":["a"],"o":{"k":"v"}}`: `list=["a"] o={"k":"v"}`,
	} {
		if got := Arguments([]byte(in)); got != want {
			t.Errorf("Arguments(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0:00", 40 * time.Second: "0:40", 29*time.Minute + 20*time.Second: "29:20", 25*time.Hour + 61*time.Second: "25:01:01"} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%s) = %s, want %s", d, got, want)
		}
	}
}

// entryOf is the entry of a service, as an executor shows it.
func entryOf(t *testing.T, s *catalog.Service) []byte {
	t.Helper()
	entry, err := s.Subject("sha256:aa")
	must(t, err)
	return entry
}

func chat() *catalog.Service {
	return &catalog.Service{ID: "chat", Driver: catalog.DriverSystemd, Unit: "chat.service", VRAMMiB: 6000, GPUs: []uint32{0}}
}

func coder() *catalog.Service {
	return &catalog.Service{ID: "coder", Driver: catalog.DriverProcess, Argv: []string{"/usr/bin/vllm", "serve", "two words"},
		RunAs: "llm", Port: 8001, GPUs: []uint32{0, 1}, VRAMMiB: 20000}
}

// switching is an agent's request to switch by a plan, and the executor's preview of it. Each step is "stop", "start" and so on.
func switching(t *testing.T, actions ...string) (*vaultv1.Operation, *executorv1.PreviewCallResponse) {
	t.Helper()
	tool, ok := contract.Lookup("switch_mode")
	if !ok {
		t.Fatal("no switch_mode")
	}
	if len(actions) == 0 {
		actions = []string{"stop", "start"}
	}
	op, p := operation(t), preview()
	var steps []map[string]string
	p.Plan, p.Entries = nil, nil
	for i, s := range []*catalog.Service{chat(), coder()} {
		digest := canonical.Digest(entryOf(t, s))
		steps = append(steps, map[string]string{"action": actions[i], "entry_sha256": hex.EncodeToString(digest[:]), "service": s.ID})
		p.Plan = append(p.Plan, actions[i]+" "+s.ID)
		p.Entries = append(p.Entries, &callv1.Subject{Label: "service " + s.ID, Entry: entryOf(t, s)})
	}
	plan, err := canonical.Marshal(map[string]any{"catalogue": "sha256:aa", "mode": "coding", "steps": steps})
	must(t, err)
	digest := canonical.Digest(plan)
	op.Tool, op.Tier = tool.Ref(), tool.Tier
	op.Arguments = fmt.Appendf(nil, `{"mode_id":"coding","plan_digest":"%x"}`, digest)
	p.Subject = &callv1.Subject{Label: "mode coding", Entry: plan}
	return op, p
}

// An executor that shows other entries than the plan's gets no signature: what a person reads is what the digests stand for.
func TestALyingPreviewIsNotSigned(t *testing.T) {
	harmless := coder()
	harmless.Argv = []string{"/usr/bin/true"}
	for name, c := range map[string]struct {
		lie  func(*testing.T, *vaultv1.Operation, *executorv1.PreviewCallResponse)
		want error
	}{
		"no entries": {func(_ *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) { p.Entries = nil }, ErrEntries},
		"one missing": {func(_ *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Entries = p.Entries[:1]
		}, ErrEntries},
		"one too many": {func(_ *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Entries = append(p.Entries, p.Entries[1])
		}, ErrEntries},
		"a harmless program": {func(t *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Entries[1].Entry = entryOf(t, harmless)
		}, ErrEntries},
		"another definition": {func(t *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Entries[1].Entry, _ = coder().Subject("sha256:bb")
		}, ErrEntries},
		"in another order": {func(_ *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Entries[0], p.Entries[1] = p.Entries[1], p.Entries[0]
		}, ErrEntries},
		"of what stops": {func(_ *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Entries[0].Entry = []byte(`{}`)
		}, ErrEntries},
		"empty": {func(_ *testing.T, _ *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			p.Entries[1] = &callv1.Subject{}
		}, ErrEntries},
		// Plans that no executor of ours makes, under their own right digests.
		"another service's entry under its digest": {func(t *testing.T, op *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			replan(op, p, `"service":"coder"`, `"service":"other"`)
		}, ErrEntries},
		"an entry that says more than an entry can": {func(t *testing.T, op *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			before := canonical.Digest(p.Entries[1].Entry)
			p.Entries[1].Entry = []byte(strings.Replace(string(p.Entries[1].Entry), `"argv":[`, `"Argv":["/bin/sh"],"argv":[`, 1))
			after := canonical.Digest(p.Entries[1].Entry)
			replan(op, p, hex.EncodeToString(before[:]), hex.EncodeToString(after[:]))
		}, ErrEntries},
		"a plan with more than a plan has": {func(t *testing.T, op *vaultv1.Operation, p *executorv1.PreviewCallResponse) {
			replan(op, p, `"mode":"coding"`, `"mode":"coding","more":1`)
		}, ErrTarget},
	} {
		t.Run(name, func(t *testing.T) {
			op, p := switching(t)
			c.lie(t, op, p)
			if st, err := signer(t).Approve(op, p); !errors.Is(err, c.want) {
				t.Errorf("approve: %+v, %v; want %v", st, err, c.want)
			}
			call, err := CallOf(op)
			must(t, err)
			if st, err := signer(t).Command(call, p, 3); !errors.Is(err, c.want) {
				t.Errorf("command: %+v, %v; want %v", st, err, c.want)
			}
			card := strings.Join(Card{Number: "K7F3", Operation: op, Preview: p}.Lines(testNow), "\n")
			if !strings.Contains(card, "IT CANNOT BE APPROVED") || strings.Contains(card, "what was asked for") {
				t.Errorf("the card is\n%s", card)
			}
		})
	}
}

// replan changes the plan, and has the call name it as it is then.
func replan(op *vaultv1.Operation, p *executorv1.PreviewCallResponse, old, new string) {
	p.Subject.Entry = []byte(strings.Replace(string(p.Subject.Entry), old, new, 1))
	digest := canonical.Digest(p.Subject.Entry)
	op.Arguments = fmt.Appendf(nil, `{"mode_id":"coding","plan_digest":"%x"}`, digest)
}

func TestStepsOfAPlan(t *testing.T) {
	lines := map[string]string{
		"chat":  "chat: unit chat.service, GPU 0, 6000 MiB declared",
		"coder": `coder: /usr/bin/vllm serve "two words" as llm, port 8001, GPU 0, GPU 1, 20000 MiB declared`,
	}
	for _, c := range []struct{ actions, want []string }{
		{[]string{"stop", "start"}, []string{"start " + lines["coder"]}},
		{[]string{"wake", "start"}, []string{"wake " + lines["chat"], "start " + lines["coder"]}},
		{[]string{"sleep", "stop"}, nil},
		// What this program does not know is shown.
		{[]string{"Stop", "sleep"}, []string{"Stop " + lines["chat"]}},
	} {
		op, p := switching(t, c.actions...)
		call, err := CallOf(op)
		must(t, err)
		steps, err := call.Steps(p)
		if err != nil || len(steps) != 2 || string(steps[1].Entry) != string(entryOf(t, coder())) {
			t.Errorf("%v: %d steps, %v", c.actions, len(steps), err)
		}
		if diff := cmp.Diff(c.want, StepLines(steps)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.actions, diff)
		}
		card := strings.Join(Card{Number: "K7F3", Operation: op, Preview: p}.Lines(testNow), "\n")
		for _, want := range c.want {
			if !strings.Contains(card, want) {
				t.Errorf("%q is not in the card\n%s", want, card)
			}
		}
	}
	// A call that names no plan has none, whatever the executor adds.
	call, err := CallOf(operation(t))
	must(t, err)
	if steps, err := call.Steps(preview()); steps != nil || err != nil {
		t.Errorf("%v, %v", steps, err)
	}
}

// The plan's digest is reckoned here: neither the vault nor the executor can have another plan signed under it.
func TestAnotherPlanIsNotSigned(t *testing.T) {
	op, p := switching(t)
	if _, err := signer(t).Approve(op, p); err != nil {
		t.Fatalf("the plan that was asked for: %v", err)
	}
	p.Subject.Entry = []byte(strings.Replace(string(p.Subject.Entry), `"service":"chat"`, `"service":"embed"`, 1))
	if _, err := signer(t).Approve(op, p); !errors.Is(err, ErrPlan) {
		t.Errorf("approve: %v, want ErrPlan", err)
	}
	call, err := CallOf(op)
	must(t, err)
	if _, err := signer(t).Command(call, p, 3); !errors.Is(err, ErrPlan) {
		t.Errorf("command: %v, want ErrPlan", err)
	}
}

func TestCardSaysWhetherThePlanStands(t *testing.T) {
	op, p := switching(t)
	card := func() string {
		return strings.Join(Card{Number: "K7F3", Operation: op, Preview: p}.Lines(testNow), "\n")
	}
	if got := card(); !strings.Contains(got, "stop chat") || !strings.Contains(got, "what the executor would do now is what was asked for") {
		t.Errorf("the card is\n%s", got)
	}
	p.Subject.Entry = []byte(`{}`)
	if got := card(); !strings.Contains(got, "NOT THE PLAN") {
		t.Errorf("the card is\n%s", got)
	}
	op, p = operation(t), preview()
	if got := card(); strings.Contains(got, "plan ") {
		t.Errorf("a call without a plan says\n%s", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
