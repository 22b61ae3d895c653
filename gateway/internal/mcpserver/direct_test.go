package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/metrics"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/telemetry"
)

// This file shows that a call that the edge answers at once gets the answer that it gets through the SDK: two gateways stand before
// peers that answer alike, one of which has the SDK serve every message.

// hostile are texts that no answer may show as they are, and some that are only hard to write.
var hostile = []string{
	"plain", "", "\x1b[31mred\x1b[0m", "a\u202eb", "</script><b>&amp;", `"quoted" \ back`, `","request_id":"r-other","x":"`, "zero\x00width\u200b", "line\nbreak\ttab",
	"\u2028\u2029", "größer 😀", strings.Repeat("long ", 2000), "/home/someone/.ssh/id_ed25519", "goroutine 1 [running]:",
}

// peersAnswer is what both gateways' peers answer to the next call.
type peersAnswer struct{ variant int }

func (p *peersAnswer) answer(method string, _ proto.Message) (proto.Message, *callv1.Outcome, error) {
	said := hostile[p.variant%len(hostile)]
	outcome := &callv1.Outcome{Summary: said}
	switch p.variant % 11 {
	case 1:
		outcome = nil
	case 2:
		outcome.Warnings = []string{said, "second"}
	case 3:
		outcome.Failed = true
	case 4:
		outcome.Overrides = []string{"margin_mib=256"}
	case 5:
		outcome.Replayed, outcome.Receipt = true, &callv1.Receipt{Index: 7, Checkpoint: []byte("x\n8\nhash\n\n— sig\n"), LeafHash: []byte("leaf")}
	case 6:
		return nil, nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such service", fault.WithField("service_id"), fault.WithSuggestions(said))
	case 7:
		codes := []callv1.Code{callv1.Code_CODE_DENIED, callv1.Code_CODE_EXPIRED, callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_INTERNAL, callv1.Code_CODE_AUDIT_UNAVAILABLE}
		return nil, nil, fault.New(codes[p.variant/11%len(codes)], said)
	}
	switch method {
	case executorv1.ToolService_GpuStatus_FullMethodName:
		return &executorv1.GpuStatusResponse{Gpus: []*executorv1.Gpu{{Name: said, Uuid: "GPU-0", MemoryTotalMib: 24576, Services: []string{said}}}, Source: "simulated"}, outcome, nil
	case executorv1.ToolService_ListServices_FullMethodName:
		return &executorv1.ListServicesResponse{Services: []*executorv1.ServiceSummary{{ServiceId: "a", Name: said}, {}}, Disabled: []string{said}}, outcome, nil
	case executorv1.ToolService_ServiceInfo_FullMethodName:
		return &executorv1.ServiceInfoResponse{Service: &executorv1.ServiceDetail{ServiceId: "a", Description: said, Healthy: true, UptimeS: 1<<32 - 1}}, outcome, nil
	case executorv1.ToolService_ListModes_FullMethodName:
		return &executorv1.ListModesResponse{Current: said, Modes: []*executorv1.ModeSummary{{ModeId: "m", Name: said}}}, outcome, nil
	}
	return nil, nil, nil
}

// pair is the gateway as it is and one that has the SDK serve every message.
type pair struct {
	answers     *peersAnswer
	direct, sdk *readers
}

func newPair(t testing.TB) *pair {
	t.Helper()
	p := &pair{answers: new(peersAnswer)}
	for i, r := range []**readers{&p.direct, &p.sdk} {
		*r = &readers{wire: &wire{answers: p.answers.answer}}
		(*r).serve(t, i == 1)
		(*r).open(t)
	}
	return p
}

// seen is all that a client, the peers and the log see of a call, ids apart.
type seen struct {
	Status  int
	Header  http.Header
	Message any
	Sent    []string
}

func (p *pair) see(t testing.TB, i int, send func(*readers) *httptest.ResponseRecorder) (out seen, atOnce bool) {
	t.Helper()
	r := []*readers{p.direct, p.sdk}[i]
	a := send(r)
	id, body := a.Header().Get("Durward-Request-Id"), a.Body.String()
	atOnce = a.Header().Get("Content-Length") != "" // the SDK sends its stream as it goes
	if rest, stream := strings.CutPrefix(body, "event: message\ndata: "); stream {
		if body = strings.TrimSuffix(rest, "\n\n"); strings.Contains(body, "\n") {
			t.Errorf("more than one event: %q", rest)
		}
	}
	body = strings.ReplaceAll(strings.ReplaceAll(body, id, "r-ID"), r.session, "SESSION")
	if body != "" && json.Unmarshal([]byte(body), &out.Message) != nil {
		out.Message = body
	}
	out.Status, out.Header = a.Code, a.Header().Clone()
	for _, name := range []string{"Durward-Request-Id", "Content-Length", "Connection"} {
		out.Header.Del(name)
	}
	for _, s := range r.wire.take() {
		out.Sent = append(out.Sent, fmt.Sprintf("%s %x", s.method, s.body))
	}
	return out, atOnce
}

// recorded holds together what both have recorded: how many refusals of each kind. Those that come fast count together.
func (p *pair) recorded(t testing.TB) {
	t.Helper()
	var counts [2]map[string]int
	for i, r := range []*readers{p.direct, p.sdk} {
		ended, end := context.WithCancel(context.Background())
		end()
		r.refusals.Run(ended, time.Second)
		counts[i] = map[string]int{}
		for _, record := range r.spool.records {
			n := 1
			if many := record.GetBody().GetDetails()["count"]; many != "" {
				var err error
				n, err = strconv.Atoi(many)
				must(t, err)
			}
			counts[i][record.GetBody().GetReason()] += n
		}
	}
	if diff := cmp.Diff(counts[1], counts[0]); diff != "" || len(counts[0]) == 0 {
		t.Errorf("refusals (-through the SDK +at once):\n%s", diff)
	}
}

// compare sends the same to both and holds what is seen of it together. It reports whether the answer came at once and is a result,
// and whether a sink was asked.
func (p *pair) compare(t testing.TB, what string, send func(*readers) *httptest.ResponseRecorder) (result, asked bool) {
	t.Helper()
	got, atOnce := p.see(t, 0, send)
	want, _ := p.see(t, 1, send)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%.300s (variant %d): (-through the SDK +at once):\n%s", what, p.answers.variant, diff)
	}
	message, _ := got.Message.(map[string]any)
	said, _ := message["result"].(map[string]any)
	return atOnce && said["content"] != nil, got.Sent != nil
}

func (p *pair) frame(t testing.TB, era era, frame []byte) bool {
	t.Helper()
	result, _ := p.compare(t, string(frame), func(r *readers) *httptest.ResponseRecorder { return r.post(frame, r.headers(era, frame)) })
	return result
}

// Without DURWARD_FULL, a sample of 500 frames for each era is made of another seed each time; a failure names its frame.
func TestAnswersAtOnceAreTheSDKs(t *testing.T) {
	t.Parallel()
	generated, seed := 500, rand.Uint64()
	if platformtest.Full() {
		generated, seed = 10_000, 20260728
	}
	t.Logf("seed %d", seed)
	for _, era := range eras {
		t.Run(era.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				g := generator{rand.New(rand.NewPCG(seed, uint64(era)))}
				atOnce := 0
				for i := range generated {
					p.answers.variant = i / 2 // each twice in a row, so that what is remembered is sent too
					if p.frame(t, era, g.frame(era)) {
						atOnce++
					}
					time.Sleep(time.Second) // in the bubble: both have their whole budget of records again
				}
				if atOnce < generated/16 { // a sample of 500 had 60 once
					t.Errorf("%d of %d frames were answered at once", atOnce, generated)
				}
				for _, seed := range ambiguous {
					p.frame(t, era, []byte(seed))
				}
				p.recorded(t)
			})
		})
	}
}

// Each tool of the contract, called as it is and with each hostile text for an argument; only those that the contract marks are
// answered at once, with arguments that are right, and never one that wants to hear of progress.
func TestOnlySnapshotsAreAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	for _, era := range eras {
		p := newPair(t)
		for _, tool := range contract.Tools() {
			for _, text := range append([]string{"demo-chat"}, hostile...) {
				arguments := map[string]any{}
				if tool.ResourceArgument != "" {
					arguments[tool.ResourceArgument] = text
				} else if text != "demo-chat" {
					arguments["text"] = text
				}
				p.answers.variant = 2
				frame := callFrame(t, era, tool.Name, arguments, nil)
				_, wrong := tool.Decode([]byte(mustJSON(t, arguments)))
				if atOnce := p.frame(t, era, frame); atOnce != (tool.Snapshot && wrong == nil) {
					t.Errorf("%s, %s: at once is %t", era, frame, atOnce)
				}
				if p.frame(t, era, callFrame(t, era, tool.Name, arguments, map[string]any{"progressToken": 7})) {
					t.Errorf("%s: %s with a progress token was answered at once", era, tool.Name)
				}
			}
		}
		// Members that are nothing to a read: a task that an older client asks for, the extension that a newer one declares.
		p.frame(t, era, []byte(strings.Replace(string(callFrame(t, era, "gpu_status", nil, nil)), `"params":{`, `"params":{"task":{"ttl":60000},`, 1)))
		p.frame(t, era, callFrame(t, era, "gpu_status", nil, map[string]any{metaCapabilities: map[string]any{"extensions": map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}}}}))
	}
}

func callFrame(t testing.TB, era era, tool string, arguments, meta map[string]any) []byte {
	t.Helper()
	says := map[string]any{}
	if era == modern {
		says[metaVersion], says[metaCapabilities] = statelessRevision, map[string]any{}
	}
	maps.Copy(says, meta)
	if arguments == nil {
		arguments = map[string]any{}
	}
	return []byte(mustJSON(t, map[string]any{"jsonrpc": "2.0", "id": 7, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": arguments, "_meta": says}}))
}

// What the front refuses looks the same for a call that would be answered at once.
func TestRefusalsBeforeAnAnswerAtOnce(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	gone := map[*readers]string{}
	for _, r := range []*readers{p.direct, p.sdk} {
		gone[r] = r.session
		request := httptest.NewRequestWithContext(context.Background(), http.MethodDelete, "http://127.0.0.1"+httpfront.Path, nil)
		request.Header.Set("Authorization", "Bearer "+tokenAgent)
		request.Header.Set("Mcp-Session-Id", r.session)
		r.gateway.ServeHTTP(httptest.NewRecorder(), request)
		r.open(t)
	}
	call := callFrame(t, legacy, "gpu_status", nil, nil)
	for name, header := range map[string]map[string]string{
		"no session":        {"Mcp-Session-Id": ""},
		"an unknown one":    {"Mcp-Session-Id": "unknown"},
		"another token":     {"Authorization": "Bearer " + tokenOther},
		"no token":          {"Authorization": ""},
		"no stream":         {"Accept": "application/json"},
		"no JSON":           {"Accept": "text/event-stream"},
		"another type":      {"Content-Type": "text/plain"},
		"a later version":   {"Mcp-Protocol-Version": "2099-01-01"},
		"the other era":     {"Mcp-Protocol-Version": statelessRevision},
		"an agent":          {"Durward-Agent": "somebody"},
		"a foreign page":    {"Origin": "https://evil.example"},
		"an older revision": {"Mcp-Protocol-Version": "2025-06-18"},
		"none":              {"Mcp-Protocol-Version": ""},
	} {
		served := name == "an older revision" || name == "none"
		_, asked := p.compare(t, name, func(r *readers) *httptest.ResponseRecorder {
			h := r.headers(legacy, call)
			for k, v := range header {
				if h[k] = v; k == "Mcp-Protocol-Version" && v == "" {
					delete(h, k)
				}
			}
			return r.post(call, h)
		})
		if asked != served {
			t.Errorf("%s: served is %t", name, asked)
		}
	}
	p.compare(t, "a session that was ended", func(r *readers) *httptest.ResponseRecorder {
		return r.post(call, map[string]string{"Mcp-Session-Id": gone[r], "Mcp-Protocol-Version": "2025-11-25"})
	})
	modernCall := callFrame(t, modern, "gpu_status", nil, nil)
	for name, header := range map[string]map[string]string{
		"another method": {"Mcp-Method": "tools/list"}, "another name": {"Mcp-Name": "list_services"}, "no name": {"Mcp-Name": ""},
		"another revision": {"Mcp-Protocol-Version": "2025-11-25"},
	} {
		if _, asked := p.compare(t, name, func(r *readers) *httptest.ResponseRecorder {
			h := r.headers(modern, modernCall)
			maps.Copy(h, header)
			return r.post(modernCall, h)
		}); asked {
			t.Errorf("stateless, %s: it was served", name)
		}
	}
}

// A call before the client says notifications/initialized is served as the SDK does, which needs no more than the handshake.
func TestACallBeforeInitialized(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for _, r := range []*readers{p.direct, p.sdk} {
		r.session = r.post([]byte(initialize), nil).Header().Get("Mcp-Session-Id")
		r.wire.take()
	}
	p.frame(t, legacy, callFrame(t, legacy, "gpu_status", nil, nil))
}

// A permit that is for nothing leaves the call to the SDK, whose way asks the vault.
func TestAReadWithoutAPermitIsNotAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	for _, throughSDK := range []bool{false, true} {
		e := newEdge(t, edgeOptions{throughSDK: throughSDK})
		e.vault.uncovered["gpu_status"] = true
		e.vault.decide = granting
		s := e.connect(t, tokenAgent)
		r := e.send(t, request{session: s, body: toolCall(3, "gpu_status", `{}`)})
		if a := decodeAnswer(t, r); a.Status != "ok" || e.executor.granted != 1 || r.header.Get("Content-Length") != "" {
			t.Errorf("%d reads by grant, %s bytes: %s", e.executor.granted, r.header.Get("Content-Length"), r.raw)
		}
	}
}

// While a call is under way at the sink: its id is taken on both ways, a cancellation, the end of the session and the end of the
// gateway's sessions end it, and it counts as one of the principal's.
func TestACallThatIsUnderWay(t *testing.T) {
	t.Parallel()
	type under struct {
		*edge
		session string
		answer  chan reply
	}
	begin := func(t *testing.T, throughSDK bool) *under {
		t.Helper()
		e := newEdge(t, edgeOptions{calls: 1, throughSDK: throughSDK})
		e.executor.slow = make(chan struct{})
		u := &under{e, e.connect(t, tokenAgent), make(chan reply, 1)}
		go func() {
			r, _ := e.try(context.Background(), request{session: u.session, body: toolCall(1, "gpu_status", `{}`)}) // how it ends is the test's
			u.answer <- r
		}()
		e.executor.readOf(t)
		return u
	}
	for _, throughSDK := range []bool{false, true} {
		name := map[bool]string{false: "at once", true: "through the SDK"}[throughSDK]
		t.Run(name+"/its id is taken", func(t *testing.T) {
			t.Parallel()
			u := begin(t, throughSDK)
			for _, tool := range []string{"gpu_status", "security_config"} {
				if a := decodeAnswer(t, u.send(t, request{session: u.session, body: toolCall(1, tool, `{}`)})); a.Error == nil || a.Error.Code != "INVALID_ARGUMENT" {
					t.Errorf("%s with the same id: %+v", tool, a)
				}
				if a := decodeAnswer(t, u.send(t, request{session: u.session, body: toolCall(2, tool, `{}`)})); a.Error == nil || a.Error.Code != "RATE_LIMITED" {
					t.Errorf("%s beyond the calls of the principal: %+v", tool, a)
				}
			}
			close(u.executor.slow)
			if a := decodeAnswer(t, <-u.answer); a.Status != "ok" {
				t.Errorf("the first: %+v", a)
			}
			if a := u.call(t, u.session, "gpu_status", `{}`); a.Status != "ok" {
				t.Errorf("afterwards: %+v", a)
			}
		})
		ends := map[string]func(t *testing.T, u *under){
			"cancelled": func(t *testing.T, u *under) {
				t.Helper()
				for _, other := range []string{"2", `"1"`} { // of other requests: nothing happens
					u.send(t, request{session: u.session, body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + other + `}}`})
				}
				u.send(t, request{session: u.session, body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`})
			},
			"DELETE": func(t *testing.T, u *under) {
				t.Helper()
				if r := u.send(t, request{method: http.MethodDelete, session: u.session}); r.status != http.StatusNoContent {
					t.Errorf("DELETE: %d", r.status)
				}
			},
			"drain": func(t *testing.T, u *under) { t.Helper(); u.front.Close(t.Context()) },
		}
		for what, end := range ends {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				u := begin(t, throughSDK)
				defer close(u.executor.slow)
				end(t, u)
				u.executor.cancels(t)
				r := <-u.answer
				// A read that nobody ends runs out of time instead. The SDK writes nothing into a session that has ended.
				unsaid := throughSDK && what != "cancelled" && len(r.raw) == 0
				if !unsaid && !strings.Contains(string(r.raw), "the call was cancelled") {
					t.Errorf("it ended with %d %s", r.status, r.raw)
				}
			})
		}
	}
}

// What is remembered of an answer is the answer's alone: another request id, another session and dangerous mode change what goes
// around it, and a sink that says something else is never answered for.
func TestWhatIsRemembered(t *testing.T) {
	t.Parallel()
	e := newEdge(t, edgeOptions{})
	first, second := e.connect(t, tokenAgent), e.connect(t, tokenOther)
	one := e.call(t, first, "gpu_status", `{}`)
	two := decodeAnswer(t, e.send(t, request{session: second, token: tokenOther, body: toolCall(3, "gpu_status", `{}`)}))
	if one.RequestID == two.RequestID || string(one.Result) != string(two.Result) || e.executor.reads != 2 {
		t.Errorf("after %d reads: %+v and %+v", e.executor.reads, one, two)
	}
	e.executor.mu.Lock()
	e.executor.name = "Another GPU"
	e.executor.mu.Unlock()
	if a := e.call(t, first, "gpu_status", `{}`); !strings.Contains(string(a.Result), "Another GPU") {
		t.Errorf("what the sink said before: %s", a.Result)
	}
	e.executor.refuse = []*fault.Error{fault.New(callv1.Code_CODE_UNAVAILABLE, "the executor is being stopped")}
	if a := e.call(t, first, "gpu_status", `{}`); a.Status != "error" {
		t.Errorf("a sink that refuses: %+v", a)
	}
}

// Counts and traces are the same both ways: each message by its method and status, each call by its tool and answer, none left under
// way, and one span for each that is traced, with the sink's call below it.
func TestAnswersAtOnceAreCountedAndTraced(t *testing.T) {
	t.Parallel()
	var counted [2]string
	var traced [2][]string
	for i, throughSDK := range []bool{false, true} {
		ratio := 1.0
		watched, err := telemetry.Open(telemetry.Config{
			Service: "gateway", Settings: config.Telemetry{SampleRatio: &ratio}, Lifetime: func() (from, until time.Time) { return time.Now(), time.Now() }, Methods: httpfront.Methods(),
		})
		must(t, err)
		t.Cleanup(watched.Close)
		e := newEdge(t, edgeOptions{throughSDK: throughSDK, metrics: metrics.New(watched, httpfront.Methods())})
		page := func(path string) string {
			w := httptest.NewRecorder()
			watched.Handler(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
			return w.Body.String()
		}
		s := e.connect(t, tokenAgent)
		e.executor.refuse = []*fault.Error{fault.New(callv1.Code_CODE_UNAVAILABLE, "the executor is being stopped")}
		for _, body := range []string{toolCall(1, "gpu_status", `{}`), toolCall(2, "gpu_status", `{}`), toolCall(3, "gpu_status", `{"x":1}`), toolCall(4, "no_tool", `{}`)} {
			e.send(t, request{session: s, body: body})
		}
		e.send(t, statelessCall("gpu_status", `{}`))
		poll(t, "every span has ended", func() bool { return strings.Count(page("/traces"), `"tools/call gpu_status"`) == 4 })
		for line := range strings.SplitSeq(page("/metrics"), "\n") {
			if strings.HasPrefix(line, "durward_gateway_") && !strings.Contains(line, "_bucket{") && !strings.Contains(line, "_sum{") {
				counted[i] += line + "\n"
			}
		}
		var shown telemetry.Traces
		must(t, json.Unmarshal([]byte(page("/traces")), &shown))
		for _, span := range shown.Spans {
			delete(span.Attributes, "durward.request_id")
			traced[i] = append(traced[i], fmt.Sprintf("%s %v child=%t", span.Name, span.Attributes, span.ParentID != ""))
		}
		slices.Sort(traced[i])
	}
	if diff := cmp.Diff(counted[1], counted[0]); diff != "" || !strings.Contains(counted[0], `durward_gateway_call_duration_seconds_count{status="ok",tool="gpu_status"} 2`) ||
		!strings.Contains(counted[0], "durward_gateway_calls_in_flight 0") {
		t.Errorf("counted (-through the SDK +at once):\n%s\n%s", diff, counted[0])
	}
	if diff := cmp.Diff(traced[1], traced[0]); diff != "" || len(traced[0]) < 6 {
		t.Errorf("traced (-through the SDK +at once):\n%s\n%v", diff, traced[0])
	}
}
