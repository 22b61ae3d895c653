package process_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/process"
)

type settings struct {
	config.Common `yaml:",inline"`
	Audit         config.Peer `yaml:"audit"`
}

func (s *settings) Validate() error { return errors.Join(s.Common.Validate(), s.Audit.Validate()) }

func write(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.yaml")
	content := "listen: 127.0.0.1:7431\nhealth_listen: 127.0.0.1:7441\nstate_dir: /s\ntrust_dir: /t\ntls: {certificate: /c, key: /k}\n" +
		"audit: {address: 127.0.0.1:7433, identity: spiffe://durward.local/audit/main}\n" + more
	testfile.Write(t, path, content)
	return path
}

// run starts a program and returns its code, outputs and whether Run was reached.
func run(t *testing.T, fail error, args ...string) (code int, stdout, stderr string, ran *settings) {
	t.Helper()
	// Memory settings are the process's own; leave them as they were.
	limit, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetMemoryLimit(limit); debug.SetGCPercent(percent) })
	var out, errs bytes.Buffer
	var cfg settings
	var extra bool
	code = process.Main(process.Program{
		Name: "demo", Version: "v1.2.3", Settings: &cfg,
		Flags: func(f *flag.FlagSet) { f.BoolVar(&extra, "development", false, "") },
		Run: func(context.Context, *slog.Logger) error {
			ran = &cfg
			return fail
		},
	}, args, &out, &errs)
	return code, out.String(), errs.String(), ran
}

func TestMainRefuses(t *testing.T) {
	good := write(t, "")
	openKey := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(openKey, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(t.TempDir(), "shared")
	if err := errors.Join(os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	besideOthers := filepath.Join(shared, "x.yaml")
	if err := os.WriteFile(besideOthers, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no file":                      {nil, "-config FILE is required"},
		"file not there":               {[]string{"-config", good + ".none"}, "no such file"},
		"unknown flag":                 {[]string{"-config", good, "-insecure"}, "-insecure"},
		"argument":                     {[]string{"-config", good, "serve"}, `unexpected argument "serve"`},
		"unknown key":                  {[]string{"-config", write(t, "log_levle: info\n")}, `did you mean "log_level"?`},
		"bad value":                    {[]string{"-check", "-config", write(t, "log_level: loud\n")}, "log_level: must be"},
		"remote listener":              {[]string{"-check", "-config", replaced(t, "127.0.0.1:7431", "0.0.0.0:7431")}, "not a loopback address"},
		"remote in the file":           {[]string{"-check", "-config", write(t, "allow_remote: true\n")}, "unknown key"},
		"a key for all to read":        {[]string{"-check", "-config", replaced(t, "key: /k", "key: "+openKey)}, "its owner alone can read"},
		"state that others may write":  {[]string{"-check", "-config", replaced(t, "state_dir: /s", "state_dir: "+shared+"/s")}, "others may write to " + shared},
		"trust that others may write":  {[]string{"-config", replaced(t, "trust_dir: /t", "trust_dir: "+shared)}, "others may write to " + shared},
		"a file that others may write": {[]string{"-config", besideOthers}, "others may write to " + shared},
		"own part is invalid":          {[]string{"-check", "-config", replaced(t, "spiffe://durward.local/audit/main", "audit")}, "identity: must be"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr, ran := run(t, nil, tc.args...)
			if code != process.ExitBadConfiguration || ran != nil || !strings.Contains(stderr, tc.says) {
				t.Errorf("code %d, ran %v, says %q", code, ran != nil, stderr)
			}
		})
	}
}

func replaced(t *testing.T, old, with string) string {
	t.Helper()
	path := write(t, "")
	b := testfile.Read(t, path)
	testfile.Write(t, path, bytes.Replace(b, []byte(old), []byte(with), 1))
	return path
}

func TestMainRuns(t *testing.T) {
	good := write(t, "")
	if code, out, _, ran := run(t, nil, "-version"); code != 0 || out != "demo v1.2.3\n" || ran != nil {
		t.Errorf("-version: %d %q", code, out)
	}
	if code, out, _, ran := run(t, nil, "-check", "-config", good); code != 0 || out != good+": ok\n" || ran != nil {
		t.Errorf("-check: %d %q", code, out)
	}
	if code, _, says, ran := run(t, nil, "-healthy", "-config", replaced(t, "127.0.0.1:7441", "unix:/nowhere/health.sock")); code != process.ExitFailure || ran != nil || !strings.Contains(says, "nothing at unix:/nowhere/health.sock") {
		t.Errorf("-healthy where nothing runs: %d %q", code, says)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status": "ok", "service": "demo"}`) }))
	defer server.Close()
	if code, _, says, ran := run(t, nil, "-healthy", "-config", replaced(t, "127.0.0.1:7441", server.Listener.Addr().String())); code != 0 || ran != nil {
		t.Errorf("-healthy: %d %q", code, says)
	}
	code, _, log, ran := run(t, nil, "-config", good, "-development")
	if code != 0 || ran == nil || ran.AllowRemote || !strings.Contains(log, `"msg":"stopped"`) {
		t.Errorf("run: %d %s", code, log)
	}
	code, _, log, _ = run(t, fmt.Errorf("listen: %w", syscall.EADDRINUSE), "-config", good)
	if code != process.ExitFailure || strings.Count(log, "address already in use") != 1 {
		t.Errorf("a failure: %d %s", code, log)
	}
	// A sentence for callers hides its cause from them alone.
	hides := fault.New(callv1.Code_CODE_UNAVAILABLE, "try again", fault.WithCause(errors.New("no route")))
	if _, _, log, _ = run(t, fmt.Errorf("open: %w", hides), "-config", good); !strings.Contains(log, `"error":"open: try again","cause":"no route"`) {
		t.Errorf("a failure with a hidden cause: %s", log)
	}
	code, _, log, ran = run(t, nil, "-config", replaced(t, "127.0.0.1:7431", "0.0.0.0:7431"), "-dangerous-allow-remote")
	if code != 0 || ran == nil || !ran.AllowRemote || !strings.Contains(log, "DANGEROUS") {
		t.Errorf("remote: %d %s", code, log)
	}
	if code, _, usage, _ := run(t, nil, "-help"); code != 0 || !strings.Contains(usage, "-dangerous-allow-remote") || !strings.Contains(usage, "health_listen stays on loopback") || !strings.Contains(usage, "-development") {
		t.Errorf("-help: %d %s", code, usage)
	}
}

// guarded are settings of a process that obeys files of humans.
type guarded struct {
	config.Common `yaml:",inline"`
	Audit         config.Peer `yaml:"audit"`
	gateways      string
	development   bool
}

func (g *guarded) Validate() error     { return nil }
func (g *guarded) Gateways() string    { return g.gateways }
func (g *guarded) InDevelopment() bool { return g.development }
func (g *guarded) Obeyed() []string    { return nil }

// Where nobody says who the gateway's user is, the log says what that means; in development it goes without saying.
func TestStartsWithoutTheGatewaysUser(t *testing.T) {
	limit, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetMemoryLimit(limit); debug.SetGCPercent(percent) })
	for _, g := range []*guarded{{}, {development: true}, {gateways: "nobody"}} {
		var log bytes.Buffer
		code := process.Main(process.Program{
			Name: "demo", Version: "v1.2.3", Settings: g, Run: func(context.Context, *slog.Logger) error { return nil },
		}, []string{"-config", write(t, "")}, io.Discard, &log)
		if warned := strings.Contains(log.String(), "without gateway_user"); code == 0 && warned != (g.gateways == "" && !g.development) || code != 0 && g.gateways == "" {
			t.Errorf("%+v: %d, %s", g, code, log.String())
		}
	}
}

func TestMemory(t *testing.T) {
	for more, want := range map[string][2]int64{
		"":                                  {config.DefaultMemoryLimitMiB << 20, config.DefaultGOGC},
		"memory_limit_mib: 64\ngogc: 200\n": {64 << 20, 200},
	} {
		limit, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
		var cfg settings
		var got [2]int64
		process.Main(process.Program{Name: "demo", Settings: &cfg, Run: func(context.Context, *slog.Logger) error {
			got = [2]int64{debug.SetMemoryLimit(-1), int64(debug.SetGCPercent(100))}
			return nil
		}}, []string{"-config", write(t, more)}, &bytes.Buffer{}, &bytes.Buffer{})
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
		if got != want {
			t.Errorf("%q sets %v", more, got)
		}
	}
}

// Run's context ends when the process is asked to stop. Whatever it was about to start is no failure, and any other is one.
func TestSignal(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		ended  error
		code   int
	}{
		{syscall.SIGTERM, nil, process.ExitOK},
		{syscall.SIGINT, nil, process.ExitOK},
		{syscall.SIGTERM, fmt.Errorf("open the state: %w", context.Canceled), process.ExitOK},
		{syscall.SIGTERM, errors.New("the state cannot be closed"), process.ExitFailure},
	} {
		var cfg settings
		code := process.Main(process.Program{Name: "demo", Settings: &cfg, Run: func(ctx context.Context, _ *slog.Logger) error {
			if err := syscall.Kill(os.Getpid(), c.signal); err != nil {
				return err
			}
			<-ctx.Done()
			return c.ended
		}}, []string{"-config", write(t, "")}, &bytes.Buffer{}, &bytes.Buffer{})
		if code != c.code {
			t.Errorf("%v, ended with %v: code %d", c.signal, c.ended, code)
		}
	}
}
