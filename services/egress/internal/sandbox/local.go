package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"durward.internal/services/platform/cgroup"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// packagePath is where a child finds its npm package.
const packagePath = "/run/package"

// Bounds of every child, beside those of its entry.
const (
	// maxFile is the largest file that it writes, and maxData what its own folder holds, in bytes; maxEntries bounds its files.
	maxFile    = 256 << 20
	maxData    = 1 << 30
	maxEntries = 100_000
	maxOpen    = 4096
	// spare are processes and threads that the sandbox itself takes.
	spare = 24
)

// Config is what a Local needs.
type Config struct {
	// State is a folder of this process alone: the children's own folders, and copies of programs. It is made where it is missing.
	State string
	// Own are folders that hold Durward's state: no child gets them, or what they are in.
	Own []string
	// Packages is where npm packages are installed, each in its folder (downstream.Package).
	Packages string
	// UID and GID are the host's user and group of children where this process is root. Elsewhere they are this process' own.
	UID, GID uint32
	// Development: entries without a sandbox are started, and limits are those of a process where no control group can be made.
	Development bool
	// Relay is a program that calls Relay; empty: this one.
	Relay  string
	Logger *slog.Logger
}

// Local starts children from this process. They end with it.
type Local struct {
	cfg    Config
	groups *cgroup.Tree
	// unbounded is why there are no control groups.
	unbounded error
	filter    []byte
	// most is what a child's own folder may hold, in bytes.
	most int64
	// spare is what children leave of the disk, in bytes.
	spare atomic.Uint64

	// packages is held while a package is copied.
	packages sync.Mutex

	mu      sync.Mutex
	bwrap   string // once it was seen to work
	running map[string]bool
}

// NewLocal makes the folders. What is missing of the host, each Start says, so that a process which has it later needs no restart.
func NewLocal(cfg Config) (*Local, error) {
	mode, readable := os.FileMode(0o700), os.FileMode(0o600)
	if cfg.UID != 0 {
		mode, readable = 0o711, 0o644 // the children's user goes through, to its own
	}
	for _, folder := range []string{"", "servers", "programs", "run", "etc"} {
		folder = filepath.Join(cfg.State, folder)
		if err := errors.Join(os.MkdirAll(folder, mode), os.Chmod(folder, mode)); err != nil {
			return nil, fmt.Errorf("the launcher's folder: %w", err)
		}
	}
	const users = "server:x:1000:1000:server:/data:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	passwd := filepath.Join(cfg.State, "etc", "passwd")
	if err := errors.Join(os.WriteFile(passwd, []byte(users), 0o600), os.Chmod(passwd, readable)); err != nil {
		return nil, fmt.Errorf("the launcher's folder: %w", err)
	}
	l := &Local{cfg: cfg, most: maxData, running: map[string]bool{}}
	l.spare.Store(spareDisk)
	var err error
	if l.filter, err = filter(); err != nil {
		return nil, err
	}
	if l.cfg.Relay == "" {
		if l.cfg.Relay, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	if l.groups, l.unbounded = cgroup.Open(cgroup.Config{Key: cfg.State, Leaf: "durward-launcher", Ending: true}); l.unbounded != nil {
		cfg.Logger.Warn("no control group can be made: other people's servers are not bounded as a whole", "cause", l.unbounded, "development", cfg.Development)
	}
	if os.Geteuid() == 0 && cfg.UID == 0 {
		cfg.Logger.Warn("DANGEROUS: other people's servers run as the host's root within their sandboxes: run Durward as another user")
	}
	return l, nil
}

// Close removes what no child uses any more. Children are killed by their own handles.
func (l *Local) Close() {
	if l.groups != nil {
		l.groups.Close()
	}
}

// Start starts a child. ctx bounds the start alone.
func (l *Local) Start(ctx context.Context, s Start) (_ *Process, err error) {
	entry := &s.Server.Entry
	defer func() {
		if err != nil {
			err = fmt.Errorf("server %s does not start: %w", entry.ID, err)
		}
	}()
	if entry.URL != "" {
		return nil, errors.New("it runs elsewhere, at its URL")
	}
	owner := sha256.Sum256([]byte(s.User))
	c := &child{local: l, key: entry.ID + "-" + hex.EncodeToString(owner[:8]), entry: entry, done: make(chan struct{})}
	if err := l.claim(c.key); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.clear()
		}
	}()
	if !entry.PerSession {
		c.data = filepath.Join(l.cfg.State, "servers", c.key)
		if err := l.ownFolder(c.data); err != nil {
			return nil, err
		}
	}
	if err := c.bound(); err != nil {
		return nil, err
	}
	in := inside{entry: entry, data: c.data, etc: filepath.Join(l.cfg.State, "etc"), env: s.Env}
	if entry.NPM != nil {
		in.tree, in.bin, err = l.pinnedPackage(s.Server)
	} else {
		in.program, err = l.pinnedProgram(s.Server)
	}
	if err != nil {
		return nil, err
	}
	if entry.Sandbox.None {
		return l.bare(c, in)
	}
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	if err := checkFolders(entry.Sandbox.Read, entry.Sandbox.Write, append(l.cfg.Own, l.cfg.State)); err != nil {
		return nil, err
	}
	p := &Process{Control: c}
	if s.Network && len(entry.Sandbox.Domains) > 0 {
		if p.Proxy, err = c.listen(); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				_ = p.Proxy.Close()
			}
		}()
		in.relay, in.proxy = l.cfg.Relay, c.socket
	}
	if in.tree != "" {
		in.bin = filepath.Join(packagePath, in.bin)
	}
	arguments, err := in.arguments()
	if err != nil {
		return nil, err
	}
	cmd := c.limited(append([]string{l.bwrap, "--args", "3", "--seccomp", "4", "--"}, in.command()...)...)
	cmd.Dir, cmd.Env = "/", []string{}
	return p, c.start(cmd, p, walls(arguments), judged(l.filter))
}

// bare starts a child without a sandbox, which development alone has.
func (l *Local) bare(c *child, in inside) (*Process, error) {
	if !l.cfg.Development {
		return nil, errors.New("its entry has no sandbox, which exists in development alone")
	}
	if in.tree != "" {
		in.bin = filepath.Join(in.tree, in.bin)
	}
	l.cfg.Logger.Warn("DANGEROUS: a server runs without a sandbox, with all that this user may do", "server", c.entry.ID)
	cmd := c.limited(in.command()...)
	cmd.Dir, cmd.Env = c.data, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + c.data, "LANG=C.UTF-8"}
	for name, value := range in.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	p := &Process{Control: c}
	return p, c.start(cmd, p)
}

// claim takes a child's place; there is one instance of a server for each user.
func (l *Local) claim(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.running[key]:
		return errors.New("it runs already for this user")
	case len(l.running) >= downstream.MaxServers:
		return fmt.Errorf("%d servers run already: one of them has to end first", downstream.MaxServers)
	}
	l.running[key] = true
	return nil
}

// ownFolder makes the child's own folder, which is its user's alone.
func (l *Local) ownFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	if err == nil && l.cfg.UID != 0 {
		err = os.Lchown(path, int(l.cfg.UID), int(l.cfg.GID))
	}
	if err != nil {
		return fmt.Errorf("its own folder: %w", err)
	}
	return nil
}

// ready finds bubblewrap and has it make an empty sandbox once, so that what is wrong with the host is said as such.
func (l *Local) ready(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bwrap != "" {
		return nil
	}
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return errors.New("bubblewrap is not on this host: install it (Debian, Ubuntu: apt install bubblewrap)")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// #nosec G204 -- the host's own bubblewrap, with arguments of ours
	cmd := exec.CommandContext(ctx, path, "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
		"--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--cap-drop", "ALL", "--", "/usr/bin/true")
	cmd.SysProcAttr = l.attributes()
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("this host does not let bubblewrap make namespaces (%s): %s", clean.Line(string(bytes.TrimSpace(said)), 200), mends())
	}
	l.bwrap = path
	return nil
}

// mends names the command that lets an unprivileged program make namespaces.
func mends() string {
	for _, knob := range []struct{ file, refusing, command string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap a profile of AppArmor"},
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"},
	} {
		if raw, err := os.ReadFile(knob.file); err == nil && string(bytes.TrimSpace(raw)) == knob.refusing {
			return knob.command
		}
	}
	return "in a container, run it with a seccomp profile that allows namespaces; under systemd, leave out RestrictNamespaces= and ProtectKernelTunables="
}

func (l *Local) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if l.cfg.UID != 0 {
		a.Credential = &syscall.Credential{Uid: l.cfg.UID, Gid: l.cfg.GID}
	}
	return a
}

// listen makes the socket by which a child reaches egress' proxy, and no other child does.
func (c *child) listen() (net.Listener, error) {
	sum := sha256.Sum256([]byte(c.key))
	socket := filepath.Join(c.local.cfg.State, "run", hex.EncodeToString(sum[:6]))
	_ = os.Remove(socket) // one that a killed launcher left
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("the socket of its network: %w", err)
	}
	c.socket = socket
	listener.SetUnlinkOnClose(false)
	err = os.Chmod(socket, 0o600)
	if c.local.cfg.UID != 0 {
		err = errors.Join(err, os.Lchown(socket, int(c.local.cfg.UID), int(c.local.cfg.GID)))
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// bound makes the child's control group.
func (c *child) bound() error {
	l, box := c.local, c.entry.Sandbox
	err := l.unbounded
	if err == nil {
		c.group = l.groups.Group(c.key)
		var missing []string
		if missing, err = c.group.Make(bounds(cgroup.Limits{
			MemoryMiB: uint32(box.MemoryMiB), CPUPercent: uint32(box.CPU * 100), PIDs: uint32(box.Processes + spare),
		})); err == nil && len(missing) > 0 {
			err = fmt.Errorf("this host does not bound %s", missing)
			c.group.Remove()
		}
	}
	if err == nil {
		return nil
	}
	c.group = nil
	if l.cfg.Development {
		return nil
	}
	return fmt.Errorf("its memory and processes cannot be bounded (%w): give durward-launcher.service Delegate=yes, and boot with systemd.unified_cgroup_hierarchy=1 where control groups are of version 1; or give this process' user the folder of one", err)
}

// limited is the command with which each process of a child is bounded.
func (c *child) limited(run ...string) *exec.Cmd {
	limits := []string{"--core=0", fmt.Sprintf("--fsize=%d", maxFile), fmt.Sprintf("--nofile=%d", maxOpen), "--memlock=65536", "--msgqueue=0"}
	if c.group == nil {
		// What is written to, and not what is reserved: programs reserve far more than they use.
		limits = append(limits, fmt.Sprintf("--data=%d", c.entry.Sandbox.MemoryMiB<<20))
	}
	return exec.Command("/usr/bin/prlimit", append(append(limits, "--"), run...)...) //nolint:gosec // a human's file says so
}
