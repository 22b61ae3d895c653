package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestWhatTheGatewayMayWriteIsObeyedByNobody: each process refuses, at -check and at the start, each of the files that it obeys while
// the gateway's user owns it or may write it, and a gateway that is its own user. The control is the catalogue without gateway_user,
// which a human may own.
func TestWhatTheGatewayMayWriteIsObeyedByNobody(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	const nobody = 65534
	h := harness.New(t, harness.Options{})
	configured := func(role, gateway string) {
		file := "config/" + role + ".yaml"
		var lines []string
		for line := range strings.Lines(h.ReadFile(file)) {
			if !strings.HasPrefix(line, "gateway_user:") {
				lines = append(lines, line)
			}
		}
		h.WriteFile(file, strings.Join(lines, "")+"\n"+gateway)
	}
	// check returns what is said, and whether it is refused.
	check := func(role string, more ...string) (string, bool) {
		out, err := exec.CommandContext(t.Context(), "timeout", append([]string{"-s", "KILL", "30", filepath.Join(h.Bin, role), "-config", h.Path("config", role+".yaml")}, more...)...).CombinedOutput()
		ended := (*exec.ExitError)(nil)
		return string(out), errors.As(err, &ended) && ended.ExitCode() > 0 && ended.ExitCode() != 137 // 137: it went on, until it was killed
	}
	trust := []string{"trust", "trust/ca.pem", "trust/allowed_signers", "trust/grant_signers.yaml", "trust/log_keys"}
	for role, files := range map[string][]string{
		harness.Audit:    append([]string{"config/audit.yaml"}, trust...),
		harness.Vault:    append([]string{"config/vault.yaml", "config/clients.yaml", "config/security"}, trust...),
		harness.Executor: append([]string{"config/executor.yaml", "config/catalogue.yaml"}, trust...),
	} {
		configured(role, "gateway_user: nobody\n")
		if said, refused := check(role, "-check"); refused {
			t.Fatalf("%s, with nobody's files: %s", role, said)
		}
		for _, file := range append(files, "config") {
			path := h.Path(file)
			info, err := os.Lstat(path)
			if err != nil {
				t.Logf("%s has no %s", role, file)
				continue
			}
			for right, give := range map[string]func(){
				"owns": func() { must(t, os.Lchown(path, nobody, 0)) },
				"may write": func() {
					must(t, os.Lchown(path, 0, nobody))
					must(t, os.Chmod(path, info.Mode().Perm()|0o060))
				},
			} {
				give()
				for _, more := range [][]string{{"-check"}, {}} {
					if right != "owns" && len(more) == 0 {
						continue // one start for each file is enough
					}
					said, refused := check(role, more...)
					if !refused || !strings.Contains(said, filepath.Base(path)) && !strings.Contains(said, "gateway") && !strings.Contains(said, "others may write") {
						t.Errorf("%s %v obeys %s, which the gateway %s: %s", role, more, file, right, said)
					}
				}
				if file == "config/catalogue.yaml" || file == "trust/allowed_signers" {
					configured(role, "")
					if said, refused := check(role, "-check"); refused {
						t.Errorf("the control: %s", said)
					}
					configured(role, "gateway_user: nobody\n")
				}
				must(t, os.Lchown(path, 0, 0))
				must(t, os.Chmod(path, info.Mode().Perm()))
			}
		}
		configured(role, "gateway_user: root\n")
		if said, refused := check(role, "-check"); !refused || !strings.Contains(said, "this process runs as that user") {
			t.Errorf("%s guards nothing from itself: %s", role, said)
		}
	}
}
