package golden

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// tellAgents tells what an MCP client meets: what is offered, in every revision, and each refusal.
func tellAgents(t *testing.T, s *set) {
	w := newWorld(t, s, harness.Options{Catalog: harness.ModesCatalog, HoldS: 1})
	defer w.done()
	const slow = "{per_s: 0.1, burst: 1}"
	w.WriteFile("config/gateway.yaml", strings.Replace(w.ReadFile("config/gateway.yaml"), "limits: {",
		"limits: {clients: {busy: {tools: "+slow+", reads: "+slow+", lists: "+slow+", resources: "+slow+"}}, ", 1))
	w.StartAll()
	busy := w.AddClient("busy", "--tier", "DESTRUCTIVE")
	token := w.AddClient("agent", "--tier", "DESTRUCTIVE")
	w.known.IsA(token, "TOKEN")

	for _, revision := range []string{"2025-03-26", "2025-06-18", "2025-11-25", "2099-01-01"} {
		f := w.file("mcp/initialize-" + revision + ".txt")
		f.request("initialize, protocol "+revision, harness.RawRequest{Token: token, Body: harness.Handshake(revision)})
	}
	session := w.ConnectRaw(token)
	method := func(name, params string) harness.RawRequest {
		return session.Request(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, name, params))
	}
	f := w.file("mcp/discover-" + harness.StatelessRevision + ".txt")
	f.request("server/discover", harness.Stateless(token, "server/discover", "", "{}"))
	f.request("ping", harness.Stateless(token, "ping", "", "{}"))

	tools := offered(t, w, session.Send(method("tools/list", "{}").Body), "tools", "name")
	f = w.file("mcp/tools.txt")
	f.says("The tools, each whole in a file of its own.")
	for _, tool := range tools {
		fmt.Fprintln(&f.text, tool.name)
		w.file("mcp/tool-" + tool.name + ".txt").json(tool.raw)
	}
	for _, same := range offered(t, w, mustRaw(w, harness.Stateless(token, "tools/list", "", "{}")), "tools", "name") {
		if !sameTool(tools, same) {
			t.Errorf("the stateless revision lists another %s", same.name)
		}
	}

	f = w.file("mcp/resources.txt")
	f.request("resources/list", method("resources/list", "{}"))
	f.request("resources/templates/list", method("resources/templates/list", "{}"))
	f.request("completion/complete", method("completion/complete", `{"ref":{"type":"ref/resource","uri":"durward://services/{id}"},"argument":{"name":"id","value":"d"}}`))
	f = w.file("mcp/prompts.txt")
	f.request("prompts/list", method("prompts/list", "{}"))
	f.request("prompts/get look", method("prompts/get", `{"name":"look"}`))
	f.request("prompts/get switch", method("prompts/get", `{"name":"switch","arguments":{"mode_id":"night"}}`))
	f.request("prompts/get wait_for_approval", method("prompts/get", `{"name":"wait_for_approval","arguments":{"operation_id":"`+strings.Repeat("0", 32)+`"}}`))
	f.request("prompts/get switch, without a mode", method("prompts/get", `{"name":"switch"}`))
	f.request("prompts/get, of one that is not there", method("prompts/get", `{"name":"no-such"}`))
	for _, resource := range offered(t, w, session.Send(method("resources/list", "{}").Body), "resources", "uri") {
		f := w.file("mcp/resource-" + fileOf(resource.name) + ".txt")
		f.request("resources/read "+resource.name, method("resources/read", fmt.Sprintf(`{"uri":%q}`, resource.name)))
	}
	for _, template := range offered(t, w, session.Send(method("resources/templates/list", "{}").Body), "resourceTemplates", "uriTemplate") {
		f := w.file("mcp/template-" + fileOf(template.name) + ".txt")
		base, _, _ := strings.Cut(template.name, "{")
		for _, id := range []string{"demo-chat", "night", strings.ReplaceAll(harness.DemoModel, "/", "%2F"), "no-such"} {
			for _, format := range []string{"", "?format=json"} {
				uri := base + id + format
				f.request("resources/read "+uri, method("resources/read", fmt.Sprintf(`{"uri":%q}`, uri)))
			}
		}
	}
	f = w.file("mcp/resource-refusals.txt")
	for _, uri := range []string{"durward://no-such", "file:///etc/passwd", ""} {
		f.request("resources/read "+uri, method("resources/read", fmt.Sprintf(`{"uri":%q}`, uri)))
	}

	var plan struct {
		Digest string `json:"plan_digest"`
	}
	w.DurwardJSON(&plan, "simulate", "night")
	reads := map[string][]string{
		"gpu_status": {"{}"}, "list_models": {"{}"}, "list_modes": {"{}"}, "list_services": {"{}"}, "security_config": {"{}"},
		"tokenize":     {`{}`, `{"text":"Ask maria.gonzalez@example.org, not 127.0.0.1, with password=hunter2-hunter2."}`},
		"mode_info":    {`{"mode_id":"night"}`, `{"mode_id":"nigt"}`},
		"model_info":   {`{"model_id":"` + harness.DemoModel + `"}`, `{"model_id":"no-such"}`},
		"service_info": {`{"service_id":"demo-chat"}`, `{"service_id":"demo-cht"}`},
		"service_logs": {`{"service_id":"demo-chat"}`},
		"simulate_mode": {
			`{"mode_id":"night"}`, `{"start":["demo-chat"]}`, `{"mode_id":"no-such"}`, `{"start":["demo-chat"],"stop":["demo-chat"]}`,
		},
		"start_service": {
			`{}`, `{"service_id":"--force"}`, `{"service_id":7}`, `{"service_id":"demo-chat","force":true}`, `{"service_id":"demo-cht"}`, `{"service_id":"demo-chat"}`,
		},
		"stop_service": {`{"service_id":"no-such"}`, `{"service_id":"demo-chat"}`}, "sleep_service": {`{"service_id":"demo-chat"}`}, "wake_service": {`{"service_id":"demo-sleepy"}`},
		"switch_mode":        {`{"mode_id":"night"}`, `{"mode_id":"night","plan_digest":"` + strings.Repeat("0", 64) + `"}`, `{"mode_id":"night","plan_digest":"` + plan.Digest + `"}`},
		"withdraw_operation": {`{}`, `{"operation_id":"` + strings.Repeat("0", 32) + `"}`},
		"wait_operation":     {`{}`, `{"operation_id":"nonsense"}`, `{"operation_id":"` + strings.Repeat("0", 32) + `"}`},
	}
	for _, tool := range tools {
		calls, known := reads[tool.name]
		if !known {
			t.Errorf("no golden calls %s", tool.name)
		}
		f := w.file("mcp/call-" + tool.name + ".txt")
		for _, arguments := range calls {
			f.request(tool.name+" "+arguments, session.Call(tool.name, arguments))
		}
	}
	w.known.IsA(strings.Repeat("0", 64), "ZERO_DIGEST")
	f = w.file("mcp/stateless-calls.txt")
	f.says("The stateless revision answers tool calls in the same envelope.")
	f.request("gpu_status {}", harness.StatelessCall(token, "gpu_status", "{}"))
	f.request(`start_service {"service_id":"demo-cht"}`, harness.StatelessCall(token, "start_service", `{"service_id":"demo-cht"}`))

	tellProtocolRefusals(w, token, session, method)
	tellAway(w, busy)
}

func tellProtocolRefusals(w *world, token string, session *harness.RawSession, method func(name, params string) harness.RawRequest) {
	f := w.file("refusals/protocol.txt")
	f.says("What is no good request is refused before anything is decided.")
	f.request("a tool that is not there", session.Call("no_such_tool", "{}"))
	f.request("a tool name with a typing mistake", session.Call("start_servce", `{"service_id":"demo-chat"}`))
	f.request("a method that is not there", method("no/such", "{}"))
	f.request("no JSON", session.Request([]byte("{")))
	f.request("a batch", session.Request([]byte(`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`)))
	f.request("a member twice", session.Request([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"gpu_status","name":"gpu_status","arguments":{}}}`)))
	f.request("too large", session.Request([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"gpu_status","arguments":{"x":"`+strings.Repeat("a", 2<<20)+`"}}}`)))
	f.request("another content type", session.Request([]byte(`{}`)).With("Content-Type", "text/plain"))
	f.request("nothing is accepted", session.Request([]byte(`{}`)).With("Accept", "text/html"))
	f.request("a session that is not there", session.Call("gpu_status", "{}").With("Mcp-Session-Id", "no-such-session"))
	f.request("another revision than the session's", session.Call("gpu_status", "{}").With("Mcp-Protocol-Version", "1999-01-01"))
	f.request("no token", harness.RawRequest{Body: harness.Handshake(harness.SessionRevision)})
	f.request("a wrong token", harness.RawRequest{Token: "durward_nonsense", Body: harness.Handshake(harness.SessionRevision)})
	f.request("another origin", session.Call("gpu_status", "{}").With("Origin", "https://evil.example"))
	host := session.Call("gpu_status", "{}")
	host.Host = "evil.example"
	f.request("another host", host)
	put := session.Request(nil)
	put.Method = "PUT"
	f.request("PUT", put)
	f.request("the stateless revision, headers and body apart", harness.StatelessCall(token, "gpu_status", "{}").With("Mcp-Name", "start_service"))
	f.request("the stateless revision, no method in the headers", harness.StatelessCall(token, "gpu_status", "{}").With("Mcp-Method", ""))

	f = w.file("refusals/client.txt")
	f.says("What a client may not do, and what an operator took from it.")
	reader := w.ConnectRaw(w.AddClient("reader", "--tier", "READ"))
	f.request("start_service by a client that may look", reader.Call("start_service", `{"service_id":"demo-chat"}`))
	w.AddKeyBound("signer")
	key := strings.TrimSpace(w.ReadFile("clients/signer/token"))
	f.request("a key-bound client without its key", harness.RawRequest{Token: key, Body: harness.Handshake(harness.SessionRevision)})
	revoked := w.AddClient("gone")
	gone := w.ConnectRaw(revoked)
	w.Durward("client", "revoke", "gone", "--yes")
	harness.Eventually(w.t, "the client is out", func() error {
		if a := mustRaw(w, harness.RawRequest{Token: revoked, Body: harness.Handshake(harness.SessionRevision)}); a.HTTPStatus != 401 {
			return fmt.Errorf("status %d", a.HTTPStatus)
		}
		return nil
	})
	f.request("a revoked client", harness.RawRequest{Token: revoked, Body: harness.Handshake(harness.SessionRevision)})
	f.request("a session of a revoked client", gone.Call("gpu_status", "{}"))

	f = w.file("refusals/pending.txt")
	f.says("Too much waits for a person.")
	// Each request has another reason, so that none joins another.
	for i := range 100 {
		a := mustRaw(w, session.Call("start_service", fmt.Sprintf(`{"service_id":"demo-sleepy","reason":"reason %d"}`, i)))
		if strings.Contains(a.Body, "TOO_MANY_PENDING") {
			f.request("one request too many", session.Call("start_service", `{"service_id":"demo-sleepy","reason":"one more"}`))
			break
		}
		if i > 3 {
			break
		}
	}
}

// tellAway tells what agents meet while a process is away, and when they ask too often.
func tellAway(w *world, busy string) {
	f := w.file("refusals/rate-limited.txt")
	f.says("A client that may do one thing of each kind in ten seconds does a second one.")
	for _, c := range []struct{ method, name, params string }{
		{"tools/call", "start_service", `{"name":"start_service","arguments":{"service_id":"no-such"}}`},
		{"tools/call", "gpu_status", `{"name":"gpu_status","arguments":{}}`},
		{"tools/list", "", "{}"},
		{"resources/read", "durward://config", `{"uri":"durward://config"}`},
	} {
		r := harness.Stateless(busy, c.method, c.name, c.params)
		f.requestUntil(c.method+" "+c.name+", a second time", r, func(a harness.RawAnswer) bool {
			return a.HTTPStatus == http.StatusTooManyRequests || strings.Contains(a.Body, "RATE_LIMITED")
		})
	}

	f = w.file("refusals/away.txt")
	w.away = true
	watcher := w.AddClient("watcher", "--tier", "DESTRUCTIVE")
	ask := func(tool, arguments string) harness.RawRequest {
		return harness.StatelessCall(watcher, tool, arguments)
	}
	for _, c := range []struct{ role, tool, arguments string }{
		{harness.Executor, "start_service", `{"service_id":"demo-sleepy"}`}, {harness.Vault, "start_service", `{"service_id":"demo-chat"}`}, {harness.Audit, "stop_service", `{"service_id":"demo-chat"}`},
	} {
		f.says("%s is away.", c.role)
		w.Process(c.role).Stop()
		f.request("gpu_status {}", ask("gpu_status", "{}"))
		f.request(c.tool+" "+c.arguments, ask(c.tool, c.arguments))
		f.durward("services")
		w.StartProcess(c.role)
		harness.Eventually(w.t, "the gateway, the vault and the executor find "+c.role+" again", func() error {
			looked := envelopeOf(w.t, mustRaw(w, ask("gpu_status", "{}")))
			asked := envelopeOf(w.t, mustRaw(w, ask("stop_service", `{"service_id":"demo-sleepy"}`)))
			if looked.Status != "ok" || asked.Status != "pending_approval" {
				return fmt.Errorf("%+v, %+v", looked, asked)
			}
			return nil
		})
	}
}

func mustRaw(w *world, r harness.RawRequest) harness.RawAnswer {
	w.t.Helper()
	a, err := w.Raw(w.t.Context(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// thing is a tool, resource or template as a list has it.
type thing struct {
	name string
	raw  json.RawMessage
}

func offered(t *testing.T, w *world, a harness.RawAnswer, member, name string) []thing {
	t.Helper()
	var lists map[string]json.RawMessage
	var items []json.RawMessage
	if err := json.Unmarshal(a.Result, &lists); err != nil {
		t.Fatalf("%s: %v: %s", member, err, a.Body)
	}
	if err := json.Unmarshal(lists[member], &items); err != nil || len(items) == 0 {
		t.Fatalf("%s: %v: %s", member, err, a.Body)
	}
	var things []thing
	for _, raw := range items {
		var members map[string]any
		must(t, json.Unmarshal(raw, &members))
		called, _ := members[name].(string)
		things = append(things, thing{called, raw})
	}
	return things
}

func sameTool(tools []thing, other thing) bool {
	for _, tool := range tools {
		if tool.name == other.name {
			return sameJSON(string(tool.raw), string(other.raw))
		}
	}
	return false
}

// fileOf is a URI as a file's name.
func fileOf(uri string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.TrimPrefix(uri, "durward://"), "-"), "-")
}
