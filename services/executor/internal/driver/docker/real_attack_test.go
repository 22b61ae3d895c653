//go:build real

package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/containerpolicy"
)

// ran reports whether a container of the service was ever started.
func (b *bench) ran(s *catalog.Service) bool {
	b.t.Helper()
	all, err := b.d.list(context.Background(), s.ID)
	must(b.t, err)
	return slices.ContainsFunc(all, func(c container.Summary) bool { return c.State != container.StateCreated })
}

// refused starts a service that must not start.
func (b *bench) refused(name string, d *Driver, s *catalog.Service, want error) {
	b.t.Helper()
	err := begin(b.t.Context(), d, s)
	switch {
	case err == nil:
		b.t.Errorf("%s: it was started", name)
	case !errors.Is(err, want):
		b.t.Errorf("%s: %v; want %v", name, err, want)
	case b.ran(s):
		b.t.Errorf("%s: it was refused and ran all the same: %v", name, err)
	default:
		b.t.Logf("%s: %v", name, err)
	}
	if got := d.Status(s); got.State == driver.Running {
		b.t.Errorf("%s: it looks as if it ran", name)
	}
}

func TestRealEnds(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		name, want string
		command    []string
	}{
		{"by itself", driver.CauseExited, []string{"say", "good bye", "0"}},
		{"with a status", driver.CauseExited, []string{"say", "something", "3"}},
		{"without GPU memory", driver.CauseOutOfVRAM, []string{"say", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "1"}},
		{"without its port", driver.CausePortInUse, []string{"say", "OSError: [Errno 98] Address already in use", "1"}},
	} {
		s := b.service(nil, tc.command...)
		b.start(s)
		if got := b.await(b.d, s, driver.Ended); got.Cause != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got.Cause, tc.want)
		}
		// It is seen afresh by another executor, and its last words stay until it is started again.
		if got := b.await(b.driver(b.socket), s, driver.Ended); got.Cause != tc.want {
			t.Errorf("%s, seen later: %q", tc.name, got.Cause)
		}
		if page, err := b.d.Logs(t.Context(), s, "", 5); err != nil || len(page.Lines) != 1 || page.Lines[0] != tc.command[1] {
			t.Errorf("%s: the log is %+v, %v", tc.name, page, err)
		}
		if ran, err := b.d.Stop(t.Context(), s); ran || err != nil {
			t.Errorf("%s: stop: %v, %v", tc.name, ran, err)
		}
		if got := b.d.Status(s); got.State != driver.Stopped {
			t.Errorf("%s: stopped, and yet %+v", tc.name, got)
		}
	}
	// A human ends it.
	s := b.service(nil)
	b.start(s)
	if _, err := b.api.ContainerKill(t.Context(), name(s), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	if got := b.await(b.d, s, driver.Ended); got.Cause != driver.CauseExited {
		t.Errorf("killed: %+v", got)
	}
	b.start(s) // what ended is cleared away
	b.await(b.d, s, driver.Running)
}

func TestRealOutOfMemory(t *testing.T) {
	b := newBench(t)
	s := b.service(func(s *catalog.Service) { s.Limits.MemoryMiB = 64 }, "hog")
	b.start(s)
	if got := b.await(b.d, s, driver.Ended); got.Cause != driver.CauseOutOfMemory {
		t.Errorf("it is %+v", got)
	}
}

func TestRealDeaf(t *testing.T) {
	b := newBench(t)
	s := b.service(func(s *catalog.Service) { s.StopTimeoutS = 1 }, "deaf")
	b.start(s)
	pid := b.d.Status(s).PID
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the caller is gone, and the stop goes on
	if ran, err := b.d.Stop(ctx, s); !ran || err != nil {
		t.Fatalf("stop: %v, %v", ran, err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("its program is there: %v", err)
	}
	if got := b.d.Status(s); got.State != driver.Stopped {
		t.Errorf("it is %+v", got)
	}
}

func TestRealLogs(t *testing.T) {
	b := newBench(t)
	s := b.service(nil, "count", "100")
	b.start(s)
	// The newest lines, once all are there. Which of the two outputs comes last is the daemon's affair.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // no event: dockerd writes the log when it likes
		page, err := b.d.Logs(t.Context(), s, "", 80)
		must(t, err)
		all := len(page.Lines) == 80 && slices.Contains(page.Lines, "last") && slices.Contains(page.Lines, "line 99") &&
			slices.Contains(page.Lines, strings.Repeat("x", maxLine))
		if all && !page.More {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the newest lines: %.80q, %v", page.Lines, page.More)
		}
	}
	// From an old cursor on, every line comes once.
	seen, cursor := map[string]int{}, nowhere
	for more := true; more; {
		page, err := b.d.Logs(t.Context(), s, cursor, 7)
		must(t, err)
		for _, line := range page.Lines {
			seen[line]++
		}
		cursor, more = page.Cursor, page.More
	}
	for i := range 100 {
		if line := fmt.Sprintf("line %d", i); seen[line] != 1 {
			t.Errorf("%q came %d times", line, seen[line])
		}
	}
	if len(seen) != 102 {
		t.Errorf("%d different lines", len(seen))
	}
	if page, err := b.d.Logs(t.Context(), s, cursor, 7); err != nil || len(page.Lines) != 0 || page.Cursor != cursor {
		t.Errorf("after the end: %+v, %v", page, err)
	}
	// A start makes a new log, and the old cursor gives it from its beginning.
	if _, err := b.d.Stop(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	b.start(s)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // no event: dockerd writes the log when it likes
		page, err := b.d.Logs(t.Context(), s, cursor, 1)
		must(t, err)
		if len(page.Lines) == 1 || time.Now().After(deadline) {
			if page.Lines[0] != "line 0" && page.Lines[0] != "line 1" {
				t.Errorf("the new log begins with %q", page.Lines)
			}
			break
		}
	}
}

func TestRealNothingToRun(t *testing.T) {
	b := newBench(t)
	b.refused("no image", b.d, b.service(func(s *catalog.Service) {
		s.Container.Image = b.host + "/app@sha256:" + strings.Repeat("0", 64)
	}), driver.ErrImageMissing)
	b.refused("a port that is taken", b.d, b.service(func(s *catalog.Service) {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		s.Port, s.Container.Port = uint32(l.Addr().(*net.TCPAddr).Port), 8080
	}), driver.ErrPortInUse)
	none, err := b.push("none", "latest", map[string]any{"Entrypoint": []string{"/none"}})
	must(t, err)
	missing := b.service(func(s *catalog.Service) { s.Container.Image = none })
	b.start(missing) // the daemon's init runs, and finds nothing to run
	if got := b.await(b.d, missing, driver.Ended); got.Cause != driver.CauseProgramMissing {
		t.Errorf("no program: %+v", got)
	}
	volume, err := b.push("volume", "latest", map[string]any{"Volumes": map[string]any{"/data": map[string]any{}}})
	must(t, err)
	b.refused("a volume of the image", b.d, b.service(func(s *catalog.Service) { s.Container.Image = volume }), driver.ErrContainer)
	preload, err := b.push("preload", "latest", map[string]any{"Env": []string{"LD_PRELOAD=/x.so", inContainer + "=1"}})
	must(t, err)
	b.refused("an image that preloads", b.d, b.service(func(s *catalog.Service) { s.Container.Image = preload }), driver.ErrContainer)
	b.refused("a GPU on a host without one", b.d, b.service(func(s *catalog.Service) {
		b.c.GPUs = []catalog.GPU{{Index: 0, UUID: uuidA}}
		s.GPUs, s.Container.GPUAccess = []uint32{0}, "device-request"
	}), driver.ErrNotStarted)
	// A stranger's container with our name stays what it is.
	s := b.service(nil)
	made, err := b.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: b.image}, Name: name(s)})
	must(t, err)
	defer b.d.remove(context.Background(), made.ID)
	b.refused("a stranger's name", b.d, s, driver.ErrContainer)
	if _, err := b.api.ContainerInspect(t.Context(), made.ID, client.ContainerInspectOptions{}); err != nil {
		t.Errorf("the stranger's container is gone: %v", err)
	}
}

// TestRealTagMoves: what was approved under a tag is what runs, or nothing.
func TestRealTagMoves(t *testing.T) {
	b := newBench(t)
	if _, err := b.push("tagged", "v1", map[string]any{"Labels": map[string]string{"edition": "first"}}); err != nil {
		t.Fatal(err)
	}
	s := b.service(func(s *catalog.Service) { s.Container.Image, s.Container.AllowTag = b.host+"/tagged:v1", true })
	approved, err := b.d.Definition(t.Context(), s)
	must(t, err)
	if _, err := b.push("tagged", "v1", map[string]any{"Labels": map[string]string{"edition": "second"}}); err != nil {
		t.Fatal(err)
	}
	again, err := b.d.Definition(t.Context(), s) // a look in between approves nothing
	if err != nil || again == approved {
		t.Errorf("the definition stayed: %v, %v", again, err)
	}
	if err := b.d.Start(t.Context(), s, approved, driver.AtOnce); !errors.Is(err, driver.ErrChanged) || b.ran(s) {
		t.Errorf("a tag that moved: %v", err)
	}
	b.start(s)
}

// adoptable is a container as a human would make one to be adopted.
func adoptable(b *bench, s *catalog.Service) client.ContainerCreateOptions {
	b.t.Helper()
	made, err := b.d.make(s, img{id: b.image}, mustRules(b, s))
	must(b.t, err)
	made.config.Labels = map[string]string{containerpolicy.LabelService: s.ID}
	made.host.Init = nil
	return client.ContainerCreateOptions{Config: made.config, HostConfig: made.host, Name: "human-" + s.ID}
}

func TestRealAdopt(t *testing.T) {
	b := newBench(t)
	entry := func() *catalog.Service {
		return b.service(func(s *catalog.Service) {
			withPort(t)(s)
			s.Container.Adopt = true
			s.Limits = catalog.Limits{MemoryMiB: 128, CPUPercent: 50, PIDs: 64}
		})
	}
	s := entry()
	b.refused("a container that is not there", b.d, s, driver.ErrContainer)
	if _, err := b.api.ContainerCreate(t.Context(), adoptable(b, s)); err != nil {
		t.Fatal(err)
	}
	definition, err := b.d.Definition(t.Context(), s)
	must(t, err)
	b.start(s)
	if got := b.ask(s, "/environment"); !strings.HasPrefix(got, "200") {
		t.Errorf("it answers %q", got)
	}
	if running, err := b.d.Definition(t.Context(), s); running != definition || err != nil {
		t.Errorf("a start changes the definition: %v, %v", running, err)
	}
	if ran, err := b.d.Stop(t.Context(), s); !ran || err != nil {
		t.Fatalf("stop: %v, %v", ran, err)
	}
	if got := b.d.Status(s); got.State != driver.Stopped {
		t.Errorf("stopped, and yet %+v", got)
	}
	if got := b.driver(b.socket).Status(s); got.State != driver.Stopped {
		t.Errorf("after a restart of the executor it is %+v", got)
	}
	b.start(s)
	if _, err := b.d.Stop(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	// After the approval a human gives it more memory; what was approved is not what is there.
	if _, err := b.api.ContainerUpdate(t.Context(), "human-"+s.ID, client.ContainerUpdateOptions{
		Resources: &container.Resources{CPUShares: 5, Memory: 64 << 20, MemorySwap: 64 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	if told, err := b.d.Definition(t.Context(), s); err != nil || told == definition { // a look in between approves nothing
		t.Errorf("the definition of what was changed: %q, %v", told, err)
	}
	if err := b.d.Start(t.Context(), s, definition, driver.AtOnce); !errors.Is(err, driver.ErrChanged) {
		t.Errorf("a container that was changed after its approval: %v", err)
	}

	folder := filepath.Join(t.TempDir(), "folder")
	must(t, os.Mkdir(folder, 0o755))
	b.c.Containers.Mounts = []string{folder}
	s = entry()
	options := adoptable(b, s)
	for i := range 6 {
		options.HostConfig.Binds = append(options.HostConfig.Binds, fmt.Sprintf("%s:/folder%d:ro", folder, i))
	}
	if _, err := b.api.ContainerCreate(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if definition, err = b.d.Definition(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for range 20 { // the daemon lists mounts in any order
		if again, err := b.d.Definition(t.Context(), s); again != definition || err != nil {
			t.Fatalf("the definition of a container with mounts changed: %v, %v", again, err)
		}
	}
	b.start(s)
	for name, widen := range map[string]func(c *container.Config, h *container.HostConfig){
		"privileged":        func(_ *container.Config, h *container.HostConfig) { h.Privileged = true },
		"a capability":      func(_ *container.Config, h *container.HostConfig) { h.CapAdd = []string{"SYS_ADMIN"} },
		"its capabilities":  func(_ *container.Config, h *container.HostConfig) { h.CapDrop = nil },
		"the host's net":    func(_ *container.Config, h *container.HostConfig) { h.NetworkMode, h.PortBindings = "host", nil },
		"the host's pids":   func(_ *container.Config, h *container.HostConfig) { h.PidMode = "host" },
		"the host's ipc":    func(_ *container.Config, h *container.HostConfig) { h.IpcMode = "host" },
		"the host's uts":    func(_ *container.Config, h *container.HostConfig) { h.UTSMode = "host" },
		"the host's groups": func(_ *container.Config, h *container.HostConfig) { h.CgroupnsMode = "host" },
		"new privileges":    func(_ *container.Config, h *container.HostConfig) { h.SecurityOpt = nil },
		"no seccomp": func(_ *container.Config, h *container.HostConfig) {
			h.SecurityOpt = append(h.SecurityOpt, "seccomp=unconfined")
		},
		"no masks":        func(_ *container.Config, h *container.HostConfig) { h.MaskedPaths = []string{} },
		"a writable root": func(_ *container.Config, h *container.HostConfig) { h.ReadonlyRootfs = false },
		"a device": func(_ *container.Config, h *container.HostConfig) {
			h.Devices = []container.DeviceMapping{{PathOnHost: "/dev/null", PathInContainer: "/dev/x", CgroupPermissions: "rwm"}}
		},
		"the socket": func(_ *container.Config, h *container.HostConfig) { h.Binds = []string{b.socket + ":/weights"} },
		"a folder":   func(_ *container.Config, h *container.HostConfig) { h.Binds = []string{"/etc:/weights:ro"} },
		"a shared mount": func(_ *container.Config, h *container.HostConfig) {
			h.Binds = []string{folder + ":/weights:ro,slave"}
		},
		"a volume":         func(_ *container.Config, h *container.HostConfig) { h.Binds = []string{"some:/weights"} },
		"another's volume": func(_ *container.Config, h *container.HostConfig) { h.VolumesFrom = []string{"human-" + s.ID} },
		"a restart": func(_ *container.Config, h *container.HostConfig) {
			h.RestartPolicy.Name = container.RestartPolicyUnlessStopped
		},
		"root":          func(c *container.Config, _ *container.HostConfig) { c.User = "" },
		"another user":  func(c *container.Config, _ *container.HostConfig) { c.User = "4243:4243" },
		"more memory":   func(_ *container.Config, h *container.HostConfig) { h.Memory, h.MemorySwap = 256<<20, 256<<20 },
		"all the pids":  func(_ *container.Config, h *container.HostConfig) { h.PidsLimit = nil },
		"another port":  func(_ *container.Config, h *container.HostConfig) { h.PortBindings = anotherPort(t) },
		"preloaded":     func(c *container.Config, _ *container.HostConfig) { c.Env = append(c.Env, "LD_PRELOAD=/x") },
		"all the GPUs":  func(c *container.Config, _ *container.HostConfig) { c.Env = []string{"NVIDIA_VISIBLE_DEVICES=all"} },
		"another image": func(c *container.Config, _ *container.HostConfig) { c.Image = pushed(b, "another") },
		"a terminal":    func(c *container.Config, _ *container.HostConfig) { c.Tty = true },
		"an open log":   func(_ *container.Config, h *container.HostConfig) { h.LogConfig.Config = nil },
		"a sysctl": func(_ *container.Config, h *container.HostConfig) {
			h.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"}
		},
		"extra hosts": func(_ *container.Config, h *container.HostConfig) { h.ExtraHosts = []string{"models:203.0.113.1"} },
		"more groups": func(_ *container.Config, h *container.HostConfig) { h.GroupAdd = []string{"0"} },
		"the OOM killer": func(_ *container.Config, h *container.HostConfig) {
			on := true
			h.OomKillDisable = &on
		},
	} {
		s := entry()
		options := adoptable(b, s)
		widen(options.Config, options.HostConfig)
		if _, err := b.api.ContainerCreate(t.Context(), options); err != nil {
			t.Errorf("%s: the daemon itself refuses it, so that says nothing: %v", name, err)
			continue
		}
		b.refused(name, b.d, s, driver.ErrContainer)
	}
	// Two containers claim to be the service.
	s = entry()
	for _, called := range []string{"a-", "b-"} {
		options := adoptable(b, s)
		options.Name = called + s.ID
		if _, err := b.api.ContainerCreate(t.Context(), options); err != nil {
			t.Fatal(err)
		}
	}
	b.refused("two of them", b.d, s, driver.ErrContainer)
}

func mustRules(b *bench, s *catalog.Service) *containerpolicy.Rules {
	b.t.Helper()
	r, err := b.d.rules(s, host{noSwap: true}, img{})
	must(b.t, err)
	return r
}

func pushed(b *bench, repository string) string {
	b.t.Helper()
	image, err := b.push(repository, "latest", map[string]any{"Labels": map[string]string{"x": repository}})
	must(b.t, err)
	return image
}

func anotherPort(t *testing.T) network.PortMap {
	return network.PortMap{network.MustParsePort("8080/tcp"): {{HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1}), HostPort: fmt.Sprint(freePort(t))}}}
}

// TestRealMounts: the host's own files do not come in by any road.
func TestRealMounts(t *testing.T) {
	b := newBench(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	folder := func(path ...string) string {
		dir := filepath.Join(append([]string{root}, path...)...)
		must(t, os.MkdirAll(dir, 0o755))
		return dir
	}
	allowed := folder("models")
	inside := folder("models", "llama")
	must(t, os.WriteFile(filepath.Join(inside, "weights"), []byte("heavy"), 0o644))
	folder("modelsfoo")
	folder("private")
	b.c.Containers.Mounts = []string{allowed}
	link := func(to string, name ...string) string {
		at := filepath.Join(append([]string{allowed}, name...)...)
		must(t, os.Symlink(to, at))
		return at
	}
	// The runtime's socket under a model's name: a hard link, and a bind mount.
	hard := filepath.Join(folder("models", "hard"), "weights.gguf")
	must(t, os.Link(b.socket, hard))
	bound := filepath.Join(folder("models", "bound"), "weights.gguf")
	must(t, os.WriteFile(bound, nil, 0o600))
	bind := func(from, to string) {
		must(t, syscall.Mount(from, to, "", syscall.MS_BIND, ""))
		t.Cleanup(func() {
			if err := syscall.Unmount(to, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	bind(b.socket, bound)
	elsewhere := folder("models", "elsewhere")
	bind(filepath.Dir(b.socket), elsewhere)
	// A part of /etc under a model's name.
	certificates := folder("models", "certificates")
	bind("/etc/ssl", certificates)
	for name, source := range map[string]string{
		"a link to /etc":             link("/etc", "etc"),
		"a link to the root":         link("/", "all"),
		"a link to a link":           link(filepath.Join(allowed, "etc"), "again"),
		"a link to the socket":       link(b.socket, "socket"),
		"below a link":               filepath.Join(link("/etc", "conf"), "ssl"),
		"dots":                       allowed + "/../private",
		"dots below":                 inside + "/../../modelsfoo",
		"a folder beside":            filepath.Join(root, "modelsfoo"),
		"a private folder":           filepath.Join(root, "private"),
		"the socket":                 b.socket,
		"the socket's folder":        filepath.Dir(b.socket),
		"a hard link to the socket":  hard,
		"its folder":                 filepath.Dir(hard),
		"a bind mount of the socket": bound,
		"the socket's folder, bound": elsewhere,
		"a bind mount of /etc/ssl":   certificates,
		"/":                          "/",
		"/etc":                       "/etc",
		"/proc":                      "/proc",
		"/var/run":                   "/var/run",
	} {
		b.refused(name, b.d, b.service(func(s *catalog.Service) {
			s.Container.Mounts = []catalog.Mount{{Source: source, Target: "/models"}}
		}), driver.ErrContainer)
	}
	// A link within the allowed folder is followed before, and what it led to is what is mounted.
	s := b.service(func(s *catalog.Service) {
		withPort(t)(s)
		s.Container.Mounts = []catalog.Mount{{Source: link(inside, "current"), Target: "/models"}}
	})
	b.start(s)
	if got := b.ask(s, "/file?name=/models/weights"); got != "200 heavy" {
		t.Errorf("through a link within: %q", got)
	}
	got, err := b.api.ContainerInspect(t.Context(), name(s), client.ContainerInspectOptions{})
	if err != nil || len(got.Container.Mounts) != 1 || got.Container.Mounts[0].Source != inside {
		t.Errorf("mounted is %+v, %v", got.Container.Mounts, err)
	}
	// Where a container would bring along what is mounted below, it is refused.
	adopt := b.service(func(s *catalog.Service) {
		withPort(t)(s)
		s.Container.Adopt = true
	})
	options := adoptable(b, adopt)
	options.HostConfig.Binds = []string{filepath.Dir(bound) + ":/models:ro"}
	if _, err := b.api.ContainerCreate(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	b.refused("a bind mount that comes along", b.d, adopt, driver.ErrContainer)
	// What the host has mounted below an allowed folder stays outside.
	below := folder("models", "llama", "below")
	bind("/etc/ssl", below)
	s = b.service(func(s *catalog.Service) {
		withPort(t)(s)
		s.Container.Mounts = []catalog.Mount{{Source: inside, Target: "/models"}}
	})
	b.start(s)
	if got := b.ask(s, "/file?name=/models/below/openssl.cnf"); !strings.HasPrefix(got, "404") {
		t.Errorf("a mount below came along: %.40q", got)
	}
	s = b.service(func(s *catalog.Service) {
		withPort(t)(s)
		s.Container.Mounts = []catalog.Mount{{Source: filepath.Dir(bound), Target: "/models"}}
	})
	b.start(s)
	if got := b.ask(s, "/file?name=/models/weights.gguf"); got != "403" && !strings.HasPrefix(got, "404") {
		t.Errorf("the socket came along: %.40q", got)
	}
}

// meddler stands between the driver and the daemon, and does something at the moment that a test names.
type meddler struct {
	socket string
	mu     sync.Mutex
	at     string
	act    func()
	// gone: the daemon is out of reach.
	gone atomic.Bool
}

func (b *bench) meddler() *meddler {
	b.t.Helper()
	m := &meddler{socket: filepath.Join(b.t.TempDir(), "p.sock")}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			if m.gone.Load() {
				panic(http.ErrAbortHandler)
			}
			r.SetURL(&url.URL{Scheme: "http", Host: "docker"})
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", b.socket)
		}},
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			m.mu.Lock()
			act := m.act
			if act == nil || !strings.HasSuffix(r.Request.URL.Path, m.at) || r.Request.Method != http.MethodPost {
				m.mu.Unlock()
				return nil
			}
			m.act = nil
			m.mu.Unlock()
			act()
			return nil
		},
	}
	l, err := net.Listen("unix", m.socket)
	must(b.t, err)
	srv := &http.Server{Handler: proxy}
	go func() { _ = srv.Serve(l) }()
	b.t.Cleanup(func() { _ = srv.Close() })
	return m
}

func (m *meddler) after(what string, act func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at, m.act = what, act
}

// TestRealLostAnswer: the daemon starts a container and its answer does not come. Then it is ended, or nothing is said of it.
func TestRealLostAnswer(t *testing.T) {
	b := newBench(t)
	m := b.meddler()
	d := b.driver(m.socket)
	lose := func() { panic(http.ErrAbortHandler) }
	made := b.service(withPort(t))
	adopted := b.service(func(s *catalog.Service) {
		withPort(t)(s)
		s.Container.Adopt = true
	})
	if _, err := b.api.ContainerCreate(t.Context(), adoptable(b, adopted)); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*catalog.Service{"made": made, "adopted": adopted} {
		m.after("/start", lose)
		err := begin(t.Context(), d, s)
		if !errors.Is(err, driver.ErrNoManager) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s, and within reach: %v", name, err)
		}
		if got := b.await(b.driver(b.socket), s, map[bool]driver.State{true: driver.Ended, false: driver.Stopped}[s.Container.Adopt]); got.PID != 0 {
			t.Errorf("%s, and within reach: it is %+v", name, got)
		}
		m.after("/start", func() { m.gone.Store(true); lose() })
		if err := begin(t.Context(), d, s); !errors.Is(err, driver.ErrUnknown) || driver.Cause(err) != driver.CauseUnknown {
			t.Errorf("%s, and out of reach: %v", name, err)
		}
		m.gone.Store(false)
		if ran, err := b.d.Stop(t.Context(), s); !ran || err != nil {
			t.Errorf("%s: stop: %v, %v", name, ran, err)
		}
	}
}

// TestRealTampered: between the moment when a container is made and the one when it runs somebody changes it.
func TestRealTampered(t *testing.T) {
	b := newBench(t)
	m := b.meddler()
	d := b.driver(m.socket)
	update := func(s *catalog.Service, o client.ContainerUpdateOptions) func() {
		return func() {
			if _, err := b.api.ContainerUpdate(context.Background(), name(s), o); err != nil {
				t.Error(err)
			}
		}
	}
	lan, err := b.api.NetworkCreate(t.Context(), "lan", client.NetworkCreateOptions{Driver: "bridge"})
	must(t, err)
	// Docker refuses it while a container of a failed test is attached.
	defer func() { _, _ = b.api.NetworkRemove(context.Background(), lan.ID, client.NetworkRemoveOptions{}) }()
	limited := func(s *catalog.Service) {
		withPort(t)(s)
		s.Limits.MemoryMiB = 64
	}
	for name, act := range map[string]func(s *catalog.Service) func(){
		"more memory": func(s *catalog.Service) func() {
			return update(s, client.ContainerUpdateOptions{Resources: &container.Resources{Memory: 512 << 20, MemorySwap: 512 << 20}})
		},
		"a restart policy": func(s *catalog.Service) func() {
			return update(s, client.ContainerUpdateOptions{RestartPolicy: &container.RestartPolicy{Name: container.RestartPolicyAlways}})
		},
		"another network": func(s *catalog.Service) func() {
			return func() {
				if _, err := b.api.NetworkConnect(context.Background(), lan.ID, client.NetworkConnectOptions{Container: "durward-" + s.ID}); err != nil {
					t.Error(err)
				}
			}
		},
		"another container": func(s *catalog.Service) func() {
			return func() {
				if _, err := b.api.ContainerRemove(context.Background(), "durward-"+s.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
					t.Error(err)
				}
				_, err := b.api.ContainerCreate(context.Background(), client.ContainerCreateOptions{
					Config:     &container.Config{Image: b.image, Labels: map[string]string{containerpolicy.LabelService: s.ID, containerpolicy.LabelMade: "true"}},
					HostConfig: &container.HostConfig{Privileged: true, Mounts: []mount.Mount{{Type: mount.TypeBind, Source: "/", Target: "/host"}}},
					Name:       "durward-" + s.ID,
				})
				if err != nil {
					t.Error(err)
				}
			}
		},
	} {
		s := b.service(limited)
		m.after("/containers/create", act(s))
		want := driver.ErrContainer
		if name == "another container" {
			want = driver.ErrNotStarted // what was made is gone, and what is there is not it
		}
		b.refused(name+", before the start", d, s, want)
		if name == "another container" {
			continue
		}
		// In the moment of the start: it runs, is seen for what it is, and is ended.
		s = b.service(limited)
		m.after("/start", act(s))
		if err := begin(t.Context(), d, s); !errors.Is(err, driver.ErrContainer) {
			t.Errorf("%s, at the start: %v", name, err)
		}
		if got := d.Status(s); got.State == driver.Running {
			t.Errorf("%s, at the start: it runs on", name)
		}
	}
}
