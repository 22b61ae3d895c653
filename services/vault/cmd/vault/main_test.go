package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/postgres"
	"durward.internal/services/platform/process"
	"durward.internal/services/vault/internal/settings"
)

func configured(t *testing.T, kit *platformtest.Kit) *settings.Settings {
	t.Helper()
	files, base := kit.Files(optionsv1.Role_ROLE_VAULT, "main"), platformtest.ClaimPorts(t)
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", base+n) }
	sum := sha256.Sum256([]byte("token"))
	write := func(name, text string) string {
		path := filepath.Join(kit.Dir, name)
		testfile.Write(t, path, text)
		return path
	}
	s := &settings.Settings{
		Common: config.Common{
			Listen: at(0), HealthListen: at(1), StateDir: filepath.Join(kit.Dir, "state"), TrustDir: kit.TrustDir,
			TLS: config.OwnTLS{TLS: config.TLS(files)},
		},
		ClientsFile: write("clients.yaml", "clients:\n  - {id: a, channel: cli, tier_ceiling: READ, token_sha256: "+hex.EncodeToString(sum[:])+"}\n"),
		GrantKey:    write("grant.key", string(kit.GrantKey.Format())),
		KID:         "another", // of an older installation: the key's file names the key
		Audit:       config.Peer{Address: at(2), Identity: kit.ID(optionsv1.Role_ROLE_AUDIT, "main").String()},
		Sinks:       []settings.Sink{{Role: "executor", Identity: kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local").String()}},
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// The wiring, twice on one state: it serves, says that it cannot work without audit, and stops when told.
func TestRun(t *testing.T) {
	kit := platformtest.New(t)
	s := configured(t, kit)
	for range 2 {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, s, platformtest.Logger()) }()
		operator := kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice")
		client := vaultv1.NewControlServiceClient(kit.Dial(t, operator, s.Listen, kit.ID(optionsv1.Role_ROLE_VAULT, "main")))
		patient, cancel := context.WithTimeout(ctx, 10*time.Second)
		status, err := client.GetStatus(patient, &vaultv1.GetStatusRequest{}, grpc.WaitForReady(true))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if status.GetClients() != 1 || status.GetAuditReachable() || status.GetEpoch() != 1 || len(status.GetAudiences()) != 1 {
			t.Errorf("status %v", status)
		}
		resp, err := http.Get("http://" + s.HealthListen + "/health")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(body), `"unavailable"`) {
			t.Errorf("health without audit: %s, %v", body, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatalf("stopped with %v", err)
		}
	}
}

// A vault that stands by ends as regularly as one that leads: systemd would call its unit failed otherwise.
func TestEndedWhileItStandsBy(t *testing.T) {
	s := configured(t, platformtest.New(t))
	s.Database = postgres.Settings{Engine: postgres.Postgres, Addresses: []string{"unix:" + filepath.Join(t.TempDir(), ".s.PGSQL.5432") + ",user=root"}, Name: "vault", User: "vault"}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	said := make(lines, 100)
	go func() { ended <- run(ctx, s, slog.New(slog.NewTextHandler(said, nil))) }()
	for standing := false; !standing; {
		select {
		case line := <-said:
			standing = strings.Contains(line, "stands by")
		case err := <-ended:
			t.Fatalf("it does not stand by: %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// lines is what a logger writes.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func TestRunRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*settings.Settings)
		want   string
	}{
		"no trust folder": {func(s *settings.Settings) { s.TrustDir += "x" }, "trust folder"},
		"no grant key":    {func(s *settings.Settings) { s.GrantKey += "x" }, "grant key"},
		"no clients":      {func(s *settings.Settings) { s.ClientsFile += "x" }, "clients.yaml"},
		"state elsewhere": {func(s *settings.Settings) { s.StateDir = "/proc/durward" }, "/proc/durward"},
		"state of another": {func(s *settings.Settings) {
			release, err := process.LockState(s.StateDir)
			if err != nil {
				panic(err)
			}
			t.Cleanup(func() { _ = release() }) // it ends with this process at the latest
		}, "another running process keeps its state in"},
		"broken rules": {func(s *settings.Settings) {
			s.SecurityDir = s.TrustDir + "-rules"
			if err := os.Mkdir(s.SecurityDir, 0o700); err != nil {
				panic(err)
			}
			if err := os.WriteFile(filepath.Join(s.SecurityDir, "tools.yaml"), []byte("tools: {format_disk: {}}\n"), 0o600); err != nil {
				panic(err)
			}
		}, "tools.yaml:1"},
		"rules of nobody we know": {func(s *settings.Settings) { s.GatewayUser = "nobody-of-that-name" }, "gateway_user"},
		"the gateway is us":       {func(s *settings.Settings) { s.GatewayUser = strconv.Itoa(os.Getuid()) }, "gateway_user"},
		"listener is busy":        {func(s *settings.Settings) { s.HealthListen = s.Listen }, "127.0.0.1:"},
	} {
		t.Run(name, func(t *testing.T) {
			s := configured(t, platformtest.New(t))
			c.change(s)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := run(ctx, s, platformtest.Logger())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
}

// -check reads what binds clients too, and -development is what switches the look at the gateway's user off.
func TestCheck(t *testing.T) {
	s := configured(t, platformtest.New(t))
	if err := s.Check(); err != nil {
		t.Errorf("good files: %v", err)
	}
	s.SecurityDir = filepath.Join(t.TempDir(), "security")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(s.SecurityDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testfile.Write(t, path, text)
	}
	write("security.yaml", "approvals: {wait_s: 7}\n")
	write("policy/a.cedar", "permit (principal, action, resource\n")
	err := s.Check()
	if err == nil || !strings.Contains(err.Error(), "security.yaml") || !strings.Contains(err.Error(), "policy/a.cedar:") {
		t.Errorf("broken files: %v", err)
	}
	write("security.yaml", "approvals: {wait_s: 70}\n")
	write("policy/a.cedar", "permit (principal, action, resource);\n")
	if err := s.Check(); err != nil {
		t.Errorf("mended: %v", err)
	}
	s.GatewayUser = strconv.Itoa(os.Getuid())
	if err := s.Check(); err == nil {
		t.Error("the gateway's user is ours, and that is well")
	}
	s.Development = true
	if err := s.Check(); err != nil {
		t.Errorf("in development: %v", err)
	}
}
