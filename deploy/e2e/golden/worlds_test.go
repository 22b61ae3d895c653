package golden

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

var gotDir = flag.String("got", "", "write the transcripts into this folder instead of comparing them with testdata")

// set is what the worlds make of the goldens, by file name, the commands of durward that they ran, and those that there are.
type set struct {
	mu       sync.Mutex
	got      map[string]string
	runs     []string
	commands []command
	// throughSDK has the worlds' gateways answer nothing by themselves.
	throughSDK bool
}

// worlds are installations in defined states, and what is told of each.
var worlds = map[string]func(*testing.T, *set){
	"help": tellHelp, "still": tellStill, "host": tellHost, "agents": tellAgents, "codes": tellCodes, "daily": tellDaily, "dialogues": tellDialogues,
}

// TestGolden makes every golden anew. It fails when one is not as it was accepted, when one of testdata is made no more, and when a
// command, tool or resource is in none.
func TestGolden(t *testing.T) {
	t.Parallel()
	s := &set{got: map[string]string{}}
	ran := 0
	t.Run("world", func(t *testing.T) {
		for name, tell := range worlds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				tell(t, s)
				s.mu.Lock()
				defer s.mu.Unlock()
				ran++
			})
		}
	})
	if *gotDir != "" {
		for name, text := range s.got {
			path := filepath.Join(*gotDir, name)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
	if t.Failed() {
		return
	}
	whole := ran == len(worlds) // with -run a part of the worlds is left out
	if whole {
		everyCommandRan(t, s)
		everyCodeIsMet(t, s)
	}
	if *gotDir != "" {
		return
	}
	accepted, err := Accepted()
	must(t, err)
	maps.DeleteFunc(accepted, func(name, _ string) bool { return !whole && s.got[name] == "" })
	if differences := Compare(accepted, s.got); len(differences) > 0 {
		t.Errorf("what users or clients see has changed. If it is meant to, run: make golden-accept\n%s", strings.Join(differences, "\n"))
	}
}

// TestThroughSDK makes the goldens of MCP clients once more, of gateways that have the SDK serve every message: clients see no difference.
func TestThroughSDK(t *testing.T) {
	t.Parallel()
	s := &set{got: map[string]string{}, throughSDK: true}
	t.Run("world", func(t *testing.T) {
		for _, name := range []string{"agents", "dialogues"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				worlds[name](t, s)
			})
		}
	})
	accepted, err := Accepted()
	must(t, err)
	maps.DeleteFunc(accepted, func(name, _ string) bool { return s.got[name] == "" })
	if differences := Compare(accepted, s.got); len(s.got) == 0 || len(differences) > 0 {
		t.Errorf("%d goldens; through the SDK clients see something else:\n%s", len(s.got), strings.Join(differences, "\n"))
	}
}

// fixed is a test whose temporary folders have paths of one length, so that tables that hold a path keep their columns.
type fixed struct{ *testing.T }

func (f fixed) TempDir() string {
	f.Helper()
	dir := filepath.Join("/tmp", fmt.Sprintf("durward-golden-%08d-%04d", os.Getpid()%100_000_000, folders.next()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			f.Errorf("remove the installation: %v", err)
		}
	})
	return dir
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

var folders counter

// world is an installation whose transcripts are written down.
type world struct {
	t *testing.T
	*harness.Host
	set   *set
	files []*transcript
	known Normaliser
	// away says that something does not answer, which is told of. Otherwise what answers that it cannot do it now is asked again: a busy
	// machine brings that about.
	away bool
}

// transcript is a golden in the making.
type transcript struct {
	w    *world
	name string
	text strings.Builder
}

func newWorld(t *testing.T, s *set, opts harness.Options) *world {
	t.Helper()
	opts.Operator, opts.ThroughSDK = "ada", s.throughSDK
	w := &world{t: t, set: s}
	w.Host = harness.New(fixed{t}, opts)
	w.known.Is(w.Dir, "HOME")
	w.known.Is(filepath.Dir(w.Dir), "TMP")
	w.known.Is(w.Bin, "BIN")
	here, err := os.Getwd()
	must(t, err)
	w.known.Is(here, "HERE")
	_, port, err := net.SplitHostPort(w.Address(harness.Gateway))
	must(t, err)
	base, err := strconv.Atoi(port)
	must(t, err)
	// As long as the ports that they stand for: 00 to 03 are the gateway's, vault's, executor's and audit's, 10 to 13 their health
	// listeners', and those from 16 on the services'.
	for i := range 24 {
		w.known.Is(strconv.Itoa(base+i), fmt.Sprintf("P%02d", i))
	}
	for _, a := range amounts {
		w.known.Like(a.pattern, a.name)
	}
	return w
}

// file begins a golden.
func (w *world) file(name string) *transcript {
	f := &transcript{w: w, name: name}
	w.files = append(w.files, f)
	return f
}

// done hands the goldens of a world in. What is known by then is replaced in all of them.
func (w *world) done() {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	for _, f := range w.files {
		if _, twice := w.set.got[f.name]; twice {
			w.t.Errorf("two goldens are called %s", f.name)
		}
		w.set.got[f.name] = w.known.Text(f.text.String())
	}
}

// says writes a line of explanation.
func (f *transcript) says(format string, args ...any) {
	fmt.Fprintf(&f.text, "# "+format+"\n", args...)
}

// durward runs a command without a terminal and writes down what it prints: standard error with "2| " in front of each line.
func (f *transcript) durward(args ...string) harness.Output {
	f.w.t.Helper()
	return f.wrote(patiently(f, args, func() harness.Output { return f.w.Run("", args...) }), "", args)
}

// patiently returns what a request or a command is answered with that is asked again as long as it says that it cannot be done now, unless something
// is away.
func patiently[A interface{ NotNow() bool }](f *transcript, what any, ask func() A) A {
	f.w.t.Helper()
	answer := ask()
	if f.w.away || !answer.NotNow() {
		return answer
	}
	f.w.t.Logf("%v: asked again: %+v", what, answer)
	return harness.Again(ask)
}

// person runs a command at a terminal.
func (f *transcript) person(says []string, args ...string) harness.Output {
	f.w.t.Helper()
	x := f.w.AtTerminal(f.w.t, 400, args...) // no line is broken, since where depends on the length of what is normalised
	defer x.Close()
	x.Says(says...)
	out := harness.Output{Code: x.Code()}
	out.Stdout = strings.ReplaceAll(x.Text(), "\r\n", "\n")
	out.Stdout = painted.ReplaceAllString(colours.ReplaceAllString(out.Stdout, ""), "(progress, painted over and over)\n")
	out.Stdout = counted.ReplaceAllString(out.Stdout, "(asks again in some seconds)\n")
	return f.wrote(out, " (at a terminal)", args)
}

var (
	// colours are what makes a terminal write bold or in colour.
	colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	// spooled are records of reads, of which some may be on their way to the log at any time.
	spooled = regexp.MustCompile(`, \d+ records? waits? for audit`)
	// painted is progress at a terminal, counted the wait before a second question, and running a step that a pipe is told of: how
	// often they are written is a matter of time.
	painted = regexp.MustCompile(`(?s)\x1b\[\?25l.*?\x1b\[\?25h`)
	counted = regexp.MustCompile(`(?:\x0dAsking again in [^\x0d]*)+\x0d *`)
	running = regexp.MustCompile(`(?m)^● .*\n`)
)

func (f *transcript) wrote(out harness.Output, how string, args []string) harness.Output {
	f.w.set.mu.Lock()
	f.w.set.runs = append(f.w.set.runs, strings.Join(args, " "))
	f.w.set.mu.Unlock()
	f.program("durward"+how, args, spooled.ReplaceAllString(running.ReplaceAllString(out.Stdout, ""), ""), running.ReplaceAllString(out.Stderr, ""), out.Code)
	return out
}

func (f *transcript) program(name string, args []string, stdout, stderr string, code int) {
	quoted := slices.Clone(args)
	for i, a := range quoted {
		if a == "" || strings.ContainsAny(a, " \"'{}") {
			quoted[i] = "'" + a + "'"
		}
	}
	fmt.Fprintf(&f.text, "$ %s\n%s", strings.TrimSpace(name+" "+strings.Join(quoted, " ")), ended(visible(stdout)))
	for line := range strings.Lines(ended(stderr)) {
		f.text.WriteString("2| " + visible(line))
	}
	fmt.Fprintf(&f.text, "exit %d\n\n", code)
}

// story shows the records of an operation. How often its agent was told that it waits is a matter of time, and left out.
func (f *transcript) story(operationID string) {
	f.w.t.Helper()
	args := []string{"audit", "show", operationID}
	out := f.w.Run("", args...)
	out.Stdout = told.ReplaceAllString(out.Stdout, "")
	f.wrote(out, "", args)
}

// told is a record of a read, as a story shows it.
var told = regexp.MustCompile(`(?m)^.*  read  .*\n`)

// both runs a command that reads as text and with --json.
func (f *transcript) both(args ...string) {
	f.w.t.Helper()
	f.durward(args...)
	f.durward(append(slices.Clone(args), "--json")...)
}

func ended(text string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		return text + "\n"
	}
	return text
}

// visible shows control characters as Go writes them, so that a golden is text.
func visible(text string) string {
	return regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f]`).ReplaceAllStringFunc(text, func(c string) string { return fmt.Sprintf(`\x%02x`, c[0]) })
}

// execute runs a program that is not durward.
func (f *transcript) execute(program string, args ...string) {
	f.w.t.Helper()
	stdout, stderr, code := execute(f.w.t, filepath.Join(f.w.Bin, program), args...)
	f.program(program, args, stdout, stderr, code)
}

func execute(t *testing.T, program string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if e := cmd.Run(); cmd.ProcessState == nil {
		t.Fatalf("%s: %v", program, e)
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// request sends a request to the gateway and writes both down. What asks is the request as a reader sees it.
func (f *transcript) request(asks string, r harness.RawRequest) harness.RawAnswer {
	f.w.t.Helper()
	answer := patiently(f, asks, func() harness.RawAnswer { return mustRaw(f.w, r) })
	f.answer(asks, answer)
	return answer
}

// requestUntil sends a request until its answer is one that is waited for, and writes that one down.
func (f *transcript) requestUntil(asks string, r harness.RawRequest, is func(harness.RawAnswer) bool) {
	f.w.t.Helper()
	harness.Eventually(f.w.t, asks, func() error {
		answer := mustRaw(f.w, r)
		if !is(answer) {
			return fmt.Errorf("%d %s", answer.HTTPStatus, answer.Body)
		}
		f.answer(asks, answer)
		return nil
	})
}

func (f *transcript) answer(asks string, answer harness.RawAnswer) {
	f.w.t.Helper()
	fmt.Fprintf(&f.text, "> %s\nHTTP %d\n", asks, answer.HTTPStatus)
	for _, name := range []string{"Content-Type", "Mcp-Session-Id", "Retry-After", "Www-Authenticate", "Allow"} {
		if value := answer.Header.Get(name); value != "" {
			if name == "Mcp-Session-Id" {
				f.w.known.IsA(value, "MCP_SESSION")
			}
			fmt.Fprintf(&f.text, "%s: %s\n", name, value)
		}
	}
	switch {
	case answer.Result != nil:
		f.json(answer.Result)
	case answer.Error != nil:
		raw, err := json.Marshal(answer.Error)
		if err != nil {
			f.w.t.Fatal(err)
		}
		f.json(raw)
	default:
		f.text.WriteString(ended(visible(answer.Body)))
	}
	f.text.WriteString("\n")
}

// json writes a message down with its members in the order in which they came. Text that repeats the structured content is not
// written twice.
func (f *transcript) json(raw []byte) {
	f.w.t.Helper()
	var result struct {
		StructuredContent json.RawMessage
		Content           []struct{ Text string }
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		f.w.t.Fatalf("%v: %s", err, raw)
	}
	text := b.String()
	if json.Unmarshal(raw, &result) == nil && result.StructuredContent != nil {
		for _, c := range result.Content {
			var compact bytes.Buffer
			if json.Compact(&compact, result.StructuredContent) == nil && sameJSON(c.Text, compact.String()) {
				quoted := regexp.MustCompile(`"text": "(?:[^"\\]|\\.)*"`)
				text = quoted.ReplaceAllString(text, `"text": <STRUCTURED_CONTENT>`)
			}
		}
	}
	// A text of several lines reads as such.
	f.text.WriteString(ended(visible(strings.ReplaceAll(text, `\n`, "\\n\n"))))
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	left, err := json.Marshal(x)
	right, err2 := json.Marshal(y)
	return err == nil && err2 == nil && bytes.Equal(left, right)
}

// amounts are what only its surroundings tell from what must stay: a time, a size of this machine, how long the log is by now.
var amounts = []struct{ name, pattern string }{
	{"PID", `"[a-z_]*pid": ?(\d+)`},
	{"PID", `\bpid (\d+)`},
	{"PID", `\bprocess (\d+)\b`},
	{"PID", `(?m)^  \S+ ( *\d+)  \d+ MiB`},
	{"MEMORY", `(?m)main memory (\S+ GiB) available`},
	{"MEMORY", `(?m)main memory \S+ available of (\S+ GiB)`},
	{"MEMORY", `(?m)"(?:memory|host)_available_mib": (\d+)`},
	{"MEMORY", `(?m)"memory_total_mib": (\d+),?\n *"memory_available_mib"`},
	{"N", `"(?:sequence|next_before|size)": (\d+)`},
	{"N", `"index": (\d+),\n +"(?:writer|leaf_hash)"`},
	{"N", `"(?:records|log_records|kept_checkpoint_size|spooled_records|open_sessions)": (\d+)`},
	{"NUMBER", `Ask the operator to run: durward approve ([0-9A-Z]{4,26})`},
	{"N", `(?m)^(\d+) {2,}20\d\d-`},
	{"SIZE", `"(?:database|log|disk_free)_bytes": (\d+)`},
	{"MEMORY", `(\S+ GiB) are available`},
	{"N", `\b(\d+) records?\b`},
	{"N", `: (\d+) are new\b`},
	{"N", `"new": (\d+)`},
	{"N", `\brecord (\d+) is in the log\b`},
	{"N", `durward audit show (\d+) --json`},
	{"N", `release it with: durward audit hold release (\d+)`},
	{"N", `"asked_audit": \w+,\n +"index": (\d+)`},
	{"N", `"log_size": (\d+)`},
	{"N", `"checkpoint": "durward\.local/audit/main\\n\n(\d+)\\n`},
	{"N", `(?m)"durward/receipt": \{[^}]*"index": (\d+)`},
	// A receipt's path is as long as the log's size demands.
	{"PATH", `"inclusion": \[([^\]]*)\]`},
	{"LEAF", `"durward/receipt": \{[^}]*"leaf_hash": "([^"]+)"`},
	{"N", `(?m)^( +\d+)  20\d\d-`},
	{"SIGNATURE", `— durward\.local/audit/main ([A-Za-z0-9+/=]+)`},
	{"N", `\brecorded as (\d+)`},
	{"TOOK", `\b(\d+\.\d s)\b`},
	{"TOOK", `\+( *\d+\.\d{3} s)\b`},
	{"TOOK", `\b(\d+\.\d{3} s)\b`},
	{"KEY", `/main\+([0-9a-f]{8})\b`},
	{"SECONDS", `(?:"retry_after_s": |Retry-After: )(\d+)`},
	{"SECONDS", `"(?:uptime_s|expected_s|took_s|elapsed_s)": (\d+)`},
	{"MS", `"(?:duration_ms|took_ms|elapsed_ms)": ?"?(\d+)`},
	{"MS", `\b\d+(?:\.\d+)?(?:ms|µs)\b`},
	{"CLOCK", `until (\d\d:\d\d(?: on \d+ [A-Z][a-z]+)?)\b`},
	{"LASTS", `(?m)(?:^|[^0-9-] |\()(\d{1,3}:\d\d)(?:[ ,.)]|$)`},
	{"MS", `\((\d+ ms)\)`},
	{"SIZE", `records, (\d+ MiB),`},
	{"SIZE", `, (\d+ MiB) free`},
	{"DRIVER", `GPUs +\d+ × simulated \((.*)\)`},
	{"STANDING", `(?m)(?:^|: )([0-9a-f]{8}) {2}`},
	{"RULE", `allow/cursor/stop_service/([0-9a-f]{8})\b`},
	{"UNIX", `time\.unix < (\d{10})\b`},
	{"PREFIX", `dangerous cursor ([a-z2-7]{6})\b`},
	// How far a process has seen the log depends on when it was told last.
	{"CHECKPOINT", `"checkpoint": "([A-Za-z0-9+/=]{40,})"`},
	// Where a page of a log ends depends on how many digits its times have.
	{"CURSOR", `"cursor": "(b\d+)"`},
}

// envelope is an answer of a tool.
type envelope struct {
	Status, RequestID, OperationID string
}

func envelopeOf(t *testing.T, a harness.RawAnswer) envelope {
	t.Helper()
	var result struct {
		StructuredContent struct {
			Status      string
			RequestID   string `json:"request_id"`
			OperationID string `json:"operation_id"`
		}
	}
	if err := json.Unmarshal(a.Result, &result); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	return envelope(result.StructuredContent)
}

// number is the short number of an operation that waits, which every golden then shows as <NUMBER1>.
func (w *world) number(operationID string) string {
	w.t.Helper()
	for _, a := range w.Approvals() {
		if a.OperationID == operationID {
			w.known.IsA(a.Number, "NUMBER")
			return a.Number
		}
	}
	w.t.Fatalf("operation %s does not wait", operationID)
	return ""
}

// aged waits until a service has run for a second, from when on its uptime is shown.
func (w *world) aged(service string) {
	w.t.Helper()
	harness.Eventually(w.t, service+" has run for a second", func() error {
		var shown struct {
			Service struct {
				UptimeS int `json:"uptime_s"`
			}
		}
		if w.DurwardJSON(&shown, "service", "show", service); shown.Service.UptimeS < 1 {
			return fmt.Errorf("it has not")
		}
		return nil
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
