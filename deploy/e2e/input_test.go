package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"

	"durward.internal/deploy/e2e/harness"
)

// internals are what no answer may show: absolute paths, Go files, stacks, module names, SQL.
var internals = regexp.MustCompile(`(?i)/(home|root|tmp|work|usr|var|proc)/|\.go:\d|goroutine \d|durward\.internal/|\bselect .* from\b|sqlite`)

// TestBadInput sends what nobody should send, as bytes, and checks that it is refused with words that help, recorded, and
// without effect.
func TestBadInput(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	session := h.ConnectRaw(h.AddClient("agent"))
	schemas := h.Connect(h.AddClient("strict")).Tools

	tests := map[string]struct {
		tool, arguments string
		code            callv1.Code
		// field is the argument at fault; hint something that the message or the suggestions must say.
		field, hint string
	}{
		"unknown service":        {"start_service", `{"service_id":"demo-chat2"}`, callv1.Code_CODE_NOT_FOUND, "service_id", "demo-chat"},
		"unknown to read":        {"service_info", `{"service_id":"demo-chat2"}`, callv1.Code_CODE_NOT_FOUND, "service_id", "demo-chat"},
		"no arguments":           {"start_service", `{}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"a number for a string":  {"start_service", `{"service_id":3}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", "string"},
		"null":                   {"start_service", `{"service_id":null}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"an array for a string":  {"start_service", `{"service_id":["demo-chat"]}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"arguments as an array":  {"start_service", `["demo-chat"]`, callv1.Code_CODE_INVALID_ARGUMENT, "", ""},
		"unknown field":          {"start_service", `{"service_id":"demo-chat","force":true}`, callv1.Code_CODE_INVALID_ARGUMENT, "", ""},
		"field in another case":  {"start_service", `{"Service_Id":"demo-chat"}`, callv1.Code_CODE_INVALID_ARGUMENT, "", ""},
		"protojson's alias":      {"start_service", `{"serviceId":"demo-chat"}`, callv1.Code_CODE_INVALID_ARGUMENT, "", "service_id"},
		"a shell's words":        {"start_service", `{"service_id":"a;rm -rf /"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"an option":              {"start_service", `{"service_id":"--force"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"a trailing newline":     {"start_service", `{"service_id":"demo-chat\n"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"a path":                 {"start_service", `{"service_id":"a/../../etc"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"65 characters":          {"start_service", `{"service_id":"` + strings.Repeat("a", 65) + `"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"empty":                  {"start_service", `{"service_id":""}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id", ""},
		"an operation's name":    {"wait_operation", `{"operation_id":"K7F3"}`, callv1.Code_CODE_INVALID_ARGUMENT, "operation_id", ""},
		"an operation not there": {"wait_operation", `{"operation_id":"` + strings.Repeat("0", 32) + `"}`, callv1.Code_CODE_NOT_FOUND, "", ""},
		"33 items":               {"simulate_mode", `{"start":["` + strings.Join(strings.Split(strings.Repeat("a", 33), ""), `","`) + `"]}`, callv1.Code_CODE_INVALID_ARGUMENT, "start", ""},
		"an item twice":          {"simulate_mode", `{"stop":["demo-chat","demo-chat"]}`, callv1.Code_CODE_INVALID_ARGUMENT, "stop", ""},
		"an item that is no id":  {"simulate_mode", `{"start":["demo-chat","a;rm -rf /"]}`, callv1.Code_CODE_INVALID_ARGUMENT, "start", ""},
		"null among the items":   {"simulate_mode", `{"start":[null]}`, callv1.Code_CODE_INVALID_ARGUMENT, "start", "string"},
		"an unknown item":        {"simulate_mode", `{"start":["demo-chat2"]}`, callv1.Code_CODE_NOT_FOUND, "start", "demo-chat"},
		"a key that is no id":    {"simulate_mode", `{"context_overrides":{"/etc/passwd":8192}}`, callv1.Code_CODE_INVALID_ARGUMENT, "context_overrides", ""},
		"a value out of range":   {"simulate_mode", `{"context_overrides":{"demo-chat":-1}}`, callv1.Code_CODE_INVALID_ARGUMENT, "context_overrides", "range"},
		"a value in quotes":      {"simulate_mode", `{"context_overrides":{"demo-chat":"8192"}}`, callv1.Code_CODE_INVALID_ARGUMENT, "context_overrides", "whole number"},
		"arguments where none":   {"gpu_status", `{"service_id":"demo-chat"}`, callv1.Code_CODE_INVALID_ARGUMENT, "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			answer := harness.Again(func() harness.RawAnswer { return session.CallTool(test.tool, test.arguments) })
			if answer.Error != nil || answer.HTTPStatus != http.StatusOK {
				t.Fatalf("HTTP %d, error %+v, want an envelope", answer.HTTPStatus, answer.Error)
			}
			var result mcp.CallToolResult
			if err := json.Unmarshal(answer.Result, &result); err != nil {
				t.Fatalf("%v: %s", err, answer.Body)
			}
			e := harness.CheckResult(t, harness.ResolveSchema(t, schemas[test.tool].OutputSchema), &result)
			if e.Status != "error" || e.Error == nil || "CODE_"+e.Error.Code != test.code.String() || e.Error.Retryable || e.Error.Message == "" {
				t.Fatalf("%s", e.Raw)
			}
			if test.field != "" && e.Error.Field != test.field {
				t.Errorf("field %q, want %q: %s", e.Error.Field, test.field, e.Raw)
			}
			if said := e.Error.Message + " " + strings.Join(e.Error.DidYouMean, " "); !strings.Contains(said, test.hint) {
				t.Errorf("%q gives no hint of %q", said, test.hint)
			}
			if leak := internals.FindString(answer.Body); leak != "" {
				t.Errorf("the answer shows %q: %s", leak, answer.Body)
			}
			if e.Meta["durward/request_id"] != e.RequestID {
				t.Errorf("_meta names the request %v, the envelope %s", e.Meta["durward/request_id"], e.RequestID)
			}
			recordedAsRefused(t, h, e.RequestID)
		})
	}

	// What is not one JSON-RPC message with unique keys never becomes a call; the answer is the protocol's own.
	frames := map[string]struct {
		body   string
		status int
		code   callv1.Code
	}{
		"duplicate argument":     {call(`{"service_id":"demo-chat","service_id":"other"}`), http.StatusBadRequest, callv1.Code_CODE_INVALID_ARGUMENT},
		"duplicate key in a map": {`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"simulate_mode","arguments":{"context_overrides":{"a":1,"a":2}}}}`, http.StatusBadRequest, callv1.Code_CODE_INVALID_ARGUMENT},
		"duplicate tool name":    {`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"gpu_status","name":"start_service","arguments":{"service_id":"demo-chat"}}}`, http.StatusBadRequest, callv1.Code_CODE_INVALID_ARGUMENT},
		"trailing data":          {call(`{"service_id":"demo-chat"}`) + `{}`, http.StatusBadRequest, callv1.Code_CODE_INVALID_ARGUMENT},
		"not UTF-8":              {call("{\"service_id\":\"demo-chat\xff\"}"), http.StatusBadRequest, callv1.Code_CODE_INVALID_ARGUMENT},
		"51 levels":              {call(strings.Repeat(`{"a":`, 51) + "1" + strings.Repeat("}", 51)), http.StatusBadRequest, callv1.Code_CODE_INVALID_ARGUMENT},
		"a batch":                {"[" + call(`{"service_id":"demo-chat"}`) + "]", http.StatusBadRequest, callv1.Code_CODE_INVALID_ARGUMENT},
		"2 MB":                   {call(`{"service_id":"` + strings.Repeat("a", 2<<20) + `"}`), http.StatusRequestEntityTooLarge, callv1.Code_CODE_TOO_LARGE},
	}
	// Of the manner of messages the first of each client is recorded, and the others are counted: each frame has a client of its own.
	names := slices.Collect(maps.Keys(frames))
	var clients []string
	for _, name := range names {
		clients = append(clients, "frames-"+strings.ToLower(strings.ReplaceAll(name, " ", "-")))
	}
	tokens := h.AddClients(clients)
	for i, name := range names {
		test := frames[name]
		t.Run(name, func(t *testing.T) {
			session := h.ConnectRaw(tokens[i])
			answer := session.Send([]byte(test.body))
			if answer.HTTPStatus != test.status || answer.Error == nil || answer.Error.Message == "" {
				t.Fatalf("HTTP %d, want %d: %s", answer.HTTPStatus, test.status, answer.Body)
			}
			var data struct {
				Code      string `json:"code"`
				RequestID string `json:"request_id"`
			}
			if err := json.Unmarshal(answer.Error.Data, &data); err != nil || "CODE_"+data.Code != test.code.String() || data.RequestID == "" {
				t.Errorf("error data %s, want %s and a request id", answer.Error.Data, test.code)
			}
			if leak := internals.FindString(answer.Body); leak != "" {
				t.Errorf("the answer shows %q: %s", leak, answer.Body)
			}
			recordedAsRefused(t, h, data.RequestID)
		})
	}

	// A tool that does not exist and a denied one look alike.
	unknown := harness.Again(func() harness.RawAnswer { return session.CallTool("format_disk", `{}`) })
	var result mcp.CallToolResult
	if err := json.Unmarshal(unknown.Result, &result); err != nil {
		t.Fatalf("unknown tool: %v: %s", err, unknown.Body)
	}
	if e := harness.CheckResult(t, nil, &result); e.Status != "denied" || e.Reason != "not_available" || strings.Contains(string(e.Raw), "format_disk") {
		t.Errorf("unknown tool: %s", e.Raw)
	} else {
		recordedAsRefused(t, h, e.RequestID)
	}

	if n := h.Starts(harness.DemoService); n != 0 {
		t.Errorf("the service was started %d times", n)
	}
	if waiting := h.Approvals(); len(waiting) != 0 {
		t.Errorf("bad input waits for approval: %+v", waiting)
	}
}

func call(arguments string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"start_service","arguments":` + arguments + `}}`
}

// recordedAsRefused checks that a request was recorded as refused, by the edge or by a sink.
func recordedAsRefused(t *testing.T, h *harness.Host, requestID string) {
	t.Helper()
	h.Story(requestID, func(r *auditv1.Record) bool {
		switch r.GetKind() {
		case auditv1.Kind_KIND_REFUSED, auditv1.Kind_KIND_SINK_REFUSED:
			return true
		case auditv1.Kind_KIND_READ, auditv1.Kind_KIND_DENIED:
			return r.GetStatus() == auditv1.Status_STATUS_ERROR || r.GetStatus() == auditv1.Status_STATUS_DENIED
		default:
			return false
		}
	})
}
