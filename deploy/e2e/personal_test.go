package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// people are personal values that nothing else in an installation holds.
var people = []string{"maria.gonzalez@example.org", "5500005555555559", "12025550123", "DE89370400440532013000", "emp-004711"}

// planted are the values in each form in which a program writes such things.
func planted() []string {
	mail := people[0]
	return []string{
		"mail to " + mail + " was sent", `{"phone":` + people[2] + `,"n":1}`, `{"card": ` + people[1] + `}`, `{"` + mail + `":{"seen":true}}`,
		`{"body":"{\"to\":\"` + mail + `\",\"phone\":` + people[2] + `}"}`, "GET /?to=" + url.QueryEscape(mail) + "&x=1", "IBAN " + people[3] + " charged",
		"body: " + base64.StdEncoding.EncodeToString([]byte(`{"to":"`+mail+`"}`)), "badge " + people[4] + " opened the door",
	}
}

// raw returns which of the values a text holds, in a form that is read at a glance.
func rawValues(text string) (found []string) {
	text = strings.ToLower(text)
	for _, value := range append([]string{"gonzalez", "gonzalez%40", base64.RawStdEncoding.EncodeToString([]byte(`{"to":"maria`)), "emp-0047"}, people...) {
		if strings.Contains(text, strings.ToLower(value)) || len(value) > 12 && strings.Contains(text, strings.ToLower(value[:9])) {
			found = append(found, value)
		}
	}
	return found
}

// exit is what an agent met at one of the ways by which text comes to it.
type exit struct{ references, raw int }

// exits are those ways.
var exits = []string{"the tail of a failed change", "a page of a log", "a window of a page", "headers and the final URL", "a failure"}

// TestPersonalDataLeavesByNoExit plants personal data in everything that an agent is answered with: a service's log, cut lines and pages of
// it, the tail of a failed change, a page and its windows, headers, a final URL, a failure. None reaches the agent, the log or what a process
// writes of itself.
func TestPersonalDataLeavesByNoExit(t *testing.T) {
	t.Parallel()
	h, met := throughEveryExit(t, harness.Options{})
	for _, name := range exits {
		if e := met[name]; e.references == 0 || e.raw > 0 {
			t.Errorf("%s: %d references, %d values", name, e.references, e.raw)
		}
	}
	for _, role := range append(harness.Roles(), harness.Egress) {
		if found := rawValues(h.Process(role).Log()); len(found) > 0 {
			t.Errorf("the log of the %s holds %q", role, found)
		}
	}
	// What the log keeps of it all.
	for _, r := range h.Records(&auditv1.SearchRecordsRequest{Limit: 1000}) {
		if found := rawValues(r.String()); len(found) > 0 { // not as JSON, which hides a statement's bytes in base64
			t.Errorf("a record holds %q: %s", found, r)
		}
	}
}

// TestPersonalDataLeavesWithoutTheVault is its control: sinks that do not have the vault look through text are caught at each exit.
func TestPersonalDataLeavesWithoutTheVault(t *testing.T) {
	t.Parallel()
	_, met := throughEveryExit(t, harness.Options{Build: harness.Build{Weak: true}, Flags: map[string][]string{
		harness.Executor: {"-weaken", "tokenise"}, harness.Egress: {"-weaken", "tokenise"},
	}})
	for _, name := range exits {
		if met[name].raw == 0 {
			t.Errorf("%s: no value is found where nothing takes it away", name)
		}
	}
}

// throughEveryExit has an agent read everything that holds planted values, and tells what it met.
func throughEveryExit(t *testing.T, options harness.Options) (*harness.Host, map[string]exit) {
	t.Helper()
	shipped := !options.Build.Weak
	lines := planted()
	var web *httptest.Server
	web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, web.URL+"/for/"+people[0]+"?"+url.Values{"iban": {people[3]}}.Encode(), http.StatusFound)
			return
		case "/away":
			http.Redirect(w, r, "http://emp-004711.example/", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", `text/plain; contact="`+people[0]+`"`)
		for range 40 { // no line ends, so that windows end where they are full
			_, _ = fmt.Fprint(w, strings.Join(lines, " ; ")+" ; and so on, ")
		}
	}))
	t.Cleanup(web.Close)
	address := strings.TrimPrefix(web.URL, "http://")
	options.Egress, options.Catalog = true, func(h *harness.Host) string {
		return harness.DemoCatalog(h) + harness.ScriptedEntry(h, 4) + "modes:\n  - {id: broken, name: Broken, services: [" + harness.ScriptedService + "]}\n"
	}
	h := harness.New(t, options)
	var log strings.Builder
	for i := range 60 {
		log.WriteString(strings.Repeat("x", 980-len(people[0])+i) + " " + people[0] + " y\n") // cut in it, before it and behind it
		log.WriteString(lines[i%len(lines)] + "\n")
		log.WriteString(strings.Repeat("z", 480-len(people[0])+i) + " " + people[0] + " y\n")
	}
	must(t, os.WriteFile(filepath.Join(h.Dir, "planted"), []byte(log.String()), 0o600))
	h.WriteFile("svc.sh", "cat planted\nexit 1\n")
	h.WriteFile("config/egress.yaml", strings.Replace(h.ReadFile("config/egress.yaml"), "\nlocal: []\n", "\nlocal: [\""+address+"\"]\n", 1))
	h.WriteFile("config/vault.yaml", h.ReadFile("config/vault.yaml")+"\nprivacy:\n  patterns:\n    - {type: EMPLOYEE, expression: 'emp-\\d{6}', examples: [emp-004711]}\n")
	h.StartAll()
	h.Durward("egress", "allow", address, "--yes")
	token := h.AddClient("agent", ceiling...)
	agent := h.Connect(token)
	met := map[string]exit{}
	look := func(name string, e harness.Envelope) harness.Envelope {
		t.Helper()
		found := rawValues(string(e.Raw))
		if len(found) > 0 && shipped {
			t.Logf("%s: the agent is shown %q in %.3000s", name, found, e.Raw)
		}
		met[name] = exit{met[name].references + strings.Count(string(e.Raw), "tkn_"), met[name].raw + len(found)}
		return e
	}

	// A change that fails, with the tail of the service's log.
	failed := look("the tail of a failed change", harness.Again(func() harness.Envelope { // a tail that was withheld stays so
		var plan struct {
			PlanDigest string `json:"plan_digest"`
		}
		agent.Ask("simulate_mode", map[string]any{"mode_id": "broken"}).Decode(t, &plan)
		asked := agent.Ask("switch_mode", map[string]any{"mode_id": "broken", "plan_digest": plan.PlanDigest})
		if asked.Status != "pending_approval" {
			t.Fatalf("%s", asked.Raw)
		}
		h.Approve(asked.OperationID)
		for {
			if e := agent.Call("wait_operation", map[string]any{"operation_id": asked.OperationID}); e.Withheld() || !e.NotNow() {
				return e
			}
		}
	}))
	if failed.Status != "error" && !strings.Contains(string(failed.Raw), "ROLLED_BACK") && !strings.Contains(string(failed.Raw), "DEGRADED") {
		t.Errorf("the change did not fail: %s", failed.Raw)
	}

	// The whole log, in pages of every length.
	for n := 1; n <= 40; n += 13 {
		for cursor := ""; ; {
			arguments := map[string]any{"service_id": harness.ScriptedService, "lines": n, "cursor": "b0"}
			if cursor != "" {
				arguments["cursor"] = cursor
			}
			e := look("a page of a log", agent.Ask("service_logs", arguments))
			var page struct {
				Log, Cursor string
				More        bool
			}
			if e.Status != "ok" {
				t.Fatalf("%s", e.Raw)
			}
			e.Decode(t, &page)
			if cursor = page.Cursor; !page.More {
				break
			}
			if n == 1 && met["a page of a log"].references > 40 || !shipped {
				break // one by one is the same again
			}
		}
	}

	// A page, window by window; what stands between its windows is on one of them.
	var whole strings.Builder
	for cursor := 0; ; {
		e := look("a window of a page", agent.Ask("fetch_url", map[string]any{"url": web.URL + "/page", "cursor": cursor}))
		var page struct {
			Text   string
			Cursor int
			More   bool
		}
		if e.Status != "ok" {
			t.Fatalf("%s", e.Raw)
		}
		e.Decode(t, &page)
		text := strings.TrimSuffix(strings.TrimPrefix(page.Text, "<fetched_content>"), "</fetched_content>")
		whole.WriteString(text)
		if cursor = page.Cursor; !page.More {
			break
		}
	}
	if n := strings.Count(whole.String(), "and so on, "); n != 40 {
		t.Errorf("the windows hold %d of 40 parts", n)
	}
	look("headers and the final URL", agent.Ask("fetch_url", map[string]any{"url": web.URL + "/moved", "head": true}))
	if e := look("a failure", agent.Ask("fetch_url", map[string]any{"url": web.URL + "/away"})); e.Status != "error" || !strings.Contains(string(e.Raw), "on no list") {
		t.Errorf("a redirect that is refused: %s", e.Raw)
	}
	return h, met
}
