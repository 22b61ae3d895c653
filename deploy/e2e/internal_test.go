package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/client"
	"durward.internal/services/platform/fault"
)

// program adds an internal program, and opens its session.
func program(t *testing.T, h *harness.Host, name, may string, waiting func(operationID string)) *client.Client {
	t.Helper()
	h.Durward("client", "add-tool", name, "--may", may, "--yes")
	cfg, err := client.Load(connectJSON(h, name))
	must(t, err)
	cfg.Name, cfg.Reason = "test", "because it is night"
	cfg.Waiting = func(id string, _ time.Time) { waiting(id) }
	c, err := client.Open(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() }) // it may have been taken away
	return c
}

func connectJSON(h *harness.Host, name string) string {
	return h.Path("tls", "tools", name, "connect.json")
}

// TestInternalProgram: a program with a certificate does what its entry names as an agent would, and nothing else; its certificate is renewed
// beneath it; taken away, it is out at each process.
func TestInternalProgram(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	decide := func(id string) { h.Approve(id) }
	c := program(t, h, "reporter", "list_services,start_service", func(id string) { decide(id) })
	tools, id := executorv1.NewToolServiceClient(c), proto.String(harness.DemoService)
	list, err := tools.ListServices(t.Context(), &executorv1.ListServicesRequest{})
	if err != nil || len(list.GetServices()) == 0 {
		t.Fatalf("%v, %v", list, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := executorv1.NewEventServiceClient(c).WatchServices(ctx, &executorv1.WatchServicesRequest{})
	must(t, err)
	if change, err := changes.Recv(); err != nil || !change.GetInitial() {
		t.Errorf("%v, %v", change, err)
	}
	before := h.Starts(harness.DemoService)
	if _, err := tools.StartService(t.Context(), &executorv1.StartServiceRequest{ServiceId: id}); err != nil {
		t.Fatal(err)
	}
	if n := h.Starts(harness.DemoService) - before; n != 1 {
		t.Errorf("started %d times", n)
	}
	decide = func(id string) { h.Deny(id, "not now") }
	h.Durward("service", "stop", harness.DemoService, "--yes")
	if _, err = tools.StartService(t.Context(), &executorv1.StartServiceRequest{ServiceId: id}); !fault.Is(err, callv1.Code_CODE_DENIED) || !strings.Contains(err.Error(), "not now") {
		t.Errorf("denied by a human: %v", err)
	}
	if _, err = tools.StopService(t.Context(), &executorv1.StopServiceRequest{ServiceId: id}); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("what its entry does not name: %v", err)
	}
	operations := vaultv1.NewOperationServiceClient(c)
	history, err := operations.ListSessionOperations(t.Context(), &vaultv1.ListSessionOperationsRequest{})
	must(t, err)
	if ops := history.GetOperations(); len(ops) != 2 || ops[0].GetReason() != "not now" || !ops[1].GetOk() || ops[1].GetTool() != "start_service" {
		t.Errorf("its history: %v", ops)
	}

	h.Durward("cert", "renew")
	if _, err := tools.ListServices(t.Context(), &executorv1.ListServicesRequest{}); err != nil {
		t.Errorf("with a new certificate: %v", err)
	}

	h.Durward("client", "revoke", "reporter", "--yes")
	for name, call := range map[string]func() error{
		"executor": func() error {
			_, err := tools.ListServices(t.Context(), &executorv1.ListServicesRequest{})
			return err
		},
		"vault": func() error {
			_, err := operations.ListSessionOperations(t.Context(), &vaultv1.ListSessionOperationsRequest{})
			return err
		},
		"a stream": func() error { _, err := changes.Recv(); return err },
	} {
		harness.Eventually(t, name+" lets it in no more", func() error {
			if call() == nil {
				return errors.New("it is served")
			}
			return nil
		})
	}
	if _, err := os.Stat(filepath.Dir(connectJSON(h, "reporter"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its files are left: %v", err)
	}
	if out := h.Run("", "client", "add-tool", "reporter", "--may", "list_services", "--yes"); out.Code == 0 {
		t.Error("its name is used again")
	}
	h.Durward("audit", "verify")
}

// TestInternalProgramAfterAnEnd: what an operator or a restart ended is told as that, and a stream that is opened again takes a new permit.
func TestInternalProgramAfterAnEnd(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	c := program(t, h, "reporter", "list_services,start_service", func(string) { h.Durward("panic") })
	tools := executorv1.NewToolServiceClient(c)
	if _, err := tools.StartService(t.Context(), &executorv1.StartServiceRequest{ServiceId: proto.String(harness.DemoService)}); !fault.Is(err, callv1.Code_CODE_HALTED) {
		t.Errorf("halted while it waited: %v", err)
	}
	h.Durward("resume", "--yes")
	harness.Eventually(t, "a read in another epoch", func() error {
		_, err := tools.ListServices(t.Context(), &executorv1.ListServicesRequest{})
		return err
	})

	events := executorv1.NewEventServiceClient(c)
	watch := func() error {
		changes, err := events.WatchServices(t.Context(), &executorv1.WatchServicesRequest{})
		if err == nil {
			_, err = changes.Recv()
		}
		return err
	}
	must(t, watch())
	h.Process(harness.Vault).Kill() // its sessions end with it
	h.StartProcess(harness.Vault)
	h.AwaitHealthy(harness.Vault)
	harness.Eventually(t, "a stream that is opened again", watch)
}

// TestExampleOfAnInternalProgram runs the example that the documents show.
func TestExampleOfAnInternalProgram(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{Catalog: harness.ModesCatalog})
	h.Durward("client", "add-tool", "example", "--may", "list_services,simulate_mode,switch_mode", "--yes")
	bare := h.Command(filepath.Join(h.Bin, "example"))
	if said, _ := bare.CombinedOutput(); bare.ProcessState.ExitCode() != 2 || string(said) != "Usage: example CONNECT_JSON MODE\n" {
		t.Errorf("without arguments: exit code %d, %s", bare.ProcessState.ExitCode(), said)
	}
	cmd := h.Command(filepath.Join(h.Bin, "example"), connectJSON(h, "example"), harness.DayMode)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	asked := h.AwaitApproval("switch_mode")
	if asked.Principal != "example" || !asked.KeyBound {
		t.Errorf("the operator sees %+v", asked)
	}
	h.Approve(asked.OperationID)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"services ", "state " + harness.DemoService, "switched " + harness.DayMode, asked.OperationID} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the example does not print %q:\n%s", want, out.String())
		}
	}
}
