package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
)

type settings struct{ Password string }

func (settings) String() string { return "hunter2" }

// lines logs through f and returns what was written.
func lines(t *testing.T, level string, f func(*slog.Logger)) []map[string]any {
	t.Helper()
	var b bytes.Buffer
	logger, err := telemetry.NewLogger(&b, "vault", level)
	must(t, err)
	f(logger)
	var out []map[string]any
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "hunter2") {
			t.Errorf("a secret is in %s", line)
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		delete(m, "time")
		out = append(out, m)
	}
	return out
}

func TestLoggerMasks(t *testing.T) {
	got := lines(t, "", func(l *slog.Logger) {
		l.With("session_token", "hunter2").WithGroup("api_keys").With("first", "hunter2").Info("a", "n", "hunter2")
		l.Info("b", "TOKEN", "hunter2", "apiKey", "hunter2", "secrets", []string{"hunter2"}, "Password", "hunter2", "aws_credential_id", "hunter2",
			slog.Group("credentials", "x", "hunter2"), slog.Group("plain", "db_password", "hunter2", "port", 1))
		l.Info("c", "settings", settings{"hunter2"}, "pointer", &settings{"hunter2"}, "map", map[string]string{"a": "hunter2"}, "bytes", []byte("hunter2"),
			"message", &vaultv1.OpenSessionRequest{Credential: "hunter2"}, "list", []any{"hunter2"})
	})
	const masked, omitted = "[masked]", "[omitted]"
	want := []map[string]any{
		{"level": "INFO", "msg": "a", "service": "vault", "session_token": masked, "api_keys": map[string]any{"first": masked, "n": masked}},
		{"level": "INFO", "msg": "b", "service": "vault", "TOKEN": masked, "apiKey": masked, "secrets": masked, "Password": masked, "aws_credential_id": masked,
			"credentials": map[string]any{"x": masked}, "plain": map[string]any{"db_password": masked, "port": float64(1)}},
		{"level": "INFO", "msg": "c", "service": "vault", "settings": omitted, "pointer": omitted, "map": omitted, "bytes": omitted, "message": omitted, "list": omitted},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLogger(t *testing.T) {
	id, err := identity.New("durward.local", optionsv1.Role_ROLE_GATEWAY, "main")
	must(t, err)
	got := lines(t, "info", func(l *slog.Logger) {
		l.Debug("not shown")
		ctx := rpc.WithRequestID(t.Context(), "r-1")
		l.InfoContext(ctx, "call", "caller", id, "error", errors.New("x"), "took", time.Second, "role", optionsv1.Role_ROLE_VAULT, "names", []string{"a"}, "nothing", nil)
		l.With("a", 1).WarnContext(ctx, "again")
	})
	want := []map[string]any{
		{"level": "INFO", "msg": "call", "service": "vault", "request_id": "r-1", "caller": "spiffe://durward.local/gateway/main", "error": "x",
			"took": float64(time.Second), "role": float64(2), "names": []any{"a"}, "nothing": nil},
		{"level": "WARN", "msg": "again", "service": "vault", "request_id": "r-1", "a": float64(1)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for level, n := range map[string]int{"debug": 4, "info": 3, "": 3, "warn": 2, "error": 1} {
		if got := lines(t, level, func(l *slog.Logger) { l.Debug("x"); l.Info("x"); l.Warn("x"); l.Error("x") }); len(got) != n {
			t.Errorf("level %q shows %d", level, len(got))
		}
	}
	if _, err := telemetry.NewLogger(&bytes.Buffer{}, "x", "loud"); err == nil {
		t.Error("a level that does not exist")
	}
}

// Who somebody is stands in the audit log, not in ours.
func TestLoggerNamesNobody(t *testing.T) {
	alice, err := identity.New("durward.local", optionsv1.Role_ROLE_OPERATOR, "alice")
	must(t, err)
	got := lines(t, "", func(l *slog.Logger) {
		l.With("principal", "alices-laptop").Info("call", "caller", alice, "client", "alice", "operator", "alice", "session", "s-1")
	})
	want := []map[string]any{{"level": "INFO", "msg": "call", "service": "vault", "caller": "operator", "session": "s-1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSecret(t *testing.T) {
	for key, want := range map[string]bool{"AWS_SECRET_ACCESS_KEY": true, "GITHUB_TOKEN": true, "PGPASSWORD": true, "credentials": true, "PATH": false, "HOME": false, "kid": false} {
		if telemetry.Secret(key) != want {
			t.Errorf("Secret(%q) is %v", key, !want)
		}
	}
}
