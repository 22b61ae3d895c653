//go:build real

package install_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// outside is this host's address on the link to the other network namespace.
const outside = "192.0.2.1"

// TestRealPackage installs Debian's package on a host with systemd, upgrades it from an earlier version with that one's state, takes an
// installation without the package over, breaks it, removes it and purges it; and tries its ports from another network namespace.
func TestRealPackage(t *testing.T) {
	if os.Getenv("SANDBOX") == "" || os.Getenv("PACKAGE") == "" {
		t.Fatal("run scripts/real-packages.sh, which makes packages and sandbox")
	}
	h := &installed{t, os.Getenv("PROGRAMS")}
	for _, name := range []string{"alice", "mallory", "svc"} {
		h.root("useradd", "--create-home", "--shell", "/bin/bash", name)
	}
	h.key()
	h.must(os.RemoveAll("/root/.durward")) // the sandbox's own view of it
	for _, part := range []struct {
		name string
		do   func(*installed)
	}{
		{"without the package", (*installed).without},
		{"an earlier version of the package takes over", (*installed).takeover},
		{"a second installation", (*installed).second},
		{"an upgrade that has no room", (*installed).full},
		{"an upgrade with state", (*installed).upgrade},
		{"from another network namespace", (*installed).exposed},
		{"doctor", (*installed).doctored},
		{"half a package", (*installed).half},
		{"removed and installed again", (*installed).removed},
		{"purged", (*installed).purged},
		{"first", (*installed).firstPackage},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.do(&installed{t, h.programs}) }) {
			out, _ := exec.Command("journalctl", "--no-pager", "-o", "cat", "-n", "60", "-u", "durward-*").CombinedOutput()
			t.Fatalf("the journal's last lines:\n%s", out)
		}
	}
}

func (h *installed) dpkg(args ...string) (string, int) {
	h.Helper()
	// As what systemd starts runs it, without a HOME.
	return h.as("root", []string{"DEBIAN_FRONTEND=noninteractive"}, append([]string{"env", "--unset=HOME", "dpkg", "--force-unsafe-io"}, args...)...)
}

func (h *installed) unpack(env string) string {
	h.Helper()
	out, code := h.dpkg("--install", os.Getenv(env))
	if code != 0 {
		h.Fatalf("dpkg ended with %d:\n%s", code, out)
	}
	return out
}

// packaged is the installation's command, as it lies in the package.
func (h *installed) packaged(flags ...string) (string, int) {
	h.Helper()
	return h.as("root", []string{"SUDO_USER=alice"}, append([]string{"/usr/bin/durward", "install", "--apply"}, flags...)...)
}

// without is an installation as it is without the package, with something in its history.
func (h *installed) without() {
	if out, code := h.install(append([]string{"--apply"}, first...)...); code != 0 {
		h.Fatalf("install ended with %d:\n%s", code, out)
	}
	h.approvedStart()
}

// versions are those of the processes as they say themselves.
func (h *installed) versions() string {
	h.Helper()
	out, code := h.as("alice", nil, "durward", "status", "--json")
	if code != 0 {
		h.Fatalf("status ended with %d:\n%s", code, out)
	}
	return out
}

// history holds the log whole, with the approval that was given before.
func (h *installed) history() {
	h.Helper()
	if out, code := h.as("alice", nil, "durward", "audit", "verify"); code != 0 {
		h.Errorf("verify ended with %d:\n%s", code, out)
	}
	if out, code := h.as("alice", nil, "durward", "audit", "search", "--tool", "start_service", "--json"); code != 0 || !strings.Contains(out, "approved") {
		h.Errorf("the approval of before is not found: %d\n%s", code, out)
	}
}

func (h *installed) takeover() {
	h.unpack("EARLIER")
	for _, path := range []string{"/usr/local/lib/durward/vault", "/usr/local/bin/durward", "/etc/systemd/system/durward-vault.service", "/etc/sysusers.d/durward.conf",
		"/usr/local/share/man/man1/durward-approve.1"} {
		if _, err := os.Lstat(path); err == nil {
			h.Errorf("%s is left of the installation without the package", path)
		}
	}
	for _, role := range roles {
		if exe, err := os.Readlink("/proc/" + h.pid(role) + "/exe"); err != nil || exe != "/usr/lib/durward/"+role {
			h.Errorf("%s runs %s, %v", role, exe, err)
		}
	}
	if got := h.versions(); !strings.Contains(got, os.Getenv("EARLIER_VERSION")) {
		h.Errorf("the earlier version does not run:\n%s", got)
	}
	h.history()
	for _, file := range []string{"bash-completion/completions/durward", "zsh/vendor-completions/_durward", "fish/vendor_completions.d/durward.fish", "doc/durward/sbom.spdx.json"} {
		if out, code := h.as("alice", nil, "grep", "-c", "durward", "/usr/share/"+file); code != 0 {
			h.Errorf("%s: %s", file, out)
		}
	}
	if out, code := h.as("alice", nil, "zgrep", "-c", "durward", "/usr/share/man/man1/durward-approve.1.gz"); code != 0 {
		h.Errorf("no manual page: %s", out)
	}
	h.must(os.WriteFile("/etc/durward/catalogue.yaml", []byte(strings.ReplaceAll(catalog, "/usr/local/lib", "/usr/lib")), 0o644))
}

func (h *installed) second() {
	before := h.pid("vault")
	if out, code := h.install("--apply"); code == 0 || !strings.Contains(out, "sudo apt remove durward") {
		h.Errorf("a second installation: %d\n%s", code, out)
	}
	if h.pid("vault") != before {
		h.Error("it started something")
	}
}

// full has the disk of the programs fill up while the new ones are unpacked: those of before run on, and the same command goes through
// where there is room.
func (h *installed) full() {
	const folder, kept = "/usr/lib/durward", "/run/kept"
	var used int
	_, err := fmt.Sscan(h.root("du", "-sk", folder), &used)
	h.must(err)
	h.root("cp", "-a", folder, kept)
	h.root("mount", "-t", "tmpfs", "-o", fmt.Sprintf("mode=755,size=%dk", used*5/4), "tmpfs", folder)
	h.root("cp", "-a", kept+"/.", folder)
	if out, code := h.dpkg("--install", os.Getenv("PACKAGE")); code == 0 || !strings.Contains(out, "No space left on device") {
		h.Errorf("dpkg ended with %d:\n%s", code, out)
	}
	h.eventually("those of before run", func() error {
		if got := h.versions(); !strings.Contains(got, os.Getenv("EARLIER_VERSION")) {
			return errors.New(got)
		}
		return nil
	})
	h.history()
	if out, code := h.as("root", nil, "diff", "-r", kept, folder); code != 0 {
		h.Errorf("the programs have changed: %s", out)
	}
	h.root("umount", folder)
	h.root("rm", "-r", kept)
}

func (h *installed) upgrade() {
	before := map[string]string{}
	for _, role := range roles {
		before[role] = h.pid(role)
	}
	h.root("install", "-d", "/srv/backups")
	recipient := h.root("durward", "backup", "--new-key", "/root/backup.key")
	h.must(os.WriteFile("/etc/durward/backup-recipients", []byte(recipient), 0o644))
	h.root("cp", os.Getenv("PACKAGE"), "/root/durward_VERSION_ARCH.deb")
	for _, line := range h.guide("Upgrade") {
		h.types(line)
	}
	for _, role := range roles {
		if h.pid(role) == before[role] {
			h.Errorf("%s of before runs on", role)
		}
	}
	if got := h.versions(); strings.Contains(got, os.Getenv("EARLIER_VERSION")) {
		h.Errorf("of the earlier version runs still:\n%s", got)
	}
	h.history()
	// Beside the one that runs, which no change of the catalogue takes away.
	_, entry, _ := strings.Cut(catalog, "services:\n")
	h.must(os.WriteFile("/etc/durward/catalogue.yaml", []byte(strings.ReplaceAll(catalog, "/usr/local/lib", "/usr/lib")+
		strings.NewReplacer("/usr/local/lib", "/usr/lib", "demo-chat", "demo-again", "18935", "18937").Replace(entry)), 0o644))
	h.startApproved("demo-again")
	if out, code := h.packaged("--json"); code != 0 || strings.Contains(out, "systemctl restart") {
		h.Errorf("again: %d\n%s", code, out)
	}
	if out, code := h.as("alice", nil, "durward", "version", "--verify", "--signers", os.Getenv("SIGNERS")); code != 0 || !strings.Contains(out, "signed by maker") {
		h.Errorf("verify ended with %d: %s", code, out)
	}
}

// reached reports whether a connection is made from the other namespace. What is dropped on the way is never answered.
func (h *installed) reached(port string) bool {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 3*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "ip", "netns", "exec", "elsewhere", "bash", "-c", "exec 3<>/dev/tcp/"+outside+"/"+port).Run() == nil
}

// exposed has the gateway's port, and one of health, be opened to everybody by mistake: the unit's IPAddressDeny keeps the one closed, the
// firewall both. The controls take each away.
func (h *installed) exposed() {
	for _, line := range []string{
		"ip link add near type veth peer name far", "ip address add " + outside + "/24 dev near", "ip link set near up", "ip netns add elsewhere",
		"ip link set far netns elsewhere", "ip -n elsewhere address add 192.0.2.2/24 dev far", "ip -n elsewhere link set far up",
	} {
		h.root(strings.Fields(line)...)
	}
	if out, code := h.packaged("--firewall"); code != 0 {
		h.Fatalf("install --firewall ended with %d:\n%s", code, out)
	}
	if h.reached(port) {
		h.Error("the gateway is reached as it is installed")
	}
	const dropIn = "/etc/systemd/system/durward-gateway.socket.d/z-mistake.conf"
	open := func(more string) {
		h.Helper()
		h.must(os.MkdirAll(filepath.Dir(dropIn), 0o755))
		h.must(os.WriteFile(dropIn, []byte("[Socket]\nListenStream=\nListenStream=0.0.0.0:"+port+"\n"+more), 0o644))
		h.root("systemctl", "daemon-reload")
		h.root("systemctl", "stop", "durward-gateway.service", "durward-gateway.socket")
		h.root("systemctl", "start", "durward-gateway.socket")
	}
	l, err := net.Listen("tcp", outside+":18940") // of health, if it were on ports
	h.must(err)
	defer l.Close()
	open("IPAddressDeny=\nIPAddressAllow=\n")
	for _, p := range []string{port, "18940"} {
		if h.reached(p) {
			h.Errorf("with the firewall %s is reached:\n%s", p, h.root("nft", "list", "ruleset"))
		}
	}
	if near, err := net.DialTimeout("tcp", "127.0.0.1:"+port, patience); err != nil {
		h.Errorf("the host itself is shut out: %v", err)
	} else {
		h.must(near.Close())
	}
	h.root("nft", "add table inet mine")
	h.root("systemctl", "stop", "durward-firewall")
	if tables := h.root("nft", "list", "tables"); strings.Contains(tables, "inet durward") || !strings.Contains(tables, "inet mine") {
		h.Errorf("tables afterwards: %s", tables)
	}
	for _, p := range []string{port, "18940"} {
		if !h.reached(p) {
			h.Errorf("the control: without firewall and IPAddressDeny %s is not reached", p)
		}
	}
	open("")
	if h.reached(port) {
		h.Error("IPAddressDeny of the gateway's socket lets others in")
	}
	h.must(os.Remove(dropIn))
	h.root("systemctl", "daemon-reload")
	h.root("systemctl", "stop", "durward-gateway.service", "durward-gateway.socket")
	h.root("systemctl", "reset-failed")
	if out, code := h.packaged("--firewall=false"); code != 0 {
		h.Fatalf("install --firewall=false ended with %d:\n%s", code, out)
	}
}

// doctored makes mistakes, each of which doctor names with the command that mends it, and runs that command.
func (h *installed) doctored() {
	doctor := func() string {
		h.Helper()
		out, _ := h.as("alice", nil, "durward", "doctor")
		return out
	}
	if out := doctor(); !strings.Contains(out, "✓ package") || !strings.Contains(out, "✓ units") {
		h.Fatalf("as it is installed:\n%s", out)
	}
	unit := "/etc/systemd/system/durward-vault.service"
	for _, c := range []struct{ name, spoil, text, mend string }{
		{"stopped", "systemctl stop durward-executor", "durward-executor.service does not run", "sudo systemctl start durward-executor.service"},
		{"disabled", "systemctl disable durward-vault", "durward-vault.service does not start with the host", "sudo systemctl enable durward-vault.service"},
		{"hidden", "cp /usr/lib/systemd/system/durward-vault.service " + unit + " && systemctl daemon-reload", unit + " stands before the package's",
			"sudo rm " + unit + " && sudo systemctl daemon-reload"},
		{"not read", "touch -d '+1 minute' /usr/lib/systemd/system/durward-vault.service && mkdir -p /etc/systemd/system/durward-vault.service.d && echo '[Unit]' >/etc/systemd/system/durward-vault.service.d/x.conf", "systemd has not read", "sudo systemctl daemon-reload"},
		{"open", "mkdir -p /etc/systemd/system/durward-executor.service.d && printf '[Service]\\nIPAddressDeny=\\n' >/etc/systemd/system/durward-executor.service.d/open.conf && systemctl daemon-reload",
			"durward-executor.service has no IPAddressDeny", "systemctl cat durward-executor.service"},
		{"another program", "printf x >>/usr/lib/durward/durward-notify", "/usr/lib/durward/durward-notify", "sudo dpkg --install durward_VERSION_ARCH.deb"},
	} {
		h.root("bash", "-ec", c.spoil)
		out := doctor()
		if !strings.Contains(out, c.text) || !strings.Contains(out, c.mend) {
			h.Errorf("%s: doctor says nothing of %q and %q:\n%s", c.name, c.text, c.mend, out)
		}
		switch c.name {
		case "open":
			h.must(os.Remove("/etc/systemd/system/durward-executor.service.d/open.conf"))
			h.root("systemctl", "daemon-reload")
		case "another program":
			if out, code := h.as("alice", nil, "durward", "version", "--verify", "--signers", os.Getenv("SIGNERS")); code != 1 || !strings.Contains(out, "durward-notify") {
				h.Errorf("version --verify says nothing of it: %d, %s", code, out)
			}
			h.unpack("PACKAGE")
		default:
			h.root("bash", "-ec", strings.ReplaceAll(c.mend, "sudo ", ""))
		}
		h.eventually(c.name+" is mended", func() error {
			if out := doctor(); !strings.Contains(out, "✓ package") || !strings.Contains(out, "✓ units") {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}
}

// half is a package that was cut short on its way, and one that was unpacked and not configured, as after a crash.
func (h *installed) half() {
	data, err := os.ReadFile(os.Getenv("PACKAGE"))
	h.must(err)
	cut := filepath.Join(h.TempDir(), "cut.deb")
	h.must(os.WriteFile(cut, data[:len(data)/2], 0o644))
	if out, code := h.dpkg("--install", cut); code == 0 {
		h.Errorf("dpkg takes half a package: %s", out)
	}
	if out, code := h.as("alice", nil, "durward", "version", "--verify", "--signers", os.Getenv("SIGNERS")); code != 0 {
		h.Errorf("what was installed has changed: %s", out)
	}
	h.history()
	for _, step := range [][]string{{"--unpack", os.Getenv("PACKAGE")}, {"--configure", "durward"}} {
		if out, code := h.dpkg(step...); code != 0 {
			h.Fatalf("%s ended with %d:\n%s", step[0], code, out)
		}
	}
	h.eventually("what was unpacked runs", func() error {
		if out, code := h.as("alice", nil, "durward", "version", "--verify", "--signers", os.Getenv("SIGNERS")); code != 0 {
			return errors.New(out)
		}
		return nil
	})
	h.history()
}

// removed has a backup be in progress, and has what is left of the package purged from under an installation without it.
func (h *installed) removed() {
	const slow = "/etc/systemd/system/durward-backup.service.d"
	h.must(os.MkdirAll(slow, 0o755))
	h.must(os.WriteFile(slow+"/slow.conf", []byte("[Service]\nExecStart=\nExecStart=/bin/sleep infinity\n"), 0o644))
	h.root("systemctl", "daemon-reload")
	h.root("systemctl", "start", "--no-block", "durward-backup.service")
	backup := func() string {
		return h.root("systemctl", "show", "--value", "--property=ActiveState", "durward-backup.service")
	}
	h.eventually("a backup begins", func() error {
		if state := backup(); state != "activating\n" {
			return errors.New(state)
		}
		return nil
	})
	if out, code := h.dpkg("--remove", "durward"); code != 0 {
		h.Fatalf("remove ended with %d:\n%s", code, out)
	}
	for _, role := range roles {
		if out, code := h.as("root", nil, "pgrep", "-u", "durward-"+role); code == 0 && role != "executor" {
			h.Errorf("%s runs: %s", role, out)
		}
	}
	if state := backup(); state != "failed\n" { // it was stopped before it was done
		h.Errorf("the backup is %s", state)
	}
	h.must(os.RemoveAll(slow))
	if out, code := h.install("--apply"); code != 0 {
		h.Fatalf("install ended with %d:\n%s", code, out)
	}
	if out, code := h.dpkg("--purge", "durward"); code != 0 || !strings.Contains(out, "without the package: /etc/durward and /var/lib/durward stay") {
		h.Errorf("purge ended with %d:\n%s", code, out)
	}
	h.history()
	h.unpack("PACKAGE")
	h.history()
}

func (h *installed) purged() {
	rule := "/etc/polkit-1/rules.d/60-durward.rules"
	for _, path := range []string{rule, "/etc/systemd/system/durward.target.d/x.conf", "/etc/systemd/system/durward-renew.timer.d/x.conf"} {
		h.must(os.MkdirAll(filepath.Dir(path), 0o755))
		h.must(os.WriteFile(path, nil, 0o644))
	}
	if out, code := h.dpkg("--purge", "durward"); code != 0 {
		h.Fatalf("purge ended with %d:\n%s", code, out)
	}
	for _, path := range []string{"/etc/durward", "/var/lib/durward", "/run/durward", "/usr/lib/durward", "/usr/bin/durward", "/usr/lib/systemd/system/durward.target", "/usr/share/doc/durward", rule} {
		if _, err := os.Lstat(path); err == nil {
			h.Errorf("%s is left", path)
		}
	}
	for _, ours := range []string{"/etc/systemd/system/durward*", "/etc/systemd/system/*/durward*"} {
		if left, err := filepath.Glob(ours); err != nil || len(left) > 0 {
			h.Errorf("left: %q, %v", left, err)
		}
	}
}

// firstPackage is the way of a host on which nothing was, to the first approved change, as install.md says it.
func (h *installed) firstPackage() {
	h.must(os.RemoveAll("/home/alice/.durward"))
	h.must(os.RemoveAll("/root/.durward"))
	began := time.Now()
	if out := h.unpack("PACKAGE"); !strings.Contains(out, "sudo durward install --apply --operator USER") {
		h.Errorf("nothing says how to go on:\n%s", out)
	}
	if out, code := h.as("root", nil, "systemctl", "is-active", "durward.target"); code == 0 {
		h.Errorf("it runs before anybody asked: %s", out)
	}
	unpacked := time.Since(began)
	if out, code := h.packaged(first...); code != 0 {
		h.Fatalf("install ended with %d:\n%s", code, out)
	}
	laid := time.Since(began)
	h.must(os.WriteFile("/etc/durward/catalogue.yaml", []byte(strings.NewReplacer("/usr/local/lib", "/usr/lib", "18935", "18938").Replace(catalog)), 0o644))
	if out, code := h.as("root", []string{"SUDO_USER=alice", "SSH_AUTH_SOCK=/home/alice/.ssh/agent"}, "durward", "client", "add", "robot", "--bearer", "--channel", "api", "--yes"); code != 0 {
		h.Fatalf("client add ended with %d:\n%s", code, out)
	}
	h.startApproved("demo-chat")
	h.Logf("seconds: package %.1f, laid out %.1f, first approved change %.1f", unpacked.Seconds(), laid.Seconds(), time.Since(began).Seconds())
}
