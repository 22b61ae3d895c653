package root

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/telemetry"
)

// fakeAudit is the log, as far as these commands ask it.
type fakeAudit struct {
	auditv1.UnimplementedHistoryServiceServer
	// agents are those that the records of requests name, by operation.
	agents map[string]string
}

func (fakeAudit) GetStatus(context.Context, *auditv1.GetStatusRequest) (*auditv1.GetStatusResponse, error) {
	return &auditv1.GetStatusResponse{Size: 1}, nil
}

func (f fakeAudit) SearchRecords(_ context.Context, r *auditv1.SearchRecordsRequest) (*auditv1.SearchRecordsResponse, error) {
	agent, ok := f.agents[r.GetOperationId()]
	if !ok || !slices.Equal(r.GetKinds(), []auditv1.Kind{auditv1.Kind_KIND_ASKED}) || !strings.Contains(r.GetWriter(), "/vault/") {
		return &auditv1.SearchRecordsResponse{}, nil
	}
	return &auditv1.SearchRecordsResponse{Entries: []*auditv1.Entry{{Record: &auditv1.Record{Body: &auditv1.Body{Details: map[string]string{"agent": agent}}}}}}, nil
}

func (w *world) withAudit(f fakeAudit) {
	w.t.Helper()
	cfg, err := w.home.Load()
	must(w.t, err)
	w.serve("audit", cfg.Audit.Address, func(r grpc.ServiceRegistrar) { auditv1.RegisterHistoryServiceServer(r, f) })
}

// TestTheAgentThatAsks: a card names the client's agent, from its session, or once that has ended from the record of the request.
func TestTheAgentThatAsks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	op := w.asks("start_service", `{"service_id":"chat"}`)
	if got := w.run("approvals"); got.code != cli.ExitOK || !strings.Contains(got.out, "claude-code, session "+boundSession) {
		t.Errorf("without the log: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	w.withAudit(fakeAudit{agents: map[string]string{op.GetOperationId(): "intern\x1b[2J"}})
	for _, args := range [][]string{{"approvals"}, {"approve", "01234567", "--yes"}} {
		op.State = vaultv1.OperationState_OPERATION_STATE_PENDING
		got := w.run(args...)
		if got.code != cli.ExitOK || !strings.Contains(got.out, "claude-code/intern") || strings.Contains(got.out, "\x1b") {
			t.Errorf("%v: exit code %d\n%s%s", args, got.code, got.out, got.err)
		}
	}
	op.State = vaultv1.OperationState_OPERATION_STATE_PENDING
	if got := w.run("approvals", "--json"); !strings.Contains(got.out, `"agent": "intern`) {
		t.Errorf("--json: %s", got.out)
	}
	// The session's own word, while it is open.
	w.withSessions()
	w.sessions[0].Agent = "lead"
	if got := w.run("approvals"); !strings.Contains(got.out, "claude-code/lead") || strings.Contains(got.out, "intern") {
		t.Errorf("%s", got.out)
	}
}

// healthy answers for a process's health listener: err is why it is not well.
func (w *world) healthy(role string, err error) {
	w.t.Helper()
	cfg, loadErr := w.home.Load()
	if loadErr != nil {
		w.t.Fatal(loadErr)
	}
	lis, listenErr := rpc.Listen(cfg.Health.Of(role), false)
	if listenErr != nil {
		w.t.Fatal(listenErr)
	}
	server := httptest.NewUnstartedServer(telemetry.HealthHandler(role, "test", func() error { return err }, nil))
	_ = server.Listener.Close() // its own place is not needed
	server.Listener = lis
	server.Start()
	w.t.Cleanup(server.Close)
}

// TestStatusOfABrokenFile: a vault that refuses a file runs with the last good one: status names the file and what is wrong with it,
// and sends nobody to start what runs.
func TestStatusOfABrokenFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withClients(t)
	w.withAudit(fakeAudit{})
	for _, role := range installdir.Roles() {
		if role == "vault" {
			w.healthy(role, errors.New("policy/no.cedar: broken"))
		} else {
			w.healthy(role, nil)
		}
	}
	w.stands(statement.KindDangerous, boundSession)
	// Nothing says why.
	got := w.run("status")
	if got.code != cli.ExitUnreachable || !strings.Contains(got.out, "it runs, and says that it is not well") {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	cfg, err := w.home.Load()
	must(t, err)
	folder := filepath.Join(cfg.SecurityDir, "policy")
	must(t, os.MkdirAll(folder, 0o700))
	testfile.Write(t, filepath.Join(folder, "no.cedar"), "forbid (principal, action\n")
	got = w.run("status")
	for _, want := range []string{"policy/no.cedar:", "the last good one is in force"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is not in\n%s", want, got.out)
		}
	}
	if strings.Count(got.out, "policy/no.cedar") != 1 {
		t.Errorf("the file is named more than once:\n%s", got.out)
	}
	if got.code != cli.ExitUnreachable || !strings.Contains(got.err, "Correct the file") || !strings.Contains(got.err, "durward config show") {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
	if strings.Contains(got.err, "Start it") || strings.Count(got.err, "DANGEROUS MODE") != 1 {
		t.Errorf("it runs, and status says\n%s", got.err)
	}
	if got := w.run("status", "--json"); !strings.Contains(got.out, "the last good one is in force") {
		t.Errorf("--json: %s", got.out)
	}
	must(t, os.Remove(filepath.Join(folder, "no.cedar")))
	testfile.Write(t, cfg.Clients, "clients:\n  - id: [\n")
	if got := w.run("status"); !strings.Contains(got.out, cfg.Clients+":2:") || strings.Count(got.out, "clients.yaml") != 1 {
		t.Errorf("the place in clients.yaml is not named once:\n%s", got.out)
	}
}
