//go:build bench

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/procfs"
)

// serverClients are the numbers of clients that call another's server at once.
var serverClients = []int{1, 8, 16}

// calledBefore is how often a server is called before what it holds is counted.
const calledBefore = 100

// readArguments are those of each call.
const readArguments = `{"path":"notes/today.txt"}`

// servers measures a READ tool of another's server, a program that speaks over stdio: called directly by the SDK's client, through a plain
// proxy of the SDK, and through Durward, which has it in a sandbox; and what the sandbox costs, in time and memory.
func (s *suite) servers() {
	if _, err := exec.LookPath("bwrap"); err != nil {
		s.Skip("bubblewrap is not on this host: scripts/install-real.sh sandbox")
	}
	s.h = harness.New(s, harness.Options{Egress: true})
	s.token = s.h.AddClient("bench")
	s.h.StartAll()
	p := s.build(map[string]any{
		"definition": map[string]any{
			"name": "read", "description": "Reads a file.",
			"inputSchema": map[string]any{
				"type": "object", "required": []string{"path"}, "additionalProperties": false,
				"properties": map[string]any{"path": map[string]any{"type": "string", "maxLength": 200}},
			},
		},
		"text": strings.Repeat("It is what stands in a file of some length. ", 24),
		// The clients of the benchmark take no other answer for a good one.
		"structured": map[string]any{"status": "ok"},
	})
	command := []string{filepath.Join(p.dir, "bare"), "-stdio", "-tool", p.tool}
	for id, more := range map[string][]string{"bench": nil, "networked": {"--domain", "bench.example"}} { // a network has a relay
		line := append([]string{"server", "add", "program", command[0], "--id", id, "--read", "read", "--allow-read", p.dir, "--yes"}, more...)
		s.h.Durward(append(append(line, "--"), command[1:]...)...)
	}
	call := func(tool string) func(*client) error {
		return func(c *client) error {
			_, err := c.call(s.Context(), tool, readArguments)
			return err
		}
	}
	one := s.clients(sessions, s.h.MCPURL(), s.token, 1)[0]
	harness.Eventually(s, "the servers are in force", func() error { return call("bench__read")(one) })

	direct, read, _ := s.direct(command)
	s.started(command, func() error { return call("bench__read")(one) })
	for range calledBefore {
		s.must(read(nil))
	}
	s.held(direct.ids[0], func(server string) error { return call(server + "__read")(one) })

	proxied := &server{name: proxyName, ids: s.family(p.start("proxy", s.h.Port(5), append([]string{"--"}, command...)...))}
	governed := ours(s.h, ourName)
	for _, id := range s.family(s.h.Process(harness.Egress).PID()) {
		governed.processes, governed.ids = append(governed.processes, s.named(id)), append(governed.ids, id)
	}
	baseline := &contestant{server: direct, clients: map[int][]*client{}, call: read, rounds: map[int][]*round{}}
	plain, us := s.contestant(sessions, proxied, p.url(s.h.Port(5))+sessions.path, ""), s.contestant(sessions, governed, s.h.MCPURL(), s.token)
	plain.call, us.call = call("read"), call("bench__read")
	var bare []time.Duration
	for range *rounds {
		block, err := disk(s.h.Path("state"), 4096, 100)
		s.must(err)
		bare = append(bare, block...)
		for _, n := range serverClients {
			baseline.clients[n] = make([]*client, n)
			for _, c := range []*contestant{baseline, plain, us} {
				s.contest(c, n, *reads/2)
			}
		}
	}
	fsync := summarise(bare)
	s.row(row{"write + fdatasync of 4 kB beside the servers, p50 (p99)", ms(fsync.p50) + " (" + ms(fsync.p99) + ")", "", "", "", ""})
	for _, c := range []*contestant{plain, us} {
		for _, n := range serverClients {
			s.row(c.figures(n).beside(baseline.figures(n), fmt.Sprintf("READ tool of a stdio server, called directly, %d at once, %s", n, c.name)))
		}
	}
	s.row(row{fmt.Sprintf("processor time of a READ tool of a stdio server, %d clients, in us", busy), baseline.each(busy), us.each(busy), "", "", ""})
	if *hold > 0 {
		for until := time.Now().Add(*hold); time.Now().Before(until); {
			_, err := measure(us.clients[*holdBy], 1600, us.call)
			s.must(err)
		}
	}
}

// direct starts a server as a client of the SDK does, and returns how it is called and ended.
func (s *suite) direct(command []string) (*server, func(*client) error, func() error) {
	s.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(s.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	s.must(err)
	s.Cleanup(func() { _ = session.Close() }) // it may have ended
	read := func(*client) error {
		_, err := session.CallTool(s.Context(), &mcp.CallToolParams{Name: "read", Arguments: []byte(readArguments)})
		return err
	}
	return &server{name: "direct", processes: []string{"bare"}, ids: []int{cmd.Process.Pid}}, read, session.Close
}

// started measures how long it takes from nothing to a server's first answer, beside the same program without a sandbox, and beside a call
// to the one that runs.
func (s *suite) started(command []string, governed func() error) {
	var bare, ours, warm []time.Duration
	took := func(into *[]time.Duration, do func() error) {
		at := time.Now()
		s.must(do())
		*into = append(*into, time.Since(at))
	}
	for range 15 {
		var end func() error
		took(&bare, func() error {
			_, read, close := s.direct(command)
			end = close
			return read(nil)
		})
		s.must(end())
		s.h.Durward("server", "restart", "bench")
		took(&ours, governed)
		took(&warm, governed)
	}
	b, d, w := summarise(bare), summarise(ours), summarise(warm)
	s.row(row{"start of a stdio server to its first answer, fork and exec beside durward's sandbox, p50 (p99)", ms(b.p50) + " (" + ms(b.p99) + ")",
		ms(d.p50) + " (" + ms(d.p99) + "), of it the call " + ms(w.p50), fmt.Sprintf("%.2f x", float64(d.p50)/float64(b.p50)), "", ""})
}

// held adds up what each process of a server holds in its sandbox, without and with a network, beside the same program by itself.
func (s *suite) held(bare int, governed func(server string) error) {
	alone := s.share([]int{bare})
	for _, server := range []string{"bench", "networked"} {
		s.h.Durward("server", "restart", "bench")
		s.h.Durward("server", "restart", "networked")
		harness.Eventually(s, "the servers have ended", func() error {
			if left := s.family(s.h.Process(harness.Egress).PID()); len(left) > 1 {
				return fmt.Errorf("egress has the processes %v", left[1:])
			}
			return nil
		})
		for range calledBefore {
			s.must(governed(server))
		}
		s.row(row{"memory of a stdio server, its share of the host's (PSS), by itself beside its sandbox: " + server, alone,
			s.share(s.family(s.h.Process(harness.Egress).PID())[1:]), "", "", ""})
	}
	s.h.Durward("server", "restart", "networked")
	s.must(governed("bench"))
}

// family are a process and all that came of it.
func (s *suite) family(root int) []int {
	parents := map[int]int{}
	for pid, stat := range procfs.Processes("/proc", "stat") {
		if fields := procfs.Stat([]byte(stat)); len(fields) > 1 && fields[0] != "Z" {
			parents[pid], _ = strconv.Atoi(fields[1]) // the kernel's own
		}
	}
	found := []int{root}
	for next := 0; next < len(found); next++ {
		for pid, parent := range parents {
			if parent == found[next] {
				found = append(found, pid)
			}
		}
	}
	return found
}

// named is a process' name.
func (s *suite) named(pid int) string {
	s.Helper()
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	s.must(err)
	return strings.TrimSpace(string(name))
}

// share is what processes hold, each by its name, and all of them: what several share is divided among them.
func (s *suite) share(pids []int) string {
	s.Helper()
	total, each := 0.0, []string{}
	for _, pid := range pids {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
		s.must(err)
		_, rest, _ := strings.Cut(string(raw), "\nPss:")
		var kib float64
		_, err = fmt.Sscan(rest, &kib)
		s.must(err)
		total += kib / 1024
		each = append(each, fmt.Sprintf("%s %.1f", s.named(pid), kib/1024))
	}
	slices.Sort(each)
	return fmt.Sprintf("%.1f MB (%s)", total, strings.Join(each, ", "))
}
