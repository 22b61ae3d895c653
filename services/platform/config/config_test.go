package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/config"
)

func TestSuggest(t *testing.T) {
	known := []string{"listen", "health_listen", "state_dir", "trust_dir", "log_level", "tls", "demo-chat", "demo-embed", "demo-rank", "demo-x", "demo-y", "demo-z"}
	for name, want := range map[string][]string{
		"listne":                  {"listen"},
		"LISTEN":                  {"listen"},
		"stat_dir":                {"state_dir"},
		"loglevel":                {"log_level"},
		"demo":                    {"demo-x", "demo-y", "demo-z", "demo-chat", "demo-rank"},
		"zzz":                     nil,
		"":                        nil,
		strings.Repeat("x", 1000): nil,
		"\x1b[2J":                 nil,
	} {
		if diff := cmp.Diff(want, config.Suggest(name, known)); diff != "" {
			t.Errorf("Suggest(%.20q): %s", name, diff)
		}
	}
}

func valid() config.Common {
	return config.Common{Listen: "127.0.0.1:7431", HealthListen: "127.0.0.1:7441", StateDir: "/s", TrustDir: "/t", TLS: config.OwnTLS{TLS: config.TLS{Certificate: "/c", Key: "/k"}}}
}

func TestValidate(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*config.Common){
		"listen: must be an IP address and a port": func(c *config.Common) { c.Listen = "" },
		"listen: is not a loopback address":        func(c *config.Common) { c.Listen = "0.0.0.0:7431" },
		"listen: must begin with an IP address":    func(c *config.Common) { c.Listen = ":7431" },
		"health_listen: is the same as listen":     func(c *config.Common) { c.HealthListen = c.Listen },
		"health_listen: is not a loopback":         func(c *config.Common) { c.HealthListen = "192.168.1.1:80" },
		"listen: has no valid port":                func(c *config.Common) { c.Listen = "127.0.0.1:99999" },
		"state_dir: is required":                   func(c *config.Common) { c.StateDir = "" },
		"state_dir: must not be the root folder":   func(c *config.Common) { c.StateDir = "/" },
		"state_dir: must be an absolute path":      func(c *config.Common) { c.StateDir = "s" },
		"trust_dir: must be written without":       func(c *config.Common) { c.TrustDir = "/a/../b" },
		"tls.key: is required":                     func(c *config.Common) { c.TLS.Key = "" },
		"tls.workload_api: stands beside":          func(c *config.Common) { c.TLS.WorkloadAPI = "unix:/s,user=root" },
		"tls.workload_api: must be unix:":          func(c *config.Common) { c.TLS = config.OwnTLS{WorkloadAPI: "unix:/s"} },
		"with the user who listens there":          func(c *config.Common) { c.TLS = config.OwnTLS{WorkloadAPI: "unix:///s,user=root"} },
		"log_level: must be":                       func(c *config.Common) { c.LogLevel = "loud" },
		"memory_limit_mib: must be":                func(c *config.Common) { c.MemoryLimitMiB = 1 },
		"gogc: must be":                            func(c *config.Common) { c.GOGC = -1 },
	} {
		c := valid()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("says %v, not %q", err, want)
		}
	}
	spire := valid()
	spire.TLS = config.OwnTLS{WorkloadAPI: "unix:/run/spire/api.sock,user=root"}
	if err := spire.Validate(); err != nil {
		t.Errorf("with a Workload API: %v", err)
	}
	remote := valid()
	remote.Listen, remote.AllowRemote = "0.0.0.0:7431", true
	if err := remote.Validate(); err != nil {
		t.Errorf("with -dangerous-allow-remote: %v", err)
	}
	remote.HealthListen = "0.0.0.0:7441"
	if err := remote.Validate(); err == nil || !strings.Contains(err.Error(), "health_listen: is not a loopback address") {
		t.Errorf("a health listener beyond loopback, with -dangerous-allow-remote: %v", err)
	}
	for _, addr := range []string{"localhost:1", "127.0.0.1", "127.0.0.1:", "[::]:1", "::1:1", "169.254.169.254:80", "[::ffff:10.0.0.1]:1", "127.1:1", "0x7f.1:1"} {
		if err := config.CheckListen(addr, false); err == nil {
			t.Errorf("%s is accepted", addr)
		}
	}
	for _, addr := range []string{"127.0.0.1:0", "127.8.8.8:1", "[::1]:7431"} {
		if err := config.CheckListen(addr, false); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func TestPeer(t *testing.T) {
	if err := (config.Peer{Address: "127.0.0.1:7433", Identity: "spiffe://durward.local/audit/main"}).Validate(); err != nil {
		t.Error(err)
	}
	for _, p := range []config.Peer{{}, {Address: "127.0.0.1", Identity: "spiffe://d/audit/main"}, {Address: ":1", Identity: "spiffe://d/audit/main"}, {Address: "127.0.0.1:1", Identity: "audit"}} {
		if p.Validate() == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
}

func TestStandbys(t *testing.T) {
	const audit = "spiffe://durward.local/audit/main"
	for name, tc := range map[string]struct {
		identity string
		standbys []string
		want     string
	}{
		"of a sink":    {"spiffe://durward.local/executor/local", []string{"127.0.0.1:2"}, "audit and the vault alone"},
		"of the vault": {"spiffe://durward.local/vault/main", []string{"127.0.0.1:2"}, ""},
		"no address":   {audit, []string{"127.0.0.1"}, "host:port"},
		"twice":        {audit, []string{"127.0.0.1:1"}, "twice"},
		"many":         {audit, []string{"127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5", "127.0.0.1:6"}, "at most"},
		"as meant":     {audit, []string{"127.0.0.1:2", "unix:/run/audit.sock,user=audit"}, ""},
	} {
		err := (config.Peer{Address: "127.0.0.1:1", Identity: tc.identity, Standbys: tc.standbys}).Validate()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStatePath(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// Neither $HOME nor the temporary folder may hold the whole test.
	home, tmp, state, outside := filepath.Join(base, "home"), filepath.Join(base, "tmp"), filepath.Join(base, "state"), filepath.Join(base, "outside")
	for _, dir := range []string{home, tmp, filepath.Join(state, "sub"), outside, state + "-old"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("TMPDIR", tmp)
	for link, target := range map[string]string{
		filepath.Join(state, "escape"):   outside,
		filepath.Join(state, "within"):   filepath.Join(state, "sub"),
		filepath.Join(state, "dangling"): filepath.Join(outside, "not-yet"),
		filepath.Join(state, "chain"):    filepath.Join(state, "escape"),
		filepath.Join(outside, "in"):     state,
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{
		"", "relative.db", state + "/../outside/x", filepath.Join(outside, "x"), state + "-old/x", filepath.Join(state, "escape", "x"),
		filepath.Join(state, "dangling"), filepath.Join(state, "dangling", "x"), filepath.Join(state, "chain", "deep", "x"), "/etc/passwd", "/",
		"/proc/self/root/etc/x",
	} {
		if got, err := config.StatePath(path, state); err == nil {
			t.Errorf("StatePath(%q) = %q", path, got)
		}
	}
	for path, want := range map[string]string{
		filepath.Join(state, "a", "b.db"):   filepath.Join(state, "a", "b.db"),
		filepath.Join(state, "within", "x"): filepath.Join(state, "sub", "x"),
		filepath.Join(outside, "in", "x"):   filepath.Join(state, "x"),
		filepath.Join(home, "x"):            filepath.Join(home, "x"),
		filepath.Join(tmp, "x"):             filepath.Join(tmp, "x"),
		state:                               state,
	} {
		if got, err := config.StatePath(path, state); err != nil || got != want {
			t.Errorf("StatePath(%q) = %q, %v", path, got, err)
		}
	}
	// A root of "/" would allow everything.
	t.Setenv("HOME", "/")
	if got, err := config.StatePath(filepath.Join(outside, "x"), "/"); err == nil {
		t.Errorf("with / as home: %q", got)
	}
}
