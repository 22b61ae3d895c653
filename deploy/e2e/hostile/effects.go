//go:build hostile

package hostile

import (
	"database/sql"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the executor's store is read as a file, past the process that owns it

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// world is what the suite watches for effects.
type world struct {
	t *testing.T
	h *harness.Host
	// allowed are the ids of the catalog.
	allowed []string
	before  map[string]bool

	mu       sync.Mutex
	programs map[string]bool
	stop     chan struct{}
	watching sync.WaitGroup
}

// watch begins to look for new files and programs. The processes run already.
func watch(t *testing.T, h *harness.Host, allowed []string) *world {
	w := &world{t: t, h: h, allowed: allowed, programs: map[string]bool{}, stop: make(chan struct{})}
	w.before = w.files()
	var daemons []int
	for _, role := range harness.Roles() {
		daemons = append(daemons, h.Process(role).PID())
	}
	w.watching.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
				w.look(daemons...)
			}
		}
	})
	return w
}

// look notes every program that one of these processes started, by its command line.
func (w *world) look(parents ...int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent …, and a name may hold anything.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err != nil || !slices.Contains(parents, parent) {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		w.mu.Lock()
		w.programs[words(line)] = true
		w.mu.Unlock()
	}
}

// words joins the words of a command line as the kernel keeps it.
func words(line []byte) string {
	return strings.TrimRight(strings.ReplaceAll(string(line), "\x00", " "), " ")
}

// files are the names of all files of the installation but those that the processes themselves keep, of the folder that the
// processes run in, and of the folder for temporary files what bears the canary's name.
func (w *world) files() map[string]bool {
	w.t.Helper()
	names := map[string]bool{}
	here, err := os.Getwd()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, root := range []string{w.h.Dir, here} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			names[path] = true
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return names
}

// kept are the files that processes and services of the installation make in the ordinary course.
var kept = regexp.MustCompile(`^/(?:state|logs|run|clients)/|^/starts-|\.new$`)

// effects are what happened, at the ends of the chain.
type effects struct {
	// spent are the calls in the executor's store, intents those in the audit log: tool and service.
	spent, intents []string
	// starts is how often the demo service counted itself started.
	starts int
	// files and programs are those that nobody should have made.
	files, programs []string
}

// count reads every place where an effect would show.
func (w *world) count() effects {
	w.t.Helper()
	e := effects{starts: w.h.Starts(harness.DemoService), spent: w.spent(), intents: w.intents()}
	for name := range w.files() {
		rel, inside := strings.CutPrefix(name, w.h.Dir)
		if !w.before[name] && (!inside || !kept.MatchString(rel) || strings.Contains(rel, canary)) {
			e.files = append(e.files, name)
		}
	}
	temporary, err := filepath.Glob(filepath.Join(os.TempDir(), canary+"*"))
	if err != nil {
		w.t.Fatal(err)
	}
	e.files = append(e.files, temporary...)
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(w.h.Process(harness.Executor).PID()), "cmdline"))
	if err != nil {
		w.t.Fatal(err)
	}
	expected := []string{
		filepath.Join(w.h.Bin, "durward-demo") + " -port " + strconv.Itoa(w.h.Port(0)) + " ",
		"executor keep-log " + harness.DemoService + ".log ", // what keeps the service's log
		words(line) + " ", // a child of the executor that has not yet become what it is to be
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for program := range w.programs {
		if !slices.ContainsFunc(expected, func(prefix string) bool { return strings.HasPrefix(program+" ", prefix) }) {
			e.programs = append(e.programs, program)
		}
	}
	slices.Sort(e.files)
	slices.Sort(e.programs)
	return e
}

// outside are the effects that are not of a service of the catalog, and files and programs that nobody should have made.
func (e effects) outside(allowed []string) []string {
	var out []string
	for _, list := range [][]string{e.spent, e.intents} {
		for _, call := range list {
			_, service, _ := strings.Cut(call, " ")
			if !slices.Contains(allowed, service) {
				out = append(out, call)
			}
		}
	}
	return append(append(out, e.files...), e.programs...)
}

// spent reads the executor's store.
func (w *world) spent() []string {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+w.h.Path("state", "executor", "executor.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(w.t.Context(), "SELECT tool, arguments FROM spent")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var tool string
		var arguments []byte
		if err := rows.Scan(&tool, &arguments); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, tool+" "+serviceIn(string(arguments)))
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return out
}

var serviceID = regexp.MustCompile(`"service_id":\s*"((?:[^"\\]|\\.)*)"`)

// serviceIn finds the service that a call's arguments name; without one it is the arguments themselves.
func serviceIn(arguments string) string {
	if m := serviceID.FindStringSubmatch(arguments); m != nil {
		return m[1]
	}
	return arguments
}

// intents reads the audit log.
func (w *world) intents() []string {
	w.t.Helper()
	var out []string
	for _, entry := range w.h.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_INTENT}}) {
		out = append(out, entry.GetRecord().GetTool()+" "+serviceIn(entry.GetRecord().GetBody().GetArguments()))
	}
	return out
}
