package install_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/home"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/trust"
)

// image is the root of another host, with the programs of systemd imitated.
type image struct {
	*testing.T
	root, programs string
	ran            []string
	public         []byte
	joinErr        error
	now            time.Time
}

func newImage(t *testing.T) *image {
	t.Helper()
	m := &image{T: t, root: filepath.Join(t.TempDir(), "root"), programs: t.TempDir(), now: time.Now()}
	_, public, err := keys.Generate("alice", nil)
	m.must(err)
	m.public = public
	m.write("etc/passwd", fmt.Sprintf("root:x:0:0::/root:/bin/sh\nalice:x:%d:%d::/home/alice:/bin/sh\n", os.Getuid(), os.Getgid()))
	m.write("etc/group", "root:x:0:\ndocker:x:64001:\n")
	for _, name := range append(home.Roles(), "durward") {
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
		for _, role := range home.Roles() {
			passwd += fmt.Sprintf("durward-%s:x:%d:%d::/:/sbin/nologin\n", role, os.Getuid(), os.Getgid())
			group += fmt.Sprintf("durward-%s:x:%d:\n", role, os.Getgid())
			members = append(members, "durward-"+role)
		}
		group += fmt.Sprintf("durward:x:%d:%s\ndurward-operators:x:%d:\n", os.Getgid(), strings.Join(members, ","), os.Getgid())
		m.write("etc/passwd", passwd)
		m.write("etc/group", group)
	case "usermod":
		group := strings.ReplaceAll(m.read("etc/group"), "durward-gateway\n", "durward-gateway,alice\n")
		m.write("etc/group", strings.Replace(group, fmt.Sprintf("durward-operators:x:%d:\n", os.Getgid()), fmt.Sprintf("durward-operators:x:%d:alice\n", os.Getgid()), 1))
	case "systemd-tmpfiles":
		for _, role := range home.Roles() {
			m.must(os.MkdirAll(m.path("run/durward/"+role), 0o710))
			m.must(os.MkdirAll(m.path("var/lib/durward/"+role), 0o700))
		}
	case "systemctl":
		for _, unit := range args {
			by := map[bool]string{true: "durward.target.wants", false: "timers.target.wants"}[strings.HasSuffix(unit, ".service")]
			if unit == "durward.target" {
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
		Join: func(_ context.Context, who install.Member) ([]byte, error) {
			m.write(filepath.Join(who.Home, ".durward/config/operator.yaml"), "operator: "+who.Operator+"\n")
			if who.Without != (who.Name == "root") || len(who.Groups) != 2 || who.Root != m.root {
				m.Errorf("joins %+v", who)
			}
			if who.Without {
				return nil, nil
			}
			return m.public, m.joinErr
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
		"ca.key is not root's alone":     func(m *image, _ *install.Options) { m.write("etc/durward/pki/ca.key", "x") },
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
		"etc/durward/trust/allowed_signers": 0o644, "usr/local/lib/durward/vault": 0o755,
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

// TestConfigurations reads what the processes will read.
func TestConfigurations(t *testing.T) {
	for _, settings := range []install.Settings{{}, {HealthOnLoopback: true, Docker: true}} {
		m := newImage(t)
		m.apply(settings)
		for _, role := range home.Roles() {
			text := m.read("etc/durward/" + role + ".yaml")
			var c struct {
				config.Common          `yaml:",inline"`
				Vault, Executor, Audit config.Peer
			}
			m.must(yaml.Unmarshal([]byte(text), &c))
			m.must(c.Validate())
			for _, peer := range []config.Peer{c.Vault, c.Executor, c.Audit} {
				if peer != (config.Peer{}) {
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
	if got := renewed(true); len(got) != 6 {
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
	join := func(name string, change func(*install.JoinOptions)) ([]byte, home.Home, error) {
		t.Helper()
		h, err := home.At(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		o := install.JoinOptions{Home: h, Operator: "alice", Passphrase: ask}
		if change != nil {
			change(&o)
		}
		public, err := install.Join(settings, o)
		return public, h, err
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
	if protected, err := keys.Protected(cfg.SigningKey); err != nil || !protected {
		t.Errorf("the new key has no passphrase: %v", err)
	}
	again, _, err := join("new", nil)
	if err != nil || string(again) != string(public) {
		t.Errorf("the second time: %v, %s", err, again)
	}

	if _, h, err = join("nobody", func(o *install.JoinOptions) {
		o.Passphrase = func() ([]byte, error) { return nil, keys.ErrNeedsHuman }
	}); !errors.Is(err, keys.ErrNeedsHuman) || h.Exists() {
		t.Errorf("without a terminal: %v, and a configuration %v", err, h.Exists())
	}
	if public, h, err = join("root", func(o *install.JoinOptions) { o.Without = true }); err != nil || public != nil || !h.Exists() {
		t.Errorf("without a key: %v, %s", err, public)
	}
	private, openPublic, err := keys.Generate("alice", nil)
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

	own, err := home.At(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Init(home.Options{Development: true, Operator: "alice", BasePort: 29430}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := join("own", nil); err == nil || !strings.Contains(err.Error(), "installation of its own") {
		t.Errorf("over a development installation: %v", err)
	}
}
