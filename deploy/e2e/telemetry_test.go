package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest/input"
)

// collector is an OTLP collector that keeps everything that it is sent, as JSON.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	address string

	mu       sync.Mutex
	received bytes.Buffer
	services map[string]bool
}

// Export implements collectorpb.TraceServiceServer.
func (c *collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	raw, err := protojson.Marshal(r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received.Write(raw)
	for _, spans := range r.GetResourceSpans() {
		for _, a := range spans.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				c.services[a.GetValue().GetStringValue()] = true
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received.String()
}

// heard returns how many processes have sent spans.
func (c *collector) heard() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.services)
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &collector{address: lis.Addr().String(), services: map[string]bool{}}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

// observed makes an installation whose processes trace every request, log all that they can, and send spans to the collector.
func observed(t *testing.T, opts harness.Options, c *collector) *harness.Host {
	t.Helper()
	h := harness.New(t, opts)
	for _, role := range harness.Roles() {
		file := "config/" + role + ".yaml"
		section := "\ntelemetry:\n  sample_ratio: 1\n"
		if c != nil {
			section += "  otlp: {endpoint: " + c.address + "}\n"
		}
		text := regexp.MustCompile(`(?m)^log_level:.*$`).ReplaceAllString(h.ReadFile(file), "")
		h.WriteFile(file, text+"\nlog_level: debug\n"+section)
	}
	h.StartAll()
	return h
}

// page returns what a process's loopback listener answers.
func page(t *testing.T, h *harness.Host, role, path string) string {
	t.Helper()
	return get(t, "http://"+h.HealthAddress(role)+path)
}

// span is a span as GET /traces shows it.
type span struct {
	TraceID    string            `json:"trace_id"`
	SpanID     string            `json:"span_id"`
	ParentID   string            `json:"parent_id"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	Attributes map[string]string `json:"attributes"`
	// service is the process that made it.
	service string
}

// trace returns the spans of one trace, of every process.
func trace(t *testing.T, h *harness.Host, id string) []span {
	t.Helper()
	var all []span
	for _, role := range harness.Roles() {
		var answer struct {
			Service string
			Spans   []span
		}
		must(t, json.Unmarshal([]byte(page(t, h, role, "/traces?trace_id="+id)), &answer))
		if answer.Service != role {
			t.Errorf("%s says that it is %q", role, answer.Service)
		}
		for _, s := range answer.Spans {
			s.service = role
			all = append(all, s)
		}
	}
	return all
}

// within puts members into the _meta of a raw message.
func within(r harness.RawRequest, members string) harness.RawRequest {
	if bytes.Contains(r.Body, []byte(`"_meta":{`)) {
		r.Body = bytes.Replace(r.Body, []byte(`"_meta":{`), []byte(`"_meta":{`+members+`,`), 1)
	} else {
		r.Body = bytes.Replace(r.Body, []byte(`"params":{`), []byte(`"params":{"_meta":{`+members+`},`), 1)
	}
	return r
}

// TestTracesJoin starts a service, approved while the call is held, for a client that has a trace of its own: what every
// process did for it is in that trace, each span under the one that caused it. In both eras.
func TestTracesJoin(t *testing.T) {
	t.Parallel()
	h := observed(t, harness.Options{HoldS: 20}, nil)
	token := h.AddClient("agent")
	const parent = "00f067aa0ba902b7"
	const demo = `{"service_id":"` + harness.DemoService + `"}`
	for name, test := range map[string]struct {
		id string
		// header: the trace stands around the message, not in it.
		header bool
		call   func() harness.RawRequest
	}{
		"sessions":           {"4bf92f3577b34da6a3ce929d0e0e4736", false, func() harness.RawRequest { return h.ConnectRaw(token).Call("start_service", demo) }},
		"stateless":          {"4bf92f3577b34da6a3ce929d0e0e4737", false, func() harness.RawRequest { return harness.StatelessCall(token, "start_service", demo) }},
		"in the HTTP header": {"4bf92f3577b34da6a3ce929d0e0e4738", true, func() harness.RawRequest { return harness.StatelessCall(token, "start_service", demo) }},
	} {
		t.Run(name, func(t *testing.T) {
			traceparent := "00-" + test.id + "-" + parent + "-00" // the client does not ask for a record; a change is recorded
			h.KillServices()                                      // so that there is something to start
			request := test.call()
			if test.header {
				request = request.With("traceparent", traceparent)
			} else {
				request = within(request, `"traceparent":"`+traceparent+`"`)
			}
			answered := make(chan harness.RawAnswer, 1)
			go func() {
				answer, err := h.Raw(t.Context(), request)
				if err != nil {
					t.Error(err)
				}
				answered <- answer
			}()
			h.Approve(h.AwaitApproval("start_service").OperationID)
			answer := <-answered
			if !strings.Contains(answer.Body, `"status":"ok"`) && !strings.Contains(answer.Body, `\"status\":\"ok\"`) {
				t.Fatalf("the call did not end well: %s", answer.Body)
			}

			// Settling and the record of the outcome end a moment after the answer.
			var spans []span
			harness.Eventually(t, "the trace is whole", func() error {
				spans = trace(t, h, test.id)
				return joined(spans, parent)
			})
			if t.Failed() {
				for _, s := range spans {
					t.Logf("%-9s %s %s under %s: %s", s.service, s.Kind, s.SpanID, s.ParentID, s.Name)
				}
			}
		})
	}
}

// joined checks that spans are one tree under a root whose parent is the client's, and that what must be in it is.
func joined(spans []span, client string) error {
	byID := map[string]span{}
	for _, s := range spans {
		byID[s.SpanID] = s
	}
	roots := 0
	for _, s := range spans {
		switch parent, ok := byID[s.ParentID]; {
		case s.ParentID == client:
			roots++
			if s.service != harness.Gateway || s.Name != "tools/call start_service" || s.Attributes["durward.tier"] != "WRITE" || s.Attributes["durward.status"] != "ok" {
				return fmt.Errorf("the first span is %+v", s)
			}
		case !ok:
			return fmt.Errorf("%s of %s has a parent %q that nobody has", s.Name, s.service, s.ParentID)
		case s.Kind == "server" && (parent.Kind != "client" || parent.Name != s.Name || parent.service == s.service):
			return fmt.Errorf("%s of %s is under %s %s of %s", s.Name, s.service, parent.Kind, parent.Name, parent.service)
		case s.Kind != "server" && parent.service != s.service:
			return fmt.Errorf("%s of %s is under %s of %s", s.Name, s.service, parent.Name, parent.service)
		}
	}
	if roots != 1 {
		return fmt.Errorf("%d spans are under the client's", roots)
	}
	for _, want := range [][]string{
		// From the effect back to the client, each under the next.
		{"executor driver start", "executor durward.executor.v1.ToolService/StartService", "gateway durward.executor.v1.ToolService/StartService", "gateway tools/call start_service"},
		{"audit audit commit", "audit durward.audit.v1.LogService/Append", "executor durward.audit.v1.LogService/Append", "executor audit append", "executor audit record", "executor durward.executor.v1.ToolService/StartService"},
		{"vault audit record", "vault durward.vault.v1.AuthorityService/Authorise", "gateway durward.vault.v1.AuthorityService/Authorise", "gateway tools/call start_service"},
		{"vault durward.vault.v1.RedeemService/Redeem", "executor durward.vault.v1.RedeemService/Redeem", "executor durward.executor.v1.ToolService/StartService"},
		{"vault durward.vault.v1.RedeemService/Settle", "executor durward.vault.v1.RedeemService/Settle", "executor durward.executor.v1.ToolService/StartService"},
	} {
		if !slices.ContainsFunc(spans, func(s span) bool { return chain(byID, s, want) }) {
			return fmt.Errorf("there is no %s", strings.Join(want, " under "))
		}
	}
	return nil
}

// chain reports whether a span and those above it have these names.
func chain(byID map[string]span, s span, names []string) bool {
	for _, name := range names {
		if s.service+" "+s.Name != name {
			return false
		}
		s = byID[s.ParentID]
	}
	return true
}

// TestSamplingIsOurs shows that a client joins its trace and does not decide what is recorded.
func TestSamplingIsOurs(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	h.WriteFile("config/gateway.yaml", h.ReadFile("config/gateway.yaml")+"\ntelemetry: {sample_ratio: 0}\n")
	h.StartAll()
	token := h.AddClient("agent")
	const id = "4bf92f3577b34da6a3ce929d0e0e4740"
	for range 20 {
		answer, err := h.Raw(t.Context(), within(harness.StatelessCall(token, "gpu_status", `{}`), `"traceparent":"00-`+id+`-00f067aa0ba902b7-01"`))
		if err != nil || answer.Error != nil {
			t.Fatalf("%v %s", err, answer.Body)
		}
	}
	if spans := trace(t, h, id); len(spans) > 0 {
		t.Errorf("a client's word has %d spans recorded: %+v", len(spans), spans)
	}
	// A change is recorded whatever the ratio, and the client's word.
	answer, err := h.Raw(t.Context(), within(harness.StatelessCall(token, "start_service", `{"service_id":"`+harness.DemoService+`"}`), `"traceparent":"00-`+id+`-00f067aa0ba902b7-00"`))
	if err != nil || answer.Error != nil {
		t.Fatalf("%v %s", err, answer.Body)
	}
	if spans := trace(t, h, id); len(spans) < 5 {
		t.Errorf("a change has %d spans", len(spans))
	}
}

// Words that stand for what nobody may read outside the audit log. Each is of the form that the place where it is put takes.
const (
	canaryOperator = "canaryoperator"
	canaryClient   = "canaryclient"
	canaryText     = "canarytext"
	// canaryService is a service of the catalog that cannot be started.
	canaryService = "canaryservice"
)

// canaryCatalog is the demo catalog with a service that is named by a canary.
func canaryCatalog(h *harness.Host) string {
	return harness.DemoCatalog(h) + fmt.Sprintf(`  - id: %s
    name: %s
    driver: process
    argv: [durward-demo, -model, %s, -no-such-flag]
    port: %d
    health: {path: /health}
    start_timeout_s: 5
`, canaryService, canaryService, canaryService, h.Port(2))
}

// TestNothingLeaks puts canaries wherever somebody could put a secret or a name, drives every tool and every refusal, and
// looks for the canaries in every log, span and metric. The same against an executor that lacks the guard of spans must
// find them.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	t.Run("shipped", func(t *testing.T) {
		t.Parallel()
		found, _ := leaks(t, harness.Options{Operator: canaryOperator, Catalog: canaryCatalog})
		for _, where := range found {
			t.Errorf("%s", where)
		}
	})
	t.Run("without the guard of spans", func(t *testing.T) {
		t.Parallel()
		_, places := leaks(t, harness.Options{Operator: canaryOperator, Catalog: canaryCatalog, Build: harness.Build{Weak: true},
			Flags: map[string][]string{harness.Executor: {"-weaken", "spans"}}})
		if diff := cmp.Diff([]string{"collector", "executor /traces"}, places); diff != "" {
			t.Errorf("canaries are found at (-want +got):\n%s", diff)
		}
	})
}

// programEnded finds the one place in a log that names a service: the executor says which program of its own catalog ended,
// whoever started it.
var programEnded = regexp.MustCompile(`("msg":"a service's program ended","service":"executor",)"service_id":"[^"]*",`)

// ofService is the label of the executor's metrics that name a service of its catalog, as a human wrote it.
var ofService = regexp.MustCompile(`(?m)^(durward_service_(?:state|memory_bytes|vram_bytes)\{[^}]*)\bservice="[^"]*"`)

// leaks drives an installation with canaries and returns what it found, and where.
func leaks(t *testing.T, opts harness.Options) (found, places []string) {
	t.Helper()
	spans := startCollector(t)
	h := observed(t, opts, spans)
	secrets := []string{canaryOperator, canaryClient, canaryText, canaryService}
	token := h.AddClient(canaryClient)
	secrets = append(secrets, token)
	h.AddKeyBound(canaryClient + "2")
	driveBothEras(t, h, token)
	driveStdio(t, h)
	driveStrangers(t, h, token)

	harness.Eventually(t, "every process has sent spans", func() error {
		if n := spans.heard(); n < len(harness.Roles()) {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	texts := map[string]string{}
	for _, role := range harness.Roles() {
		texts[role+" /metrics"] = page(t, h, role, "/metrics")
		texts[role+" /traces"] = page(t, h, role, "/traces")
		texts[role+" /health"] = page(t, h, role, "/health")
	}
	texts[harness.Executor+" /metrics"] = ofService.ReplaceAllString(texts[harness.Executor+" /metrics"], "$1")
	for _, role := range slices.Backward(harness.Roles()) {
		h.Process(role).Stop() // it sends its last spans
		texts[role+" log"] = programEnded.ReplaceAllString(h.ReadFile(filepath.Join("logs", role+".log")), "$1")
	}
	texts["collector"] = spans.text()
	for where, text := range texts {
		if len(text) < 50 {
			t.Errorf("%s says nothing: %q", where, text)
		}
		lower := strings.ToLower(text)
		for _, secret := range secrets {
			if at := strings.Index(lower, strings.ToLower(secret)); at >= 0 {
				found = append(found, fmt.Sprintf("%s holds %q: …%s…", where, secret, text[max(0, at-300):min(len(text), at+200)]))
				places = append(places, where)
			}
		}
	}
	slices.Sort(places)
	return found, slices.Compact(places)
}

// hostile are headers with canaries, beside those that MCP asks for.
func hostile(r harness.RawRequest) harness.RawRequest {
	for name, value := range map[string]string{
		"User-Agent": canaryText, "Baggage": "user=" + canaryText, "Tracestate": "vendor=" + canaryText, "X-Request-Id": canaryText,
		"Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4741-00f067aa0ba902b7-01", "Durward-Request-Id": canaryText, "Cookie": canaryText,
		"Referer": "http://localhost/" + canaryText, "Forwarded": canaryText,
	} {
		r = r.With(name, value)
	}
	return r
}

// driveBothEras calls every tool over HTTP, well and badly, with canaries in everything that a client may write.
func driveBothEras(t *testing.T, h *harness.Host, token string) {
	t.Helper()
	session := h.ConnectRaw(token)
	send := func(r harness.RawRequest) harness.RawAnswer {
		t.Helper()
		answer, err := h.Raw(t.Context(), hostile(within(r, `"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4742-00f067aa0ba902b7-01",`+
			`"tracestate":"vendor=`+canaryText+`","baggage":"user=`+canaryText+`","progressToken":"`+canaryText+`"`)))
		must(t, err)
		return answer
	}
	tools := h.Connect(token).Tools
	for name, tool := range tools {
		for _, arguments := range argumentsFor(t, tool) {
			send(session.Call(name, arguments))
			send(harness.StatelessCall(token, name, arguments))
		}
	}
	if n := len(h.Approvals()); n == 0 {
		t.Error("nothing waits for approval: the tools were not driven")
	}
	for _, waiting := range h.Approvals() {
		h.Deny(waiting.OperationID, "no "+canaryText+" today")
		send(session.Call("wait_operation", `{"operation_id":"`+waiting.OperationID+`"}`))
	}
	// One that fails, one that is carried out, and one whose approval is replayed.
	send(session.Call("start_service", `{"service_id":"`+canaryService+`"}`))
	failing := h.AwaitApproval("start_service").OperationID
	h.Approve(failing)
	if answer := send(session.Call("wait_operation", `{"operation_id":"`+failing+`"}`)); !strings.Contains(answer.Body, "did not start") {
		t.Errorf("a service that cannot start: %s", answer.Body)
	}
	send(session.Call("service_info", `{"service_id":"`+canaryService+`"}`))
	send(session.Call("start_service", `{"service_id":"`+harness.DemoService+`","reason":"`+canaryText+` again"}`))
	operation := h.AwaitApproval("start_service").OperationID
	h.Approve(operation)
	for range 2 {
		send(session.Call("wait_operation", `{"operation_id":"`+operation+`"}`))
	}
	// What is no tool, no method, no frame, no resource.
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":"` + canaryText + `","method":"` + canaryText + `/x","params":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/` + canaryText + `","params":{}}`,
		`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"` + canaryText + `","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"gpu_status","` + canaryText + `":1}}`,
		`{"jsonrpc":"2.0","id":9,"method":"resources/read","params":{"uri":"durward://services/` + canaryText + `"}}`,
		`{"jsonrpc":"2.0","id":9,"method":"resources/read","params":{"uri":"file:///` + canaryText + `"}}`,
		`{"jsonrpc":"2.0","id":9,"method":"resources/read","params":{"uri":"durward://services/` + canaryService + `"}}`,
		`{"jsonrpc":"2.0","id":9,"method":"resources/subscribe","params":{"uri":"durward://services/` + canaryText + `"}}`,
		`{"jsonrpc":"2.0","id":9,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"durward://services/{service_id}"},"argument":{"name":"service_id","value":"` + canaryText + `"}}}`,
		`{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"` + canaryText + `","capabilities":{},"clientInfo":{"name":"` + canaryText + `","version":"1"}}}`,
		`{"` + canaryText, canaryText,
	} {
		send(session.Request([]byte(body)))
	}
	for _, r := range []harness.RawRequest{
		harness.Stateless(token, canaryText, "", `{}`), harness.Stateless(token, "resources/read", "durward://services/"+canaryText, `{"uri":"durward://services/`+canaryText+`"}`),
		harness.Stateless(token, "tasks/get", canaryText, `{"taskId":"`+canaryText+`"}`),
		harness.Stateless(token, "subscriptions/listen", "", `{"notifications":{"resourceSubscriptions":["durward://`+canaryText+`"]}}`),
		harness.StatelessCall(token, canaryText, `{}`), harness.StatelessCall(token, "gpu_status", `{}`).With("Mcp-Name", canaryText),
		harness.StatelessCall(token, "gpu_status", `{}`).With("Mcp-Method", canaryText),
		harness.StatelessCall(token, "gpu_status", `{}`).With("Mcp-Protocol-Version", canaryText),
	} {
		send(r)
	}
	h.Durward("panic", "--reason", canaryText)
	send(session.Call("start_service", `{"service_id":"`+harness.DemoService+`"}`))
	send(session.Call("gpu_status", `{}`))
	h.Durward("resume", "--yes")
}

// argumentsFor returns good and bad arguments for a tool, each with a canary in every text.
func argumentsFor(t *testing.T, tool *mcp.Tool) []string {
	t.Helper()
	raw, err := json.Marshal(tool.InputSchema)
	must(t, err)
	var schema struct {
		Properties map[string]struct {
			Type    string
			Pattern string
		}
	}
	must(t, json.Unmarshal(raw, &schema))
	good, bad := map[string]any{}, map[string]any{canaryText: canaryText}
	for name, p := range schema.Properties {
		switch {
		case name == "lines":
			good[name] = 3
		case name == "margin_mib_override":
			good[name] = 1024
		case p.Type == "integer":
			good[name] = 3
		case p.Type == "array":
			good[name] = []string{canaryText}
		case p.Type == "object":
			good[name] = map[string]int{canaryText: 4096}
		case p.Type != "string":
			t.Fatalf("argument %s of %s is of type %s, which this test does not know how to fill", name, tool.Name, p.Type)
		case name == "operation_id":
			good[name] = strings.Repeat("c0ffee00", 4)
		case name == "plan_digest":
			good[name] = strings.Repeat("c0ffee00", 8)
		case slices.Contains([]string{"service_id", "mode_id", "model_id", "cursor"}, name):
			good[name] = canaryText
		default:
			good[name] = "because " + canaryText + " said so"
		}
		bad[name] = canaryText + "; rm -rf /" + canaryText
	}
	var out []string
	for _, arguments := range []map[string]any{good, bad, {"reason": 3, "service_id": []string{canaryText}, "operation_id": map[string]string{canaryText: canaryText}}} {
		raw, err := json.Marshal(arguments)
		must(t, err)
		out = append(out, string(raw))
	}
	if _, changes := schema.Properties["reason"]; changes {
		out = append(out, `{"service_id":"`+harness.DemoService+`","reason":"`+canaryText+`"}`)
	}
	return out
}

// driveStdio does some of that through the stdio bridge, whose client signs.
func driveStdio(t *testing.T, h *harness.Host) {
	t.Helper()
	client := h.ConnectStdio(canaryClient + "2")
	client.Ask("gpu_status", nil)
	client.Ask("start_service", map[string]any{"service_id": harness.DemoService, "reason": canaryText})
	h.Deny(h.AwaitApproval("start_service").OperationID, canaryText)
}

// driveStrangers sends what gets no further than the door.
func driveStrangers(t *testing.T, h *harness.Host, token string) {
	t.Helper()
	ping := []byte(`{"jsonrpc":"2.0","id":"` + canaryText + `","method":"ping"}`)
	for _, r := range []harness.RawRequest{
		{Token: canaryText, Body: ping}, {Token: token[:len(token)-1] + "x" + canaryText, Body: ping},
		{Body: ping, Header: map[string]string{"Authorization": "Basic " + canaryText}},
		{Token: token, Body: ping, Host: canaryText + ".example"}, {Token: token, Body: ping, Header: map[string]string{"Origin": "https://" + canaryText + ".example"}},
		{Token: token, Body: ping, Header: map[string]string{"Content-Type": canaryText}}, {Token: token, Body: ping, Header: map[string]string{"Accept": canaryText}},
		{Token: token, Body: ping, Header: map[string]string{"Mcp-Session-Id": canaryText}}, {Token: token, Method: canaryText, Body: ping},
		harness.StatelessCall(canaryText, "gpu_status", `{}`),
	} {
		if _, err := h.Raw(t.Context(), hostile(r)); err != nil {
			t.Fatal(err)
		}
	}
	for _, role := range harness.Roles() {
		for _, path := range []string{"/" + canaryText, "/traces?trace_id=" + canaryText, "/metrics?name=" + canaryText, "/debug/vars", "/debug/pprof/"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.HealthAddress(role)+path, nil)
			must(t, err)
			request.Header.Set("User-Agent", canaryText)
			response, err := http.DefaultClient.Do(request)
			must(t, err)
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil || bytes.Contains(body, []byte(canaryText)) {
				t.Errorf("%s %s: %v %s", role, path, err, body)
			}
			if strings.HasPrefix(path, "/debug") && response.StatusCode != http.StatusNotFound {
				t.Errorf("%s %s is there: %d", role, path, response.StatusCode)
			}
		}
	}
}

// scrape returns a process's metrics by name.
func scrape(t *testing.T, h *harness.Host, role string) map[string]*dto.MetricFamily {
	t.Helper()
	var families map[string]*dto.MetricFamily
	harness.Eventually(t, "the metrics of "+role, func() (err error) { // where the machine is busy they say that it took too long
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err = parser.TextToMetricFamilies(strings.NewReader(page(t, h, role, "/metrics")))
		return err
	})
	return families
}

// TestMetrics scrapes the running processes: what each shows, with which labels, all of them from closed sets.
func TestMetrics(t *testing.T) {
	t.Parallel()
	h := harness.StartMeasured(t)
	client := h.Connect(h.AddClient("agent"))
	client.Ask("gpu_status", nil)
	client.Ask("service_info", map[string]any{"service_id": "not-there"})
	asked := client.Ask("start_service", map[string]any{"service_id": harness.SleepyService})
	h.Approve(asked.OperationID)
	client.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID})
	h.ConnectRaw(h.AddClient("other")).CallTool("format_disk", `{}`)

	want := map[string]map[string][]string{
		harness.Gateway: {
			"durward_gateway_requests_total": {"era", "method", "status"}, "durward_gateway_call_duration_seconds": {"status", "tool"},
			"durward_gateway_refused_total": {"reason"}, "durward_gateway_sessions": nil, "durward_gateway_subscriptions": nil, "durward_gateway_connections": nil, "durward_gateway_connections_limit": nil,
			"durward_gateway_calls_in_flight": nil, "durward_gateway_waits_held": nil,
		},
		harness.Vault: {
			"durward_vault_operations": {"state"}, "durward_vault_oldest_pending_age_seconds": nil, "durward_vault_authorisations_total": {"decision"},
			"durward_vault_decisions_total": {"decision", "result"}, "durward_vault_redemptions_total": {"result"}, "durward_vault_sessions": nil,
			"durward_vault_session_openings_total": {"result"}, "durward_vault_waits_held": nil, "durward_vault_pending_limit": nil, "durward_halted": nil, "durward_disk_full": nil,
		},
		harness.Executor: {
			"durward_executor_call_duration_seconds": {"status", "tool"}, "durward_executor_refused_total": {"code", "permission"},
			"durward_executor_services": {"state"}, "durward_service_state": {"service", "state"},
			"durward_service_memory_bytes": {"gpu_uuid", "service", "source"}, "durward_gpu_info": {"gpu", "gpu_uuid", "name", "simulated"},
			"durward_gpu_memory_used_bytes": {"gpu", "gpu_uuid"}, "durward_gpu_memory_total_bytes": {"gpu", "gpu_uuid"},
			"durward_gpu_memory_free_bytes": {"gpu", "gpu_uuid"}, "durward_gpu_memory_foreign_bytes": {"gpu", "gpu_uuid"},
			"durward_gpu_temperature_celsius": {"gpu", "gpu_uuid"}, "durward_gpu_driver_up": nil,
			"durward_executor_calls_in_flight": nil, "durward_halted": nil, "durward_disk_full": nil,
		},
		harness.Egress: {
			"durward_egress_refused_total": {"code", "permission"}, "durward_egress_calls_in_flight": nil, "durward_egress_requests_total": {"result", "rule"}, "durward_disk_full": nil,
		},
		harness.Audit: {
			"durward_audit_append_duration_seconds": {"status"}, "durward_audit_records_total": {"kind"}, "durward_audit_log_records": nil,
			"durward_audit_log_bytes": nil, "durward_audit_log_growth_bytes_per_day": nil, "durward_audit_log_writable": nil, "durward_audit_log_leads": nil, "durward_audit_requests_waiting": nil, "durward_audit_requests_waiting_limit": nil, "durward_audit_disk_free_bytes": nil, "durward_audit_disk_bytes": nil, "durward_disk_full": nil,
		},
	}
	recorder := map[string][]string{
		"durward_recorder_spool_records": nil, "durward_recorder_spool_capacity_records": nil, "durward_recorder_queue_records": nil,
		"durward_recorder_audit_reachable": nil,
	}
	everywhere := map[string][]string{
		"durward_build_info": {"service", "version"}, "durward_certificate_expiry_timestamp_seconds": nil, "durward_certificate_start_timestamp_seconds": nil, "durward_trace_spans_total": {"result"},
		"durward_recorder_append_duration_seconds": nil, "go_goroutines": nil, "process_resident_memory_bytes": nil,
	}
	for _, role := range append(harness.Roles(), harness.Egress) {
		families := scrape(t, h, role)
		expected := []map[string][]string{want[role], everywhere}
		if role != harness.Audit {
			expected = append(expected, recorder)
		}
		for _, set := range expected {
			for name, labels := range set {
				family := families[name]
				if family == nil {
					t.Errorf("%s has no %s", role, name)
					continue
				}
				if family.GetHelp() == "" {
					t.Errorf("%s: %s says nothing of itself", role, name)
				}
				for _, m := range family.GetMetric() {
					var got []string
					for _, l := range m.GetLabel() {
						got = append(got, l.GetName())
						// A label that somebody outside could choose would have another form.
						if !regexp.MustCompile(`^[A-Za-z0-9_/: .()+-]{1,64}$`).MatchString(l.GetValue()) {
							t.Errorf("%s: %s{%s=%q}", role, name, l.GetName(), l.GetValue())
						}
					}
					slices.Sort(got)
					if diff := cmp.Diff(labels, got); diff != "" {
						t.Errorf("%s: labels of %s (-want +got):\n%s", role, name, diff)
					}
				}
			}
		}
	}
	harness.Eventually(t, "the GPU's memory is measured", func() error {
		if used := value(scrape(t, h, harness.Executor)["durward_gpu_memory_used_bytes"], nil); used < 8192<<20 {
			return fmt.Errorf("it is %v", used)
		}
		return nil
	})
	gateway, executor, vault := scrape(t, h, harness.Gateway), scrape(t, h, harness.Executor), scrape(t, h, harness.Vault)
	for _, c := range []struct {
		families map[string]*dto.MetricFamily
		name     string
		labels   map[string]string
		least    float64
	}{
		{gateway, "durward_gateway_call_duration_seconds", map[string]string{"tool": "gpu_status", "status": "ok"}, 1},
		{gateway, "durward_gateway_call_duration_seconds", map[string]string{"tool": "service_info", "status": "error"}, 1},
		{gateway, "durward_gateway_call_duration_seconds", map[string]string{"tool": "start_service", "status": "pending_approval"}, 1},
		{gateway, "durward_gateway_call_duration_seconds", map[string]string{"tool": "wait_operation", "status": "ok"}, 1},
		{gateway, "durward_gateway_call_duration_seconds", map[string]string{"tool": "unknown", "status": "denied"}, 1},
		{gateway, "durward_gateway_requests_total", map[string]string{"method": "tools/call"}, 5},
		{gateway, "durward_gateway_refused_total", map[string]string{"reason": "unknown tool"}, 1},
		{executor, "durward_executor_call_duration_seconds", map[string]string{"tool": "start_service", "status": "ok"}, 1},
		{executor, "durward_executor_services", map[string]string{"state": "running"}, 1},
		{executor, "durward_gpu_memory_used_bytes", map[string]string{"gpu": "0"}, 8192 << 20},
		{executor, "durward_service_memory_bytes", map[string]string{"service": harness.SleepyService, "source": "measured"}, 8192 << 20},
		{vault, "durward_vault_decisions_total", map[string]string{"decision": "approve", "result": "ok"}, 1},
		{vault, "durward_vault_redemptions_total", map[string]string{"result": "ok"}, 1},
	} {
		if got := value(c.families[c.name], c.labels); got < c.least {
			t.Errorf("%s%v is %v, want at least %v", c.name, c.labels, got, c.least)
		}
	}
	for _, role := range harness.Roles() {
		ends := value(scrape(t, h, role)["durward_certificate_expiry_timestamp_seconds"], nil)
		if left := time.Until(time.Unix(int64(ends), 0)); left < 0 || left > 25*time.Hour {
			t.Errorf("the certificate of %s ends in %s", role, left)
		}
	}
}

// value adds up the samples of a family that have these labels; of a histogram, how many were observed.
func value(family *dto.MetricFamily, labels map[string]string) float64 {
	sum := 0.0
	for _, m := range family.GetMetric() {
		fits := 0
		for _, l := range m.GetLabel() {
			if want, asked := labels[l.GetName()]; asked && want == l.GetValue() {
				fits++
			}
		}
		if fits == len(labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// rules is what is read of alerts.yaml.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string
			Expr        string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

var (
	// selector is a metric of ours in an expression, with its labels.
	selector = regexp.MustCompile(`\b(durward_[a-z_]+|up)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(=~|=)"([^"]*)"`)
	// grouping is what an expression sums by.
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// TestAlertsFitMetrics holds every alert to a scrape of the running processes: each metric that it names is there, with each
// label, and each value that a label is compared with is one that it can have.
func TestAlertsFitMetrics(t *testing.T) {
	t.Parallel()
	input.Outside(t)
	raw, err := os.ReadFile(filepath.Join(harness.Root(t), "deploy", "prometheus", "alerts.yaml"))
	must(t, err)
	var file rules
	must(t, yaml.Unmarshal(raw, &file))
	h := harness.StartMeasured(t)
	client := h.Connect(h.AddClient("agent"))
	asked := client.Ask("start_service", map[string]any{"service_id": harness.SleepyService})
	h.Approve(asked.OperationID)
	client.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID})
	// labels are what each series has, as Prometheus stores it: name → label → values.
	labels := map[string]map[string]map[string]bool{"up": {"job": {}, "instance": {}}}
	for _, role := range append(harness.Roles(), harness.Egress) {
		labels["up"]["job"]["durward-"+role] = true
		for name, family := range scrape(t, h, role) {
			names := []string{name}
			if family.GetType() == dto.MetricType_HISTOGRAM {
				names = []string{name + "_bucket", name + "_sum", name + "_count"}
			}
			for _, name := range names {
				if labels[name] == nil {
					labels[name] = map[string]map[string]bool{"job": {}, "instance": {}}
				}
				labels[name]["job"]["durward-"+role] = true
				if strings.HasSuffix(name, "_bucket") {
					labels[name]["le"] = map[string]bool{}
				}
				for _, m := range family.GetMetric() {
					for _, l := range m.GetLabel() {
						if labels[name][l.GetName()] == nil {
							labels[name][l.GetName()] = map[string]bool{}
						}
						labels[name][l.GetName()][l.GetValue()] = true
					}
				}
			}
		}
	}
	count := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			count++
			for _, said := range []string{rule.Labels["severity"], rule.Annotations["summary"], rule.Annotations["description"], rule.Annotations["action"]} {
				if said == "" {
					t.Errorf("%s lacks a severity, a summary, a description or what to do", rule.Alert)
				}
			}
			selectors := selector.FindAllStringSubmatch(rule.Expr, -1)
			if len(selectors) == 0 {
				t.Errorf("%s looks at nothing", rule.Alert)
			}
			for _, s := range selectors {
				series := labels[s[1]]
				if series == nil {
					t.Errorf("%s: no process shows %s", rule.Alert, s[1])
					continue
				}
				for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
					values := series[m[1]]
					if values == nil {
						t.Errorf("%s: %s has no label %s", rule.Alert, s[1], m[1])
						continue
					}
					pattern := regexp.MustCompile("^(?:" + m[3] + ")$")
					fits := false
					for v := range values {
						fits = fits || m[2] == "=" && v == m[3] || m[2] == "=~" && pattern.MatchString(v)
					}
					if !fits {
						t.Errorf("%s: %s never has %s%s%q, but %v", rule.Alert, s[1], m[1], m[2], m[3], values)
					}
				}
				for _, by := range grouping.FindAllStringSubmatch(rule.Expr, -1) {
					for _, label := range strings.Split(by[1], ",") {
						if series[strings.TrimSpace(label)] == nil {
							t.Errorf("%s sums by %s, which %s does not have", rule.Alert, label, s[1])
						}
					}
				}
			}
		}
	}
	if count < 7 {
		t.Errorf("%d alerts", count)
	}
}
