//go:build hostile

package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/contract"
)

// full says that every string of the corpora is sent; else a sample is.
var full = os.Getenv("DURWARD_FULL") == "1"

// size is all in a full run, else that of a sample.
func size(all, sample int) int {
	if full {
		return all
	}
	return sample
}

var (
	corpora      = flag.String("corpora", "", "`folder` with public corpora")
	mutants      = flag.Int("mutants", size(100_000, 12_000), "how many mutants")
	samples      = flag.Int("strings", size(0, 3000), "about how many strings of the corpora; 0: all")
	schemaValues = flag.Int("values", size(0, 150), "about how many values of the JSON Schema suite; 0: all")
	seed         = flag.Uint64("seed", 7430, "of the samples and the mutants")
)

// findings are all kinds, in the order of the report.
var findings = []finding{escapes, hidden, paths, stacks, echoes}

// workers send at the same time, each over a connection of its own; agents are the clients that they send as.
const (
	workers = 24
	agents  = 6
)

// decoys are services of the catalog whose names the corpora are full of. They do nothing, and nobody approves them.
var decoys = []string{"null", "admin"}

func catalog(h *harness.Host) string {
	services := fmt.Sprintf(`version: 1
gpus:
  - {index: 0, name: Simulated 24 GB, memory_mib: 24576, simulated: true}
services:
  - id: %s
    name: Demo chat
    driver: process
    argv: [durward-demo, -port, "%d", -model, demo, -touch, %q]
    writes: [%q]
    port: %d
    health: {path: /health}
`, harness.DemoService, h.Port(0), h.Path("starts-"+harness.DemoService), h.Path("starts-"+harness.DemoService), h.Port(0))
	for _, id := range decoys {
		services += fmt.Sprintf("  - {id: %q, name: Decoy, driver: \"null\"}\n", id)
	}
	return services
}

// unlistedTools are those that find tools, in the form of tools/list, which has them beside other people's servers alone. They can be called here too.
func unlistedTools() json.RawMessage {
	var tools []any
	for _, name := range []string{"find_tools", "describe_tool"} {
		tool, _ := contract.Native(name)
		tools = append(tools, map[string]any{"name": name, "inputSchema": tool.InputSchema})
	}
	out, _ := json.Marshal(map[string]any{"tools": tools}) // a schema is JSON
	return out
}

var logLevel = regexp.MustCompile(`(?m)^log_level:.*$`)

func TestHostile(t *testing.T) {
	h := harness.New(t, harness.Options{Catalog: catalog, HoldS: 1})
	for _, role := range harness.Roles() {
		// A line for each request would cost more than many a request; a panic is an error.
		file := filepath.Join("config", role+".yaml")
		h.WriteFile(file, logLevel.ReplaceAllString(h.ReadFile(file), "")+"\nlog_level: error\n")
	}
	h.StartAll()
	allowed := append([]string{harness.DemoService}, decoys...)
	g := gateway{h.Address(harness.Gateway)}

	// The strings. Their canaries lie where another run's would too, so that a seed makes the same strings again.
	own := seeds(os.TempDir())
	pool := slices.Clone(own)
	var public []string
	if *corpora != "" {
		strata, err := readCorpora(*corpora)
		must(t, err)
		public = sample(rand.New(rand.NewPCG(*seed, 2)), strata, *samples)
		all, taken := map[string]int{}, map[string]int{}
		for _, s := range strata {
			pool = append(pool, s.strings...)
			all[s.corpus] += len(s.strings)
			if n := common(s.strings, public); n > 0 {
				taken[s.corpus] += n
			} else {
				t.Errorf("no string of %s is sent", s.file)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			fmt.Printf("hostile: %6d of %6d strings of %s\n", taken[name], all[name], name)
		}
	}
	m := mutator{rand.New(rand.NewPCG(*seed, *seed)), pool}
	made := make([]string, *mutants)
	for i := range made {
		made[i] = m.next()
	}
	fmt.Printf("hostile: %d seeds of our own, %d strings of corpora, %d mutants; the same again: -seed %d -strings %d -values %d -mutants %d\n",
		len(own), len(public), len(made), *seed, *samples, *schemaValues, *mutants)

	// The clients.
	guest := client{token: h.AddClient("guest")}
	var clients []client
	for i := range agents {
		clients = append(clients, client{token: h.AddClient(fmt.Sprintf("agent-%d", i))})
	}
	friend := newFriend(t, h, h.AddClient("friend"))
	w := watch(t, h, allowed)

	first := line{address: g.address}
	defer first.close()
	list, err := first.send(g.request(stateless, clients[0], "tools/list", part{}))
	must(t, err)
	surfaces, err := g.toolSurfaces(resultOf(t, list))
	must(t, err)
	unlisted, err := g.toolSurfaces(unlistedTools())
	must(t, err)
	surfaces = slices.Concat(surfaces, unlisted, g.otherSurfaces())
	r := &run{g: g, surfaces: surfaces, counts: make([]count, len(surfaces)), guest: guest, found: map[finding][]string{}}
	if r.marks = ownMarks.FindString(friend.mcp.InitializeResult().Instructions); r.marks == "" {
		t.Fatal("the instructions name no marks around strangers' text")
	}
	r.plan(own, public, made)

	// The storm, and somebody who works in the middle of it.
	began := time.Now()
	var took time.Duration
	over := make(chan struct{})
	var sending sync.WaitGroup
	for i := range workers {
		c := clients[i%agents]
		c.session = session(t, g, c)
		sending.Go(func() { r.work(c) })
	}
	go func() {
		sending.Wait()
		took = time.Since(began)
		close(over)
	}()
	go r.progress(over)
	friend.work(over)
	<-over

	// What came of it.
	e := w.count()
	r.report(own, public, made, took)
	for _, role := range harness.Roles() {
		if !h.Process(role).Running() || !h.Healthy(role) {
			t.Errorf("%s is not well: %s", role, h.Process(role).Log())
		}
	}
	if n := panics(t, h); n > 0 {
		t.Errorf("%d panics", n)
	}
	outside := e.outside(allowed)
	fmt.Printf("hostile: %d effects outside the catalogue; inside it %d calls spent, %d intents, %d starts, %d of them asked for and approved\n",
		len(outside), len(e.spent), len(e.intents), e.starts, friend.approved)
	if len(outside) > 0 {
		t.Errorf("effects outside the catalogue: %q", outside)
	}
	if len(e.spent) != friend.approved || len(e.intents) != friend.approved || e.starts != friend.starts || friend.approved == 0 {
		t.Errorf("a human approved %d calls, %d of them starts; the store holds %d, the log %d intents, and the service counts %d starts",
			friend.approved, friend.starts, len(e.spent), len(e.intents), e.starts)
	}
	for _, f := range findings {
		if n := len(r.found[f]); n > 0 {
			t.Errorf("%d answers with %s, such as\n%s", n, f, strings.Join(r.found[f][:min(n, 5)], "\n"))
		}
	}
	if n := r.broken.Load(); n > 0 {
		t.Errorf("%d requests without an answer, such as %s", n, *r.brokenAt.Load())
	}

	clients[0].session = session(t, g, clients[0])
	t.Run("control", func(t *testing.T) {
		plantedEffects(t, h, w)
		plantedAnswers(t, surfaces, own)
	})
	t.Run("JSON", func(t *testing.T) { testJSON(t, g, clients[0]) })
	t.Run("schemas", func(t *testing.T) { testSchemas(t, g, clients[0], resultOf(t, list)) })
	t.Run("URLs", func(t *testing.T) { testURLs(t, g, clients[0], allowed) })
	close(w.stop)
	w.watching.Wait()
}

// common counts the strings of a list that are in another.
func common(list, other []string) int {
	in := map[string]bool{}
	for _, s := range other {
		in[s] = true
	}
	return len(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !in[s] }))
}

func resultOf(t *testing.T, a answer) json.RawMessage {
	t.Helper()
	for _, raw := range messages(a.body) {
		var m struct {
			Result json.RawMessage `json:"result"`
		}
		if json.Unmarshal(raw, &m) == nil && m.Result != nil {
			return m.Result
		}
	}
	t.Fatalf("HTTP %d, no result: %s", a.status, a.body)
	return nil
}

// session opens a session of the older era.
func session(t *testing.T, g gateway, c client) string {
	t.Helper()
	l := line{address: g.address}
	defer l.close()
	a, err := l.send(g.request(sessions, c, "initialize", part{params: `"protocolVersion":"` + harness.SessionRevision + `","capabilities":{},"clientInfo":{"name":"hostile","version":"1"}`}))
	if err != nil || a.header.Get("Mcp-Session-Id") == "" {
		t.Fatalf("no session: %v, %s", err, a.body)
	}
	c.session = a.header.Get("Mcp-Session-Id")
	note := g.request(sessions, c, "notifications/initialized", part{})
	note.body = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	if _, err := l.send(note); err != nil {
		t.Fatal(err)
	}
	return c.session
}

// job is a string for a surface in an era.
type job struct {
	surface int
	era     era
	text    string
}

// ownMarks are what our own instructions to models name around strangers' text.
var ownMarks = regexp.MustCompile(`\(<[a-z_]+>(?:, <[a-z_]+>)*\)`)

// run is one storm.
type run struct {
	g         gateway
	surfaces  []surface
	counts    []count
	guest     client
	jobs      []job
	inspector inspector
	// marks are those of the gateway's instructions. Mutants of the corpora's can be a part of them.
	marks    string
	next     atomic.Int64
	broken   atomic.Int64
	brokenAt atomic.Pointer[string]

	mu    sync.Mutex
	found map[finding][]string
}

// count is where the strings of one surface went.
type count struct {
	mu       sync.Mutex
	outcomes map[string]int
}

// plan says what is sent. Our own strings go everywhere, in both eras; those of the corpora through every main surface, in one
// of its eras each, and through the others by turns; each mutant through one surface.
func (r *run) plan(own, public, made []string) {
	var turns []int
	for k, s := range r.surfaces {
		for _, text := range own {
			for _, e := range s.eras {
				r.jobs = append(r.jobs, job{k, e, text})
			}
		}
		if !s.main {
			turns = append(turns, k)
		}
	}
	for i, text := range public {
		for k, s := range r.surfaces {
			if s.main {
				r.jobs = append(r.jobs, job{k, s.eras[(i+k)%len(s.eras)], text})
			}
		}
		k := turns[i%len(turns)]
		r.jobs = append(r.jobs, job{k, r.surfaces[k].eras[i/len(turns)%len(r.surfaces[k].eras)], text})
	}
	for i, text := range made {
		k := i % len(r.surfaces)
		r.jobs = append(r.jobs, job{k, r.surfaces[k].eras[i/len(r.surfaces)%len(r.surfaces[k].eras)], text})
	}
	// Mixed, so that what is slow does not come all at once.
	rand.New(rand.NewPCG(*seed, 1)).Shuffle(len(r.jobs), func(i, j int) { r.jobs[i], r.jobs[j] = r.jobs[j], r.jobs[i] })
}

// work sends until nothing is left.
func (r *run) work(c client) {
	l := line{address: r.g.address}
	defer l.close()
	for {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.jobs) {
			return
		}
		j := r.jobs[i]
		s := &r.surfaces[j.surface]
		from := c
		if s.guest {
			from = r.guest
		}
		var a answer
		var err error
		if m := s.build(j.era, from, j.text); s.streams {
			a, err = alone(r.g.address, m.bytes(true))
		} else {
			a, err = l.send(m)
		}
		if err != nil {
			text := fmt.Sprintf("%s (%s), %d bytes, %.200q: %v", s.name, j.era, len(j.text), j.text, err)
			r.brokenAt.CompareAndSwap(nil, &text)
			r.broken.Add(1)
			continue
		}
		r.note(s, j, a)
	}
}

// progress says now and then how far the storm is.
func (r *run) progress(over <-chan struct{}) {
	for tick := time.NewTicker(30 * time.Second); ; {
		select {
		case <-over:
			tick.Stop()
			return
		case <-tick.C:
			done := min(int(r.next.Load()), len(r.jobs))
			fmt.Printf("hostile: %d of %d requests (%d %%)\n", done, len(r.jobs), 100*done/len(r.jobs))
		}
	}
}

func (r *run) note(s *surface, j job, a answer) {
	sent := j.text
	if s.returned || ordinary[sent] || legalID.MatchString(sent) {
		sent = ""
	}
	n := &r.counts[j.surface]
	n.mu.Lock()
	if n.outcomes == nil {
		n.outcomes = map[string]int{}
	}
	n.outcomes[a.outcome]++
	n.mu.Unlock()
	found := r.inspector.inspect(a.header, a.body, sent)
	if s.returned {
		delete(found, paths) // the client's own id comes back as it was sent
		delete(found, stacks)
		if strings.ContainsRune(j.text, utf8.RuneError) {
			delete(found, escapes) // so does the character that stands for broken ones
		}
	}
	if repeatedURI.MatchString(sent) && (strings.Contains(a.outcome, "NOT_FOUND") || a.outcome == "result") || repeatedRevision.MatchString(sent) && strings.Contains(a.outcome, "-32022") {
		delete(found, echoes)
	}
	if strings.Contains(r.marks, sent) {
		delete(found, echoes)
	}
	if len(found) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for f, where := range found {
		r.found[f] = append(r.found[f], fmt.Sprintf("%s (%s), sent %.200q, %s: %.300q", s.name, j.era, j.text, a.outcome, where))
	}
}

// What a refusal names because the protocol asks for it: the URI of a resource that is not there, if it is a scheme and one
// plain name or one of ours, and a revision that is not spoken, if it is digits and points.
var (
	repeatedURI      = regexp.MustCompile(`^(?:[a-z]{1,16}://|durward://(?:services|modes|operations)/)[A-Za-z0-9_-]{1,64}$`)
	repeatedRevision = regexp.MustCompile(`^v?[0-9][0-9.-]{0,31}$`)
)

// ordinary are strings that answers hold whoever sends what.
var ordinary = map[string]bool{
	"text/event-stream": true, "application/json": true, "127.0.0.1": true, "service_id": true, "durward://services/" + harness.DemoService: true,
}

// legalID is what an id may be.
var legalID = regexp.MustCompile(`^(?:[a-zA-Z0-9][a-zA-Z0-9_\-]{0,63}|[0-9a-f]{32})$`)

// report prints where everything went.
func (r *run) report(own, public, made []string, took time.Duration) {
	total, all := 0, map[string]int{}
	for k := range r.surfaces {
		sent := 0
		for _, n := range r.counts[k].outcomes {
			sent += n
		}
		total += sent
		var parts []string
		for _, o := range byCount(r.counts[k].outcomes) {
			n := r.counts[k].outcomes[o]
			all[o] += n
			if len(parts) < 6 {
				parts = append(parts, fmt.Sprintf("%s %.2f %%", o, 100*float64(n)/float64(sent)))
			}
		}
		fmt.Printf("hostile: %-28s %7d: %s\n", r.surfaces[k].name, sent, strings.Join(parts, "; "))
	}
	fmt.Printf("hostile: %d requests in %.1f s, %.0f a second, over %d connections\n", total, took.Seconds(), float64(total)/took.Seconds(), workers)
	for _, o := range byCount(all) {
		fmt.Printf("hostile: %6.2f %% %s (%d)\n", 100*float64(all[o])/float64(total), o, all[o])
	}
	for _, list := range []struct {
		name    string
		strings []string
		shown   int
	}{{"seeds", own, 100}, {"corpora", public, 100_000}, {"mutants", made, 100}} {
		legal := slices.DeleteFunc(slices.Clone(list.strings), func(s string) bool { return !legalID.MatchString(s) })
		slices.Sort(legal)
		legal = slices.Compact(legal)
		fmt.Printf("hostile: %d legal ids among the %s: %s\n", len(legal), list.name, strings.Join(legal[:min(len(legal), list.shown)], " "))
	}
	for _, f := range findings {
		fmt.Printf("hostile: %d answers with %s\n", len(r.found[f]), f)
	}
}

func byCount(m map[string]int) []string {
	keys := slices.Sorted(maps.Keys(m))
	slices.SortStableFunc(keys, func(a, b string) int { return m[b] - m[a] })
	return keys
}

// panics counts what a Go program says when it panics, in all logs.
func panics(t *testing.T, h *harness.Host) int {
	t.Helper()
	n := 0
	for _, role := range harness.Roles() {
		log := h.ReadFile(filepath.Join("logs", role+".log"))
		for _, sign := range []string{`"msg":"panic"`, "panic: ", "goroutine 1 [", "fatal error: ", `"stack":`} {
			if at := strings.Index(log, sign); at >= 0 {
				n += strings.Count(log, sign)
				t.Logf("%s: %.2000s", role, log[at:])
			}
		}
	}
	fmt.Printf("hostile: %d panics in %d logs\n", n, len(harness.Roles()))
	return n
}

// friend is a client that means well, and the human who approves what it asks.
type friend struct {
	t                *testing.T
	h                *harness.Host
	mcp              *harness.Client
	approved, starts int
}

func newFriend(t *testing.T, h *harness.Host, token string) *friend {
	return &friend{t: t, h: h, mcp: h.Connect(token)}
}

// work starts and stops the demo service until over, at most ten times, and ends with an even number of calls.
func (f *friend) work(over <-chan struct{}) {
	for n := 0; n < 10; n++ {
		f.change("start_service")
		f.starts++
		f.change("stop_service")
		select {
		case <-over:
			return
		case <-time.After(time.Second):
		}
	}
}

// change asks for a change, approves it, and waits for it.
func (f *friend) change(tool string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*time.Minute)
	defer cancel()
	e, err := f.mcp.TryCall(ctx, tool, map[string]any{"service_id": harness.DemoService})
	if err != nil || e.Status != "pending_approval" {
		f.t.Fatalf("%s: %v, %s", tool, err, e.Raw)
	}
	f.h.Approve(e.OperationID)
	f.approved++
	for e.Status == "pending_approval" || e.Status == "running" {
		if e, err = f.mcp.TryCall(ctx, "wait_operation", map[string]any{"operation_id": e.OperationID}); err != nil {
			f.t.Fatalf("%s: %v", tool, err)
		}
	}
	if e.Status != "ok" {
		f.t.Fatalf("%s: %s", tool, e.Raw)
	}
}

// plantedEffects is the control of the counters: a file, a program, and calls on a service that is then taken for one outside
// the catalog must be found where the suite looks.
func plantedEffects(t *testing.T, h *harness.Host, w *world) {
	must(t, os.WriteFile(h.Path(canary+"-planted"), nil, 0o600))
	planted := exec.CommandContext(t.Context(), "sleep", "60")
	must(t, planted.Start())
	harness.Eventually(t, "the planted program is seen", func() error {
		w.look(os.Getpid())
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.programs["sleep 60"] {
			return errors.New("not yet")
		}
		return nil
	})
	if err := planted.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = planted.Wait() // it was killed
	out := w.count().outside(decoys)
	for _, want := range []string{h.Path(canary + "-planted"), "sleep 60", "start_service " + harness.DemoService} {
		if !slices.Contains(out, want) {
			t.Errorf("a planted effect was not found: %s", want)
		}
	}
	fmt.Printf("hostile: control: CAUGHT %d planted effects\n", len(out))
}

// plantedAnswers is the control of the detectors: the same requests to a server that answers what no answer may show.
func plantedAnswers(t *testing.T, surfaces []surface, own []string) {
	var n atomic.Int64
	weak := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what cannot be read is not repeated
		planted := []string{"\x1b[31mred", "\u202egnp", "open /etc/durward/x", "at main.go:12", string(body)}
		answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 7, "error": map[string]any{"code": -1, "message": planted[int(n.Add(1))%len(planted)]}})
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // the suite may have gone
	}))
	defer weak.Close()
	g := gateway{strings.TrimPrefix(weak.URL, "http://")}
	r := &run{g: g, surfaces: surfaces, counts: make([]count, len(surfaces)), found: map[finding][]string{}}
	for k, s := range surfaces {
		if s.main {
			for _, text := range own[:40] {
				r.jobs = append(r.jobs, job{k, s.eras[0], text})
			}
		}
	}
	r.work(client{token: "x"})
	for _, f := range findings {
		if len(r.found[f]) == 0 {
			t.Errorf("planted %s were not found", f)
		}
		fmt.Printf("hostile: control: CAUGHT %d planted answers with %s\n", len(r.found[f]), f)
	}
}

// ok says whether an HTTP answer served what was asked.
func (a answer) ok() bool {
	return a.status == http.StatusOK && !strings.Contains(a.outcome, "JSON-RPC")
}
