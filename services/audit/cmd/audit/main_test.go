package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/process"

	"durward.internal/services/platform/platformtest/input"
)

// place writes everything that a configuration names and returns the configuration.
func place(t *testing.T, kit *platformtest.Kit) *settings {
	t.Helper()
	key := filepath.Join(kit.Dir, "log.key")
	must(t, os.WriteFile(key, []byte(kit.LogKey+"\n"), 0o600))
	files := kit.Files(optionsv1.Role_ROLE_AUDIT, "main")
	return &settings{
		Common: config.Common{
			Listen: free(t), HealthListen: free(t), StateDir: filepath.Join(kit.Dir, "state"), TrustDir: kit.TrustDir,
			TLS: config.OwnTLS{TLS: config.TLS(files)}, LogLevel: "warn",
		},
		LogKey: key,
	}
}

func free(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer lis.Close()
	return lis.Addr().String()
}

// TestLife starts the process twice on the same state, writes to it, and verifies what it says of itself.
func TestLife(t *testing.T) {
	kit := platformtest.New(t)
	s := place(t, kit)
	for life := range uint64(2) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, s, platformtest.Logger()) }()
		operator := kit.Dial(t, kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice"), s.Listen, kit.ID(optionsv1.Role_ROLE_AUDIT, "main"))
		patient, stop := context.WithTimeout(ctx, 10*time.Second)
		status, err := auditv1.NewHistoryServiceClient(operator).GetStatus(patient, &auditv1.GetStatusRequest{}, grpc.WaitForReady(true))
		stop()
		must(t, err)
		healthy(t, s.HealthListen)
		if want := 2*life + 1; status.GetSize() != want { // a start, and a start and stop for each life before
			t.Errorf("life %d: %d entries, want %d", life, status.GetSize(), want)
		}
		c, err := logproof.OpenCheckpoint(status.GetCheckpoint(), kit.Trust.Current().LogKeys)
		if err != nil || c.Origin != kit.LogSigner.Name() {
			t.Errorf("checkpoint of %q: %v", c.Origin, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
	}
}

// TestCopyLog moves a log to another state folder, where it goes on; where it was nothing is written any more.
func TestCopyLog(t *testing.T) {
	kit := platformtest.New(t)
	s := place(t, kit)
	live := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, s, platformtest.Logger()) }()
		operator := kit.Dial(t, kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice"), s.Listen, kit.ID(optionsv1.Role_ROLE_AUDIT, "main"))
		if _, err := auditv1.NewHistoryServiceClient(operator).GetStatus(ctx, &auditv1.GetStatusRequest{}, grpc.WaitForReady(true)); err != nil {
			return <-ended
		}
		cancel()
		return <-ended
	}
	must(t, live())
	before := s.StateDir
	s.copyTo = filepath.Join(kit.Dir, "new.yaml")
	shipped, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "config", "audit.yaml"))
	must(t, err)
	overwrite(t, s.copyTo, strings.Replace(string(shipped), "/var/lib/durward/audit", before+"-new", 1))
	waits := filepath.Join(s.StateDir, "restored")
	overwrite(t, waits, "{}")
	if err := copyLog(t.Context(), s, platformtest.Logger()); err == nil || !strings.Contains(err.Error(), "a backup of it was put back") {
		t.Errorf("a log that was put back goes on without a record of that: %v", err)
	}
	must(t, os.Remove(waits))
	must(t, copyLog(t.Context(), s, platformtest.Logger()))
	if err := run(t.Context(), s, platformtest.Logger()); err == nil || !strings.Contains(err.Error(), "was moved") {
		t.Errorf("a log that was moved goes on: %v", err)
	}
	s.StateDir = before + "-new"
	if err := live(); err != nil {
		t.Errorf("the copy does not go on: %v", err)
	}
}

func healthy(t *testing.T, addr string) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/health")
	must(t, err)
	defer resp.Body.Close()
	var health struct{ Status string }
	if err := json.NewDecoder(resp.Body).Decode(&health); err != nil || health.Status != "ok" {
		t.Errorf("health %q, %v", health.Status, err)
	}
}

// TestDoesNotStart: what is wrong with files and keys is said before anything listens or is written.
func TestDoesNotStart(t *testing.T) {
	other, _, err := note.GenerateKey(nil, "durward.local/audit/other")
	must(t, err)
	stranger, _, err := note.GenerateKey(nil, "durward.local/audit/main")
	must(t, err)
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, s *settings)
		want  string
	}{
		"no trust folder": {func(_ *testing.T, s *settings) { s.TrustDir += "x" }, "trust file"},
		"no certificate":  {func(_ *testing.T, s *settings) { s.TLS.Certificate += "x" }, "no such file"},
		"no log key":      {func(_ *testing.T, s *settings) { s.LogKey += "x" }, "log_key"},
		"a log key for all to read": {func(t *testing.T, s *settings) {
			must(t, os.Chmod(s.LogKey, 0o644))
		}, "chmod 600"},
		"rubbish as a log key":                {func(t *testing.T, s *settings) { overwrite(t, s.LogKey, "rubbish\n") }, "does not hold a note signing key"},
		"much rubbish":                        {func(t *testing.T, s *settings) { overwrite(t, s.LogKey, strings.Repeat("x", 1<<20)) }, "too large"},
		"another log's key":                   {func(t *testing.T, s *settings) { overwrite(t, s.LogKey, other) }, `the log of this process is "durward.local/audit/main"`},
		"a key that nobody trusts":            {func(t *testing.T, s *settings) { overwrite(t, s.LogKey, stranger) }, "log_keys"},
		"a state folder out of reach":         {func(_ *testing.T, s *settings) { s.StateDir = "/proc/durward" }, "/proc/durward"},
		"another process in its state folder": {func(t *testing.T, s *settings) { occupy(t, s.StateDir) }, "another running process keeps its state in"},
		"a busy port": {func(t *testing.T, s *settings) {
			lis, err := net.Listen("tcp", s.Listen)
			must(t, err)
			t.Cleanup(func() { _ = lis.Close() })
		}, "in use"},
	} {
		t.Run(name, func(t *testing.T) {
			kit := platformtest.New(t)
			s := place(t, kit)
			tc.spoil(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := run(ctx, s, platformtest.Logger())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func occupy(t *testing.T, dir string) {
	t.Helper()
	release, err := process.LockState(dir)
	must(t, err)
	t.Cleanup(func() { _ = release() }) // it ends with this process at the latest
}

func overwrite(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// TestCheck runs the program's -check on the shipped configuration and on broken ones.
func TestCheck(t *testing.T) {
	input.Outside(t)
	shipped, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "config", "audit.yaml"))
	must(t, err)
	for _, tc := range []struct {
		name, old, new string
		code           int
		want           string
	}{
		{"an unknown key", "log_key:", "logkey:", 2, `log_key`},
		{"a key twice", "log_key:", "log_level: info\nlog_key:", 2, "log_level"},
		{"a relative key file", "/etc/durward/keys/log.key", "log.key", 2, "log_key: must be an absolute path"},
		{"another machine's address", "listen: 127.0.0.1:7433", "listen: 0.0.0.0:7433", 2, "loopback"},
		{"no state folder", "state_dir: /var/lib/durward/audit", "state_dir: ''", 2, "state_dir"},
		{"a server that is not named", "engine: sqlite", "engine: postgres", 2, "database.addresses"},
		{"a server without an engine", "addresses: []", "addresses: [db:5432]", 2, "engine is sqlite"},
		{"an unknown key of the database", "engine: sqlite", "dsn: postgres://db", 2, "dsn"},
		{"as shipped", "", "", 0, "ok"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.yaml")
			overwrite(t, path, strings.Replace(string(shipped), tc.old, tc.new, 1))
			s := &settings{}
			var out bytes.Buffer
			code := process.Main(process.Program{Name: "audit", Version: version, Settings: s}, []string{"-config", path, "-check"}, &out, &out)
			if code != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit code %d, output %q; want %d and %q", code, out.String(), tc.code, tc.want)
			}
			if tc.code == 0 && s.LogKey != "/etc/durward/keys/log.key" {
				t.Errorf("settings %+v", s)
			}
		})
	}
	var out bytes.Buffer
	if code := process.Main(process.Program{Name: "audit", Version: version, Settings: &settings{}}, []string{"-version"}, &out, &out); code != 0 || out.String() != fmt.Sprintf("audit %s\n", version) {
		t.Errorf("-version: %d, %q", code, out.String())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
