package child

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/picture"
)

// png is a picture of one pixel.
const png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"

// TestContent: each kind of content becomes what is passed on of it.
func TestContent(t *testing.T) {
	for name, c := range map[string]struct {
		piece  mcp.Content
		images bool
		want   Content
	}{
		"image": {&mcp.ImageContent{Data: []byte(png), MIMEType: "image/png"}, true, Content{Kind: Image, Data: []byte(png), MIME: "image/png"}},
		"image where none is wanted": {
			&mcp.ImageContent{Data: []byte(png), MIMEType: "image/png"}, false,
			Content{Kind: Text, Text: "[image that is not passed on: image/png, 33 bytes; pictures pass where the server's entry says images, and 4 a result]"},
		},
		"image that is something else": {
			&mcp.ImageContent{Data: []byte("<script>"), MIMEType: "image/png"}, true,
			Content{Kind: Text, Text: "[image that is not passed on: image/png, 8 bytes; its bytes are not of that type]"},
		},
		"image of a kind that runs programs": {
			&mcp.ImageContent{Data: []byte("<svg/>"), MIMEType: "image/svg+xml\x1b[31m"}, true,
			Content{Kind: Text, Text: "[image that is not passed on: image/svg+xml, 6 bytes; its type is not one that is passed on]"},
		},
		"audio": {
			&mcp.AudioContent{Data: []byte("RIFF"), MIMEType: "audio/wav"}, true,
			Content{Kind: Text, Text: "[audio that is not passed on: audio/wav, 4 bytes; no sound passes]"},
		},
		"link": {
			&mcp.ResourceLink{URI: "https://example.com/a?b=c", Name: "a\u202eb", MIMEType: "text/html"}, true,
			Content{Kind: Link, Text: "ab", URI: "https://example.com/a?b=c", MIME: "text/html"},
		},
		"link that runs": {
			&mcp.ResourceLink{URI: "javascript:alert(1)", Name: "press"}, true,
			Content{Kind: Text, Text: `[a link that is not passed on, "press": neither https nor http]`},
		},
		"link with a password": {
			&mcp.ResourceLink{URI: "https://example.com@evil.example/", Name: "bank"}, true,
			Content{Kind: Text, Text: `[a link that is not passed on, "bank": neither https nor http]`},
		},
		"text of a resource": {
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///etc/passwd", Text: "a\x07b", MIMEType: "text/plain"}}, true,
			Content{Kind: Resource, Text: "ab", MIME: "text/plain"},
		},
		"bytes of a resource": {
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "x:y", Blob: []byte("MZ"), MIMEType: "application/x-dosexec"}}, true,
			Content{Kind: Text, Text: "[resource that is not passed on: application/x-dosexec, 2 bytes; its type is not one that is passed on]"},
		},
		"picture of a resource": {
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "x:y", Blob: []byte(png), MIMEType: "image/png"}}, true,
			Content{Kind: Image, Data: []byte(png), MIME: "image/png"},
		},
		"image whose header alone is one": {
			&mcp.ImageContent{Data: []byte("\x89PNG\r\n\x1a\n<html><script>"), MIMEType: "image/png"}, true,
			Content{Kind: Text, Text: "[image that is not passed on: image/png, 22 bytes; its bytes are not of that type]"},
		},
		"nothing": {&mcp.EmbeddedResource{}, true, Content{Kind: Text, Text: "[content of a kind that is not passed on]"}},
	} {
		pictures := 0
		if c.images {
			pictures = 1
		}
		if diff := cmp.Diff(c.want, content(c.piece, &pictures)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestPictures: a result has so many and no more, and they count for nothing of what its texts may hold.
func TestPictures(t *testing.T) {
	large := append([]byte(png), make([]byte, picture.MaxBytes-len(png))...)
	many := slices.Repeat([]mcp.Content{&mcp.ImageContent{Data: large, MIMEType: "image/png"}}, picture.Most+2)
	for images, want := range map[bool]int{true: picture.Most, false: 0} {
		out, err := rebuild(&mcp.CallToolResult{Content: many}, images)
		passed := 0
		for _, c := range out.Content {
			if c.Kind == Image {
				passed++
			}
		}
		if err != nil || passed != want || len(out.Content) != len(many) {
			t.Errorf("images %t: %d of %d pictures pass, %v", images, passed, len(out.Content), err)
		}
	}
}

// TestStructured is canonical, with its texts cleaned.
func TestStructured(t *testing.T) {
	var in mcp.CallToolResult
	must(t, json.Unmarshal([]byte(`{"content":[],"structuredContent":{"b":[1.0,"\u001b[31mred"],"a":null},"isError":true}`), &in))
	got, err := rebuild(&in, false)
	must(t, err)
	if diff := cmp.Diff(Result{Structured: []byte(`{"a":null,"b":[1,"red"]}`), IsError: true}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := rebuild(&mcp.CallToolResult{Content: make([]mcp.Content, maxPieces+1)}, false); err == nil {
		t.Error("any number of pieces passes")
	}
	if _, err := rebuild(&mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}}, false); err == nil {
		t.Error("a result that asks for input passes")
	}
}

// TestSloppyFrames: what a server that is merely sloppy sends is read as it is meant, or taken for its log.
func TestSloppyFrames(t *testing.T) {
	one, err := jsonrpc.MakeID(1.0)
	must(t, err)
	for raw, want := range map[string]string{
		"\ufeff" + `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`:                       `{"id":1,"jsonrpc":"2.0","result":{"content":[]}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":"ENOENT","message":"no such file"}}`:       `{"error":{"code":-32603,"message":"no such file"},"id":1,"jsonrpc":"2.0"}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1e99,"message":"no"}}`:                     `{"error":{"code":-32603,"message":"no"},"id":1,"jsonrpc":"2.0"}`,
		`{"level":30,"method":7,"msg":{"jsonrpc":"2.0","id":1,"result":{"content":[]}}}`:    "nothing",
		`{"level":30,"id":1,"msg":"sent","frame":{"jsonrpc":"2.0","id":1,"method":"ping"}}`: "nothing",
		`{"jsonrpc":"2.0","id":1,"result":`:                                                 errMalformed.Error() + ": unexpected EOF",
		`{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"a":NaN}}}`:                 errMalformed.Error() + ": invalid character 'N' at start of value",
		`{"jsonrpc":"2.0","id":1,"id":1,"result":{}}`:                                       errMalformed.Error() + ": duplicate object member name",
		`{"jsonrpc":2.0,"id":1,"result":{}}`:                                                "what it sent is not JSON-RPC 2.0",
		`{"jsonrpc":"1.0","id":1,"result":{}}`:                                              "what it sent is not JSON-RPC 2.0",
	} {
		frames := &frames{}
		frames.sent(&jsonrpc.Request{ID: one, Method: "tools/call"})
		got := "nothing"
		message, err := frames.received([]byte(raw))
		if err != nil {
			got = err.Error()
		} else if message != nil {
			line, err := encode(message)
			must(t, err)
			got = string(line)
		}
		if got != want {
			t.Errorf("%s passes as %s, want %s", raw, got, want)
		}
	}
}

// TestAnAnswerToWhatWasGivenUp counts no more: else the end that follows, which is ours, would be told as the server's own.
func TestAnAnswerToWhatWasGivenUp(t *testing.T) {
	one, err := jsonrpc.MakeID(1.0)
	must(t, err)
	for _, given := range []bool{false, true} {
		frames := &frames{}
		frames.sent(&jsonrpc.Request{ID: one, Method: "server/discover"})
		if !frames.unheard(given) {
			t.Error("it has an answer before one came")
		}
		message, err := frames.received([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}`))
		if err != nil || (message == nil) != given || frames.unheard(false) != given {
			t.Errorf("given up %v: %v passes, %v; it is unheard: %v", given, message, err, frames.unheard(false))
		}
	}
}

// FuzzFrames: whatever a server says, what passes is an answer to the call that waits, and only one, with known fields; or a question of two
// kinds or a form. It is within the bounds, and its own rebuilt form.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a","_meta":{}}],"isError":false,"other":1}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no\u001b[1m","data":{"supported":["2026-07-28"],"x":1}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"structuredContent":1e999}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\ud83d"}],"structuredContent":{"\ude00":"\ud83d"}}}`,
		`{"jsonrpc":"2.0","id":"1","method":"sampling/createMessage","params":{}}`,
		`{"jsonrpc":"2.0","id":7,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":` + aForm + `}`,
		`{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":` + aForm + `}}}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"1","progress":1,"message":"\u202e"}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":{"a":[]}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
		`[{"jsonrpc":"2.0","id":1,"result":{}}]`, `{"jsonrpc":"2.0","id":1.0,"result":{}}`, `{"ID":1,"Result":{}}`, "\x00", "",
	} {
		f.Add([]byte(seed))
	}
	one, err := jsonrpc.MakeID(1.0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		frames := &frames{elicits: true, toolsChanged: func() {}, logged: func(line string) {
			if strings.ContainsAny(line, "\x1b\n") {
				t.Errorf("the log has %q", line)
			}
		}}
		frames.sent(&jsonrpc.Request{ID: one, Method: "tools/call"})
		message, err := frames.received(raw)
		if err != nil || message == nil {
			return
		}
		switch message := message.(type) {
		case *jsonrpc.Request:
			if message.Method == methodElicit {
				if same, err := formOf(jsontext.Value(message.Params)); err != nil || string(same) != string(message.Params) || strings.Contains(string(same), "\x1b") {
					t.Errorf("the form passes as %s, and then as %s, %v", message.Params, same, err)
				}
			} else if m := message.Method; m != "ping" && m != "roots/list" && m != "refused" || message.Params != nil || !message.IsCall() {
				t.Errorf("%s passes", m)
			}
		case *jsonrpc.Response:
			if message.ID != one {
				t.Errorf("an answer to %v passes", message.ID)
			}
			again, err := frames.received(raw)
			if again != nil || err != nil {
				t.Errorf("the second answer: %v, %v", again, err)
			}
			if message.Error != nil {
				return
			}
			var known map[string]json.RawMessage
			must(t, json.Unmarshal(message.Result, &known))
			for name := range known {
				if results["tools/call"].members[name] == nil {
					t.Errorf("%q passes", name)
				}
			}
			if same, err := results["tools/call"].rebuild(jsontext.Value(message.Result)); err != nil || string(same) != string(message.Result) {
				t.Errorf("rebuilt again: %s, %v", same, err)
			}
		}
	})
}

// TestErrorsAreWhole: what an error says is handed on whole, since a part of a secret would not be known for one, or not at all.
func TestErrorsAreWhole(t *testing.T) {
	t.Parallel()
	m := manager(t, pinned("refuses"))
	for padding := 400; padding <= maxError+100; padding += 1 + padding/500*1000 {
		arguments := `{"a":"` + strings.Repeat("x", padding) + `secret"}`
		_, err := m.Call(t.Context(), "agent", "refuses", "echo", []byte(arguments), sure)
		want := "it answered with the error -32000: " + arguments
		if len(arguments) > maxError {
			want = "it answered with the error -32000: a message of more than 64 KiB, which is not passed on"
		}
		var told *Error
		if !errors.As(err, &told) || told.Text != want {
			t.Fatalf("with %d characters before the secret: %v", padding, err)
		}
	}
}
