package drill

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// launcherNumber is the Unix user of a world's launcher, which nobody on this machine has. Each world has its own, since what a user holds is
// counted.
func (w *world) launcherNumber() int {
	if w.weak {
		return 64121
	}
	return 64120
}

// endsWithin is how long a server may take to be gone.
const endsWithin = 5 * time.Second

// serverLines are the attacks of another's MCP server on the host that it runs on.
func serverLines() []Line {
	return []Line{
		{"server-escapes", nil, func(w *world) (int, int) { return w.escape("sandbox-walls") }},
		{"server-escapes-calls", nil, func(w *world) (int, int) { return w.escape("sandbox-filter") }},
		{"server-takes-all", nil, takeAll},
	}
}

// hostile are the servers of an installation, by what each does.
var hostile = []string{"try", "echo", "processes", "memory", "disk", "output", "processor"}

// servers is a launcher under its own user, with what an operator signed.
type servers struct {
	w            *world
	dir, socket  string
	groups       []string
	cmd          *exec.Cmd
	program      string
	bare, secret string
}

// newServers starts a launcher, without a guard where one is named, whose servers are the drill's hostile program with these arguments.
func (w *world) newServers(guard string, arguments func(*servers) []string) *servers {
	w.t.Helper()
	if os.Getuid() != 0 {
		w.t.Fatal("these lines need root, to give the launcher a user and control groups of its own")
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		w.t.Fatal("bubblewrap is not installed: scripts/install-real.sh sandbox")
	}
	s := &servers{w: w, dir: w.open755("servers"), bare: w.open755("outside")}
	for _, folder := range []string{"etc", "trust", "bin", "tools"} {
		w.must(os.Mkdir(s.path(folder), 0o755))
	}
	for _, folder := range []string{"state", "run"} {
		w.must(os.Mkdir(s.path(folder), 0o755))
		w.must(os.Chown(s.path(folder), w.launcherNumber(), w.launcherNumber()))
	}
	s.program, s.secret = s.path("bin/escapes"), filepath.Join(s.bare, "secret")
	w.copyProgram(w.build("escapes"), s.program)
	w.copyProgram(filepath.Join(w.h.Bin, "durward-launcher"), s.path("bin/durward-launcher"))
	foreign := exec.Command("go", "build", "-o", s.path("tools/foreign"), "./deploy/e2e/drill/escapes/foreign")
	foreign.Dir, foreign.Env = harness.Root(w.t), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOARCH=386")
	if out, err := foreign.CombinedOutput(); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	w.must(os.Chmod(s.path("tools/foreign"), 0o755))
	w.must(os.WriteFile(s.secret, []byte("a secret\n"), 0o644))
	if arguments == nil {
		arguments = func(*servers) []string { return nil }
	}
	s.sign(arguments(s))
	s.socket = s.path("run/launcher.sock")
	w.must(os.WriteFile(s.path("etc/launcher.yaml"), fmt.Appendf(nil, "listen: unix:%s,user=0\nservers: %s\nstate_dir: %s\ntrust_dir: %s\n",
		s.socket, s.path("etc/servers.yaml"), s.path("state"), s.path("trust")), 0o644))
	s.start(guard)
	return s
}

func (s *servers) path(name string) string { return filepath.Join(s.dir, name) }

// open755 is a folder that every user of this machine gets into.
func (w *world) open755(name string) string {
	w.t.Helper()
	dir, err := os.MkdirTemp("", name)
	w.must(err)
	w.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w.must(os.Chmod(dir, 0o755))
	return dir
}

// sign writes servers.yaml and the lock of it, signed by the operator.
func (s *servers) sign(arguments []string) {
	w := s.w
	var text strings.Builder
	text.WriteString("servers:\n")
	for _, act := range hostile {
		args, err := json.Marshal(append([]string{"-act", act}, arguments...))
		w.must(err)
		fmt.Fprintf(&text, "  - id: %s\n    program: {path: %s, args: %s}\n    sandbox: {filesystem: {allow_read: [%s]}, memory_mib: 256, cpu: 0.5}\n",
			act, s.program, args, s.path("tools"))
	}
	w.must(os.WriteFile(s.path("etc/servers.yaml"), []byte(text.String()), 0o644))
	w.must(os.WriteFile(s.path("etc/servers.lock"), []byte(harness.Accepted(w.t, text.String(), nil, w.h.Operator, w.signer)), 0o644))
	signers := trust.FormatSigner(w.h.Operator, w.signer.PublicKey(), statement.Namespace)
	w.must(os.WriteFile(s.path("trust/allowed_signers"), []byte(signers+"\n"), 0o644))
}

// start starts the launcher in control groups that are its user's, as Delegate=yes makes them.
func (s *servers) start(guard string) {
	w := s.w
	join, number := "", w.launcherNumber()
	for _, controller := range []string{"memory", "pids", "cpu", ""} {
		root := filepath.Join("/sys/fs/cgroup", controller)
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue // of the other version
		}
		if controller == "" {
			w.must(os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0))
		}
		group := filepath.Join(root, filepath.Base(s.dir))
		w.must(os.Mkdir(group, 0o755))
		s.groups = append(s.groups, group)
		for _, file := range []string{"", "cgroup.procs", "tasks", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(group, file), number, number); err != nil && !errors.Is(err, os.ErrNotExist) {
				w.t.Fatal(err)
			}
		}
		join += "echo $$ >" + group + "/cgroup.procs && "
	}
	args := []string{"-c", join + `exec "$@"`, "sh", "setpriv", "--reuid", strconv.Itoa(number), "--regid", strconv.Itoa(number),
		"--clear-groups", "--no-new-privs", s.path("bin/durward-launcher"), "-config", s.path("etc/launcher.yaml")}
	if w.weak && guard != "" {
		args = append(args, "-weaken", guard)
	}
	s.cmd = exec.Command("/bin/sh", args...)
	said := &strings.Builder{}
	s.cmd.Stderr, s.cmd.Env, s.cmd.Dir = said, []string{"PATH=/usr/bin:/bin"}, "/"
	w.must(s.cmd.Start())
	w.t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("the launcher: %s", said)
		}
		for _, group := range s.groups {
			nested, _ := filepath.Glob(filepath.Join(group, "durward-*", "*"))
			within, _ := filepath.Glob(filepath.Join(group, "durward-*"))
			for _, g := range append(append(nested, within...), group) {
				_ = syscall.Rmdir(g)
			}
		}
	})
	harness.Eventually(w.t, "the launcher listens", func() error {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// maxHeld are processes and threads of a server by its entry, of its sandbox, of the launcher and of a neighbour.
const maxHeld = 64 + 24 + 64

// running is a server that runs.
type running struct {
	conn    *net.UnixConn
	in, out *os.File
	errs    *os.File
}

// begin has the launcher start a server.
func (s *servers) begin(id string) *running {
	w := s.w
	w.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.socket, Net: "unix"})
	w.must(err)
	raw, err := json.Marshal(map[string]any{"server": id, "user": "drill", "env": map[string]string{}, "network": false})
	w.must(err)
	_, err = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...))
	w.must(err)
	said, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(said[:4], oob)
	w.must(err)
	if n < 4 {
		w.t.Fatalf("the launcher says nothing of %s", id)
	}
	rest := said[:binary.BigEndian.Uint32(said)]
	_, err = io.ReadFull(conn, rest)
	w.must(err)
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		w.t.Fatalf("%s does not start: %s", id, rest)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	w.must(err)
	var files []*os.File
	for _, fd := range fds {
		w.must(unix.SetNonblock(fd, true))
		files = append(files, os.NewFile(uintptr(fd), id))
	}
	return &running{conn, files[0], files[1], files[2]}
}

// end ends a server as egress' own end would, and returns how long it took until nobody held its output any more.
func (r *running) end() time.Duration {
	begun := time.Now()
	_ = r.conn.Close()
	_ = r.in.Close()
	for _, f := range []*os.File{r.out, r.errs} {
		_ = f.SetReadDeadline(begun.Add(2 * endsWithin))
		_, _ = io.Copy(io.Discard, f)
		_ = f.Close()
	}
	return time.Since(begun)
}

// escape runs the hostile server beside a service of the host, sockets, and another server, and counts what it achieves.
func (w *world) escape(guard string) (trials, effects int) {
	sockets := w.open755("sockets")
	// A name of its own: one that was closed is free only when no process that is being started holds it any more.
	abstract := "durward-drill-" + filepath.Base(sockets)
	var open []io.Closer
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	answer := func(l net.Listener) string {
		open = append(open, l)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte("in"))
				_ = conn.Close()
			}
		}()
		return l.Addr().String()
	}
	listen := func(network, address string) string {
		l, err := net.Listen(network, address)
		w.must(err)
		return answer(l)
	}
	tcp := listen("tcp", "127.0.0.1:0")
	listen("unix", "@"+abstract)
	socket := listen("unix", filepath.Join(sockets, "s"))
	w.must(os.Chmod(socket, 0o666))
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	w.must(err)
	open = append(open, udp)
	go func() {
		p := make([]byte, 16)
		for {
			_, from, err := udp.ReadFrom(p)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(p, from)
		}
	}()
	// Another process of the launcher's user, as another server is.
	user := strconv.Itoa(w.launcherNumber())
	victim := exec.Command("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "sh", "-c", "echo up; exec sleep 1000 # echo")
	out, err := victim.StdoutPipe()
	w.must(err)
	w.must(victim.Start())
	defer func() { _ = victim.Process.Kill(); _ = victim.Wait() }()
	_, err = bufio.NewReader(out).ReadString('\n')
	w.must(err)

	s := w.newServers(guard, func(s *servers) []string {
		return []string{"-secret", s.secret, "-program", s.program, "-foreign", s.path("tools/foreign"), "-pid", strconv.Itoa(victim.Process.Pid),
			"-tcp", tcp, "-udp", udp.LocalAddr().String(), "-abstract", abstract, "-sockets", socket + "," + s.path("run/launcher.sock")}
	})
	r := s.begin("try")
	defer r.end()
	go func() { _, _ = io.Copy(os.Stderr, r.errs) }()
	_ = r.out.SetReadDeadline(time.Now().Add(time.Minute))
	raw, err := io.ReadAll(r.out)
	w.must(err)
	var found struct {
		intrusion

		Calls int `json:"calls"`
	}
	if err := json.Unmarshal(raw, &found); err != nil {
		w.t.Fatalf("the hostile server says %q: %v", raw, err)
	}
	for _, e := range found.Effects {
		w.t.Logf("a server %s", e)
	}
	if found.Trials < 60 {
		w.t.Fatalf("only %d attempts", found.Trials)
	}
	if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
		found.Effects = append(found.Effects, "ended a process")
	}
	if w.weak && guard == "sandbox-filter" {
		return found.Trials, found.Calls
	}
	return found.Trials, len(found.Effects)
}

// takeAll runs servers that take all they can get, beside one that does its work. Effects are a neighbour that is served too late, a server
// that goes on when it was ended, and more processes, memory or disk than its entry gives it.
func takeAll(w *world) (trials, effects int) {
	s := w.newServers("sandbox-limits", nil)
	neighbour := s.begin("echo")
	defer neighbour.end()
	quiet := s.latency(neighbour, 300)
	var worst time.Duration
	size := int64(0)
	for _, act := range []string{"processes", "memory", "disk", "output", "processor"} {
		r := s.begin(act)
		drained := make(chan struct{})
		first := make([]byte, 6)
		_, err := io.ReadFull(r.out, first)
		w.must(err)
		go func() { defer close(drained); _, _ = io.Copy(io.Discard, io.LimitReader(r.out, 1<<30)) }()
		go func() { _, _ = io.Copy(io.Discard, io.LimitReader(r.errs, 1<<30)) }()
		busy := s.latency(neighbour, 600)
		trials++
		worst = max(worst, busy)
		if busy > max(2*quiet, 50*time.Millisecond) {
			w.t.Logf("beside %s a neighbour's p99 is %s, and %s without", act, busy, quiet)
			effects++
		}
		if most := s.most(w.tries(10, 1)); most > maxHeld {
			w.t.Logf("beside %s the launcher's user has %d processes and threads", act, most)
			effects++
		}
		if took := r.end(); took > endsWithin {
			w.t.Logf("%s is ended after %s", act, took)
			effects++
		}
		<-drained
		if w.caught(effects) {
			return trials, effects
		}
		harness.Eventually(w.t, act+" is gone", func() error {
			if left := s.tasks(); left > maxHeld {
				return fmt.Errorf("%d processes and threads", left)
			}
			return nil
		})
		// What it wrote is gone before the next: the machine may have little room of its own.
		folders, err := filepath.Glob(s.path("state/servers/" + act + "-*"))
		w.must(err)
		for _, folder := range folders {
			size += held(folder)
			w.must(os.RemoveAll(folder))
		}
	}
	w.note += fmt.Sprintf("a neighbour's p99 %s, %s beside the worst", quiet.Round(10*time.Microsecond), worst.Round(10*time.Microsecond))
	if trials++; size > 4<<30 {
		w.t.Logf("the servers' folders hold %d MiB", size>>20)
		effects++
	}
	return trials, effects
}

// held is how many bytes a folder holds.
func held(folder string) (size int64) {
	_ = filepath.Walk(folder, func(_ string, info os.FileInfo, err error) error {
		if err == nil {
			size += info.Size()
		}
		return nil
	})
	return size
}

// latency is the 99th percentile of how long a server takes to say what it is told.
func (s *servers) latency(r *running, times int) time.Duration {
	var took []time.Duration
	answers := bufio.NewReader(r.out)
	for range times {
		begun := time.Now()
		_, err := r.in.WriteString("ping\n")
		s.w.must(err)
		_ = r.out.SetReadDeadline(begun.Add(10 * time.Second))
		_, err = answers.ReadString('\n')
		s.w.must(err)
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// tasks is how many processes and threads the launcher's user has.
func (s *servers) tasks() (n int) {
	number := s.w.launcherNumber()
	paths, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, task := range paths {
		var st syscall.Stat_t
		if syscall.Stat(task, &st) == nil && int(st.Uid) == number {
			n++
		}
	}
	return n
}

// most is the most that the launcher's user has within so many seconds, or the first number that is too high.
func (s *servers) most(seconds int) (most int) {
	for deadline := time.Now().Add(time.Duration(seconds) * time.Second); most <= maxHeld && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		most = max(most, s.tasks())
	}
	return most
}
