//go:build real

package real

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// pages is a site of this host by name, with all that a page can try.
type pages struct {
	*httptest.Server
	asked atomic.Int32
}

func newPages(t *testing.T, start func(http.Handler) *httptest.Server, other string) *pages {
	p := &pages{}
	p.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/favicon.ico" {
			http.NotFound(w, r)
			return
		}
		p.asked.Add(1)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		body := ""
		switch r.URL.Path {
		case "/cookie":
			http.SetCookie(w, &http.Cookie{Name: "visit", Value: "seen-before", MaxAge: 3600})
			body = "cookie [" + r.Header.Get("Cookie") + "]"
		case "/busy":
			body = `busy page<script>alert("stop"); window.open("/popup"); document.write("the script went on");
				const a = document.createElement("a"); a.href = "/file"; a.download = "prize.txt"; document.body.append(a); a.click();
				fetch("` + other + `/stolen").catch(() => document.body.append(" and was kept in"));</script>`
		case "/click":
			body = `<button id="open" onclick="this.textContent = 'was clicked: ' + (window.open('/popup') !== null)">open</button>
				<a id="linked" href="` + other + `/linked">what is linked</a>`
		case "/popup":
			body = "this is a pop-up"
		case "/file":
			w.Header().Set("Content-Disposition", `attachment; filename="prize.txt"`)
			body = "what was downloaded"
		case "/away":
			http.Redirect(w, r, other+"/redirected", http.StatusFound)
			return
		default:
			body = `hello from a page <a href="https://elsewhere.example/x">elsewhere</a>`
		}
		_, _ = fmt.Fprint(w, "<title>A page</title><body>"+body)
	}))
	t.Cleanup(p.Close)
	return p
}

// named is the site's URL by a name, since servers reach hosts by name alone.
func (p *pages) named() string { return strings.Replace(p.URL, "127.0.0.1", "docs.example", 1) }

func host(url string) string { return url[strings.Index(url, "//")+2:] }

// TestBrowser (BRW-1): @playwright/mcp and the host's Chromium in the sandbox, by the entry that deploy/examples has. Pages are read where both the
// list of domains and the entry lead; nothing else is reached, whatever an agent or a page tries; and a session leaves nothing to the next.
func TestBrowser(t *testing.T) { // not beside others: Chromium needs both cores to start in time
	other := newPages(t, httptest.NewServer, "")
	site := newPages(t, httptest.NewServer, other.named())
	secure := newPages(t, httptest.NewTLSServer, "")

	h := harness.New(t, harness.Options{Egress: true})
	var local []string
	for _, p := range []*pages{site, other, secure} {
		local = append(local, `"`+p.Listener.Addr().String()+`"`)
	}
	h.WriteFile("config/egress.yaml", strings.Replace(h.ReadFile("config/egress.yaml"), "\nlocal: []\n", "\nlocal: ["+strings.Join(local, ", ")+"]\n", 1))
	token, driver := h.AddClient("agent"), h.AddClient("driver")
	h.WriteFile("config/clients.yaml", strings.Replace(h.ReadFile("config/clients.yaml"), "- id: driver\n", "- id: driver\n    may: [browser__browser_navigate]\n", 1))
	// Egress alone has another /etc/hosts, in a mount namespace of its own.
	hosts := h.Path("hosts")
	h.WriteFile("hosts", "127.0.0.1 docs.example\n")
	under := []string{"unshare", "--mount", "--propagation", "private", "sh", "-ec", `mount --bind "$0" /etc/hosts; exec "$@"`, hosts}
	if os.Geteuid() != 0 {
		under = slices.Insert(under, 1, "--map-root-user")
	}
	for _, role := range harness.Roles() {
		if role == harness.Gateway {
			h.LaunchUnder(under, harness.Egress)
			h.AwaitHealthy(harness.Egress)
		}
		h.StartProcess(role)
	}
	entry := example(t, h, "browser")
	list := fmt.Sprintf("[%q, %q]", host(site.named()), host(secure.named()))
	h.WriteFile("config/servers.yaml", strings.Replace(entry, `[docs.example, "*.docs.example"]`, list, 1))
	command(t, h, "server", "accept", "browser", "--yes")
	for _, p := range []*pages{site, other, secure} {
		h.Durward("egress", "allow", host(p.named()), "--yes")
	}

	agent := h.Connect(token)
	ask := func(c *harness.Client, tool string, arguments map[string]any, want, says string) harness.Envelope {
		t.Helper()
		e := c.Ask("browser__browser_"+tool, arguments)
		if e.Status != want || !strings.Contains(string(e.Raw), says) {
			t.Fatalf("%s %v is %s, want %s with %q: %s", tool, arguments, e.Status, want, says, e.Raw)
		}
		return e
	}
	navigate := func(c *harness.Client, url, want, says string) harness.Envelope {
		t.Helper()
		return ask(c, "navigate", map[string]any{"url": url}, want, says)
	}

	// see leads a session's browser somewhere, and returns what is there.
	see := func(c *harness.Client, url, says string) string {
		t.Helper()
		c.Ask("browser__browser_navigate", map[string]any{"url": url})
		return string(ask(c, "snapshot", map[string]any{}, "ok", says).Raw)
	}

	harness.Eventually(t, "the server and its domain are in force", func() error {
		if e := agent.Ask("browser__browser_navigate", map[string]any{"url": site.named() + "/"}); e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
	if text := see(agent, site.named()+"/", "hello from a page"); !strings.Contains(text, `\u003cfetched_content\u003e`) {
		t.Errorf("a page leaves as it came: %s", text)
	}
	see(agent, secure.named()+"/", "hello from a page")

	for _, url := range []string{
		"file:///etc/passwd", "FILE:///etc/passwd", "javascript:alert(1)", "data:text/html,hello", "about:blank", "chrome://version", "blob:x",
		"view-source:" + site.named(),
	} {
		if e := navigate(agent, url, "error", "only http and https"); e.Error.Code != "INVALID_ARGUMENT" {
			t.Errorf("%s: %s", url, e.Raw)
		}
	}
	for _, url := range []string{"https://elsewhere.example/", "http://docs.example:1/"} {
		h.Deny(navigate(agent, url, "pending_approval", "").OperationID, "not there")
	}
	// The list of domains has it, and the entry does not.
	see(agent, other.named()+"/", "is not among the domains of server browser")
	see(agent, site.named()+"/away", "is not among the domains of server browser")

	// An alert, a pop-up, a download and a request elsewhere: the page is read all the same, and one page is open.
	harness.Eventually(t, "the page with all of them is read", func() error {
		agent.Ask("browser__browser_navigate", map[string]any{"url": site.named() + "/busy"})
		text := string(agent.Ask("browser__browser_snapshot", map[string]any{}).Raw)
		if !strings.Contains(text, "the script went on") || !strings.Contains(text, "and was kept in") || !strings.Contains(text, "downloads/prize.txt") || strings.Contains(text, "what was downloaded") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	if n := other.asked.Load(); n != 0 {
		t.Errorf("what the entry does not have was asked %d times", n)
	}
	approved := func(tool string, arguments map[string]any) harness.Envelope {
		t.Helper()
		asked := agent.Ask("browser__browser_"+tool, arguments)
		h.Approve(asked.OperationID)
		return agent.Ask("wait_operation", asked.Next.Arguments)
	}
	alone := func() error {
		if e := approved("tabs", map[string]any{"action": "list"}); e.Status != "ok" || !strings.Contains(string(e.Raw), "- 0: (current)") || strings.Contains(string(e.Raw), "- 1:") {
			return fmt.Errorf("tabs: %s", e.Raw)
		}
		return nil
	}
	if err := alone(); err != nil {
		t.Error(err)
	}
	// A window that a page opens as somebody clicks, which no browser blocks, is closed again; and where a link of a page leads is judged when it is
	// followed, whoever clicked it. That the click arrives the page shows.
	see(agent, site.named()+"/click", other.named()+"/linked")
	if e := approved("click", map[string]any{"element": "the button", "target": "#open"}); e.Status != "ok" {
		t.Errorf("a click: %s", e.Raw)
	}
	harness.Eventually(t, "one page is open after the click", alone)
	if e := ask(agent, "snapshot", map[string]any{}, "ok", "was clicked: true"); strings.Contains(string(e.Raw), "this is a pop-up") {
		t.Errorf("the pop-up is in front: %s", e.Raw)
	}
	approved("click", map[string]any{"element": "the link", "target": "#linked"})
	harness.Eventually(t, "the link is refused", func() error {
		if e := agent.Ask("browser__browser_snapshot", map[string]any{}); !strings.Contains(string(e.Raw), "is not among the domains of server browser") {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
	if n := other.asked.Load(); n != 0 {
		t.Errorf("what the entry does not have was asked %d times by links", n)
	}

	see(agent, site.named()+"/cookie", "cookie []")
	see(agent, site.named()+"/cookie", "seen-before")
	// Another session of the same client, which the revisions before 2026-07-28 have.
	second := h.ConnectRaw(token)
	second.CallTool("browser__browser_navigate", fmt.Sprintf(`{"url":%q}`, site.named()+"/cookie"))
	if a := second.CallTool("browser__browser_snapshot", "{}"); !strings.Contains(string(a.Body), "cookie []") {
		t.Errorf("another session sees %s", a.Body)
	}
	see(agent, site.named()+"/cookie", "seen-before")
	if kept, err := os.ReadDir(h.Path("state", "egress", "servers", "servers")); err != nil || len(kept) > 0 {
		t.Errorf("on disk are %v, %v", kept, err)
	}

	// The control: with the other site in the entry, the same pages reach it.
	before := site.asked.Load()
	h.WriteFile("config/servers.yaml", strings.Replace(h.ReadFile("config/servers.yaml"), list, strings.Replace(list, "[", fmt.Sprintf("[%q, ", host(other.named())), 1), 1))
	command(t, h, "server", "accept", "browser", "--yes")
	harness.Eventually(t, "the other site is in the entry", func() error {
		agent.Ask("browser__browser_navigate", map[string]any{"url": site.named() + "/away"})
		if other.asked.Load() == 0 {
			return fmt.Errorf("not reached; the first was asked %d times since", site.asked.Load()-before)
		}
		return nil
	})
	see(agent, other.named()+"/", "hello from a page")
	see(agent, site.named()+"/click", "what is linked")
	before = other.asked.Load()
	approved("click", map[string]any{"element": "the link", "target": "#linked"})
	harness.Eventually(t, "the link leads somewhere with its site in the entry", func() error {
		if other.asked.Load() == before {
			return errors.New("it was not asked")
		}
		return nil
	})

	// The inspector drives it too, as it does the other servers in TestServersListed.
	i := inspector{t: t, node: node(t), home: t.TempDir(), target: []string{h.MCPURL(), "--transport", "http", "--header", "Authorization: Bearer " + driver}}
	harness.Eventually(t, "the inspector opens a page", func() error {
		if e := harness.CheckResult(t, nil, i.Call("browser__browser_navigate", map[string]any{"url": site.named() + "/"})()); e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
}

// example is the entry of one of deploy/examples, with the folder that it reads.
func example(t *testing.T, h *harness.Host, name string) string {
	t.Helper()
	from, to := filepath.Join(harness.Root(t), "deploy", "examples", name), t.TempDir()
	must(t, os.CopyFS(to, os.DirFS(from)))
	settings := filepath.Join(to, "playwright.json")
	for _, file := range []string{settings, filepath.Join(to, "servers.yaml")} {
		raw, err := os.ReadFile(file)
		must(t, err)
		text := strings.ReplaceAll(string(raw), "/srv/"+name, to)
		text = strings.Replace(text, `"contextOptions": {`, `"contextOptions": {"ignoreHTTPSErrors": true, `, 1)
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	raw, err := os.ReadFile(filepath.Join(to, "servers.yaml"))
	must(t, err)
	return string(raw)
}
