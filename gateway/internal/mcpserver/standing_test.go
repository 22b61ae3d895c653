package mcpserver_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// caller calls a tool as one client, in one era.
type caller func(t testing.TB, tool, arguments string) answer

// callers returns a client of each era; meta is more of each request's _meta.
func (e *edge) callers(t testing.TB, token, meta string) map[string]caller {
	t.Helper()
	with := func(body string) string {
		if meta == "" {
			return body
		}
		return strings.Replace(body, `"params":{`, `"params":{"_meta":{`+meta+`},`, 1)
	}
	hello := e.send(t, request{body: with(initialize), token: token})
	session := hello.header.Get("Mcp-Session-Id")
	if session == "" {
		t.Fatalf("initialize: %d %s", hello.status, hello.raw)
	}
	return map[string]caller{
		"sessions": func(t testing.TB, tool, arguments string) answer {
			t.Helper()
			return decodeAnswer(t, e.send(t, request{session: session, token: token, body: with(toolCall(7, tool, arguments))}))
		},
		"stateless": func(t testing.TB, tool, arguments string) answer {
			t.Helper()
			return decodeAnswer(t, e.askModern(t, token, modernCall(tool, arguments, meta)))
		},
	}
}

// uncover makes permits that are not for a tool.
func (v *fakeVault) uncover(tool string, away bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.uncovered[tool] = away
}

// told returns what Authorise was asked about, and forgets it.
func (v *fakeVault) told() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for _, r := range v.asked {
		out = append(out, r.GetTool().GetName())
	}
	v.asked = nil
	return out
}

func (v *fakeVault) decides(decide func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.decide = decide
}

func granted(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
	return &vaultv1.AuthoriseResponse{
		Decision: vaultv1.AuthoriseResponse_DECISION_GRANTED,
		Grant:    &callv1.SignedGrant{Payload: []byte(hexID()), Kid: "test", Signature: make([]byte, 64)},
	}, nil
}

// What the permit covers takes no decision. A READ tool that it does not cover is decided on like any other: it runs with a grant of
// its own, waits for a human, or is not available.
func TestReadWithoutAPermit(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	covered := e.callers(t, tokenAgent, "")
	for era, call := range covered {
		if a := call(t, "gpu_status", `{}`); a.Status != "ok" || len(e.vault.told()) != 0 {
			t.Errorf("%s: covered: %s", era, a.tool.Structured)
		}
	}
	e.vault.uncover("gpu_status", true)
	for era, call := range e.callers(t, tokenOther, "") {
		t.Run(era, func(t *testing.T) {
			e.vault.decides(func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
				return &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_DENIED}, nil
			})
			reads := e.executor.reads
			if a := call(t, "gpu_status", `{}`); a.Status != "denied" || a.Reason != "not_available" || e.executor.reads != reads {
				t.Errorf("denied: %s", a.tool.Structured)
			}
			e.vault.decides(func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
				return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: gpu_status may be called 5 times a day", fault.WithRetry(time.Hour))
			})
			if a := call(t, "gpu_status", `{}`); a.Status != "error" || a.Error.Code != "RATE_LIMITED" || !strings.Contains(a.Summary, "5 times a day") || a.Error.RetryAfter != 3600 || !a.Error.Retryable {
				t.Errorf("over a limit of policy: %s", a.tool.Structured)
			}
			e.vault.decides(granted)
			e.vault.told()
			own := e.executor.granted
			if a := call(t, "gpu_status", `{}`); a.Status != "ok" || a.OperationID != "" || e.executor.granted != own+1 {
				t.Errorf("granted: %s", a.tool.Structured)
			}
			if diff := cmp.Diff([]string{"gpu_status"}, e.vault.told()); diff != "" {
				t.Errorf("decisions (-want +got):\n%s", diff)
			}
			e.vault.decides(nil)
			a := call(t, "gpu_status", `{}`)
			if a.Status != "pending_approval" || a.Next == nil || a.Next.Arguments["operation_id"] != a.OperationID {
				t.Fatalf("asks: %s", a.tool.Structured)
			}
			e.vault.set(a.OperationID, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
			own = e.executor.granted
			if a := call(t, "wait_operation", `{"operation_id":"`+a.OperationID+`"}`); a.Status != "ok" || !strings.Contains(string(a.Result), "Simulated GPU") || e.executor.granted != own+1 {
				t.Errorf("approved: %s", a.tool.Structured)
			}
		})
	}
}

// A permit that became too old is no denial: the tool is decided on as policy has it by now.
func TestPermitThatNoLongerCovers(t *testing.T) {
	for _, era := range []string{"sessions", "stateless"} {
		t.Run(era, func(t *testing.T) {
			e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond, fresh: time.Nanosecond}) // a permit that was refused when it was fresh is refused for good
			call := e.callers(t, tokenAgent, "")[era]
			if a := call(t, "gpu_status", `{}`); a.Status != "ok" {
				t.Fatalf("before: %s", a.tool.Structured)
			}
			e.vault.uncover("gpu_status", true)
			e.executor.mu.Lock()
			e.executor.refuse = []*fault.Error{fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed), fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)}
			e.executor.mu.Unlock()
			if a := call(t, "gpu_status", `{}`); a.Status != "pending_approval" {
				t.Errorf("afterwards: %s", a.tool.Structured)
			}
		})
	}
}

// A key-bound client hears which proof a READ tool takes that no permit covers.
func TestReadWithoutAPermitTakesAProofOfTheCall(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond, permits: time.Second}) // a permit that is over at once: a proof of the call renews none
	e.vault.uncover("gpu_status", true)
	hello := e.send(t, request{token: tokenSigner, body: strings.Replace(initialize, `"params":{`, `"params":{"_meta":{"durward/proof":{"purpose":"PURPOSE_OPEN","counter":"1","time":"1","signature":"`+strings.Repeat("A", 86)+`=="}},`, 1)})
	session := hello.header.Get("Mcp-Session-Id")
	if session == "" {
		t.Fatalf("initialize: %s", hello.raw)
	}
	call := func(purpose string) answer {
		t.Helper()
		body := toolCall(7, "gpu_status", `{}`)
		if purpose != "" {
			body = strings.Replace(body, `"params":{`, `"params":{"_meta":{"durward/proof":{"purpose":"`+purpose+`","counter":"2","time":"1","signature":"`+strings.Repeat("A", 86)+`=="}},`, 1)
		}
		return decodeAnswer(t, e.send(t, request{token: tokenSigner, session: session, body: body}))
	}
	for purpose, needed := range map[string]string{"": "renew", "PURPOSE_RENEW": "call"} {
		if a := call(purpose); a.Error == nil || a.Error.Code != "PROOF_REQUIRED" || a.tool.Meta["durward/proof_needed"] != needed {
			t.Errorf("%q: %s %v", purpose, a.tool.Structured, a.tool.Meta)
		}
	}
	if a := call("PURPOSE_CALL"); a.Status != "pending_approval" {
		t.Errorf("signed: %s", a.tool.Structured)
	}
}

// A session is listed what is within its ceiling alone: no decision lets it call the rest.
func TestToolsAboveTheCeilingAreNotListed(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	list := func() string { return string(e.own(t, tokenAgent, "tools/list", "", "", "{}").message.Result) }
	call := e.callers(t, tokenAgent, "")["stateless"]
	tools := []string{"gpu_status", "wait_operation", "start_service", "switch_mode"}
	for _, step := range []struct {
		ceiling string
		listed  int
	}{{"", 4}, {"WRITE", 3}, {"READ", 2}} {
		if step.ceiling != "" {
			call(t, "security_config", `{"tier_ceiling_override":"`+step.ceiling+`"}`)
		}
		all := list()
		for i, name := range tools {
			if strings.Contains(all, `"name":"`+name+`"`) != (i < step.listed) {
				t.Errorf("up to %q: %s is listed: %t", step.ceiling, name, i >= step.listed)
			}
		}
	}
}

// A client with a set of tools of its own is listed that set, though nobody else's server is pinned.
func TestToolsThatAClientMayNotCallAreNotListed(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.vault.denied = map[string]bool{"switch_mode": true}
	for era := range readerEras {
		r := e.reader(t, tokenAgent, era)
		for name, want := range map[string]bool{"switch_mode": false, "start_service": true, "wait_operation": true} {
			if got := r.listed(name); got != want {
				t.Errorf("%s: %s is listed: %t", era, name, got)
			}
		}
	}
}

// An override comes back with a warning and a block that says so; what it lowered shows where the client looks.
func TestOverridesComeBack(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	for era, call := range e.callers(t, tokenAgent, "") {
		e.vault.mu.Lock()
		e.vault.overrides = []string{"tier_ceiling=WRITE\x1b[31m"}
		e.vault.mu.Unlock()
		if a := call(t, "security_config", `{}`); a.Status != "ok" || a.Audit != nil || len(a.Warnings) != 0 || !strings.Contains(string(a.Result), "Only a human changes this.") {
			t.Errorf("%s: without an override: %s", era, a.tool.Structured)
		}
		a := call(t, "security_config", `{"tier_ceiling_override":"WRITE"}`)
		if a.Status != "ok" || a.Audit == nil || a.Audit.Persistent || a.Audit.OverrideSource != "argument" ||
			!slices.Equal(a.Audit.SessionOverrides, []string{"tier_ceiling=WRITE"}) || len(a.Warnings) != 1 {
			t.Errorf("%s: %s", era, a.tool.Structured)
		}
		for _, refused := range []string{`{"tier_ceiling_override":"DESTRUCTIVE"}`, `{"tier_ceiling_override":"DENIED"}`, `{"tier_ceiling_override":1}`, `{"tier_override":"TIER_READ"}`} {
			if a := call(t, "security_config", refused); a.Error == nil || a.Error.Code != "INVALID_ARGUMENT" {
				t.Errorf("%s: %s: %s", era, refused, a.tool.Structured)
			}
		}
	}
	read := e.askModern(t, tokenAgent, modernRequest("resources/read", "durward://config", `"uri":"durward://config"`, ""))
	if !strings.Contains(read.raw, "| tier ceiling | WRITE |") {
		t.Errorf("durward://config: %s", read.raw)
	}
}

// Dangerous mode stands first in every result of the session that is in it, in both eras, and in nobody else's; it is gone at once
// when it ends. What a tool is said to be does not change.
func TestDangerousBanner(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond})
	others := e.callers(t, tokenOther, "")
	list := func() string {
		return string(e.askModern(t, tokenAgent, modernRequest("tools/list", "", "", "")).message.Result)
	}
	before := list()
	until := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	banner := fmt.Sprintf("DANGEROUS MODE until %s UTC: changes run without asking.", until.UTC().Format("15:04"))
	shown := func(a answer) bool {
		first := len(a.Warnings) > 0 && a.Warnings[0] == banner
		if first != strings.HasPrefix(a.Summary, banner) || first != (a.tool.Meta["durward/dangerous_until"] == until.UTC().Format(time.RFC3339)) {
			t.Errorf("half a banner: %s %v", a.tool.Structured, a.tool.Meta)
		}
		return first
	}
	say := func(m *vaultv1.WatchSessionsResponse) { e.vault.said <- m }
	becomes := func(t *testing.T, call caller, want bool) {
		t.Helper()
		poll(t, fmt.Sprintf("shown is %v", want), func() bool { return shown(call(t, "gpu_status", `{}`)) == want })
	}
	for era, call := range e.callers(t, tokenAgent, "") {
		t.Run(era, func(t *testing.T) {
			for _, over := range []*vaultv1.WatchSessionsResponse{{Session: "s-agent"}, {Session: "s-agent", Ended: true}} {
				if shown(call(t, "gpu_status", `{}`)) {
					t.Error("shown before")
				}
				say(&vaultv1.WatchSessionsResponse{Session: "s-agent", DangerousUntil: timestamppb.New(until)})
				becomes(t, call, true)
				for tool, arguments := range map[string]string{
					"list_services": `{}`, "service_info": `{"service_id":"none"}`, "start_service": `{"service_id":"demo-chat"}`,
					"no_such_tool": `{}`, "stop_service": `{}`, "security_config": `{}`,
				} {
					if a := call(t, tool, arguments); !shown(a) {
						t.Errorf("%s: %q", tool, a.Summary)
					}
				}
				for other, call := range others {
					if a := call(t, "gpu_status", `{}`); shown(a) {
						t.Errorf("another client (%s): %s", other, a.tool.Structured)
					}
				}
				read := e.askModern(t, tokenAgent, modernRequest("resources/read", "durward://gpu", `"uri":"durward://gpu"`, ""))
				if !strings.Contains(read.raw, `"durward/dangerous_until":"`+until.UTC().Format(time.RFC3339)) {
					t.Errorf("a resource: %s", read.raw)
				}
				if list() != before {
					t.Error("the list of tools changed")
				}
				say(over)
				becomes(t, call, false)
			}
		})
	}
}

// The answer that runs a change in dangerous mode has the banner, even if the stream was slower.
func TestDangerousBannerByTheDecision(t *testing.T) {
	until := time.Now().Add(time.Hour)
	for _, era := range []string{"sessions", "stateless"} {
		e := newEdge(t, edgeOptions{})
		e.vault.decides(func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
			return &vaultv1.AuthoriseResponse{
				Decision: vaultv1.AuthoriseResponse_DECISION_GRANTED, OperationId: hexID(), DangerousUntil: timestamppb.New(until),
				Grant: &callv1.SignedGrant{Payload: []byte(hexID()), Kid: "test", Signature: make([]byte, 64)},
			}, nil
		})
		a := e.callers(t, tokenAgent, "")[era](t, "start_service", `{"service_id":"demo-chat"}`)
		if a.Status != "ok" || len(a.Warnings) != 2 || !strings.HasPrefix(a.Warnings[0], "DANGEROUS MODE until ") || !strings.HasPrefix(a.Summary, "DANGEROUS MODE until ") ||
			!strings.HasSuffix(a.Summary, "Started demo-chat.") {
			t.Errorf("%s: %s", era, a.tool.Structured)
		}
	}
}

// A task says it too, while it goes on and when it is over.
func TestDangerousBannerOfTasks(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond})
	e.vault.said <- &vaultv1.WatchSessionsResponse{Session: "s-agent", DangerousUntil: timestamppb.New(time.Now().Add(time.Hour))}
	call := e.callers(t, tokenAgent, "")["stateless"]
	poll(t, "a warning", func() bool { return len(call(t, "gpu_status", `{}`).Warnings) > 0 })
	declared := strings.Replace(modernMeta, `clientCapabilities":{}`, `clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, 1)
	ask := func(method, name, members string) map[string]any {
		t.Helper()
		r := modernRequest(method, name, members, "")
		r.body = strings.Replace(r.body, modernMeta, declared, 1)
		out := e.send(t, r)
		var result map[string]any
		must(t, json.Unmarshal(out.message.Result, &result))
		return result
	}
	made := ask("tools/call", "start_service", `"name":"start_service","arguments":{"service_id":"demo-chat"}`)
	id, _ := made["taskId"].(string)
	if message, _ := made["statusMessage"].(string); id == "" || !strings.HasPrefix(message, "DANGEROUS MODE") {
		t.Fatalf("made %v", made)
	}
	if message, _ := ask("tasks/get", id, `"taskId":"`+id+`"`)["statusMessage"].(string); !strings.HasPrefix(message, "DANGEROUS MODE") {
		t.Errorf("polled: %q", message)
	}
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_DENIED, "")
	over := ask("tasks/get", id, `"taskId":"`+id+`"`)
	if message, _ := over["statusMessage"].(string); over["status"] != "completed" || strings.Count(message, "DANGEROUS MODE") != 1 {
		t.Errorf("over: %v", over)
	}
}

// A client that is muted hears so, and until when.
func TestMuted(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.vault.decides(func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
		return nil, fault.New(callv1.Code_CODE_MUTED, "the operator does not want to be asked now", fault.WithRetry(10*time.Minute))
	})
	for era, call := range e.callers(t, tokenAgent, "") {
		a := call(t, "start_service", `{"service_id":"demo-chat"}`)
		if a.Status != "error" || a.Error.Code != "MUTED" || a.Error.RetryAfter != 600 || !strings.Contains(a.TellUser, "does not want to be asked") || a.Summary != "The operator does not want to be asked now." {
			t.Errorf("%s: %s", era, a.tool.Structured)
		}
	}
}

// Two people of one messaging client share nothing: not the session, nor permits, nor what one of them asked for.
func TestSendersShareNothing(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond})
	meta := func(user string) string { return `"durward/sender":{"user":"` + user + `","room":"general"}` }
	ada, bob := e.callers(t, tokenChat, meta("ada")), e.callers(t, tokenChat, meta("bob"))
	for era, hers := range ada {
		asked := hers(t, "start_service", `{"service_id":"demo-chat"}`)
		if asked.Status != "pending_approval" {
			t.Fatalf("%s: %s", era, asked.tool.Structured)
		}
		arguments := `{"operation_id":"` + asked.OperationID + `"}`
		for other, his := range bob {
			if a := his(t, "wait_operation", arguments); a.Error == nil || a.Error.Code != "NOT_FOUND" {
				t.Errorf("%s: her operation, in his session (%s): %s", era, other, a.tool.Structured)
			}
		}
		// A second conversation of the era has the first one's permits no more than another's: its own find what is its own.
		if a := hers(t, "wait_operation", arguments); a.Status != "pending_approval" {
			t.Errorf("%s: her own: %s", era, a.tool.Structured)
		}
	}
	e.vault.mu.Lock()
	defer e.vault.mu.Unlock()
	if e.vault.opened != 4 {
		t.Errorf("%d sessions, want one for each sender and era", e.vault.opened)
	}
}
