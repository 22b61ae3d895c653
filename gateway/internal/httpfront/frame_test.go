package httpfront

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/canonical"
)

func TestDecodeFrameRebuilds(t *testing.T) {
	for name, c := range map[string]struct{ in, body, tool string }{
		"ping":        {`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","method":"ping","id":1}`, ""},
		"initialized": {`{"jsonrpc":"2.0","method":"notifications/initialized","params":{"_meta":{}}}`, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
		"cancelled": {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a\u0022b","reason":"x","y":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a\u0022b"}}`, ""},
		"progress is not forwarded": {`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2}}`, "", ""},
		"an unknown notification":   {`{"jsonrpc":"2.0","method":"notifications/whatever"}`, "", ""},
		"call": {`{ "jsonrpc":"2.0", "id":"x", "method":"tools\/call", "params":{"_meta":{"progressToken":3,"other":{"a":1}},"name":"gpu_\u0073tatus","arguments":{ "b" : 1 }}}`,
			`{"jsonrpc":"2.0","method":"tools/call","id":"x","params":{"name":"gpu_status","arguments":{ "b" : 1 },"_meta":{"progressToken":3}}}`, "gpu_status"},
		"call without arguments": {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status"}}`,
			`{"jsonrpc":"2.0","method":"tools/call","id":1,"params":{"name":"gpu_status","arguments":{}}}`, "gpu_status"},
		"call with a hostile name": {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\",\"method\":\"b"}}`,
			`{"jsonrpc":"2.0","method":"tools/call","id":1,"params":{"name":"a\",\"method\":\"b","arguments":{}}}`, `a","method":"b`},
		"initialize": {`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":7},"clientInfo":{"name":"x\"y","version":"1"}}}`,
			`{"jsonrpc":"2.0","method":"initialize","id":0,"params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"client","version":"0"}}}`, ""},
		"initialize with a claim of another era": {`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2026-07-28\"","capabilities":{}}}`,
			`{"jsonrpc":"2.0","method":"initialize","id":0,"params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"client","version":"0"}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, bad := decoder{methods()}.decode([]byte(c.in), headers{session: true})
			if bad != nil {
				t.Fatal(bad)
			}
			if diff := cmp.Diff(c.body, string(f.Body)); diff != "" {
				t.Errorf("forwarded body (-want +got):\n%s", diff)
			}
			if f.Tool != c.tool {
				t.Errorf("tool %q, want %q", f.Tool, c.tool)
			}
		})
	}
}

// loosely returns the headers that a client would send with a message, as a reader that is not ours understands it.
func loosely(in []byte) headers {
	var m struct {
		Method string `json:"method"`
		Params struct {
			Name string `json:"name"`
			URI  string `json:"uri"`
			Task string `json:"taskId"`
		} `json:"params"`
	}
	if json.Unmarshal(in, &m) != nil {
		return about("")
	}
	return about(m.Method, m.Params.Name+m.Params.URI+m.Params.Task)
}

// What is forwarded is strict JSON that means what was decided on, and is its own rebuilt form: in the era of sessions, and in
// the stateless one with headers that fit.
func FuzzDecodeFrame(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":"a\u0000","method":"tools/call","params":{"name":"x","arguments":{"a":[1,2]},"_meta":{"progressToken":"t"}}}`,
		`{"jsonrpc":"2.0","id":-1,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"n","version":"v"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","n\u0061me":"y"}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"durward/proof":{"purpose":"PURPOSE_CALL","counter":"1","signature":"AA=="}}}}`,
		modern("server/discover", ""),
		modern("tools/call", `"name":"x","arguments":{"a":1},"inputResponses":{"a":{}}`),
		modern("tools/call", `"name":"x","requestState":""`),
		modern("resources/read", `"uri":"durward://services/a%2e"`),
		modern("subscriptions/listen", `"notifications":{"resourceSubscriptions":["durward://gpu"]}`),
		modern("completion/complete", `"ref":{"type":"ref/resource","uri":"durward://services/{service_id}"},"argument":{"name":"service_id","value":"d"},"context":{"arguments":{"b":"c"}}`),
	} {
		f.Add([]byte(seed), strings.Contains(seed, modernEra))
	}
	f.Fuzz(func(t *testing.T, in []byte, stateless bool) {
		h := headers{session: true}
		if stateless {
			h = loosely(in)
		}
		frame, bad := decoder{methods()}.decode(in, h)
		if bad != nil {
			if bad.message == "" || bad.rpc == 0 || bad.status() < 200 {
				t.Fatalf("a refusal without words: %+v", bad)
			}
			return
		}
		if frame.Body == nil {
			return
		}
		if err := canonical.Strict(frame.Body); err != nil {
			t.Fatalf("forwards %q: %v", frame.Body, err)
		}
		var said struct {
			Method string          `json:"method"`
			ID     json.RawMessage `json:"id"`
			Params struct {
				Name string `json:"name"`
				URI  string `json:"uri"`
				Task string `json:"taskId"`
				Meta struct {
					Protocol string `json:"io.modelcontextprotocol/protocolVersion"`
				} `json:"_meta"`
			} `json:"params"`
		}
		if err := json.Unmarshal(frame.Body, &said); err != nil {
			t.Fatalf("forwards %q: %v", frame.Body, err)
		}
		if said.Method != frame.Method || said.Params.Name+said.Params.URI+said.Params.Task != frame.Name || !bytes.Equal(said.ID, frame.ID) ||
			(said.Params.Meta.Protocol == modernEra) != (frame.Era == Stateless) {
			t.Fatalf("decided on %v %q %q, forwards %q", frame.Era, frame.Method, frame.Name, frame.Body)
		}
		if frame.Tool != "" && frame.Tool != frame.Name || (frame.Tool != "") != (frame.Method == methodCallTool) {
			t.Fatalf("the tool is %q, and the message is about %q", frame.Tool, frame.Name)
		}
		again, bad := decoder{methods()}.decode(frame.Body, h)
		if bad != nil {
			if frame.Method == "tasks/get" || frame.Method == "tasks/update" || frame.Method == "tasks/cancel" {
				return // the capability that the front has seen goes no further
			}
			t.Fatalf("refuses its own %q: %s", frame.Body, bad.message)
		}
		if !bytes.Equal(again.Body, frame.Body) {
			t.Fatalf("rebuilds %q as %q", frame.Body, again.Body)
		}
	})
}
