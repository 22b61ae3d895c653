package sandbox

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/installed"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == RelayWord {
		os.Exit(Relay(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// nobody is the children's user where tests run as root.
const nobody = 65534

// local is a launcher as production has it.
func local(t testing.TB, change func(*Config)) *Local {
	t.Helper()
	installed.Program(t, "bwrap")
	cfg := Config{State: filepath.Join(tempDir(t), "state"), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if os.Geteuid() == 0 {
		cfg.UID, cfg.GID = nobody, nobody
	} else {
		cfg.Development = true // its user can make no control group
	}
	// What go test compiled is in a folder of this user alone.
	cfg.Relay = filepath.Join(tempDir(t), "relay")
	self, err := os.Executable()
	must(t, err)
	copyFile(t, self, cfg.Relay)
	if change != nil {
		change(&cfg)
	}
	l, err := NewLocal(cfg)
	must(t, err)
	t.Cleanup(l.Close)
	return l
}

// tempDir is a folder that the children's user can reach.
func tempDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, open := range []string{dir, filepath.Dir(dir)} {
		must(t, os.Chmod(open, 0o755))
	}
	return dir
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, 0o755)
	}
	must(t, err)
}

// script is a server that runs a shell's script.
func script(t *testing.T, text string) *downstream.Pinned {
	t.Helper()
	return pinned(t, "/bin/sh", "-c", text)
}

func pinned(t testing.TB, path string, args ...string) *downstream.Pinned {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return &downstream.Pinned{ProgramDigest: sha256.Sum256(raw), Entry: downstream.Entry{
		ID: "demo", Program: &downstream.Program{Path: path, Args: args}, Sandbox: downstream.Sandbox{MemoryMiB: 96, CPU: 1, Processes: 32},
	}}
}

// run starts a server and returns what it wrote, and how it ended.
func run(t *testing.T, l Launcher, s Start) (string, error) {
	t.Helper()
	p, err := l.Start(t.Context(), s)
	must(t, err)
	if p.Proxy != nil {
		defer p.Proxy.Close()
	}
	_ = p.Stdin.Close()
	out := make(chan string)
	go func() { raw, _ := io.ReadAll(p.Stderr); out <- string(raw) }()
	raw, err := io.ReadAll(p.Stdout)
	if err != nil {
		t.Error(err)
	}
	return string(raw) + <-out, p.Wait()
}

// TestPerSession: the folder of a server for each session is in memory. Nothing of it outlives the server, and there is no more of it than of /tmp.
func TestPerSession(t *testing.T) {
	l := local(t, nil)
	kept := "cat /data/kept; echo secret >/data/kept; cat /data/kept; head -c 70000000 /dev/zero >/data/large || echo full"
	for perSession, want := range map[bool]int{true: 1, false: 2} {
		var out string
		for range 2 {
			s := script(t, kept)
			s.Entry.PerSession = perSession
			out, _ = run(t, l, Start{Server: s, User: "ann/1"})
		}
		if got := strings.Count(out, "secret"); got != want || strings.Contains(out, "full") != perSession {
			t.Errorf("per session %t: started again, it says %q", perSession, out)
		}
	}
}

func TestInside(t *testing.T) {
	l := local(t, nil)
	shared, private := filepath.Join(tempDir(t), "shared"), filepath.Join(tempDir(t), "private")
	for _, folder := range []string{shared, private} {
		must(t, os.MkdirAll(folder, 0o755))
		copyFile(t, "/etc/hostname", filepath.Join(folder, "file"))
	}
	s := script(t, `
		cat; echo "home $HOME pwd $(pwd) value $VALUE env $(env | wc -l)"
		touch /data/kept /tmp/x && echo writes
		for f in / /etc /run /dev /dev/shm /usr "`+shared+`"; do touch $f/y 2>/dev/null && echo "WRITES $f"; done
		cat "`+shared+`/file" >/dev/null && echo reads
		ls -d /root /home /var /sys /proc/1/root/home "`+private+`" "`+l.cfg.State+`" 2>/dev/null
		echo "processes $(ls -d /proc/[0-9]* | wc -l) interfaces $(ls /proc/sys/net/ipv4/conf | tr '\n' ' ')"
		grep -E "Seccomp:|NoNewPrivs|CapEff|CapBnd" /proc/self/status | tr '\n\t' '  '
		(echo 1 >/proc/sys/kernel/printk) 2>/dev/null && echo "WRITES sysctl"
		unshare -U true 2>/dev/null && echo "MAKES a namespace"
		exit 3`)
	s.Entry.Sandbox.Read = []string{shared}
	got, err := run(t, l, Start{Server: s, User: "ann", Env: map[string]string{"VALUE": "of env"}})
	for _, want := range []string{"home /data pwd /data value of env env 6\n", "writes\nreads\n", "CapEff: 0000000000000000", "CapBnd: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2"} {
		if !strings.Contains(got, want) {
			t.Errorf("without %q", want)
		}
	}
	if strings.Contains(got, "WRITES") || strings.Contains(got, "MAKES") || strings.Contains(got, "/root") || strings.Contains(got, private) || strings.Contains(got, "/home\n") {
		t.Errorf("it sees or does too much")
	}
	if err == nil || err.Error() != "exit status 3" {
		t.Errorf("it ends with %v", err)
	}
	if t.Failed() {
		t.Log(got)
	}
}

// TestAFolderForEachClient: what a server keeps for one client is there when that client comes again, and no other client's instance
// finds it, running beside it as the same Unix user. Its control is the entry without a sandbox, whose instance finds it at once.
func TestAFolderForEachClient(t *testing.T) {
	l := local(t, nil)
	holds := script(t, "echo of ann >/data/anns-notes; echo up; sleep 60")
	p, err := l.Start(t.Context(), Start{Server: holds, User: "ann"})
	must(t, err)
	if _, err := p.Stdout.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(filepath.Join(l.cfg.State, "servers", "*", "anns-notes"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("it is kept at %v, %v", folders, err)
	}
	look := script(t, `find / -path /proc -prune -o -path /usr -prune -o -name anns-notes -print 2>/dev/null; cat "$0" 2>/dev/null; ls /data`)
	look.Entry.Program.Args = append(look.Entry.Program.Args, folders[0])
	if got, _ := run(t, l, Start{Server: look, User: "bob"}); got != "" {
		t.Errorf("bob finds %q", got)
	}
	development := local(t, func(c *Config) { c.State, c.Development = l.cfg.State, true })
	bare := script(t, `cat "$0"`)
	bare.Entry.Program.Args = append(bare.Entry.Program.Args, folders[0])
	bare.Entry.Sandbox = downstream.Sandbox{None: true, MemoryMiB: 96, CPU: 1, Processes: 32}
	if got, _ := run(t, development, Start{Server: bare, User: "bob"}); got != "of ann\n" {
		t.Errorf("without a sandbox bob finds %q", got)
	}
	p.Kill()
	_ = p.Wait() // it was killed
	if got, _ := run(t, l, Start{Server: look, User: "ann"}); got != "/data/anns-notes\nanns-notes\n" {
		t.Errorf("ann finds %q", got)
	}
}

// Nobody who lists this host's processes reads a child's values or folders.
func TestNothingInArguments(t *testing.T) {
	l := local(t, nil)
	p, err := l.Start(t.Context(), Start{Server: script(t, "echo up; sleep 60"), Env: map[string]string{"TOKEN": "s3cret"}})
	must(t, err)
	defer p.Wait()
	defer p.Kill()
	if _, err := p.Stdout.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	found := 0
	for pid := range descendants(p.Control.(*child).cmd.Process.Pid) {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(raw), "s3cret") || strings.Contains(string(raw), l.cfg.State) {
			t.Errorf("%q", raw)
		}
		found++
	}
	if found < 2 {
		t.Errorf("%d processes", found)
	}
}

func TestRefuses(t *testing.T) {
	l := local(t, func(c *Config) { c.Own = []string{"/srv"} })
	folder := tempDir(t)
	link := filepath.Join(tempDir(t), "link")
	must(t, os.Symlink("/root", link))
	reads := func(path string) func(*Start) {
		return func(s *Start) { s.Server.Entry.Sandbox.Read = []string{path} }
	}
	for says, change := range map[string]func(*Start){
		"is everybody's":                   reads("/"),
		"/proc, which is the host's own":   reads("/proc/sys"),
		"/sys, which is the host's own":    reads("/sys"),
		"/dev, which is the host's own":    reads("/dev"),
		"/etc, which is the host's own":    reads("/etc"),
		"holds the home folder /root":      reads("/root"),
		"what Durward keeps":               reads("/srv"),
		"what Durward keeps: no server ge": reads(filepath.Dir(l.cfg.State)),
		"is reached through a link":        reads(link),
		"is not there":                     reads("/nonexistent"),
		"absolute, clean path":             reads("/tmp/../root"),
		"which the server may write": func(s *Start) {
			s.Server.Entry.Sandbox.Read, s.Server.Entry.Sandbox.Write = []string{folder}, []string{filepath.Dir(folder)}
		},
		"is not the one that was accepted": func(s *Start) { s.Server.ProgramDigest[31] ^= 1 },
		"exists in development alone":      func(s *Start) { s.Server.Entry.Sandbox.None = true },
		"it runs elsewhere":                func(s *Start) { s.Server.Entry.URL = "https://x.example" },
		"is no name of letters":            func(s *Start) { s.Env = map[string]string{"A=B": ""} },
		"its value holds a zero byte":      func(s *Start) { s.Env = map[string]string{"A": "\x00"} },
	} {
		if l.cfg.Development && strings.Contains(says, "development") {
			continue
		}
		s := Start{Server: script(t, "echo it ran")}
		change(&s)
		if p, err := l.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
			if err == nil {
				p.Kill()
				_ = p.Wait() // it was killed
			}
		}
	}
	// Nothing of the refused is left in the way of the next.
	if got, err := run(t, l, Start{Server: script(t, "echo it ran")}); got != "it ran\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A program that is changed after it was accepted is refused, and the accepted one runs though the file changes while it starts.
func TestPinnedProgram(t *testing.T) {
	l := local(t, nil)
	path := filepath.Join(tempDir(t), "server")
	write := func(text string) {
		must(t, os.WriteFile(path, []byte("#!/bin/sh\necho "+text+"\n"), 0o755))
	}
	write("good")
	s := pinned(t, path)
	for range 2 {
		if got, err := run(t, l, Start{Server: s}); got != "good\n" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	copied, err := l.pinnedProgram(s)
	must(t, err)
	write("evil")
	if got, err := exec.Command(copied).Output(); string(got) != "good\n" || err != nil {
		t.Errorf("the copy says %q, %v", got, err)
	}
	if _, err := l.Start(t.Context(), Start{Server: s}); err == nil || !strings.Contains(err.Error(), "durward server accept demo") {
		t.Errorf("a changed program: %v", err)
	}
	write("good")
	must(t, os.Chmod(copied, 0o700))
	must(t, os.WriteFile(copied, []byte("#!/bin/sh\necho evil\n"), 0o755))
	if got, err := run(t, l, Start{Server: s}); got != "good\n" || err != nil {
		t.Errorf("a changed copy: %q, %v", got, err)
	}
}

// A package runs by the tree that was accepted, and not after a byte of it changed.
func TestPinnedPackage(t *testing.T) {
	installed.Program(t, "node")
	packages := tempDir(t)
	l := local(t, func(c *Config) { c.Packages = packages })
	name := downstream.Package{Name: "@scope/name", Version: "1.0.0", Args: []string{"arg"}}
	own := filepath.Join(packages, name.Folder(), "node_modules", "@scope", "name")
	must(t, os.MkdirAll(filepath.Join(own, "dist"), 0o755))
	write := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(own, name), []byte(text), 0o644))
	}
	write("package.json", `{"bin": {"x": "dist/index.js"}}`)
	write("dist/index.js", `console.log("good", __filename, process.argv[2])`)
	digest, err := downstream.TreeDigest(filepath.Join(packages, name.Folder()))
	must(t, err)
	s := &downstream.Pinned{ProgramDigest: digest, Entry: downstream.Entry{
		ID: "demo", NPM: &name, Sandbox: downstream.Sandbox{MemoryMiB: 256, CPU: 1, Processes: 32},
	}}
	for range 2 {
		if got, err := run(t, l, Start{Server: s}); got != "good /run/package/node_modules/@scope/name/dist/index.js arg\n" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	write("dist/other.js", "")
	if _, err := l.Start(t.Context(), Start{Server: s}); err == nil || !strings.Contains(err.Error(), "durward server accept demo") {
		t.Errorf("a changed package: %v", err)
	}
}

func TestLimits(t *testing.T) {
	l := local(t, nil)
	if l.unbounded != nil {
		t.Skip("no control groups:", l.unbounded)
	}
	for name, c := range map[string]struct{ script, want, err string }{
		"memory":    {`head -c 200M /dev/zero | tail`, "", "it needed more memory than its 96 MiB"},
		"processes": {`(for i in $(seq 200); do sleep 30 & done) 2>/dev/null; set -- /proc/[0-9]*; echo $#`, "", ""},
		"a file":    {`dd if=/dev/zero of=/data/x bs=1M count=400 2>/dev/null || stat -c %s /data/x; rm /data/x`, "268435456\n", ""},
		"tmp":       {`dd if=/dev/zero of=/tmp/x bs=1M count=400 2>/dev/null || stat -c %s /tmp/x`, "67108864\n", ""},
	} {
		got, err := run(t, l, Start{Server: script(t, c.script)})
		if c.want != "" && got != c.want || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if name == "processes" {
			n := 0
			if _, err := fmt.Sscan(got, &n); err != nil || n < 10 || n > 32+spare {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
	}
}

// Where no control group can be made nothing starts, but for development, where each process is bounded.
func TestNoControlGroups(t *testing.T) {
	for _, development := range []bool{false, true} {
		l := local(t, func(c *Config) { c.Development = development })
		l.groups, l.unbounded = nil, errors.New("none")
		p, err := l.Start(t.Context(), Start{Server: script(t, `head -c 200M /dev/zero | tail >/dev/null; exit $?`)})
		if !development {
			if err == nil || !strings.Contains(err.Error(), "Delegate=yes") {
				t.Errorf("without control groups: %v", err)
			}
			continue
		}
		must(t, err)
		said, _ := io.ReadAll(p.Stderr)
		if err := p.Wait(); err == nil || !strings.Contains(string(said), "memory") {
			t.Errorf("in development: %q, %v", said, err)
		}
	}
}

// A child that fills its folder is ended, as is one of which it cannot be told.
func TestFull(t *testing.T) {
	l := local(t, nil)
	l.most = 32 << 20
	for name, text := range map[string]string{
		"bytes":      `i=0; while [ $i -lt 10 ]; do i=$((i+1)); head -c 8M /dev/zero >/data/$i; done; sleep 60`,
		"unreadable": `mkdir -p /data/x; chmod 0 /data/x; sleep 60`,
	} {
		if name == "unreadable" && l.cfg.UID != 0 {
			continue // root reads it
		}
		begun := time.Now()
		_, err := run(t, l, Start{Server: script(t, text)})
		if err == nil || !strings.Contains(err.Error(), "into its own folder") || time.Since(begun) > 20*time.Second {
			t.Errorf("%s: %v after %v", name, err, time.Since(begun))
		}
		if err := os.RemoveAll(filepath.Join(l.cfg.State, "servers", "demo-"+"e3b0c44298fc1c14")); err != nil {
			t.Error(err)
		}
	}
}

// On a full disk the child that holds much of it is ended, and its neighbour only where that made no room.
func TestFullDisk(t *testing.T) {
	l := local(t, nil)
	begin := func(user, text string) *Process {
		p, err := l.Start(t.Context(), Start{Server: script(t, text+"; echo ready; sleep 1000"), User: user})
		must(t, err)
		if _, err := bufio.NewReader(p.Stdout).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return p
	}
	neighbour := begin("neighbour", "echo little >/data/little")
	greedy := begin("greedy", "head -c 80M /dev/zero >/data/much")
	ended := make(chan error)
	go func() { ended <- neighbour.Wait() }()
	l.spare.Store(math.MaxUint64)
	if err := greedy.Wait(); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("who holds much: %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("its neighbour was ended with it: %v", err)
	default:
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("its neighbour, when the disk stays full: %v", err)
	}
}

func TestKillAndFreeze(t *testing.T) {
	l := local(t, nil)
	p, err := l.Start(t.Context(), Start{Server: script(t, `(setsid sh -c 'while :; do echo tick; sleep 0.02; done' &) ; sleep 1000`)})
	must(t, err)
	if _, err := l.Start(t.Context(), Start{Server: script(t, "true")}); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a second instance: %v", err)
	}
	lines := make(chan string, 1000)
	go func() {
		for s := bufio.NewScanner(p.Stdout); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	<-lines
	must(t, p.Freeze(true))
	for settled := false; !settled; {
		select {
		case _, more := <-lines:
			if !more {
				t.Fatal("it ended")
			}
		case <-time.After(200 * time.Millisecond):
			settled = true
		}
	}
	must(t, p.Freeze(false))
	<-lines
	must(t, p.Freeze(true))
	left := descendants(p.Control.(*child).cmd.Process.Pid)
	if len(left) < 4 {
		t.Errorf("%d processes", len(left))
	}
	begun := time.Now()
	p.Kill()
	if err := p.Wait(); err == nil || time.Since(begun) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	for range lines { //nolint:revive // until it is closed
	}
	for pid := range left {
		if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(raw) > 0 {
			t.Errorf("%d is left: %q", pid, raw)
		}
	}
}

// A child's way out is its own socket, through the relay; without a network there is neither.
func TestNetwork(t *testing.T) {
	l := local(t, nil)
	served := make(chan Start, 1)
	proxied := Networked(l, func(listener net.Listener, s Start) {
		served <- s
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s for %s", r.Method, r.RequestURI, s.User)
		}))
	})
	s := script(t, `curl -s http://allowed.test/x || wget -q -O- http://allowed.test/x; echo " $?"; ls /run; exit 7`)
	s.Entry.Sandbox.Domains = []string{"allowed.test"}
	got, err := run(t, proxied, Start{Server: s, User: "ann", Network: true})
	if got != "GET http://allowed.test/x for ann 0\negress.sock\nrelay\n" || err == nil || err.Error() != "exit status 7" {
		t.Errorf("%q, %v", got, err)
	}
	if (<-served).Server != s {
		t.Error("another server's")
	}
	got, err = run(t, proxied, Start{Server: s, User: "ann"})
	if !strings.HasPrefix(got, " ") || strings.Contains(got, "relay") || err == nil {
		t.Errorf("without a network: %q, %v", got, err)
	}
	s.Entry.Program.Args[1] = "kill -9 $$"
	if _, err := run(t, proxied, Start{Server: s, Network: true}); err == nil || err.Error() != "exit status 137" {
		t.Errorf("killed: %v", err)
	}
}

// Without a sandbox, in development, a program runs as it is, and is ended whole.
func TestBare(t *testing.T) {
	l := local(t, func(c *Config) { c.Development, c.UID, c.GID = true, 0, 0 })
	s := script(t, `echo "$VALUE $(pwd)"`)
	s.Entry.Sandbox.None = true
	got, err := run(t, l, Start{Server: s, Env: map[string]string{"VALUE": "v"}})
	if !strings.HasPrefix(got, "v "+l.cfg.State) || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestFolderIsItsUsersAlone: where servers run as the process's own user, nothing in its folder is anybody else's to read; where they
// have a user of their own, it reads what it is given, and writes nothing.
func TestFolderIsItsUsersAlone(t *testing.T) {
	for uid, others := range map[uint32]os.FileMode{0: 0, nobody: 0o055} {
		state := filepath.Join(tempDir(t), "state")
		l, err := NewLocal(Config{State: state, UID: uid, GID: uid, Development: true, Relay: "/bin/true", Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		t.Cleanup(l.Close)
		err = filepath.WalkDir(state, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().Perm()&0o077&^others != 0 {
				t.Errorf("user %d: %s is %v", uid, path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
