//go:build real

package real

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"durward.internal/deploy/e2e/harness"
	_ "durward.internal/proto/gen/durward/executor/v1"
	_ "durward.internal/proto/gen/durward/vault/v1"
)

// TestPythonExample runs the example of an internal program in Python, on Debian's gRPC and with what protoc makes of the contract.
func TestPythonExample(t *testing.T) {
	h := harness.Start(t, harness.Options{Catalog: harness.ModesCatalog})
	h.Durward("client", "add-tool", "example", "--may", "list_services,simulate_mode,switch_mode", "--yes")
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", "../../../services/platform/client/example/tool.py",
		h.Path("tls", "tools", "example", "connect.json"), harness.DayMode)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+pythonContract(t), "PYTHONDONTWRITEBYTECODE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	asked := h.AwaitApproval("switch_mode")
	h.Approve(asked.OperationID)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"services ", "state " + harness.DemoService, "switched " + harness.DayMode, asked.OperationID} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the example does not print %q:\n%s", want, out.String())
		}
	}

	// A peer with another identity than connect.json names is not spoken to.
	raw, err := os.ReadFile(h.Path("tls", "tools", "example", "connect.json"))
	must(t, err)
	wrong := filepath.Join(t.TempDir(), "connect.json")
	must(t, os.WriteFile(wrong, bytes.ReplaceAll(raw, []byte("/vault/main"), []byte("/vault/other")), 0o600))
	refused := exec.CommandContext(t.Context(), "/usr/bin/python3", "../../../services/platform/client/example/tool.py", wrong, harness.DayMode)
	refused.Env = cmd.Env
	if text, err := refused.CombinedOutput(); err == nil || strings.Contains(string(text), "services ") {
		t.Errorf("it speaks to a vault of another name: %v\n%s", err, text)
	}
}

// pythonContract is a folder with the contract as protoc makes it for Python.
func pythonContract(t *testing.T) string {
	t.Helper()
	dir, set, args := t.TempDir(), &descriptorpb.FileDescriptorSet{}, []string(nil)
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
		if strings.HasPrefix(file.Path(), "durward/") || strings.HasPrefix(file.Path(), "buf/validate/") {
			args = append(args, file.Path())
		}
		return true
	})
	raw, err := proto.Marshal(set)
	must(t, err)
	descriptors := filepath.Join(dir, "contract.binpb")
	must(t, os.WriteFile(descriptors, raw, 0o600))
	slices.Sort(args)
	plugin, err := exec.LookPath("grpc_python_plugin")
	must(t, err)
	args = append([]string{"--descriptor_set_in=" + descriptors, "--python_out=" + dir, "--grpc_python_out=" + dir, "--plugin=protoc-gen-grpc_python=" + plugin}, args...)
	if text, err := exec.CommandContext(t.Context(), "protoc", args...).CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v\n%s", err, text)
	}
	return dir
}
