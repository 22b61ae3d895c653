package platformtest_test

import (
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
)

// The keys that a kit hands out are those that its trust folder names.
func TestKeysAreTrusted(t *testing.T) {
	kit := platformtest.New(t, platformtest.WithTrustDomain("example.org"))
	snapshot := kit.Trust.Current()
	if key, err := snapshot.GrantKey("test", time.Now()); err != nil || !key.Equal(kit.GrantKey.Private.Public()) {
		t.Errorf("grant key: %v", err)
	}
	if s, err := snapshot.AllowedSigners.Find(kit.OperatorSigner.PublicKey(), statement.Namespace, time.Now()); err != nil || s.Operator != platformtest.Operator {
		t.Errorf("operator: %+v, %v", s, err)
	}
	signed, err := note.Sign(&note.Note{Text: "x\n"}, kit.LogSigner)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := note.Open(signed, snapshot.Verifier()); err != nil || n.Sigs[0].Name != "example.org/audit/main" {
		t.Errorf("log key: %v", err)
	}
	if got := kit.ID(optionsv1.Role_ROLE_VAULT, "main").String(); got != "spiffe://example.org/vault/main" {
		t.Errorf("identity %s", got)
	}
}

func TestServeAndDial(t *testing.T) {
	kit := platformtest.New(t)
	executor := kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local")
	addr := kit.Serve(t, executor.Role(), executor.Instance(), func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, executorv1.UnimplementedToolServiceServer{})
	})
	call := func(role optionsv1.Role) error {
		_, err := executorv1.NewToolServiceClient(kit.Dial(t, kit.ID(role, "main"), addr, executor)).GpuStatus(t.Context(), &executorv1.GpuStatusRequest{})
		return err
	}
	if err := call(optionsv1.Role_ROLE_VAULT); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("a role that may not call: %v", err)
	}
	if err := call(optionsv1.Role_ROLE_GATEWAY); !fault.Is(err, callv1.Code_CODE_INTERNAL) { // reaches the handler, which is not implemented
		t.Errorf("a role that may call: %v", err)
	}
	first := kit.Identity(executor.Role(), executor.Instance())
	if again := kit.Identity(executor.Role(), executor.Instance()); again != first {
		t.Error("two sources for one identity")
	}
}
