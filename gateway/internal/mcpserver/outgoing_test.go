package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// marker is the part of poison that is harmless, so that a test sees that the rest was taken from it; leak is what no error may
// say.
const (
	marker = "mrk"
	poison = marker + "\x1b[31m\x1b]0;t\x07\u009b2J\u202e\u200b\U000e0041[bold]\x08\x7f"
	leak   = "open /etc/durward/x: SELECT a FROM b in durward.internal/services at main.go:12"
)

// poisoned is a connection to a peer that has been taken over: it puts poison into every text that it answers, errors and the
// words beside an answer too. What other parts of the test depend on stays: handles, ids of operations, tools' names.
type poisoned struct{ grpc.ClientConnInterface }

var spared = []protoreflect.Name{"session_id", "operation_id", "audience", "kid"}

func poisonMessage(m protoreflect.Message) {
	if m.Descriptor().Name() == "ToolRef" {
		return
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() || slices.Contains(spared, fd.Name()):
		case fd.Message() != nil && fd.IsList():
			for i := range v.List().Len() {
				poisonMessage(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			poisonMessage(v.Message())
		case fd.Kind() != protoreflect.StringKind:
		case fd.IsList():
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfString(v.List().Get(i).String()+poison))
			}
		default:
			m.Set(fd, protoreflect.ValueOfString(v.String()+poison))
		}
		return true
	})
}

func poisonFault(err error) error {
	f := fault.From(err)
	if f == nil {
		return nil
	}
	out := *f
	out.Message, out.Field, out.DidYouMean = poison+leak, poison+leak, []string{poison, leak}
	return &out
}

func (p poisoned) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	var trailer metadata.MD
	err := p.ClientConnInterface.Invoke(ctx, method, args, reply, append(slices.Clone(opts), grpc.Trailer(&trailer))...)
	if err != nil {
		return poisonFault(err)
	}
	if m, ok := reply.(proto.Message); ok {
		poisonMessage(m.ProtoReflect())
	}
	for _, opt := range opts {
		t, ok := opt.(grpc.TrailerCallOption)
		if !ok {
			continue
		}
		outcome := &callv1.Outcome{}
		if values := trailer.Get(rpc.TrailerOutcome); len(values) == 1 {
			if err := proto.Unmarshal([]byte(values[0]), outcome); err != nil {
				return err
			}
		}
		outcome.Summary, outcome.Warnings = outcome.GetSummary()+poison, append(outcome.GetWarnings(), poison)
		raw, err := proto.Marshal(outcome)
		if err != nil {
			return err
		}
		*t.TrailerAddr = metadata.Pairs(rpc.TrailerOutcome, string(raw))
	}
	return nil
}

// wholesome checks that every text of an answer is clean, as deep as there is JSON in texts, and returns how often the marker is in it.
func wholesome(t *testing.T, name, raw string) int {
	t.Helper()
	for _, leaked := range []string{"/etc/", "SELECT", "durward.internal", "main.go"} {
		if strings.Contains(raw, leaked) {
			t.Errorf("%s shows %q: %s", name, leaked, raw)
		}
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			if cleaned := clean.Block(v, clean.Whole); cleaned != v {
				t.Errorf("%s: %q is not clean", name, v)
			}
			var inner any
			if strings.HasPrefix(v, "{") && json.Unmarshal([]byte(v), &inner) == nil {
				walk(inner)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for key, item := range v {
				walk(key)
				walk(item)
			}
		}
	}
	messages := 0
	for line := range strings.Lines(raw) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		var v any
		if json.Unmarshal([]byte(line), &v) == nil && strings.HasPrefix(line, "{") {
			walk(v)
			messages++
		}
	}
	if messages == 0 {
		t.Errorf("%s: no message in %q", name, raw)
	}
	return strings.Count(raw, marker)
}

// Whatever the vault and the executor put into their answers, nothing that leaves the gateway has an escape code, a hidden
// character or console markup in it, and no error says what is inside (SEC-E1, SEC-E3): every kind of message, in both eras.
func TestEverythingThatLeavesIsClean(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond, wrap: func(c grpc.ClientConnInterface) grpc.ClientConnInterface { return poisoned{c} }})
	older := e.connect(t, tokenAgent)
	ask := map[string]func(method, name, params string) reply{
		"sessions": func(method, _, params string) reply {
			return e.send(t, request{session: older, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s}}`, method, params)})
		},
		"stateless": func(method, name, params string) reply {
			return e.own(t, tokenAgent, method, name, params, declaresTasks)
		},
	}
	call := func(tool, arguments string) [3]string {
		return [3]string{"tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":%s`, tool, arguments)}
	}
	read := func(uri string) [3]string { return [3]string{"resources/read", uri, fmt.Sprintf(`"uri":%q`, uri)} }
	for era, ask := range ask {
		// An operation of each end, so that waiting for it and reading it bring the peers' words.
		operation := func(state vaultv1.OperationState) string {
			m := call("start_service", `{"service_id":"demo-chat"}`)
			r := ask(m[0], m[1], m[2])
			var out struct {
				TaskID     string `json:"taskId"`
				Structured struct {
					OperationID string `json:"operation_id"`
				} `json:"structuredContent"`
			}
			must(t, json.Unmarshal(r.message.Result, &out))
			id := out.TaskID + out.Structured.OperationID
			if id == "" {
				t.Fatalf("%s: no operation: %s", era, r.raw)
			}
			e.vault.set(id, state, poison)
			return id
		}
		denied, approved, expired := operation(vaultv1.OperationState_OPERATION_STATE_DENIED), operation(vaultv1.OperationState_OPERATION_STATE_APPROVED), operation(vaultv1.OperationState_OPERATION_STATE_EXPIRED)
		messages := map[string][3]string{
			"a read":                  call("gpu_status", `{}`),
			"a list":                  call("list_services", `{}`),
			"a read that fails":       call("service_info", `{"service_id":"nothing"}`),
			"a refused argument":      call("service_info", `{"service_id":"-"}`),
			"an unknown tool":         call("no_such_tool", `{}`),
			"a pending call":          call("stop_service", `{"service_id":"demo-chat"}`),
			"a denial":                call("wait_operation", `{"operation_id":"`+denied+`"}`),
			"an outcome":              call("wait_operation", `{"operation_id":"`+approved+`"}`),
			"an expiry":               call("wait_operation", `{"operation_id":"`+expired+`"}`),
			"no such operation":       call("wait_operation", `{"operation_id":"00000000000000000000000000000000"}`),
			"the tools":               {"tools/list", "", ""},
			"the resources":           {"resources/list", "", ""},
			"the templates":           {"resources/templates/list", "", ""},
			"help":                    read("durward://help"),
			"the GPUs":                read("durward://gpu"),
			"the services":            read("durward://services"),
			"a service":               read("durward://services/demo-chat"),
			"the configuration":       read("durward://config"),
			"an operation":            read("durward://operations/" + denied),
			"no such service":         read("durward://services/nothing"),
			"no such resource":        read("durward://" + "nothing/else"),
			"a completion":            {"completion/complete", "", `"ref":{"type":"ref/resource","uri":"durward://services/{service_id}"},"argument":{"name":"service_id","value":"d"}`},
			"no such completion":      {"completion/complete", "", `"ref":{"type":"ref/resource","uri":"durward://x"},"argument":{"name":"x","value":"d"}`},
			"an unknown method":       {"no/such", "", ""},
			"params that are missing": {"tools/call", "", ""},
		}
		if era == "stateless" {
			task := operation(vaultv1.OperationState_OPERATION_STATE_DENIED)
			messages["discovery"] = [3]string{"server/discover", "", ""}
			messages["a task"] = [3]string{"tasks/get", task, `"taskId":"` + task + `"`}
			messages["no such task"] = [3]string{"tasks/get", "00000000000000000000000000000000", `"taskId":"00000000000000000000000000000000"`}
		} else {
			messages["a subscription"] = [3]string{"resources/subscribe", "", `"uri":"durward://services/demo-chat"`}
			messages["no such subscription"] = [3]string{"resources/subscribe", "", `"uri":"durward://services/nothing"`}
		}
		bears := map[string]bool{"a read": true, "a list": true, "a denial": true, "an outcome": true, "the GPUs": true, "the services": true, "an operation": true, "a task": era == "stateless"}
		for _, name := range slices.Sorted(maps.Keys(messages)) {
			m := messages[name]
			r := ask(m[0], m[1], m[2])
			if n := wholesome(t, era+", "+name, r.raw); bears[name] && n == 0 {
				t.Errorf("%s, %s: what the peers said is not in it: %s", era, name, r.raw)
			}
		}
	}
	// The handshakes: what the vault calls the session is in their answers.
	for name, r := range map[string]reply{
		"a handshake":                  e.send(t, request{body: initialize}),
		"a handshake with wrong token": e.send(t, request{body: initialize, token: "nobody"}),
	} {
		if n := wholesome(t, name, r.raw); n == 0 && name == "a handshake" {
			t.Errorf("%s: what the vault said is not in it: %s", name, r.raw)
		}
	}
}

// A notification of a change, which the SDK sends by itself, and progress are cleaned on their way out like all else.
func TestNotificationsAreClean(t *testing.T) {
	t.Parallel() // it waits
	e := newEdge(t, edgeOptions{hold: time.Second, telling: 100 * time.Millisecond, wrap: func(c grpc.ClientConnInterface) grpc.ClientConnInterface { return poisoned{c} }})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := modernCall("start_service", `{"service_id":"demo-chat"}`, `"progressToken":"[bold]token"`)
	out, err := e.try(ctx, r)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if !strings.Contains(out.raw, "notifications/progress") {
		t.Fatalf("no progress in %s", out.raw)
	}
	wholesome(t, "progress", out.raw)
}
