package envelope

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/clean"
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
		"a list":        {[]*mcp.Tool{shared}, []*mcp.Tool{{Name: good, Description: good, InputSchema: map[string]any{good: []any{good, 1.5, nil, map[string]any{"x": good}}}}}},
		"resources":     {&mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: bad, Text: bad, Blob: []byte("\x1b")}}}, &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: good, Text: good, Blob: []byte("\x1b")}}}},
		"raw text":      {json.RawMessage("\"a\x1b[2Jb\""), json.RawMessage("null")},
		"raw key":       {json.RawMessage(`{"\u200bk":"<b>"}`), json.RawMessage(`{"k":"<b>"}`)},
		"raw, no UTF-8": {json.RawMessage("{\"k\":\"a\xff\"}"), json.RawMessage("{\"k\":\"a\ufffd\"}")},
		"raw, twice":    {json.RawMessage(`{} {"\u200b":1}`), json.RawMessage("null")},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := json.Marshal(tc.in)
			if err != nil && !strings.HasPrefix(name, "raw") {
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

// Whatever raw JSON holds, what comes out is JSON, clean in every text and key, and stays as it is from then on.
func FuzzCleanedJSON(f *testing.F) {
	for _, raw := range []string{
		`{"a":"b"}`, `{"a":"\u001b[2J","\u200bk":[1,2.50,null]}`, "\"\x1b\"", "{\"a\":\"\xff\"}", `{"a":"\ud800"}`, `[[[["[bold]x"]]]]`, `{} {}`, ``, ` `, `1e999`, `{"a":1,"\u200ba":2}`,
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		out := Cleaned(json.RawMessage(raw))
		if !json.Valid(raw) && string(out) == string(raw) && clean.Block(string(out), clean.Whole) == string(out) {
			return // clean, if no JSON
		}
		var v any
		dec := json.NewDecoder(bytes.NewReader(out))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil || !json.Valid(out) || !utf8.Valid(out) {
			t.Fatalf("%q became %q: %v", raw, out, err)
		}
		if again := Cleaned(out); string(again) != string(out) {
			t.Fatalf("%q, then %q", out, again)
		}
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case string:
				if clean.Block(v, clean.Whole) != v {
					t.Fatalf("%q is left in %q", v, out)
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
		walk(v)
	})
}
