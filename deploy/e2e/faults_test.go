package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/reserve"

	"durward.internal/deploy/e2e/harness"
)

// refusalTime is how long a refusal may take while a process is away: 2 s, and as much again for a machine of two cores
// that runs other tests and starts processes at the same time.
const refusalTime = 4 * time.Second

// promptly calls a tool that must be refused with one of the codes, in time, and with words for a
// person.
func promptly(t *testing.T, h *harness.Host, agent *harness.Client, tool string, arguments map[string]any, codes ...callv1.Code) {
	t.Helper()
	var e harness.Envelope
	took, lag := h.Strain(func() { e = agent.Call(tool, arguments) })
	if e.Status != "error" || e.Error == nil || !slices.Contains(codes, callv1.Code(callv1.Code_value["CODE_"+e.Error.Code])) || !e.Error.Retryable {
		t.Errorf("%s: want a retryable %v: %s", tool, codes, e.Raw)
	}
	if e.TellUser == "" {
		t.Errorf("%s: nothing says what a human can do meanwhile: %s", tool, e.Raw)
	}
	if took > refusalTime+10*lag {
		t.Errorf("%s: refused after %s, want 2 s", tool, took)
	}
	t.Logf("%s: refused after %s: %s", tool, took.Round(time.Millisecond), e.Summary)
}

var demo = map[string]any{"service_id": harness.DemoService}

// mutate has one call approved and carried out: what works when everything works.
func mutate(t *testing.T, h *harness.Host, agent *harness.Client, tool string) {
	t.Helper()
	asked := agent.Ask(tool, demo)
	if asked.Status != "pending_approval" {
		t.Fatalf("%s: %s", tool, asked.Raw)
	}
	h.Approve(asked.OperationID)
	if e := agent.Ask("wait_operation", asked.Next.Arguments); e.Status != "ok" {
		t.Fatalf("%s, approved: %s", tool, e.Raw)
	}
}

// TestVaultDown: mutations and new sessions are refused in time; reads go on under their permit; when the vault is back the
// same session works again.
func TestVaultDown(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(h *harness.Host) (back func()){
		"killed": func(h *harness.Host) func() {
			h.Process(harness.Vault).Kill()
			return func() { h.StartProcess(harness.Vault) }
		},
		"hung": func(h *harness.Host) func() {
			h.Process(harness.Vault).Hang()
			return h.Process(harness.Vault).Continue
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{})
			agent, newcomer := h.Connect(h.AddClient("agent")), h.AddClient("newcomer")
			if e := agent.Ask("gpu_status", nil); e.Status != "ok" {
				t.Fatalf("gpu_status: %s", e.Raw)
			}
			approved := agent.Ask("start_service", demo)
			h.Approve(approved.OperationID)

			back := away(h)
			promptly(t, h, agent, "stop_service", demo, callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT)
			promptly(t, h, agent, "start_service", demo, callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT)
			if e := agent.Call("gpu_status", nil); e.Status != "ok" {
				t.Errorf("a read under its permit: %s", e.Raw)
			}
			var err error
			if took, lag := h.Strain(func() { _, err = h.TryConnect(newcomer) }); err == nil || took > refusalTime+10*lag {
				t.Errorf("a new session: %v after %s, want a refusal", err, took)
			}
			if n := h.Starts(harness.DemoService); n != 0 {
				t.Errorf("the service was started %d times", n)
			}

			back()
			harness.Eventually(t, "the approved operation is carried out", func() error {
				if e := agent.Call("wait_operation", approved.Next.Arguments); e.Status != "ok" {
					return fmt.Errorf("%s", e.Raw)
				}
				return nil
			})
			if n := h.Starts(harness.DemoService); n != 1 {
				t.Errorf("the service was started %d times, want 1", n)
			}
		})
	}
}

// TestAuditAway: while audit is down, hung or out of disk nothing has an effect, and a person is told what can be done;
// reads go on, and their records arrive when audit is back.
func TestAuditAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(t *testing.T, h *harness.Host, agent *harness.Client) (back func()){
		"killed": func(_ *testing.T, h *harness.Host, _ *harness.Client) func() {
			h.Process(harness.Audit).Kill()
			return func() { h.StartProcess(harness.Audit) }
		},
		"hung": func(_ *testing.T, h *harness.Host, _ *harness.Client) func() {
			h.Process(harness.Audit).Hang()
			return h.Process(harness.Audit).Continue
		},
		"disk full": fillDisk,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{})
			agent := h.Connect(h.AddClient("agent"))
			approved := agent.Ask("start_service", demo)
			h.Approve(approved.OperationID)

			back := away(t, h, agent)
			promptly(t, h, agent, "wait_operation", approved.Next.Arguments, callv1.Code_CODE_AUDIT_UNAVAILABLE)
			promptly(t, h, agent, "stop_service", demo, callv1.Code_CODE_AUDIT_UNAVAILABLE)
			if out := h.Run("", "start", harness.DemoService, "--yes"); out.Code != 3 {
				t.Errorf("durward start: status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
			}
			read := agent.Call("gpu_status", nil)
			if read.Status != "ok" {
				t.Errorf("a read: %s", read.Raw)
			}
			if n := h.Starts(harness.DemoService); n != 0 {
				t.Errorf("the service was started %d times without a record", n)
			}

			back()
			h.Story(read.RequestID, harness.OfKind(auditv1.Kind_KIND_READ))
			harness.Eventually(t, "a new operation is carried out", func() error {
				asked := agent.Call("start_service", demo)
				if asked.Status == "error" {
					return fmt.Errorf("%s", asked.Raw)
				}
				if asked.Status == "pending_approval" && len(h.Approvals()) > 0 {
					h.Approve(asked.OperationID)
				}
				if e := agent.Call("wait_operation", map[string]any{"operation_id": asked.OperationID}); e.Status != "ok" {
					return fmt.Errorf("%s", e.Raw)
				}
				return nil
			})
			if n := h.Starts(harness.DemoService); n != 1 {
				t.Errorf("the service was started %d times, want 1", n)
			}
			h.Durward("audit", "verify", "--complete")
		})
	}
}

// fillDisk starts audit again under a limit on the size of its files, as a full disk would limit them, and asks until it can
// write no more. It needs no root.
func fillDisk(t *testing.T, h *harness.Host, agent *harness.Client) (back func()) {
	t.Helper()
	h.Process(harness.Audit).Stop()
	var largest int64
	err := filepath.WalkDir(h.Path("state", "audit"), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == reserve.File {
			return err // what is kept for a full disk is no part of the log
		}
		info, err := entry.Info()
		largest = max(largest, info.Size())
		return err
	})
	must(t, err)
	h.LaunchUnder([]string{"prlimit", fmt.Sprintf("--fsize=%d", largest+64<<10), "--"}, harness.Audit)
	h.AwaitHealthy(harness.Audit)
	for n := 0; ; n++ {
		agent.Call("list_services", nil)
		e := agent.Call("stop_service", map[string]any{"service_id": harness.SlowService, "reason": strings.Repeat("x", 900)})
		if e.Status == "error" && e.Error.Code == "AUDIT_UNAVAILABLE" {
			break
		}
		if e.Status == "error" && e.Error.Code != "UNAVAILABLE" && e.Error.Code != "TIMEOUT" || n > 500 {
			t.Fatalf("audit's disk does not fill: %s", e.Raw)
		}
	}
	return func() {
		h.Process(harness.Audit).Kill()
		h.StartProcess(harness.Audit)
	}
}

// TestExecutorKilled: an executor that dies between intent and effect says on its next start what it found, and starts
// nothing again.
func TestExecutorKilled(t *testing.T) {
	t.Parallel()
	for found, then := range map[string]func(h *harness.Host){
		"running": func(*harness.Host) {},
		"stopped": func(h *harness.Host) { h.KillServices() },
	} {
		t.Run("found "+found, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{})
			agent := h.Connect(h.AddClient("agent"))
			asked := agent.Ask("start_service", map[string]any{"service_id": harness.SlowService})
			if asked.Status != "pending_approval" {
				t.Fatalf("start_service: %s", asked.Raw)
			}
			h.Approve(asked.OperationID)
			ctx, cancel := context.WithCancel(t.Context())
			waited := make(chan struct{})
			go func() {
				defer close(waited)
				// It ends as running, or as failed once its executor is gone; both are right.
				_, _ = agent.TryCall(ctx, "wait_operation", asked.Next.Arguments)
			}()
			// The program runs and will not be healthy for an hour: the outcome is not recorded yet.
			harness.Eventually(t, "the service's program runs", func() error {
				if len(h.ServicePIDs()) != 1 || h.Starts(harness.SlowService) != 1 {
					return fmt.Errorf("%d programs", len(h.ServicePIDs()))
				}
				return nil
			})
			h.Process(harness.Executor).Kill()
			cancel()
			<-waited
			then(h)

			h.StartProcess(harness.Executor)
			recovered := recordOf(t, h, asked.OperationID, auditv1.Kind_KIND_RECOVERED)
			if recovered.GetStatus() != auditv1.Status_STATUS_UNKNOWN || recovered.GetBody().GetSummary() != "unknown: found "+found {
				t.Errorf("recovered: %s, %q", recovered.GetStatus(), recovered.GetBody().GetSummary())
			}
			if intent := recordOf(t, h, asked.OperationID, auditv1.Kind_KIND_INTENT); intent.GetRequestId() != recovered.GetRequestId() {
				t.Errorf("the recovery is of request %s, the intent of %s", recovered.GetRequestId(), intent.GetRequestId())
			}
			// The operation is over: the agent learns that nobody knows, and nothing starts again.
			e := agent.Ask("wait_operation", asked.Next.Arguments)
			if e.Status != "error" || e.Error == nil || e.Error.Code != "UNKNOWN_OUTCOME" && e.Error.Code != "ALREADY_SPENT" {
				t.Errorf("wait_operation afterwards: %s", e.Raw)
			}
			if n := h.Starts(harness.SlowService); n != 1 {
				t.Errorf("the service was started %d times, want 1", n)
			}
		})
	}
}

// recordOf waits for an operation's record of one kind.
func recordOf(t *testing.T, h *harness.Host, operationID string, kind auditv1.Kind) *auditv1.Record {
	t.Helper()
	var record *auditv1.Record
	harness.Eventually(t, "a record "+kind.String(), func() error {
		entries := h.Records(&auditv1.SearchRecordsRequest{OperationId: operationID, Kinds: []auditv1.Kind{kind}})
		if len(entries) != 1 {
			return fmt.Errorf("%d records", len(entries))
		}
		record = entries[0].GetRecord()
		return nil
	})
	return record
}

// TestRestarts: every process may be killed and started again, in any order; the others find it again by themselves.
func TestRestarts(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	token := h.AddClient("agent")
	agent := h.Connect(token)
	tool := map[bool]string{true: "start_service", false: "stop_service"}
	start := true
	for _, role := range []string{harness.Audit, harness.Vault, harness.Executor, harness.Gateway} {
		h.Process(role).Kill()
		h.StartProcess(role)
		if role == harness.Gateway {
			// Its sessions were in its memory; a client connects anew.
			agent = h.Connect(token)
		}
		harness.Eventually(t, "everybody reaches "+role+" again", func() error {
			if e := agent.Call("gpu_status", nil); e.Status != "ok" {
				return fmt.Errorf("%s", e.Raw)
			}
			e := agent.Call(tool[start], demo)
			if e.Status == "error" && e.Error.Retryable {
				return fmt.Errorf("%s", e.Raw)
			}
			return nil
		})
		mutate(t, h, agent, tool[start])
		start = !start
	}
	if n := h.Starts(harness.DemoService); n != 2 {
		t.Errorf("the service was started %d times, want 2", n)
	}

	// All at once, the ones that the others need last.
	for _, role := range []string{harness.Gateway, harness.Executor, harness.Vault, harness.Audit} {
		h.Process(role).Stop()
	}
	for _, role := range []string{harness.Gateway, harness.Executor, harness.Vault, harness.Audit} {
		h.Launch(role)
	}
	for _, role := range harness.Roles() {
		h.AwaitHealthy(role)
	}
	agent = h.Connect(token)
	harness.Eventually(t, "everybody reaches everybody", func() error {
		if e := agent.Call("start_service", demo); e.Status != "pending_approval" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
	mutate(t, h, agent, "start_service")
	h.Durward("audit", "verify", "--complete")
}

// TestVaultRestartUnderABridge: a key-bound client's bridge proves its session to a vault that restarted by itself.
func TestVaultRestartUnderABridge(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	h.AddKeyBound("agent")
	agent := h.ConnectStdio("agent")
	for _, tool := range []string{"start_service", "stop_service"} {
		h.Process(harness.Vault).Kill()
		h.StartProcess(harness.Vault)
		var asked harness.Envelope
		harness.Eventually(t, "the vault is asked", func() error {
			asked = agent.Call(tool, demo)
			// What a restarting process says; a signature that is missing would be the bridge's fault.
			if asked.Status == "error" && asked.Error.Retryable && asked.Error.Code != "PROOF_REQUIRED" {
				return fmt.Errorf("%s", asked.Raw)
			}
			return nil
		})
		if asked.Status != "pending_approval" {
			t.Fatalf("%s after a restart of the vault: %s", tool, asked.Raw)
		}
		h.Process(harness.Vault).Kill()
		h.StartProcess(harness.Vault)
		h.Approve(asked.OperationID)
		if e := agent.Ask("wait_operation", asked.Next.Arguments); e.Status != "ok" {
			t.Errorf("wait_operation after a restart of the vault: %s", e.Raw)
		}
	}
}

// TestServiceSurvives: a service outlives the executor that started it, which finds it again and can stop it.
func TestServiceSurvives(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := h.Connect(h.AddClient("agent"))
	mutate(t, h, agent, "start_service")
	pids := h.ServicePIDs()
	if len(pids) != 1 {
		t.Fatalf("%d programs run, want 1", len(pids))
	}
	h.Process(harness.Executor).Stop()
	if err := syscall.Kill(pids[0], 0); err != nil {
		t.Fatalf("the service ended with the executor: %v", err)
	}
	h.StartProcess(harness.Executor)
	var info struct{ Service struct{ State string } }
	harness.Eventually(t, "the service is found again", func() error {
		e := agent.Call("service_info", demo)
		if e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		e.Decode(t, &info)
		if info.Service.State != "running" {
			return fmt.Errorf("it is %s", info.Service.State)
		}
		return nil
	})
	mutate(t, h, agent, "stop_service")
	if left := h.ServicePIDs(); len(left) != 0 {
		t.Errorf("still running after the stop: %v", left)
	}
	if n := h.Starts(harness.DemoService); n != 1 {
		t.Errorf("the service was started %d times, want 1", n)
	}
}

// TestNewerState: a program refuses state that a newer one wrote, with a plain sentence, and leaves it as it is.
func TestNewerState(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	mutate(t, h, h.Connect(h.AddClient("agent")), "start_service")
	for _, role := range []string{harness.Gateway, harness.Executor, harness.Vault, harness.Audit} {
		h.Process(role).Stop()
	}
	tried := 0
	for _, role := range []string{harness.Audit, harness.Vault, harness.Executor} {
		files, err := filepath.Glob(h.Path("state", role, "*.db"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s keeps no database: %v", role, err)
		}
		for _, file := range files {
			t.Run(role+" "+filepath.Base(file), func(t *testing.T) {
				original := testfile.Read(t, file)
				bump(t, file)
				newer := testfile.Read(t, file)
				p := h.Launch(role)
				if code := p.AwaitEnd(); code != 1 {
					t.Errorf("exit status %d, want 1", code)
				}
				if log := p.Log(); !strings.Contains(log, "newer") {
					t.Errorf("its log does not say why:\n%s", log)
				}
				after := testfile.Read(t, file)
				if string(after) != string(newer) {
					t.Error("the newer state was changed")
				}
				for _, suffix := range []string{"-wal", "-shm"} {
					if err := os.Remove(file + suffix); err != nil && !os.IsNotExist(err) {
						t.Fatal(err)
					}
				}
				testfile.Write(t, file, original)
			})
			tried++
		}
	}
	if tried < 4 {
		t.Errorf("only %d databases were tried", tried)
	}
	h.StartAll()
}

// bump makes a database look as if a version far ahead had migrated it.
func bump(t *testing.T, file string) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	must(t, err)
	if _, err := db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
	must(t, db.Close())
}
