package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	toolset "durward.internal/services/platform/contract"
	"durward.internal/services/platform/logproof"
)

// route is a transport with a revision: a way in which a call can reach a tool.
type route struct {
	name string
	// connect lets a client in and returns how it sends a message with the id 7.
	connect func(h *harness.Host, client string) send
	// meta is what each request says about itself, where the revision has that.
	stateless bool
}

// send sends one message. tool is its tool, where it calls one.
type send func(t *testing.T, tool string, body []byte) harness.RawAnswer

var routes = []route{
	{name: "http 2025-11-25", connect: overHTTP("2025-11-25")},
	{name: "http 2025-06-18", connect: overHTTP("2025-06-18")},
	{name: "http 2026-07-28", connect: overStatelessHTTP, stateless: true},
	{name: "stdio 2025-11-25", connect: overStdio(true)},
	{name: "stdio 2026-07-28", connect: overStdio(false), stateless: true},
}

func overHTTP(revision string) func(*harness.Host, string) send {
	return func(h *harness.Host, client string) send {
		session := h.ConnectRevision(h.AddClient(client, ceiling...), revision)
		return func(_ *testing.T, _ string, body []byte) harness.RawAnswer { return session.Send(body) }
	}
}

func overStatelessHTTP(h *harness.Host, client string) send {
	token := h.AddClient(client, ceiling...)
	return func(t *testing.T, tool string, body []byte) harness.RawAnswer {
		t.Helper()
		r := harness.Stateless(token, "tools/call", tool, "{}")
		r.Body = body
		a, err := h.Raw(t.Context(), r)
		must(t, err)
		return a
	}
}

func overStdio(handshake bool) func(*harness.Host, string) send {
	return func(h *harness.Host, client string) send {
		h.AddKeyBound(client, ceiling...)
		bridge := h.StdioRaw(client)
		send := func(t *testing.T, _ string, body []byte) harness.RawAnswer {
			t.Helper()
			a, err := bridge.Send(body, "7")
			must(t, err)
			return a
		}
		if handshake {
			if _, err := bridge.Send(harness.Handshake(harness.SessionRevision), "1"); err != nil {
				return func(t *testing.T, _ string, _ []byte) harness.RawAnswer {
					t.Fatal(err)
					return harness.RawAnswer{}
				}
			}
			_, _ = bridge.Send([]byte(harness.Initialized), "") // the first call shows whether it arrived
		}
		return send
	}
}

// message is a tools/call of the route.
func (r route) message(tool, arguments string) []byte {
	if r.stateless {
		return harness.StatelessCall("", tool, arguments).Body
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, arguments)
}

// TestPipeline sends every tool of the contract over every transport in every revision, and shows by what the log holds and by
// what does not happen that each call went through every stage: authenticated, limited, parsed strictly, validated,
// authorised, approved, redeemed, intended, carried out, recorded, and answered with its receipt.
func TestPipeline(t *testing.T) {
	t.Parallel()
	for _, r := range routes {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			// A bucket that hardly fills again: what this test needs, and a few calls more.
			h := harness.Start(t, harness.Options{
				Catalog: harness.ModesCatalog, Limits: fmt.Sprintf("{tools: {per_s: 0.1, burst: %d}, reads: {per_s: 0.1, burst: %d}}", burst, burst),
			})
			p := &pipeline{t: t, h: h, route: r, send: r.connect(h, "piper"), schemas: map[string]*jsonschema.Resolved{}}
			for _, tool := range harness.Listed(optionsv1.Tier_TIER_DESTRUCTIVE) {
				p.schemas[tool.Name] = nil
			}
			p.list()
			walked := map[string]bool{}
			for _, name := range order {
				tool, ok := toolset.Lookup(name)
				if !ok {
					t.Fatalf("the contract has no tool %s", name)
				}
				p.parsed(tool)
				p.validated(tool)
				switch {
				case tool.FullMethod == vaultv1.ToolService_WaitOperation_FullMethodName:
					p.waited(tool)
				case tool.FullMethod == vaultv1.ToolService_WithdrawOperation_FullMethodName:
					p.withdrawn(tool)
				case tool.Tier == optionsv1.Tier_TIER_READ:
					p.read(tool)
				default:
					p.changed(tool)
				}
				walked[tool.Name] = true
			}
			for _, tool := range harness.Tools() {
				p.limited(tool)
				if !walked[tool.Name] {
					t.Errorf("%s was not called", tool.Name)
				}
			}
		})
	}
}

// ceiling lets a client ask for everything that the contract has.
var ceiling = []string{"--tier", "DESTRUCTIVE"}

// burst is how many calls of a kind a principal has at once.
const burst = 60

// order is the tools in the order in which each finds what it needs: something that runs can be stopped, what slept can be woken,
// and a log has lines once something ran.
var order = []string{
	"security_config", "tokenize", "find_tools", "describe_tool", "gpu_status", "list_services", "service_info", "list_modes", "mode_info", "list_models", "model_info", "withdraw_operation", "wait_operation", "start_service",
	"simulate_mode", "switch_mode", "sleep_service", "wake_service", "stop_service", "service_logs",
}

// pipeline is one route under test.
type pipeline struct {
	t       *testing.T
	h       *harness.Host
	route   route
	send    send
	schemas map[string]*jsonschema.Resolved
	// plan is the digest of the newest plan.
	plan string
}

// list takes the tools' output schemas, and checks that the route offers every tool of the contract.
func (p *pipeline) list() {
	p.t.Helper()
	var tools struct {
		Tools []mcp.Tool `json:"tools"`
	}
	body := []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`)
	answer := harness.RawAnswer{}
	if p.route.stateless {
		request := harness.Stateless(p.token(), "tools/list", "", "{}")
		if strings.HasPrefix(p.route.name, "stdio") {
			answer = p.send(p.t, "", request.Body)
		} else {
			var err error
			if answer, err = p.h.Raw(p.t.Context(), request); err != nil {
				p.t.Fatal(err)
			}
		}
	} else {
		answer = p.send(p.t, "", body)
	}
	if err := json.Unmarshal(answer.Result, &tools); err != nil {
		p.t.Fatalf("tools/list: %v: %s", err, answer.Body)
	}
	for _, tool := range tools.Tools {
		p.schemas[tool.Name] = harness.ResolveSchema(p.t, tool.OutputSchema)
	}
	for name, schema := range p.schemas {
		if schema == nil {
			p.t.Fatalf("the route does not offer %s", name)
		}
	}
}

// token is the bearer client's.
func (p *pipeline) token() string {
	return strings.TrimSpace(p.h.ReadFile("clients/piper/token"))
}

// arguments are good ones for a tool. A plan's digest is that of the plan that was simulated last.
func (p *pipeline) arguments(tool toolset.Tool, operation string) string {
	fields := tool.Method.Input().Fields()
	service := harness.SleepyService
	if tool.Name == "start_service" {
		service = harness.DemoService
	}
	switch {
	case fields.ByName("plan_digest") != nil:
		return fmt.Sprintf(`{"mode_id":%q,"plan_digest":%q}`, harness.NightMode, p.plan)
	case fields.ByName("service_id") != nil:
		return fmt.Sprintf(`{"service_id":%q}`, service)
	case fields.ByName("mode_id") != nil:
		return fmt.Sprintf(`{"mode_id":%q}`, harness.NightMode)
	case fields.ByName("model_id") != nil:
		return fmt.Sprintf(`{"model_id":%q}`, harness.DemoModel)
	case fields.ByName("text") != nil:
		return `{"text":"a text of the agent's own"}`
	case fields.ByName("words") != nil:
		return `{"words":"start a service"}`
	case fields.ByName("tool") != nil:
		return `{"tool":"start_service"}`
	case fields.ByName("operation_id") != nil:
		return fmt.Sprintf(`{"operation_id":%q}`, operation)
	default:
		return "{}"
	}
}

// call calls a tool and returns its envelope, checked as a strict client does.
func (p *pipeline) call(tool toolset.Tool, arguments string) harness.Envelope {
	p.t.Helper()
	return harness.Again(func() harness.Envelope {
		return p.envelope(tool, p.send(p.t, tool.Name, p.route.message(tool.Name, arguments)))
	})
}

func (p *pipeline) envelope(tool toolset.Tool, answer harness.RawAnswer) harness.Envelope {
	p.t.Helper()
	var result mcp.CallToolResult
	if err := json.Unmarshal(answer.Result, &result); err != nil {
		p.t.Fatalf("%s: %v: %d %s", tool.Name, err, answer.HTTPStatus, answer.Body)
	}
	return harness.CheckResult(p.t, p.schemas[tool.Name], &result)
}

// parsed: a message that two parsers read in two ways never becomes a call.
func (p *pipeline) parsed(tool toolset.Tool) {
	p.t.Helper()
	body := string(p.route.message(tool.Name, p.arguments(tool, strings.Repeat("0", 32))))
	twice := strings.Replace(body, `"name":`, `"name":"gpu_status","name":`, 1)
	if answer := p.send(p.t, tool.Name, []byte(twice)); answer.Error == nil {
		p.t.Errorf("%s: a duplicate key passes: %s", tool.Name, answer.Body)
	}
}

// validated: an argument that the contract does not know is refused in the envelope, and the refusal is recorded.
func (p *pipeline) validated(tool toolset.Tool) {
	p.t.Helper()
	e := p.call(tool, `{"no_such_argument":true}`)
	if e.Status != "error" || e.Error == nil || e.Error.Code != "INVALID_ARGUMENT" {
		p.t.Fatalf("%s: %s", tool.Name, e.Raw)
	}
	p.belongs(tool, p.story(e.RequestID, auditv1.Kind_KIND_REFUSED))
}

// story returns the record of a kind under a request id.
func (p *pipeline) story(requestID string, kind auditv1.Kind) *auditv1.Record {
	p.t.Helper()
	entries := p.h.Story(requestID, harness.OfKind(kind))
	at := slices.IndexFunc(entries, func(e *auditv1.Entry) bool { return e.GetRecord().GetKind() == kind })
	return entries[at].GetRecord()
}

// belongs: a record names the authenticated principal, its session, and the tool.
func (p *pipeline) belongs(tool toolset.Tool, record *auditv1.Record) {
	p.t.Helper()
	body := record.GetBody()
	if body.GetPrincipal() != "piper" || !strings.HasPrefix(body.GetSession(), "s-") || record.GetTool() != tool.Name || record.GetTier() != tool.Tier {
		p.t.Errorf("%s: %s names principal %q, session %q, tool %q, tier %s", tool.Name, record.GetKind(), body.GetPrincipal(), body.GetSession(),
			record.GetTool(), record.GetTier())
	}
}

// read: a READ tool is carried out under the session's permit, and recorded by the sink.
func (p *pipeline) read(tool toolset.Tool) {
	p.t.Helper()
	e := p.call(tool, p.arguments(tool, ""))
	if e.Status != "ok" || len(e.Result) == 0 {
		p.t.Fatalf("%s: %s", tool.Name, e.Raw)
	}
	record := p.story(e.RequestID, auditv1.Kind_KIND_READ)
	p.belongs(tool, record)
	if record.GetStatus() != auditv1.Status_STATUS_OK || record.GetBody().GetArguments() != p.arguments(tool, "") {
		p.t.Errorf("%s: recorded as %s with arguments %s", tool.Name, record.GetStatus(), record.GetBody().GetArguments())
	}
	p.answered(e)
	if tool.OneCall {
		p.once(e)
	}
	var result struct {
		PlanDigest string `json:"plan_digest"`
	}
	must(p.t, json.Unmarshal(e.Result, &result))
	if result.PlanDigest != "" {
		p.plan = result.PlanDigest
	}
}

// once: a read whose calls the vault sees one by one ran on a grant of its own, which is spent, and what a service wrote came wrapped
// and without its secrets.
func (p *pipeline) once(e harness.Envelope) {
	p.t.Helper()
	for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED} {
		p.story(e.RequestID, kind)
	}
	var result struct {
		Log string `json:"log"`
	}
	must(p.t, json.Unmarshal(e.Result, &result))
	if !strings.HasPrefix(result.Log, "<fetched_content>") || strings.Contains(string(e.Raw), harness.LoggedSecret) || !strings.Contains(result.Log, "[[SECRET:SETTING:") {
		p.t.Errorf("the log is %q", result.Log)
	}
}

// answered: an answer carries its request id wherever a client looks for it.
func (p *pipeline) answered(e harness.Envelope) {
	p.t.Helper()
	if e.Meta["durward/request_id"] != e.RequestID {
		p.t.Errorf("_meta names request %v, the envelope %s", e.Meta["durward/request_id"], e.RequestID)
	}
}

// changed: a tool that changes something waits for the human, and its record tells the whole story.
func (p *pipeline) changed(tool toolset.Tool) {
	p.t.Helper()
	starts := p.h.Starts(harness.DemoService)
	pending := p.call(tool, p.arguments(tool, ""))
	if pending.Status != "pending_approval" || pending.OperationID == "" || p.h.Starts(harness.DemoService) != starts {
		p.t.Fatalf("%s before anybody approved it: %s", tool.Name, pending.Raw)
	}
	p.belongs(tool, p.story(pending.RequestID, auditv1.Kind_KIND_ASKED))
	p.h.Approve(pending.OperationID)
	p.carriedOut(tool, p.call(tool, p.arguments(tool, "")), pending)
}

// waited: wait_operation carries out what it waits for, with the same records.
func (p *pipeline) waited(tool toolset.Tool) {
	p.t.Helper()
	start, _ := toolset.Lookup("start_service")
	if unknown := p.call(tool, p.arguments(tool, strings.Repeat("0", 32))); unknown.Status != "error" || unknown.Error == nil || unknown.Error.Code != "NOT_FOUND" {
		p.t.Fatalf("%s for an operation that is nobody's: %s", tool.Name, unknown.Raw)
	}
	pending := p.call(start, p.arguments(start, ""))
	p.h.Approve(pending.OperationID)
	p.carriedOut(start, p.call(tool, p.arguments(tool, pending.OperationID)), pending)
}

// withdrawn: withdraw_operation takes back what its own session asked for, with a record of its own.
func (p *pipeline) withdrawn(tool toolset.Tool) {
	p.t.Helper()
	start, _ := toolset.Lookup("start_service")
	pending := p.call(start, p.arguments(start, ""))
	done := p.call(tool, p.arguments(tool, pending.OperationID))
	if done.Status != "ok" || !strings.Contains(string(done.Result), "withdrawn") {
		p.t.Fatalf("%s: %s", tool.Name, done.Raw)
	}
	p.answered(done)
	if record := p.story(done.RequestID, auditv1.Kind_KIND_WITHDRAWN); record.GetOperationId() != pending.OperationID || record.GetTool() != start.Name {
		p.t.Errorf("%s: recorded as %v", tool.Name, record)
	}
}

// carriedOut checks the records of an approved operation, in their order, and the receipt in the answer.
func (p *pipeline) carriedOut(tool toolset.Tool, done, pending harness.Envelope) {
	p.t.Helper()
	if done.Status != "ok" || done.OperationID != pending.OperationID || done.Replayed {
		p.t.Fatalf("%s after its approval: %s", tool.Name, done.Raw)
	}
	p.answered(done)
	var kinds []auditv1.Kind
	var outcome uint64
	for _, e := range p.h.Records(&auditv1.SearchRecordsRequest{OperationId: done.OperationID}) {
		record := e.GetRecord()
		kinds = append(kinds, record.GetKind())
		switch record.GetKind() {
		case auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME:
			p.belongs(tool, record)
			if body := record.GetBody(); !body.GetConfirmed() || body.GetArguments() != p.arguments(tool, "") || body.GetParentRequestId() != pending.RequestID {
				p.t.Errorf("%s: %s is not about what was approved: %v", tool.Name, record.GetKind(), body)
			}
			if record.GetKind() == auditv1.Kind_KIND_OUTCOME {
				outcome = e.GetIndex()
			}
		}
	}
	at := 0
	for _, kind := range []auditv1.Kind{
		auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_INTENT,
		auditv1.Kind_KIND_OUTCOME,
	} {
		found := slices.Index(kinds[at:], kind)
		if found < 0 {
			p.t.Fatalf("%s: no %s after the stages before it: the log holds %v", tool.Name, kind, kinds)
		}
		at += found + 1
	}
	receipt, _ := done.Meta["durward/receipt"].(map[string]any)
	index, _ := receipt["index"].(float64)
	if checkpoint, _ := receipt["checkpoint"].(string); uint64(index) != outcome || !strings.HasPrefix(checkpoint, "durward.local/audit/main\n") {
		p.t.Errorf("%s: the receipt %v is not that of record %d", tool.Name, receipt, outcome)
	}
	// Whoever holds the log's public key proves it, without any process.
	raw, err := json.Marshal(receipt)
	must(p.t, err)
	parsed, err := logproof.ParseReceipt(raw)
	if err != nil {
		p.t.Fatalf("%s: %v", tool.Name, err)
	}
	if _, err := logproof.VerifyReceipt(parsed, p.h.Trust().Current().LogKeys); err != nil {
		p.t.Errorf("%s: the receipt does not hold: %v", tool.Name, err)
	}
}

// limited: the tool counts in its principal's bucket, which is empty before long.
func (p *pipeline) limited(tool toolset.Tool) {
	p.t.Helper()
	nothing := strings.NewReplacer(
		harness.DemoService, "no-such-service", harness.SleepyService, "no-such-service", harness.NightMode, "no-such-mode", harness.DemoModel, "no-such-model",
	).Replace(p.arguments(tool, strings.Repeat("0", 32)))
	for range burst + 5 {
		e := p.call(tool, nothing)
		if e.Error != nil && e.Error.Code == "RATE_LIMITED" {
			if e.Error.Message != "Rate limit exceeded" || e.Error.RetryAfterS == 0 {
				p.t.Errorf("%s: over the limit: %s", tool.Name, e.Raw)
			}
			return
		}
	}
	p.t.Errorf("%s: %d calls, and none was refused", tool.Name, burst+5)
}
