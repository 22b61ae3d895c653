//go:build bench

// Package bench measures the built programs against named baselines in one run, and prints a table of what is aimed at and
// what was reached: a read beside the bare SDK's server with the same tool, an approved change and an append to the log
// beside a bare write and fdatasync on the same disk, the start of all processes, and their memory.
//
// Nothing here fails because a number is bad: the table says so.
package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// era is one of the two protocols, as a client speaks it.
type era struct {
	name string
	// path is where the bare SDK serves it.
	path string
	// header and meta stand in every call; the stateless era has no session and says everything each time.
	header map[string]string
	meta   string
}

var (
	sessions  = era{name: "sessions", path: "/mcp", header: map[string]string{"Mcp-Protocol-Version": "2025-11-25"}}
	stateless = era{
		name: "stateless", path: "/stateless",
		header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"},
		meta: `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},` +
			`"io.modelcontextprotocol/clientCapabilities":{}}`,
	}
)

// client is an MCP client over keep-alive HTTP that does as little as a client can.
type client struct {
	http           *http.Client
	era            era
	url, token, id string
}

// newClient initialises a session, where the era has any.
func newClient(ctx context.Context, transport http.RoundTripper, era era, url, token string) (*client, error) {
	c := &client{http: &http.Client{Transport: transport, Timeout: time.Minute}, era: era, url: url, token: token}
	if era.name == stateless.name {
		return c, nil
	}
	response, err := c.post(ctx, "", []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`))
	if err != nil {
		return nil, err
	}
	c.id = response.header.Get("Mcp-Session-Id")
	if c.id == "" {
		return nil, fmt.Errorf("initialize: no session: %s", response.body)
	}
	if _, err := c.post(ctx, "", []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		return nil, err
	}
	return c, nil
}

type answer struct {
	header http.Header
	body   []byte
}

// post sends a message; name is the tool that it calls, if any.
func (c *client) post(ctx context.Context, name string, body []byte) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.id != "" {
		request.Header.Set("Mcp-Session-Id", c.id)
	}
	for k, v := range c.era.header {
		request.Header.Set(k, v)
	}
	if c.era.meta != "" {
		request.Header.Set("Mcp-Name", name)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return answer{}, fmt.Errorf("status %d: %s", response.StatusCode, raw)
	}
	return answer{response.Header, raw}, nil
}

// call calls a tool and returns the JSON-RPC message; a result that is not "ok" is an error.
func (c *client) call(ctx context.Context, tool, arguments string) ([]byte, error) {
	a, err := c.post(ctx, tool, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":%s%s}}`, tool, arguments, c.era.meta))
	if err != nil {
		return nil, err
	}
	message := a.body
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		_, rest, _ := bytes.Cut(a.body, []byte("data: "))
		message, _, _ = bytes.Cut(rest, []byte("\n"))
	}
	if !bytes.Contains(message, []byte(`"status":"ok"`)) {
		return nil, fmt.Errorf("%s: %s", tool, message)
	}
	return message, nil
}

// sample is what one measurement of many calls gives.
type sample struct {
	p50, p99 time.Duration
	// rate is in calls per second.
	rate float64
}

// measure makes n calls with some clients at once.
func measure(clients []*client, n int, call func(c *client) error) (sample, error) {
	each := n / len(clients)
	took := make([][]time.Duration, len(clients))
	failures := make([]error, len(clients))
	var done sync.WaitGroup
	began := time.Now()
	for i, c := range clients {
		done.Go(func() {
			for range each {
				at := time.Now()
				if err := call(c); err != nil {
					failures[i] = err
					return
				}
				took[i] = append(took[i], time.Since(at))
			}
		})
	}
	done.Wait()
	elapsed := time.Since(began)
	s := summarise(slices.Concat(took...))
	s.rate = float64(each*len(clients)) / elapsed.Seconds()
	return s, errors.Join(failures...)
}

func summarise(took []time.Duration) sample {
	if len(took) == 0 {
		return sample{}
	}
	slices.Sort(took)
	return sample{p50: took[len(took)/2], p99: took[len(took)*99/100]}
}

// median is the median of each figure over rounds.
func median(rounds []sample) sample {
	pick := func(of func(sample) float64) float64 {
		values := make([]float64, len(rounds))
		for i, r := range rounds {
			values[i] = of(r)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return sample{
		p50:  time.Duration(pick(func(s sample) float64 { return float64(s.p50) })),
		p99:  time.Duration(pick(func(s sample) float64 { return float64(s.p99) })),
		rate: pick(func(s sample) float64 { return s.rate }),
	}
}

// disk measures a bare write of size bytes and fdatasync, n times, in a folder.
func disk(dir string, size, n int) ([]time.Duration, error) {
	f, err := os.CreateTemp(dir, "bare-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	block := bytes.Repeat([]byte("x"), size)
	var took []time.Duration
	for range n {
		at := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		took = append(took, time.Since(at))
	}
	return took, nil
}

// memory returns a figure of /proc/PID/status in MiB: VmRSS, VmHWM.
func memory(pid int, figure string) (float64, error) {
	b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, figure+":"); ok {
			var kib float64
			if _, err := fmt.Sscanf(strings.TrimSpace(rest), "%f kB", &kib); err != nil {
				return 0, err
			}
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("no %s of process %d", figure, pid)
}

// processor returns the processor time that a process has used, to the nanosecond: the kernel counts it for each thread, and a Go
// program's threads stay.
func processor(pid int) (time.Duration, error) {
	threads, err := filepath.Glob(filepath.Join("/proc", fmt.Sprint(pid), "task", "*", "schedstat"))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("process %d has no threads: %w", pid, err)
	}
	var sum time.Duration
	for _, file := range threads {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended
		}
		if err != nil {
			return 0, err
		}
		var used int64
		if _, err := fmt.Sscan(string(b), &used); err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += time.Duration(used)
	}
	return sum, nil
}

// allocations returns how many objects a process of ours has allocated, from its metrics.
func allocations(health string) (int64, error) {
	response, err := http.Get("http://" + health + "/metrics") //nolint:noctx // a process of this test's own
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total "); ok {
			n, err := strconv.ParseFloat(text, 64)
			return int64(n), err
		}
	}
	return 0, fmt.Errorf("%s counts no allocations", health)
}

// row is a line of the table.
type row struct {
	What, Baseline, Reached, Ratio, Aim string
	// Met is "yes", "NO" or "".
	Met string
}

func verdict(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}

// goal is a line of the table of what governed calls are to cost: reached beside what must be and what is aimed at.
func goal(what, beside, here string, reached, must, aim float64, form string, atLeast bool) []string {
	sign, better := "<= ", func(than float64) bool { return reached <= than }
	if atLeast {
		sign, better = ">= ", func(than float64) bool { return reached >= than }
	}
	met := "NO"
	switch {
	case better(aim):
		met = "aim"
	case better(must):
		met = "must"
	}
	return []string{what, beside, here, fmt.Sprintf(form, reached), sign + fmt.Sprintf(form, must), sign + fmt.Sprintf(form, aim), met}
}

// A result is what one run measured, as the program document reads it.
type result struct {
	Tables []table `json:"tables"`
}

type table struct {
	Name    string     `json:"name"`
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

// tables are all rows and goals: those of reads apart from the rest.
func tables(rows []row, goals [][]string) result {
	columns := []string{"what", "baseline", "reached", "ratio", "aim", "met"}
	reads, rest := table{Name: "reads", Columns: columns}, table{Name: "rest", Columns: columns}
	for _, r := range rows {
		into := &rest
		if strings.HasPrefix(r.What, "read, ") {
			into = &reads
		}
		into.Rows = append(into.Rows, []string{r.What, r.Baseline, r.Reached, r.Ratio, r.Aim, r.Met})
	}
	return result{[]table{{"goals", []string{"what", "beside", "Durward", "reached", "must", "aim", "met"}, goals}, reads, rest}}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond)) }

func quote(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers alone
	}
	return string(b)
}
