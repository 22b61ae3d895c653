package install_test

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/trust"
)

// image is the root of another host, with the programs of systemd imitated.
type image struct {
	*testing.T
	root, programs string
	ran            []string
	public         []byte
	// keyFile is where the operator says that the key lies; empty: where it is made.
	keyFile            string
	joinErr, acceptErr error
	now                time.Time
}

func newImage(t *testing.T) *image {
	t.Helper()
	m := &image{T: t, root: filepath.Join(t.TempDir(), "root"), programs: t.TempDir(), now: time.Now()}
	_, public, err := signingkey.Generate("alice", nil)
	m.must(err)
	m.public = public
	m.write("etc/passwd", fmt.Sprintf("root:x:0:0::/root:/bin/sh\nalice:x:%d:%d::/home/alice:/bin/sh\n", os.Getuid(), os.Getgid()))
	m.write("etc/group", "root:x:0:\ndocker:x:64001:\n")
	for _, name := range append(installdir.Roles(), "durward", "durward-inspect", "durward-list", "durward-notify") {
		m.must(os.WriteFile(filepath.Join(m.programs, name), []byte("program "+name), 0o755))
	}
	return m
}

func (m *image) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *image) path(name string) string { return filepath.Join(m.root, name) }

func (m *image) write(name, text string) {
	m.Helper()
	m.must(os.MkdirAll(filepath.Dir(m.path(name)), 0o755))
	m.must(os.WriteFile(m.path(name), []byte(text), 0o644))
}

func (m *image) read(name string) string {
	m.Helper()
	b, err := os.ReadFile(m.path(name))
	m.must(err)
	return string(b)
}

// command imitates systemd-sysusers, usermod, systemd-tmpfiles and systemctl as far as later steps look.
func (m *image) command(_ context.Context, program string, args ...string) error {
	m.ran = append(m.ran, program)
	switch program {
	case "systemd-sysusers":
		passwd, group := m.read("etc/passwd"), m.read("etc/group")
		var members []string
		roles := installdir.Roles()
		for _, added := range []string{"relay", "egress", "launcher"} {
			if slices.Contains(args, "durward-"+added+".conf") {
				roles = append([]string{added}, roles...)
			}
		}
		if slices.Contains(args, "durward-witness.conf") {
			passwd += fmt.Sprintf("durward-witness:x:%d:%d::/:/sbin/nologin\n", os.Getuid(), os.Getgid())
			group += fmt.Sprintf("durward-witness:x:%d:\n", os.Getgid())
		}
		for _, role := range roles {
			passwd += fmt.Sprintf("durward-%s:x:%d:%d::/:/sbin/nologin\n", role, os.Getuid(), os.Getgid())
			group += fmt.Sprintf("durward-%s:x:%d:\n", role, os.Getgid())
			members = append(members, "durward-"+role)
		}
		group += fmt.Sprintf("durward:x:%d:%s\ndurward-operators:x:%d:\ndurward-tools:x:%d:\n", os.Getgid(), strings.Join(members, ","), os.Getgid(), os.Getgid())
		m.write("etc/passwd", passwd)
		m.write("etc/group", group)
	case "usermod":
		group := strings.ReplaceAll(m.read("etc/group"), "durward-gateway\n", "durward-gateway,alice\n")
		m.write("etc/group", strings.Replace(group, fmt.Sprintf("durward-operators:x:%d:\n", os.Getgid()), fmt.Sprintf("durward-operators:x:%d:alice\n", os.Getgid()), 1))
	case "gpasswd":
		m.write("etc/group", strings.ReplaceAll(strings.ReplaceAll(m.read("etc/group"), ",alice\n", "\n"), ":alice\n", ":\n"))
	case "systemd-tmpfiles":
		roles := installdir.Roles()
		if slices.Contains(args, "durward-egress.conf") {
			roles = append(roles, "egress")
		}
		for _, role := range roles {
			m.must(os.MkdirAll(m.path("run/durward/"+role), 0o710))
			m.must(os.MkdirAll(m.path("var/lib/durward/"+role), 0o700))
		}
	case "systemctl":
		for _, unit := range args {
			by := map[bool]string{true: "durward.target.wants", false: "timers.target.wants"}[strings.HasSuffix(unit, ".service") || strings.HasSuffix(unit, ".socket")]
			if slices.Contains([]string{"durward.target", "durward-auditwitness.service", "durward-launcher.service", "durward-firewall.service"}, unit) {
				by = "multi-user.target.wants"
			}
			m.write("etc/systemd/system/"+by+"/"+unit, "")
		}
	default:
		m.Errorf("runs %s", program)
	}
	return nil
}

func (m *image) options(settings install.Settings) install.Options {
	settings.Port = install.DefaultPort
	return install.Options{
		Settings: settings, Root: m.root, Programs: m.programs, Operators: []string{"alice"}, Command: m.command, Now: func() time.Time { return m.now },
		Accept: func(context.Context, install.Member, install.Key, string) error { return m.acceptErr },
		Join: func(_ context.Context, who install.Member) (install.Key, error) {
			m.write(filepath.Join(who.Home, ".durward/config/operator.yaml"), "operator: "+who.Operator+"\ntrust_dir: /etc/durward/trust\n")
			if who.Without != (who.Name == "root") || len(who.Groups) != 2 || who.Root != m.root {
				m.Errorf("joins %+v", who)
			}
			if who.Without {
				return install.Key{}, nil
			}
			file := m.keyFile
			if file == "" {
				file = who.Home + "/.durward/keys/operator_ed25519"
			}
			return install.Key{Public: m.public, File: file}, m.joinErr
		},
	}
}

func (m *image) plan(settings install.Settings) *install.Plan {
	m.Helper()
	p, err := install.New(m.options(settings))
	m.must(err)
	return p
}

// apply applies a plan and returns its steps that had an effect.
func (m *image) apply(settings install.Settings) []install.Step {
	m.Helper()
	var done []install.Step
	m.must(m.plan(settings).Apply(m.Context(), func(s install.Step) {
		if s.Effect() {
			done = append(done, s)
		}
	}))
	return done
}

// tree is every path with its mode and content.
func (m *image) tree() map[string]string {
	m.Helper()
	out := map[string]string{}
	m.must(filepath.WalkDir(m.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := ""
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		out[path] = info.Mode().String() + text
		return nil
	}))
	return out
}

func TestPlanRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*image, *install.Options){
		"use 1024 to":                    func(_ *image, o *install.Options) { o.Port = 80 },
		"must be an absolute path":       func(_ *image, o *install.Options) { o.Root = "root" },
		"no such file":                   func(_ *image, o *install.Options) { o.Root = "/nonexistent" },
		"others may write to":            func(m *image, _ *install.Options) { m.must(os.Chmod(m.root, 0o777)) },
		"root cannot be an operator":     func(_ *image, o *install.Options) { o.Operators = []string{"root"} },
		"bob: there is no such":          func(_ *image, o *install.Options) { o.Operators = []string{"bob"} },
		"Docker Engine is not installed": func(m *image, o *install.Options) { o.Docker = true; m.write("etc/group", "root:x:0:\n") },
		"a program is missing":           func(m *image, _ *install.Options) { m.must(os.Remove(filepath.Join(m.programs, "vault"))) },
		"cannot be read: move it away":   func(m *image, _ *install.Options) { m.write("etc/durward/installed.json", "[]") },
		"restore it from a backup":       func(m *image, _ *install.Options) { m.write("etc/durward/keys/log.key", "x") },
		"log.key is gone": func(m *image, _ *install.Options) {
			m.write("etc/durward/trust/log_keys", "x")
			m.write("var/lib/durward/audit/audit.db", "x")
		},
		"ca.key is not root's alone":    func(m *image, _ *install.Options) { m.write("etc/durward/pki/ca.key", "x") },
		"is a link, which may lead out": func(m *image, _ *install.Options) { m.must(os.Symlink(m.programs, m.path("etc/durward"))) },
		"installed.json is a link": func(m *image, _ *install.Options) {
			m.write("etc/durward/x", "{}")
			m.must(os.Symlink("x", m.path("etc/durward/installed.json")))
		},
		"ca.pem is a link": func(m *image, _ *install.Options) {
			m.write("etc/durward/trust/x", "")
			m.must(os.Symlink("/etc/passwd", m.path("etc/durward/trust/ca.pem")))
		},
		"everybody may write to": func(m *image, _ *install.Options) { m.must(os.Chmod(m.path("etc"), 0o777)) },
		"durward-executor.service.d is a link": func(m *image, _ *install.Options) {
			m.write("etc/systemd/system/x", "")
			m.must(os.Symlink(m.programs, m.path("etc/systemd/system/durward-executor.service.d")))
		},
		"folder of the programs": func(m *image, _ *install.Options) { m.must(os.Chmod(m.programs, 0o777)) },
		"alice and ali.ce would both be the operator alice": func(m *image, o *install.Options) {
			m.write("etc/passwd", m.read("etc/passwd")+"ali.ce:x:7:7::/home/x:/bin/sh\n")
			o.Operators = []string{"alice", "ali.ce"}
		},
		"root and Root would both be":    func(m *image, o *install.Options) { o.Operators = []string{"Root"} },
		"trust/allowed_signers: line 1:": func(m *image, _ *install.Options) { m.write("etc/durward/trust/allowed_signers", "nonsense") },
	} {
		m := newImage(t)
		o := m.options(install.Settings{})
		spoil(m, &o)
		if _, err := install.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("says %v, not %q", err, want)
		}
	}
}

// TestEgress: egress is installed where it is asked for, those that it calls let it in, every operator's command knows it without a change
// of a file in a home, and all of that goes again but for the list of domains.
func TestEgress(t *testing.T) {
	m := newImage(t)
	for _, program := range []string{"egress", "durward-launcher"} {
		m.must(os.WriteFile(filepath.Join(m.programs, program), []byte("program "+program), 0o755))
	}
	kept := []string{"etc/durward/security/domains.yaml", "usr/local/lib/durward/egress", "usr/local/lib/durward/durward-launcher"}
	own := []string{
		"etc/durward/tls/egress/key.pem", "etc/durward/launcher.yaml", "etc/systemd/system/durward-launcher.service", "etc/sysusers.d/durward-launcher.conf",
		"etc/durward/egress.yaml", "etc/durward/operators.yaml", "etc/systemd/system/durward-egress.service", "etc/sysusers.d/durward-egress.conf",
		"etc/tmpfiles.d/durward-egress.conf",
	}
	there := func(when string, want bool, paths ...string) {
		t.Helper()
		for _, path := range paths {
			if _, err := os.Stat(m.path(path)); (err == nil) != want {
				t.Errorf("%s, %s: %v", when, path, err)
			}
		}
	}
	m.apply(install.Settings{Egress: true})
	there("with egress", true, append(own, kept...)...)
	there("with egress", true, "etc/systemd/system/durward.target.wants/durward-egress.service", "run/durward/egress", "var/lib/durward/egress")
	for file, want := range map[string]string{
		"vault": "role: egress\n    identity: spiffe://durward.local/egress/local", "audit": "user=durward-egress",
		"gateway": "address: unix:/run/durward/egress/grpc.sock,user=durward-egress", "egress": "launcher: unix:/run/durward/launcher/launcher.sock,user=durward-launcher",
		"launcher":  "listen: unix:/run/durward/launcher/launcher.sock,user=durward-egress",
		"operators": "egress_health: unix:/run/durward/egress/health.sock,user=durward-egress",
	} {
		if text := m.read("etc/durward/" + file + ".yaml"); !strings.Contains(text, want) {
			t.Errorf("%s.yaml has not %q:\n%s", file, want, text)
		}
	}
	if text := m.read("etc/durward/executor.yaml"); strings.Contains(text, "egress") {
		t.Errorf("the executor knows egress:\n%s", text)
	}
	if text := m.read("etc/durward/egress.yaml"); !strings.Contains(text, "own:\n  - 127.0.0.1:") {
		t.Errorf("the gateway's port is dialled:\n%s", text)
	}
	m.write("etc/durward/security/domains.yaml", "allow: [docs.example]\n")
	if done := m.apply(install.Settings{Egress: true}); len(done) > 0 {
		t.Errorf("a second run: %v", done)
	}
	m.apply(install.Settings{})
	there("without it again", false, own...)
	there("without it again", true, kept...)
	if text := m.read("etc/durward/audit.yaml") + m.read("etc/durward/vault.yaml"); strings.Contains(text, "egress") {
		t.Errorf("it is still let in:\n%s", text)
	}
	if m.read("etc/durward/security/domains.yaml") != "allow: [docs.example]\n" {
		t.Error("a human's list is gone")
	}
	m = newImage(t)
	m.apply(install.Settings{})
	there("where nobody asked for it", false, append(own, kept...)...)
}

// TestRelay: auditrelay is installed where it is asked for, alone of what is not in every installation, and goes again but for its file.
func TestRelay(t *testing.T) {
	m := newImage(t)
	own := []string{
		"etc/durward/auditrelay.yaml", "etc/durward/tls/relay/key.pem", "etc/systemd/system/durward-auditrelay.service", "etc/sysusers.d/durward-relay.conf",
		"usr/local/lib/durward/auditrelay",
	}
	m.must(os.WriteFile(filepath.Join(m.programs, "auditrelay"), []byte("program auditrelay"), 0o755))
	if _, err := install.New(m.options(install.Settings{Relay: true})); err != nil {
		t.Fatal(err)
	}
	m.apply(install.Settings{Relay: true})
	for _, path := range own {
		if _, err := os.Stat(m.path(path)); err != nil {
			t.Error(err)
		}
	}
	audit := m.read("etc/durward/audit.yaml")
	if !strings.Contains(audit, "user=durward-relay") || strings.Contains(m.read("etc/durward/vault.yaml"), "durward-relay") {
		t.Errorf("who is let in to audit:\n%s", audit)
	}
	if relay := m.read("etc/durward/auditrelay.yaml"); !strings.Contains(relay, "address: unix:/run/durward/audit/grpc.sock,user=durward-audit") {
		t.Errorf("where audit is:\n%s", relay)
	}
	if _, err := os.Stat(m.path("etc/systemd/system/durward.target.wants/durward-auditrelay.service")); err != nil {
		t.Error(err)
	}
	m.write("etc/durward/auditrelay.yaml", "# a human's\n")
	if done := m.apply(install.Settings{Relay: true}); len(done) > 0 || m.read("etc/durward/auditrelay.yaml") != "# a human's\n" {
		t.Errorf("a second run: %v", done)
	}
	m.apply(install.Settings{})
	for i, path := range own {
		if _, err := os.Stat(m.path(path)); (err == nil) != (i == 0 || i == 4) {
			t.Errorf("without the relay again, %s: %v", path, err)
		}
	}
	if strings.Contains(m.read("etc/durward/audit.yaml"), "durward-relay") {
		t.Error("the relay is still let in to audit")
	}
	without := newImage(t)
	without.apply(install.Settings{})
	for _, path := range own {
		if _, err := os.Stat(without.path(path)); err == nil {
			t.Errorf("%s is there, which nobody asked for", path)
		}
	}
}

// TestWitness: a witness comes with the relay, a key that it alone can read, the log's key, and the trust of everybody here; what a human
// wrote is kept, and what it lacks is said.
func TestWitness(t *testing.T) {
	m := newImage(t)
	for _, name := range []string{"auditrelay", "auditwitness"} {
		m.must(os.WriteFile(filepath.Join(m.programs, name), []byte("program "+name), 0o755))
	}
	if _, err := install.New(m.options(install.Settings{Witness: true})); err == nil || !strings.Contains(err.Error(), "sees no checkpoint") {
		t.Errorf("without the relay: %v", err)
	}
	both := install.Settings{Relay: true, Witness: true}
	m.apply(both)
	signer, err := logproof.ParseCosigner(m.read("etc/durward-witness/witness.key"), time.Now)
	m.must(err)
	info, err := os.Stat(m.path("etc/durward-witness/witness.key"))
	m.must(err)
	if info.Mode().Perm() != 0o640 {
		t.Errorf("the key is %04o", info.Mode().Perm())
	}
	roots, err := trust.Open(m.path("etc/durward/trust"))
	m.must(err)
	if w := roots.Current().Witnesses; w.Quorum != 1 || len(w.Keys) != 1 || w.Keys[0].String() != signer.String() || w.Within != 0 {
		t.Errorf("trusted are %+v, and the witness is %s", w, signer)
	}
	logKey := strings.Fields(m.read("etc/durward/trust/log_keys")) // after a comment
	if c := m.read("etc/durward-witness/auditwitness.yaml"); !strings.Contains(c, "  - "+logKey[len(logKey)-1]+"\n") || !strings.Contains(c, "listen: 127.0.0.1:7445\n") {
		t.Errorf("the witness's file:\n%s", c)
	}
	if relay := m.read("etc/durward/auditrelay.yaml"); !strings.Contains(relay, "witnesses: [http://127.0.0.1:7445]") {
		t.Errorf("the relay's file:\n%s", relay)
	}
	if _, err := os.Stat(m.path("etc/systemd/system/multi-user.target.wants/durward-auditwitness.service")); err != nil {
		t.Error(err)
	}
	if done := m.apply(both); len(done) > 0 {
		t.Errorf("a second run: %v", done)
	}
	// A human's files are kept, also if they were there before the witness.
	m.write("etc/durward/auditrelay.yaml", "# a human's\n")
	m.write("etc/durward/trust/witnesses.yaml", "quorum: 1\nwitnesses: [other.example/one+0+AA]\n")
	var said []string
	for _, step := range m.plan(both).Steps {
		if step.Verb == install.Keep {
			said = append(said, step.What+": "+step.Note)
		}
	}
	want := []string{"/etc/durward/trust/witnesses.yaml: its witnesses are yours to choose; this host's is " + signer.String(), "/etc/durward/auditrelay.yaml: it is yours; this host's witness is at http://127.0.0.1:7445"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	if done := m.apply(both); len(done) > 0 || m.read("etc/durward/auditrelay.yaml") != "# a human's\n" {
		t.Errorf("a human's files: %v", done)
	}
	m.apply(install.Settings{Relay: true})
	if _, err := os.Stat(m.path("etc/systemd/system/durward-auditwitness.service")); err == nil {
		t.Error("the unit stays without the witness")
	}
	if _, err := os.Stat(m.path("etc/durward-witness/witness.key")); err != nil {
		t.Errorf("the key is lost: %v", err)
	}
}

func TestPlanChangesNothing(t *testing.T) {
	m := newImage(t)
	before := m.tree()
	if p := m.plan(install.Settings{Docker: true, ProcessDriver: true, HealthOnLoopback: true}); p.Effects() < 40 {
		t.Errorf("an empty host needs %d steps", p.Effects())
	}
	if diff := cmp.Diff(before, m.tree()); diff != "" || len(m.ran) > 0 {
		t.Errorf("planning ran %v and changed: %s", m.ran, diff)
	}
}

func TestApply(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	if want := []string{"systemd-sysusers", "usermod", "systemd-tmpfiles", "systemctl"}; !slices.Equal(m.ran, want) {
		t.Errorf("ran %v, not %v", m.ran, want)
	}
	for path, mode := range map[string]fs.FileMode{
		"etc/durward": 0o750, "etc/durward/pki": 0o700, "etc/durward/keys": 0o700, "etc/durward/pki/ca.key": 0o600, "etc/durward/keys/grant.key": 0o600,
		"etc/durward/keys/log.key": 0o600, "etc/durward/tls/vault": 0o750, "etc/durward/tls/vault/key.pem": 0o640, "etc/durward/tls/operators/alice/key.pem": 0o440,
		"etc/durward/tls/notifiers/alice/key.pem": 0o440,
		"etc/durward/trust/allowed_signers":       0o644, "usr/local/lib/durward/vault": 0o755,
	} {
		if info, err := os.Stat(m.path(path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	folder, err := trust.Open(m.path("etc/durward/trust"))
	m.must(err)
	defer folder.Close()
	if signers := folder.Current().AllowedSigners.All(); len(signers) != 1 || signers[0].Operator != "alice" {
		t.Errorf("may approve: %+v", signers)
	}
	before := m.tree()
	for _, s := range m.apply(install.Settings{}) {
		t.Errorf("a second run: %s %s (%s)", s.Verb, s.What, s.Note)
	}
	if diff := cmp.Diff(before, m.tree()); diff != "" {
		t.Errorf("a second run changed: %s", diff)
	}
}

func TestApplyKeepsWhatAHumanEdited(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{Docker: true})
	const edited = "etc/durward/vault.yaml"
	m.write(edited, m.read(edited)+"# mine\n")
	const dropIn = "etc/systemd/system/durward-executor.service.d/executor-docker.conf"
	m.write(dropIn, m.read(dropIn)+"# mine\n")
	m.write("etc/durward/catalogue.yaml", "version: 1\n")
	m.must(os.Chmod(m.path("etc/durward/keys/grant.key"), 0o644))
	kept := map[string]string{}
	for _, path := range []string{edited, dropIn, "etc/durward/catalogue.yaml", "etc/durward/keys/grant.key"} {
		kept[path] = m.read(path)
	}
	m.apply(install.Settings{HealthOnLoopback: true}) // every configuration would change, and the drop-in go
	for path, want := range kept {
		if m.read(path) != want {
			t.Errorf("%s was overwritten", path)
		}
	}
	if info, err := os.Stat(m.path("etc/durward/keys/grant.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a key that others can read stays so: %v, %v", info.Mode(), err)
	}
	if !strings.Contains(m.read("etc/durward/audit.yaml"), "health_listen: 127.0.0.1:7443") {
		t.Error("a file that nobody edited was not brought up to date")
	}
	// What was kept stays kept, however often the command runs.
	m.apply(install.Settings{HealthOnLoopback: true})
	if m.read(edited) != kept[edited] {
		t.Error("the second time it was overwritten")
	}
}

// An upgrade that breaks off, and another version after it: what nobody edited is brought up to date, and that processes have to be started
// again is not forgotten.
func TestApplyGoesOnWhereAnotherBrokeOff(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	cut := m.plan(install.Settings{HealthOnLoopback: true})
	cut.Steps = cut.Steps[:slices.IndexFunc(cut.Steps, func(s install.Step) bool { return strings.HasPrefix(s.What, "/etc/durward/vault.yaml") })]
	m.must(cut.Apply(t.Context(), func(install.Step) {}))
	if record, err := install.ReadRecord(m.root); err != nil || !record.RestartDue || len(record.Former["/etc/durward/vault.yaml"]) != 1 {
		t.Fatalf("written down is %+v, %v", record, err)
	}
	if !strings.Contains(m.read("etc/durward/audit.yaml"), "health_listen: 127.0.0.1:") || strings.Contains(m.read("etc/durward/vault.yaml"), "health_listen: 127.0.0.1:") {
		t.Fatal("it did not break off between two files")
	}
	o := m.options(install.Settings{HealthOnLoopback: true})
	o.Port += 100
	p, err := install.New(o)
	m.must(err)
	for _, s := range p.Steps {
		if s.Verb == install.Keep {
			t.Errorf("keeps %s: %s", s.What, s.Note)
		}
	}
	m.must(p.Apply(t.Context(), func(install.Step) {}))
	if record, err := install.ReadRecord(m.root); err != nil || record.RestartDue || len(record.Former) > 0 {
		t.Errorf("in the end there stands %+v, %v", record, err)
	}
	if p, err = install.New(o); err != nil || p.Effects() > 0 {
		t.Errorf("again: %v, %v", p.Steps, err)
	}
}

func TestApplyTakesDropInsAway(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{ProcessDriver: true})
	const dropIn = "etc/systemd/system/durward-executor.service.d/executor-process.conf"
	m.read(dropIn)
	m.apply(install.Settings{})
	if _, err := os.Lstat(m.path(dropIn)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the drop-in is still there: %v", err)
	}
}

func TestOperatorWithoutKey(t *testing.T) {
	m := newImage(t)
	m.joinErr = install.ErrNoKey
	done := m.apply(install.Settings{})
	if !slices.ContainsFunc(done, func(s install.Step) bool { return strings.Contains(s.Note, "alice cannot approve yet") }) {
		t.Error("nobody is told that alice cannot approve")
	}
	if signers, err := trust.ParseAllowedSigners([]byte(m.read("etc/durward/trust/allowed_signers"))); err != nil || len(signers.All()) != 0 {
		t.Errorf("may approve: %v, %v", signers, err)
	}
	m.joinErr = nil
	m.apply(install.Settings{})
	if !strings.Contains(m.read("etc/durward/trust/allowed_signers"), "alice ") {
		t.Error("with a key alice cannot approve")
	}
}

// TestKeyOfTheOperatorsChoice is about keys that lay there before, where every program of the operator's user can put them.
func TestKeyOfTheOperatorsChoice(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*image, *install.Options)
		approve bool
	}{
		"root says no":                {func(m *image, _ *install.Options) { m.acceptErr = install.ErrNoKey }, false},
		"operator.yaml names another": {func(m *image, _ *install.Options) { m.keyFile = "/tmp/key" }, false},
		"root says yes":               {func(*image, *install.Options) {}, true},
		"root named it on the command": {func(m *image, o *install.Options) {
			m.acceptErr = install.ErrNoKey
			o.SigningKeys = map[string]string{"alice": "/tmp/key"}
		}, true},
	} {
		m := newImage(t)
		o := m.options(install.Settings{})
		test.change(m, &o)
		p, err := install.New(o)
		m.must(err)
		m.must(p.Apply(t.Context(), func(install.Step) {}))
		if got := strings.Contains(m.read("etc/durward/trust/allowed_signers"), "alice "); got != test.approve {
			t.Errorf("%s: may approve: %v", name, got)
		}
	}
}

func TestRevoke(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	const signers, revoked, certificate, notifier = "etc/durward/trust/allowed_signers", "etc/durward/trust/revoked.yaml", "etc/durward/tls/operators/alice", "etc/durward/tls/notifiers/alice"
	// As the command does it.
	m.write(signers, "")
	ids, err := install.Identities("alice")
	m.must(err)
	if len(ids) != 2 {
		t.Fatal(ids)
	}
	for _, id := range ids {
		banned, err := install.Ban([]byte(m.read(revoked)), id)
		m.must(err)
		m.write(revoked, string(banned))
	}
	if !install.Knows(m.root, "alice") || install.Knows(m.root, "bob") {
		t.Error("who is known is not told")
	}
	for range 2 { // it may be done again
		m.must(install.Revoke(t.Context(), m.root, "alice", m.command))
	}
	gone := func(when string) {
		t.Helper()
		for _, folder := range []string{certificate, notifier} {
			if _, err := os.Lstat(m.path(folder)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the certificate is there: %v", when, err)
			}
		}
		if strings.Contains(m.read(signers), "alice ") || strings.Contains(m.read("etc/group"), "alice") || !strings.Contains(m.read(revoked), ids[0]) || !strings.Contains(m.read(revoked), ids[1]) {
			t.Errorf("%s: alice is back:\n%s\n%s\n%s", when, m.read(signers), m.read("etc/group"), m.read(revoked))
		}
	}
	gone("revoked")
	o := m.options(install.Settings{})
	o.Operators = nil
	p, err := install.New(o)
	m.must(err)
	m.must(p.Apply(t.Context(), func(install.Step) {}))
	gone("another installation")
	m.must(os.MkdirAll(m.path(certificate), 0o755))
	if list, err := install.Renew(m.root, m.now, true); err != nil || len(list) != 5 {
		t.Errorf("renews %+v, %v", list, err)
	}
	m.must(os.Remove(m.path(certificate)))
	m.apply(install.Settings{}) // with --operator alice
	if strings.Contains(m.read(revoked), ids[0]) || strings.Contains(m.read(revoked), ids[1]) || !strings.Contains(m.read(signers), "alice ") || !install.Knows(m.root, "alice") {
		t.Errorf("root's word does not let alice in again:\n%s\n%s", m.read(revoked), m.read(signers))
	}
	for _, folder := range []string{certificate, notifier} {
		if _, err := pki.ReadPair(m.path(folder)); err != nil {
			t.Error(err)
		}
	}
}

// TestKeyOfNobodysIsNotPutBack: who was taken out of allowed_signers by hand stays out.
func TestKeyOfNobodysIsNotPutBack(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	const signers = "etc/durward/trust/allowed_signers"
	m.write(signers, "")
	m.must(os.RemoveAll(m.path("home/alice/.durward")))
	o := m.options(install.Settings{})
	o.Operators = nil
	p, err := install.New(o)
	m.must(err)
	m.must(p.Apply(t.Context(), func(install.Step) {}))
	if strings.Contains(m.read(signers), "alice") {
		t.Error("the key is back")
	}
}

// TestAnOperatorWhoseUserIsGone keeps no upgrade back, and is not forgotten: it is said how the key is taken away.
func TestAnOperatorWhoseUserIsGone(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	m.write("etc/passwd", strings.ReplaceAll(m.read("etc/passwd"), "alice:", "bob:"))
	if _, err := install.New(m.options(install.Settings{})); err == nil || !strings.Contains(err.Error(), "operator alice: there is no such Unix user. Name") || !strings.Contains(err.Error(), "sudo useradd -m alice") {
		t.Errorf("named by root: %v", err)
	}
	m.must(os.WriteFile(filepath.Join(m.programs, "vault"), []byte("a new program"), 0o755))
	opts := m.options(install.Settings{})
	opts.Operators = nil
	plan, err := install.New(opts)
	m.must(err)
	var told []string
	m.must(plan.Apply(t.Context(), func(s install.Step) {
		if s.Verb == install.Keep && s.What == "operator alice" {
			told = append(told, s.Note)
		}
	}))
	if len(told) != 1 || !strings.HasSuffix(told[0], ": sudo durward operator revoke alice") || m.read("usr/local/lib/durward/vault") != "a new program" {
		t.Errorf("told %q; the new program is there: %v", told, m.read("usr/local/lib/durward/vault") == "a new program")
	}
	if record, err := install.ReadRecord(m.root); err != nil || !slices.Equal(record.Operators, []string{"alice"}) || len(plan.Operators) > 0 {
		t.Errorf("recorded %q, %v; now %q", record.Operators, err, plan.Operators)
	}
}

func TestBan(t *testing.T) {
	for _, test := range []struct{ name, before, after string }{
		{"empty", "# c\nrevoked: []\n", "# c\nrevoked:\n  - spiffe://d/operator/a\n"},
		{"a list", "revoked:\n- spiffe://d/x/y # old\n", "revoked:\n- spiffe://d/x/y # old\n- spiffe://d/operator/a\n"},
		{"there already", "revoked: [spiffe://d/operator/a]\n", "revoked: [spiffe://d/operator/a]\n"},
		{"on one line", "revoked: [spiffe://d/x/y]\n", "revoked:\n  - spiffe://d/x/y\n  - spiffe://d/operator/a\n"},
		{"elsewhere", "{revoked: []}\n", ""},
	} {
		after, err := install.Ban([]byte(test.before), "spiffe://d/operator/a")
		if string(after) != test.after || (err != nil) != (test.after == "") {
			t.Errorf("%s: %q, %v", test.name, after, err)
		}
		if test.after == "" || test.after == test.before {
			continue
		}
		want := strings.Replace(test.before, " [spiffe://d/x/y]", "\n  - spiffe://d/x/y", 1)
		if back, err := install.Readmit(after, "spiffe://d/operator/a"); err != nil || string(back) != want {
			t.Errorf("%s: back: %q, %v", test.name, back, err)
		}
	}
}

// TestToolsKey: the key of an internal program is its user's, and root's group renews it: the user's own may be many people's.
func TestToolsKey(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	m.write("etc/passwd", m.read("etc/passwd")+"batch:x:64001:100::/:/bin/sh\n")
	tool, err := install.Tool(m.root, "night-shift", "batch")
	if want := (durable.Owner{UID: 64001, Mode: 0o440}); err != nil || *tool.Owner != want {
		t.Errorf("%+v, %v", tool.Owner, err)
	}
}

// TestAnAuthorityElsewhere: where a company's authority issues the certificates and the key of the built-in one is gone, nothing is issued here,
// and what is missing, wrong or late is said.
func TestAnAuthorityElsewhere(t *testing.T) {
	m, company := newImage(t), platformtest.NewCompany(t)
	m.apply(install.Settings{})
	issued, err := install.Renew(m.root, m.now, false)
	m.must(err)
	const roots = "etc/durward/trust/ca.pem"
	m.write(roots, m.read(roots)+string(company.Root()))
	m.must(os.Remove(m.path("etc/durward/pki/ca.key")))
	from, until := time.Now().Add(-time.Hour), time.Now().Add(90*24*time.Hour)
	put := func(name, id string, from, until time.Time) {
		chain, key := company.Issue(id, from, until)
		dir := m.path("etc/durward/tls/" + name)
		owner, err := pki.OwnerOf(filepath.Join(dir, pki.FileKey))
		m.must(err)
		m.must(pki.WriteLeafFor(dir, chain, key, owner))
	}
	for _, r := range issued {
		put(r.Name, r.Identity, from, until)
	}
	list, err := install.Renew(m.root, m.now, true)
	if err != nil || len(list) != len(issued) || slices.ContainsFunc(list, func(r install.Renewal) bool { return r.Renewed || r.NotAfter.Before(until.Add(-time.Minute)) }) {
		t.Errorf("renew: %+v, %v", list, err)
	}
	if done := m.apply(install.Settings{}); len(done) != 0 {
		t.Errorf("another installation does %+v", done)
	}
	if os.Geteuid() == 0 { // as installed: root judges keys that a process's group reads, and no other
		groups := m.read("etc/group")
		m.write("etc/group", strings.Replace(groups, "durward-vault:x:0:", "durward-vault:x:64123:", 1))
		for gid, open := range map[int]bool{64123: false, 64124: true} {
			m.must(os.Chown(m.path("etc/durward/tls/vault/key.pem"), 0, gid))
			if _, err := install.Renew(m.root, m.now, false); (err != nil) != open {
				t.Errorf("a key that the group %d reads: %v", gid, err)
			}
		}
		m.must(os.Chown(m.path("etc/durward/tls/vault/key.pem"), 0, 0))
		m.write("etc/group", groups)
	}
	if _, err := install.Renew(m.root, until.Add(-time.Hour), false); err == nil || !strings.Contains(err.Error(), "your authority has issued no other") {
		t.Errorf("late: %v", err)
	}
	const vault = "spiffe://durward.local/vault/main"
	for says, spoil := range map[string]func(){
		"it is for spiffe://durward.local/audit/main": func() { put("vault", "spiffe://durward.local/audit/main", from, until) },
		"ended 59m": func() { put("vault", vault, from.Add(-time.Hour), time.Now().Add(-time.Hour+30*time.Second)) },
		"not valid under the trust folder": func() {
			chain, key := platformtest.NewCompany(t).Issue(vault, from, until)
			m.write("etc/durward/tls/vault/cert.pem", string(chain))
			m.write("etc/durward/tls/vault/key.pem", string(key))
		},
	} {
		spoil()
		_, renewing := install.Renew(m.root, m.now, false)
		all, err := install.Certificates(m.root)
		m.must(err)
		at := slices.IndexFunc(all, func(c installdir.Certificate) bool { return c.Role == "vault" })
		if renewing == nil || !strings.Contains(renewing.Error(), says) || !strings.Contains(all[at].Problem, says) {
			t.Errorf("%s: %v; %+v", says, renewing, all[at])
		}
		put("vault", vault, from, until)
	}
	m.must(os.RemoveAll(m.path("etc/durward/tls/vault")))
	p, err := install.New(m.options(install.Settings{}))
	m.must(err)
	if err := p.Apply(t.Context(), func(install.Step) {}); err == nil || !strings.Contains(err.Error(), "have your authority issue "+vault) {
		t.Errorf("without a certificate: %v", err)
	}
}

// TestPairThatDoesNotFit is what a writer leaves that was killed between the key and its certificate.
func TestPairThatDoesNotFit(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	spoil := func() {
		m.write("etc/durward/tls/vault/key.pem", m.read("etc/durward/tls/audit/key.pem"))
		m.must(os.Chmod(m.path("etc/durward/tls/vault/key.pem"), 0o640))
	}
	spoil()
	if list, err := install.Renew(m.root, m.now, false); err != nil || !slices.ContainsFunc(list, func(r install.Renewal) bool { return r.Name == "vault" && r.Renewed }) {
		t.Errorf("renew leaves it: %+v, %v", list, err)
	}
	spoil()
	if done := m.apply(install.Settings{}); len(done) != 1 || !strings.Contains(done[0].Note, "another key's") {
		t.Errorf("install does: %+v", done)
	}
	if _, err := pki.ReadPair(m.path("etc/durward/tls/vault")); err != nil {
		t.Error(err)
	}
}

// TestAnotherAuthority: where the authority is a new one, nobody accepts what the one before issued, and it is issued anew, once.
func TestAnotherAuthority(t *testing.T) {
	for by, renew := range map[string]func(*image){
		"renew": func(m *image) {
			ca, err := pki.NewCA(identity.DefaultTrustDomain)
			m.must(err)
			m.must(ca.Write(m.path("etc/durward/pki")))
			m.write("etc/durward/trust/ca.pem", string(ca.CertificatePEM()))
			for _, want := range []bool{true, false} {
				list, err := install.Renew(m.root, m.now, false)
				m.must(err)
				if i := slices.IndexFunc(list, func(r install.Renewal) bool { return r.Renewed != want }); i >= 0 {
					t.Errorf("renew: %+v, want all: %t", list[i], want)
				}
			}
		},
		"install": func(m *image) {
			m.apply(install.Settings{})
			if done := m.apply(install.Settings{}); len(done) != 0 {
				t.Errorf("another installation does %+v", done)
			}
		},
	} {
		t.Run(by, func(t *testing.T) {
			m := newImage(t)
			m.apply(install.Settings{})
			for _, file := range []string{"pki/ca.key", "pki/ca.pem", "trust/ca.pem"} {
				m.must(os.Remove(m.path("etc/durward/" + file)))
			}
			renew(m)
			all, err := install.Certificates(m.root)
			m.must(err)
			for _, c := range all {
				if c.Problem != "" {
					t.Errorf("%s: %s", c.Role, c.Problem)
				}
			}
		})
	}
}

// TestRenewAfterTheClockWasAhead: a host whose clock was hours ahead when it started has certificates that nobody accepts once it is right.
func TestRenewAfterTheClockWasAhead(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	dir := m.path("etc/durward/tls/vault")
	owner, err := pki.OwnerOf(filepath.Join(dir, pki.FileKey))
	m.must(err)
	ahead := time.Now().Add(2 * time.Hour)
	for by, renew := range map[string]func(){
		"renew": func() {
			list, err := install.Renew(m.root, time.Now(), false)
			m.must(err)
			if at := slices.IndexFunc(list, func(r install.Renewal) bool { return r.Renewed }); at < 0 || list[at].Name != "vault" {
				t.Errorf("renew does not: %+v", list)
			}
		},
		"install": func() {
			if done := m.apply(install.Settings{}); len(done) != 1 || !strings.Contains(done[0].Note, "due") {
				t.Errorf("install does: %+v", done)
			}
		},
	} {
		chain, key := platformtest.NewCompany(t).Issue("spiffe://durward.local/vault/main", ahead, ahead.Add(pki.LeafLife))
		m.must(pki.WriteLeafFor(dir, chain, key, owner))
		renew()
		all, err := install.Certificates(m.root)
		m.must(err)
		if at := slices.IndexFunc(all, func(c installdir.Certificate) bool { return c.Role == "vault" }); all[at].Problem != "" {
			t.Errorf("%s: %s", by, all[at].Problem)
		}
	}
}

// TestNextGrantKey: the vault's key that ends soon gets a successor, which counts beside it, and the processes start again with it.
func TestNextGrantKey(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	dir := m.path("etc/durward/trust")
	signers, err := trust.ReadGrantSigners(dir)
	m.must(err)
	signers[0].NotAfter = m.now.Add(10 * 24 * time.Hour)
	m.must(os.WriteFile(filepath.Join(dir, trust.FileGrantSigners), trust.FormatGrantSigners(signers), 0o644))
	if steps := m.apply(install.Settings{}); len(steps) == 0 || !strings.Contains(steps[0].Note, "grant-2 follows it") {
		t.Errorf("does %+v", steps)
	}
	key, err := grant.LoadKey(m.path("etc/durward/keys/grant.key"))
	m.must(err)
	roots, err := trust.Read(dir)
	m.must(err)
	next, err := roots.GrantKey("grant-2", m.now)
	if err != nil || key.KID != "grant-2" || !next.Equal(key.Private.Public()) {
		t.Errorf("the vault signs with %s, %v", key.KID, err)
	}
	if old, err := roots.GrantKey("grant-1", m.now); err != nil || !old.Equal(signers[0].Key) {
		t.Errorf("what the old one signed: %v", err)
	}
	for file, mode := range map[string]fs.FileMode{"etc/durward/keys/grant.key": 0o600, "etc/durward/trust/grant_signers.yaml": 0o644} {
		if info, err := os.Stat(m.path(file)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	if steps := m.apply(install.Settings{}); len(steps) != 0 {
		t.Errorf("another installation does %+v", steps)
	}
	m.must(errors.Join(os.Remove(m.path("etc/durward/keys/grant.key")), os.Remove(filepath.Join(dir, trust.FileGrantSigners))))
	m.apply(install.Settings{})
	if roots, err = trust.Read(dir); err != nil || len(roots.GrantSigners) != 1 || roots.GrantSigners[0].Key.Equal(next) {
		t.Errorf("after both were moved away: %+v, %v", roots.GrantSigners, err)
	}
}

// TestProgramThatChanges between plan and copy is not installed.
func TestProgramThatChanges(t *testing.T) {
	m := newImage(t)
	p := m.plan(install.Settings{})
	m.must(os.WriteFile(filepath.Join(m.programs, "vault"), []byte("another"), 0o755))
	if err := p.Apply(t.Context(), func(install.Step) {}); err == nil || !strings.Contains(err.Error(), "has changed since the plan") {
		t.Errorf("says %v", err)
	}
	if _, err := os.Lstat(m.path("usr/local/lib/durward/vault")); err == nil {
		t.Error("it is installed")
	}
}

// TestMaskedUnit stays masked.
func TestMaskedUnit(t *testing.T) {
	m := newImage(t)
	m.write("etc/systemd/system/x", "")
	m.must(os.Symlink("/dev/null", m.path("etc/systemd/system/durward-renew.timer")))
	m.apply(install.Settings{})
	if to, err := os.Readlink(m.path("etc/systemd/system/durward-renew.timer")); err != nil || to != "/dev/null" {
		t.Errorf("%s, %v", to, err)
	}
}

// TestPort is about the unit that holds the port.
func TestPort(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	const dropIn = "etc/systemd/system/durward-gateway.socket.d/port.conf"
	if _, err := os.Lstat(m.path(dropIn)); err == nil {
		t.Error("a drop-in for the port of the unit itself")
	}
	o := m.options(install.Settings{})
	for _, port := range []int{8430, install.DefaultPort} {
		o.Port = port
		p, err := install.New(o)
		m.must(err)
		m.must(p.Apply(t.Context(), func(install.Step) {}))
		b, err := os.ReadFile(m.path(dropIn))
		if changed := port != install.DefaultPort; changed != (err == nil) || changed && string(b) != "[Socket]\nListenStream=\nListenStream=127.0.0.1:8430\n" {
			t.Errorf("port %d: %q, %v", port, b, err)
		}
	}
	if !strings.Contains(m.read("etc/systemd/system/durward-gateway.socket"), fmt.Sprintf("ListenStream=127.0.0.1:%d\n", install.DefaultPort)) {
		t.Error("the unit has another port")
	}
}

// TestRenewFollowsNoLink is about a tree that leads out of itself.
func TestRenewFollowsNoLink(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	m.must(os.Rename(m.path("etc/durward/tls/vault"), m.path("vault")))
	m.must(os.Symlink(m.path("vault"), m.path("etc/durward/tls/vault")))
	if _, err := install.Renew(m.root, m.now, true); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("says %v", err)
	}
}

// TestRenewTheRelay: a relay that a human added, by a folder with an empty key file in it, gets a certificate with the others.
func TestRenewTheRelay(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	dir := m.path("etc/durward/tls/relay")
	for _, added := range []bool{false, true} {
		if added {
			m.must(os.Mkdir(dir, 0o700))
			m.must(os.WriteFile(filepath.Join(dir, pki.FileKey), nil, 0o600))
		}
		_, err := install.Renew(m.root, m.now, false)
		m.must(err)
		leaf, err := pki.ReadPair(dir)
		if (err == nil) != added || added && leaf.ID.String() != "spiffe://durward.local/relay/main" {
			t.Errorf("added: %v: %v, %v", added, leaf.ID, err)
		}
	}
}

// TestConfigurations reads what the processes will read.
func TestConfigurations(t *testing.T) {
	for _, settings := range []install.Settings{{}, {HealthOnLoopback: true, Docker: true}} {
		m := newImage(t)
		m.apply(settings)
		for _, role := range installdir.Roles() {
			text := m.read("etc/durward/" + role + ".yaml")
			var c struct {
				config.Common          `yaml:",inline"`
				Vault, Executor, Audit config.Peer
			}
			m.must(yaml.Unmarshal([]byte(text), &c))
			m.must(c.Validate())
			for _, peer := range []config.Peer{c.Vault, c.Executor, c.Audit} {
				if peer.Address != "" || peer.Identity != "" {
					m.must(peer.Validate())
				}
			}
			if tcp := !config.IsUnix(c.Listen); tcp != (role == "gateway") {
				t.Errorf("%s listens on %s", role, c.Listen)
			}
			if config.IsUnix(c.HealthListen) == settings.HealthOnLoopback {
				t.Errorf("health of %s is at %s", role, c.HealthListen)
			}
			if strings.Contains(text, "docker") != (settings.Docker && role == "executor") {
				t.Errorf("%s and docker:\n%s", role, text)
			}
		}
	}
}

func TestRenew(t *testing.T) {
	m := newImage(t)
	m.apply(install.Settings{})
	renewed := func(all bool) []string {
		t.Helper()
		list, err := install.Renew(m.root, m.now, all)
		m.must(err)
		var names []string
		for _, r := range list {
			if r.Renewed {
				names = append(names, r.Name)
			}
		}
		return names
	}
	if got := renewed(false); len(got) != 0 {
		t.Errorf("renews what is not due: %v", got)
	}
	ca, err := pki.Load(m.path("etc/durward/pki"))
	m.must(err)
	id, err := identity.Parse("spiffe://durward.local/operator/alice")
	m.must(err)
	certificate, key, err := ca.Issue(id, time.Hour)
	m.must(err)
	dir := m.path("etc/durward/tls/operators/alice")
	owner, err := pki.OwnerOf(filepath.Join(dir, pki.FileKey))
	m.must(err)
	m.must(pki.WriteLeafFor(dir, certificate, key, owner))
	if got := renewed(false); !slices.Equal(got, []string{"operators/alice"}) {
		t.Errorf("renews %v", got)
	}
	if now, err := pki.OwnerOf(filepath.Join(dir, pki.FileKey)); err != nil || now != owner {
		t.Errorf("the new key belongs to %+v, %v", now, err)
	}
	if got := renewed(true); len(got) != 7 {
		t.Errorf("renews %v", got)
	}
	// One that is for somebody else, as a careless copy leaves it, is put right; one that is missing keeps no other from it.
	m.must(os.Remove(m.path("etc/durward/tls/audit/key.pem")))
	other, err := ca.CertificatePEM(), error(nil)
	m.must(err)
	m.must(os.WriteFile(m.path("etc/durward/tls/vault/cert.pem"), other, 0o640))
	list, err := install.Renew(m.root, m.now, false)
	if err == nil || !strings.Contains(err.Error(), "certificate of audit") {
		t.Errorf("a missing key: %v", err)
	}
	if !slices.ContainsFunc(list, func(r install.Renewal) bool { return r.Name == "vault" && r.Renewed }) {
		t.Errorf("a certificate that is nobody's is left: %+v", list)
	}
	if err := os.Remove(m.path("etc/durward/pki/ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := install.Renew(m.root, m.now, false); err == nil {
		t.Error("renews without the authority's key")
	}
}

func TestJoin(t *testing.T) {
	settings := install.Settings{Port: 7430}
	dir := t.TempDir()
	ask := func() ([]byte, error) { return []byte("correct horse"), nil }
	join := func(name string, change func(*install.JoinOptions)) ([]byte, installdir.Home, error) {
		t.Helper()
		h, err := installdir.At(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		o := install.JoinOptions{Home: h, Operator: "alice", Passphrase: ask}
		if change != nil {
			change(&o)
		}
		key, err := install.Join(settings, o)
		return key.Public, h, err
	}
	public, h, err := join("new", nil)
	if err != nil || !strings.HasPrefix(string(public), "ssh-ed25519 ") {
		t.Fatalf("%v, %s", err, public)
	}
	cfg, err := h.Load()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Vault.Address != "unix:/run/durward/vault/grpc.sock,user=durward-vault" || cfg.TLS.Key != "/etc/durward/tls/operators/alice/key.pem" {
		t.Errorf("configuration: %+v", cfg)
	}
	// The one certificate of this home is the operator's, and others than root renew none.
	if list := h.Certificates(); len(list) != 1 || list[0].Role != "operator" {
		t.Errorf("certificates: %+v", list)
	}
	if _, err := h.RenewCertificates("alice", time.Now(), true); err == nil || !strings.Contains(err.Error(), "sudo durward renew") {
		t.Errorf("cert renew: %v", err)
	}
	if protected, err := signingkey.Protected(cfg.SigningKey); err != nil || !protected {
		t.Errorf("the new key has no passphrase: %v", err)
	}
	again, _, err := join("new", nil)
	if err != nil || string(again) != string(public) {
		t.Errorf("the second time: %v, %s", err, again)
	}

	if _, h, err = join("nobody", func(o *install.JoinOptions) {
		o.Passphrase = func() ([]byte, error) { return nil, signingkey.ErrNeedsHuman }
	}); !errors.Is(err, signingkey.ErrNeedsHuman) || h.Exists() {
		t.Errorf("without a terminal: %v, and a configuration %v", err, h.Exists())
	}
	if public, h, err = join("root", func(o *install.JoinOptions) { o.Without = true }); err != nil || public != nil || !h.Exists() {
		t.Errorf("without a key: %v, %s", err, public)
	}
	private, openPublic, err := signingkey.Generate("alice", nil)
	if err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(open, private, 0o600), os.WriteFile(open+".pub", openPublic, 0o600)); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*install.JoinOptions){
		"has no passphrase": func(o *install.JoinOptions) { o.SigningKey = open },
		"no such file":      func(o *install.JoinOptions) { o.SigningKey = filepath.Join(dir, "missing") },
		"needs a passphrase here": func(o *install.JoinOptions) {
			o.Passphrase = func() ([]byte, error) { return nil, nil }
		},
	} {
		if _, _, err := join("refused", change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("says %v, not %q", err, want)
		}
	}
	if public, _, err := join("agent", func(o *install.JoinOptions) { o.SigningKey = open + ".pub" }); err != nil || string(public) != string(openPublic) {
		t.Errorf("a key that ssh-agent holds: %v, %s", err, public)
	}

	if _, _, err := join("agent", func(o *install.JoinOptions) { o.SigningKey = open }); err == nil || !strings.Contains(err.Error(), "names another signing key") {
		t.Errorf("with another key than before: %v", err)
	}

	own, err := installdir.At(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Init(installdir.Options{Development: true, Operator: "alice", BasePort: 29430}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := join("own", func(o *install.JoinOptions) { o.SigningKey = own.Key("operator_ed25519") }); err == nil || !strings.Contains(err.Error(), "copy the key elsewhere") {
		t.Errorf("with the key of what is set aside: %v", err)
	}
	release, err := own.Lock("up")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := join("own", nil); err == nil || !strings.Contains(err.Error(), "durward up still runs") {
		t.Errorf("over a development installation that runs: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	key, err := install.Join(settings, install.JoinOptions{Home: own, Operator: "alice", Passphrase: ask})
	if err != nil || key.Aside != own.Dir+"-aside" {
		t.Fatalf("over a development installation: %+v, %v", key, err)
	}
	if cfg, err := own.Load(); err != nil || cfg.TrustDir != install.TrustDir {
		t.Errorf("commands mean %s, %v", cfg.TrustDir, err)
	}
	if tried, err := (installdir.Home{Dir: key.Aside}).Load(); err != nil || tried.MCPURL != "http://127.0.0.1:29430/mcp" {
		t.Errorf("what was tried is %+v, %v", tried, err)
	}
}

// TestTriedFirst: who tried Durward as the same user, root or operator, has it set aside by the installation, which says so.
func TestTriedFirst(t *testing.T) {
	m := newImage(t)
	for _, home := range []string{"root", "home/alice"} {
		m.write(home+"/.durward/config/operator.yaml", "operator: alice\ntrust_dir: /"+home+"/.durward/trust\n")
	}
	opts := m.options(install.Settings{})
	made := opts.Join
	opts.Join = func(ctx context.Context, who install.Member) (install.Key, error) {
		key, err := made(ctx, who)
		key.Aside = who.Home + "/.durward-aside"
		return key, err
	}
	plan, err := install.New(opts)
	m.must(err)
	said := map[string]bool{}
	m.must(plan.Apply(t.Context(), func(s install.Step) {
		if strings.HasSuffix(s.What, "/.durward") {
			said[s.What] = s.Verb == install.Make && strings.HasSuffix(s.Note, "what was there lies in "+s.What+"-aside")
		}
	}))
	if !said["/root/.durward"] || !said["/home/alice/.durward"] || len(plan.Aside) != 2 {
		t.Errorf("says %v, and %q", said, plan.Aside)
	}
	if effects := m.apply(install.Settings{}); len(effects) != 0 {
		t.Errorf("the second time: %+v", effects)
	}
	// An operator who may approve already, and has gone back to trying.
	m.write("home/alice/.durward/config/operator.yaml", "operator: alice\ntrust_dir: /home/alice/.durward/trust\n")
	if effects := m.apply(install.Settings{}); len(effects) != 1 || effects[0].What != "/home/alice/.durward" {
		t.Errorf("an operator's: %+v", effects)
	}
	// A link is its owner's own arrangement.
	m.must(os.Rename(m.path("home/alice/.durward/config/operator.yaml"), m.path("home/alice/mine.yaml")))
	m.must(os.Symlink("/home/alice/mine.yaml", m.path("home/alice/.durward/config/operator.yaml")))
	if effects := m.apply(install.Settings{}); len(effects) != 0 {
		t.Errorf("a link: %+v", effects)
	}
}

// TestAPlanNeedsNoRoot: who is not root, and sees neither root's home nor another's, gets the plan of a fresh host, as the guide has it. Where Durward is
// installed it says that root has to look.
func TestAPlanNeedsNoRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		// Nothing is hidden from root: this test runs again as another user.
		dir, err := os.MkdirTemp("", "plan")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chown(dir, 64001, 64001); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestAPlanNeedsNoRoot$", "-test.v")
		cmd.Dir, cmd.Env = "/", []string{"TMPDIR=" + dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64001, Gid: 64001}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestAPlanNeedsNoRoot") {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	m := newImage(t)
	for _, home := range []string{"root", "home/alice"} {
		m.must(os.MkdirAll(m.path(home), 0o755))
		m.must(os.Chmod(m.path(home), 0))
	}
	plan, err := install.New(m.options(install.Settings{}))
	m.must(err)
	for _, side := range []string{"/root/.durward", "/home/alice/.durward"} {
		if !slices.ContainsFunc(plan.Steps, func(s install.Step) bool {
			return s.Verb == install.Make && s.What == side && strings.HasSuffix(s.Note, "what is there now can be seen by root alone")
		}) {
			t.Errorf("%s: %+v", side, plan.Steps)
		}
	}
	m.write("etc/durward/installed.json", `{"operators": ["alice"], "files": {"/etc/durward/vault.yaml": "00"}}`)
	_, err = install.New(m.options(install.Settings{}))
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("where Durward is installed: %v", err)
	}
}

// TestAnOddSideKeepsNoUpgradeBack: whatever lies in the place of an operator's own file, root reads nothing of it, and the host's own part goes on. Where
// root names the operator, it says why not.
func TestAnOddSideKeepsNoUpgradeBack(t *testing.T) {
	for name, lay := range map[string]func(m *image, config string){
		"a pipe with a writer": func(m *image, config string) {
			m.must(syscall.Mkfifo(config+"/operator.yaml", 0o600))
			writer, err := os.OpenFile(config+"/operator.yaml", os.O_RDWR, 0)
			m.must(err)
			m.Cleanup(func() { _ = writer.Close() })
		},
		"a folder": func(m *image, config string) { m.must(os.Mkdir(config+"/operator.yaml", 0o700)) },
		"a file above it": func(m *image, config string) {
			m.must(os.Remove(config))
			m.must(os.WriteFile(config, nil, 0o600))
		},
	} {
		m := newImage(t)
		m.apply(install.Settings{})
		config := m.path("home/alice/.durward/config")
		m.must(os.Remove(config + "/operator.yaml"))
		lay(m, config)
		opts := m.options(install.Settings{})
		if _, err := install.New(opts); err == nil || !strings.Contains(err.Error(), "/.durward/config/operator.yaml") {
			t.Errorf("%s, and alice is named: %v", name, err)
		}
		opts.Operators = nil
		m.must(os.WriteFile(filepath.Join(m.programs, "vault"), []byte("a new program"), 0o755))
		plan, err := install.New(opts)
		m.must(err)
		kept := slices.ContainsFunc(plan.Steps, func(s install.Step) bool {
			return s.Verb == install.Keep && s.What == "/home/alice/.durward" && strings.HasPrefix(s.Note, "it cannot be read: ")
		})
		changed := slices.ContainsFunc(plan.Steps, func(s install.Step) bool { return s.Effect() && strings.Contains(s.What, "/vault") })
		if !kept || !changed {
			t.Errorf("%s: %+v", name, plan.Steps)
		}
	}
}

// TestDocuments: completion files and manual pages are installed, follow the program's version, and leave what is not theirs.
func TestDocuments(t *testing.T) {
	m := newImage(t)
	const man = "/usr/local/share/man/man1"
	opts := m.options(install.Settings{})
	apply := func(documents map[string]string) (changed []string) {
		t.Helper()
		opts.Documents = map[string][]byte{}
		for path, text := range documents {
			opts.Documents[path] = []byte(text)
		}
		plan, err := install.New(opts)
		m.must(err)
		m.must(plan.Apply(t.Context(), func(s install.Step) {
			if strings.HasPrefix(s.What, "/usr/local/share/") && s.Effect() {
				changed = append(changed, string(s.Verb)+" "+strings.Fields(s.What)[0])
			}
		}))
		return changed
	}
	first := map[string]string{man + "/durward.1": "one", man + "/durward-old.1": "old", "/usr/local/share/zsh/site-functions/_durward": "zsh"}
	if got := apply(first); !slices.Equal(got, []string{"make " + man + "/*durward*", "make /usr/local/share/zsh/site-functions/_durward"}) {
		t.Errorf("first %q", got)
	}
	m.write(man+"/other.1", "of others")
	m.must(os.Mkdir(m.path(man+"/durward-folder"), 0o755))
	if got := apply(first); len(got) != 0 {
		t.Errorf("again %q", got)
	}
	delete(first, man+"/durward-old.1")
	first[man+"/durward-new.1"] = "new"
	if got := apply(first); !slices.Equal(got, []string{"change " + man + "/*durward*"}) {
		t.Errorf("another version: %q", got)
	}
	names, err := os.ReadDir(m.path(man))
	m.must(err)
	var left []string
	for _, entry := range names {
		left = append(left, entry.Name())
	}
	if !slices.Equal(left, []string{"durward-folder", "durward-new.1", "durward.1", "other.1"}) || m.read(man+"/durward-new.1") != "new" {
		t.Errorf("left %q", left)
	}
	if info, err := os.Stat(m.path(man + "/durward.1")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}

// packaged lays out what Debian's package brings, as scripts/packages.sh does.
func (m *image) packaged() {
	m.Helper()
	for _, name := range append(installdir.Roles(), "durward", "durward-inspect", "durward-list", "durward-notify") {
		m.write("usr/lib/durward/"+name, "packaged "+name)
	}
	const from = "files/systemd/"
	entries, err := install.Files.ReadDir(strings.TrimSuffix(from, "/"))
	m.must(err)
	for _, entry := range entries {
		text, err := install.Files.ReadFile(from + entry.Name())
		m.must(err)
		to := "usr/lib/systemd/system/" + entry.Name()
		for _, kind := range []string{"sysusers", "tmpfiles"} {
			if rest, ok := strings.CutPrefix(entry.Name(), kind); ok {
				to = "usr/lib/" + kind + ".d/durward" + rest
			}
		}
		m.write(to, strings.ReplaceAll(string(text), "/usr/local/lib/durward/", "/usr/lib/durward/"))
	}
	m.programs = m.path("usr/lib/durward")
}

// TestPackage: an installation goes over to the package's programs and units, keeps what is the host's, and follows the package's next version.
func TestPackage(t *testing.T) {
	m := newImage(t)
	man := "/usr/local/share/man/man1/durward-old.1"
	o := m.options(install.Settings{Firewall: true})
	o.Documents = map[string][]byte{man: []byte("old")}
	p, err := install.New(o)
	m.must(err)
	m.must(p.Apply(t.Context(), func(install.Step) {}))
	key := m.read("etc/durward/keys/grant.key")
	m.packaged()
	if _, err := install.New(o); err == nil || !strings.Contains(err.Error(), "sudo apt remove durward") {
		t.Errorf("beside the package: %v", err)
	}
	o.Programs = m.programs
	apply := func() (did []string) {
		t.Helper()
		p, err := install.New(o)
		m.must(err)
		m.must(p.Apply(t.Context(), func(s install.Step) {
			if s.Effect() {
				did = append(did, string(s.Verb)+" "+s.What)
			}
		}))
		return did
	}
	unit := m.path("etc/systemd/system/durward-vault.service")
	was := m.read("etc/systemd/system/durward-vault.service")
	m.must(os.WriteFile(unit, []byte(was+"# mine\n"), 0o644))
	if _, err := install.New(o); err == nil || !strings.Contains(err.Error(), "sudo systemctl edit durward-vault.service") {
		t.Errorf("a unit that a human has edited, and that starts what is to go: %v", err)
	}
	m.must(os.WriteFile(unit, []byte(was), 0o644))
	if did := apply(); !slices.Contains(did, "remove /etc/systemd/system/durward-vault.service") {
		t.Errorf("does %q", did)
	}
	for _, gone := range []string{"usr/local/lib/durward", "usr/local/bin/durward", "etc/systemd/system/durward-vault.service", "etc/systemd/system/durward-firewall.service",
		"etc/sysusers.d/durward.conf", "etc/tmpfiles.d/durward.conf", man} {
		if _, err := os.Lstat(m.path(gone)); err == nil {
			t.Errorf("%s is left", gone)
		}
	}
	if m.read("etc/durward/keys/grant.key") != key || !strings.Contains(m.read("etc/durward/firewall.nft"), "tcp dport { 7430, 7440,") {
		t.Error("what is the host's has changed")
	}
	if did := apply(); len(did) != 0 {
		t.Errorf("again %q", did)
	}
	m.write("usr/lib/durward/vault", "another version")
	record, err := install.ReadRecord(m.root)
	m.must(err)
	if got := record.Behind(m.root); !slices.Equal(got, []string{"/usr/lib/durward/vault"}) {
		t.Errorf("behind are %q", got)
	}
	if did := apply(); !slices.Equal(did, []string{"change /usr/lib/durward/vault", "change /etc/durward/installed.json"}) {
		t.Errorf("another version: %q", did)
	}
	m.must(os.Remove(m.path("usr/lib/durward/audit")))
	if _, err := install.New(o); err == nil || !strings.Contains(err.Error(), "sudo dpkg --install") {
		t.Errorf("half a package: %v", err)
	}
}

// TestVerify: the package's files are held to its list, and the list to whose key signed it.
func TestVerify(t *testing.T) {
	m := newImage(t)
	m.packaged()
	m.write("usr/share/man/man1/durward.1.gz", "left out on many hosts")
	var list strings.Builder
	m.must(filepath.WalkDir(m.path("usr"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(b), strings.TrimPrefix(path, m.root+"/"))
		}
		return err
	}))
	m.write("usr/lib/durward/SHA256SUMS", list.String())
	verify := func(signers string) (install.Shipped, error) { return install.Verify(m.root, []byte(signers), m.now) }
	if s, err := verify(""); err != nil || len(s.Differ) != 0 || s.Key != "" || s.Files < 20 {
		t.Errorf("as packed, unsigned: %+v, %v", s, err)
	}
	_, private, err := ed25519.GenerateKey(nil)
	m.must(err)
	signer, err := ssh.NewSignerFromKey(private)
	m.must(err)
	sign := func(namespace string) {
		signature, err := sshsig.Sign(strings.NewReader(list.String()), signer, sshsig.HashSHA512, namespace)
		m.must(err)
		m.write("usr/lib/durward/SHA256SUMS.sig", string(sshsig.Armor(signature)))
	}
	line := "maker namespaces=\"durward-release\" " + string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
	sign("durward-release")
	if s, err := verify(line); err != nil || s.Signer != "maker" {
		t.Errorf("signed: %+v, %v", s, err)
	}
	if s, err := verify("# nobody\n"); err != nil || s.Signer != "" || s.Key != ssh.FingerprintSHA256(signer.PublicKey()) {
		t.Errorf("signed by nobody known: %+v, %v", s, err)
	}
	sign("durward-approval")
	if _, err := verify(line); !errors.Is(err, install.ErrReleaseSignature) {
		t.Errorf("signed for something else: %v", err)
	}
	sign("durward-release")
	m.must(os.Remove(m.path("usr/share/man/man1/durward.1.gz")))
	m.write("usr/lib/durward/vault", "another")
	m.write("usr/lib/durward/more", "not packed")
	m.must(os.Remove(m.path("usr/lib/systemd/system/durward.target")))
	if s, err := verify(line); err != nil || !slices.Equal(s.Differ, []string{"/usr/lib/durward/vault", "/usr/lib/systemd/system/durward.target", "/usr/lib/durward/more"}) {
		t.Errorf("changed: %+v, %v", s, err)
	}
	m.write("usr/lib/durward/SHA256SUMS", list.String()+"00  usr/lib/durward/more\n")
	if _, err := verify(line); !errors.Is(err, install.ErrReleaseSignature) {
		t.Errorf("a longer list: %v", err)
	}
}

// TestContainers: what containers need is laid out, with users that are there already, and nothing of systemd's.
func TestContainers(t *testing.T) {
	m := newImage(t)
	in := install.Settings{Containers: true, Egress: true}
	refused := func(want string, settings install.Settings) {
		t.Helper()
		if _, err := install.New(m.options(settings)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: says %v, not %q", settings, err, want)
		}
	}
	refused("has a user for each process", in)
	m.must(m.command(t.Context(), "systemd-sysusers", "durward-egress.conf"))
	m.ran = nil
	refused("whose processes systemd runs", install.Settings{Containers: true, Firewall: true})
	m.apply(in)
	if len(m.ran) > 0 {
		t.Errorf("runs %q", m.ran)
	}
	for path, mode := range map[string]fs.FileMode{
		"etc/durward": 0o750, "etc/durward/keys": 0o700, "etc/durward/keys/grant.key": 0o640, "etc/durward/keys/log.key": 0o640, "etc/durward/tls/egress/key.pem": 0o640,
		"run/durward/vault": 0o710, "var/lib/durward/vault": 0o700, "var/lib/durward/egress": 0o700, "home/alice": 0o700,
	} {
		if info, err := os.Stat(m.path(path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	for _, path := range []string{"etc/systemd", "etc/sysusers.d", "usr/local"} {
		if _, err := os.Lstat(m.path(path)); err == nil {
			t.Errorf("there is %s", path)
		}
	}
	if text := m.read("etc/durward/executor.yaml"); !strings.Contains(text, "in_container: true") {
		t.Errorf("the executor does not know where it is:\n%s", text)
	}
	if did := m.apply(in); len(did) > 0 {
		t.Errorf("a second run: %v", did)
	}
	in.HealthOnLoopback = true
	m.apply(in)
	for role, want := range map[string]string{"gateway": "health_listen: 127.0.0.1:", "executor": "health_listen: 127.0.0.1:", "vault": "health_listen: unix:", "audit": "health_listen: unix:"} {
		if text := m.read("etc/durward/" + role + ".yaml"); !strings.Contains(text, want) {
			t.Errorf("%s has not %q", role, want)
		}
	}
	var egress struct{ Own []netip.AddrPort }
	if err := yaml.Unmarshal([]byte(m.read("etc/durward/egress.yaml")), &egress); err != nil || len(egress.Own) != 3 {
		t.Errorf("never dialled: %v, %v; want the ports of MCP and of two processes' health", egress.Own, err)
	}
	refused("an installation of the other kind", install.Settings{})
}
