package golden

import (
	"fmt"
	"os"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"

	"durward.internal/deploy/e2e/harness"
)

// reads are the commands that only look, as a fresh host is asked; each is asked for text and for JSON.
var reads = []struct {
	file string
	args []string
}{
	{"services", []string{"services"}}, {"services", []string{"service", "ls"}}, {"services", []string{"service", "show", "demo-chat"}},
	{"services", []string{"service", "show", "demo-sleepy"}},
	{"gpu", []string{"gpu"}},
	{"models", []string{"model", "ls"}}, {"models", []string{"model", "show", harness.DemoModel}},
	{"modes", []string{"mode", "ls"}}, {"modes", []string{"mode", "show", "night"}}, {"modes", []string{"switches"}},
	{"simulate", []string{"simulate"}}, {"simulate", []string{"simulate", "night"}}, {"simulate", []string{"simulate", "--start", "demo-chat,demo-sleepy", "--verbose"}},
	{"simulate", []string{"simulate", "night", "--start", "demo-chat", "--alternatives", "0"}}, {"simulate", []string{"simulate", "night", "--margin", "70000"}},
	{"approvals", []string{"approvals"}},
	{"standing", []string{"standing"}}, {"standing", []string{"standing", "list"}}, {"standing", []string{"dangerous", "status"}},
	{"clients", []string{"client", "list"}}, {"clients", []string{"sessions"}},
	{"operators", []string{"operator", "list"}},
	{"config", []string{"config", "show"}}, {"config", []string{"config", "show", "--origin"}}, {"config", []string{"config", "show", "--client", "cursor"}},
	{"policy", []string{"policy", "list"}}, {"policy", []string{"policy", "check"}}, {"policy", []string{"policy", "explain", "--as", "cursor", "gpu_status"}},
	{"policy", []string{"policy", "explain", "--as", "cursor", "start_service", "service_id=demo-chat"}},
	{"catalog", []string{"catalog", "check"}}, {"catalog", []string{"catalog", "show"}}, {"catalog", []string{"catalog", "show", "demo-chat"}},
	{"cert", []string{"cert", "status"}},
	{"audit", []string{"audit", "search", "--kind", "approved"}}, {"audit", []string{"audit", "verify"}}, {"audit", []string{"audit", "hold", "list"}},
	{"audit", []string{"audit", "prune", "--older-than", "90d", "--dry-run"}},
}

// agent is a key-bound client at the stdio bridge that sends plain messages.
type agent struct {
	w    *world
	pipe *harness.RawStdio
	id   int
	// last is the result of its last call.
	last []byte
}

func (w *world) agent(name string) *agent {
	w.t.Helper()
	w.AddKeyBound(name, "--tier", "DESTRUCTIVE")
	a := &agent{w: w, pipe: w.StdioRaw(name), id: 1}
	if _, err := a.pipe.Send(harness.Handshake(harness.SessionRevision), "1"); err != nil {
		w.t.Fatal(err)
	}
	if _, err := a.pipe.Send([]byte(harness.Initialized), ""); err != nil {
		w.t.Fatal(err)
	}
	return a
}

// tellCredentials tells how a value comes to the vault, is granted, replaced, taken away and forgotten; nothing shows it.
func tellCredentials(w *world) {
	f := w.file("decisions/credential.txt")
	w.WriteFile("token", "tops3cret")
	f.both("credential", "list")
	f.durward("credential", "add", "hf-token", "--path-variable", "HF_TOKEN_PATH")
	f.person([]string{"waits [y/N]", "types y"}, "credential", "add", "hf-token", "--path-variable", "HF_TOKEN_PATH", "--file", w.Path("token"))
	f.person([]string{"waits [y/N]", "types y"}, "credential", "grant", "hf-token", "demo-chat")
	f.durward("credential", "rotate", "hf-token", "--file", w.Path("token"), "--yes")
	f.both("credential", "list")
	f.both("credential", "show", "hf-token")
	f.durward("credential", "import-env", "NO_SUCH_VARIABLE", "--yes")
	f.durward("vault", "rotate-keys")
	f.durward("vault", "unseal")
	f.durward("credential", "revoke", "hf-token", "demo-chat")
	f.durward("credential", "remove", "hf-token", "--version", "2", "--yes")
	f.durward("credential", "remove", "hf-token", "--version", "1", "--yes")
	f.person([]string{"waits [y/N]", "types y"}, "credential", "remove", "hf-token")
	f.durward("credential", "show", "hf-token")
}

// call calls a tool, and writes the call and the answer down.
func (a *agent) call(f *transcript, status, tool, arguments string) envelope {
	a.w.t.Helper()
	answer := patiently(f, tool, func() harness.RawAnswer {
		a.id++
		message := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, a.id, tool, arguments)
		answer, err := a.pipe.Send(message, fmt.Sprint(a.id))
		if err != nil {
			a.w.t.Fatal(err)
		}
		return answer
	})
	e := envelopeOf(a.w.t, answer)
	if e.Status != status {
		a.w.t.Fatalf("%s %s: status %s, want %s: %s", tool, arguments, e.Status, status, answer.Body)
	}
	fmt.Fprintf(&f.text, "> tools/call %s %s\n", tool, arguments)
	f.json(answer.Result)
	f.text.WriteString("\n")
	a.last = answer.Result
	return e
}

// tellHost tells of a host that runs: fresh, with a service, and every decision that a person takes.
func tellHost(t *testing.T, s *set) {
	w := newWorld(t, s, harness.Options{Catalog: harness.ModesCatalog})
	defer w.done()
	w.StartAll()
	cursor := w.agent("cursor")
	var list struct {
		Sessions []struct{ Session string }
	}
	w.DurwardJSON(&list, "sessions")
	if len(list.Sessions) != 1 {
		t.Fatalf("%d sessions are open, want 1", len(list.Sessions))
	}
	session := list.Sessions[0].Session

	fresh := map[string]*transcript{}
	for _, r := range reads {
		f := fresh[r.file]
		if f == nil {
			f = w.file("fresh/" + r.file + ".txt")
			f.says("A fresh host: nothing runs, nobody has asked for anything, one client is connected.")
			fresh[r.file] = f
		}
		f.both(r.args...)
	}
	f := w.file("fresh/status.txt")
	f.both("status")

	f = w.file("refusals/unknown.txt")
	f.says("Names that are not there.")
	for _, args := range [][]string{
		{"service", "show", "demo-cht"}, {"start", "demo-cht", "--yes"}, {"stop", "no-such", "--yes"}, {"sleep", "demo-chat", "--yes"}, {"wake", "demo-chat", "--yes"}, {"logs", "no-such"}, {"logs", "demo-chat"},
		{"model", "show", "no-such"}, {"mode", "show", "no-such"}, {"mode", "switch", "no-such", "--yes"}, {"switch", "nigt", "--yes"}, {"switch", "night", "--plan", "000000000000", "--yes"},
		{"simulate", "no-such"}, {"simulate", "--start", "demo-cht"}, {"simulate", "--start", "demo-chat", "--stop", "demo-chat"}, {"simulate", "night", "--context", "demo-sleepy=4096"},
		{"approve", "ZZZZ", "--yes"}, {"deny", "ZZZZ"}, {"mute", "nobody"}, {"standing", "revoke", "nonsense"}, {"dangerous", "status", "--session", "x"}, {"dangerous", "enable", "--session", session},
		{"client", "revoke", "nobody", "--yes"}, {"client", "rotate", "nobody", "--yes"}, {"client", "add", "Claude", "--yes"}, {"client", "add", "x", "--tier", "ROOT", "--yes"}, {"client", "add", "cursor", "--yes"},
		{"operator", "revoke", "nobody", "--yes"}, {"operator", "revoke", "ada", "--yes"},
		{"config", "set", "no.such", "5", "--yes"}, {"config", "set", "approvals.wait_s", "5", "--yes"}, {"config", "set", "tier_ceiling", "ROOT", "--yes"}, {"config", "unset", "no.such", "--yes"}, {"config", "show", "--client", "nobody"},
		{"config", "allow-origin", "javascript:alert(1)", "--yes"}, {"config", "trust", w.Path("none.yaml"), "--yes"}, {"config", "untrust", w.Path("none.yaml"), "--yes"},
		{"policy", "remove", "no-such-rule", "--yes"}, {"policy", "allow", "--client", "nobody", "--tool", "stop_service", "--yes"}, {"policy", "allow", "--client", "cursor", "--tool", "stop_servce", "--yes"},
		{"policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", "nigt", "--yes"},
		{"policy", "limit", "no_such", "--budget-day", "5", "--yes"}, {"policy", "explain", "--as", "nobody", "gpu_status"}, {"policy", "explain", "--as", "cursor", "simulate_mode", "start=demo-chat,demo-chat"},
		{"policy", "test", w.Path("none.yaml")}, {"audit", "show", "r-nonsense"}, {"catalog", "show", "no-such"}, {"catalog", "add", "gpu", "0", "--memory", "8192", "--simulated", "--name", "x"},
		{"service", "install", "demo-chat"}, {"audit", "verify", "--offline", w.Path("none.jsonl")}, {"audit", "receipt", w.Path("none.json")}, {"audit", "receipt", w.Path("config", "clients.yaml")},
	} {
		f.durward(args...)
	}

	tellDecisions(w, cursor, session)
	tellRules(w)
	tellCommands(w, cursor)
}

// recorded waits until the log has a record of an operation: the outcomes of agents' calls arrive a moment behind the answer.
func (w *world) recorded(operationID string, kind auditv1.Kind) {
	w.t.Helper()
	harness.Eventually(w.t, kind.String()+" of "+operationID, func() error {
		if len(w.Records(&auditv1.SearchRecordsRequest{OperationId: operationID, Kinds: []auditv1.Kind{kind}})) == 0 {
			return fmt.Errorf("it is not in the log")
		}
		return nil
	})
}

// settled waits until the vault has been told of everything that the executor did: status counts what it has not.
func (w *world) settled() {
	w.t.Helper()
	harness.Eventually(w.t, "the vault knows how everything ended", func() error {
		var status struct{ Executor struct{ Unsettled *int } }
		if w.DurwardJSON(&status, "status"); status.Executor.Unsettled == nil || *status.Executor.Unsettled != 0 {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
}

func tellDecisions(w *world, cursor *agent, session string) {
	const chat = `{"service_id":"demo-chat","reason":"the user asked for it"}`
	f := w.file("decisions/once.txt")
	f.says("An agent asks for a change; a person looks, says no, then yes; the change happens once.")
	asked := cursor.call(f, "pending_approval", "start_service", chat)
	number := w.number(asked.OperationID)
	f.both("approvals")
	f.durward("approve", number)
	f.person([]string{"waits [y/N]", "types n"}, "approve", number)
	f.person([]string{"waits [y/N]", "types v", "waits [y/N]", "types y", "waits Carry it out from here now?", "types n"}, "approve", number)
	f.both("approvals")
	cursor.call(f, "ok", "wait_operation", fmt.Sprintf(`{"operation_id":%q}`, asked.OperationID))
	w.recorded(asked.OperationID, auditv1.Kind_KIND_OUTCOME)
	f.story(asked.OperationID)
	f.durward("audit", "search", "--operation", asked.OperationID, "--kind", "asked,approved,granted,redeemed,intent,outcome", "--json")
	f.durward("approve", number, "--yes")
	if err := os.WriteFile(w.Path("reply.json"), cursor.last, 0o600); err != nil {
		w.t.Fatal(err)
	}
	f.durward("audit", "receipt", w.Path("reply.json"))
	f.durward("audit", "receipt", "--ask", "--json", w.Path("reply.json"))

	f = w.file("running/host.txt")
	f.says("demo-chat runs.")
	w.aged("demo-chat")
	logReads := func() int {
		return len(w.Records(&auditv1.SearchRecordsRequest{Tool: "service_logs", Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ}}))
	}
	before := logReads()
	for _, args := range [][]string{{"services"}, {"service", "show", "demo-chat"}, {"gpu"}, {"mode", "ls"}, {"model", "ls"}, {"simulate", "night"}, {"simulate"}, {"logs", "demo-chat"}, {"service", "logs", "demo-chat", "-n", "1"}, {"audit", "search", "--kind", "approved"}} {
		f.both(args...)
	}
	// Exports name one root as long as no record comes between them: reads are recorded a little later, the last of them those of the logs.
	harness.Eventually(w.t, "the log has what was read", func() error {
		if more := logReads() - before; more != 4 {
			return fmt.Errorf("it has %d more reads of logs", more)
		}
		return nil
	})
	f.durward("audit", "export", w.Path("log.jsonl"))
	f.durward("audit", "verify", "--offline", w.Path("log.jsonl"))
	f.durward("audit", "verify", "--offline", w.Path("log.jsonl"), "--trust", w.Path("trust"))
	f.durward("audit", "verify", "--offline", w.Path("log.jsonl"), "--trust", w.Path("config"))
	f.durward("audit", "verify", "--trust", w.Path("trust"))
	f.durward("audit", "export", w.Path("log.jsonl"))
	f.durward("audit", "export", "--format", "tiles", w.Path("tiles"))
	f.durward("audit", "export", "--format", "tiles", "--json", w.Path("tiles"))
	f.durward("audit", "export", "--format", "tiles", w.Path("config"))
	f.durward("audit", "export", "--format", "xml", w.Path("log.xml"))

	f = w.file("decisions/deny.txt")
	f.says("A person says no, and the agent is told why.")
	asked = cursor.call(f, "pending_approval", "stop_service", chat)
	number = w.number(asked.OperationID)
	f.durward("deny", number, "--reason", "not while the benchmark runs")
	cursor.call(f, "denied", "wait_operation", fmt.Sprintf(`{"operation_id":%q}`, asked.OperationID))
	w.recorded(asked.OperationID, auditv1.Kind_KIND_DENIED)
	f.both("audit", "search", "--operation", asked.OperationID, "--kind", "denied")
	// What there is to count differs from run to run; of a time to come there is nothing.
	f.durward("audit", "hold", "add", asked.OperationID)
	f.durward("audit", "hold", "add", asked.OperationID, "--reason", "case 7")
	f.durward("audit", "hold", "add", asked.OperationID, "--reason", "case 7", "--yes")
	f.durward("audit", "hold", "list")
	f.durward("audit", "hold", "release", "0", "--yes")
	f.durward("audit", "prune", "--older-than", "a while")
	f.durward("audit", "copy", "nowhere.yaml")
	f.both("audit", "stats", "--since", "2099-01-01T00:00:00Z")
	f.durward("audit", "report", "--since", "2099-01-01T00:00:00Z")

	f = w.file("decisions/scope.txt")
	f.says("A person lets the session repeat a call.")
	asked = cursor.call(f, "pending_approval", "stop_service", chat)
	number = w.number(asked.OperationID)
	f.durward("approve", number, "--scope", "--for", "9h", "--yes")
	f.durward("approve", number, "--scope", "--free", "no_such", "--yes")
	f.person([]string{"waits [y/N]", "types y", "waits Carry it out from here now?", "types n"}, "approve", number, "--scope", "--uses", "2", "--for", "10m")
	f.both("standing", "list")
	cursor.call(f, "ok", "wait_operation", fmt.Sprintf(`{"operation_id":%q}`, asked.OperationID))
	var standing struct {
		Standing []struct {
			ID         string
			StandingID string `json:"standing_id"`
		}
	}
	w.DurwardJSON(&standing, "standing", "list")
	f.durward("standing", "revoke", "--all", "--reason", "enough")
	f.durward("standing", "list")

	f = w.file("decisions/mute.txt")
	f.durward("mute", "cursor", "--for", "10m", "--reason", "busy")
	cursor.call(f, "error", "start_service", chat)
	f.durward("mute", "cursor", "--off")

	f = w.file("decisions/dangerous.txt")
	f.says("A person puts a session into dangerous mode: a phrase, a signature, and a second yes.")
	short := session[2:8]
	f.person([]string{"waits Type this to go on", "types no"}, "dangerous", "enable", "--session", session)
	f.person([]string{"waits Type this to go on", "types dangerous cursor " + short, "waits Once more", "types yes"}, "dangerous", "enable", "--session", session, "--for", "10m")
	f.both("dangerous", "status")
	f.durward("dangerous", "disable")
	f.both("dangerous", "status")
}

func tellRules(w *world) {
	f := w.file("decisions/config.txt")
	f.says("A setting is changed, and back.")
	f.person([]string{"waits [y/N]", "types n"}, "config", "set", "approvals.wait_s", "300")
	f.person([]string{"waits [y/N]", "types y"}, "config", "set", "approvals.wait_s", "300")
	f.durward("config", "show", "--origin")
	f.durward("config", "unset", "approvals.wait_s", "--yes")
	f.durward("config", "allow-origin", "https://console.example", "--yes")
	f.durward("config", "allow-origin", "https://console.example", "--remove", "--yes")
	w.WriteFile("project.yaml", "tools:\n  start_service: {tier: DENIED}\n")
	w.WriteFile("loose.yaml", "tools:\n  start_service: {tier: READ}\n")
	f.durward("config", "trust", w.Path("project.yaml"), "--client", "cursor", "--yes")
	f.durward("config", "untrust", w.Path("project.yaml"), "--yes")
	f.durward("config", "trust", w.Path("loose.yaml"), "--yes")

	f = w.file("decisions/policy.txt")
	f.says("A rule by which calls run without asking, a limit, and both taken away.")
	f.person([]string{"waits [y/N]", "types y"}, "policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "demo-chat", "--until", "720h")
	f.both("policy", "explain", "--as", "cursor", "stop_service", "service_id=demo-chat")
	f.durward("policy", "limit", "start_service", "--budget-day", "5", "--yes")
	f.durward("policy", "list")
	f.durward("policy", "limit", "start_service", "--remove", "--yes")
	w.WriteFile("cases.yaml", "cases:\n  - {client: cursor, tool: gpu_status, expect: runs}\n  - {client: cursor, tool: start_service, arguments: {service_id: demo-chat}, expect: asks}\n")
	w.WriteFile("wrong-cases.yaml", "cases:\n  - {client: cursor, tool: gpu_status, expect: denied}\n")
	f.durward("policy", "test", w.Path("cases.yaml"))
	f.durward("policy", "test", w.Path("wrong-cases.yaml"))
	var rules struct {
		Rules []struct{ ID, Name, File string }
	}
	w.DurwardJSON(&rules, "policy", "list")
	for _, r := range rules.Rules {
		if id := r.ID + r.Name; len(id) > 5 && id[:5] == "allow" {
			f.durward("policy", "remove", id, "--yes")
		}
	}

	f = w.file("decisions/egress.txt")
	f.says("Domains that agents may reach, and may not, where no egress runs.")
	f.both("egress", "domains")
	f.person([]string{"waits [y/N]", "types y"}, "egress", "allow", "docs.example", "*.docs.example", "--client", "cursor")
	f.durward("egress", "block", "*.zip", "--yes")
	f.both("egress", "domains")
	f.durward("egress", "remove", "*.zip", "--yes")
	f.durward("egress", "remove", "*.zip", "--yes")
	f.durward("egress", "allow", "127.0.0.1", "--yes")
	f.durward("egress", "allow", "not a name", "--yes")
	f.durward("egress", "test", "https://docs.example/page", "--client", "cursor")
	f.both("egress", "log")
	f.durward("egress", "csp")
	f.durward("egress", "har")
	f.durward("egress", "sarif")

	f = w.file("decisions/servers.txt")
	f.says("Other people's MCP servers, where there are none; with one they are in the transcripts of e2e.")
	f.both("server", "list")
	f.durward("server", "status")
	f.durward("server", "add", "npm:left-pad")
	f.durward("server", "add", "npm:left-pad@1.3.0")
	f.durward("server", "add", "http://mcp.example/mcp")
	f.durward("server", "add", "program", "/usr/bin/true", "--id", "a_b")
	for _, command := range []string{"show", "tools", "diff", "accept", "remove", "logs", "restart"} {
		f.durward("server", command, "notes")
	}

	tellCredentials(w)

	f = w.file("decisions/client.txt")
	f.says("A client is let in, gets new credentials, and is locked out.")
	f.person([]string{"waits [y/N]", "types y"}, "client", "add", "dashboard", "--bearer", "--tier", "READ")
	f.durward("client", "add", "planner", "--user", "alice", "--agent", "planner,coder", "--yes")
	f.both("client", "list")
	f.durward("client", "rotate", "dashboard", "--overlap", "10m", "--yes")
	f.durward("client", "revoke", "dashboard", "--yes")
	f.durward("client", "add-tool", "reporter", "--may", "list_services,start_service", "--yes")
	f.durward("client", "list")
	f.durward("client", "revoke", "reporter", "--yes")
	f.durward("client", "connect", "claude-code", "--print")

	f = w.file("decisions/operator.txt")
	f.says("Another operator is let in and taken away.")
	w.WriteFile("bob.pub", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGrKtRSUxB6ZLUMqWZNvZfjUkXf4yhBfLFLIpNYYVJdc bob\n")
	f.durward("operator", "add", "bob", w.Path("bob.pub"), "--yes")
	f.both("operator", "list")
	f.durward("operator", "revoke", "bob", "--yes")

	f = w.file("decisions/cert.txt")
	f.durward("cert", "renew")

	f = w.file("decisions/catalog.txt")
	f.says("Entries are added to a copy of nothing that runs.")
	f.durward("catalog", "add", "model", "some/model", "--source", "hf:some/model", "--yes")
	f.durward("catalog", "add", "gpu", "2", "--name", "A third", "--memory", "8192", "--simulated", "--yes")
	f.durward("catalog", "add", "gpu", "2", "--name", "A third", "--memory", "8192", "--simulated", "--yes")
	f.durward("catalog", "add", "service", "second", "--port", fmt.Sprint(w.Port(3)), "--gpus", "1", "--vram", "4096", "--yes", "--", "durward-demo", "-port", fmt.Sprint(w.Port(3)))
	f.durward("catalog", "add", "mode", "evening", "second", "--name", "In the evening", "--yes")
	f.both("catalog", "check")
	f.durward("catalog", "remove", "service", "second", "--yes")
	f.durward("catalog", "remove", "mode", "evening", "--yes")
	w.WriteFile("compose.yaml", "services:\n  chat:\n    image: vllm/vllm-openai:latest\n    command: [--model, some/model]\n    ports: [\"127.0.0.1:8000:8000\"]\n")
	w.WriteFile("swap.yaml", "models:\n  tiny:\n    cmd: llama-server --port ${PORT} -m /srv/none.gguf\n")
	f.durward("catalog", "import", "compose", w.Path("compose.yaml"))
	f.durward("catalog", "import", "llama-swap", w.Path("swap.yaml"), "--out", w.Path("proposal.yaml"))
	f.durward("catalog", "check", w.Path("proposal.yaml"))
	f.durward("catalog", "import", "gpumod", w.Path("none"))
}

func tellCommands(w *world, cursor *agent) {
	f := w.file("decisions/commands.txt")
	f.says("A person's own signed commands.")
	f.durward("stop", "demo-chat")
	f.person([]string{"waits [y/N]", "types n"}, "start", "demo-chat")
	f.person([]string{"waits [y/N]", "types y"}, "start", "demo-chat")
	f.durward("start", "demo-chat", "--yes")
	f.person([]string{"waits [y/N]", "types y"}, "switch", "night")
	f.durward("sleep", "demo-sleepy", "--yes")
	w.aged("demo-sleepy")
	f.durward("service", "show", "demo-sleepy")
	f.durward("wake", "demo-sleepy", "--yes")
	f.durward("service", "sleep", "demo-sleepy", "--yes")
	f.durward("service", "wake", "demo-sleepy", "--yes")
	f.durward("mode", "switch", "day", "--yes")
	f.durward("service", "stop", "demo-chat", "--yes")
	f.durward("service", "start", "demo-chat", "--yes")
	f.person([]string{"waits [y/N]", "types y"}, "stop", "demo-chat")
	f.both("switches")
	f.durward("switches", "--steps")

	f = w.file("decisions/panic.txt")
	f.says("Panic needs nothing; a resume is signed.")
	w.settled()
	f.durward("panic", "--reason", "something is wrong")
	f.both("status")
	f.durward("start", "demo-chat", "--yes")
	cursor.call(f, "error", "start_service", `{"service_id":"demo-chat"}`)
	cursor.call(f, "ok", "gpu_status", `{}`)
	f.durward("resume")
	f.person([]string{"waits the executor and the vault?", "types y"}, "resume")
	f.durward("status")
}
