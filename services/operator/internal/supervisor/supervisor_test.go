package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"durward.internal/services/platform/health"
	"durward.internal/services/platform/platformtest/testfile"
)

// The test binary is also the child that the supervisor runs: DURWARD_TEST_CHILD names its behaviour.
func TestMain(m *testing.M) {
	if behaviour := os.Getenv("DURWARD_TEST_CHILD"); behaviour != "" {
		child(behaviour, os.Args[1], os.Args[2], os.Args[3])
		return
	}
	os.Exit(m.Run())
}

func child(behaviour, role, address, journal string) {
	note := func(what string) {
		f, err := os.OpenFile(journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, _ = fmt.Fprintf(f, "%s %s\n", role, what)
			_ = f.Close()
		}
	}
	note("start")
	if behaviour == "broken" {
		fmt.Fprintln(os.Stderr, "the configuration is wrong")
		os.Exit(2)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		if lives, err := os.ReadFile(journal); behaviour == "hangs" && err == nil && strings.Count(string(lives), role+" start") > 1 {
			for _, err := os.Stat(journal + ".go"); err != nil; _, err = os.Stat(journal + ".go") {
				time.Sleep(time.Millisecond) // another process makes the file
			}
		}
		_ = http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/die" {
				fmt.Fprintln(os.Stderr, "told to die")
				os.Exit(7)
			}
			// The client refuses a reply that is cut short.
			_ = json.NewEncoder(w).Encode(health.Health{Status: "ok", Service: role, Version: "test"})
		}))
	}()
	<-stop
	note("stop")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

type scene struct {
	dir, journal string
	mu           sync.Mutex
	reports      []string
	news         chan struct{}
}

func (s *scene) child(t *testing.T, role, behaviour string) Child {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	return Child{Role: role, Path: self, Args: []string{role, address, s.journal}, Env: []string{"DURWARD_TEST_CHILD=" + behaviour},
		Log: filepath.Join(s.dir, role+".log"), Health: address}
}

func (s *scene) report(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, text)
	select {
	case s.news <- struct{}{}:
	default: // that there is something new is known already
	}
}

func (s *scene) reported() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.reports, "\n")
}

// await waits for a report.
func (s *scene) await(t *testing.T, want string) {
	t.Helper()
	for late := time.After(30 * time.Second); !strings.Contains(s.reported(), want); {
		select {
		case <-s.news:
		case <-late:
			t.Fatalf("no report of %q: %s", want, s.reported())
		}
	}
}

func (s *scene) events(t *testing.T) string {
	b := testfile.Read(t, s.journal)
	return strings.Join(strings.Split(strings.TrimSpace(string(b)), "\n"), ", ")
}

func newScene(t *testing.T) *scene {
	dir := t.TempDir()
	return &scene{dir: dir, journal: filepath.Join(dir, "journal"), news: make(chan struct{}, 1)}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a supervisor of nothing was made")
	}
	_, err := New(Config{Children: []Child{{Role: "audit", Path: filepath.Join(t.TempDir(), "audit")}}})
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("missing program: %v", err)
	}
}

func TestRunStopsTheOthersWhenOneCannotStart(t *testing.T) {
	s := newScene(t)
	supervisor, err := New(Config{Children: []Child{s.child(t, "audit", "good"), s.child(t, "vault", "broken")}})
	if err != nil {
		t.Fatal(err)
	}
	err = supervisor.Run(context.Background(), func() { t.Error("called healthy") })
	if err == nil || !strings.Contains(err.Error(), "vault stopped by itself (exit status 2)") || !strings.Contains(err.Error(), "the configuration is wrong") {
		t.Errorf("error %v", err)
	}
	if got, want := s.events(t), "audit start, vault start, audit stop"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestRunInOrderAndRestart(t *testing.T) {
	s := newScene(t)
	children := []Child{s.child(t, "audit", "good"), s.child(t, "vault", "good"), s.child(t, "gateway", "good")}
	var ready []string
	supervisor, err := New(Config{Children: children, Ready: func(role string) { ready = append(ready, role) }, Report: s.report, Backoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	up := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- supervisor.Run(ctx, func() { close(up) }) }()
	select {
	case <-up:
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	}
	if got := strings.Join(ready, " "); got != "audit vault gateway" {
		t.Errorf("ready in order %q", got)
	}

	// The connection breaks as the child dies: there is no answer to read.
	if response, err := http.Get("http://" + children[1].Health + "/die"); err == nil {
		_ = response.Body.Close()
	}
	s.await(t, "vault is running again")
	for _, want := range []string{"vault stopped by itself (exit status 7)", "told to die"} {
		if !strings.Contains(s.reported(), want) {
			t.Errorf("reports lack %q: %s", want, s.reported())
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	if got, want := s.events(t), "audit start, vault start, gateway start, vault start, gateway stop, vault stop, audit stop"; got != want {
		t.Errorf("events %q\nwant   %q", got, want)
	}
}

// TestHangsAndLargeLog: a process that does not come to itself after a restart is told of, once, and so is that it did; a log that cannot be put
// aside, as on a full disk, keeps none from starting.
func TestHangsAndLargeLog(t *testing.T) {
	s := newScene(t)
	child := s.child(t, "vault", "hangs")
	testfile.Write(t, child.Log, "")
	if err := errors.Join(os.Truncate(child.Log, maxLog), os.Mkdir(child.Log+".1", 0o700)); err != nil {
		t.Fatal(err)
	}
	supervisor, err := New(Config{Children: []Child{child}, Report: s.report, Backoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	up, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- supervisor.Run(ctx, func() {
			supervisor.cfg.StartTimeout = time.Millisecond // from now on
			close(up)
		})
	}()
	select {
	case <-up:
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	}
	// The connection breaks as the child dies: there is no answer to read.
	if response, err := http.Get("http://" + child.Health + "/die"); err == nil {
		_ = response.Body.Close()
	}
	s.await(t, "vault was not ready within 1ms")
	testfile.Write(t, s.journal+".go", "")
	s.await(t, "vault is running again")
	if n := strings.Count(s.reported(), "was not ready"); n != 1 {
		t.Errorf("told %d times: %s", n, s.reported())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := Tail(path, 3, 0); got != "" {
		t.Errorf("missing file: %q", got)
	}
	testfile.Write(t, path, "one\ntwo\nthree\nfour\n")
	for from, want := range map[int64]string{0: "three\nfour", int64(len("one\ntwo\nthree\n")): "four", 1000: "three\nfour"} {
		if got := Tail(path, 2, from); got != want {
			t.Errorf("from %d: %q, want %q", from, got, want)
		}
	}
	testfile.Write(t, path, strings.Repeat("an old line\n", 8000)+"the newest\n")
	for _, from := range []int64{0, 1 << 20} { // the second is behind a log that was put aside and has grown again
		if got := Tail(path, 1, from); got != "the newest" {
			t.Errorf("from %d: %q", from, got)
		}
	}
}

func TestBoundLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := boundLog(path, 10); err != nil {
		t.Errorf("missing file: %v", err)
	}
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for _, c := range []struct{ write, log, aside string }{
		{"short", "short", ""},
		{" and longer", "", "short and longer"},
		{"next", "next", "short and longer"},
	} {
		if _, err := writer.WriteString(c.write); err != nil {
			t.Fatal(err)
		}
		if err := boundLog(path, 10); err != nil {
			t.Fatal(err)
		}
		log := testfile.Read(t, path)
		// There is none at first.
		aside, _ := os.ReadFile(path + ".1")
		if string(log) != c.log || string(aside) != c.aside {
			t.Errorf("after %q: log %q, aside %q", c.write, log, aside)
		}
	}
}
