package drill

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/deploy/e2e/harness"
)

// sameUserLines are the attacks of a program that runs as the agent's Unix user, beside Durward.
func sameUserLines() []Line {
	return []Line{
		// Its control is development mode, where every process is the agent's own user.
		{"same-user", nil, sameUser},
	}
}

// Unix users of the layout under attack: an operator, and whoever an agent runs as. What they are called is in the layout's
// own passwd file, and nobody on this machine has such a number.
const (
	layoutOperator, operatorNumber = "alice", 64101
	layoutAgent, agentNumber       = "robot", 64102
	firstProcessNumber             = 64110
)

// sameUser runs a program of the agent's user against an installation: in the shipped world one that `durward install` laid out,
// with every process as its own user; in the other the development installation itself.
func sameUser(w *world) (trials, effects int) {
	program := w.build("sameuser")
	if w.weak {
		return w.count(w.intrude(exec.Command(program, w.developmentTargets()...)))
	}
	if os.Getuid() != 0 {
		w.t.Fatal("the line same-user needs root, to be the users of a production layout")
	}
	l := w.newLayout()
	w.copyProgram(program, l.path("/tmp/sameuser"))
	// A layout in which nothing works would withstand everything.
	l.mustWork()
	asAgent := w.intrude(l.as(agentNumber, agentNumber, nil, append([]string{"/tmp/sameuser"}, l.targets()...)...))
	trials, effects = w.count(asAgent)
	if got := l.ports(); len(got) != 1 || got[0] != w.h.Port(layoutPort) {
		w.t.Logf("processes listen on the ports %v", got)
		effects++
	}
	// The control of the attack itself: the same program as root finds everything.
	if r := w.intrude(l.as(0, 0, nil, append([]string{"/tmp/sameuser"}, l.targets()...)...)); len(r.Effects) < trials/2 {
		w.t.Fatalf("as root the attack achieves only %q", r.Effects)
	}
	l.mustWork()
	return trials, effects
}

// intrusion is what the program reports.
type intrusion struct {
	Trials  int      `json:"trials"`
	Effects []string `json:"effects"`
}

func (w *world) intrude(cmd *exec.Cmd) intrusion {
	w.t.Helper()
	out, err := cmd.Output()
	w.must(err)
	var r intrusion
	w.must(json.Unmarshal(out, &r))
	return r
}

func (w *world) count(r intrusion) (trials, effects int) {
	for _, e := range r.Effects {
		w.t.Logf("a program of the agent's user %s", e)
	}
	return r.Trials, len(r.Effects)
}

// build builds a program of an attacker's, of the drill's folder of that name.
func (w *world) build(name string) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), name)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./deploy/e2e/drill/"+name)
	cmd.Dir = harness.Root(w.t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("build the attacker's program: %v\n%s", err, out)
	}
	return path
}

// developmentTargets are the same things in a development installation.
func (w *world) developmentTargets() []string {
	flags := []string{"-read", w.h.Dir, "-sign", w.h.Path("keys", "operator_ed25519")}
	for _, role := range harness.Roles() {
		flags = append(flags, "-process", strconv.Itoa(w.h.Process(role).PID()), "-port", w.h.HealthAddress(role),
			"-write", w.h.Path("config", role+".yaml"))
		if role != harness.Gateway {
			flags = append(flags, "-port", w.h.Address(role))
		}
	}
	for _, file := range []string{"config/catalogue.yaml", "config/clients.yaml", "trust/allowed_signers", "trust/revoked.yaml"} {
		flags = append(flags, "-write", w.h.Path(file))
	}
	return flags
}

// layoutPort is the layout's port for agents, among those of the world's host.
const layoutPort = 6

// layout is what `durward install` made in a folder, with its processes running as their users.
type layout struct {
	w    *world
	root string
	pids map[string]int
}

// newLayout installs below a folder of its own, and starts every process as its user, as systemd would by the units.
func (w *world) newLayout() *layout {
	w.t.Helper()
	root, err := os.MkdirTemp("", "layout")
	w.must(err)
	w.t.Cleanup(func() { _ = os.RemoveAll(root) })
	w.must(os.Chmod(root, 0o755))
	l := &layout{w: w, root: root, pids: map[string]int{}}
	for _, dir := range []string{"/etc", "/proc", "/dev", "/root", "/home"} {
		w.must(os.MkdirAll(l.path(dir), 0o755))
	}
	w.must(os.MkdirAll(l.path("/tmp"), 0o755))
	w.must(os.Chmod(l.path("/tmp"), 0o777|os.ModeSticky))
	// Processes get numbers that nobody on this machine has, so that a listener of theirs is told from others.
	passwd := fmt.Sprintf("root:x:0:0::/root:/bin/sh\n%s:x:%d:%d::/home/%s:/bin/sh\n%s:x:%d:%d::/home/%s:/bin/sh\n",
		layoutOperator, operatorNumber, operatorNumber, layoutOperator, layoutAgent, agentNumber, agentNumber, layoutAgent)
	group := fmt.Sprintf("root:x:0:\n%s:x:%d:\n%s:x:%d:\n", layoutOperator, operatorNumber, layoutAgent, agentNumber)
	for i, role := range harness.Roles() {
		passwd += fmt.Sprintf("durward-%s:x:%d:%d::/:/usr/sbin/nologin\n", role, firstProcessNumber+i, firstProcessNumber+i)
		group += fmt.Sprintf("durward-%s:x:%d:\n", role, firstProcessNumber+i)
	}
	l.write("/etc/passwd", 0o644, passwd)
	l.write("/etc/group", 0o644, group)
	l.operatorKey()

	cmd := exec.Command(filepath.Join(w.h.Bin, "durward"), "install", "--apply", "--root", root, "--programs", w.h.Bin,
		"--operator", layoutOperator, "--signing-key", "/home/"+layoutOperator+"/key", "--port", strconv.Itoa(w.h.Port(layoutPort)))
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("install: %v\n%s", err, out)
	}
	l.credential("audit", "log.key")
	l.credential("vault", "grant.key")
	for _, role := range harness.Roles() {
		l.start(role)
	}
	return l
}

func (l *layout) path(name string) string { return filepath.Join(l.root, name) }

func (l *layout) write(name string, mode os.FileMode, text string) {
	l.w.t.Helper()
	l.w.must(os.WriteFile(l.path(name), []byte(text), mode))
}

// operatorKey gives the operator a signing key with a passphrase.
func (l *layout) operatorKey() {
	w := l.w
	w.t.Helper()
	home := l.path("/home/" + layoutOperator)
	w.must(os.MkdirAll(home, 0o755))
	signer, file := newKey(w.t)
	key, err := ssh.ParseRawPrivateKey(file)
	w.must(err)
	block, err := ssh.MarshalPrivateKeyWithPassphrase(key, "drill", []byte(passphrase))
	w.must(err)
	l.write("/home/"+layoutOperator+"/key", 0o600, string(pem.EncodeToMemory(block)))
	l.write("/home/"+layoutOperator+"/key.pub", 0o644, string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	for _, path := range []string{home, home + "/key", home + "/key.pub"} {
		w.must(os.Chown(path, operatorNumber, operatorNumber))
	}
}

// credential hands a key over as systemd's LoadCredential does.
func (l *layout) credential(role, name string) {
	w := l.w
	w.t.Helper()
	uid, gid := l.user("durward-" + role)
	dir := l.path("/run/credentials/durward-" + role + ".service")
	w.must(os.MkdirAll(dir, 0o755))
	key, err := os.ReadFile(l.path("/etc/durward/keys/" + name))
	w.must(err)
	w.must(os.WriteFile(filepath.Join(dir, name), key, 0o400))
	w.must(os.Chown(filepath.Join(dir, name), uid, gid))
	w.must(os.Chown(dir, uid, gid))
	w.must(os.Chmod(dir, 0o500))
}

// line returns the fields of a line of the layout's passwd or group file.
func (l *layout) line(file, name string) []string {
	l.w.t.Helper()
	b, err := os.ReadFile(l.path("/etc/" + file))
	l.w.must(err)
	for line := range strings.Lines(string(b)) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); fields[0] == name {
			return fields
		}
	}
	l.w.t.Fatalf("there is no %s in %s", name, file)
	return nil
}

func (l *layout) number(text string) int {
	l.w.t.Helper()
	n, err := strconv.Atoi(text)
	l.w.must(err)
	return n
}

func (l *layout) user(name string) (uid, gid int) {
	fields := l.line("passwd", name)
	return l.number(fields[2]), l.number(fields[3])
}

// as is a command of a user inside the layout, in a mount namespace of its own, where /proc is.
func (l *layout) as(uid, gid int, groups []string, argv ...string) *exec.Cmd {
	var numbers []string
	for _, name := range groups {
		numbers = append(numbers, l.line("group", name)[2])
	}
	script := `mount --rbind /proc "$1/proc"; mount --bind /dev "$1/dev"; root=$1 uid=$2 gid=$3 groups=$4; shift 4
exec chroot --userspec="$uid:$gid" --groups="$groups" "$root" "$@"`
	args := []string{"--mount", "--propagation", "private", "sh", "-ec", script,
		"sh", l.root, strconv.Itoa(uid), strconv.Itoa(gid), strings.Join(numbers, ",")}
	cmd := exec.Command("unshare", append(args, argv...)...)
	cmd.Dir = "/"
	return cmd
}

// start starts a process as the user of its unit.
func (l *layout) start(role string) {
	w := l.w
	w.t.Helper()
	uid, gid := l.user("durward-" + role)
	cmd := l.as(uid, gid, []string{"durward"}, "/usr/local/lib/durward/"+role, "-config", "/etc/durward/"+role+".yaml")
	log, err := os.Create(l.path("/" + role + ".log"))
	w.must(err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own, as a unit has: within one, SIGCONT needs no right.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	w.must(cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // whether it was well is asked otherwise
		close(ended)
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	// Each program replaces the one that started it, so that the number is the process's own.
	l.pids[role] = cmd.Process.Pid
	socket := l.path("/run/durward/" + role + "/health.sock")
	harness.Eventually(w.t, role+" listens", func() error {
		select {
		case <-ended:
			b, _ := os.ReadFile(log.Name())
			w.t.Fatalf("%s ended: %s", role, b)
		default:
		}
		conn, err := net.DialTimeout("unix", socket, time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// mustWork has the operator ask whether every process is well, and somebody else for the gateway.
func (l *layout) mustWork() {
	w := l.w
	w.t.Helper()
	harness.Eventually(w.t, "the layout works", func() error {
		cmd := l.as(operatorNumber, operatorNumber, []string{"durward", "durward-operators"}, "/usr/local/lib/durward/durward", "status")
		cmd.Env = []string{"HOME=/home/" + layoutOperator}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("status: %w\n%s", err, out)
		}
		conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(w.h.Port(layoutPort))), time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// targets are what the attacker tries, as paths inside the layout.
func (l *layout) targets() []string {
	flags := []string{"-sign", "/home/" + layoutOperator + "/key", "-read", "/home/" + layoutOperator, "-read", "/root"}
	for _, dir := range []string{"/etc/durward", "/var/lib/durward", "/run/durward", "/run/credentials"} {
		flags = append(flags, "-read", dir)
	}
	for _, file := range []string{
		"/etc/durward/pki/ca.key", "/etc/durward/keys/grant.key", "/etc/durward/keys/log.key", "/etc/durward/tls/operators/alice/key.pem",
		"/run/credentials/durward-vault.service/grant.key", "/run/credentials/durward-audit.service/log.key", "/root/.durward/config/operator.yaml",
	} {
		flags = append(flags, "-read", file)
	}
	for _, role := range harness.Roles() {
		flags = append(flags, "-process", strconv.Itoa(l.pids[role]), "-socket", "/run/durward/"+role+"/health.sock",
			"-read", "/etc/durward/tls/"+role+"/key.pem")
		if role != harness.Gateway {
			flags = append(flags, "-socket", "/run/durward/"+role+"/grpc.sock")
		}
		for _, path := range []string{
			"/etc/durward/" + role + ".yaml", "/usr/local/lib/durward/" + role, "/etc/systemd/system/durward-" + role + ".service",
			"/etc/durward/tls/" + role + "/key.pem",
		} {
			flags = append(flags, "-write", path)
		}
	}
	for _, file := range []string{
		"catalogue.yaml", "clients.yaml", "installed.json", "trust/allowed_signers", "trust/ca.pem", "trust/grant_signers.yaml", "trust/log_keys",
		"trust/revoked.yaml",
	} {
		flags = append(flags, "-write", "/etc/durward/"+file)
	}
	return flags
}

// ports are the TCP ports on which the layout's processes listen, by the kernel's word on whose socket it is.
func (l *layout) ports() []int {
	l.w.t.Helper()
	var uids []string
	for _, role := range harness.Roles() {
		uid, _ := l.user("durward-" + role)
		uids = append(uids, strconv.Itoa(uid))
	}
	var out []int
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		l.w.must(err)
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid
			fields := strings.Fields(line)
			if len(fields) < 8 || fields[3] != "0A" || !slices.Contains(uids, fields[7]) {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			n, err := strconv.ParseUint(hex, 16, 16)
			l.w.must(err)
			out = append(out, int(n))
		}
	}
	return out
}

// copyProgram copies a program to where everybody can start it.
func (w *world) copyProgram(from, to string) {
	w.t.Helper()
	b, err := os.ReadFile(from)
	w.must(err)
	w.must(os.WriteFile(to, b, 0o755))
}
