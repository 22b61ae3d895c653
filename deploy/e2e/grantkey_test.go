package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// TestGrantKeyIsSucceeded: the key with which the vault signs ends, and nothing is refused: neither while the next one lies beside it, nor by
// the vault that signs with the next one, nor once the old one has ended.
func TestGrantKeyIsSucceeded(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	h.StartAll()
	const signers = "trust/grant_signers.yaml"
	end := func(after time.Duration) {
		t.Helper()
		first := true
		h.WriteFile(signers, regexp.MustCompile(`not_after: .*`).ReplaceAllStringFunc(h.ReadFile(signers), func(was string) string {
			if !first {
				return was
			}
			first = false
			return `not_after: "` + time.Now().Add(after).UTC().Format(time.RFC3339) + `"`
		}))
	}
	token := h.AddClient("agent")
	works := func(when string) {
		t.Helper()
		h.Durward("stop", harness.DemoService, "--yes")
		h.Durward("start", harness.DemoService, "--yes")
		if e := h.Connect(token).Ask("service_info", demo); e.Status != "ok" {
			t.Errorf("%s: %s", when, e.Raw)
		}
	}
	works("with the first key")
	end(10 * 24 * time.Hour)
	if out := h.Run("", "doctor"); out.Code == 0 || !strings.Contains(out.Stdout, "✗ grant key") {
		t.Errorf("doctor: %+v", out)
	}
	h.Durward("up", "--prepare", "--development")
	if key := h.ReadFile("keys/grant.key"); !strings.Contains(key, " grant-2 ") {
		t.Error("there is no next key")
	}
	works("while the vault has the first key")
	h.Process(harness.Vault).Kill()
	h.StartProcess(harness.Vault)
	harness.Eventually(t, "the executor has read of the next key", func() error { // an agent's reads go on with permits of the first one
		if out := h.Run("", "stop", harness.DemoService, "--yes"); out.Code != 0 {
			return fmt.Errorf("%s", out.Stderr)
		}
		return nil
	})
	h.Durward("start", harness.DemoService, "--yes")
	works("with the next key")
	end(-time.Hour)
	for _, role := range []string{harness.Vault, harness.Executor} {
		h.Process(role).Kill()
		h.StartProcess(role)
	}
	works("after the first one's end")
}
