//go:build real

package real

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestCurl calls processes with a program for any gRPC server, buf curl, to which grpcurl is alike: an operator by what the processes
// tell of themselves, and by the contract's descriptor set. An internal program is told nothing of what is served; with the
// set it is answered, or refused, as the contract says.
func TestCurl(t *testing.T) {
	h := harness.Start(t, harness.Options{})
	h.Durward("client", "add-tool", "reporter", "--may", "list_services", "--yes")
	tools, err := exec.CommandContext(t.Context(), "../../../scripts/tools.sh", "generate").Output()
	must(t, err)
	set, err := filepath.Abs("../../../proto/durward.binpb")
	must(t, err)
	const operator, program = "operator", "tools/reporter"
	const status, services = "/durward.vault.v1.ControlService/GetStatus", "/durward.executor.v1.ToolService/ListServices"
	list, call, described := []string{"--list-services"}, []string{"--data", "{}"}, []string{"--data", "{}", "--schema", set}
	for name, c := range map[string]struct {
		who, server, method string
		args                []string
		says                string
		fails               bool
	}{
		"what audit serves":                    {operator, harness.Audit, "", list, "durward.audit.v1.HistoryService", false},
		"what the executor tells a program":    {program, harness.Executor, "", list, "permission_denied", true},
		"a call by reflection":                 {operator, harness.Vault, status, call, `"epoch"`, false},
		"a call by the set":                    {operator, harness.Vault, status, described, `"epoch"`, false},
		"a program's call by reflection":       {program, harness.Vault, status, call, "failed to find service", true},
		"a program's call that is not its own": {program, harness.Vault, status, described, "permission_denied", true},
		"a program's call without its permit":  {program, harness.Executor, services, described, "permission_denied", true},
	} {
		argv := slices.Concat([]string{filepath.Join(strings.TrimSpace(string(tools)), "buf"), "curl", "--protocol", "grpc", "--insecure",
			"--cert", h.Path("tls", c.who, "cert.pem"), "--key", h.Path("tls", c.who, "key.pem")}, c.args, []string{"https://" + h.Address(c.server) + c.method})
		out, err := h.Command(argv...).CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
