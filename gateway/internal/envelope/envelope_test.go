package envelope

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

var update = flag.Bool("update", false, "write the golden vectors")

//go:embed testdata/*.json
var vectors embed.FS

const (
	request   = "r-aaaaaaaaaaaaaaaaaaaaaaaaaa"
	operation = "00112233445566778899aabbccddeeff"
)

// The envelopes of every status, as they go over the wire: agents and other programs depend on these bytes.
func TestGoldenVectors(t *testing.T) {
	result := json.RawMessage(`{"service":{"service_id":"demo-chat"},"changed":true}`)
	expires := time.Date(2026, 11, 21, 12, 30, 0, 999, time.FixedZone("east", 7200))
	for name, e := range map[string]*Envelope{
		"ok": {Status: OK, Summary: "Started demo-chat.", RequestID: request, OperationID: operation, Result: result},
		"ok_with_everything": {Status: OK, Summary: "Started <demo-chat>.", RequestID: request, OperationID: operation, Result: result, Replayed: true,
			Warnings: []string{"slow disk"}, Audit: &Audit{SessionOverrides: []string{"csp_override"}, OverrideSource: "session"}},
		"pending_approval": Pending(request, operation, expires),
		"pending_no_end":   Pending(request, operation, time.Time{}),
		"running":          StillRunning(request, operation),
		"denied_policy":    Unavailable(request, []string{"list_services", "stop_service"}),
		"denied_rule":      Forbidden(request, "not at night (quiet-hours)"),
		"withdrawn":        Withdrawn(request, operation),
		"denied_human":     Rejected(request, operation, "not during the demo"),
		"denied_silent":    Rejected(request, operation, ""),
		"error": Fault(request, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such service", fault.WithField("service_id"),
			fault.WithSuggestions("demo-chat"))),
		"error_rate_limited": Fault(request, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded", fault.WithRetry(1500*time.Millisecond))),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := e.JSON()
			must(t, err)
			path := filepath.Join("testdata", name+".json")
			if *update {
				must(t, os.WriteFile(path, append(got, '\n'), 0o600))
				return
			}
			want, err := vectors.ReadFile(path)
			must(t, err)
			if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Each golden vector fits the output schema of the tool that could answer so, and nothing that is no envelope does.
func TestSchemaTakesEveryStatus(t *testing.T) {
	start, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("no start_service")
	}
	schema, all := resolved(t, Schema(start.ResultSchema, true)), resolved(t, whole(start.ResultSchema))
	paths, err := fs.Glob(vectors, "testdata/*.json")
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d vectors: %v", len(paths), err)
	}
	for _, path := range paths {
		raw, err := vectors.ReadFile(path)
		must(t, err)
		var v any
		must(t, json.Unmarshal(raw, &v))
		if err := errors.Join(schema.Validate(v), all.Validate(v)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for name, raw := range map[string]string{
		"another member":  `{"status":"ok","summary":"","request_id":"r","extra":1}`,
		"another status":  `{"status":"fine","summary":"","request_id":"r"}`,
		"no request id":   `{"status":"ok","summary":""}`,
		"another result":  `{"status":"ok","summary":"","request_id":"r","result":{"x":1}}`,
		"result no shape": `{"status":"ok","summary":"","request_id":"r","result":7}`,
	} {
		var v any
		must(t, json.Unmarshal([]byte(raw), &v))
		// The schema in tools/list is open, and says what the tool's own answers are.
		open := name == "another member" || name == "no request id"
		if all.Validate(v) == nil || schema.Validate(v) == nil && !open {
			t.Errorf("%s passes", name)
		}
	}
}

func resolved(t *testing.T, schema map[string]any) *jsonschema.Resolved {
	t.Helper()
	raw, err := json.Marshal(schema)
	must(t, err)
	s := new(jsonschema.Schema)
	must(t, json.Unmarshal(raw, s))
	r, err := s.Resolve(nil)
	must(t, err)
	return r
}

func TestResultIsCleanedAndFitsItsSchema(t *testing.T) {
	m := &executorv1.ListServicesResponse{Services: []*executorv1.ServiceSummary{
		{ServiceId: "demo-chat", Name: "Demo\x1b[2J \u202echat\u200b", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Model: "[bold]m"},
	}}
	got, err := Result(m)
	must(t, err)
	want := `{"services":[{"service_id":"demo-chat","name":"Demo chat","state":"running","model":"m","vram_mib":0}],"disabled":[]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	list, _ := contract.Lookup("list_services")
	var v any
	must(t, json.Unmarshal(got, &v))
	if err := resolved(t, list.ResultSchema).Validate(v); err != nil {
		t.Error(err)
	}
}

func TestEveryToolsEmptyResultFitsItsSchema(t *testing.T) {
	for _, tool := range contract.Tools() {
		got, err := Result(tool.NewResponse())
		must(t, err)
		if bytes.Contains(got, []byte("null")) {
			t.Errorf("%s: null in %s", tool.Name, got)
		}
		var v any
		must(t, json.Unmarshal(got, &v))
		if err := resolved(t, tool.ResultSchema).Validate(v); err != nil {
			t.Errorf("%s: %v", tool.Name, err)
		}
	}
}

// TestIDsAreNotCapitalised: a sentence begins with a capital, unless it begins with an id or the name of an argument.
func TestIDsAreNotCapitalised(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "",
		"the plan changed":             "The plan changed.",
		"no mode has this id":          "No mode has this id.",
		"an operator halted it!":       "An operator halted it!",
		"chat did not start: it ended": "chat did not start: it ended.",
		"demo-chat was not started":    "demo-chat was not started.",
		"mode_id is missing":           "mode_id is missing.",
		"über was not started":         "über was not started.",
		"x":                            "x.",
	} {
		if got := Sentence(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	e := Fault("r-1", fault.New(callv1.Code_CODE_FAILED, "chat did not start: it ended"))
	if e.Summary != "chat did not start: it ended." {
		t.Errorf("the summary is %q", e.Summary)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
