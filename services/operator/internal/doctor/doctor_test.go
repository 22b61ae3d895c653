package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/supervisor"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/lifelog"
	"durward.internal/services/platform/platformtest/testfile"
)

// installation is a home whose four processes are one test server.
func installation(t *testing.T, skew time.Duration) Config {
	t.Helper()
	h, err := installdir.At(filepath.Join(t.TempDir(), "a home"))
	must(t, err)
	if _, err := h.Init(installdir.Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.RenewCertificates("alice", time.Now(), true); err != nil {
		t.Fatal(err)
	}
	cfg, err := h.Load()
	must(t, err)
	serve := func(role string) string { return served(t, role, skew) }
	cfg.Health = installdir.HealthAddresses{Gateway: serve("gateway"), Vault: serve("vault"), Executor: serve("executor"), Audit: serve("audit")}
	return Config{
		Home: h, Operator: cfg, Development: true, Bin: "/bin", Own: "1", Root: t.TempDir(), Now: time.Now, HTTP: http.DefaultClient,
		Version: func(_ context.Context, path string) (string, error) { return filepath.Base(path) + " 1", nil },
	}
}

// served is the address of the health listener of a process that is well.
func served(t *testing.T, role string, skew time.Duration) string {
	t.Helper()
	return answers(t, role, "ok", skew)
}

// answers is the address of a process's health listener.
func answers(t *testing.T, role, status string, skew time.Duration) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
		// The client refuses a reply that is cut short.
		_ = json.NewEncoder(w).Encode(map[string]string{"status": status, "service": role, "version": "1"})
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// A process that answers and is not well holds its own port, and has not stopped.
func TestUnwell(t *testing.T) {
	cfg := installation(t, 0)
	cfg.Operator.Health.Vault = answers(t, "vault", "unavailable", 0)
	cfg.Taken = func(string) error { return errors.New("vault cannot listen: 127.0.0.1:7431 is in use by vault") }
	logged(t, cfg.Home.Log("vault"), lifelog.Starting, lifelog.Failed)
	findings := Examine(t.Context(), cfg)
	if f := level(t, findings, "processes"); f.Level != Warning || !strings.Contains(f.Text, "vault") || strings.Contains(f.Do, "durward up") {
		t.Errorf("%+v", f)
	}
	for _, f := range findings {
		if f.Name == "ports" || f.Name == "vault" {
			t.Errorf("%+v", f)
		}
	}
}

// silent is a vault whose address is taken, and where nobody answers.
func silent(t *testing.T, c *Config) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	c.Operator.Health.Vault, c.HTTP = l.Addr().String(), &http.Client{Timeout: 100 * time.Millisecond}
}

// logged writes a process's log, with lines of another's among its own.
func logged(t *testing.T, path string, messages ...string) {
	t.Helper()
	text := "a line that is no JSON\n"
	for _, m := range messages {
		text += `{"level":"ERROR","msg":"` + m + `","error":"the database is damaged"}` + "\n{}\n"
	}
	testfile.Write(t, path, text)
}

// A log of a life that began again, or ended well, says nothing of an older one's end.
func TestOldFailures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for want, messages := range map[string][]string{
		"the database is damaged": {lifelog.Starting, lifelog.Failed, "exiting"},
		"":                        {lifelog.Failed, lifelog.Starting, lifelog.Stopped},
	} {
		logged(t, path, messages...)
		if got := failure("vault", supervisor.Tail(path, 1000, 0)); got != want {
			t.Errorf("%v: got %q, want %q", messages, got, want)
		}
	}
	if got := failure("vault", ""); got != "" {
		t.Errorf("no log: %q", got)
	}
	logged(t, path, lifelog.Starting, lifelog.Failed)
	if got := failure("vault", supervisor.Tail(path, 1000, 0)+"\nvault: vault.yaml:10:1: unknown key\n"); got != "" {
		t.Errorf("a life that a wrong configuration kept from beginning ended with %q", got)
	}
}

func level(t *testing.T, findings []Finding, name string) Finding {
	t.Helper()
	for _, f := range findings {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no finding %q in %+v", name, findings)
	return Finding{}
}

func TestExamine(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*testing.T, *Config)
		look   string
		want   Level
	}{
		{"as made", func(*testing.T, *Config) {}, "permissions", Good},
		{"as made", func(*testing.T, *Config) {}, "processes", Good},
		{"as made", func(*testing.T, *Config) {}, "clock", Good},
		{"as made", func(*testing.T, *Config) {}, "certificates", Good},
		{"as made", func(*testing.T, *Config) {}, "programs", Good},
		{"development's key", func(*testing.T, *Config) {}, "signing key", Warning},
		{"the same key outside development", func(_ *testing.T, c *Config) {
			c.Development, c.Taken = false, func(string) error { return nil }
		}, "signing key", Bad},
		{"the same key of what runs", func(_ *testing.T, c *Config) { c.Development = false }, "signing key", Bad},
		{"a key that others can read", func(t *testing.T, c *Config) {
			must(t, os.Chmod(c.Home.Key("grant.key"), 0o640))
		}, "permissions", Bad},
		{"a program of another's server", func(t *testing.T, c *Config) {
			folder := filepath.Join(c.Home.State("egress"), "servers")
			if err := errors.Join(os.MkdirAll(filepath.Join(folder, "programs"), 0o700), os.WriteFile(filepath.Join(folder, "programs", "aa"), nil, 0o600),
				os.Chmod(filepath.Join(folder, "programs", "aa"), 0o555)); err != nil { // as egress copies it
				t.Fatal(err)
			}
		}, "permissions", Good},
		{"the folder of other people's servers, open", func(t *testing.T, c *Config) {
			folder := filepath.Join(c.Home.State("egress"), "servers")
			must(t, errors.Join(os.MkdirAll(folder, 0o700), os.Chmod(folder, 0o755)))
		}, "permissions", Bad},
		{"an internal program let in", func(t *testing.T, c *Config) {
			tool, err := c.Home.Tool("reporter")
			if err == nil {
				err = tool.Create(c.Operator, nil)
			}
			must(t, err)
		}, "permissions", Good},
		{"expired", func(_ *testing.T, c *Config) { c.Now = func() time.Time { return time.Now().Add(25 * time.Hour) } }, "certificates", Bad},
		{"due", func(_ *testing.T, c *Config) { c.Now = func() time.Time { return time.Now().Add(20 * time.Hour) } }, "certificates", Warning},
		{"a clock of last year", func(_ *testing.T, c *Config) { c.Now = func() time.Time { return time.Now().AddDate(-1, 0, 0) } }, "certificates", Bad},
		{"a missing program", func(_ *testing.T, c *Config) {
			c.Version = func(context.Context, string) (string, error) { return "", errors.New("no") }
		}, "programs", Bad},
		{"another version", func(_ *testing.T, c *Config) { c.Own = "2" }, "programs", Warning},
		{"swapped ports", func(_ *testing.T, c *Config) { c.Operator.Health.Vault = c.Operator.Health.Audit }, "ports", Bad},
		{"nobody there", func(_ *testing.T, c *Config) { c.Operator.Health.Vault = "127.0.0.1:1" }, "processes", Warning},
		{"one that hangs", silent, "processes", Warning},
		{"a port that is another's", func(_ *testing.T, c *Config) {
			c.Operator.Health.Vault = "127.0.0.1:1"
			c.Taken = func(role string) error {
				return errors.New(role + " cannot listen: 127.0.0.1:7431 is in use by " + role)
			}
		}, "ports", Bad},
		{"a port at which another program is silent", func(t *testing.T, c *Config) {
			silent(t, c)
			c.Taken = func(role string) error { return errors.New(role + " cannot listen: it is in use by nc") }
		}, "ports", Bad},
		{"a log that says why", func(t *testing.T, c *Config) {
			c.Operator.Health.Vault = "127.0.0.1:1"
			logged(t, c.Home.Log("vault"), lifelog.Starting, lifelog.Failed)
		}, "vault", Bad},
		{"no driver", func(*testing.T, *Config) {}, "drivers", Warning},
	} {
		t.Run(c.name+", "+c.look, func(t *testing.T) {
			cfg := installation(t, 0)
			c.change(t, &cfg)
			f := level(t, Examine(context.Background(), cfg), c.look)
			if f.Level != c.want {
				t.Errorf("%+v, want %s", f, c.want)
			}
			if f.Level != Good && f.Do == "" || c.name == "a clock of last year" && (!strings.Contains(f.Do, "clock") || !strings.Contains(f.Do, "durward cert renew")) {
				t.Errorf("%+v does not say what to do", f)
			}
			if c.name == "one that hangs" && strings.Contains(f.Do, "durward up") {
				t.Errorf("%+v: what runs is not to be started", f)
			}
			if named := strings.HasSuffix(f.Do, "; or, to try things out: durward up --development"); named != (c.name == "the same key outside development") {
				t.Errorf("%+v: only while nothing runs it says how it is started as it is", f)
			}
			if dir := cfg.Home.Dir; strings.Contains(f.Do, dir) && !strings.Contains(f.Do, " '"+dir) {
				t.Errorf("%q is not to be typed: the folder's name has a space", f.Do)
			}
		})
	}
}

// Egress is looked at where there is one: that it answers, its program, its certificate, and the list of domains that it goes by.
func TestExamineEgress(t *testing.T) {
	const file = "domains.yaml"
	builtIn := uint32(len(destination.BuiltIn().Block))
	list := func(text string) func(*testing.T, *Config) {
		return func(t *testing.T, c *Config) {
			testfile.Write(t, filepath.Join(c.Operator.SecurityDir, file), text)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*testing.T, *Config)
		look   string
		want   Level
	}{
		{"as made", list("allow: [docs.example]\n"), "processes", Good},
		{"as made", list("allow: [docs.example]\n"), "certificates", Good},
		{"as made", list("allow: [docs.example]\n"), "programs", Good},
		{"as made", list("allow: [docs.example]\n"), "domains", Good},
		{"another list in force", list("allow: []\n"), "domains", Warning},
		{"a mistake in the list", list("allow: [\"*.com\"]\n"), "domains", Bad},
		{"a list that it refused", func(_ *testing.T, c *Config) { c.Host.Egress.DomainsRefused = "somebody else may write it" }, "domains", Bad},
		{"nobody there", func(_ *testing.T, c *Config) { c.Operator.Health.Egress = "127.0.0.1:1" }, "processes", Warning},
		{"without its certificate", func(t *testing.T, c *Config) {
			must(t, os.Remove(c.Home.TLS("egress", "cert.pem")))
		}, "certificates", Bad},
		{"without its folder of certificates", func(t *testing.T, c *Config) {
			must(t, os.RemoveAll(c.Home.TLS("egress", "")))
			t.Cleanup(func() { // what doctor says to do mends it
				if _, err := c.Home.RenewCertificates("alice", time.Now(), false); err != nil || level(t, certificates(t.Context(), *c), "certificates").Level != Good {
					t.Errorf("renewed: %v", err)
				}
			})
		}, "certificates", Bad},
		{"without its program", func(_ *testing.T, c *Config) {
			version := c.Version
			c.Version = func(ctx context.Context, path string) (string, error) {
				if filepath.Base(path) == "egress" {
					return "", errors.New("no")
				}
				return version(ctx, path)
			}
		}, "programs", Bad},
		{"halted", func(_ *testing.T, c *Config) { c.Host.Egress.Halted = true }, "halted", Warning},
	} {
		t.Run(c.name+", "+c.look, func(t *testing.T) {
			cfg := installation(t, 0)
			if f := domains(t.Context(), cfg); f != nil {
				t.Errorf("without egress: %v", f)
			}
			if _, err := cfg.Home.AddEgress(cfg.Operator); err != nil {
				t.Fatal(err)
			}
			health := cfg.Operator.Health
			var err error
			if cfg.Operator, err = cfg.Home.Load(); err != nil {
				t.Fatal(err)
			}
			health.Egress = served(t, "egress", 0)
			cfg.Operator.Health, cfg.Host.Egress = health, &egressv1.GetStatusResponse{Domains: 1 + builtIn}
			c.change(t, &cfg)
			if f := level(t, Examine(t.Context(), cfg), c.look); f.Level != c.want || f.Level != Good && f.Do == "" {
				t.Errorf("%+v, want %s", f, c.want)
			}
		})
	}
}

func TestClocksThatDiffer(t *testing.T) {
	for skew, want := range map[time.Duration]Level{10 * time.Minute: Bad, -time.Minute: Warning} {
		if f := level(t, clocks(context.Background(), installation(t, skew)), "clock"); f.Level != want {
			t.Errorf("%s: %+v, want %s", skew, f, want)
		}
	}
}

// TestFourEyes: whose client it is has to be known, and operators have to be called as clients' users can be.
func TestFourEyes(t *testing.T) {
	client := func(id, user string) string {
		return "  - {id: " + id + ", token_sha256: \"" + strings.Repeat("a", 64) + "\", channel: cli, tier_ceiling: WRITE" + user + "}\n"
	}
	for _, c := range []struct {
		name, settings, clients, operator string
		want                              []string
	}{
		{"two eyes", "", client("x", ""), "alice", nil},
		{"a client of nobody", "approvals: {four_eyes: true}\n", client("x", "") + client("y", ", user: bob"), "alice", []string{"warning nobody can approve what x ask"}},
		{"a revoked client of nobody", "approvals: {four_eyes: true}\n", client("x", ", revoked: true") + client("y", ", user: bob"), "alice", []string{"ok every client"}},
		{"an operator of another name", "approvals: {four_eyes: true}\n", client("y", ", user: bob"), "Alice@example.com", []string{"warning no client's user can be called like Alice@example.com"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := installation(t, 0)
			signers := filepath.Join(cfg.Operator.TrustDir, "allowed_signers")
			raw, err := os.ReadFile(signers)
			if err := errors.Join(err, os.WriteFile(filepath.Join(cfg.Operator.SecurityDir, "security.yaml"), []byte(c.settings), 0o600),
				os.WriteFile(cfg.Operator.Clients, []byte("clients:\n"+c.clients), 0o600),
				os.WriteFile(signers, []byte(strings.Replace(string(raw), "alice", c.operator, 1)), 0o600)); err != nil {
				t.Fatal(err)
			}
			found := fourEyes(context.Background(), cfg)
			if len(found) != len(c.want) {
				t.Fatalf("%+v, want %q", found, c.want)
			}
			for i, f := range found {
				if !strings.HasPrefix(string(f.Level)+" "+f.Text, c.want[i]) || (f.Do == "") != (f.Level == Good) {
					t.Errorf("%+v, want %q", f, c.want[i])
				}
			}
		})
	}
}

// TestBridged is about an agent that runs as the operator.
func TestBridged(t *testing.T) {
	root := t.TempDir()
	if bridged(root, os.Getuid()) {
		t.Error("where nothing runs")
	}
	for pid, line := range map[string]string{"1": "durward\x00status\x00", "2": "vim\x00mcp\x00", "3": ""} {
		dir := filepath.Join(root, "proc", pid)
		must(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "cmdline"), []byte(line), 0o644)))
	}
	if bridged(root, os.Getuid()) {
		t.Error("other programs are taken for a bridge")
	}
	must(t, os.WriteFile(filepath.Join(root, "proc/3/cmdline"), []byte("/usr/local/bin/durward\x00mcp\x00--client\x00x\x00"), 0o644))
	if !bridged(root, os.Getuid()) || bridged(root, os.Getuid()+1) {
		t.Error("a bridge is not found, or is another user's")
	}
}

// TestProcessUser: a process is found by its own name, and not by who looks at its file.
func TestProcessUser(t *testing.T) {
	cfg := Config{Root: t.TempDir(), Home: installdir.Home{Dir: "/home/alice/.durward"}}
	file := cfg.Home.Config("audit")
	for i, c := range []struct {
		line string
		want bool
	}{
		{"", false},
		{"vim\x00" + file + "\x00", false},
		{"/opt/bin/vault\x00-config\x00" + file + "\x00", false},
		{"/opt/bin/audit\x00-config\x00/elsewhere/audit.yaml\x00", false},
		{"/opt/bin/audit\x00-config\x00" + file + "\x00-development\x00", true},
	} {
		dir := filepath.Join(cfg.Root, "proc", strconv.Itoa(i+1))
		must(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "cmdline"), []byte(c.line), 0o644)))
		if uid, found := processUser(cfg, "audit"); found != c.want || found && uid != os.Getuid() {
			t.Errorf("%q: %v, user %d", c.line, found, uid)
		}
	}
}

// A process that names no gateway's user is told, outside development; one whose files the gateway's user may write is bad.
func TestGatewayUser(t *testing.T) {
	for name, c := range map[string]struct {
		audit, vault string
		mode         fs.FileMode
		development  bool
		want         string // level and the beginning of the text; "": no finding
	}{
		"named":                 {"gateway_user: nobody\nlisten: x\n", "gateway_user: nobody\n", 0o600, false, ""},
		"one names none":        {"gateway_user: nobody\n", "listen: x\n", 0o600, false, "warning without gateway_user nobody checks whether the gateway could have written what vault obey"},
		"in development":        {"listen: x\n", "listen: x\n", 0o600, true, ""},
		"it may write":          {"gateway_user: nobody\n", "gateway_user: nobody\n", 0o602, false, "bad audit: "},
		"there is no such user": {"gateway_user: nobody-of-that-name\n", "gateway_user: nobody\n", 0o600, false, "bad audit: there is no Unix user"},
		"what cannot be read":   {"gateway_user: [\n", "gateway_user: nobody\n", 0o600, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			home := installdir.Home{Dir: t.TempDir()}
			for role, text := range map[string]string{"audit": c.audit, "vault": c.vault} {
				must(t, errors.Join(os.MkdirAll(filepath.Dir(home.Config(role)), 0o700), os.WriteFile(home.Config(role), []byte(text), 0o600), os.Chmod(home.Config(role), c.mode)))
			}
			found := gatewayUser(t.Context(), Config{Home: home, Operator: installdir.Config{TrustDir: home.Dir}, Development: c.development})
			got := ""
			for _, f := range found {
				got += string(f.Level) + " " + f.Text
			}
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("it finds %q, want %q", got, c.want)
			}
		})
	}
}

func TestSettings(t *testing.T) {
	cfg := installation(t, 0)
	cfg.Check = func(_ context.Context, path, file string) (string, error) {
		if filepath.Base(path) == "vault" {
			return "vault: " + file + ":3:1: unknown key", nil
		}
		return "", nil
	}
	if f := settings(t.Context(), cfg); len(f) != 1 || f[0].Level != Bad || !strings.Contains(f[0].Text, cfg.Home.Config("vault")+":3:1") {
		t.Errorf("a broken file: %+v", f)
	}
	cfg.Check = func(context.Context, string, string) (string, error) { return "", nil }
	if f := settings(t.Context(), cfg); len(f) != 1 || f[0].Level != Good {
		t.Errorf("good files: %+v", f)
	}
	cfg.Check = func(context.Context, string, string) (string, error) { return "", fs.ErrNotExist }
	if f := settings(t.Context(), cfg); f != nil {
		t.Errorf("no programs: %+v", f)
	}
	must(t, os.Remove(cfg.Home.Key("log.key")))
	if f := settings(t.Context(), cfg); len(f) != 1 || f[0].Level != Bad || !strings.Contains(f[0].Text, "log.key is gone") {
		t.Errorf("the log's key is gone: %+v", f)
	}
	cfg.Installed = &Installed{}
	if f := settings(t.Context(), cfg); f != nil {
		t.Errorf("an installed host: %+v", f)
	}
}

// A home that is a symbolic link is looked through as the folder behind it is.
func TestPermissionsBehindALink(t *testing.T) {
	cfg := installation(t, 0)
	link := filepath.Join(t.TempDir(), "link")
	must(t, errors.Join(os.Symlink(cfg.Home.Dir, link), os.Chmod(cfg.Home.Key("grant.key"), 0o644)))
	cfg.Home.Dir = link
	if got := permissions(t.Context(), cfg); len(got) != 1 || got[0].Level != Bad || !strings.Contains(got[0].Text, "(keys/grant.key)") {
		t.Errorf("%+v", got)
	}
}

// Root approves nothing on an installed host, and lacks no key there.
func TestRootHasNoSigningKey(t *testing.T) {
	cfg := installation(t, 0)
	cfg.Operator.SigningKey, cfg.Installed = filepath.Join(t.TempDir(), "none"), &Installed{}
	if f := signingKey(t.Context(), cfg); len(f) != 1 || f[0].Level != Bad {
		t.Errorf("an operator's: %+v", f)
	}
	cfg.Operator.Operator = "root"
	if f := signingKey(t.Context(), cfg); f != nil {
		t.Errorf("root's: %+v", f)
	}
}

// Files that processes remove while the home is looked through are no fault of it.
func TestPermissionsOfWhatComesAndGoes(t *testing.T) {
	cfg := installation(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	folder := cfg.Home.State("vault", "backup.new")
	writing.Go(func() {
		for ctx.Err() == nil {
			if err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "x.db"), nil, 0o600), os.RemoveAll(folder)); err != nil {
				t.Error(err)
			}
		}
	})
	for range 300 {
		if got := permissions(ctx, cfg); len(got) != 1 || got[0].Level != Good {
			t.Fatalf("%+v", got)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
