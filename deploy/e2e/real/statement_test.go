//go:build real

package real

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestStatement exports an approval as the operator would for somebody who has no Durward, and verifies it with
// ssh-keygen; a changed statement, another namespace and another signer are refused.
func TestStatement(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Fatalf("%v: run make real, which installs it", err)
	}
	h := harness.Start(t, harness.Options{})
	agent := h.Connect(h.AddClient("agent"))
	asked := agent.Call("start_service", map[string]any{"service_id": harness.DemoService})
	h.Approve(asked.OperationID)
	if e := agent.Call("wait_operation", asked.Next.Arguments); e.Status != "ok" {
		t.Fatalf("wait_operation: %s", e.Raw)
	}

	folder := t.TempDir()
	shown := h.Durward("audit", "show", "--statement", asked.OperationID, "--out", folder)
	if !strings.Contains(shown, "ssh-keygen -Y verify") {
		t.Errorf("the export does not say how to verify it:\n%s", shown)
	}
	statement, signature := one(t, folder, "*.json"), one(t, folder, "*.sig")
	content, err := os.ReadFile(statement)
	must(t, err)
	if !bytes.Contains(content, []byte(asked.OperationID)) || !bytes.Contains(content, []byte(harness.DemoService)) {
		t.Errorf("the statement is not about the operation: %s", content)
	}

	verify := func(content []byte, namespace, operator string) error {
		cmd := exec.CommandContext(t.Context(), "ssh-keygen", "-Y", "verify", "-f", h.Path("trust", "allowed_signers"),
			"-I", operator, "-n", namespace, "-s", signature)
		cmd.Stdin = bytes.NewReader(content)
		out, err := cmd.CombinedOutput()
		t.Logf("%s", bytes.TrimSpace(out))
		return err
	}
	if err := verify(content, "durward-approval", h.Operator); err != nil {
		t.Errorf("ssh-keygen does not verify the approval: %v", err)
	}
	if err := verify(bytes.Replace(content, []byte(harness.DemoService), []byte("other-chat"), 1), "durward-approval", h.Operator); err == nil {
		t.Error("a changed statement is verified")
	}
	if err := verify(content, "file", h.Operator); err == nil {
		t.Error("another namespace is verified")
	}
	if err := verify(content, "durward-approval", "mallory"); err == nil {
		t.Error("another signer is verified")
	}
}

// one returns the only file that matches.
func one(t *testing.T, folder, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v: %v, want one %s", files, err, pattern)
	}
	return files[0]
}
