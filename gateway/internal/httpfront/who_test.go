package httpfront

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"durward.internal/gateway/internal/cors"
	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// judged refuses as the vault does: a messaging client must say for whom it speaks, and no other may; an agent must be one of the
// client's.
func judged(req *vaultv1.OpenSessionRequest) error {
	messaging := strings.HasPrefix(req.GetCredential(), "good-chat")
	switch {
	case req.GetAgent() != "" && req.GetAgent() != "planner" && req.GetAgent() != "coder":
		return fault.New(callv1.Code_CODE_UNAUTHENTICATED, fault.NotAllowed)
	case messaging != (req.GetSender() != nil):
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "whom the client speaks for", fault.WithField("sender"))
	}
	return nil
}

// whoEdge is an edge whose clients say who they are.
type whoEdge struct{ *edge }

func newWhoEdge(t *testing.T) whoEdge {
	t.Helper()
	e := newEdge(t, limit.Config{RefusalDelayMS: 1, Strangers: limit.Rate{PerS: 1000, Burst: 1000}})
	e.vault.judge = judged
	return whoEdge{e}
}

// send posts one message with more members of _meta and a Durward-Agent header, where they are not empty.
func (e whoEdge) send(era Era, token, session, method, meta, header string) reply {
	e.t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{`
	members := []string{}
	switch method {
	case methodInitialize:
		body += `"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"},`
	case methodCallTool:
		body += `"name":"gpu_status",`
	}
	if era == Stateless {
		members = append(members, `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`, `"io.modelcontextprotocol/clientCapabilities":{}`)
	}
	if meta != "" {
		members = append(members, meta)
	}
	body += `"_meta":{` + strings.Join(members, ",") + `}}}`
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+token)
	if session != "" {
		r.Header.Set(headerSession, session)
	}
	if header != "" {
		r.Header.Set(headerAgent, header)
	}
	if era == Stateless {
		r.Header.Set(headerProtocol, modernEra)
		r.Header.Set(headerMethod, method)
		if method == methodCallTool {
			r.Header.Set(headerName, "gpu_status")
		}
	}
	return e.do(r)
}

func sender(user, room string) string {
	return fmt.Sprintf(`"durward/sender":{"user":%q,"room":%q}`, user, room)
}

// served is whom a message was served as, empty if it did not get through.
func (r reply) served() string { return r.Header().Get("Served-As") }

// What is no agent and no sender is refused before anybody hears of it, in both eras.
func TestWhoIsRefusedAtOnce(t *testing.T) {
	e := newWhoEdge(t)
	for name, c := range map[string]struct{ meta, header string }{
		"an agent that is a path":      {`"durward/agent":"../planner"`, ""},
		"an empty agent":               {`"durward/agent":""`, ""},
		"an agent that is a number":    {`"durward/agent":7`, ""},
		"an agent of 65 letters":       {`"durward/agent":"` + strings.Repeat("a", 65) + `"`, ""},
		"a header that is a path":      {"", "../planner"},
		"a header with a line":         {"", "planner\t"},
		"two agents":                   {`"durward/agent":"planner"`, "coder"},
		"an agent in capitals":         {`"Durward/Agent":"planner"`, ""},
		"no user":                      {`"durward/sender":{"room":"r"}`, ""},
		"no room":                      {`"durward/sender":{"user":"u"}`, ""},
		"an empty user":                {sender("", "r"), ""},
		"a user that is a number":      {`"durward/sender":{"user":7,"room":"r"}`, ""},
		"a sender that is a text":      {`"durward/sender":"u"`, ""},
		"a user of 129 letters":        {sender(strings.Repeat("ü", 129), "r"), ""},
		"a user with a zero in it":     {`"durward/sender":{"user":"a\u0000b","room":"r"}`, ""},
		"a user that nobody sees":      {`"durward/sender":{"user":"a\u200bb","room":"r"}`, ""},
		"a user that reads backwards":  {`"durward/sender":{"user":"a\u202eb","room":"r"}`, ""},
		"a line in a room":             {`"durward/sender":{"user":"a","room":"r\n"}`, ""},
		"a user that is not composed":  {`"durward/sender":{"user":"e\u0301","room":"r"}`, ""},
		"a room that is not composed":  {`"durward/sender":{"user":"a","room":"\u1112\u1161"}`, ""},
		"a sign that is another's too": {`"durward/sender":{"user":"\u212bsa","room":"r"}`, ""},
		"a space of another kind":      {`"durward/sender":{"user":"a\u00a0b","room":"r"}`, ""},
		"two spaces":                   {sender("a  b", "r"), ""},
		"a space before":               {sender(" a", "r"), ""},
		"a space after":                {sender("a", "r "), ""},
		"nothing but a space":          {sender(" ", "r"), ""},
		"a letter that fills":          {`"durward/sender":{"user":"a\u3164","room":"r"}`, ""},
		"a sender in capitals":         {`"durward/Sender":{"user":"a","room":"r"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for era, method := range map[Era]string{Stateful: methodInitialize, Stateless: methodCallTool} {
				asked := e.vault.asked.Load()
				a := e.send(era, "good-chat", "", method, c.meta, c.header)
				if a.served() != "" || !strings.Contains(a.Body.String(), `-32602`) || e.vault.asked.Load() != asked {
					t.Errorf("%v: %d %s", era, a.Code, a.Body)
				}
			}
		})
	}
}

// Names of people in any script are taken as they are.
func TestSendersInAnyScript(t *testing.T) {
	e := newWhoEdge(t)
	for _, name := range []string{"Ada Lovelace", "\u00e9", "\ud55c\uae00", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u05e2\u05b4\u05d1\u05b0\u05e8\u05b4\u05d9\u05ea", "@ada:example.org", "\U0001f600"} {
		if a := e.send(Stateless, "good-chat", "", methodCallTool, sender(name, name), ""); a.served() != "|"+name+"|"+name {
			t.Errorf("%q: %d %s", name, a.Code, a.Body)
		}
	}
}

// A sender's session rests for as long as the vault says, in both eras, and no gateway ends it before; every other one ends when
// nobody used it for as long as the gateway says.
func TestSendersRestAsLongAsTheVaultSays(t *testing.T) {
	for _, era := range []Era{Stateful, Stateless} {
		t.Run(era.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newWhoEdge(t) // an hour
				e.vault.idle = 24 * 60 * 60
				for token, meta := range map[string]string{"good-chat": sender("ada", "general"), "good-ada": ""} {
					method := map[Era]string{Stateful: methodInitialize, Stateless: methodCallTool}[era]
					if a := e.send(era, token, "", method, meta, ""); a.served() == "" {
						t.Fatalf("%d %s", a.Code, a.Body)
					}
				}
				for _, at := range []struct {
					after          time.Duration
					kept, andEnded int
				}{{time.Hour - time.Second, 2, 0}, {2 * time.Second, 1, 1}, {22 * time.Hour, 1, 1}, {time.Hour, 0, 2}} {
					time.Sleep(at.after)
					synctest.Wait()
					if n, ended := e.front.Sessions(), int(e.vault.closed.Load()); n != at.kept || ended != at.andEnded {
						t.Errorf("after %v more: %d sessions, %d ended at the vault, want %d and %d", at.after, n, ended, at.kept, at.andEnded)
					}
				}
			})
		})
	}
}

// Senders have a cap of their own, and who is over it is let go of here alone: at the vault the session lasts.
func TestManySenders(t *testing.T) {
	plenty := limit.Rate{PerS: 100_000, Burst: 100_000}
	e := whoEdge{newEdge(t, limit.Config{Rates: limit.Rates{Reads: plenty, Lists: plenty, Messages: plenty}, Strangers: plenty})}
	e.vault.judge = judged
	call := func(n int) {
		t.Helper()
		if a := e.send(Stateless, "good-chat", "", methodCallTool, sender(fmt.Sprint("user-", n), "general"), ""); a.served() == "" {
			t.Fatalf("%d: %d %s", n, a.Code, a.Body)
		}
	}
	call(0)
	token := sha256.Sum256([]byte("good-chat"))
	first := e.front.table.acquire(statelessKey(token, "", relay.Caller{Sender: relay.Sender{User: "user-0", Room: "general"}}), token)
	e.front.table.release(first)
	for n := 1; n < maxSenders; n++ {
		call(n)
	}
	if n := e.front.Sessions(); n != maxSenders || first.relay.Ref() == "" {
		t.Errorf("%d sessions", n)
	}
	select {
	case <-first.relay.Done():
		t.Error("the first sender's session has ended already")
	default:
	}
	call(maxSenders)
	<-first.relay.Done()
	if n, closed := e.front.Sessions(), e.vault.closed.Load(); n != maxSenders || closed != 0 {
		t.Errorf("%d sessions, %d were closed at the vault", n, closed)
	}
}

// A sender who asks too often ends nobody else's session.
func TestARefusedSenderEndsNobodysSession(t *testing.T) {
	e := newWhoEdge(t)
	e.vault.judge = func(r *vaultv1.OpenSessionRequest) error {
		if r.GetSender().GetUser() == "bob" {
			return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many messages in a minute")
		}
		return judged(r)
	}
	e.send(Stateless, "good-chat", "", methodCallTool, sender("ada", "general"), "")
	asked := e.vault.asked.Load()
	if a := e.send(Stateless, "good-chat", "", methodCallTool, sender("bob", "general"), ""); a.served() != "" || !strings.Contains(a.Body.String(), "RATE_LIMITED") {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	if n := e.vault.asked.Load() - asked; n != 1 || e.vault.closed.Load() != 0 || e.front.Sessions() != 1 {
		t.Errorf("asked %d times, %d sessions ended, %d are left", n, e.vault.closed.Load(), e.front.Sessions())
	}
}

// A messaging client has a session for each of its senders, and nothing without one; any other client has no sender.
func TestSendersHaveSessionsOfTheirOwn(t *testing.T) {
	ada, bob, elsewhere := sender("ada", "general"), sender("bob", "general"), sender("ada", "random")
	refused := func(t *testing.T, what string, a reply) {
		t.Helper()
		if a.served() != "" || a.Code != http.StatusOK || !strings.Contains(a.Body.String(), "INVALID_ARGUMENT") {
			t.Errorf("%s: %d %s, served as %q", what, a.Code, a.Body, a.served())
		}
	}
	t.Run("stateless", func(t *testing.T) {
		e := newWhoEdge(t)
		call := func(token, meta string) reply {
			return e.send(Stateless, token, "", methodCallTool, meta, "")
		}
		for range 2 {
			for meta, want := range map[string]string{ada: "|ada|general", bob: "|bob|general", elsewhere: "|ada|random"} {
				if a := call("good-chat", meta); a.served() != want {
					t.Errorf("%s is served as %q: %s", meta, a.served(), a.Body)
				}
			}
		}
		if n := e.vault.opened.Load(); n != 3 || e.front.Sessions() != 3 {
			t.Errorf("%d sessions were opened, %d are kept", n, e.front.Sessions())
		}
		if call("good-chat", ada+`,"durward/instance":"00000000000000000000000000000001"`); e.vault.opened.Load() != 3 {
			t.Error("another program of the same sender opened another session")
		}
		refused(t, "nobody", call("good-chat", ""))
		refused(t, "a sender of a client that is no messaging one", call("good-ada", ada))
		if a := call("good-ada", ""); a.served() != "||" {
			t.Errorf("without a sender: %q %s", a.served(), a.Body)
		}
		// Two parts of a name are not another name.
		call("good-chat", sender("a", "b c"))
		call("good-chat", sender("a b", "c"))
		if n := e.front.Sessions(); n != 6 {
			t.Errorf("%d sessions", n)
		}
	})
	t.Run("sessions", func(t *testing.T) {
		e := newWhoEdge(t)
		refused(t, "nobody", e.send(Stateful, "good-chat", "", methodInitialize, "", ""))
		refused(t, "a sender of a client that is no messaging one", e.send(Stateful, "good-ada", "", methodInitialize, ada, ""))
		open := func(token, meta string) string {
			t.Helper()
			a := e.send(Stateful, token, "", methodInitialize, meta, "")
			if a.Header().Get(headerSession) == "" {
				t.Fatalf("%d %s", a.Code, a.Body)
			}
			return a.Header().Get(headerSession)
		}
		hers, his, plain := open("good-chat", ada), open("good-chat", bob), open("good-ada", "")
		call := func(token, session, meta string) reply {
			return e.send(Stateful, token, session, methodCallTool, meta, "")
		}
		if a := call("good-chat", hers, ada); a.served() != "|ada|general" {
			t.Errorf("her own: %q %s", a.served(), a.Body)
		}
		if a := call("good-chat", his, bob); a.served() != "|bob|general" {
			t.Errorf("his own: %q %s", a.served(), a.Body)
		}
		refused(t, "his request in her session", call("good-chat", hers, bob))
		refused(t, "her other room", call("good-chat", hers, elsewhere))
		refused(t, "nobody's request in her session", call("good-chat", hers, ""))
		refused(t, "a sender in a session without", call("good-ada", plain, ada))
		if n := e.vault.opened.Load(); n != 3 {
			t.Errorf("%d sessions were opened", n)
		}
		if a := call("good-ada", plain, ""); a.served() != "||" {
			t.Errorf("without a sender: %q %s", a.served(), a.Body)
		}
	})
}

// An agent is named where a session opens, by the message or a header around it, and is its session's from then on. One that the
// client does not have looks like a wrong token.
func TestAgents(t *testing.T) {
	planner := `"durward/agent":"planner"`
	t.Run("stateless", func(t *testing.T) {
		e := newWhoEdge(t)
		for range 2 {
			for _, c := range []struct{ meta, header, want string }{
				{planner, "", "planner||"}, {"", "planner", "planner||"}, {planner, "planner", "planner||"}, {"", "coder", "coder||"}, {"", "", "||"},
			} {
				if a := e.send(Stateless, "good-ada", "", methodCallTool, c.meta, c.header); a.served() != c.want {
					t.Errorf("%+v: %q %s", c, a.served(), a.Body)
				}
			}
		}
		if n := e.vault.opened.Load(); n != 3 {
			t.Errorf("%d sessions were opened", n)
		}
		wrong, unknown := e.send(Stateless, "bad", "", methodCallTool, "", ""), e.send(Stateless, "good-ada", "", methodCallTool, `"durward/agent":"stranger"`, "")
		if unknown.served() != "" || unknown.Code != http.StatusUnauthorized || withoutID(unknown) != withoutID(wrong) {
			t.Errorf("an unknown agent: %d %s\na wrong token: %d %s", unknown.Code, unknown.Body, wrong.Code, wrong.Body)
		}
	})
	t.Run("sessions", func(t *testing.T) {
		e := newWhoEdge(t)
		for header, meta := range map[string]string{"": planner, "planner": ""} {
			session := e.send(Stateful, "good-ada", "", methodInitialize, meta, header).Header().Get(headerSession)
			for _, c := range []struct {
				meta, header string
				good         bool
			}{{"", "", true}, {planner, "", true}, {"", "planner", true}, {"", "coder", false}, {`"durward/agent":"coder"`, "", false}} {
				a := e.send(Stateful, "good-ada", session, methodCallTool, c.meta, c.header)
				if (a.served() == "planner||") != c.good || !c.good && !strings.Contains(a.Body.String(), "another agent's") {
					t.Errorf("%+v: %q %s", c, a.served(), a.Body)
				}
			}
		}
		if a := e.send(Stateful, "good-ada", "", methodInitialize, `"durward/agent":"stranger"`, ""); a.Code != http.StatusUnauthorized {
			t.Errorf("an unknown agent: %d %s", a.Code, a.Body)
		}
	})
}

// An opening that the vault refuses makes its token a stranger's, and takes nothing from the sessions that the token has: their messages may
// be as long as before.
func TestARefusedOpeningLeavesTheOtherSessions(t *testing.T) {
	e := newWhoEdge(t)
	session := e.send(Stateful, "good-ada", "", methodInitialize, "", "").Header().Get(headerSession)
	if a := e.send(Stateful, "good-ada", "", methodInitialize, `"durward/agent":"stranger"`, ""); a.Code != http.StatusUnauthorized {
		t.Fatalf("an unknown agent: %d %s", a.Code, a.Body)
	}
	long := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status","arguments":{"a":"` + strings.Repeat("a", maxFromStranger) + `"}}}`
	if a := e.post("good-ada", session, long); a.Code != http.StatusOK {
		t.Errorf("in the session that was there: %d %s", a.Code, a.Body)
	}
}

// withoutID is an answer without the request's id.
func withoutID(a reply) string {
	return strings.ReplaceAll(a.Body.String(), a.Header().Get("Durward-Request-Id"), "r")
}

// Web origins may be replaced while requests are served, and an origin that is taken away is refused from then on.
func TestOriginsAreReplaced(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	from := func(origin string) int {
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(hello))
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}, "Authorization": {"Bearer good-ada"}, "Origin": {origin}}
		return e.do(r).Code
	}
	const page = "https://console.example"
	origins := cors.NewOrigins()
	e.front.conf.Origins = origins
	for _, c := range []struct {
		origins []string
		want    int
	}{{nil, http.StatusForbidden}, {[]string{page}, http.StatusOK}, {[]string{"https://other.example"}, http.StatusForbidden}} {
		origins.Set(c.origins)
		if got := from(page); got != c.want {
			t.Errorf("%v: %d", c.origins, got)
		}
	}
}
