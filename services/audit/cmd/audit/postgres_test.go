//go:build real

package main

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/health"
	"durward.internal/services/platform/platformtest"
	server "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

// onServer is a process whose log is in the PostgreSQL server.
func onServer(t *testing.T, pg *server.Server, kit *platformtest.Kit) *settings {
	t.Helper()
	s := place(t, kit)
	s.Database = postgres.Settings{Engine: postgres.Postgres, Addresses: []string{pg.Socket()}, Name: "durward_audit", User: "durward_audit", PasswordFile: pg.PasswordFile}
	return s
}

// TestPostgresForwarding: no relay comes to a process that stands by, and that is no lag.
func TestPostgresForwarding(t *testing.T) {
	pg, kit := server.Start(t), platformtest.New(t)
	for _, standby := range []bool{false, true} {
		s := onServer(t, pg, kit)
		s.StateDir, s.Forward = t.TempDir(), "headers"
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, s, platformtest.Logger()) }()
		t.Cleanup(func() { cancel(); must(t, <-ended) })
		operator := kit.Dial(t, kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice"), s.Listen, kit.ID(optionsv1.Role_ROLE_AUDIT, "main"))
		patient, stop := context.WithTimeout(t.Context(), time.Minute) // PostgreSQL's tables are made first
		defer stop()
		_, err := auditv1.NewHistoryServiceClient(operator).GetStatus(patient, &auditv1.GetStatusRequest{}, grpc.WaitForReady(true))
		must(t, err)
		metrics, err := health.Metrics(patient, http.DefaultClient, s.HealthListen)
		if lag := metrics["durward_audit_forward_lag_records"]; err != nil || (lag == 0) != standby || (metrics["durward_audit_log_leads"] == 0) != standby {
			t.Errorf("standby %t: leads %v, lag %v, %v", standby, metrics["durward_audit_log_leads"], lag, err)
		}
	}
}

// TestPostgresOutdated: a process that leads ends, and says why, when it would have to lead anew a log that a newer program migrated.
func TestPostgresOutdated(t *testing.T) {
	pg, kit := server.Start(t), platformtest.New(t)
	s := onServer(t, pg, kit)
	ended := make(chan error, 1)
	go func() { ended <- run(t.Context(), s, platformtest.Logger()) }()
	operator := kit.Dial(t, kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice"), s.Listen, kit.ID(optionsv1.Role_ROLE_AUDIT, "main"))
	patient, stop := context.WithTimeout(t.Context(), time.Minute) // PostgreSQL's tables are made first
	defer stop()
	_, err := auditv1.NewHistoryServiceClient(operator).GetStatus(patient, &auditv1.GetStatusRequest{}, grpc.WaitForReady(true))
	must(t, err)
	pg.SQL(t, "durward_audit", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)")
	pg.SQL(t, "durward_audit", "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
	select {
	case err := <-ended:
		if !errors.Is(err, database.ErrNewerSchema) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}
