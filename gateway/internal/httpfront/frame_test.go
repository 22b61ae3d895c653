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

// What is no message of the protocol is refused before anything looks at what it asks for, and the answer says what is wrong.
func TestFramesAreRefused(t *testing.T) {
	request := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	}
	meta := func(members string) string { return request("tools/list", `{"_meta":{`+members+`}}`) }
	long := func(n int) string { return strings.Repeat("a", n) }
	deep := strings.Repeat("[", 60) + strings.Repeat("]", 60)
	complete := func(context string) string {
		return request("completion/complete", `{"ref":{"type":"ref/resource","uri":"durward://x"},"argument":{"name":"a","value":""},"context":{"arguments":`+context+`}}`)
	}
	for name, c := range map[string]struct{ in, want string }{
		"too deep":                    {request("tools/call", `{"name":"gpu_status","arguments":{"a":`+deep+`}}`), "50 levels"},
		"a batch":                     {`[` + request("ping", `{}`) + `]`, "Batches"},
		"an id of another kind":       {`{"jsonrpc":"2.0","id":{},"method":"ping"}`, "The id must be"},
		"an id that is too long":      {`{"jsonrpc":"2.0","id":"` + long(65) + `","method":"ping"}`, "The id must be"},
		"no version":                  {`{"id":1,"method":"ping"}`, "not a JSON-RPC 2.0"},
		"another version":             {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, "not a JSON-RPC 2.0"},
		"an answer":                   {`{"jsonrpc":"2.0","id":1,"result":{}}`, "takes no answers"},
		"an error":                    {`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`, "takes no answers"},
		"nothing":                     {`{"jsonrpc":"2.0","id":1}`, "not a JSON-RPC 2.0"},
		"a request with an answer":    {`{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, "not a JSON-RPC 2.0"},
		"params that are a list":      {request("ping", `[]`), "must be a JSON object"},
		"params that are nothing":     {request("tools/list", `null`), "must be a JSON object"},
		"nothing, of no method":       {request("no/such", `null`), "must be a JSON object"},
		"a request without an id":     {`{"jsonrpc":"2.0","method":"tools/list"}`, "needs an id"},
		"a notification with one":     {`{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}`, "needs an id"},
		"an empty revision":           {meta(`"io.modelcontextprotocol/protocolVersion":""`), "_meta member"},
		"a revision that is too long": {meta(`"io.modelcontextprotocol/protocolVersion":"` + long(200) + `"`), "_meta member"},
		"a progress token, an object": {meta(`"progressToken":{}`), "progressToken"},
		"an extension that is none":   {meta(`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"` + extensionTasks + `":7}}`), "_meta member"},
		"a proof that is none":        {meta(`"durward/proof":7`), "durward/proof"},
		"a proof that is too long":    {meta(`"durward/proof":{"counter":"1"` + strings.Repeat(" ", maxProof) + `}`), "durward/proof"},
		"no revision to initialize":   {request("initialize", `{"capabilities":{}}`), "initialize request"},
		"a tool without a name":       {request("tools/call", `{"name":""}`), "name must have"},
		"a tool's name, too long":     {request("tools/call", `{"name":"`+long(129)+`"}`), "name must have"},
		"answers in the older era":    {request("tools/call", `{"name":"gpu_status","inputResponses":{}}`), "no inputResponses"},
		"a cancellation of nothing":   {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`, "needs the id"},
		"a prompt with a number":      {request("prompts/get", `{"name":"switch","arguments":{"mode_id":7}}`), "prompts/get"},
		"a prompt with more":          {request("prompts/get", `{"name":"switch","more":1}`), "prompts/get"},
		"a prompt's name, too long":   {request("prompts/get", `{"name":"`+long(129)+`"}`), "prompts/get"},
		"a prompt's text, too long":   {request("prompts/get", `{"name":"switch","arguments":{"mode_id":"`+long(2049)+`"}}`), "prompts/get"},
		"a context's name, too long":  {complete(`{"` + long(129) + `":"x"}`), "completion"},
		"a context's value, too long": {complete(`{"a":"` + long(2049) + `"}`), "completion"},
	} {
		t.Run(name, func(t *testing.T) {
			f, bad := decoder{methods()}.decode([]byte(c.in), headers{session: true})
			if bad == nil {
				t.Fatalf("forwards %s", f.Body)
			}
			if !strings.Contains(bad.message, c.want) {
				t.Errorf("%q, want %q", bad.message, c.want)
			}
		})
	}
	t.Run("a task without an id", func(t *testing.T) {
		params := `{"taskId":"","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"` + extensionTasks + `":{}}}}}`
		if f, bad := (decoder{methods()}).decode([]byte(request("tasks/get", params)), about("tasks/get", "")); bad == nil || !strings.Contains(bad.message, "id of a task") {
			t.Errorf("%v, %v", f, bad)
		}
	})
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
