package envelope

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// everything compares unexported fields too: a copy has to keep them.
var everything = cmp.Exporter(func(reflect.Type) bool { return true })

func TestCleaned(t *testing.T) {
	const bad, good = "a\x1b[2J\u202eb\u200b", "ab"
	shared := &mcp.Tool{Name: bad, Description: bad, InputSchema: map[string]any{bad: []any{bad, 1.5, nil, map[string]any{"x": bad}}}}
	for name, tc := range map[string]struct{ in, want any }{
		"a result": {
			&mcp.CallToolResult{Meta: mcp.Meta{bad: bad}, Content: []mcp.Content{&mcp.TextContent{Text: bad}},
				StructuredContent: json.RawMessage(`{"k":"a\u001b[2Jb","n":1.50}`), IsError: true},
			&mcp.CallToolResult{Meta: mcp.Meta{good: good}, Content: []mcp.Content{&mcp.TextContent{Text: good}},
				StructuredContent: json.RawMessage(`{"k":"ab","n":1.50}`), IsError: true},
		},
		"a list":     {[]*mcp.Tool{shared}, []*mcp.Tool{{Name: good, Description: good, InputSchema: map[string]any{good: []any{good, 1.5, nil, map[string]any{"x": good}}}}}},
		"resources":  {&mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: bad, Text: bad, Blob: []byte("\x1b")}}}, &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: good, Text: good, Blob: []byte("\x1b")}}}},
		"raw text":   {json.RawMessage("\"a\x1b[2Jb\""), json.RawMessage("null")},
		"raw key":    {json.RawMessage(`{"\u200bk":"<b>"}`), json.RawMessage(`{"k":"<b>"}`)},
		"raw, twice": {json.RawMessage(`{} {"\u200b":1}`), json.RawMessage("null")},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := json.Marshal(tc.in)
			if err != nil && name != "raw text" && name != "raw, twice" {
				t.Fatal(err)
			}
			got := Cleaned(tc.in)
			if diff := cmp.Diff(tc.want, got, everything); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(got, Cleaned(got), everything); diff != "" {
				t.Errorf("not idempotent:\n%s", diff)
			}
			if after, _ := json.Marshal(tc.in); string(after) != string(before) {
				t.Errorf("the original was changed to %s", after)
			}
		})
	}
}

// What is clean is handed on as it is.
func TestCleanedKeepsWhatIsClean(t *testing.T) {
	in := &mcp.CallToolResult{Meta: mcp.Meta{"durward/request_id": request}, Content: []mcp.Content{&mcp.TextContent{Text: `{"a":"b"}`}},
		StructuredContent: json.RawMessage(`{"z":"one\ntwo","a":[true,null,1e3]}`)}
	if got := Cleaned(in); got != in {
		t.Errorf("a copy: %+v", got)
	}
	if got := Cleaned[mcp.Result](nil); got != nil {
		t.Errorf("%v", got)
	}
	deep := any("x")
	for range 2 * maxNesting {
		deep = []any{deep}
	}
	if raw, err := json.Marshal(Cleaned(deep)); err != nil || len(raw) > 2*maxNesting+8 {
		t.Errorf("%v: %s", err, raw)
	}
}
