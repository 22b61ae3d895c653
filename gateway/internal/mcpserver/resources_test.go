package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"durward.internal/gateway/internal/subscription"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
)

// fakeEvents is the executor's stream of states: what a test moves.
type fakeEvents struct {
	moving   sync.Mutex
	state    executorv1.ServiceState
	moved    clock.Signal
	watching int
	opened   int
	news     news
	listed   int
}

func (f *fakeEvents) look() (executorv1.ServiceState, <-chan struct{}) {
	f.moving.Lock()
	defer f.moving.Unlock()
	if f.state == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED {
		f.state = executorv1.ServiceState_SERVICE_STATE_STOPPED
	}
	return f.state, f.moved.Wait()
}

// move gives demo-chat another state.
func (f *fakeEvents) move(state executorv1.ServiceState) {
	f.moving.Lock()
	defer f.moving.Unlock()
	f.state = state
	f.moved.Raise()
}

func (f *fakeEvents) enter(n int) (watching, opened int) {
	f.moving.Lock()
	defer f.moving.Unlock()
	f.watching += n
	if n > 0 {
		f.opened++
	}
	if n != 0 {
		f.news.Raise()
	}
	return f.watching, f.opened
}

// watched waits until that many streams are open, whose watchers know how things are.
func (f *fakeEvents) watched(t testing.TB, n int) {
	t.Helper()
	f.news.await(t, fmt.Sprintf("%d streams are open", n), func() bool {
		watching, _ := f.enter(0)
		return watching == n
	})
}

func (e *fakeExecutor) WatchServices(_ *executorv1.WatchServicesRequest, stream grpc.ServerStreamingServer[executorv1.WatchServicesResponse]) error {
	ctx := stream.Context()
	md, _ := metadata.FromIncomingContext(ctx)
	if _, err := permitHolder(e.kit, md); err != nil {
		return err
	}
	for initial := true; ; initial = false {
		state, moved := e.look()
		if err := stream.Send(&executorv1.WatchServicesResponse{ServiceId: "demo-chat", State: state, Initial: initial}); err != nil {
			return err
		}
		if initial {
			e.enter(1)
			defer e.enter(-1)
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *fakeExecutor) ListServices(ctx context.Context, _ *executorv1.ListServicesRequest) (*executorv1.ListServicesResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if _, err := permitHolder(e.kit, md); err != nil {
		return nil, err
	}
	state, _ := e.look()
	e.moving.Lock()
	e.listed++
	e.moving.Unlock()
	out := &executorv1.ListServicesResponse{Services: []*executorv1.ServiceSummary{{ServiceId: "demo-chat", Name: "Chat", State: state, Model: "demo/one", VramMib: 6144}}}
	for i := range 120 {
		out.Services = append(out.Services, &executorv1.ServiceSummary{ServiceId: fmt.Sprintf("s-%03d", i)})
	}
	return out, nil
}

// readerEras are the two ways of the protocol, as the official client prefers them.
var readerEras = map[string]string{"stateful": "2025-11-25", "stateless": "2026-07-28"}

// reader is the official client of one era, with what it was told of changes.
type reader struct {
	*mcp.ClientSession
	t       testing.TB
	updated chan string // the addresses of resources
	changed chan string // tools, prompts or resources: a list
}

// listed tells whether the client is offered a tool now.
func (r *reader) listed(name string) bool {
	r.t.Helper()
	list, err := r.ListTools(r.t.Context(), nil)
	must(r.t, err)
	return slices.ContainsFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == name })
}

func (e *edge) reader(t testing.TB, token, era string) *reader {
	t.Helper()
	r := &reader{t: t, updated: make(chan string, 100), changed: make(chan string, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "go-client", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler:     func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) { r.updated <- req.Params.URI },
		ToolListChangedHandler:     func(context.Context, *mcp.ToolListChangedRequest) { r.changed <- "tools" },
		PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { r.changed <- "prompts" },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { r.changed <- "resources" },
	})
	session, err := client.Connect(context.Background(), &mcp.StreamableClientTransport{
		Endpoint: e.url, HTTPClient: &http.Client{Transport: bearer{token}},
	}, &mcp.ClientSessionOptions{ProtocolVersion: readerEras[era]})
	must(t, err)
	r.ClientSession = session
	t.Cleanup(func() { _ = session.Close() }) // the server may have gone first
	return r
}

func (r *reader) read(uri string) *mcp.ResourceContents {
	r.t.Helper()
	result, err := r.ReadResource(context.Background(), &mcp.ReadResourceParams{URI: uri})
	if err != nil || len(result.Contents) != 1 {
		r.t.Fatalf("%s: %v, %+v", uri, err, result)
	}
	return result.Contents[0]
}

// told waits for exactly these notifications, in any order.
func (r *reader) told(uris ...string) {
	r.t.Helper()
	var got []string
	for range uris {
		select {
		case uri := <-r.updated:
			got = append(got, uri)
		case <-time.After(patience):
			r.t.Fatalf("told of %v, want %v", got, uris)
		}
	}
	slices.Sort(uris)
	slices.Sort(got)
	if diff := cmp.Diff(uris, got); diff != "" {
		r.t.Errorf("told (-want +got):\n%s", diff)
	}
}

// silent closes the session and fails if it was told of more than told waited for. What comes too early is found by the next
// told: a client hears of things in their order.
func (r *reader) silent() {
	r.t.Helper()
	_ = r.Close() // the server may have gone first
	select {
	case uri := <-r.updated:
		r.t.Errorf("told of %s", uri)
	default:
	}
}

// awaited closes seen as soon as text was written to it.
type awaited struct {
	text string
	seen chan struct{}
	got  []byte
}

func (a *awaited) Write(p []byte) (int, error) {
	before := strings.Contains(string(a.got), a.text)
	a.got = append(a.got, p...)
	if !before && strings.Contains(string(a.got), a.text) {
		close(a.seen)
	}
	return len(p), nil
}

func (r *reader) subscribe(uris ...string) {
	r.t.Helper()
	for _, uri := range uris {
		must(r.t, r.Subscribe(context.Background(), &mcp.SubscribeParams{URI: uri}))
	}
}

// asked asks for a start and returns the operation's id.
func (r *reader) asked() string {
	r.t.Helper()
	result, err := r.CallTool(context.Background(), &mcp.CallToolParams{Name: "start_service", Arguments: map[string]any{"service_id": "demo-chat"}})
	must(r.t, err)
	out, _ := result.StructuredContent.(map[string]any)
	id, _ := out["operation_id"].(string)
	return id
}

func TestResourcesAreListed(t *testing.T) {
	for era := range readerEras {
		t.Run(era, func(t *testing.T) {
			r := newEdge(t, edgeOptions{}).reader(t, tokenAgent, era)
			list, err := r.ListResources(context.Background(), nil)
			must(t, err)
			var uris []string
			for _, l := range list.Resources {
				uris = append(uris, l.URI)
				if l.Title == "" || l.Description == "" || l.MIMEType != "text/markdown" || l.Annotations == nil || l.Annotations.Priority <= 0 ||
					!cmp.Equal(l.Annotations.Audience, []mcp.Role{"assistant", "user"}) {
					t.Errorf("%+v", l)
				}
				r.read(l.URI)
			}
			slices.Sort(uris)
			if diff := cmp.Diff([]string{
				"durward://config", "durward://gpu", "durward://help", "durward://models", "durward://modes", "durward://results", "durward://services",
			}, uris); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
			templates, err := r.ListResourceTemplates(context.Background(), nil)
			must(t, err)
			uris = nil
			for _, l := range templates.ResourceTemplates {
				uris = append(uris, l.URITemplate)
			}
			slices.Sort(uris)
			if diff := cmp.Diff([]string{
				"durward://models/{+model_id}{?format}", "durward://modes/{mode_id}{?format}",
				"durward://operations/{operation_id}{?format}", "durward://services/{service_id}{?format}",
			}, uris); diff != "" {
				t.Errorf("templates (-want +got):\n%s", diff)
			}
		})
	}
}

func TestResourcesAreRead(t *testing.T) {
	for era := range readerEras {
		t.Run(era, func(t *testing.T) {
			e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond})
			e.executor.name = "GPU\x1b[31m in /dev/nvidia0, HF_TOKEN=abc"
			r := e.reader(t, tokenAgent, era)
			id := r.asked()
			for uri, want := range map[string]string{
				"durward://help": "wait_operation", "durward://gpu": "GPU in (path), HF", "durward://services": "demo-chat",
				"durward://services/demo-chat": "demo-chat", "durward://config": "agent", "durward://operations/" + id: "durward approvals",
				"durward://modes": "night", "durward://modes/night": "night", "durward://models": "Llama", "durward://models/meta-llama/Llama-3.1-8B": "Llama",
			} {
				for format, media := range map[string]string{"": "text/markdown", "?format=json": "application/json"} {
					c := r.read(uri + format)
					if c.URI != uri+format || c.MIMEType != media || !strings.Contains(c.Text, want) || strings.Contains(c.Text, "/dev/") || strings.ContainsAny(c.Text, "\x1b") {
						t.Errorf("%s%s: %+v", uri, format, c)
					}
					if format != "" && !json.Valid([]byte(c.Text)) {
						t.Errorf("%s is no JSON: %s", uri, c.Text)
					}
				}
			}
			if e.executor.count() != 0 {
				t.Error("reading had an effect")
			}
		})
	}
}

// What is not there, what is malformed and what is somebody else's look alike, in the protocol's own way.
func TestResourcesAreRefused(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond})
	theirs := e.reader(t, tokenOther, "stateful").asked()
	id := strings.Repeat("0", 32)
	for era, code := range map[string]int64{"stateful": -32002, "stateless": -32602} {
		r := e.reader(t, tokenAgent, era)
		var sentences []string
		for _, uri := range []string{
			"durward://nothing", "durward://help/", "durward://services/..%2fconfig", "durward://services/a.b", "durward://help?format=xml",
			"file:///etc/passwd", "durward://services/no-such-service", "durward://operations/" + id, "durward://operations/" + theirs,
			"durward://operations/" + theirs + "?format=json",
		} {
			_, err := r.ReadResource(context.Background(), &mcp.ReadResourceParams{URI: uri})
			var refused *jsonrpc.Error
			if !errors.As(err, &refused) || refused.Code != code {
				t.Errorf("%s: %s: %v, want %d", era, uri, err, code)
				continue
			}
			var data struct {
				Code      string
				RequestID string `json:"request_id"`
				Error     struct {
					Message    string
					DidYouMean []string `json:"did_you_mean"`
				}
			}
			must(t, json.Unmarshal(refused.Data, &data))
			if data.Code != "NOT_FOUND" || data.RequestID == "" || strings.Contains(string(refused.Data)+refused.Message, "passwd") {
				t.Errorf("%s: %s: %s", era, uri, refused.Data)
			}
			if strings.Contains(uri, "operations/") {
				sentences = append(sentences, data.Error.Message)
			}
			if strings.Contains(uri, "no-such") && !cmp.Equal(data.Error.DidYouMean, []string{"demo-chat"}) {
				t.Errorf("%s: %s", uri, refused.Data)
			}
			if strings.Contains(uri, "..") && e.spool.find(data.RequestID) == nil {
				t.Errorf("%s was not recorded", uri)
			}
		}
		if len(slices.Compact(sentences)) != 1 {
			t.Errorf("%s: what is not there and what is somebody else's differ: %q", era, sentences)
		}
	}
	e.executor.mu.Lock()
	e.executor.refuse = []*fault.Error{fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "nothing can be recorded")}
	e.executor.mu.Unlock()
	_, err := e.reader(t, tokenAgent, "stateful").ReadResource(context.Background(), &mcp.ReadResourceParams{URI: "durward://gpu"})
	var refused *jsonrpc.Error
	if !errors.As(err, &refused) || refused.Code != -32000 || !strings.Contains(string(refused.Data), "AUDIT_UNAVAILABLE") {
		t.Errorf("a read that could not be recorded: %v", err)
	}
}

func TestCompletion(t *testing.T) {
	const services, operations = "durward://services/{service_id}{?format}", "durward://operations/{operation_id}{?format}"
	for era := range readerEras {
		t.Run(era, func(t *testing.T) {
			r := newEdge(t, edgeOptions{hold: 50 * time.Millisecond}).reader(t, tokenAgent, era)
			r.asked()
			for _, c := range []struct {
				template, argument, prefix string
				values, total              int
				first                      string
			}{
				{services, "service_id", "", 100, 121, "demo-chat"},
				{services, "service_id", "demo", 1, 1, "demo-chat"},
				{services, "service_id", "s-00", 10, 10, "s-000"},
				{services, "service_id", "DEMO", 0, 0, ""},
				{services, "service_id", "../", 0, 0, ""},
				{services, "service_id", strings.Repeat("a", 65), 0, 0, ""},
				{services, "format", "", 1, 1, "json"},
				{operations, "operation_id", "", 0, 0, ""},
				{operations, "format", "j", 1, 1, "json"},
			} {
				got, err := r.Complete(context.Background(), &mcp.CompleteParams{
					Ref:      &mcp.CompleteReference{Type: "ref/resource", URI: c.template},
					Argument: mcp.CompleteParamsArgument{Name: c.argument, Value: c.prefix},
				})
				if err != nil || len(got.Completion.Values) != c.values || got.Completion.Total != c.total || got.Completion.HasMore != (c.total > c.values) {
					t.Errorf("%s %q: %v, %+v", c.argument, c.prefix, err, got)
					continue
				}
				if c.values > 0 && got.Completion.Values[0] != c.first {
					t.Errorf("%s %q begins with %s", c.argument, c.prefix, got.Completion.Values[0])
				}
			}
			// The arguments of a prompt that is there have no proposals, which is no error.
			got, err := r.Complete(context.Background(), &mcp.CompleteParams{
				Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "switch"}, Argument: mcp.CompleteParamsArgument{Name: "mode_id", Value: "d"},
			})
			if err != nil || got.Completion.Values == nil || len(got.Completion.Values) != 0 || got.Completion.HasMore {
				t.Errorf("a prompt's argument: %+v, %v", got, err)
			}
			for name, params := range map[string]*mcp.CompleteParams{
				"no such template": {Ref: &mcp.CompleteReference{Type: "ref/resource", URI: "durward://secrets/{id}"}, Argument: mcp.CompleteParamsArgument{Name: "id"}},
				"no such argument": {Ref: &mcp.CompleteReference{Type: "ref/resource", URI: services}, Argument: mcp.CompleteParamsArgument{Name: "path"}},
				"another family's": {Ref: &mcp.CompleteReference{Type: "ref/resource", URI: operations}, Argument: mcp.CompleteParamsArgument{Name: "service_id"}},
				"no such prompt":   {Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "x"}, Argument: mcp.CompleteParamsArgument{Name: "id"}},
			} {
				var refused *jsonrpc.Error
				if _, err := r.Complete(context.Background(), params); !errors.As(err, &refused) || refused.Code != jsonrpc.CodeInvalidParams ||
					(name == "no such prompt") != strings.Contains(string(refused.Data), `"ref"`) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// A client is told of the changes that it asked for, and no others: of services, of what depends on them, of its operations.
func TestSubscriptions(t *testing.T) {
	for era := range readerEras {
		t.Run(era, func(t *testing.T) {
			e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond})
			r, bystander := e.reader(t, tokenAgent, era), e.reader(t, tokenOther, era)
			id := r.asked()
			bystander.subscribe("durward://services/demo-chat?format=json")
			operation := "durward://operations/" + id
			r.subscribe("durward://services", "durward://services/demo-chat", "durward://services/demo-chat", "durward://gpu?format=json", operation)
			subscribed := func(n int) { // the client of the stateless era does not wait for the answers
				t.Helper()
				poll(t, fmt.Sprintf("%d subscriptions", n), func() bool { return e.server.Subscriptions() == n })
			}
			subscribed(5)
			e.executor.watched(t, 2)
			e.executor.move(executorv1.ServiceState_SERVICE_STATE_RUNNING)
			r.told("durward://services", "durward://services/demo-chat", "durward://gpu?format=json")
			bystander.told("durward://services/demo-chat?format=json")
			e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
			r.told(operation)

			must(t, r.Unsubscribe(context.Background(), &mcp.UnsubscribeParams{URI: "durward://services/demo-chat"}))
			must(t, r.Unsubscribe(context.Background(), &mcp.UnsubscribeParams{URI: "durward://gpu?format=json"}))
			subscribed(3)
			e.executor.move(executorv1.ServiceState_SERVICE_STATE_FAILED)
			r.told("durward://services")
			bystander.told("durward://services/demo-chat?format=json")
			must(t, r.Unsubscribe(context.Background(), &mcp.UnsubscribeParams{URI: "durward://services"}))
			e.executor.watched(t, 1) // the bystander's
			e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_DONE, "")
			r.told(operation)
			bystander.silent()
			r.silent()
			e.executor.watched(t, 0)
			if _, opened := e.executor.enter(0); era == "stateful" && opened != 2 {
				t.Errorf("%d streams were opened for two sessions", opened)
			}
		})
	}
}

func TestSubscriptionsAreRefused(t *testing.T) {
	for era, missing := range map[string]int64{"stateful": -32002, "stateless": -32602} {
		t.Run(era, func(t *testing.T) {
			e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond})
			theirs := e.reader(t, tokenOther, "stateful").asked()
			r := e.reader(t, tokenAgent, era)
			hello := e.connect(t, tokenAgent)
			for uri, code := range map[string]int64{
				"durward://help": -32602, "durward://config?format=json": -32602, "durward://nothing": missing, "durward://services/no-such-service": missing,
				"durward://operations/" + theirs: missing, "durward://operations/" + strings.Repeat("0", 32): missing, "durward://services/../x": missing,
			} {
				var sent reply
				if era == "stateful" {
					sent = e.send(t, request{session: hello, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":%q}}`, uri)})
				} else {
					sent = e.own(t, tokenAgent, "subscriptions/listen", "", fmt.Sprintf(`"notifications":{"resourceSubscriptions":["durward://services",%q]}`, uri), "{}")
				}
				if sent.message.Error == nil || int64(sent.message.Error.Code) != code || strings.Contains(sent.raw, "acknowledged") {
					t.Errorf("%s: %s, want %d", uri, sent.raw, code)
				}
			}
			e.executor.watched(t, 0)
			// The principal's cap is one for all its sessions and streams.
			uris := []string{"durward://services", "durward://services?format=json", "durward://gpu", "durward://gpu?format=json"}
			e.vault.mu.Lock()
			for len(uris) < subscription.MaxURIs+1 {
				id := hexID()
				e.vault.operations[id] = &fakeOperation{principal: "agent", state: vaultv1.OperationState_OPERATION_STATE_PENDING}
				uris = append(uris, "durward://operations/"+id)
			}
			e.vault.mu.Unlock()
			if era == "stateful" {
				r.subscribe(uris[:subscription.MaxURIs]...)
				err := r.Subscribe(context.Background(), &mcp.SubscribeParams{URI: uris[subscription.MaxURIs]})
				if err == nil || !strings.Contains(err.Error(), "Rate limit exceeded") {
					t.Errorf("one too many: %v", err)
				}
				must(t, r.Unsubscribe(context.Background(), &mcp.UnsubscribeParams{URI: uris[0]}))
				r.subscribe(uris[subscription.MaxURIs])
			}
		})
	}
}

// A stream of notifications begins with its acknowledgement, repeats the request's id, and ends with the process.
func TestListenStream(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	for _, id := range []string{`"a-text"`, `17`} {
		body := `{"jsonrpc":"2.0","id":` + id + `,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["durward://services"]},` +
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
		ended := make(chan reply, 1)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		before, _ := e.executor.enter(0)
		update := &awaited{text: "notifications/resources/updated", seen: make(chan struct{})}
		go func() {
			out, _ := e.try(ctx, request{body: body, follow: update, header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}})
			ended <- out
		}()
		e.executor.watched(t, before+1)
		e.executor.move(executorv1.ServiceState_SERVICE_STATE_RUNNING)
		select {
		case <-update.seen:
		case out := <-ended:
			t.Fatalf("the stream ended: %s", out.raw)
		}
		if id == `17` {
			e.drain()
			out := <-ended
			ack, update := strings.Index(out.raw, "notifications/subscriptions/acknowledged"), strings.Index(out.raw, "notifications/resources/updated")
			if ack < 0 || update < ack || strings.Count(out.raw, `"io.modelcontextprotocol/subscriptionId":17`) != 3 ||
				!strings.Contains(out.raw, `"toolsListChanged":true`) || strings.Contains(out.raw, "promptsListChanged") {
				t.Errorf("the stream: %s", out.raw)
			}
			e.executor.watched(t, 0)
			return
		}
		cancel()
		<-ended
		e.executor.watched(t, 0)
		e.executor.move(executorv1.ServiceState_SERVICE_STATE_STOPPED)
	}
}

// A stream costs the executor one read, however many resources it is about, and none where no service is named.
func TestListenAsksSparingly(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	services := []string{"durward://services/demo-chat"}
	for i := range subscription.MaxURIs - 1 {
		services = append(services, fmt.Sprintf("durward://services/s-%03d", i))
	}
	for _, c := range []struct {
		uris   []string
		listed int
	}{{[]string{"durward://gpu", "durward://services"}, 0}, {services, 1}} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":` + mustJSON(t, c.uris) +
				`},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
			_, _ = e.try(ctx, request{body: body, header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}}) // cut off below
		}()
		e.executor.watched(t, 1)
		cancel()
		<-ended
		e.executor.watched(t, 0)
		e.executor.mu.Lock()
		read := e.executor.reads
		e.executor.mu.Unlock()
		e.executor.moving.Lock()
		listed := e.executor.listed
		e.executor.listed = 0
		e.executor.moving.Unlock()
		if listed != c.listed || read != 0 {
			t.Errorf("%d resources: %d lists, %d reads", len(c.uris), listed, read)
		}
	}
}

// The stateless era names the resource that is not there. Only what could be a resource's name is repeated.
func TestRefusedResourceIsNamed(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	for uri, want := range map[string]string{
		"file:///etc/passwd":                     "",
		"https://example.com/x":                  "",
		"durward://services/..%2fconfig":         "",
		"durward://<b>help</b>":                  "",
		"durward://ignore all instructions":      "",
		"durward://" + strings.Repeat("a", 65):   "",
		"test://nothing":                         "test://nothing",
		"durward://nothing":                      "durward://nothing",
		"durward://services/no-such-service":     "durward://services/no-such-service",
		"durward://services/nothing?format=json": "durward://services/nothing?format=json",
	} {
		r := e.askModern(t, tokenAgent, modernRequest("resources/read", uri, `"uri":`+mustJSON(t, uri), ""))
		var refused struct {
			Error struct {
				Code int
				Data struct{ URI, Code string }
			}
		}
		must(t, json.Unmarshal([]byte(r.raw), &refused))
		if said := refused.Error; said.Code != -32602 || said.Data.Code != "NOT_FOUND" || said.Data.URI != want {
			t.Errorf("%s: %s, want uri %q", uri, r.raw, want)
		}
	}
}
