package docker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/containerpolicy"
)

const (
	uuidA = "GPU-11111111-2222-3333-4444-555555555555"
	uuidB = "GPU-99999999-2222-3333-4444-555555555555"
)

// entryOf is a service with two GPUs.
func entryOf(access string) *catalog.Service {
	return &catalog.Service{
		ID: "chat", Driver: catalog.DriverDocker, GPUs: []uint32{0, 1}, Port: 9000, StopTimeoutS: 10, LogMaxBytes: 10 << 20,
		Limits: catalog.Limits{MemoryMiB: 1024, CPUPercent: 250, PIDs: 100},
		Container: &catalog.Container{
			Image: "registry.example/vllm@sha256:" + strings.Repeat("a", 64), User: "1000:1000", Port: 8080, GPUAccess: access, Tmpfs: []string{"/cache"},
		},
	}
}

func unit(c *catalog.Catalog, uuid func(uint32) (string, bool)) *Driver {
	return &Driver{
		cfg: Config{
			Socket: "/nowhere/docker.sock", Catalog: func() *catalog.Catalog { return c }, UUID: uuid,
			Logger: slog.New(slog.DiscardHandler),
		},
	}
}

// TestGpumodD15DockerPinsGPUsAndTrustsNoRuntime: gpumod started containers with a runtime's name and left the choice of GPUs to
// the image. Here a container is asked for with exactly the entry's GPUs by UUID, under runc, and an image that wants every GPU
// gets none by saying so.
func TestGpumodD15DockerPinsGPUsAndTrustsNoRuntime(t *testing.T) {
	c := &catalog.Catalog{GPUs: []catalog.GPU{{Index: 0, UUID: uuidA}, {Index: 1}, {Index: 2, Simulated: true}}}
	find := func(index uint32) (string, bool) { return uuidB, index == 1 }
	wish := img{id: "sha256:" + strings.Repeat("b", 64), env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}
	for access, want := range map[string]container.DeviceRequest{
		"cdi": {Driver: "cdi", DeviceIDs: []string{"nvidia.com/gpu=" + uuidA, "nvidia.com/gpu=" + uuidB}},
		"device-request": {
			Driver: "nvidia", DeviceIDs: []string{uuidA, uuidB}, Capabilities: [][]string{{"gpu", "compute", "utility"}},
		},
	} {
		s, d := entryOf(access), unit(c, find)
		rules, err := d.rules(s, host{}, wish)
		must(t, err)
		made, err := d.make(s, wish, rules)
		must(t, err)
		if diff := cmp.Diff([]container.DeviceRequest{want}, made.host.DeviceRequests); diff != "" {
			t.Errorf("%s: %s", access, diff)
		}
		if made.host.Runtime != "runc" || len(made.host.Devices) > 0 || made.host.Privileged {
			t.Errorf("%s: runtime %q, devices %v", access, made.host.Runtime, made.host.Devices)
		}
		void := slices.Contains(made.config.Env, "NVIDIA_VISIBLE_DEVICES=void")
		if void != (access == "cdi") {
			t.Errorf("%s: the environment is %v", access, made.config.Env)
		}
		if err := made.check(rules); err != nil {
			t.Errorf("%s: what is made is refused: %v", access, err)
		}
		// What the image wishes counts for nothing where no request overrides it.
		made.config.Env = wish.env
		made.host.DeviceRequests = nil
		if err := made.check(rules); err == nil {
			t.Errorf("%s: an image that takes every GPU passes", access)
		}
	}
	// Without GPUs in the entry there is no request, and the image's wish is overruled.
	s := entryOf("")
	s.GPUs = nil
	made, err := unit(c, find).make(s, wish, &containerpolicy.Rules{})
	if err != nil || len(made.host.DeviceRequests) > 0 || !slices.Contains(made.config.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("without GPUs: %+v, %v", made.host.DeviceRequests, err)
	}
	// A GPU without a UUID is no GPU: its index may be another's tomorrow.
	if _, err := unit(c, nil).rules(entryOf("cdi"), host{}, wish); !errors.Is(err, driver.ErrNotStarted) {
		t.Errorf("a GPU by its index alone: %v", err)
	}
	// A simulated one is not asked for.
	s.GPUs = []uint32{2}
	if rules, err := unit(c, nil).rules(s, host{}, wish); err != nil || len(rules.GPUs) > 0 {
		t.Errorf("a simulated GPU: %v, %v", rules, err)
	}
}

func TestWhatIsMade(t *testing.T) {
	c := &catalog.Catalog{GPUs: []catalog.GPU{{Index: 0, UUID: uuidA}, {Index: 1, UUID: uuidB}}}
	s, d := entryOf("cdi"), unit(c, nil)
	s.Environment = map[string]string{"HF_HOME": "/cache"}
	rules, err := d.rules(s, host{}, img{id: "sha256:" + strings.Repeat("b", 64)})
	must(t, err)
	made, err := d.make(s, img{id: "sha256:" + strings.Repeat("b", 64)}, rules)
	must(t, err)
	if err := made.check(rules); err != nil {
		t.Errorf("what is made is refused: %v", err)
	}
	raw, err := json.Marshal(struct{ C, H any }{made.config, made.host})
	must(t, err)
	for _, want := range []string{
		`"HostIp":"127.0.0.1","HostPort":"9000"`, `"Memory":1073741824`, `"MemorySwap":1073741824`, `"NanoCpus":2500000000`, `"PidsLimit":100`,
		`"CapDrop":["ALL"]`, `"no-new-privileges"`, `"ReadonlyRootfs":true`, `"max-size":"10485760"`, `"durward.service":"chat"`, `"HF_HOME=/cache"`,
	} {
		if !bytes.Contains(raw, []byte(want)) {
			t.Errorf("it lacks %s: %s", want, raw)
		}
	}
	// What is allowed nowhere is not made, whatever the entry says.
	for name, change := range map[string]func(s *catalog.Service){
		"a key":   func(s *catalog.Service) { s.Environment = map[string]string{"LD_LIBRARY_PATH": "/x"} },
		"root":    func(s *catalog.Service) { s.Container.User = "0" },
		"/proc":   func(s *catalog.Service) { s.Container.Tmpfs = []string{"/proc"} },
		"a mount": func(s *catalog.Service) { s.Container.Mounts = []catalog.Mount{{Source: "/etc", Target: "/x"}} },
	} {
		s := entryOf("cdi")
		change(s)
		rules, err := d.rules(s, host{}, img{})
		must(t, err)
		if made, err := d.make(s, img{id: "sha256:" + strings.Repeat("b", 64)}, rules); err == nil && made.check(rules) == nil {
			t.Errorf("%s is sent", name)
		}
	}
}

func TestNetwork(t *testing.T) {
	for _, tc := range []struct {
		expectation string
		port        uint32
		mode        container.NetworkMode
		want        driver.Network
	}{
		{"", 0, "none", driver.NetworkUnasked},
		{"", 80, "bridge", driver.NetworkUnasked},
		{catalog.NetworkHost, 0, "bridge", driver.NetworkUnasked},
		{catalog.NetworkNone, 0, "none", driver.NetworkEnforced},
		{catalog.NetworkLoopback, 0, "none", driver.NetworkEnforced},
		{catalog.NetworkNone, 80, "bridge", driver.NetworkNotEnforced},
		{catalog.NetworkLoopback, 80, "bridge", driver.NetworkNotEnforced},
	} {
		s := &catalog.Service{Network: tc.expectation, Container: &catalog.Container{Port: tc.port}}
		if mode := networkMode(s); mode != tc.mode || enforced(s, mode) != tc.want {
			t.Errorf("%q with port %d: %s, %v", tc.expectation, tc.port, mode, enforced(s, mode))
		}
	}
}

func TestAdoptedDefinition(t *testing.T) {
	i := img{id: "sha256:" + strings.Repeat("b", 64)}
	const was = `{"Id":"a","Image":"b","Config":{"User":"1","Env":["A=1"]},"HostConfig":{"Memory":1,"Binds":["/a:/a","/b:/b"]},` +
		`"Mounts":[1,2],"State":{"Pid":1}}`
	want := adoptedDefinition(i, []byte(was))
	for change, same := range map[string]bool{
		`"Mounts":[1,2]=>"Mounts":[2,1]`:                     true,
		`"Pid":1=>"Pid":2`:                                   true,
		`"User":"1","Env":["A=1"]=>"Env":["A=1"],"User":"1"`: true,
		`"Memory":1=>"Memory":2`:                             false,
		`"A=1"=>"A=2"`:                                       false,
		`"Id":"a"=>"Id":"c"`:                                 false,
		`"/a:/a","/b:/b"=>"/a:/a","/etc:/b"`:                 false,
	} {
		from, to, _ := strings.Cut(change, "=>")
		if got := adoptedDefinition(i, []byte(strings.ReplaceAll(was, from, to))); (got == want) != same {
			t.Errorf("%s: the definition is the same: %v", change, got == want)
		}
	}
	if adoptedDefinition(img{id: "other"}, []byte(was)) == want {
		t.Error("another image has the same definition")
	}
}

func TestPick(t *testing.T) {
	s := entryOf("")
	mine := map[string]string{containerpolicy.LabelService: "chat", containerpolicy.LabelMade: "true"}
	theirs := map[string]string{containerpolicy.LabelService: "chat"}
	active := container.Summary{ID: "active", Names: []string{"/durward-chat"}, Labels: mine}
	retired := container.Summary{ID: "retired", Names: []string{"/durward-chat.last"}, Labels: mine}
	human := container.Summary{ID: "human", Names: []string{"/vllm"}, Labels: theirs}
	stranger := container.Summary{ID: "stranger", Names: []string{"/durward-chat"}, Labels: map[string]string{containerpolicy.LabelService: "other", containerpolicy.LabelMade: "true"}}
	all := []container.Summary{retired, stranger, human, active}
	if id, found, err := pick(all, s); id != "active" || !found || err != nil {
		t.Errorf("made: %s, %v, %v", id, found, err)
	}
	if id, found, err := pick(all[:3], s); found || err != nil {
		t.Errorf("stopped: %s, %v, %v", id, found, err)
	}
	s.Container.Adopt = true
	if id, found, err := pick(all, s); id != "human" || !found || err != nil {
		t.Errorf("adopted: %s, %v, %v", id, found, err)
	}
	if _, _, err := pick(append(all, human), s); !errors.Is(err, driver.ErrContainer) {
		t.Errorf("two of a human's: %v", err)
	}
}

func TestControlGroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/docker-abc.scope\n":                          "/system.slice/docker-abc.scope",
		"12:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n":    "/docker/abc",
		"12:memory:/docker/abc\n0::/system.slice/containerd.service\n": "/system.slice/containerd.service",
		"0::/\n":                     "",
		"":                           "",
		"garbage\n12:cpu,cpuacct:/x": "",
	} {
		if got := groupOf(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

// frame is one message as the daemon sends it.
func frame(stream byte, at time.Time, text string) []byte {
	payload := at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + text
	out := []byte{stream, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(out[4:], uint32(len(payload)))
	return append(out, payload...)
}

func TestLogPages(t *testing.T) {
	t0 := time.Date(2026, 11, 22, 10, 0, 0, 123456789, time.UTC)
	t1 := t0.Add(time.Nanosecond)
	t2 := t0.Add(time.Minute)
	log := slices.Concat(
		frame(1, t0, "one\n"), frame(2, t0, "two\n"), frame(1, t0, "three\r\n"),
		frame(1, t1, "fo"), frame(2, t1, "five\n"), frame(1, t1.Add(1), "ur\n"),
		frame(2, t2, "late\n"), frame(1, t2.Add(-disorder/2), "early\n"), frame(2, t2.Add(1), "later\n"), frame(1, t2.Add(2), "unfinished"),
	)
	whole := []string{"one", "two", "three", "five", "four", "late", "early", "later"}
	for size := 1; size <= len(whole)+1; size++ {
		from := position{container: strings.Repeat("a", 12)}
		var got []string
		for {
			page, err := readPage(bytes.NewReader(log), from, size)
			must(t, err)
			got = append(got, page.Lines...)
			var ok bool
			if from, ok = parseCursor(page.Cursor); !ok {
				t.Fatalf("cursor %q is not read back", page.Cursor)
			}
			if !page.More {
				break
			}
		}
		if diff := cmp.Diff(whole, got); diff != "" {
			t.Errorf("pages of %d: %s", size, diff)
		}
		// At the end there is nothing more, and the place stays.
		again, err := readPage(bytes.NewReader(log), from, size)
		if err != nil || len(again.Lines) > 0 || again.Cursor != from.cursor() {
			t.Errorf("after the end: %+v, %v", again, err)
		}
	}
	for size := 1; size <= len(whole)+1; size++ {
		page, err := readNewest(bytes.NewReader(log), position{container: strings.Repeat("a", 12)}, size)
		if err != nil || page.More {
			t.Fatalf("%+v, %v", page, err)
		}
		if diff := cmp.Diff(whole[max(0, len(whole)-size):], page.Lines); diff != "" {
			t.Errorf("the newest %d: %s", size, diff)
		}
		from, _ := parseCursor(page.Cursor)
		more := slices.Concat(log, frame(1, t2.Add(3), "\n"), frame(2, t2.Add(2), "new\n"))
		if page, err = readPage(bytes.NewReader(more), from, 3); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"unfinished", "new"}, page.Lines); diff != "" {
			t.Errorf("after the newest %d: %s", size, diff)
		}
	}
	// What lies around a page is known too, and not shown.
	from := position{container: strings.Repeat("a", 12), skip: 2}
	if page, err := readPage(bytes.NewReader(log), from, 2); err != nil || !slices.Equal(page.Lines, whole[2:4]) ||
		!slices.Equal(page.Before, whole[:2]) || !slices.Equal(page.After, whole[4:]) {
		t.Errorf("%+v, %v", page, err)
	}
	from.since, from.skip = t2.Add(-disorder), 0
	if page, err := readPage(bytes.NewReader(log), from, 2); err != nil || !slices.Equal(page.Lines, whole[5:7]) || !slices.Equal(page.Before, whole[:5]) {
		t.Errorf("%+v, %v", page, err)
	}
	// Lines before the place that were rotated away are not made up for by later ones.
	from.since, from.skip = t0, 9
	later := slices.Concat(frame(1, t0.Add(time.Minute), "a\n"), frame(1, t0.Add(time.Minute-1), "b\n"), frame(1, t0.Add(2*time.Minute), "c\n"))
	for _, kept := range [][]byte{nil, frame(1, t0.Add(disorder), "kept\n")} {
		page, err := readPage(bytes.NewReader(slices.Concat(kept, later)), from, 9)
		if err != nil || !slices.Equal(page.Lines, []string{"a", "b", "c"}) {
			t.Errorf("after a rotation: %+v, %v", page, err)
		}
	}
	long := frame(1, t0, strings.Repeat("x", 2*maxLine)+"\n")
	if page, err := readPage(bytes.NewReader(long), position{}, 1); err != nil || len(page.Lines[0]) != maxLine {
		t.Errorf("a long line: %d, %v", len(page.Lines[0]), err)
	}
	for name, bad := range map[string][]byte{
		"a header cut off":  log[:3],
		"a message cut off": log[:20],
		"another stream":    frame(3, t0, "x\n"),
		"no time":           {1, 0, 0, 0, 0, 0, 0, 2, 'x', '\n'},
		"a huge message":    {1, 0, 0, 0, 255, 255, 255, 255},
	} {
		if _, err := readPage(bytes.NewReader(bad), position{}, 10); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

var cursorRule = regexp.MustCompile(`\A[A-Za-z0-9_=;.\-]{1,256}\z`)

func TestCursors(t *testing.T) {
	for _, p := range []position{{container: "0123456789ab"}, {container: "0123456789ab", since: time.Unix(1, 2).UTC(), skip: 3}} {
		if back, ok := parseCursor(p.cursor()); !ok || back != p || !cursorRule.MatchString(p.cursor()) {
			t.Errorf("%q is read as %+v, %v", p.cursor(), back, ok)
		}
	}
	for _, bad := range []string{
		"", "c=;t=0.0;n=0", "c=0123456789ab;t=1.5;n=0", "c=0123456789ab;t=01.000000000;n=0", nowhere + " ", "x" + nowhere,
		"c=0123456789ab;t=1.000000000;n=-1",
		"c=0123456789ab;t=1.000000000;n=524289", "c=0123456789ab;t=0.000000000;n=999999999", // all of a log would lie before it
	} {
		if p, ok := parseCursor(bad); ok {
			t.Errorf("%q is read as %+v", bad, p)
		}
	}
}

func FuzzLogStream(f *testing.F) {
	at := time.Unix(1, 2)
	f.Add(slices.Concat(frame(1, at, "one\n"), frame(2, at, "two\n")), 1)
	f.Add(frame(1, at, "half"), 3)
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 2, 'x', '\n'}, 2)
	f.Fuzz(func(t *testing.T, raw []byte, lines int) {
		lines = 1 + (lines&0xff)%40
		page, err := readPage(bytes.NewReader(raw), position{container: "0123456789ab"}, lines)
		newest, errNewest := readNewest(bytes.NewReader(raw), position{container: "0123456789ab"}, lines)
		if err != nil || errNewest != nil {
			return
		}
		if len(newest.Lines) > lines || !page.More && !slices.Equal(page.Lines, newest.Lines) {
			t.Errorf("the newest are %q, and all are %q", newest.Lines, page.Lines)
		}
		if len(page.Lines) > lines {
			t.Errorf("%d lines, and %d were asked for", len(page.Lines), lines)
		}
		for _, line := range page.Lines {
			if len(line) > maxLine {
				t.Errorf("a line of %d bytes", len(line))
			}
		}
		if !cursorRule.MatchString(page.Cursor) {
			t.Errorf("cursor %q", page.Cursor)
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add(nowhere)
	f.Add("c=0123456789ab;t=1700000000.000000001;n=2")
	f.Fuzz(func(t *testing.T, text string) {
		if p, ok := parseCursor(text); ok && p.cursor() != text {
			t.Errorf("%q is read, and written as %q", text, p.cursor())
		}
	})
}

// TestWhy: what the daemon says becomes one of the fixed sentences.
func TestWhy(t *testing.T) {
	for text, want := range map[string]error{
		"driver failed programming external connectivity: Bind for 127.0.0.1:80 failed: port is already allocated": driver.ErrPortInUse,
		"listen tcp4 127.0.0.1:80: bind: address already in use":                                                   driver.ErrPortInUse,
		`OCI runtime create failed: exec: "/app": stat /app: no such file or directory`:                            driver.ErrProgramMissing,
		`could not select device driver "nvidia" with capabilities: [[gpu]]`:                                       driver.ErrNotStarted,
	} {
		if err := because("start", errors.New(text)); !errors.Is(err, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// fake is a daemon that answers GETs by the end of their paths, and keeps its stream of events open.
func fake(t *testing.T, socket, version string, answers map[string]string) *http.Server {
	t.Helper()
	return speaking(t, socket, version, func(w http.ResponseWriter, r *http.Request) {
		for end, answer := range answers {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, end) {
				fmt.Fprint(w, answer)
				return
			}
		}
		http.NotFound(w, r)
	})
}

// speaking is a daemon that keeps its stream of events open, and answers the rest by a function.
func speaking(t *testing.T, socket, version string, answer http.HandlerFunc) *http.Server {
	t.Helper()
	l, err := net.Listen("unix", socket)
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", version)
		switch {
		case strings.HasSuffix(r.URL.Path, "/_ping"):
			return
		case strings.HasSuffix(r.URL.Path, "/events"):
			// A client that is gone needs no events.
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			answer(w, r)
		}
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return srv
}

// open is a driver on a socket.
func open(t *testing.T, socket string) *Driver {
	t.Helper()
	d, err := New(Config{
		Socket: socket, Catalog: func() *catalog.Catalog { return &catalog.Catalog{} }, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestDaemonsThatRunNothing: one that is too old, and one that confines nothing.
func TestDaemonsThatRunNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		version, info string
		want          error
	}{
		"too old":        {"1.40", `{"SecurityOptions":["name=seccomp,profile=default"]}`, driver.ErrNoManager},
		"no seccomp":     {"1.41", `{"SecurityOptions":["name=apparmor"]}`, driver.ErrContainer},
		"seccomp is off": {"1.41", `{"SecurityOptions":["name=seccomp,profile=unconfined"]}`, driver.ErrContainer},
		"as it should":   {"1.41", `{"SecurityOptions":["name=seccomp,profile=default"]}`, driver.ErrImageMissing},
	} {
		socket := filepath.Join(t.TempDir(), "d.sock")
		fake(t, socket, tc.version, map[string]string{"/info": tc.info, "/containers/json": "[]"})
		if err := open(t, socket).Start(t.Context(), entryOf("cdi"), "", driver.AtOnce); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// TestAfterAReboot: what ran before the host was started is stopped, and nobody ended it.
func TestAfterAReboot(t *testing.T) {
	if got := bootTime("cpu 1 2\nbtime 1700000000\nprocesses 3\n"); got.Unix() != 1700000000 {
		t.Errorf("the host was started at %v", got)
	}
	socket := filepath.Join(t.TempDir(), "d.sock")
	fake(t, socket, "1.41", map[string]string{
		"/containers/json":    `[{"Id":"abcdefabcdef0","Names":["/durward-chat"],"State":"exited","Labels":{"durward.service":"chat","durward.made":"true"}}]`,
		"/abcdefabcdef0/json": `{"Id":"abcdefabcdef0","State":{"Status":"exited","ExitCode":255,"StartedAt":"2001-11-22T10:00:00Z"}}`,
	})
	if got := open(t, socket).Status(entryOf("cdi")); got.State != driver.Stopped || got.Cause != driver.CauseRestarted {
		t.Errorf("it is %+v", got)
	}
}

// TestADaemonThatComesAndGoes: without an answer nothing is known, and with one everything is again.
func TestADaemonThatComesAndGoes(t *testing.T) {
	if _, err := New(Config{Socket: "docker.sock"}); err == nil {
		t.Error("a relative socket passes")
	}
	socket := filepath.Join(t.TempDir(), "d.sock")
	d, s := open(t, socket), entryOf("cdi")
	if got := d.Status(s); got.State != driver.Unknown || got.Cause != driver.CauseNoManager {
		t.Errorf("without a daemon: %+v", got)
	}
	for name, call := range map[string]func() error{
		"start":      func() error { return d.Start(t.Context(), s, "", driver.AtOnce) },
		"stop":       func() error { _, err := d.Stop(t.Context(), s); return err },
		"definition": func() error { _, err := d.Definition(t.Context(), s); return err },
		"logs":       func() error { _, err := d.Logs(t.Context(), s, "", 1); return err },
	} {
		if err := call(); !errors.Is(err, driver.ErrNoManager) {
			t.Errorf("%s without a daemon: %v", name, err)
		}
	}
	answers := map[string]string{
		"/containers/json": `[{"Id":"abcdefabcdef0","Names":["/durward-chat"],"State":"running","Labels":{"durward.service":"chat","durward.made":"true"}}]`,
		"/abcdefabcdef0/json": `{"Id":"abcdefabcdef0","State":{"Status":"running","Running":true,"StartedAt":"2026-11-22T10:00:00Z"},` +
			`"RestartCount":2,"HostConfig":{"NetworkMode":"bridge"}}`,
	}
	wait := func(what driver.State) driver.Status {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) { // no event: Status is all that tells of a daemon that went or came
			if got := d.Status(s); got.State == what || time.Now().After(deadline) {
				return got
			}
		}
	}
	srv := fake(t, socket, "1.41", answers)
	if got := wait(driver.Running); got.State != driver.Running || got.Restarts != 2 || got.Since.IsZero() || got.Network != driver.NetworkUnasked {
		t.Errorf("with a daemon: %+v", got)
	}
	must(t, srv.Close())
	if got := wait(driver.Unknown); got.State != driver.Unknown {
		t.Errorf("the daemon went away: %+v", got)
	}
	fake(t, socket, "1.41", answers)
	if got := wait(driver.Running); got.State != driver.Running {
		t.Errorf("the daemon came back: %+v", got)
	}
}

// TestEntrypoint: an entry's entrypoint takes the image's place, and its command with it; a container with another one is not what was sent.
func TestEntrypoint(t *testing.T) {
	c := &catalog.Catalog{GPUs: []catalog.GPU{{Index: 0, UUID: uuidA}, {Index: 1, UUID: uuidB}}}
	s, d := entryOf("cdi"), unit(c, nil)
	i := img{id: "sha256:" + strings.Repeat("b", 64), entry: []string{"/image"}, cmd: []string{"--image"}}
	rules, err := d.rules(s, host{}, i)
	must(t, err)
	for _, one := range []struct {
		entry, seen, command string
		same                 bool
	}{{"", "/image", "--image", true}, {"serve.sh", "serve.sh", "", true}, {"serve.sh", "/image", "--image", false}, {"", "serve.sh", "--image", false}, {"serve.sh", "serve.sh", "--image", false}} {
		s.Container.Entrypoint = strings.Fields(one.entry)
		made, err := d.make(s, i, rules)
		must(t, err)
		seen := container.InspectResponse{Image: i.id, HostConfig: made.host, Config: &container.Config{
			Entrypoint: strings.Fields(one.seen), Cmd: strings.Fields(one.command), User: made.config.User,
		}}
		said := ""
		if err := made.differs(seen, i); err != nil {
			said = err.Error()
		}
		if strings.Contains(said, "the entrypoint is not") || strings.Contains(said, "the command is not") {
			said = "other"
		} else {
			said = ""
		}
		if (said == "") != one.same {
			t.Errorf("%+v: %q", one, said)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
