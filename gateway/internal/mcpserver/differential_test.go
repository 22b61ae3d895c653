package mcpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/gowebpki/jcs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/mcpserver"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
)

// This file shows that the edge's reading of a call is the sink's. Three readers see the same bytes: the gateway, whole; the
// sink, which sees what the gateway puts on the wire and reads it by its own copy of the contract; and one that shares no
// code with either, made of encoding/json and another RFC 8785 library. They must agree on whether there is a call, of which
// tool, and with which arguments.

// wire is both peers of a gateway as far as gRPC goes: it keeps the bytes that would be sent.
type wire struct {
	// answers are what reads are answered with, and how they went, by gRPC name; nil: nothing.
	answers func(method string, request proto.Message) (proto.Message, *callv1.Outcome, error)

	mu   sync.Mutex
	sent []sent
}

type sent struct {
	method string
	body   []byte
}

func (w *wire) Invoke(_ context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	request, ok := args.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return err
	}
	switch method {
	case vaultv1.SessionService_OpenSession_FullMethodName:
		permits, err := w.permits()
		if err != nil {
			return err
		}
		proto.Merge(reply.(proto.Message), &vaultv1.OpenSessionResponse{
			SessionId: strings.Repeat("0", 32), Session: "s-differential", Principal: "differential", Permits: permits, IdleTimeoutS: 1800,
			ExpiresAt: timestamppb.New(time.Now().Add(8 * time.Hour)),
		})
		return nil
	case vaultv1.SessionService_RenewPermits_FullMethodName:
		permits, err := w.permits()
		if err != nil {
			return err
		}
		proto.Merge(reply.(proto.Message), &vaultv1.RenewPermitsResponse{Permits: permits})
		return nil
	case vaultv1.SessionService_CloseSession_FullMethodName:
		return nil
	case vaultv1.AuthorityService_Authorise_FullMethodName:
		proto.Merge(reply.(proto.Message), &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_DENIED})
	case vaultv1.ToolService_WaitOperation_FullMethodName:
		proto.Merge(reply.(proto.Message), &vaultv1.WaitOperationResponse{State: vaultv1.OperationState_OPERATION_STATE_DENIED})
	}
	w.mu.Lock()
	w.sent = append(w.sent, sent{method, raw})
	w.mu.Unlock()
	if w.answers == nil || !strings.HasPrefix(method, "/durward.executor.") {
		return nil
	}
	response, outcome, err := w.answers(method, request)
	if err != nil || response == nil {
		return err
	}
	proto.Merge(reply.(proto.Message), response)
	for _, o := range opts {
		if trailer, ok := o.(grpc.TrailerCallOption); ok && outcome != nil {
			said, err := proto.Marshal(outcome)
			if err != nil {
				return err
			}
			*trailer.TrailerAddr = metadata.Pairs(rpc.TrailerOutcome, string(said))
		}
	}
	return nil
}

// permits are for nothing that reads, unless reads are answered.
func (w *wire) permits() (out []*vaultv1.AddressedPermit, err error) {
	for _, role := range []optionsv1.Role{optionsv1.Role_ROLE_EXECUTOR, optionsv1.Role_ROLE_VAULT} {
		signed := &callv1.SignedPermit{Kid: "test"}
		if w.answers != nil {
			if signed.Payload, err = proto.Marshal(&callv1.Permit{Tools: byPermit()}); err != nil {
				return nil, err
			}
		}
		out = append(out, &vaultv1.AddressedPermit{Role: role, Permit: signed, ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))})
	}
	return out, nil
}

// byPermit are the tools that permits are for.
func byPermit() (names []string) {
	for _, t := range contract.Tools() {
		if t.ByPermit() {
			names = append(names, t.Name)
		}
	}
	return names
}

func (w *wire) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "there are no streams here")
}

func (w *wire) take() []sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.sent
	w.sent = nil
	return out
}

// readers are a gateway between an HTTP request and the wire, without sockets.
type readers struct {
	wire    *wire
	gateway http.Handler
	// spool and refusals are what it records.
	spool    *fakeSpool
	refusals *refusal.Recorder
	session  string
	// said is the last answer.
	said string
}

func newReaders(t testing.TB) *readers {
	t.Helper()
	r := &readers{wire: new(wire)}
	r.serve(t, false)
	r.open(t)
	return r
}

// open opens a session.
func (r *readers) open(t testing.TB) {
	t.Helper()
	opened := r.post([]byte(initialize), nil)
	if r.session = opened.Header().Get("Mcp-Session-Id"); r.session == "" {
		t.Fatalf("no session: %d %s", opened.Code, opened.Body)
	}
	r.post([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), map[string]string{"Mcp-Session-Id": r.session, "Mcp-Protocol-Version": "2025-11-25"})
	r.wire.take()
}

// serve makes the gateway's handler over the wire to its peers.
func (r *readers) serve(t testing.TB, throughSDK bool) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler) // a line for each of so many calls would tell nobody anything
	r.spool = new(fakeSpool)
	refusals, err := refusal.New(r.spool, logger)
	must(t, err)
	// However long the run takes, no permit is old enough for a denial to be asked for again.
	peers, err := relay.New(relay.Config{Vault: r.wire, Waits: r.wire, Executor: r.wire, Egress: r.wire, Fresh: time.Hour, Logger: logger})
	must(t, err)
	server, err := mcpserver.New(mcpserver.Config{
		Relay: peers, Refusals: refusals, Logger: logger, Version: "test", Hold: time.Second, SessionTimeout: time.Hour,
		Draining: make(chan struct{}),
	})
	must(t, err)
	edge, err := httpfront.New(httpfront.Config{
		Sessions: peers, Stateful: server.Handler(httpfront.Stateful), Stateless: server.Handler(httpfront.Stateless),
		Direct: direct(server, throughSDK), Refusals: refusals, Logger: logger, SessionsPerPrincipal: 8, SessionIdle: time.Hour,
		Limits: lifted(),
	})
	must(t, err)
	t.Cleanup(func() { edge.Close(context.Background()) })
	r.gateway, r.refusals = edge, refusals
}

func (r *readers) post(body []byte, header map[string]string) *httptest.ResponseRecorder {
	request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "http://127.0.0.1"+httpfront.Path, bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	request.Header.Set("Authorization", "Bearer "+tokenAgent)
	for k, v := range header {
		request.Header.Set(k, v)
	}
	answer := httptest.NewRecorder()
	r.gateway.ServeHTTP(answer, request)
	return answer
}

// reading is what somebody understood of a call.
type reading struct {
	Tool string
	// Arguments are in RFC 8785 form, without the agent's reason.
	Arguments string
	// Digest is the sink's: SHA-256 of the arguments.
	Digest [32]byte
	Reason string
}

// edge sends a frame through the gateway and returns what the sink understands of what then stands on the wire; nil means
// that no call got there.
func (r *readers) edge(t testing.TB, era era, frame []byte) *reading {
	t.Helper()
	answer := r.post(frame, r.headers(era, frame))
	r.said = answer.Body.String()
	var out *reading
	for i, s := range r.wire.take() {
		if s.method != vaultv1.AuthorityService_Authorise_FullMethodName {
			tool, ok := contract.ByMethod(s.method)
			if !ok || i > 0 {
				t.Fatalf("%q calls %s", frame, s.method)
			}
			m := tool.NewRequest()
			must(t, proto.Unmarshal(s.body, m))
			if grant.HasUnknown(m) || contract.Validate(m) != nil {
				t.Fatalf("%q calls %s with what the sink refuses: %v", frame, s.method, m)
			}
			out = read(t, frame, tool, m)
			continue
		}
		asked := new(vaultv1.AuthoriseRequest)
		must(t, proto.Unmarshal(s.body, asked))
		tool, ok := contract.Lookup(asked.GetTool().GetName())
		if !ok || !proto.Equal(tool.Ref(), asked.GetTool()) {
			t.Fatalf("%q asks for a tool that the sink does not have: %v", frame, asked.GetTool())
		}
		arguments, err := contract.CanonicalArguments(asked.GetArguments())
		if err != nil {
			t.Fatalf("%q asks with arguments that the vault refuses: %q: %v", frame, asked.GetArguments(), err)
		}
		m, err := tool.Decode(arguments)
		if err != nil {
			t.Fatalf("%q asks with arguments that the sink refuses: %q: %v", frame, arguments, err)
		}
		looked := out
		out = read(t, frame, tool, m)
		if out.Reason = asked.GetReason(); i > 1 || looked != nil && looked.Digest != out.Digest {
			t.Fatalf("%q looks at %+v and asks for %+v", frame, looked, out)
		}
	}
	if out == nil && bytes.Contains(answer.Body.Bytes(), []byte(`"status":"ok"`)) {
		t.Fatalf("%q succeeded without a call: %s", frame, answer.Body)
	}
	return out
}

// read is the sink's reading of a message that arrived.
func read(t testing.TB, frame []byte, tool contract.Tool, m proto.Message) *reading {
	t.Helper()
	canonical, err := contract.Canonical(m)
	if err != nil {
		t.Fatalf("%q: %v", frame, err)
	}
	return &reading{Tool: tool.Name, Arguments: string(canonical), Digest: contract.Digest(canonical)}
}

// verdict is what an independent reader says about a frame.
type verdict int

const (
	refuse verdict = iota
	accept
	// unsure: the frame holds something beside the call that this reader has no opinion about.
	unsure
)

// independent reads a frame with encoding/json, and canonicalises with gowebpki/jcs.
func independent(era era, frame []byte) (*reading, verdict) {
	if !unambiguous(frame) {
		return nil, refuse
	}
	message, ok := members(frame)
	if !ok || !only(message, "jsonrpc", "id", "method", "params") {
		return nil, refuse
	}
	var method, version string
	if !text(message["jsonrpc"], &version) || version != "2.0" || !text(message["method"], &method) || method != "tools/call" || !plainID(message["id"]) {
		return nil, refuse
	}
	params, ok := members(message["params"])
	if !ok || !only(params, "name", "arguments", "_meta", "task", "inputResponses", "requestState") {
		return nil, refuse
	}
	sure := accept
	if meta, present := params["_meta"]; present || era == modern {
		if sure = era.meta(meta); sure == refuse {
			return nil, refuse
		}
	}
	for _, other := range []string{"task", "inputResponses", "requestState"} {
		if _, present := params[other]; present {
			sure = unsure // they say nothing about the call; whether they may be there is not this reader's to know
		}
	}
	var name string
	if !text(params["name"], &name) {
		return nil, refuse
	}
	tool, ok := contract.Lookup(name)
	if !ok {
		return nil, refuse
	}
	raw, present := params["arguments"]
	if !present {
		raw = json.RawMessage("{}")
	}
	arguments, ok := members(raw)
	if !ok {
		return nil, refuse
	}
	out := &reading{Tool: name}
	if why, has := arguments["reason"]; has && tool.Tier != optionsv1.Tier_TIER_READ {
		if !text(why, &out.Reason) || utf8.RuneCountInString(out.Reason) > 1000 {
			return nil, refuse
		}
		out.Reason = clean.Block(out.Reason, 1000)
		delete(arguments, "reason")
	}
	rest, err := json.Marshal(arguments)
	if err != nil {
		return nil, refuse
	}
	canonical, err := jcs.Transform(rest)
	if err != nil {
		return nil, refuse
	}
	if _, err := tool.Decode(canonical); err != nil {
		return nil, refuse
	}
	out.Arguments, out.Digest = string(canonical), contract.Digest(canonical)
	return out, sure
}

// unambiguous reports whether every reader of JSON reads the same: one value in UTF-8, of bounded size and depth, without
// duplicate keys or halves of surrogate pairs.
func unambiguous(raw []byte) bool {
	if len(raw) > 1<<20 || !utf8.Valid(raw) || !json.Valid(raw) || loneSurrogate(raw) {
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	depth := 0
	var value func() bool
	value = func() bool {
		token, err := dec.Token()
		if err != nil {
			return false
		}
		open, nested := token.(json.Delim)
		if !nested {
			return true
		}
		if depth++; depth > 50 {
			return false
		}
		keys := map[string]bool{}
		for dec.More() {
			if open == '{' {
				key, err := dec.Token()
				if err != nil || keys[key.(string)] {
					return false
				}
				keys[key.(string)] = true
			}
			if !value() {
				return false
			}
		}
		depth--
		_, err = dec.Token()
		return err == nil
	}
	if !value() {
		return false
	}
	_, err := dec.Token()
	return errors.Is(err, io.EOF)
}

// loneSurrogate looks through the escapes of valid JSON.
func loneSurrogate(raw []byte) bool {
	unit := func(at int) (rune, bool) {
		if at+6 > len(raw) || raw[at] != '\\' || raw[at+1] != 'u' {
			return 0, false
		}
		var s string
		if json.Unmarshal([]byte(`"`+string(raw[at:at+6])+`"`), &s) != nil {
			return 0, false
		}
		first, _ := utf8.DecodeRuneInString(s)
		if first != utf8.RuneError {
			return first, true
		}
		switch strings.ToLower(string(raw[at+2 : at+4])) {
		case "d8", "d9", "da", "db":
			return 0xd800, true
		case "dc", "dd", "de", "df":
			return 0xdc00, true
		}
		return first, true
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		switch first, _ := unit(i); first {
		case 0xd800:
			if second, ok := unit(i + 6); !ok || second != 0xdc00 {
				return true
			}
			i += 11
		case 0xdc00:
			return true
		default:
			i++
		}
	}
	return false
}

// members reads an object: a map's keys are matched exactly, unlike a struct's.
func members(raw json.RawMessage) (map[string]json.RawMessage, bool) {
	var out map[string]json.RawMessage
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, false
	}
	return out, json.Unmarshal(raw, &out) == nil
}

func only(object map[string]json.RawMessage, names ...string) bool {
	for key := range object {
		known := false
		for _, name := range names {
			known = known || key == name
		}
		if !known {
			return false
		}
	}
	return true
}

func text(raw json.RawMessage, into *string) bool {
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	return len(trimmed) > 0 && trimmed[0] == '"' && json.Unmarshal(raw, into) == nil
}

// plainID is our bound on ids: printable ASCII of at most 64 bytes as written, or a whole number of at most 15 characters.
func plainID(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return false
	}
	if raw[0] == '"' {
		var id string
		return len(raw) <= 66 && text(raw, &id) && strings.Trim(id, printable) == ""
	}
	return len(raw) <= 15 && len(bytes.Trim(bytes.TrimPrefix(raw, []byte("-")), "0123456789")) == 0
}

// printable are the characters of printable ASCII.
const printable = " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"

// era is how a client speaks.
type era int

const (
	legacy era = iota
	modern
)

func (e era) String() string { return [...]string{"sessions", "stateless"}[e] }

// meta judges the _meta of a call.
func (e era) meta(raw json.RawMessage) verdict {
	meta, ok := members(raw)
	if !ok {
		return refuse
	}
	out := accept
	var version string
	for key, value := range meta {
		switch key {
		case "progressToken":
			if !plainID(value) {
				return refuse
			}
		case metaVersion:
			if e == legacy || !text(value, &version) {
				out = unsure
			}
		case metaCapabilities:
			if capabilities, ok := members(value); !ok || len(capabilities) > 0 {
				out = unsure
			}
		default:
			out = unsure
		}
	}
	if e == legacy {
		return out
	}
	if _, declared := meta[metaCapabilities]; version != statelessRevision || !declared {
		return refuse
	}
	return out
}

// What a request of the stateless era says about itself.
const (
	statelessRevision = "2026-07-28"
	metaVersion       = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities  = "io.modelcontextprotocol/clientCapabilities"
)

// headers are what a client of the era sends beside a frame: in the stateless one, what the frame says.
func (r *readers) headers(e era, frame []byte) map[string]string {
	if e == legacy {
		return map[string]string{"Mcp-Session-Id": r.session, "Mcp-Protocol-Version": "2025-11-25"}
	}
	message, _ := members(frame)
	params, _ := members(message["params"])
	var name string
	_ = text(params["name"], &name) // a frame without one is refused whatever its headers say
	return map[string]string{"Mcp-Protocol-Version": statelessRevision, "Mcp-Method": "tools/call", "Mcp-Name": name}
}

// agree compares the readers, and reports whether the frame is a call.
func (r *readers) agree(t testing.TB, era era, frame []byte) bool {
	t.Helper()
	seen := r.edge(t, era, frame)
	other, verdict := independent(era, frame)
	switch {
	case seen != nil && verdict == refuse:
		t.Fatalf("%s: the edge makes a call of what is none\nframe %q\nedge  %+v", era, frame, seen)
	case seen == nil && verdict == accept:
		t.Fatalf("%s: the edge refuses a call\nframe %q\nother %+v\nanswer %s", era, frame, other, r.said)
	case seen != nil:
		if diff := cmp.Diff(other, seen); diff != "" {
			t.Fatalf("%s: %q is read in two ways (-independent +sink):\n%s", era, frame, diff)
		}
		sameValue(t, frame, seen)
	}
	return seen != nil
}

// sameValue compares the arguments in the frame, as encoding/json decodes them into any, with those on the wire.
func sameValue(t testing.TB, frame []byte, seen *reading) {
	t.Helper()
	var whole map[string]any
	dec := json.NewDecoder(bytes.NewReader(frame))
	dec.UseNumber() // beside the arguments there may be numbers that no float is
	must(t, dec.Decode(&whole))
	params, _ := whole["params"].(map[string]any)
	arguments, _ := params["arguments"].(map[string]any)
	if arguments == nil {
		arguments = map[string]any{}
	}
	if tool, _ := contract.Lookup(seen.Tool); tool.Tier != optionsv1.Tier_TIER_READ {
		delete(arguments, "reason")
	}
	var arrived map[string]any
	must(t, json.Unmarshal([]byte(seen.Arguments), &arrived))
	if !reflect.DeepEqual(arguments, arrived) {
		t.Fatalf("%q says %v and the sink reads %v", frame, arguments, arrived)
	}
}

// Without DURWARD_FULL, a sample of 500 frames for each era is made of another seed each time; a failure names its frame.
func TestReadersAgree(t *testing.T) {
	generated, seed := 500, rand.Uint64()
	if platformtest.Full() {
		generated, seed = 10_000, 20260728
	}
	t.Logf("seed %d", seed)
	for _, era := range eras {
		t.Run(era.String(), func(t *testing.T) {
			r := newReaders(t)
			g := generator{rand.New(rand.NewPCG(seed, uint64(era)))}
			calls := 0
			for range generated {
				if r.agree(t, era, g.frame(era)) {
					calls++
				}
			}
			// A generator that makes nothing but calls, or none, would show nothing.
			if calls < generated/5 || calls > generated*4/5 {
				t.Errorf("%d of %d frames are calls", calls, generated)
			}
			t.Logf("%d frames, %d of them calls", generated, calls)
		})
	}
}

// FuzzReadersAgree takes any bytes as a message of either era.
func FuzzReadersAgree(f *testing.F) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	for range 40 {
		for _, era := range eras {
			f.Add(int(era), g.frame(era))
		}
	}
	for _, seed := range ambiguous {
		f.Add(int(legacy), []byte(seed))
		f.Add(int(modern), []byte(strings.Replace(seed, `"params":{`, `"params":{"_meta":{"`+metaVersion+`":"`+statelessRevision+`","`+metaCapabilities+`":{}},`, 1)))
	}
	r := newReaders(f)
	f.Fuzz(func(t *testing.T, which int, frame []byte) {
		era := eras[uint(which)%uint(len(eras))]
		if method := independentMethod(frame); method != "" && method != "tools/call" {
			return // not a call, whoever reads it
		}
		r.agree(t, era, frame)
	})
}

// independentMethod returns the method of a frame that every reader reads alike, and nothing otherwise.
func independentMethod(frame []byte) string {
	var method string
	if !unambiguous(frame) {
		return ""
	}
	message, _ := members(frame)
	_ = text(message["method"], &method) // no text is no method
	return method
}

// Frames that two parsers read in two ways, each after a hole that somebody had.
var ambiguous = []string{
	// encoding/json takes the last of duplicates, others the first.
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"service_info","name":"start_service","arguments":{"service_id":"a"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"a"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"a","service_id":"b"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"a","service\u005fid":"b"}}}`,
	// Keys matched without regard to case, or by Unicode folding.
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"service_info","Name":"start_service","arguments":{"service_id":"a"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","param\u017f":{"name":"start_service","arguments":{"service_id":"a"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","argumentſ":{"service_id":"a"}}}`,
	// Keys matched with trailing zeros cut off.
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"service_info","name\u0000":"start_service","arguments":{"service_id":"a"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"a","service_id\u0000":"b"}}}`,
	// protobuf's JSON knows a field by two names.
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"a","serviceId":"b"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","arguments":{"serviceId":"b"}}}`,
	// Halves of surrogate pairs become U+FFFD in some readers and stay in others.
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"stop_service","arguments":{"service_id":"a","reason":"\ud83d"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"stop_service","arguments":{"service_id":"a","r\u0065ason":"\ud83d\ude00"}}}`,
	// Two messages, or one and something behind it.
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status","arguments":{}}}{}`,
	`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"a"}}}]`,
	"\xef\xbb\xbf" + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status","arguments":{}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status","arguments":null}}`,
}

// eras are those that the tests speak.
var eras = []era{legacy, modern}
