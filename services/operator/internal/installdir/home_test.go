package installdir

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest/input"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/trust"
)

func newHome(t *testing.T) Home {
	t.Helper()
	h, err := At(filepath.Join(t.TempDir(), "it's a home"))
	must(t, err)
	return h
}

// tree returns every file with its content and mode.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = info.Mode().String() + "\n" + string(b)
		return err
	})
	must(t, err)
	return out
}

func TestInitRefuses(t *testing.T) {
	open := newHome(t)
	must(t, os.MkdirAll(open.Dir, 0o700))
	must(t, os.Chmod(open.Dir, 0o777))
	for _, c := range []struct {
		name string
		home Home
		opts Options
		want string
	}{
		{"bad name", newHome(t), Options{Development: true, Operator: "Alice"}, "operator name"},
		{"name with newline", newHome(t), Options{Development: true, Operator: "alice\n"}, "operator name"},
		{"privileged ports", newHome(t), Options{Development: true, Operator: "alice", BasePort: 80}, "base port"},
		{"ports beyond the last", newHome(t), Options{Development: true, Operator: "alice", BasePort: 65530}, "base port"},
		{"others may write", open, Options{Development: true, Operator: "alice"}, "others may write"},
		{"nobody to ask for a passphrase", newHome(t), Options{Operator: "alice"}, signingkey.ErrNeedsHuman.Error()},
	} {
		if _, err := c.home.Init(c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.home.Exists() {
			t.Errorf("%s: the home counts as made", c.name)
		}
	}
}

func TestInitOnce(t *testing.T) {
	h := newHome(t)
	opts := Options{Development: true, Operator: "alice", BasePort: 8430}
	made, err := h.Init(opts)
	must(t, err)
	if len(made) == 0 || !h.Exists() {
		t.Fatalf("made %v", made)
	}
	if _, err := h.RenewCertificates("alice", time.Now(), false); err != nil {
		t.Fatal(err)
	}
	before := tree(t, h.Dir)
	for name, content := range before {
		if !strings.HasPrefix(content, "-rw-------\n") {
			t.Errorf("%s has mode %s", name, content[:10])
		}
	}
	if made, err = h.Init(opts); err != nil || len(made) != 0 {
		t.Errorf("a second Init made %v, %v", made, err)
	}
	if renewed, err := h.RenewCertificates("alice", time.Now(), false); err != nil || len(renewed) != 0 {
		t.Errorf("fresh certificates were renewed: %v, %v", renewed, err)
	}
	if diff := cmp.Diff(before, tree(t, h.Dir)); diff != "" {
		t.Errorf("a second Init changed something: %s", diff)
	}
	must(t, errors.Join(os.Remove(h.Config("gateway")), os.Remove(h.Config("executor"))))
	opts.BasePort = 0
	if made, err = h.Init(opts); err != nil || len(made) != 2 {
		t.Errorf("of two files that were gone it made %v, %v", made, err)
	}
	if diff := cmp.Diff(before, tree(t, h.Dir)); diff != "" {
		t.Errorf("they are not as they were: %s", diff)
	}

	// The file whose presence says that the home is complete is made by what the others say, whatever ports were asked for.
	for _, opts.BasePort = range []int{0, 9430} {
		must(t, os.Remove(h.Config("operator")))
		if made, err = h.Init(opts); err != nil || len(made) != 1 {
			t.Errorf("of the one file that was gone it made %v, %v", made, err)
		}
		if diff := cmp.Diff(before, tree(t, h.Dir)); diff != "" {
			t.Errorf("it is not as it was: %s", diff)
		}
	}

	cfg, err := h.Load()
	must(t, err)
	if cfg.Operator != "alice" || cfg.Vault.Address != "127.0.0.1:8431" || cfg.Health.Audit != "127.0.0.1:8443" || cfg.MCPURL != "http://127.0.0.1:8430/mcp" {
		t.Errorf("configuration %+v", cfg)
	}
	// What every process will do first with its part of it.
	folder, err := trust.Open(h.Trust())
	must(t, err)
	defer folder.Close()
	for _, role := range append(Roles(), "operator") {
		if _, err := identity.Open(identity.Files{Certificate: h.TLS(role, "cert.pem"), Key: h.TLS(role, "key.pem")}, folder); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
	if signers := folder.Current().AllowedSigners.All(); len(signers) != 1 || signers[0].Operator != "alice" || !cmp.Equal(signers[0].Namespaces, []string{"durward-approval"}) {
		t.Errorf("allowed signers %+v", signers)
	}
	if !h.IsExampleCatalog() {
		t.Error("the fresh catalogue is not the example")
	}
}

// TestCopiedHome: a copy whose configuration names the files of a home that is still there is not used, since that would change the other's.
func TestCopiedHome(t *testing.T) {
	h, copied := newHome(t), newHome(t)
	if _, err := h.Init(Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	link := Home{Dir: filepath.Join(t.TempDir(), "link")}
	must(t, errors.Join(os.CopyFS(copied.Dir, os.DirFS(h.Dir)), os.Chmod(copied.Dir, 0o700), os.Symlink(h.Dir, link.Dir)))
	for _, own := range []Home{h, link} {
		if _, err := own.Load(); err != nil {
			t.Errorf("%s: %v", own.Dir, err)
		}
	}
	if _, err := copied.Load(); err == nil || !strings.Contains(err.Error(), "is a copy of "+h.Dir) {
		t.Errorf("the copy: %v", err)
	}
}

func TestRenewAtHalfLife(t *testing.T) {
	h := newHome(t)
	if _, err := h.Init(Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if renewed, err := h.RenewCertificates("alice", now, false); err != nil || len(renewed) != 5 {
		t.Fatalf("first issue: %v, %v", renewed, err)
	}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{11 * time.Hour, 0}, {13 * time.Hour, 5}} {
		renewed, err := h.RenewCertificates("alice", now.Add(c.after), false)
		if err != nil || len(renewed) != c.want {
			t.Errorf("after %s: %v, %v; want %d", c.after, renewed, err, c.want)
		}
	}
	if renewed, err := h.RenewCertificates("bob", now, false); err != nil || !cmp.Equal(renewed, []string{"operator"}) {
		t.Errorf("another operator: %v, %v", renewed, err)
	}
}

// TestRenewalsAtOnce: `durward up` renews by itself beside `durward cert renew`, and every certificate has the key beside it afterwards.
func TestRenewalsAtOnce(t *testing.T) {
	h := newHome(t)
	if _, err := h.Init(Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := h.RenewCertificates("alice", time.Now(), true); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, c := range h.Certificates() {
			if c.Problem != "" {
				t.Errorf("%s: %s", c.Role, c.Problem)
			}
		}
	}
}

// The example that up writes is the one that is documented, and every server's own tests load that one.
func TestCatalogIsTheDocumentedExample(t *testing.T) {
	input.Outside(t)
	documented := testfile.Read(t, "../../../../deploy/config/catalogue.yaml")
	embedded, err := templates.ReadFile("templates/catalogue.yaml")
	must(t, err)
	if !bytes.Equal(documented, embedded) {
		t.Error("templates/catalogue.yaml and deploy/config/catalogue.yaml differ: copy the one over the other")
	}
}

func TestDocumentedOperatorConfig(t *testing.T) {
	input.Outside(t)
	cfg, err := LoadConfig("../../../../deploy/config/operator.yaml")
	must(t, err)
	if cfg.Operator != "alice" {
		t.Errorf("operator %q", cfg.Operator)
	}
}

func TestLoadConfigRefuses(t *testing.T) {
	input.Outside(t)
	good := testfile.Read(t, "../../../../deploy/config/operator.yaml")
	for name, c := range map[string][3]string{
		"unknown key":   {"operator: alice", "operater: alice", `did you mean "operator"`},
		"relative path": {"/etc/durward/trust", "trust", "trust_dir"},
		"not a SPIFFE":  {"spiffe://durward.local/vault/main", "spiffe://durward.local/vault", "vault.identity"},
		"not a URL":     {"http://127.0.0.1:7430/mcp", "127.0.0.1:7430", "mcp_url"},
		"no health":     {"gateway: 127.0.0.1:7440", "gateway: localhost", "health.gateway"},
	} {
		path := filepath.Join(t.TempDir(), "operator.yaml")
		testfile.Write(t, path, bytes.Replace(good, []byte(c[0]), []byte(c[1]), 1))
		if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteFile(filepath.Join(dir, "missing", "f"), nil, 0o600); err == nil {
		t.Error("wrote into a folder that is not there")
	}
	for _, content := range []string{"one", "two"} {
		must(t, WriteFile(path, []byte(content), 0o600))
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%q, %v", got, err)
		}
	}
	if err := CreateFile(path, nil, 0o600); !errors.Is(err, os.ErrExist) {
		t.Errorf("CreateFile over a file: %v", err)
	}
	// A target that cannot be replaced is left whole, with nothing beside it.
	must(t, os.MkdirAll(filepath.Join(dir, "folder", "x"), 0o700))
	if err := WriteFile(filepath.Join(dir, "folder"), []byte("x"), 0o600); err == nil {
		t.Error("replaced a folder")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestLock(t *testing.T) {
	h := newHome(t)
	release, err := h.Lock("up")
	must(t, err)
	if _, err := h.Lock("up"); !errors.Is(err, ErrLocked) {
		t.Errorf("locked twice: %v", err)
	}
	must(t, release())
	release, err = h.Lock("up")
	must(t, err)
	if err := release(); err != nil {
		t.Error(err)
	}
}

// A folder that cannot be made or looked into is named, with the cause.
func TestAFolderThatCannotBeUsed(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, h Home){
		"a file":            func(t *testing.T, h Home) { must(t, os.WriteFile(h.Dir, nil, 0o600)) },
		"a loop":            func(t *testing.T, h Home) { must(t, os.Symlink(h.Dir, h.Dir)) },
		"a folder for run/": func(t *testing.T, h Home) { must(t, os.MkdirAll(h.run("up.lock"), 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := Home{Dir: filepath.Join(t.TempDir(), "home")}
			prepare(t, h)
			_, err := h.Lock("up")
			if !errors.Is(err, ErrUnusable) || !strings.HasPrefix(err.Error(), "the folder "+h.Dir+" cannot be used: ") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAHomeOfOthersIsNotTouched(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, h Home){
		"others may write the home":       func(t *testing.T, h Home) { must(t, os.Chmod(h.Dir, 0o777)) },
		"others may write one of its own": func(t *testing.T, h Home) { must(t, os.Chmod(h.run(""), 0o777)) },
		"another user's": func(t *testing.T, h Home) {
			if os.Geteuid() != 0 {
				t.Skip("only root gives folders away")
			}
			must(t, os.Chown(h.Dir, 61234, 61234))
		},
		"another user's configuration": func(t *testing.T, h Home) {
			if os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			must(t, os.Chown(h.Config("operator"), 61234, 61234))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			opts := Options{Development: true, Operator: "alice"}
			if _, err := h.Init(opts); err != nil {
				t.Fatal(err)
			}
			must(t, os.RemoveAll(h.path("clients")))
			prepare(t, h)
			if _, err := h.Lock("up"); err == nil {
				t.Error("locked")
			}
			if _, err := h.Init(opts); err == nil {
				t.Error("made")
			}
			if _, err := h.Load(); err == nil {
				t.Error("read")
			}
			for _, made := range []string{h.run("up.lock"), h.path("clients")} {
				if _, err := os.Lstat(made); err == nil {
					t.Errorf("%s was made", made)
				}
			}
		})
	}
}

// A key that is gone is not made again where its public half is trusted: what the old one signed would be verified with a key that never
// signed it, and putting the old one back would not mend that.
func TestLostKeys(t *testing.T) {
	for name, lost := range map[string]func(h Home) string{
		"the authority's": func(h Home) string { return h.PKI("ca.key") },
		"the vault's":     func(h Home) string { return h.Key("grant.key") },
		"the log's":       func(h Home) string { return h.Key("log.key") },
		"its public half": func(h Home) string { return h.Trust(trust.FileLogKeys) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			opts := Options{Development: true, Operator: "alice"}
			if _, err := h.Init(opts); err != nil {
				t.Fatal(err)
			}
			must(t, os.Remove(lost(h)))
			before := tree(t, h.Dir)
			if made, err := h.Init(opts); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), lost(h)) || len(made) > 0 {
				t.Errorf("made %v: %v", made, err)
			}
			if diff := cmp.Diff(before, tree(t, h.Dir)); diff != "" {
				t.Errorf("something changed: %s", diff)
			}
		})
	}
	t.Run("the operator's", func(t *testing.T) {
		h := newHome(t)
		opts := Options{Operator: "alice", Passphrase: func() ([]byte, error) { return []byte("a passphrase"), nil }}
		if _, err := h.Init(opts); err != nil {
			t.Fatal(err)
		}
		must(t, os.Remove(h.Key("operator_ed25519"))) // to where no program of this host reads it
		opts.Passphrase = nil
		if made, err := h.Init(opts); err != nil || len(made) > 0 {
			t.Errorf("made %v: %v", made, err)
		}
	})
}

// Whom people had let in and shut out is not made up anew.
func TestLostTrust(t *testing.T) {
	h := newHome(t)
	opts := Options{Development: true, Operator: "alice"}
	if _, err := h.Init(opts); err != nil {
		t.Fatal(err)
	}
	must(t, os.Rename(h.Trust(""), h.Dir+".aside"))
	if made, err := h.Init(opts); !errors.Is(err, ErrLost) || len(made) > 0 {
		t.Errorf("made %v: %v", made, err)
	}
	if _, err := os.Lstat(h.Trust("")); err == nil {
		t.Error("a trust folder was made, where the one of before is to be put back")
	}
}

func TestALockIsNoLink(t *testing.T) {
	h := newHome(t)
	must(t, os.MkdirAll(h.run(""), 0o700))
	elsewhere := filepath.Join(h.Dir, "elsewhere")
	must(t, os.Symlink(elsewhere, h.run("up.lock")))
	if _, err := h.Lock("up"); err == nil {
		t.Error("a link was followed")
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("a file was made where a link leads")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestProcess(t *testing.T) {
	h := newHome(t)
	must(t, os.MkdirAll(h.run(""), 0o700))
	if _, ok := h.RunningProcess(); ok {
		t.Error("something runs in an empty home")
	}
	self, err := Self(true)
	must(t, err)
	for _, c := range []struct {
		name string
		p    Process
		want bool
	}{
		{"another start", Process{PID: self.PID, StartTime: self.StartTime + 1}, false},
		{"nobody", Process{PID: 1 << 30, StartTime: 1}, false},
		{"init", Process{PID: 1}, false},
		{"itself", self, true},
	} {
		must(t, h.WriteProcess(c.p))
		if _, got := h.RunningProcess(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestOperatorName(t *testing.T) {
	for in, want := range map[string]string{"": "operator", "Alice": "alice", "o'neil": "oneil", "__x": "x", "пётр": "operator", strings.Repeat("a", 50): strings.Repeat("a", 32)} {
		got := OperatorName(in)
		if got != want || !operatorPattern().MatchString(got) {
			t.Errorf("OperatorName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFind(t *testing.T) {
	user := t.TempDir()
	data := filepath.Join(user, "data")
	usual := filepath.Join(user, ".durward")
	find := func(flag string, env ...string) (string, error) {
		h, err := Find(flag, func(name string) string {
			for _, pair := range env {
				if value, ok := strings.CutPrefix(pair, name+"="); ok {
					return value
				}
			}
			return ""
		})
		return h.Dir, err
	}
	for _, bad := range [][]string{nil, {"HOME=" + user, "DURWARD_HOME=relative"}, {"XDG_DATA_HOME=relative"}} {
		if got, err := find("", bad...); err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
	for _, there := range []bool{false, true} {
		fresh := filepath.Join(data, "durward")
		if there {
			must(t, os.Mkdir(usual, 0o700))
			fresh = usual // what is there is not lost sight of
		}
		for _, c := range []struct {
			flag string
			env  []string
			want string
		}{
			{"/flag", []string{"HOME=" + user, "DURWARD_HOME=/variable", "XDG_DATA_HOME=" + data}, "/flag"},
			{"", []string{"HOME=" + user, "DURWARD_HOME=/variable", "XDG_DATA_HOME=" + data}, "/variable"},
			{"", []string{"HOME=" + user, "XDG_DATA_HOME=" + data}, fresh},
			{"", []string{"HOME=" + user, "XDG_DATA_HOME=relative"}, usual},
			{"", []string{"HOME=" + user}, usual},
			{"", []string{"XDG_DATA_HOME=" + data}, filepath.Join(data, "durward")},
		} {
			if got, err := find(c.flag, c.env...); err != nil || got != c.want {
				t.Errorf("%q %q: %s, %v, want %s", c.flag, c.env, got, err, c.want)
			}
		}
	}
}

// TestSetAside: a home that was moved works where it lies then, and names nothing where it lay.
func TestSetAside(t *testing.T) {
	for _, name := range []string{"h", "it's a home"} {
		h, err := At(filepath.Join(t.TempDir(), name))
		must(t, err)
		var was []string
		for range 2 {
			if _, err := h.Init(Options{Development: true, Operator: "alice", BasePort: 29430}); err != nil {
				t.Fatal(err)
			}
			release, err := h.Lock("up")
			must(t, err)
			if aside, err := h.SetAside(); !errors.Is(err, ErrLocked) || !h.Exists() {
				t.Fatalf("in use: %s, %v", aside, err)
			}
			must(t, release())
			aside, err := h.SetAside()
			if err != nil || h.Exists() {
				t.Fatalf("%s, %v", aside, err)
			}
			was = append(was, aside)
		}
		if was[0] != h.Dir+"-aside" || was[1] != h.Dir+"-aside-2" {
			t.Errorf("set aside as %q", was)
		}
		for _, dir := range was {
			moved := Home{Dir: dir}
			cfg, err := moved.Load()
			if err != nil || cfg.TrustDir != moved.Trust() || cfg.SigningKey != moved.Key("operator_ed25519") {
				t.Fatalf("%+v, %v", cfg, err)
			}
			if made, err := moved.Init(Options{Development: true, Operator: "alice", BasePort: 29430}); err != nil || len(made) != 0 {
				t.Errorf("something is missing there: %q, %v", made, err)
			}
			err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || !entry.Type().IsRegular() {
					return err
				}
				text, err := os.ReadFile(path)
				if bytes.Contains(text, []byte(h.Dir+"/")) {
					t.Errorf("%s still names %s", path, h.Dir)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}
