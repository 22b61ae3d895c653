//go:build real

package install_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
)

// port is where agents connect; the sandbox shares the host's network.
const port = "18930"

// patience is how long anything that ought to happen at once may take on a busy machine.
const patience = 40 * time.Second

var roles = []string{"audit", "vault", "executor", "gateway"}

// installed is a host on which Durward was installed, inside scripts/systemd-sandbox.sh.
type installed struct {
	*testing.T
	programs string
}

// TestRealLayout installs Durward on a host with systemd, starts it by its units, and lives with it: an agent asks, an operator
// approves, certificates are renewed, a process is killed, and the agent's user tries what it can.
func TestRealLayout(t *testing.T) {
	if os.Getenv("SANDBOX") == "" || os.Getenv("PROGRAMS") == "" {
		t.Fatal("run scripts/real-layout.sh, which makes the sandbox")
	}
	h := &installed{t, os.Getenv("PROGRAMS")}
	for _, name := range []string{"alice", "bob", "carol", "mallory", "svc"} {
		h.root("useradd", "--create-home", "--shell", "/bin/bash", name)
	}
	h.key()
	h.tried()
	for _, part := range []struct {
		name string
		do   func(*installed)
	}{
		{"dry run", (*installed).dryRun},
		{"apply", (*installed).apply},
		{"tried first, installed then", (*installed).instead},
		{"apply again", (*installed).applyAgain},
		{"edited files stay", (*installed).edited},
		{"what is started listens", (*installed).restarted},
		{"what is down is started", (*installed).down},
		{"users and processes", (*installed).processes},
		{"an approved start", (*installed).approvedStart},
		{"the agent's user", (*installed).intruder},
		{"the operator's user without the passphrase", (*installed).operatorsUser},
		{"a second operator", (*installed).secondOperator},
		{"a second operator who is revoked", (*installed).revoked},
		{"a key that was planted", (*installed).planted},
		{"a killed process", (*installed).killed},
		{"the gateway's port", (*installed).gatewaysPort},
		{"renewal", (*installed).renewal},
		{"a backup by the timer's unit", (*installed).backup},
		{"a machine that was off for days", (*installed).reboot},
		{"a backup put back", (*installed).restored},
		{"egress", (*installed).egress},
		{"a witness and the relay", (*installed).relayed},
		{"a change of settings", (*installed).settings},
		{"a unit, by the narrow executor", (*installed).unit},
		{"a unit with a credential", (*installed).credential},
		{"the log moved", (*installed).moved},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.do(&installed{t, h.programs}) }) {
			out, _ := exec.Command("journalctl", "--no-pager", "-o", "cat", "-n", "60", "-u", "durward-*").CombinedOutput()
			t.Fatalf("the journal's last lines:\n%s", out)
		}
	}
}

// as runs a program as a Unix user, in the groups that the user would have after logging in.
func (h *installed) as(name string, env []string, argv ...string) (string, int) {
	h.Helper()
	u, err := user.Lookup(name)
	h.must(err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	h.must(err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	h.must(err)
	ids, err := u.GroupIds()
	h.must(err)
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	for _, id := range ids {
		n, err := strconv.ParseUint(id, 10, 32)
		h.must(err)
		credential.Groups = append(credential.Groups, uint32(n))
	}
	ctx, cancel := context.WithTimeout(h.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential, Setsid: true}
	cmd.Dir = "/"
	cmd.Env = append([]string{"HOME=" + u.HomeDir, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "USER=" + name}, env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		h.Fatalf("%v: %v", argv, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// tried leaves in the home folders of root and of alice what `make run` does: both tried Durward first. What the machine's root has
// there is taken away; the folder is the sandbox's own view, so that the machine keeps it.
func (h *installed) tried() {
	h.Helper()
	for _, name := range []string{"root", "alice"} {
		u, err := user.Lookup(name)
		h.must(err)
		for _, dir := range []string{".durward", ".durward-aside"} {
			h.must(os.RemoveAll(filepath.Join(u.HomeDir, dir)))
		}
		if out, code := h.as(name, nil, filepath.Join(h.programs, "durward"), "up", "--development", "--prepare"); code != 0 {
			h.Fatalf("%s tries: %d, %s", name, code, out)
		}
	}
}

// instead looks at what commands mean after the installation: it, and not what was tried.
func (h *installed) instead() {
	for _, name := range []string{"root", "alice"} {
		out, code := h.as(name, nil, "durward", "status")
		if code != 0 || !strings.Contains(out, "systemd runs the processes") {
			h.Errorf("%s: status ended with %d:\n%s", name, code, out)
		}
		u, err := user.Lookup(name)
		h.must(err)
		out, _ = h.as(name, nil, "durward", "status", "--home", u.HomeDir+"/.durward-aside")
		if !strings.Contains(out, "durward up does not run for "+u.HomeDir+"/.durward-aside") {
			h.Errorf("%s: what was tried is not kept:\n%s", name, out)
		}
	}
	for _, file := range []string{"bash-completion/completions/durward", "zsh/site-functions/_durward", "fish/vendor_completions.d/durward.fish", "man/man1/durward-approve.1"} {
		if out, code := h.as("alice", nil, "grep", "-c", "durward", "/usr/local/share/"+file); code != 0 {
			h.Errorf("%s: %s", file, out)
		}
	}
	if out, code := h.as("alice", nil, "durward", "up", "--development"); code != 1 || !strings.Contains(out, "your side of this host's installation") {
		h.Errorf("alice tries again: %d, %s", code, out)
	}
}

func (h *installed) root(argv ...string) string {
	h.Helper()
	out, code := h.as("root", nil, argv...)
	if code != 0 {
		h.Fatalf("%v ended with %d:\n%s", argv, code, out)
	}
	return out
}

func (h *installed) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *installed) eventually(what string, f func() error) {
	h.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond) // no event: systemd does it in its own time
	}
}

// key makes alice's signing key, with a passphrase, and an agent that holds it.
func (h *installed) key() {
	h.Helper()
	h.must(os.WriteFile("/usr/local/bin/passphrase", []byte("#!/bin/sh\necho correct horse\n"), 0o755))
	for _, line := range [][]string{
		{"mkdir", "-m", "700", "/home/alice/.ssh"},
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "correct horse", "-f", "/home/alice/.ssh/id_ed25519"},
		{"ssh-agent", "-a", "/home/alice/.ssh/agent"},
	} {
		if out, code := h.as("alice", nil, line...); code != 0 {
			h.Fatalf("%v ended with %d: %s", line, code, out)
		}
	}
	out, code := h.as("alice", []string{"SSH_AUTH_SOCK=/home/alice/.ssh/agent", "SSH_ASKPASS=/usr/local/bin/passphrase", "SSH_ASKPASS_REQUIRE=force"},
		"ssh-add", "/home/alice/.ssh/id_ed25519")
	if code != 0 {
		h.Fatalf("ssh-add: %s", out)
	}
}

func (h *installed) install(flags ...string) (string, int) {
	h.Helper()
	return h.as("root", nil, append([]string{filepath.Join(h.programs, "durward"), "install", "--programs", h.programs}, flags...)...)
}

var first = []string{"--operator", "alice", "--port", port, "--process-driver", "--signing-key", "/home/alice/.ssh/id_ed25519.pub"}

func (h *installed) dryRun() {
	out, code := h.install(append([]string{"--dry-run"}, first...)...)
	if code != 0 || !strings.Contains(out, "make    /etc/durward/keys/grant.key  root:root 0600") {
		h.Errorf("ended with %d:\n%s", code, out)
	}
	for _, path := range []string{"/etc/durward", "/usr/local/lib/durward", "/etc/systemd/system/durward-vault.service", "/home/alice/.durward-aside"} {
		if _, err := os.Lstat(path); err == nil {
			h.Errorf("a dry run made %s", path)
		}
	}
	if _, err := user.Lookup("durward-vault"); err == nil {
		h.Error("a dry run made users")
	}
	if out, code := h.as("mallory", nil, filepath.Join(h.programs, "durward"), "install", "--apply", "--operator", "mallory"); code != 4 {
		h.Errorf("somebody who is not root: %d, %s", code, out)
	}
}

func (h *installed) apply() {
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	h.must(err)
	out, code := h.install(append([]string{"--apply"}, first...)...)
	if _, err := os.Lstat("/etc/durward"); code != 1 || err == nil || !strings.Contains(out, "cannot listen: 127.0.0.1:"+port+" is in use by ") {
		h.Errorf("beside what was tried and still runs: %d, %v\n%s", code, err, out)
	}
	h.must(l.Close())
	out, code = h.install(append([]string{"--apply"}, first...)...)
	if code != 0 || !strings.Contains(out, "audit, vault, executor and gateway are well") {
		h.Fatalf("ended with %d:\n%s", code, out)
	}
	for _, home := range []string{"/root", "/home/alice"} {
		if !strings.Contains(out, "what was there lies in "+home+"/.durward-aside") || !strings.Contains(out, "durward --home "+home+"/.durward-aside") {
			h.Errorf("nothing says where what was tried in %s lies", home)
		}
	}
	h.Logf("%s", out)
	for _, unit := range []string{"durward.target", "durward-renew.timer", "durward-audit", "durward-vault", "durward-executor", "durward-gateway"} {
		if out, code := h.as("root", nil, "systemctl", "is-active", unit); code != 0 {
			h.Errorf("%s is %s", unit, out)
		}
		if strings.HasPrefix(unit, "durward-") && unit != "durward-renew.timer" {
			verified := h.root("systemd-analyze", "verify", "/etc/systemd/system/"+unit+".service")
			if strings.TrimSpace(verified) != "" {
				h.Errorf("systemd-analyze verify %s: %s", unit, verified)
			}
			// The executor here has the wider drop-in; the others are as they are shipped.
			out := h.root("systemd-analyze", "security", "--no-pager", unit+".service")
			if unit != "durward-executor" && !strings.Contains(out, " SAFE ") && !strings.Contains(out, " OK ") {
				h.Errorf("exposure of %s: %s", unit, out)
			} else {
				lines := strings.Split(strings.TrimSpace(out), "\n")
				h.Logf("%s", lines[len(lines)-1])
			}
		}
	}
}

func (h *installed) applyAgain() {
	out, code := h.install("--apply")
	if code != 0 {
		h.Fatalf("ended with %d:\n%s", code, out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "same ") && !strings.HasPrefix(line, "✓") {
			h.Errorf("a second run does something: %s", line)
		}
	}
}

func (h *installed) edited() {
	const file = "/etc/durward/gateway.yaml"
	before, err := os.ReadFile(file)
	h.must(err)
	after := append(bytes.Clone(before), "hold_s: 30\n"...)
	h.must(os.WriteFile(file, after, 0o644))
	out, code := h.install("--apply")
	if code != 0 || !strings.Contains(out, "keep    "+file) {
		h.Errorf("ended with %d:\n%s", code, out)
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, after) {
		h.Errorf("an edited file was overwritten: %v\n%s", err, now)
	}
	h.must(os.WriteFile(file, before, 0o644))
}

// restarted: a process listens by the time at which systemd says that it is started.
func (h *installed) restarted() {
	for unit, line := range map[string][]string{
		"durward-audit": {"audit", "search", "--limit", "1"},
		"durward-vault": {"approvals"},
	} {
		for range 3 {
			h.root("systemctl", "restart", unit)
			if out, code := h.as("alice", nil, append([]string{"durward"}, line...)...); code != 0 {
				h.Errorf("right after a restart of %s: %d: %s", unit, code, out)
			}
		}
	}
}

// down: a process whose file is wrong is tried until it is right, and holds its port meanwhile; what somebody stopped is started.
func (h *installed) down() {
	const file = "/etc/durward/gateway.yaml"
	before, err := os.ReadFile(file)
	h.must(err)
	h.must(os.WriteFile(file, append(bytes.Clone(before), "no_such_key: 1\n"...), 0o644))
	h.as("root", nil, "systemctl", "restart", "durward-gateway.service")
	h.eventually("the gateway has ended often", func() error {
		n, err := strconv.Atoi(strings.TrimSpace(h.root("systemctl", "show", "-P", "NRestarts", "durward-gateway.service")))
		if err == nil && n < 6 { // systemd's own limit is five
			err = fmt.Errorf("%d times", n)
		}
		return err
	})
	h.held("when it has ended often")
	h.must(os.WriteFile(file, before, 0o644))
	h.eventually("it is well", func() error {
		if out, code := h.as("alice", nil, "durward", "status"); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	h.root("systemctl", "stop", "durward-renew.timer", "durward-gateway")
	if out, code := h.install("--apply"); code != 0 {
		h.Errorf("ended with %d:\n%s", code, out)
	}
	for _, unit := range []string{"durward-vault", "durward-gateway", "durward-renew.timer"} {
		if out, code := h.as("root", nil, "systemctl", "is-active", unit); code != 0 {
			h.Errorf("%s is %s", unit, out)
		}
	}
}

// pid is the main process of a unit.
func (h *installed) pid(role string) string {
	h.Helper()
	return strings.TrimSpace(h.root("systemctl", "show", "-P", "MainPID", "durward-"+role))
}

func (h *installed) processes() {
	for _, role := range roles {
		status, err := os.ReadFile("/proc/" + h.pid(role) + "/status")
		h.must(err)
		u, err := user.Lookup("durward-" + role)
		h.must(err)
		want := []string{fmt.Sprintf("Uid:\t%s\t%s\t%s\t%s\n", u.Uid, u.Uid, u.Uid, u.Uid), "NoNewPrivs:\t1\n"}
		if role != "executor" {
			want = append(want, "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "Seccomp:\t2\n")
		}
		for _, line := range want {
			if !strings.Contains(string(status), line) {
				h.Errorf("%s has not %q:\n%s", role, line, status)
			}
		}
	}
	// Alice, who is in the groups since the installation, sees that all is well, and so does root.
	for _, name := range []string{"alice", "root"} {
		if out, code := h.as(name, nil, "durward", "status"); code != 0 || strings.Contains(out, "durward up") {
			h.Errorf("durward status of %s ended with %d:\n%s", name, code, out)
		}
	}
	if out, code := h.as("mallory", nil, "durward", "status"); code == 0 {
		h.Errorf("durward status of somebody else:\n%s", out)
	}
}

const catalog = `version: 1
models:
  - {id: demo-model, served_name: demo}
services:
  - id: demo-chat
    name: Demo chat
    driver: process
    argv: [/usr/local/lib/durward/durward-demo, -port, "18935", -model, demo]
    run_as: svc
    port: 18935
    health: {path: /health}
    model: demo-model
`

func (h *installed) approvedStart() {
	h.root("install", "-m", "755", filepath.Join(h.programs, "durward-demo"), "/usr/local/lib/durward/durward-demo")
	h.must(os.WriteFile("/etc/durward/catalogue.yaml", []byte(catalog), 0o644))
	// As sudo does: the file is root's, and alice signs the change.
	if out, code := h.as("root", []string{"SUDO_USER=alice", "SSH_AUTH_SOCK=/home/alice/.ssh/agent"}, "durward", "client", "add", "robot", "--bearer", "--channel", "api", "--yes"); code != 0 {
		h.Fatalf("client add ended with %d:\n%s", code, out)
	}
	h.startApproved("demo-chat")
	svc, err := user.Lookup("svc")
	h.must(err)
	if out := h.root("pgrep", "-u", svc.Uid, "-a", "-f", "durward-demo"); !strings.Contains(out, "18935") {
		h.Errorf("the service does not run as its user: %s", out)
	}
	// It has what a model server needs: temporary files, netlink for the list of network interfaces, and every device.
	pid := strings.TrimSpace(h.root("pgrep", "-o", "-u", svc.Uid, "-f", "durward-demo"))
	for _, folder := range []string{"/tmp", "/var/tmp"} {
		if out, code := h.as("root", nil, "nsenter", "--mount", "--target", pid, "test", "-w", folder); code != 0 {
			h.Errorf("the service cannot write to %s: %s", folder, out)
		}
	}
	if out := h.root("systemctl", "show", "-P", "RestrictAddressFamilies", "durward-executor"); !strings.Contains(out, "AF_NETLINK") {
		h.Errorf("the service may use no netlink, but %s", out)
	}
	if out := h.root("systemctl", "show", "-P", "DeviceAllow", "durward-executor"); strings.TrimSpace(out) != "" {
		h.Errorf("the service has the devices of a list alone: %s", out)
	}
}

// connected is an agent of a client that root added.
func (h *installed) connected(client string) *agent {
	h.Helper()
	raw, err := os.ReadFile("/root/.durward/clients/" + client + "/token")
	h.must(err)
	a := &agent{token: strings.TrimSpace(string(raw))}
	h.eventually("the agent connects", func() error { return a.open(h.Context()) })
	return a
}

// startApproved has an agent ask for a start, and alice approve it.
func (h *installed) startApproved(service string) {
	h.Helper()
	a := h.connected("robot")
	h.eventually("the catalogue is taken up", func() error {
		if out, code := h.as("alice", nil, "durward", "services", "--json"); code != 0 || !strings.Contains(out, service) {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		text, err := a.call(h.Context(), "start_service", map[string]any{"service_id": service})
		answered <- answer{text, err}
	}()
	var id string
	h.eventually("the request is pending", func() error {
		select {
		case r := <-answered:
			h.Fatalf("the agent is answered at once: %v %s", r.err, r.text)
		default:
		}
		out, code := h.as("alice", nil, "durward", "approvals", "--json")
		for _, field := range strings.FieldsFunc(out, func(r rune) bool { return strings.ContainsRune(`{}[],:" `+"\n", r) }) {
			if len(field) == 32 && strings.Trim(field, "0123456789abcdef") == "" {
				id = field
				return nil
			}
		}
		return fmt.Errorf("%d: %s", code, out)
	})
	if out, code := h.as("mallory", nil, "durward", "approve", id, "--yes"); code == 0 {
		h.Fatalf("somebody else approves: %s", out)
	}
	out, code := h.as("alice", []string{"SSH_AUTH_SOCK=/home/alice/.ssh/agent"}, "durward", "approve", id, "--yes")
	if code != 0 {
		h.Fatalf("approve ended with %d: %s", code, out)
	}
	select {
	case r := <-answered:
		if r.err != nil || !strings.Contains(r.text, `"status":"ok"`) {
			h.Fatalf("the agent is answered: %v %s", r.err, r.text)
		}
	case <-time.After(patience):
		h.Fatal("the agent is not answered")
	}
}

// Unit and rule of a service that systemd runs, as `durward service install` would have a human review them.
const (
	demoUnit = `[Unit]
Description=Demo
[Service]
User=svc
ExecStart=/usr/local/lib/durward/durward-demo -port 18936 -model demo
`
	demoRule = `polkit.addRule(function (action, subject) {
  if (action.id === "org.freedesktop.systemd1.manage-units" && subject.user === "durward-executor" && action.lookup("unit") === "demo-unit.service") {
    return polkit.Result.YES;
  }
});
`
)

// unit starts a unit through the executor as it is shipped: no capability, systemd over D-Bus, polkit's leave for that unit.
func (h *installed) unit() {
	h.must(os.WriteFile("/etc/systemd/system/demo-unit.service", []byte(demoUnit), 0o644))
	h.must(os.WriteFile("/etc/systemd/system/other.service", []byte(demoUnit), 0o644))
	h.must(os.MkdirAll("/etc/polkit-1/rules.d", 0o755))
	h.must(os.WriteFile("/etc/polkit-1/rules.d/60-durward.rules", []byte(demoRule), 0o644))
	h.root("systemctl", "daemon-reload")
	h.must(os.WriteFile("/etc/durward/catalogue.yaml", []byte(catalog+`  - id: demo-unit
    name: Demo unit
    driver: systemd
    unit: demo-unit.service
    port: 18936
    health: {path: /health}
    model: demo-model
`), 0o644))
	h.startApproved("demo-unit")
	if out, code := h.as("root", nil, "systemctl", "is-active", "demo-unit"); code != 0 {
		h.Errorf("the unit is %s", out)
	}
	h.eventually("the unit's log is read", func() error {
		out, code := h.as("alice", nil, "durward", "logs", "demo-unit")
		if code != 0 || !strings.Contains(out, "18936") {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	if out, code := h.as("durward-executor", nil, "systemctl", "--no-ask-password", "start", "other.service"); code == 0 {
		h.Errorf("the executor's user starts a unit that no rule names: %s", out)
	}
}

// intruder is a program of the agent's user, which is neither a process's nor an operator's.
func (h *installed) intruder() {
	r := h.attack("mallory",
		"-read", "/etc/durward", "-read", "/var/lib/durward", "-read", "/run/durward", "-read", "/run/credentials", "-read", "/root/.durward",
		"-read", "/home/alice", "-read", "/etc/durward/keys/grant.key", "-read", "/etc/durward/pki/ca.key", "-read", "/etc/durward/tls/gateway/key.pem",
		"-read", "/run/credentials/durward-vault.service/grant.key", "-sign", "/home/alice/.ssh/id_ed25519")
	if r.Trials < 50 || len(r.Effects) > 0 {
		h.Errorf("%d trials, effects: %q", r.Trials, r.Effects)
	}
	h.Logf("%d trials, %d effects", r.Trials, len(r.Effects))
	// The control: the same program as root.
	if control := h.attack("root", "-read", "/etc/durward", "-read", "/run/credentials"); len(control.Effects) < 50 {
		h.Errorf("as root the attack achieves only %q", control.Effects)
	}
	// The gateway's port, which systemd holds, and none of any process itself, is open to him.
	if got := h.ports(); len(got) != 0 {
		h.Errorf("processes listen on the ports %q", got)
	}
	h.held("while the gateway runs")
}

// operatorsUser is an agent that runs as the operator's own user, who has not typed the passphrase: it may look, and neither
// approve nor change a rule.
func (h *installed) operatorsUser() {
	r := h.attack("alice",
		"-read", "/etc/durward/keys", "-read", "/etc/durward/pki", "-read", "/etc/durward/tls/gateway", "-read", "/etc/durward/tls/vault", "-read", "/etc/durward/tls/audit",
		"-read", "/etc/durward/tls/executor", "-read", "/run/credentials", "-read", "/var/lib/durward", "-read", "/root/.durward",
		"-sign", "/home/alice/.ssh/id_ed25519", "-run", `["durward","start","demo-chat","--yes"]`, "-run", `["durward","stop","demo-chat","--yes"]`,
		"-run", `["durward","operator","add","alice","/home/alice/.ssh/id_ed25519.pub"]`, "-run", `["durward","client","add","more"]`)
	effects := r.Effects[:0]
	for _, e := range r.Effects {
		// To be let in at the sockets is what an operator's user is for.
		if !strings.HasPrefix(e, "is let in at /run/durward/") {
			effects = append(effects, e)
		}
	}
	if r.Trials < 40 || len(effects) > 0 {
		h.Errorf("%d trials, effects: %q", r.Trials, effects)
	}
}

type report struct {
	Trials  int
	Effects []string
}

// attack runs the drill's program as a user, against everything that both kinds of attacker try.
func (h *installed) attack(name string, flags ...string) report {
	h.Helper()
	argv := []string{os.Getenv("INTRUDER")}
	for _, role := range roles {
		argv = append(argv, "-process", h.pid(role), "-socket", "/run/durward/"+role+"/health.sock")
		if role != "gateway" {
			argv = append(argv, "-socket", "/run/durward/"+role+"/grpc.sock")
		}
		argv = append(argv, "-write", "/etc/durward/"+role+".yaml", "-write", "/etc/systemd/system/durward-"+role+".service", "-write", "/usr/local/lib/durward/"+role,
			"-write", "/etc/durward/tls/"+role+"/key.pem", "-write", "/run/durward/"+role+"/grpc.sock")
	}
	for _, file := range []string{"catalogue.yaml", "clients.yaml", "trust/allowed_signers", "trust/ca.pem", "trust/grant_signers.yaml", "trust/log_keys", "trust/revoked.yaml", "installed.json"} {
		argv = append(argv, "-write", "/etc/durward/"+file)
	}
	out, code := h.as(name, nil, append(argv, flags...)...)
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		h.Fatalf("the attack did not run: %d, %v\n%s", code, err, out)
	}
	return r
}

// ports are the TCP ports on which users of Durward's processes listen.
func (h *installed) ports() []string {
	h.Helper()
	users := map[string]bool{}
	for _, role := range roles {
		u, err := user.Lookup("durward-" + role)
		h.must(err)
		users[u.Uid] = true
	}
	var out []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		h.must(err)
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st … uid
			fields := strings.Fields(line)
			if len(fields) > 7 && fields[3] == "0A" && users[fields[7]] {
				_, hex, _ := strings.Cut(fields[1], ":")
				n, err := strconv.ParseUint(hex, 16, 16)
				h.must(err)
				out = append(out, strconv.FormatUint(n, 10))
			}
		}
	}
	return out
}

// secondOperator goes the way that the installation tells where nobody could be asked for a passphrase.
func (h *installed) secondOperator() {
	vault := h.pid("vault")
	out, code := h.install("--apply", "--operator", "bob")
	if code != 0 || !strings.Contains(out, "bob cannot approve yet. As bob: durward join. Then: sudo durward operator add bob KEYFILE.pub") {
		h.Fatalf("ended with %d:\n%s", code, out)
	}
	if h.pid("vault") != vault {
		h.Error("for a new operator the processes were started again")
	}
	if out, code := h.as("mallory", nil, "durward", "join"); code != 4 || !strings.Contains(out, "you are not in the group durward") {
		h.Errorf("somebody else joins: %d, %s", code, out)
	}
	for _, line := range [][]string{
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "correct horse", "-f", "/home/bob/key"},
		{"durward", "join", "--signing-key", "/home/bob/key"},
		{"durward", "status"},
	} {
		if out, code := h.as("bob", nil, line...); code != 0 {
			h.Fatalf("%v ended with %d: %s", line, code, out)
		}
	}
	if out, code := h.as("bob", nil, "durward", "operator", "add", "bob", "/home/bob/key.pub"); code == 0 {
		h.Errorf("bob lets himself approve: %s", out)
	}
	h.root("durward", "operator", "add", "bob", "/home/bob/key.pub")
	if out := h.root("durward", "audit", "search", "--json"); !strings.Contains(out, "operator add bob") {
		h.Errorf("it is not in the log: %s", out)
	}
	out, _ = h.install("--apply")
	if strings.Contains(out, "make ") || strings.Contains(out, "change ") || strings.Contains(out, "run ") {
		h.Errorf("something is left to do:\n%s", out)
	}
}

// held makes sure that nobody can take the gateway's port.
func (h *installed) held(when string) {
	h.Helper()
	for _, host := range []string{"127.0.0.1", "0.0.0.0"} {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, port)); err == nil {
			_ = l.Close()
			h.Errorf("%s: anybody can listen on %s", when, host)
		}
	}
}

// gatewaysPort lets the gateway be killed and stopped: what connects meanwhile waits for the gateway and for nobody else.
func (h *installed) gatewaysPort() {
	before := h.pid("gateway")
	h.root("kill", "-KILL", before)
	h.held("when the gateway was killed")
	h.root("systemctl", "restart", "durward-gateway.service")
	h.held("when it was restarted")
	h.root("systemctl", "stop", "durward-gateway.service")
	h.held("when it is stopped")
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/mcp", nil)
	h.must(err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		h.Fatalf("a connection does not start it: %v", err)
	}
	h.must(response.Body.Close())
	if now := h.pid("gateway"); now == "0" || now == before {
		h.Errorf("the gateway's process is %s", now)
	}
}

// revoked takes bob out, for good.
func (h *installed) revoked() {
	if out, code := h.as("bob", nil, "durward", "operator", "revoke", "bob"); code != 4 {
		h.Errorf("who is not root revokes: %d, %s", code, out)
	}
	h.root("durward", "operator", "revoke", "bob")
	check := func(when string) {
		h.Helper()
		for _, file := range []string{"/etc/durward/trust/allowed_signers", "/etc/group"} {
			if b, err := os.ReadFile(file); err != nil || slices.ContainsFunc(strings.Split(string(b), "\n"), func(line string) bool {
				return strings.Contains(line, "bob") && (strings.HasPrefix(line, "durward") || strings.HasPrefix(line, "bob "))
			}) {
				h.Errorf("%s: bob is in %s: %v", when, file, err)
			}
		}
		if _, err := os.Lstat("/etc/durward/tls/operators/bob"); err == nil {
			h.Errorf("%s: bob has a certificate", when)
		}
		if out, code := h.as("bob", nil, "durward", "status"); code == 0 {
			h.Errorf("%s: bob looks: %s", when, out)
		}
	}
	check("revoked")
	if out, code := h.install("--apply"); code != 0 || strings.Contains(out, "make ") || strings.Contains(out, "run ") {
		h.Errorf("the next installation: %d\n%s", code, out)
	}
	h.root("durward", "renew", "--all")
	check("after another installation")
	if out := h.root("durward", "audit", "search", "--json"); !strings.Contains(out, "operator revoke bob") {
		h.Errorf("it is not in the log: %s", out)
	}
}

// planted lets a program of an operator-to-be choose the key before root installs: without root's word it approves nothing.
func (h *installed) planted() {
	for _, line := range [][]string{
		{"mkdir", "-p", "-m", "700", "/home/carol/.durward/keys"},
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "the agent's", "-f", "/home/carol/.durward/keys/operator_ed25519"},
	} {
		if out, code := h.as("carol", nil, line...); code != 0 {
			h.Fatalf("%v: %s", line, out)
		}
	}
	out, code := h.install("--apply", "--operator", "carol")
	if code != 0 || !strings.Contains(out, "carol would approve with the key SHA256:") || !strings.Contains(out, "carol cannot approve yet") {
		h.Errorf("ended with %d:\n%s", code, out)
	}
	if b, err := os.ReadFile("/etc/durward/trust/allowed_signers"); err != nil || strings.Contains(string(b), "carol") {
		h.Errorf("the key that was planted approves: %v\n%s", err, b)
	}
	h.root("durward", "operator", "revoke", "carol")
	if _, err := os.Lstat("/etc/durward/tls/operators/carol"); err == nil {
		h.Error("who never approved cannot be revoked")
	}
}

// killed kills the vault as hard as can be: its sockets stay behind, and it comes back by itself.
func (h *installed) killed() {
	before := h.pid("vault")
	h.root("kill", "-KILL", before)
	h.eventually("the vault is back", func() error {
		if now := h.pid("vault"); now == "0" || now == before {
			return fmt.Errorf("main process %s", now)
		}
		if out, code := h.as("alice", nil, "durward", "status"); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
}

// expiry is when the certificate that a process uses ends.
func (h *installed) expiry(role string) float64 {
	h.Helper()
	out, code := h.as("alice", nil, "curl", "-s", "--unix-socket", "/run/durward/"+role+"/health.sock", "http://localhost/metrics")
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, "durward_certificate_expiry_timestamp_seconds "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			h.must(err)
			return v
		}
	}
	h.Fatalf("metrics of %s: %d\n%s", role, code, out)
	return 0
}

// renewal makes the vault's certificate due and runs the unit.
func (h *installed) renewal() {
	ca, err := pki.Load("/etc/durward/pki")
	h.must(err)
	id, err := identity.Parse("spiffe://durward.local/vault/main")
	h.must(err)
	owner, err := pki.OwnerOf("/etc/durward/tls/vault/key.pem")
	h.must(err)
	certificate, key, err := ca.Issue(id, time.Hour)
	h.must(err)
	h.must(pki.WriteLeafFor("/etc/durward/tls/vault", certificate, key, owner))
	soon := float64(time.Now().Add(2 * time.Hour).Unix())
	h.eventually("the vault takes the certificate up that is due", func() error {
		if h.expiry("vault") > soon {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	auditBefore, alice := h.expiry("audit"), h.mtime("/etc/durward/tls/operators/alice/cert.pem")
	h.root("systemctl", "start", "durward-renew.service")
	h.eventually("the vault takes the new certificate up", func() error {
		if h.expiry("vault") < soon {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	if h.expiry("audit") != auditBefore || h.mtime("/etc/durward/tls/operators/alice/cert.pem") != alice {
		h.Error("certificates were renewed that were not due")
	}
	now, err := pki.OwnerOf("/etc/durward/tls/vault/key.pem")
	h.must(err)
	if now != owner || now.Mode != 0o640 {
		h.Errorf("the new key belongs to %+v, the old one to %+v", now, owner)
	}
	h.root("durward", "renew", "--all")
	if h.mtime("/etc/durward/tls/operators/alice/cert.pem") == alice {
		h.Error("renew --all left one out")
	}
	if out, code := h.as("alice", nil, "durward", "status"); code != 0 {
		h.Errorf("with new certificates status ended with %d:\n%s", code, out)
	}
	if out, code := h.as("root", []string{"SUDO_USER=alice", "SSH_AUTH_SOCK=/home/alice/.ssh/agent"}, "durward", "client", "add-tool", "night-shift", "--may", "list_services", "--unix-user", "svc", "--yes"); code != 0 {
		h.Errorf("add-tool ended with %d:\n%s", code, out)
	}
	if out, code := h.as("root", nil, "durward", "cert", "status"); code != 0 || !strings.Contains(out, "tools/night-shift") {
		h.Errorf("root is told of sound certificates: %d\n%s", code, out)
	}
	if out, code := h.as("alice", nil, "durward", "renew"); code == 0 {
		h.Errorf("an operator renews without root: %s", out)
	}
}

// backup runs the timer's unit: each process's state is copied by its own user, within what the unit leaves to root.
func (h *installed) backup() {
	recipient := h.root("durward", "backup", "--new-key", "/root/backup.key")
	h.must(os.WriteFile("/etc/durward/backup-recipients", []byte(recipient), 0o600))
	h.root("systemctl", "enable", "--now", "durward-backup.timer")
	h.root("systemctl", "start", "durward-backup.service")
	made, err := filepath.Glob("/var/lib/durward-backups/durward-*.backup")
	h.must(err)
	if len(made) != 1 {
		h.Fatalf("backups: %v", made)
	}
	if info, err := os.Stat(made[0]); err != nil || info.Mode().Perm() != 0o600 || info.Size() < 10_000 {
		h.Errorf("%s: %v, %v", made[0], info, err)
	}
	if left, _ := filepath.Glob("/var/lib/durward/*/backup.new"); len(left) > 0 {
		h.Errorf("copies are left in the clear: %v", left)
	}
}

// stop stops every process.
func (h *installed) stop() {
	h.Helper()
	h.root("systemctl", "stop", "durward.target")
	h.eventually("everything has stopped", func() error {
		for _, role := range roles {
			if pid := h.pid(role); pid != "0" {
				return fmt.Errorf("%s still runs as process %s", role, pid)
			}
		}
		return nil
	})
}

// restored has root put a backup back, whose parts are then their processes' own: halted until a human resumes, and working afterwards.
func (h *installed) restored() {
	h.root("systemctl", "start", "durward-backup.service")
	made, err := filepath.Glob("/var/lib/durward-backups/durward-*.backup")
	h.must(err)
	h.root("install", "-D", made[len(made)-1], "/srv/backups/durward-2026-01-31")
	for _, line := range h.guide("Restore") {
		if strings.HasPrefix(line, "durward status") {
			for _, role := range []string{"audit", "vault"} {
				if out := h.root("find", "/var/lib/durward/"+role, "!", "-user", "durward-"+role); out != "" {
					h.Errorf("not the %s's own: %s", role, out)
				}
			}
			h.eventually("it is halted", func() error {
				if out, _ := h.as("alice", nil, "durward", "status"); !strings.Contains(strings.ToLower(out), "halted") {
					return fmt.Errorf("%s", out)
				}
				return nil
			})
		}
		h.types(line)
	}
	_, _ = h.as("root", nil, "pkill", "-u", "svc") // it need not run
	h.startApproved("demo-chat")
	if out, code := h.as("alice", nil, "durward", "audit", "verify"); code != 0 {
		h.Errorf("verify ended with %d:\n%s", code, out)
	}
}

// reboot starts everything as a machine does whose certificates have ended while it was off: /run is empty.
func (h *installed) reboot() {
	h.stop()
	ca, err := pki.Load("/etc/durward/pki")
	h.must(err)
	for _, dir := range []string{"audit", "vault", "executor", "gateway", "operators/alice"} {
		dir = "/etc/durward/tls/" + dir
		leaf, err := pki.ReadLeaf(dir + "/cert.pem")
		h.must(err)
		owner, err := pki.OwnerOf(dir + "/key.pem")
		h.must(err)
		certificate, key, err := ca.Issue(leaf.ID, time.Millisecond)
		h.must(err)
		h.must(pki.WriteLeafFor(dir, certificate, key, owner))
	}
	h.must(os.RemoveAll("/run/durward"))
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(2 * time.Second))) // certificates count in seconds
	h.root("systemd-tmpfiles", "--create", "durward.conf")                        // as systemd-tmpfiles-setup.service does
	h.root("systemctl", "start", "durward.target")
	h.eventually("everything is well again", func() error {
		if out, code := h.as("alice", nil, "durward", "status"); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	if out, code := h.install("--apply"); code != 0 || strings.Contains(out, "run ") || strings.Contains(out, "make ") {
		h.Errorf("something is left to do: %d\n%s", code, out)
	}
	for _, name := range []string{"alice", "root"} {
		if out, code := h.as(name, nil, "durward", "doctor"); code != 0 {
			h.Errorf("doctor of %s ended with %d:\n%s", name, code, out)
		}
	}
	if out, code := h.as("alice", nil, "durward", "install", "--dry-run"); code != 4 {
		h.Errorf("a dry run of somebody who sees little: %d, %s", code, out)
	}
}

func (h *installed) mtime(path string) int64 {
	h.Helper()
	info, err := os.Stat(path)
	h.must(err)
	return info.ModTime().UnixNano()
}

// egress adds the process that reaches other hosts to a restored host, as its user and by its unit, and takes it away again.
func (h *installed) egress() {
	out, code := h.install("--apply", "--egress")
	if code != 0 || !strings.Contains(out, "executor, egress and gateway are well") {
		h.Fatalf("ended with %d:\n%s", code, out)
	}
	if verified := h.root("systemd-analyze", "verify", "/etc/systemd/system/durward-egress.service"); strings.TrimSpace(verified) != "" {
		h.Errorf("systemd-analyze verify: %s", verified)
	}
	if out := h.root("systemd-analyze", "security", "--no-pager", "durward-egress.service"); !strings.Contains(out, " SAFE ") && !strings.Contains(out, " OK ") {
		h.Errorf("exposure: %s", out)
	}
	if out := h.root("systemctl", "show", "-P", "IPAddressDeny", "durward-egress"); !strings.Contains(out, "169.254.0.0/16") || !strings.Contains(out, "fd00:ec2::254/128") {
		h.Errorf("the unit denies %s", out)
	}
	status, err := os.ReadFile("/proc/" + h.pid("egress") + "/status")
	h.must(err)
	u, err := user.Lookup("durward-egress")
	h.must(err)
	for _, line := range []string{fmt.Sprintf("Uid:\t%s\t%s\t%s\t%s\n", u.Uid, u.Uid, u.Uid, u.Uid), "NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n", "Seccomp:\t2\n"} {
		if !strings.Contains(string(status), line) {
			h.Errorf("egress has not %q:\n%s", line, status)
		}
	}
	// Operators' files name no egress; root's does.
	for url, want := range map[string]string{"https://docs.example/": "asks", "http://169.254.169.254/": "refused", "http://127.0.0.1:" + port + "/": "refused"} {
		if out, code := h.as("alice", nil, "durward", "egress", "test", url); code != 0 || !strings.Contains(out, want) {
			h.Errorf("egress test %s: %d, %s", url, code, out)
		}
	}
	if out, code := h.as("alice", nil, "durward", "status"); code != 0 || !strings.Contains(out, "egress REFUSES EVERY CALL: it is at epoch 1,") {
		h.Errorf("durward status: %d, %s", code, out)
	}
	if out, code := h.as("alice", []string{"SSH_AUTH_SOCK=/home/alice/.ssh/agent"}, "durward", "resume", "--yes"); code != 0 || !strings.Contains(out, "egress") {
		h.Fatalf("resume ended with %d:\n%s", code, out)
	}
	if out, code := h.as("mallory", nil, "durward", "egress", "test", "https://docs.example/"); code == 0 {
		h.Errorf("somebody else asks egress: %s", out)
	}
	h.servers()
	out, code = h.install("--apply", "--egress=false")
	if code != 0 || !strings.Contains(out, "executor and gateway are well") {
		h.Fatalf("ended with %d:\n%s", code, out)
	}
	if out, code := h.as("root", nil, "pgrep", "-u", "durward-egress"); code == 0 {
		h.Errorf("it still runs: %s", out)
	}
}

// settings takes the process driver away and puts health on ports.
func (h *installed) settings() {
	h.root("groupadd", "--force", "docker")
	out, code := h.install("--apply", "--process-driver=false", "--health-on-loopback", "--docker")
	if code != 0 || !strings.Contains(out, "remove  /etc/systemd/system/durward-executor.service.d/executor-process.conf") {
		h.Fatalf("ended with %d:\n%s", code, out)
	}
	if got := h.ports(); len(got) != 4 {
		h.Errorf("processes listen on the ports %q", got)
	}
	status, err := os.ReadFile("/proc/" + h.pid("executor") + "/status")
	h.must(err)
	docker, err := user.LookupGroup("docker")
	h.must(err)
	_, groups, _ := strings.Cut(string(status), "Groups:")
	groups, _, _ = strings.Cut(groups, "\n")
	if !slices.Contains(strings.Fields(groups), docker.Gid) {
		h.Errorf("the executor is not in the group docker, %s: %s", docker.Gid, groups)
	}
	for _, line := range []string{"CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "Seccomp:\t2\n"} {
		if !strings.Contains(string(status), line) {
			h.Errorf("without the process driver the executor has not %q", line)
		}
	}
}

// agent is an MCP client that knows no more than it must.
type agent struct{ token, session string }

func (a *agent) post(ctx context.Context, body any) (string, http.Header, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return "", nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:"+port+"/mcp", bytes.NewReader(b))
	if err != nil {
		return "", nil, err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	if a.session != "" {
		request.Header.Set("Mcp-Session-Id", a.session)
		request.Header.Set("MCP-Protocol-Version", "2025-11-25")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", nil, err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return "", nil, fmt.Errorf("HTTP %d", response.StatusCode)
	}
	// One message, or a stream of which the last message is the answer.
	last := ""
	lines := bufio.NewScanner(io.LimitReader(response.Body, 1<<20))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text := strings.TrimPrefix(lines.Text(), "data: "); strings.HasPrefix(text, "{") {
			last = text
		}
	}
	return last, response.Header, lines.Err()
}

func (a *agent) open(ctx context.Context) error {
	_, header, err := a.post(ctx, map[string]any{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": map[string]any{
		"protocolVersion": "2025-11-25", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "robot", "version": "1"}}})
	if err != nil {
		return err
	}
	a.session = header.Get("Mcp-Session-Id")
	_, _, err = a.post(ctx, map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
	return err
}

func (a *agent) call(ctx context.Context, tool string, arguments map[string]any) (string, error) {
	text, _, err := a.post(ctx, map[string]any{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": arguments}})
	return text, err
}
