package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// notification is what a command of an operator's gets.
type notification struct {
	Waiting []struct{ Number, Client, Tool, Tier, Approve string }
	Test    bool
}

// TestNotify: an operator turns notifications on as the help says, and is told of an agent's request by a command of the operator's
// own: the number that it names approves the request, and nothing that the agent wrote is in it.
func TestNotify(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := h.Connect(h.AddClient("agent"))
	out := h.Durward("notify", "install")
	for _, want := range []string{h.Path("config", "notify.yaml"), "durward-notify.service", "notify test"} {
		if !strings.Contains(out, want) {
			t.Errorf("durward notify install does not say %s:\n%s", want, out)
		}
	}
	if again := h.Durward("notify", "install"); !strings.Contains(again, "was kept") {
		t.Errorf("again:\n%s", again)
	}
	if got := h.Ask("notify", "test"); got.Code != 1 || !strings.Contains(got.Stdout, "✗ desk (desktop): there is no session bus") {
		t.Errorf("without a desktop: %+v", got)
	}

	// Each message ends where its writer closes the pipe.
	pipe := h.Path("told")
	must(t, syscall.Mkfifo(pipe, 0o600))
	head, _, found := strings.Cut(h.ReadFile("config/notify.yaml"), "destinations:")
	if !found {
		t.Fatal("the file that was made has no destinations")
	}
	h.WriteFile("config/notify.yaml", fmt.Sprintf("%sgather: 1ms\ndestinations: [{name: own, kind: command, program: [/bin/sh, -c, \"cat > %s\"]}]\n", head, pipe))
	messages := make(chan notification)
	go func() {
		for {
			raw, err := os.ReadFile(pipe)
			if err != nil {
				return // the test is over
			}
			for line := range strings.Lines(string(raw)) {
				var m notification
				if err := json.Unmarshal([]byte(line), &m); err != nil || strings.Contains(line, "because") || strings.Contains(line, "demo-chat") {
					t.Errorf("told %s: %v", line, err)
				}
				messages <- m
			}
		}
	}()
	next := func() notification {
		t.Helper()
		select {
		case m := <-messages:
			return m
		case <-time.After(harness.Patience):
			t.Fatal("nothing was told")
			return notification{}
		}
	}
	tested := make(chan harness.Output, 1)
	go func() { tested <- h.Run("", "notify", "test") }()
	if m := next(); !m.Test || len(m.Waiting) != 1 || m.Waiting[0].Client != "nobody" {
		t.Errorf("the test told %+v", m)
	}
	if got := <-tested; got.Code != 0 || got.Stdout != "✓ own (command)\n" {
		t.Errorf("the test: %+v", got)
	}

	notifier := h.Command(h.Bin+"/durward", "--home", h.Dir, "notify")
	must(t, notifier.Start())
	answer := make(chan harness.Envelope, 1)
	go func() { answer <- agent.Ask("start_service", map[string]any{"service_id": "demo-chat"}) }()
	m := next()
	if len(m.Waiting) != 1 || m.Waiting[0].Client != "agent" || m.Waiting[0].Tool != "start_service" || m.Waiting[0].Tier != "WRITE" || m.Test {
		t.Fatalf("told %+v", m)
	}
	if want := "durward --home " + h.Dir + " approve " + m.Waiting[0].Number; m.Waiting[0].Approve != want {
		t.Errorf("told %q, want %q", m.Waiting[0].Approve, want)
	}
	h.Durward("approve", m.Waiting[0].Number, "--yes")
	waited := <-answer
	if waited.Status == "pending_approval" { // the notifier took longer to tell it than the call waits
		waited = agent.Ask("wait_operation", waited.Next.Arguments)
	}
	isStatus(t, "ok", waited)

	must(t, notifier.Process.Signal(syscall.SIGTERM))
	if err := notifier.Wait(); err != nil {
		t.Errorf("asked to end: %v", err)
	}
}

// TestHostileNotifier: with a notifier's certificate every RPC of every process is refused but the one that says what waits.
func TestHostileNotifier(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	id := h.Identity("notifier/" + h.Operator)
	tried := 0
	for server, files := range map[string][]protoreflect.FileDescriptor{
		harness.Vault:    {vaultv1.File_durward_vault_v1_session_proto, vaultv1.File_durward_vault_v1_operator_proto, vaultv1.File_durward_vault_v1_redeem_proto},
		harness.Executor: {executorv1.File_durward_executor_v1_control_proto, executorv1.File_durward_executor_v1_tools_proto, executorv1.File_durward_executor_v1_events_proto},
		harness.Audit:    {auditv1.File_durward_audit_v1_audit_proto},
	} {
		conn := h.DialAs(id, server)
		for _, file := range files {
			for i := range file.Services().Len() {
				methods := file.Services().Get(i).Methods()
				for j := range methods.Len() {
					method := methods.Get(j)
					if method.FullName() == "durward.vault.v1.NoticeService.WatchWaiting" {
						continue
					}
					tried++
					if err := invokeRPC(t, conn, method); !fault.Is(err, callv1.Code_CODE_DENIED) {
						t.Errorf("%s: %v", method.FullName(), err)
					}
				}
			}
		}
	}
	if tried < 60 {
		t.Errorf("%d RPCs were tried", tried)
	}
}

// invokeRPC calls an RPC with an empty request and waits for its first answer.
func invokeRPC(t *testing.T, conn *grpc.ClientConn, method protoreflect.MethodDescriptor) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	name := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	request, response := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if !method.IsStreamingServer() {
		return conn.Invoke(ctx, name, request, response)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(response)
}
