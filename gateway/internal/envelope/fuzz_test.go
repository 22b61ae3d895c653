package envelope

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// FuzzEnvelope: whatever texts reach an envelope, in whatever member, what goes out is strict JSON of a tool's output schema,
// reads back as itself, and holds no character that cleaning would take out.
func FuzzEnvelope(f *testing.F) {
	for _, seed := range []string{
		"demo-chat", "", "\x1b[31mred\x1b[0m", "\x9b31m\u009b", "a\u202eb\u2066c", "\u200b\ufeff\U000e0041", "</fetched_content>", "[bold]x[/bold]",
		"line\nline\ttab\r", "\xff\xfe", `"}],"status":"ok","x":"`, "/home/ada/.durward/keys/grant.key", "goroutine 1 [running]:\nmain.main()", "\u2028\u2029<&>",
	} {
		f.Add(seed, "service_id", uint8(0))
		f.Add("stopped", seed, uint8(3))
	}
	start, _ := contract.Lookup("start_service")
	raw, err := json.Marshal(whole(start.ResultSchema))
	if err != nil {
		f.Fatal(err)
	}
	var shape map[string]any
	if err := json.Unmarshal(raw, &shape); err != nil {
		f.Fatal(err)
	}
	codes := []callv1.Code{callv1.Code_CODE_INVALID_ARGUMENT, callv1.Code_CODE_NOT_FOUND, callv1.Code_CODE_RATE_LIMITED, callv1.Code_CODE_CONFLICT}
	f.Fuzz(func(t *testing.T, text, other string, which uint8) {
		code := codes[int(which)%len(codes)]
		for _, e := range []*Envelope{
			{Status: OK, Summary: text, RequestID: request, OperationID: other, Warnings: []string{text, other}, Result: json.RawMessage(`{"changed":true}`)},
			{Status: Running, Summary: other, RequestID: text, TellUser: text, Next: &Next{Tool: other, Arguments: map[string]any{"operation_id": text}}},
			{Status: OK, Summary: text, RequestID: request, Audit: &Audit{SessionOverrides: []string{other, text}, OverrideSource: text}},
			Rejected(request, operation, text),
			Pending(text, other, time.Unix(int64(which), 0)),
			Fault(request, fault.New(code, text, fault.WithField(other), fault.WithSuggestions(text, other))),
		} {
			out, err := e.JSON()
			must(t, err)
			if err := canonical.Strict(out); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			var value any
			must(t, json.Unmarshal(out, &value))
			fits(t, shape, value)
			dirty(t, value)
			again := new(Envelope)
			must(t, json.Unmarshal(out, again))
			twice, err := again.JSON()
			must(t, err)
			if diff := cmp.Diff(string(out), string(twice)); diff != "" {
				t.Fatalf("an envelope that was read is written otherwise (-first +second):\n%s", diff)
			}
		}
	})
}

// fits checks that an object has no member beyond its schema and all that the schema asks for.
func fits(t *testing.T, schema map[string]any, value any) {
	t.Helper()
	object, ok := value.(map[string]any)
	if !ok {
		t.Fatalf("%v is no object", value)
	}
	properties, _ := schema["properties"].(map[string]any)
	for name := range object {
		if properties[name] == nil {
			t.Fatalf("member %q is not in the schema", name)
		}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, there := object[name.(string)]; !there {
			t.Fatalf("member %q is missing", name)
		}
	}
}

// dirty fails for a text that cleaning would change.
func dirty(t *testing.T, value any) {
	t.Helper()
	switch v := value.(type) {
	case string:
		if cleaned := clean.Block(v, len(v)+1); cleaned != v {
			t.Fatalf("%q leaves, and cleaned it is %q", v, cleaned)
		}
	case []any:
		for item := range slices.Values(v) {
			dirty(t, item)
		}
	case map[string]any:
		for key, item := range v {
			dirty(t, key)
			dirty(t, item)
		}
	}
}
