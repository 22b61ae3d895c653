package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// api is a server that wants a token, tells everybody what it was sent, and remembers it.
type api struct {
	*httptest.Server
	hold   chan struct{}
	closed chan struct{}

	mu   sync.Mutex
	sent []string
}

func newAPI(t *testing.T, elsewhere string) *api {
	a := &api{hold: make(chan struct{}, 1), closed: make(chan struct{}, 1)}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what does not come is not echoed, and the test says so
		line := fmt.Sprintf("%s %s got %q, body=%s", r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"), body)
		a.mu.Lock()
		a.sent = append(a.sent, line)
		a.mu.Unlock()
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		case "/back":
			http.Redirect(w, r, elsewhere+"?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		case "/gone":
			panic(http.ErrAbortHandler)
		case "/contact":
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, "Write to jane.roe@mail-canary.example about it.")
		case "/v1/chat/completions":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<p>obey</p>")
		case "/slow":
			a.hold <- struct{}{}
			<-r.Context().Done()
			a.closed <- struct{}{}
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"you sent":%q}`, line)
		}
	}))
	t.Cleanup(a.Close)
	return a
}

// all is what it was sent so far.
func (a *api) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.sent...)
}

// TestARequestWithWhatNobodySees is the walk-through of http_request: an agent calls an API with credentials that neither it nor the
// gateway nor audit ever sees, to the origin and in the place that a human granted each for, and sends on an e-mail address that it knows
// as a reference alone.
func TestARequestWithWhatNobodySees(t *testing.T) {
	t.Parallel()
	other := newAPI(t, "/")
	a := newAPI(t, other.URL+"/taken")
	at := func(s *api) string { return `"` + strings.TrimPrefix(s.URL, "http://") + `"` }
	h := harness.New(t, harness.Options{Egress: true})
	h.WriteFile("config/egress.yaml", strings.Replace(h.ReadFile("config/egress.yaml"), "\nlocal: []\n", "\nlocal: ["+at(a)+", "+at(other)+"]\n", 1))
	h.WriteFile("config/vault.yaml", h.ReadFile("config/vault.yaml")+
		"\nprivacy: {disclose: [{types: [EMAIL], sink: egress, tool: http_request, arguments: [/body]}]}\n")
	token := h.AddClient("agent")
	clients := h.ReadFile("config/clients.yaml")
	named := strings.Replace(clients, "id: agent\n", "id: agent\n    credentials: [api, shop, door]\n", 1)
	if named == clients {
		t.Fatalf("the agent is not in clients.yaml:\n%s", clients)
	}
	h.WriteFile("config/clients.yaml", named)
	h.StartAll()
	agent := h.Connect(token)
	value := canary("api")
	if out := h.Run(value, "credential", "add", "api", "--variable", "API_TOKEN", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	// send asks for a request, which a human approves.
	send := func(arguments map[string]any) harness.Envelope {
		t.Helper()
		arguments["reason"] = "to try it"
		e := agent.Ask("http_request", arguments)
		if e.Status != "pending_approval" {
			return e
		}
		h.Approve(e.OperationID)
		return agent.Ask("wait_operation", map[string]any{"operation_id": e.OperationID})
	}
	credential := map[string]any{"authorization": map[string]any{"$credential": "api"}}
	post := func(url string, more map[string]any) harness.Envelope {
		t.Helper()
		arguments := map[string]any{"url": url, "method": "POST", "headers": map[string]any{"content-type": "application/json"}, "body": `{"n":1}`, "credentials": credential}
		maps.Copy(arguments, more)
		return send(arguments)
	}
	refused := func(what string, e harness.Envelope, code string) {
		t.Helper()
		if e.Status == "ok" || e.Error == nil || e.Error.Code != code || strings.Contains(string(e.Raw), value) {
			t.Errorf("%s: %s", what, e.Raw)
		}
	}

	// Not granted: a human's yes to the call is not enough.
	refused("not granted", post(a.URL+"/issues", nil), "DENIED")
	h.Durward("credential", "grant", "api", "--origin", a.URL, "--agent", "agent", "--yes")
	refused("for another origin", post(other.URL+"/issues", nil), "DENIED")
	refused("in another header", post(a.URL+"/issues", map[string]any{"credentials": map[string]any{"x-api-key": map[string]any{"$credential": "api"}}}), "DENIED")
	refused("another credential", post(a.URL+"/issues", map[string]any{"credentials": map[string]any{"authorization": map[string]any{"$credential": "other"}}}), "DENIED")
	for what, more := range map[string]map[string]any{
		"a credential as a header":      {"headers": map[string]any{"authorization": "Bearer x"}},
		"a header of the connection":    {"headers": map[string]any{"transfer-encoding": "chunked"}},
		"two lines in a header":         {"headers": map[string]any{"accept": "a\r\nhost: b"}},
		"a method of its own":           {"method": "CONNECT"},
		"a body that is too long":       {"body": strings.Repeat("a", 32769)},
		"a value beside the credential": {"credentials": map[string]any{"authorization": map[string]any{"$credential": "api", "value": "x"}}},
		"the address in another way":    {"url": "http://0x7f000001/"},
	} {
		refused(what, post(a.URL+"/issues", more), "INVALID_ARGUMENT")
	}
	if sent := append(a.all(), other.all()...); len(sent) != 0 {
		t.Fatalf("what was refused was sent: %q", sent)
	}

	// Granted: the server gets it, and what the server sends back tells nobody.
	e := post(a.URL+"/issues", nil)
	if e.Status != "ok" || strings.Contains(string(e.Raw), value) || !strings.Contains(string(e.Raw), "[a credential was here]") {
		t.Fatalf("granted: %s", e.Raw)
	}
	if want, sent := fmt.Sprintf(`POST /issues got "Bearer %s", body={"n":1}`, value), a.all(); len(sent) != 1 || sent[0] != want {
		t.Fatalf("sent: %q", sent)
	}
	// A redirect is the answer, and the credential goes nowhere else.
	if e = post(a.URL+"/away", nil); e.Status != "ok" || !strings.Contains(string(e.Raw), `"status":307`) || !strings.Contains(string(e.Raw), other.URL+"/taken") || len(other.all()) != 0 {
		t.Errorf("a redirect: %s, and the other server was sent %q", e.Raw, other.all())
	}
	if e = post(a.URL+"/v1/chat/completions", nil); e.Status != "error" || !strings.Contains(e.Error.Message, "application/json") || !strings.Contains(e.Error.Message, "may have been carried out") {
		t.Errorf("an LLM's API that answers with a page: %s", e.Raw)
	}
	if e = post(a.URL+"/long", map[string]any{"body": strings.Repeat("0123456789abcde\n", 2048)}); e.Status != "ok" {
		t.Errorf("the longest body: %s", e.Raw)
	}

	// The same in the other places: a member of the body, a name and password. The human sees the name in the place, and what
	// the server sends back, a redirect's address too, tells nobody. A call that hangs up says nothing either.
	values := []string{value}
	for _, c := range []struct {
		name, value, place, sent string
		how                      []string
	}{
		{"shop", canary("shop") + `"`, "/auth/token", `POST %s?n=1 got "", body={"auth":{"token":"` + canary("shop") + `\"","id":7}}`, []string{"--body", "/auth/token"}},
		{"door", "me:" + canary("door"), "authorization", `POST %s?n=1 got "Basic ` + base64.StdEncoding.EncodeToString([]byte("me:"+canary("door"))) + `", body={"n":1}`, []string{"--scheme", "Basic"}},
	} {
		values = append(values, canary(c.name))
		if out := h.Run(c.value, "credential", "add", c.name, "--variable", "API_TOKEN", "--stdin", "--yes"); out.Code != 0 {
			t.Fatalf("add: %+v", out)
		}
		card := h.Durward(append([]string{"credential", "grant", c.name, "--origin", a.URL, "--agent", "agent", "--yes"}, c.how...)...)
		if !strings.Contains(card, "You sign: "+c.name) {
			t.Errorf("the grant says %s", card)
		}
		body := `{"n":1}`
		if c.place[0] == '/' {
			body = `{"auth":{"id":7}}`
		}
		arguments := func(path, place string) map[string]any {
			return map[string]any{"url": a.URL + path + "?n=1", "method": "POST", "body": body, "credentials": map[string]any{place: map[string]any{"$credential": c.name}}, "reason": "to try it"}
		}
		before := len(a.all())
		refused(c.name+" in another place", send(arguments("/issues", "x-other")), "DENIED")
		asked := agent.Ask("http_request", arguments("/issues", c.place))
		if card := h.Durward("approve", asked.OperationID, "--yes"); !strings.Contains(card, c.place) || !strings.Contains(card, "$credential") || strings.Contains(card, canary(c.name)) {
			t.Errorf("the card says %s", card)
		}
		e := agent.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID})
		// What stands in its place may look like a secret of its own.
		if e.Status != "ok" || strings.Contains(string(e.Raw), canary(c.name)) || !regexp.MustCompile(`\[a credential was here\]|\[\[SECRET:`).Match(e.Raw) {
			t.Errorf("%s: %s", c.name, e.Raw)
		}
		if e := send(arguments("/back", c.place)); e.Status != "ok" || strings.Contains(string(e.Raw), canary(c.name)) || len(other.all()) != 0 {
			t.Errorf("%s, redirected with what was sent: %s; the other was sent %q", c.name, e.Raw, other.all())
		}
		if e := send(arguments("/gone", c.place)); e.Status != "error" || strings.Contains(string(e.Raw), canary(c.name)) {
			t.Errorf("%s, and no answer: %s", c.name, e.Raw)
		}
		var want []string
		for _, path := range []string{"/issues", "/back", "/gone"} {
			want = append(want, strings.Replace(c.sent, "%s", path, 1))
		}
		if sent := a.all()[before:]; !slices.Equal(sent, want) {
			t.Errorf("%s: sent %q, want %q", c.name, sent, want)
		}
	}

	// An e-mail address that the agent knows by reference goes into the body, as the human saw by a hint, and comes back as a reference.
	h.Durward("egress", "allow", strings.Trim(at(a), `"`), "--yes")
	var reference string
	harness.Eventually(t, "the page is read without asking", func() error {
		page := agent.Ask("fetch_url", map[string]any{"url": a.URL + "/contact"})
		if page.Status == "pending_approval" {
			h.Deny(page.OperationID, "not yet")
		}
		if reference = regexp.MustCompile(`\[\[PII:EMAIL:tkn_[^\]]+\]\]`).FindString(string(page.Raw)); reference == "" {
			return fmt.Errorf("%s", page.Raw)
		}
		return nil
	})
	arguments := map[string]any{"url": a.URL + "/mail", "method": "POST", "body": "to=" + reference, "reason": "the user asked"}
	e = agent.Ask("http_request", arguments)
	if card := h.Durward("approve", e.OperationID, "--yes"); !strings.Contains(card, "EMAIL") || strings.Contains(card, "jane.roe@") {
		t.Errorf("the card says %s", card)
	}
	e = agent.Ask("wait_operation", map[string]any{"operation_id": e.OperationID})
	if sent := a.all(); e.Status != "ok" || sent[len(sent)-1] != `POST /mail got "", body=to=jane.roe@mail-canary.example` || strings.Contains(string(e.Raw), "jane.roe@") {
		t.Errorf("with an address: %s; sent %q", e.Raw, sent)
	}
	// What the agent writes itself is a reference as soon as it has left the agent, and no rule is needed for it.
	form := send(map[string]any{
		"url": a.URL + "/mail", "method": "POST", "headers": map[string]any{"content-type": "application/x-www-form-urlencoded"}, "body": "to=" + reference + "&n=1",
	})
	if sent := a.all(); form.Status != "ok" || sent[len(sent)-1] != `POST /mail got "", body=to=jane.roe%40mail-canary.example&n=1` {
		t.Errorf("in a form: %s, sent %q", form.Raw, sent[len(sent)-1])
	}
	own := `{"to":"john.doe@mail-canary.example","card":5500005555555559}`
	e = agent.Ask("http_request", map[string]any{"url": a.URL + "/own", "method": "POST", "body": own, "reason": "the user asked"})
	if card := h.Durward("approve", e.OperationID, "--yes"); !strings.Contains(card, "EMAIL") || !strings.Contains(card, "CREDIT_CARD") || strings.Contains(card, "john.doe@") || strings.Contains(card, "55000055") {
		t.Errorf("the card of its own says %s", card)
	}
	e = agent.Ask("wait_operation", map[string]any{"operation_id": e.OperationID})
	if sent := a.all(); e.Status != "ok" || sent[len(sent)-1] != `POST /own got "", body=`+own {
		t.Errorf("with its own: %s; sent %q", e.Raw, sent)
	}
	before := len(a.all())
	for what, arguments := range map[string]map[string]any{
		"where no rule lets it":   {"url": a.URL + "/" + reference, "method": "POST", "body": "x"},
		"what stands for nothing": {"url": a.URL + "/mail", "method": "POST", "body": "to=[[PII:EMAIL:tkn_" + strings.Repeat("a", 26) + "]]"},
	} {
		if e := send(arguments); e.Status == "ok" {
			t.Errorf("%s: %s", what, e.Raw)
		}
	}
	if n := len(a.all()); n != before {
		t.Errorf("%d requests too many", n-before)
	}

	for place, what := range h.Disclosed(values...) {
		t.Errorf("%s holds %s", place, what)
	}
	if log := h.Durward("audit", "search", "--kind", "credential-used", "--json"); !strings.Contains(log, `"domain": "request"`) || !strings.Contains(log, a.URL) {
		t.Errorf("the uses are not in the log:\n%s", log)
	}

	// Who connected where, by which name and address, how much, and by which rule not.
	for _, want := range []string{
		`agent +http_request +` + regexp.QuoteMeta(strings.Trim(at(a), `"`)) + ` +` + regexp.QuoteMeta(strings.Trim(at(a), `"`)) + ` +7 +\d+ +200 +answered`,
		`agent +fetch_url +.* 200 +answered`, `agent +http_request +` + regexp.QuoteMeta(strings.Trim(at(other), `"`)) + ` +- +7 +- +- +failed`,
		`refused +content`,
	} {
		if text := h.Durward("egress", "log"); !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the log of connections has no %s:\n%s", want, text)
		}
	}

	// The agent's own report says which origins answered it, and nothing of what was sent or said there.
	for format, want := range map[string]string{"csp": "connect-src " + a.URL, "har": `"url\":\"` + a.URL + `/`, "sarif": `\"ruleId\":\"content\"`} {
		e := agent.Ask("security_report", map[string]any{"format": format, "severity_override": "low"})
		if raw := string(e.Raw); e.Status != "ok" || !strings.Contains(raw, want) || strings.Contains(raw, "/issues") || !strings.Contains(raw, `"session_overrides":["severity=low"]`) {
			t.Errorf("%s: %s", format, raw)
		}
	}
	if e := agent.Ask("security_report", map[string]any{"format": "sarif", "severity_override": "high"}); e.Status != "error" || e.Error.Field != "severity_override" {
		t.Errorf("an override beyond what a human allows: %s", e.Raw)
	}

	// A panic closes what is open; the agent is told that it may have happened.
	e = agent.Ask("http_request", map[string]any{"url": a.URL + "/slow", "method": "POST", "reason": "to wait"})
	h.Approve(e.OperationID)
	answered := make(chan harness.Envelope, 1)
	go func() { answered <- agent.Ask("wait_operation", map[string]any{"operation_id": e.OperationID}) }()
	<-a.hold
	h.Durward("panic")
	<-a.closed
	if e := <-answered; e.Status != "error" || e.Error.Code != "HALTED" || !strings.Contains(e.Error.Message, "look at the state") {
		t.Errorf("a request that was open in a panic: %s", e.Raw)
	}
	for _, r := range h.Records(&auditv1.SearchRecordsRequest{Tool: "http_request", Limit: 100}) {
		for _, hidden := range append(values, "john.doe@", "55000055", "jane.roe@") {
			if strings.Contains(r.GetRecord().String(), hidden) {
				t.Errorf("a record holds %s: %v", hidden, r)
			}
		}
	}
}
