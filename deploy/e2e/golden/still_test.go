package golden

import (
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// tellStill tells of an installation that does not run: what durward says then, wrong usage, and mistakes in every configuration file.
func tellStill(t *testing.T, s *set) {
	w := newWorld(t, s, harness.Options{Catalog: harness.ModesCatalog})
	w.away = true
	defer w.done()

	f := w.file("refusals/usage.txt")
	f.says("Wrong usage is exit code 2 and says where to look.")
	for _, args := range [][]string{
		{"aprove"}, {"approve"}, {"approve", "K7F3", "K7F4"}, {"services", "--no-such-flag"}, {"client", "lost"}, {"deny"}, {"mute"},
		{"start"}, {"start", "a", "b"}, {"switch"}, {"logs"}, {"logs", "demo-chat", "-n", "many"}, {"mode", "show"}, {"model", "show"}, {"service", "show"},
		{"config", "set", "approvals.wait_s"}, {"policy", "allow"}, {"policy", "allow", "--client", "cursor"}, {"policy", "explain", "gpu_status"},
		{"audit", "show"}, {"audit", "search", "--kind", "nonsense"}, {"audit", "search", "--since", "yesterday"}, {"audit", "search", "--limit", "100000"},
		{"simulate", "--context", "demo-chat"}, {"client", "connect", "emacs"}, {"operator", "add", "bob"}, {"catalog", "add", "gpu"},
		{"standing", "revoke"}, {"dangerous", "enable"}, {"down", "--services", "now"},
	} {
		f.durward(args...)
	}
	f = w.file("refusals/no-installation.txt")
	f.says("A folder that holds no installation.")
	f.durward("--home", w.Path("nowhere"), "status")
	f.durward("--home", w.Path("nowhere"), "approve", "K7F3")
	f.durward("version")

	f = w.file("refusals/not-running.txt")
	f.says("No process runs: exit code 3.")
	for _, args := range [][]string{
		{"status"}, {"status", "--json"}, {"services"}, {"services", "--json"}, {"gpu"}, {"model", "ls"}, {"mode", "ls"}, {"simulate"}, {"switches"}, {"approvals"},
		{"approvals", "--json"}, {"approve", "K7F3", "--yes"}, {"deny", "K7F3"}, {"sessions"}, {"standing", "list"}, {"mute", "cursor"}, {"start", "demo-chat", "--yes"},
		{"switch", "day", "--yes"}, {"logs", "demo-chat"}, {"panic"}, {"resume", "--yes"}, {"audit", "search"}, {"audit", "verify"}, {"policy", "list"},
		{"config", "show"}, {"dangerous", "status"}, {"down"},
	} {
		f.durward(args...)
	}
	f = w.file("refusals/no-key.txt")
	f.says("The operator's key cannot be used.")
	operator := w.ReadFile("config/operator.yaml")
	for _, key := range []string{w.Path("keys", "no-such-key"), w.Path("config", "operator.yaml")} {
		w.WriteFile("config/operator.yaml", strings.Replace(operator, w.Path("keys", "operator_ed25519"), key, 1))
		f.durward("config", "set", "approvals.wait_s", "300", "--yes")
	}
	f.says("The operator is none whom the trust folder names.")
	w.WriteFile("config/operator.yaml", strings.Replace(operator, "operator: ada", "operator: eve", 1))
	f.durward("config", "set", "approvals.wait_s", "300", "--yes")
	w.WriteFile("config/operator.yaml", operator)

	f = w.file("refusals/no-terminal.txt")
	f.says("What needs a person refuses without a terminal: exit code 4.")
	for _, args := range [][]string{
		{"config", "set", "approvals.wait_s", "300"}, {"client", "add", "cursor"}, {"client", "connect", "claude-code"}, {"resume"}, {"policy", "limit", "start_service", "--budget-day", "5"},
	} {
		f.durward(args...)
	}
	tellConfigurations(w)
}

// mistake is a change of a configuration file that its program must refuse.
type mistake struct {
	what, old, new string
}

func tellConfigurations(w *world) {
	common := []mistake{
		{"nothing", "", ""},
		{"an unknown key", "listen: 127", "listn: 127"},
		{"a key twice", "log_level: info", "log_level: info\nlog_level: debug"},
		{"a required key left out", "trust_dir: ", "# trust_dir: "},
		{"a value that is none of those allowed", "log_level: info", "log_level: loud"},
		{"a value of another type", "log_level: info", "log_level: [info]"},
		{"an address that other machines reach", "listen: 127.0.0.1", "listen: 0.0.0.0"},
		{"an address without a port", "health_listen: 127.0.0.1:", "health_listen: 127.0.0.1 #"},
		{"no YAML", "log_level: info", "log_level: [info"},
		{"a relative path", "state_dir: " + w.Dir, "state_dir: here"},
	}
	for _, program := range harness.Roles() {
		f := w.file("configuration/" + program + ".txt")
		own := map[string][]mistake{
			harness.Gateway: {
				{"a limit below its range", "hold_s: 1", "hold_s: -1"},
				{"an identity that is none", "spiffe://durward.local/vault/main", "vault"},
				{"an unknown limit", "limits: {", "limits: {tool: {per_s: 1, burst: 1}, "},
			},
			harness.Vault: {
				{"a role that is no sink", "role: executor", "role: gateway"},
				{"an unknown key deeper", "sinks:\n  - role:", "sinks:\n  - rle:"},
				{"no key of grants", "grant_key: ", "# grant_key: "},
			},
			harness.Executor: {
				{"no catalogue", "catalogue: ", "# catalogue: "},
				{"a catalogue that is not there", "catalogue.yaml", "no-catalogue.yaml"},
				{"an unattended call of no tool", "unattended: []", "unattended: [{tool: no_such, client: cursor}]"},
			},
			harness.Audit: {
				{"no key of the log", "log_key: ", "# log_key: "},
			},
		}
		good := w.ReadFile("config/" + program + ".yaml")
		for _, m := range append(common, own[program]...) {
			if m.old != "" && !strings.Contains(good, m.old) {
				w.t.Errorf("%s.yaml has no %q", program, m.old)
			}
			w.WriteFile("config/wrong.yaml", strings.Replace(good, m.old, m.new, 1))
			f.says("%s: %q instead of %q", m.what, m.new, m.old)
			args := []string{"-config", w.Path("config", "wrong.yaml"), "-check"}
			if program == harness.Executor {
				args = append(args, "-development")
			}
			f.execute(program, args...)
		}
		f.says("a file that is not there")
		f.execute(program, "-config", w.Path("config", "none.yaml"), "-check")
		f.says("no file at all")
		f.execute(program, "-check")
	}

	f := w.file("configuration/operator.txt")
	good := w.ReadFile("config/operator.yaml")
	for _, m := range []mistake{
		{"an unknown key", "operator: ada", "operater: ada"},
		{"a required key left out", "signing_key: ", "# signing_key: "},
		{"no YAML", "operator: ada", "operator: [ada"},
		{"an identity that is none", "spiffe://durward.local/vault/main", "vault"},
	} {
		w.WriteFile("config/operator.yaml", strings.Replace(good, m.old, m.new, 1))
		f.says("%s: %q instead of %q", m.what, m.new, m.old)
		f.durward("approvals")
	}
	w.WriteFile("config/operator.yaml", good)

	f = w.file("configuration/catalogue.txt")
	good = w.ReadFile("config/catalogue.yaml")
	for _, m := range []mistake{
		{"nothing", "", ""},
		{"an unknown key", "    driver: process", "    drivr: process"},
		{"an unknown driver", "driver: process", "driver: magic"},
		{"another version", "version: 1", "version: 2"},
		{"a service twice", "id: demo-sleepy", "id: demo-chat"},
		{"a GPU that is not there", "gpus: [1]", "gpus: [7]"},
		{"a model that is not there", "model: durward/demo-1b", "model: durward/demo-2b"},
		{"a mode of a service that is not there", "services: [demo-sleepy]", "services: [demo-sleepi]"},
		{"a shell", "argv: [durward-demo,", "argv: [/bin/sh,"},
		{"a program that is not there", "argv: [durward-demo,", "argv: [durward-dmo,"},
		{"a path that is no path", "path: /health", "path: health"},
		{"a way to sleep that is none", "sleep: vllm-l1", "sleep: deep"},
		{"a secret in the environment", "    driver: process", "    driver: process\n    environment: {API_TOKEN: x}"},
		{"an id with a space", "id: demo-chat", "id: demo chat"},
		{"no YAML", "modes:", "modes: ["},
		{"several mistakes", "gpus: [0]", "gpus: [7]\n    pin: maybe\n    vram: 5"},
	} {
		if m.old != "" && !strings.Contains(good, m.old) {
			w.t.Errorf("the catalogue has no %q", m.old)
		}
		wrong := strings.Replace(good, m.old, m.new, 1)
		w.WriteFile("config/wrong.yaml", wrong)
		f.says("%s: %q instead of %q", m.what, m.new, m.old)
		f.durward("catalog", "check", w.Path("config", "wrong.yaml"))
	}
	f.says("The executor refuses to start with a broken catalogue.")
	w.WriteFile("config/catalogue.yaml", strings.Replace(good, "gpus: [1]", "gpus: [7]", 1))
	f.execute(harness.Executor, "-config", w.Path("config", "executor.yaml"), "-check", "-development")
	w.WriteFile("config/catalogue.yaml", good)

	f = w.file("configuration/security.txt")
	for _, c := range []struct{ name, text string }{
		{"config/security/security.yaml", "approvals: {wait_s: 5}\n"},
		{"config/security/security.yaml", "approvls: {wait_s: 600}\n"},
		{"config/security/security.yaml", "approvals: [\n"},
		{"config/security/tools.yaml", "tools: {start_servce: {tier: DENIED}}\n"},
		{"config/security/tools.yaml", "tools: {start_service: {tier: ROOT}}\n"},
		{"config/security/policy/broken.cedar", "permit (principal, action, resource) when { 1 + };\n"},
		{"config/security/policy/unknown.cedar", "@id(\"x\") permit (principal, action == Durward::Action::\"no_such\", resource);\n"},
		{"config/clients.yaml", "clients: [{id: Claude}]\n"},
	} {
		old := ""
		if !strings.Contains(c.name, ".cedar") {
			old = w.ReadFile(c.name)
		}
		w.WriteFile(c.name, c.text)
		f.says("%s holds %q", c.name, strings.TrimSpace(c.text))
		if strings.Contains(c.name, ".cedar") {
			f.durward("policy", "check", w.Path(c.name))
		} else {
			f.durward("policy", "check")
		}
		f.execute(harness.Vault, "-config", w.Path("config", "vault.yaml"), "-check")
		w.WriteFile(c.name, old)
	}
}
