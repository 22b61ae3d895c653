package httpfront

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	// said is what a frame of the stateless era says about itself when it is forwarded.
	said = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
)

// about returns the headers of a modern request.
func about(method string, name ...string) headers {
	return headers{protocol: []string{modernEra}, method: []string{method}, name: name}
}

func modern(method, members string) string {
	if members != "" {
		members += ","
	}
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + members + modernMeta + `}}`
}

func TestStatelessFramesAreRefused(t *testing.T) {
	call := modern("tools/call", `"name":"gpu_status"`)
	meta := func(with string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{` + with + `}}}`
	}
	version := `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	capable := `"io.modelcontextprotocol/clientCapabilities":{}`
	for _, c := range []struct {
		name, in    string
		h           headers
		status, rpc int
	}{
		{"meta without header", call, headers{method: []string{"tools/call"}, name: []string{"gpu_status"}}, 400, -32020},
		{"header without meta", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, about("tools/list"), 400, -32602},
		{"header without meta, in a method of the other era", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, about("ping"), 400, -32602},
		{"another revision in the header", call, headers{protocol: []string{"2025-11-25"}, method: []string{"tools/call"}, name: []string{"gpu_status"}}, 400, -32020},
		{"two revisions in the header", call, headers{protocol: []string{modernEra, modernEra}, method: []string{"tools/call"}, name: []string{"gpu_status"}}, 400, -32020},
		{"a later revision in both", strings.Replace(call, modernEra, "2099-01-01", 1), headers{protocol: []string{"2099-01-01"}, method: []string{"tools/call"}, name: []string{"gpu_status"}}, 400, -32022},
		{"an older revision in both", strings.Replace(call, modernEra, "2025-11-25", 1), headers{protocol: []string{"2025-11-25"}, method: []string{"tools/call"}, name: []string{"gpu_status"}}, 400, -32022},
		{"a later revision in the header alone", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers{protocol: []string{"2099-01-01"}, method: []string{"tools/list"}}, 400, -32602},
		{"the revision behind an encoding", call, headers{protocol: []string{"=?base64?MjAyNi0wNy0yOA==?="}, method: []string{"tools/call"}, name: []string{"gpu_status"}}, 400, -32020},
		{"a later one behind an encoding", strings.Replace(call, modernEra, "2099-01-01", 1), headers{protocol: []string{"=?base64?MjA5OS0wMS0wMQ==?="}, method: []string{"tools/call"}, name: []string{"gpu_status"}}, 400, -32020},
		{"a method behind an encoding", call, headers{protocol: []string{modernEra}, method: []string{"=?base64?dG9vbHMvY2FsbA==?="}, name: []string{"gpu_status"}}, 400, -32020},
		{"no Mcp-Method", call, headers{protocol: []string{modernEra}, name: []string{"gpu_status"}}, 400, -32020},
		{"another Mcp-Method", call, about("tools/list", "gpu_status"), 400, -32020},
		{"Mcp-Method in another case", call, about("Tools/Call", "gpu_status"), 400, -32020},
		{"two Mcp-Methods", call, headers{protocol: []string{modernEra}, method: []string{"tools/call", "tools/call"}, name: []string{"gpu_status"}}, 400, -32020},
		{"no Mcp-Name", call, about("tools/call"), 400, -32020},
		{"another Mcp-Name", call, about("tools/call", "start_service"), 400, -32020},
		{"two Mcp-Names", call, about("tools/call", "gpu_status", "start_service"), 400, -32020},
		{"another Mcp-Name behind an encoding", call, about("tools/call", "=?base64?c3RhcnRfc2VydmljZQ==?="), 400, -32020},
		{"Mcp-Name of a broken encoding", call, about("tools/call", "=?base64?%?="), 400, -32020},
		{"another Mcp-Name of a resource", modern("resources/read", `"uri":"durward://help"`), about("resources/read", "durward://gpu"), 400, -32020},
		{"no Mcp-Name of a task", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t","_meta":{` + version + `,"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`, about("tasks/get"), 400, -32020},
		{"a task without the extension", modern("tasks/get", `"taskId":"t"`), about("tasks/get", "t"), 400, -32021},
		{"no capabilities", meta(version), about("tools/list"), 400, -32602},
		{"capabilities of a wrong type", meta(version + `,"io.modelcontextprotocol/clientCapabilities":[]`), about("tools/list"), 400, -32602},
		{"null capabilities", meta(version + `,"io.modelcontextprotocol/clientCapabilities":null`), about("tools/list"), 400, -32602},
		{"revision of a wrong type", meta(`"io.modelcontextprotocol/protocolVersion":20260728,` + capable), about("tools/list"), 400, -32602},
		{"empty revision", meta(`"io.modelcontextprotocol/protocolVersion":"",` + capable), about("tools/list"), 400, -32602},
		{"unknown method", modern("tools/describe", ""), about("tools/describe"), 404, -32601},
		{"initialize", modern("initialize", ""), about("initialize"), 404, -32601},
		{"ping", modern("ping", ""), about("ping"), 404, -32601},
		{"resources/subscribe", modern("resources/subscribe", `"uri":"durward://gpu"`), about("resources/subscribe"), 404, -32601},
		{"roots", modern("roots/list", ""), about("roots/list"), 404, -32601},
		{"logging", modern("logging/setLevel", `"level":"debug"`), about("logging/setLevel"), 404, -32601},
		{"a batch", "[" + call + "]", about("tools/call", "gpu_status"), 400, -32600},
		{"a state that nobody made", modern("tools/call", `"name":"gpu_status","requestState":"x"`), about("tools/call", "gpu_status"), 400, -32602},
		{"the empty state", modern("tools/call", `"name":"gpu_status","requestState":""`), about("tools/call", "gpu_status"), 400, -32602},
		{"responses of a wrong type", modern("tools/call", `"name":"gpu_status","inputResponses":[]`), about("tools/call", "gpu_status"), 400, -32602},
		{"an instance that is none", strings.Replace(call, capable, capable+`,"durward/instance":"0123"`, 1), about("tools/call", "gpu_status"), 400, -32602},
		{"trace context of a wrong type", strings.Replace(call, capable, capable+`,"traceparent":1`, 1), about("tools/call", "gpu_status"), 400, -32602},
		{"a cursor", modern("resources/list", `"cursor":"x"`), about("resources/list"), 400, -32602},
		{"65 subscriptions", modern("subscriptions/listen", `"notifications":{"resourceSubscriptions":["`+strings.Repeat(`durward://gpu","`, 64)+`x"]}`), about("subscriptions/listen"), 400, -32602},
		{"the same subscription twice", modern("subscriptions/listen", `"notifications":{"resourceSubscriptions":["durward://gpu","durward://services","durward:\/\/gpu"]}`), about("subscriptions/listen"), 400, -32602},
		{"subscriptions of a wrong type", modern("subscriptions/listen", `"notifications":{"resourceSubscriptions":"durward://gpu"}`), about("subscriptions/listen"), 400, -32602},
		{"a completion of nothing", modern("completion/complete", `"argument":{"name":"a","value":""}`), about("completion/complete"), 400, -32602},
		{"a completion of both", modern("completion/complete", `"ref":{"type":"ref/resource","uri":"durward://x","name":"x"},"argument":{"name":"a","value":""}`), about("completion/complete"), 400, -32602},
		{"a completion that is too long", modern("completion/complete", `"ref":{"type":"ref/resource","uri":"durward://x"},"argument":{"name":"a","value":"`+strings.Repeat("é", 2049)+`"}`), about("completion/complete"), 400, -32602},
		{"a URI that is too long", modern("resources/read", `"uri":"durward://`+strings.Repeat("a", 2048)+`"`), about("resources/read", "x"), 400, -32602},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, bad := decoder{methods()}.decode([]byte(c.in), c.h)
			if bad == nil {
				t.Fatalf("forwards %s", f.Body)
			}
			if bad.status() != c.status || bad.rpc != c.rpc || bad.message == "" {
				t.Errorf("%d %d %q, want %d %d", bad.status(), bad.rpc, bad.message, c.status, c.rpc)
			}
			if c.rpc == rpcUnsupportedVersion {
				if diff := cmp.Diff([]string{"2026-07-28", "2025-11-25", "2025-06-18"}, bad.data["supported"]); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestEra(t *testing.T) {
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2026-07-28"}}`
	with := func(h headers, session bool) headers {
		h.session = session
		return h
	}
	for _, c := range []struct {
		name, in string
		h        headers
		era      Era
	}{
		{"nothing said", list, headers{}, Stateful},
		{"an older revision", list, headers{protocol: []string{"2025-11-25"}}, Stateful},
		{"the body says so", modern("tools/list", ""), about("tools/list"), Stateless},
		{"the body says so, in a session", modern("tools/list", ""), with(about("tools/list"), true), Stateless},
		{"a handshake under a later header", hello, about("initialize"), Stateful},
		{"a notification under a later header", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, about("notifications/cancelled"), Stateless},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, bad := decoder{methods()}.decode([]byte(c.in), c.h)
			if bad != nil {
				t.Fatal(bad)
			}
			if f.Era != c.era {
				t.Errorf("%v, want %v", f.Era, c.era)
			}
		})
	}
	// A session whose client claims the later era in its header, and nowhere else, stays what it is: the revision is refused.
	if _, bad := (decoder{methods()}).decode([]byte(list), with(about("tools/list"), true)); bad == nil || bad.era != Stateful || bad.rpc != rpcUnsupportedVersion {
		t.Errorf("%+v", bad)
	}
}

func TestStatelessFramesAreRebuilt(t *testing.T) {
	for name, c := range map[string]struct {
		in, params string
		h          headers
	}{
		"discover": {modern("server/discover", `"x":1`), said, about("server/discover")},
		"call": {
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28","traceparent":"no",` +
				`"io.modelcontextprotocol/clientInfo":{"name":"n","version":"v","title":"t"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"url":{}}},"x/y":{}},` +
				`"arguments":{ "b" : 1 },"name":"gpu_\u0073tatus","inputResponses":{"approve":{"action":"accept"}}}}`,
			`"name":"gpu_status","arguments":{ "b" : 1 },"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":"p"}`,
			about("tools/call", "gpu_status"),
		},
		"a name behind an encoding": {modern("tools/call", `"name":"gpu_status"`), `"name":"gpu_status","arguments":{},` + said, about("tools/call", "=?base64?Z3B1X3N0YXR1cw==?=")},
		"resource":                  {modern("resources/read", `"uri":"durward:\/\/services/a"`), `"uri":"durward://services/a",` + said, about("resources/read", "durward://services/a")},
		"listen": {modern("subscriptions/listen", `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["durward://gpu","durward://services"]}`),
			`"notifications":{"resourceSubscriptions":["durward://gpu","durward://services"],"toolsListChanged":true,"promptsListChanged":false,"resourcesListChanged":false},` + said,
			about("subscriptions/listen")},
		"completion": {modern("completion/complete", `"context":{"arguments":{"z":"1","a":"2"}},"argument":{"value":"d","name":"service_id"},"ref":{"uri":"durward://services/{service_id}","type":"ref/resource"}`),
			`"ref":{"type":"ref/resource","uri":"durward://services/{service_id}"},"argument":{"name":"service_id","value":"d"},"context":{"arguments":{"a":"2","z":"1"}},` + said,
			about("completion/complete")},
	} {
		t.Run(name, func(t *testing.T) {
			f, bad := decoder{methods()}.decode([]byte(c.in), c.h)
			if bad != nil {
				t.Fatal(bad)
			}
			want := `{"jsonrpc":"2.0","method":"` + f.Method + `","id":1,"params":{` + c.params + `}}`
			if diff := cmp.Diff(want, string(f.Body)); diff != "" {
				t.Errorf("forwarded body (-want +got):\n%s", diff)
			}
		})
	}
}

// What a client declares with a request is read from that request, and a trace context only if it is one.
func TestWhatARequestSaysOfItsClient(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	decode := func(meta string) *Frame {
		t.Helper()
		f, bad := decoder{methods()}.decode([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+meta+`}}}`), about("tools/list"))
		if bad != nil {
			t.Fatal(bad)
		}
		return f
	}
	f := decode(`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{"x":1}}},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"n","version":"v"},"durward/instance":"0123456789abcdef0123456789abcdef",` +
		`"traceparent":"` + parent + `","tracestate":"congo=t61rcWkgMzE","baggage":"who=me"`)
	if !f.Capabilities.Tasks || f.ClientName != "n" || f.ClientVersion != "v" || f.Instance != "0123456789abcdef0123456789abcdef" ||
		f.TraceParent != parent {
		t.Errorf("%+v", f)
	}
	if strings.Contains(string(f.Body), "congo") || strings.Contains(string(f.Body), "who=me") || strings.Contains(string(f.Body), "0af76519") {
		t.Errorf("forwards %s", f.Body)
	}
	for name, trace := range map[string]string{
		"no hex":            `"traceparent":"00-zz` + parent[5:] + `"`,
		"capitals":          `"traceparent":"` + strings.ToUpper(parent) + `"`,
		"the zero trace":    `"traceparent":"00-` + strings.Repeat("0", 32) + parent[35:] + `"`,
		"the zero span":     `"traceparent":"` + parent[:36] + strings.Repeat("0", 16) + `-01"`,
		"another version":   `"traceparent":"ff` + parent[2:] + `"`,
		"more behind it":    `"traceparent":"` + parent + `-x"`,
		"a new line behind": `"traceparent":"` + parent + `\n"`,
		"state alone":       `"tracestate":"congo=t61rcWkgMzE"`,
	} {
		if f := decode(`"io.modelcontextprotocol/clientCapabilities":{},` + trace); f.TraceParent != "" || f.Capabilities.Tasks {
			t.Errorf("%s: %q", name, f.TraceParent)
		}
	}
}

// Keys that another reader would take for the protocol's are refused, wherever keys are not a closed list and where they are.
func TestLookalikes(t *testing.T) {
	insert := func(what string) func(string) string {
		return func(known string) string { return known[:2] + what + known[2:] }
	}
	disguises := map[string]func(known string) string{
		"capitals":          strings.ToUpper,
		"one capital":       func(known string) string { return known[:1] + strings.ToUpper(known[1:2]) + known[2:] },
		"NUL behind":        func(known string) string { return known + `\u0000` },
		"NUL before":        func(known string) string { return `\u0000` + known },
		"NUL inside":        insert(`\u0000`),
		"space behind":      func(known string) string { return known + " " },
		"tab inside":        insert(`\t`),
		"zero width":        insert(`\u200b`),
		"a soft hyphen":     insert(`\u00ad`),
		"right to left":     func(known string) string { return `\u202e` + known },
		"an accent":         func(known string) string { return known + `\u0301` },
		"full width":        func(known string) string { return strings.NewReplacer("e", "ｅ", "a", "ａ").Replace(known) },
		"the Kelvin sign":   func(known string) string { return strings.ReplaceAll(known, "k", "\u212a") },
		"the long s":        func(known string) string { return strings.ReplaceAll(known, "s", "ſ") },
		"letters in circle": func(known string) string { return strings.ReplaceAll(known, "e", "ⓔ") },
	}
	for where, place := range map[string]struct{ known, body string }{
		"envelope":    {"method", `{"jsonrpc":"2.0","id":1,"method":"ping",KEY:"tools/list"}`},
		"params":      {"_meta", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{KEY:{}}}`},
		"a call":      {"name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status",KEY:"start_service"}}`},
		"_meta":       {"progressToken", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{KEY:1}}}`},
		"the proof":   {"durward/proof", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{KEY:1}}}`},
		"revision":    {"io.modelcontextprotocol/protocolVersion", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{KEY:"2026-07-28"}}}`},
		"a handshake": {"capabilities", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",KEY:{}}}`},
		"its client":  {"version", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"x",KEY:"y"}}}`},
		"a cancel":    {"requestId", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,KEY:2}}`},
	} {
		for how, disguise := range disguises {
			key := disguise(place.known)
			if key == place.known {
				continue // it has no such letter
			}
			body := strings.Replace(place.body, "KEY", `"`+key+`"`, 1)
			if f, bad := (decoder{methods()}).decode([]byte(body), headers{session: true}); bad == nil {
				t.Errorf("%s, %s: forwards %q", where, how, f.Body)
			}
		}
	}
	for length, taken := range map[int]bool{maxKey: true, maxKey + 1: false} {
		body := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"` + strings.Repeat("x", length) + `":1}}}`
		if _, bad := (decoder{methods()}).decode([]byte(body), headers{session: true}); (bad == nil) != taken {
			t.Errorf("a key of %d bytes: %v", length, bad)
		}
	}
	f, bad := decoder{methods()}.decode([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"x/progress":1,"token":2,"Traceparents":3}}}`), headers{session: true})
	if bad != nil || f.Body == nil {
		t.Errorf("members of others: %v", bad)
	}
}

func TestLongTextsAreRefused(t *testing.T) {
	frame := func(text string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":"` + text + `"}}}`
	}
	for name, c := range map[string]struct {
		text string
		fits bool
	}{
		"200,000 letters":            {strings.Repeat("a", 200_000), true},
		"200,001 letters":            {strings.Repeat("a", 200_001), false},
		"200,000 of two bytes":       {strings.Repeat("é", 200_000), true},
		"200,001 of two bytes":       {strings.Repeat("é", 200_001), false},
		"150,000 escapes":            {strings.Repeat(`\u0061`, 150_000), true},
		"quotes, escaped":            {strings.Repeat(`\"`, 200_000), true},
		"one quote too many":         {strings.Repeat(`\"`, 200_001), false},
		"two texts that fit alone":   {strings.Repeat("a", 150_000) + `","b":"` + strings.Repeat("a", 150_000), true},
		"a long one behind escapes":  {`\\","b":"` + strings.Repeat("a", 200_001), false},
		"a long key":                 {`","` + strings.Repeat("a", 200_001) + `":"`, false},
		"a long key behind a number": {`","c":1,"` + strings.Repeat("a", 200_001) + `":"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, bad := decoder{methods()}.decode([]byte(frame(c.text)), headers{session: true})
			if (bad == nil) != c.fits {
				t.Errorf("%v", bad)
			}
		})
	}
}

// What goes on with a frame is what it was compared with, and nothing that only the client knows about.
func TestForwardedHeaders(t *testing.T) {
	r, err := http.NewRequest(http.MethodPost, "http://localhost/mcp", nil)
	must(t, err)
	for _, h := range []string{"Authorization", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name", "Last-Event-Id", "X-Forwarded-For", "Cookie", "Traceparent", "Mcp-Param-Service"} {
		r.Header.Set(h, "sent")
	}
	r.Header.Set("Mcp-Protocol-Version", "2025-06-18")
	common := http.Header{"Authorization": {"sent"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	want := common.Clone()
	want["Mcp-Session-Id"], want["Mcp-Protocol-Version"] = []string{"sent"}, []string{"2025-06-18"}
	if diff := cmp.Diff(want, forwarded(r, &Frame{Method: "tools/call", Name: "gpu_status"})); diff != "" {
		t.Errorf("stateful (-want +got):\n%s", diff)
	}
	want = common.Clone()
	want["Mcp-Protocol-Version"], want["Mcp-Method"], want["Mcp-Name"] = []string{modernEra}, []string{"tools/call"}, []string{"gpu_status"}
	if diff := cmp.Diff(want, forwarded(r, &Frame{Era: Stateless, Method: "tools/call", Name: "gpu_status"})); diff != "" {
		t.Errorf("stateless (-want +got):\n%s", diff)
	}
}

func FuzzHeaders(f *testing.F) {
	for _, seed := range [][3]string{
		{"2026-07-28", "tools/call", "gpu_status"}, {"2025-11-25", "", ""}, {"2026-7-28", "tools/call", "=?base64?Z3B1X3N0YXR1cw==?="},
		{"9999-99-99", "Tools/Call", "gpu_status\x00"}, {"", "tools/call", "=?base64??="}, {"2026-07-28 ", "tools/call,tools/list", "gpu_status, x"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	body := []byte(modern("tools/call", `"name":"gpu_status"`))
	f.Fuzz(func(t *testing.T, protocol, method, name string) {
		h := headers{protocol: []string{protocol}, method: []string{method}, name: []string{name}}
		frame, bad := decoder{methods()}.decode(body, h)
		fits := protocol == modernEra && method == "tools/call" && plain(name) == "gpu_status"
		if (bad == nil) != fits {
			t.Fatalf("%q %q %q: %v", protocol, method, name, bad)
		}
		if bad == nil && (frame.Tool != "gpu_status" || frame.Era != Stateless) {
			t.Fatalf("%q %q %q: %+v", protocol, method, name, frame)
		}
		if bad != nil && strings.Contains(bad.message+strconv.Itoa(bad.rpc), "\x00") {
			t.Fatalf("%q", bad.message)
		}
	})
}

func FuzzBearer(f *testing.F) {
	for _, seed := range []string{"Bearer a", "bearer  a", "Basic a", "Bearer a b", "Bearer \x00", "Bearer " + strings.Repeat("a", 513), "Bearer", "Bearer é", "a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		token, ok := bearer(http.Header{"Authorization": {header}})
		if !ok {
			if token != "" {
				t.Fatalf("%q gives %q", header, token)
			}
			return
		}
		if len(token) == 0 || len(token) > maxToken || !strings.HasSuffix(header, " "+token) || !strings.EqualFold(header[:7], "Bearer ") {
			t.Fatalf("%q gives %q", header, token)
		}
		for _, c := range []byte(token) {
			if c <= ' ' || c > '~' {
				t.Fatalf("%q gives %q", header, token)
			}
		}
		if _, ok := bearer(http.Header{"Authorization": {header, header}}); ok {
			t.Fatal("two headers are taken")
		}
	})
}
