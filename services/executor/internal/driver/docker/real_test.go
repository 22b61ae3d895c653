//go:build real

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// engine is the daemon that scripts/real-docker.sh started, and a registry with images of this very program.
type engine struct {
	socket string
	api    *client.Client
	image  string // by digest
	layer  []byte
	host   string // the registry's
	mu     sync.Mutex
	blobs  map[string][]byte
	tags   map[string]string
}

var shared struct {
	once   sync.Once
	engine *engine
	err    error
}

// daemon returns the daemon with the test's image in it. A missing daemon fails the test.
func daemon(t *testing.T) *engine {
	t.Helper()
	shared.once.Do(func() { shared.engine, shared.err = newEngine() })
	if shared.err != nil {
		t.Fatalf("scripts/real-docker.sh runs these tests: %v", shared.err)
	}
	return shared.engine
}

func newEngine() (*engine, error) {
	e := &engine{socket: os.Getenv("DURWARD_DOCKER_SOCKET"), blobs: map[string][]byte{}, tags: map[string]string{}}
	if e.socket == "" {
		return nil, fmt.Errorf("DURWARD_DOCKER_SOCKET names no socket")
	}
	var err error
	if e.api, err = client.New(client.WithHost("unix://" + e.socket)); err != nil {
		return nil, err
	}
	e.host = strings.TrimPrefix(httptest.NewServer(e).URL, "http://")
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, h := range []*tar.Header{
		{Name: "app", Mode: 0o755, Size: int64(len(raw)), Typeflag: tar.TypeReg},
		{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir},
		{Name: "models/", Mode: 0o755, Typeflag: tar.TypeDir},
	} {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Size > 0 {
			if _, err := w.Write(raw); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	e.layer = layer.Bytes()
	e.image, err = e.push("app", "latest", nil)
	return e, err
}

// push puts an image into the registry and from there into the daemon, and returns its name by digest. change alters the image's
// configuration.
func (e *engine) push(repository, tag string, change map[string]any) (string, error) {
	config := map[string]any{
		"Env": []string{"PATH=/", inContainer + "=1"}, "Entrypoint": []string{"/app"}, "Cmd": []string{"serve"},
	}
	maps.Copy(config, change)
	layer := e.blob(e.layer)
	image, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": config, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(image), "digest": e.blob(image)},
		"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": len(e.layer), "digest": layer}},
	})
	if err != nil {
		return "", err
	}
	digest := e.blob(manifest)
	e.mu.Lock()
	e.tags[repository+":"+tag] = digest
	e.mu.Unlock()
	for _, name := range []string{e.host + "/" + repository + ":" + tag, e.host + "/" + repository + "@" + digest} {
		pull, err := e.api.ImagePull(context.Background(), name, client.ImagePullOptions{})
		if err != nil {
			return "", err
		}
		said, err := io.ReadAll(pull)
		if err != nil {
			return "", err
		}
		if bytes.Contains(said, []byte(`"error"`)) {
			return "", fmt.Errorf("pull %s: %s", name, said)
		}
	}
	return e.host + "/" + repository + "@" + digest, nil
}

func (e *engine) blob(raw []byte) string {
	sum := sha256.Sum256(raw)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	e.mu.Lock()
	defer e.mu.Unlock()
	e.blobs[digest] = raw
	return digest
}

// ServeHTTP is as much of the registry's API as a pull needs.
func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
	if len(parts) != 3 {
		return // "/v2/": yes, a registry
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	digest := parts[2]
	if tagged, ok := e.tags[parts[0]+":"+parts[2]]; ok {
		digest = tagged
	}
	raw, ok := e.blobs[digest]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if parts[1] == "manifests" {
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(raw)
	}
}

// host is a catalog and a driver on the daemon.
type bench struct {
	*engine
	t *testing.T
	d *Driver
	c *catalog.Catalog
}

func newBench(t *testing.T) *bench {
	b := &bench{engine: daemon(t), t: t, c: &catalog.Catalog{}}
	b.d = b.driver(b.socket)
	return b
}

func (b *bench) driver(socket string) *Driver {
	b.t.Helper()
	d, err := New(Config{Socket: socket, Catalog: func() *catalog.Catalog { return b.c }, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil))})
	must(b.t, err)
	b.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return d
}

var serial int

// service is an entry whose container runs the program with some arguments. What it leaves behind is taken away.
func (b *bench) service(change func(s *catalog.Service), command ...string) *catalog.Service {
	b.t.Helper()
	serial++
	s := &catalog.Service{
		ID: fmt.Sprintf("s%d", serial), Driver: catalog.DriverDocker, StopTimeoutS: 2, LogMaxBytes: 1 << 20,
		Container: &catalog.Container{Image: b.image, User: "4242:4242", Command: command},
	}
	if change != nil {
		change(s)
	}
	b.t.Cleanup(func() {
		all, err := b.d.list(context.Background(), s.ID)
		if err != nil {
			b.t.Error(err)
		}
		for _, c := range all {
			b.d.remove(context.Background(), c.ID)
		}
	})
	return s
}

// withPort publishes the program's port.
func withPort(t *testing.T) func(s *catalog.Service) {
	port := freePort(t)
	return func(s *catalog.Service) { s.Port, s.Container.Port = port, 8080 }
}

func freePort(t *testing.T) uint32 {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return uint32(l.Addr().(*net.TCPAddr).Port)
}

// begin starts what there is at this moment; a definition that cannot be had is as good as any.
func begin(ctx context.Context, d *Driver, s *catalog.Service) error {
	definition, _ := d.Definition(ctx, s)
	return d.Start(ctx, s, definition, driver.AtOnce)
}

func (b *bench) start(s *catalog.Service) {
	b.t.Helper()
	if err := begin(b.t.Context(), b.d, s); err != nil {
		b.t.Fatalf("start: %v", err)
	}
}

// await waits until a service looks as it should.
func (b *bench) await(d *Driver, s *catalog.Service, what driver.State) driver.Status {
	b.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got := d.Status(s)
		if got.State == what {
			return got
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("it is %+v, want state %d", got, what)
		}
		time.Sleep(20 * time.Millisecond) // no event: another process is asked
	}
}

// ask gets something from the program in the container.
func (b *bench) ask(s *catalog.Service, path string) string {
	b.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", s.Port, path))
		if err == nil {
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			must(b.t, err)
			return fmt.Sprint(res.StatusCode, " ", string(body))
		}
		if time.Now().After(deadline) {
			b.t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // no event: another process is asked
	}
}

func TestRealLife(t *testing.T) {
	b := newBench(t)
	folder := filepath.Join(t.TempDir(), "models")
	must(t, os.Mkdir(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "weights"), []byte("heavy"), 0o644))
	b.c.Containers.Mounts = []string{filepath.Dir(folder)}
	s := b.service(func(s *catalog.Service) {
		withPort(t)(s)
		s.Limits = catalog.Limits{MemoryMiB: 256, CPUPercent: 50, PIDs: 64}
		s.Network = catalog.NetworkLoopback
		s.Environment = map[string]string{"HF_HOME": "/cache"}
		s.Container.Tmpfs = []string{"/cache"}
		s.Container.Mounts = []catalog.Mount{{Source: folder, Target: "/models"}}
	})
	if got := b.d.Status(s); got.State != driver.Stopped || got.Network != driver.NetworkNotEnforced {
		t.Errorf("before: %+v", got)
	}
	definition, err := b.d.Definition(t.Context(), s)
	if err != nil || !strings.HasPrefix(definition, "sha256:") {
		t.Fatalf("definition %q, %v", definition, err)
	}
	ended := errors.New("it has ended")
	if err := b.d.Start(t.Context(), s, definition, func(func() error) error { return ended }); !errors.Is(err, ended) || b.ran(s) {
		t.Errorf("what let it run has ended: %v, it ran: %v", err, b.ran(s))
	}
	b.start(s)
	status := b.d.Status(s)
	if status.State != driver.Running || status.PID <= 0 || status.CGroup == "" || time.Since(status.Since) > time.Minute || status.Restarts != 0 {
		t.Errorf("it runs: %+v", status)
	}
	t.Logf("its control group is %s", status.CGroup)

	// What is really in force, as the program in the container sees it.
	inside := b.ask(s, "/file?name=/proc/self/status")
	for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Uid:\t4242\t4242"} {
		if !strings.Contains(inside, want) {
			t.Errorf("the program's status lacks %q:\n%s", want, inside)
		}
	}
	if got := b.ask(s, "/file?name=/models/weights"); got != "200 heavy" {
		t.Errorf("the mount holds %q", got)
	}
	for _, name := range []string{"/x", "/app", "/models/x", "/proc/sys/kernel/hostname", "/tmp/x"} {
		if got := b.ask(s, "/write?name="+name); !strings.HasPrefix(got, "403") {
			t.Errorf("write %s: %q", name, got)
		}
	}
	if got := b.ask(s, "/write?name=/cache/x"); !strings.HasPrefix(got, "200") {
		t.Errorf("write into the tmpfs: %q", got)
	}
	environment := b.ask(s, "/environment")
	for _, want := range []string{"HF_HOME=/cache", "NVIDIA_VISIBLE_DEVICES=void"} {
		if !strings.Contains(environment, want) {
			t.Errorf("the environment lacks %s: %s", want, environment)
		}
	}
	for file, want := range b.controls(status) {
		raw, err := os.ReadFile(file)
		if got := strings.TrimSpace(string(raw)); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", file, got, err, want)
		}
	}
	// Nobody but this host reaches the port.
	for _, address := range addresses(t) {
		if c, err := net.DialTimeout("tcp", net.JoinHostPort(address, fmt.Sprint(s.Port)), time.Second); err == nil {
			_ = c.Close()
			t.Errorf("the port answers on %s too", address)
		}
	}

	// Another executor finds it as it is.
	other := b.driver(b.socket)
	if got := other.Status(s); got.State != driver.Running || got.PID != status.PID {
		t.Errorf("another executor sees %+v", got)
	}
	if err := begin(t.Context(), b.d, s); err == nil {
		t.Error("it was started twice")
	}
	if ran, err := b.d.Stop(t.Context(), s); !ran || err != nil {
		t.Fatalf("stop: %v, %v", ran, err)
	}
	if got := b.d.Status(s); got.State != driver.Stopped || got.Cause != "" {
		t.Errorf("stopped, and yet %+v", got)
	}
	if got := b.driver(b.socket).Status(s); got.State != driver.Stopped {
		t.Errorf("after a restart of the executor it is %+v", got)
	}
	if page, err := b.d.Logs(t.Context(), s, "", 10); err != nil || strings.Join(page.Lines, "|") != "serving|ending" {
		t.Errorf("the log of a stopped service: %+v, %v", page, err)
	}
	if ran, err := b.d.Stop(t.Context(), s); ran || err != nil {
		t.Errorf("stop again: %v, %v", ran, err)
	}
	b.start(s)
	if again, err := b.d.Definition(t.Context(), s); again != definition || err != nil {
		t.Errorf("the definition changed by itself: %v, %v", again, err)
	}
	if ran, err := b.d.Stop(t.Context(), s); !ran || err != nil {
		t.Errorf("stop: %v, %v", ran, err)
	}
}

// controls are the files of the host that say what a container is limited to, by what they must say.
func (b *bench) controls(s driver.Status) map[string]string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		at := filepath.Join("/sys/fs/cgroup", s.CGroup)
		return map[string]string{at + "/memory.max": "268435456", at + "/memory.swap.max": "0", at + "/pids.max": "64", at + "/cpu.max": "50000 100000"}
	}
	return map[string]string{
		filepath.Join("/sys/fs/cgroup/memory", s.CGroup, "memory.limit_in_bytes"): "268435456",
		filepath.Join("/sys/fs/cgroup/pids", s.CGroup, "pids.max"):                "64",
		filepath.Join("/sys/fs/cgroup/cpu", s.CGroup, "cpu.cfs_quota_us"):         "50000",
	}
}

// addresses are this host's other ones.
func addresses(t *testing.T) []string {
	all, err := net.InterfaceAddrs()
	must(t, err)
	var out []string
	for _, a := range all {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			out = append(out, ip.String())
		}
	}
	if len(out) == 0 {
		t.Fatal("the host has no other address, so that says nothing")
	}
	return out
}
