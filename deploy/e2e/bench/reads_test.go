//go:build bench

package bench

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/deploy/e2e/harness"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/config"
)

// A server is under measurement: the processes that work for it.
type server struct {
	name string
	// processes are their roles, ids their numbers, in the same order.
	processes []string
	ids       []int
	// health is where each of them tells how it fares; empty for those that are not ours.
	health []string
}

// An other is a host that is measured beside ours.
type other struct {
	name string
	h    *harness.Host
}

// A round is one server's part of a round, and the processor time that each of its processes took for it.
type round struct {
	sample
	calls int
	used  []time.Duration
	// allocated is by all processes; zero where they are not ours.
	allocated int64
}

func (r *round) processor() time.Duration {
	var sum time.Duration
	for _, t := range r.used {
		sum += t
	}
	return sum / time.Duration(r.calls)
}

// A contestant is a server in one era, with its clients and results by how many there are.
type contestant struct {
	*server
	era     era
	clients map[int][]*client
	call    func(*client) error
	rounds  map[int][]*round
}

// atOnce are the numbers of clients that read at once; busy is the one that an aim is about.
var atOnce = []int{1, 8, 16, 32}

const busy = 16

// Names of servers, as results have them.
const (
	bareName  = "bare"
	tunedName = "bare-GOGC=800"
	proxyName = "proxy"
	ourName   = "durward"
	baseName  = "durward-base"
	// socketName is ours over Unix sockets between the processes.
	socketName = "durward-sockets"
)

func (s *suite) contestant(era era, server *server, url, token string) *contestant {
	s.Helper()
	c := &contestant{server: server, era: era, clients: map[int][]*client{}, call: s.call, rounds: map[int][]*round{}}
	// The gateway keeps a bounded number of sessions for a client: the largest group's serve the smaller ones.
	all := s.clients(era, url, token, slices.Max(atOnce))
	for _, n := range atOnce {
		c.clients[n] = all[:n]
	}
	return c
}

// settled is how long the records of reads take to reach the log after the answers, at most nearly always.
const settled = 300 * time.Millisecond

// used is the processor time that a server's processes have used.
func (s *suite) used(server *server) []time.Duration {
	s.Helper()
	now := make([]time.Duration, len(server.ids))
	for i, id := range server.ids {
		var err error
		now[i], err = processor(id)
		s.must(err)
	}
	return now
}

// allocated is how many objects a server's processes have allocated.
func (s *suite) allocated(server *server) (sum int64) {
	s.Helper()
	for _, address := range server.health {
		n, err := allocations(address)
		s.must(err)
		sum += n
	}
	return sum
}

// contest measures one round of a contestant with n clients.
func (s *suite) contest(c *contestant, n, calls int) {
	s.Helper()
	for try := 1; ; try++ {
		allocated, before := s.allocated(c.server), s.used(c.server)
		taken, err := measure(c.clients[n], calls, c.call)
		// A server that is not ours may lose a call under load: that round is measured again.
		if err != nil && len(c.health) == 0 && try < 3 {
			s.Logf("%s, %d clients: %v", c.name, n, err)
			continue
		}
		s.must(err)
		time.Sleep(settled) // what comes after an answer has no event
		r := &round{sample: taken, calls: calls / n * n, used: s.used(c.server)}
		for i := range r.used {
			r.used[i] -= before[i]
		}
		r.allocated = s.allocated(c.server) - allocated
		c.rounds[n] = append(c.rounds[n], r)
		return
	}
}

func (s *suite) call(c *client) error {
	_, err := c.call(s.Context(), *tool, "{}")
	return err
}

// reads measures a READ tool through the gateway in both eras, beside the bare SDK's server as it comes and with the memory
// settings of Durward's processes, and beside a plain proxy of the SDK's own client and server. The rounds are interleaved.
func (s *suite) reads() {
	second := s.h.AddClient("other") // a client keeps no more sessions than the largest group has
	p := s.peers(s.clients(sessions, s.h.MCPURL(), second, 1)[0])
	servers := []*server{p.bare(s.h.Port(6), bareName), p.bare(s.h.Port(7), tunedName, "-gogc", "800", "-memory-mib", strconv.Itoa(config.DefaultMemoryLimitMiB)),
		p.proxy(s.h.Port(4), s.h.Port(5)), ours(s.h, ourName)}
	urls := []string{p.url(s.h.Port(6)), p.url(s.h.Port(7)), p.url(s.h.Port(5)), ""}
	hosts, tokens := []*harness.Host{nil, nil, nil, s.h}, [][]string{nil, nil, nil, {s.token, second}}
	beside := func(name string, h *harness.Host) {
		pair := []string{h.AddClient("bench"), h.AddClient("other")}
		h.StartAll()
		servers, urls, hosts, tokens = append(servers, ours(h, name)), append(urls, ""), append(hosts, h), append(tokens, pair)
		s.others = append(s.others, other{name, h})
	}
	if *base != "" {
		beside(baseName, harness.New(s, harness.Options{Catalog: catalog, Bin: *base}))
	}
	if *socket {
		beside(socketName, harness.New(s, harness.Options{Catalog: catalog, Sockets: true}))
	}
	var field []*contestant
	for i, e := range []era{sessions, stateless} {
		for j, server := range servers {
			url, token := urls[j]+e.path, ""
			if h := hosts[j]; h != nil {
				url, token = h.MCPURL(), tokens[j][i]
			}
			c := s.contestant(e, server, url, token)
			_, err := measure(c.clients[busy], 320, s.call)
			s.must(err)
			field = append(field, c)
		}
	}
	for range *rounds {
		for _, n := range atOnce {
			calls := *reads
			if n > 1 {
				calls *= 2
			}
			for _, c := range field {
				s.contest(c, n, calls)
			}
		}
	}
	s.compareAll(field)
	var hops []sample
	for range *rounds {
		hops = append(hops, s.hop(*reads))
	}
	hop := median(hops)
	s.row(row{"list_services at the executor itself, 1 client, p50 (p99)", "", ms(hop.p50) + " (" + ms(hop.p99) + ")", "", "", ""})
	if *out != "" {
		s.must(write(*out, field))
	}
}

// ours is a host's processes as one server.
func ours(h *harness.Host, name string) *server {
	out := &server{name: name}
	for _, role := range []string{harness.Gateway, harness.Executor, harness.Audit, harness.Vault} {
		out.processes, out.ids = append(out.processes, role), append(out.ids, h.Process(role).PID())
		out.health = append(out.health, h.HealthAddress(role))
	}
	return out
}

// figures are the medians over a contestant's rounds.
type figures struct {
	sample
	processor time.Duration
}

func (c *contestant) figures(n int) figures {
	samples, used := make([]sample, len(c.rounds[n])), make([]time.Duration, len(c.rounds[n]))
	for i, r := range c.rounds[n] {
		samples[i], used[i] = r.sample, r.processor()
	}
	slices.Sort(used)
	return figures{median(samples), used[len(used)/2]}
}

func (s *suite) compareAll(field []*contestant) {
	byName := map[string]*contestant{}
	for _, c := range field {
		byName[c.era.name+c.name] = c
	}
	for _, e := range []era{sessions, stateless} {
		for _, c := range field {
			if c.era.name != e.name || c.name == bareName {
				continue
			}
			for _, n := range atOnce {
				s.compare(e, n, byName[e.name+bareName].figures(n), c.figures(n), c.name)
			}
		}
		us := byName[e.name+ourName]
		s.goalsOf(e, byName[e.name+bareName], us)
		s.row(row{fmt.Sprintf("processor time of a read, %s, %d clients, in us", e.name, busy), "", us.each(busy), "", "", ""})
	}
}

// each is the processor time of a call with n clients, by the processes.
func (c *contestant) each(n int) string {
	var each []string
	for i, process := range c.processes {
		var sum time.Duration
		calls := 0
		for _, r := range c.rounds[n] {
			sum, calls = sum+r.used[i], calls+r.calls
		}
		each = append(each, fmt.Sprintf("%s %d", process, sum.Microseconds()/int64(calls)))
	}
	return strings.Join(each, ", ")
}

// goalsOf writes down what reads are to cost beside the bare server.
func (s *suite) goalsOf(e era, bare, us *contestant) {
	b, d := bare.figures(busy), us.figures(busy)
	line := func(what string, theirs, ours string, reached, must, aim float64, atLeast bool) {
		s.goals = append(s.goals, goal(what+", "+e.name, theirs, ours, reached, must, aim, "%.2f x", atLeast))
	}
	micros := func(d time.Duration) string { return fmt.Sprintf("%d us", d.Microseconds()) }
	rate := func(f figures) string { return fmt.Sprintf("%.0f/s", f.rate) }
	line("processor time of all processes per read, 16 clients", micros(b.processor), micros(d.processor),
		float64(d.processor)/float64(max(b.processor, 1)), processorMust, processorAim, false)
	one, alone := bare.figures(1), us.figures(1)
	line("p50, 1 client", ms(one.p50), ms(alone.p50), float64(alone.p50)/float64(max(one.p50, 1)), readMust, readAim, false)
	line("calls/s, 16 clients", rate(b), rate(d), d.rate/b.rate, rateMust, rateAim, true)
	line("p99, 16 clients", ms(b.p99), ms(d.p99), float64(d.p99)/float64(max(b.p99, 1)), rarestMust, rarestAim, false)
}

// over is how many times a baseline's p50, p99, rate and processor time these figures are.
func (f figures) over(b figures) (p50, p99, rate, processor float64) {
	times := func(d, b time.Duration) float64 { return float64(d) / float64(max(b, 1)) }
	return times(f.p50, b.p50), times(f.p99, b.p99), f.rate / b.rate, times(f.processor, b.processor)
}

func (f figures) String() string {
	return fmt.Sprintf("%s, %s, %.0f/s, %d us", ms(f.p50), ms(f.p99), f.rate, f.processor.Microseconds())
}

// beside is a row of these figures beside a baseline's.
func (f figures) beside(b figures, what string) row {
	p50, p99, rate, processor := f.over(b)
	return row{what + ": p50, p99, rate, processor", b.String(), f.String(), fmt.Sprintf("%.2f x, %.2f x, %.2f x, %.2f x", p50, p99, rate, processor), "", ""}
}

// compare writes down how reads stand to the baseline's: p50, p99, calls a second and processor time.
func (s *suite) compare(e era, clients int, b, d figures, name string) {
	slower, rarer, rate, dearer := d.over(b)
	r := d.beside(b, fmt.Sprintf("read, %s, %d at once, %s", e.name, clients, name))
	switch {
	case name != ourName:
	case clients == 1:
		r.Aim, r.Met = fmt.Sprintf("p50 <= %g x (must: %g x)", readAim, readMust), verdict(slower <= readAim)
	case clients == busy:
		r.Aim = fmt.Sprintf("p99 <= %g x (%g x), rate >= %g x (%g x), processor <= %g x (%g x)",
			rarestAim, rarestMust, rateAim, rateMust, processorAim, processorMust)
		r.Met = verdict(rarer <= rarestAim && rate >= rateAim && dearer <= processorAim)
	}
	s.row(r)
}

// write leaves the rounds as benchstat reads them: every server's in head.txt, and those of the programs that ours are compared
// with in base.txt under our name.
func write(dir string, field []*contestant) error {
	const units = "Unit p50-ns better=lower\nUnit p99-ns better=lower\nUnit cpu-ns/op better=lower\nUnit allocs/op better=lower\nUnit calls/s better=higher\n"
	files := map[string]*strings.Builder{"head.txt": {}, "base.txt": {}}
	for _, c := range field {
		file, name := "head.txt", c.name
		if name == baseName {
			file, name = "base.txt", ourName
		}
		for _, n := range atOnce {
			for _, r := range c.rounds[n] {
				fmt.Fprintf(files[file], "BenchmarkRead/server=%s/era=%s/clients=%d %d %d p50-ns %d p99-ns %d cpu-ns/op %d allocs/op %.0f calls/s\n",
					name, c.era.name, n, r.calls, r.p50.Nanoseconds(), r.p99.Nanoseconds(), r.processor().Nanoseconds(), r.allocated/int64(r.calls), r.rate)
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if text.Len() == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(units+text.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// hop measures the read's last hop alone: the executor's RPC as the gateway calls it, but for the permit, which an operator
// does not need.
func (s *suite) hop(n int) sample {
	s.Helper()
	tools := executorv1.NewToolServiceClient(s.executor)
	var took []time.Duration
	for range n {
		at := time.Now()
		_, err := tools.ListServices(s.Context(), &executorv1.ListServicesRequest{})
		s.must(err)
		took = append(took, time.Since(at))
	}
	return summarise(took)
}

// processors returns the processor time that each process has used.
func (s *suite) processors() map[string]time.Duration {
	s.Helper()
	out := map[string]time.Duration{}
	for _, role := range harness.Roles() {
		t, err := processor(s.h.Process(role).PID())
		s.must(err)
		out[role] = t
	}
	return out
}

// peers start what Durward is measured beside.
type peers struct {
	s *suite
	// dir holds the peers' programs, tool the tool that they serve.
	dir, tool string
}

// peers writes down the tool as Durward serves it, and builds the peers.
func (s *suite) peers(c *client) *peers {
	s.Helper()
	list, err := c.post(s.Context(), "", []byte(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`))
	s.must(err)
	var tools struct {
		Result struct {
			Tools []map[string]any `json:"tools"`
		} `json:"result"`
	}
	s.must(json.Unmarshal(message(list), &tools))
	called, err := c.call(s.Context(), *tool, "{}")
	s.must(err)
	var result struct {
		Result struct {
			Content    []struct{ Text string } `json:"content"`
			Structured json.RawMessage         `json:"structuredContent"`
		} `json:"result"`
	}
	s.must(json.Unmarshal(called, &result))
	served := map[string]any{"text": result.Result.Content[0].Text, "structured": result.Result.Structured}
	for _, t := range tools.Result.Tools {
		if t["name"] == *tool {
			served["definition"] = t
		}
	}
	return s.build(served)
}

// build builds the peers, of a tool.
func (s *suite) build(tool any) *peers {
	s.Helper()
	dir := s.TempDir()
	p := &peers{s: s, dir: dir, tool: filepath.Join(dir, "tool.json")}
	s.must(os.WriteFile(p.tool, []byte(quote(tool)), 0o600))
	build := exec.Command("go", "build", "-trimpath", "-o", dir+string(filepath.Separator), "./bare", "./proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("build the peers: %v\n%s", err, out)
	}
	return p
}

// url is where a peer is, but for the era's path.
func (p *peers) url(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// bare starts the SDK's server on a port.
func (p *peers) bare(port int, name string, flags ...string) *server {
	return &server{name: name, processes: []string{name}, ids: []int{p.start("bare", port, flags...)}}
}

// proxy starts the plain proxy on a port, in front of a bare server of its own.
func (p *peers) proxy(behind, port int) *server {
	bare := p.start("bare", behind)
	return &server{name: proxyName, processes: []string{proxyName, bareName},
		ids: []int{p.start("proxy", port, "-upstream", p.url(behind)+sessions.path), bare}}
}

// start starts a peer and returns its process's number once it answers.
func (p *peers) start(program string, port int, flags ...string) int {
	p.s.Helper()
	cmd := exec.Command(filepath.Join(p.dir, program), append([]string{"-listen", fmt.Sprintf("127.0.0.1:%d", port), "-tool", p.tool}, flags...)...)
	cmd.Stderr = os.Stderr
	p.s.must(cmd.Start())
	p.s.Cleanup(func() {
		_ = cmd.Process.Kill()
		// A killed program ends with an error.
		_ = cmd.Wait()
	})
	harness.Eventually(p.s, program+" answers", func() error {
		_, err := newClient(p.s.Context(), http.DefaultTransport, sessions, p.url(port)+sessions.path, "")
		return err
	})
	return cmd.Process.Pid
}
