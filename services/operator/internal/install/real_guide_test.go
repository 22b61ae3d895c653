//go:build real

package install_test

import (
	"cmp"
	"fmt"
	"os"
	"strings"
)

// guide are the commands that a chapter of deploy/docs/production.md has an operator type: those of GUIDE, or of the package that is installed.
func (h *installed) guide(chapter string) (lines []string) {
	h.Helper()
	raw, err := os.ReadFile(cmp.Or(os.Getenv("GUIDE"), "/usr/share/doc/durward/production.md"))
	h.must(err)
	_, text, _ := strings.Cut(string(raw), "\n## "+chapter+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, block, _ := strings.Cut(text, "```console\n")
	block, _, _ = strings.Cut(block, "```")
	for line := range strings.Lines(block) {
		if line, typed := strings.CutPrefix(line, "$ "); typed {
			line, _, _ = strings.Cut(line, "  #")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) == 0 {
		h.Fatalf("the guide has no commands under %q", chapter)
	}
	return lines
}

// types has alice type a line of the guide, in root's home where it begins with sudo. Her answer to what a command asks is --yes.
func (h *installed) types(line string) string {
	h.Helper()
	name, script := "alice", "cd; "
	if strings.HasPrefix(line, "sudo ") {
		name, script = "root", `cd; sudo() { "$@"; }; `
	}
	for _, asks := range []string{"durward restore ", "durward resume"} {
		if strings.Contains(line, asks) {
			line += " --yes"
		}
	}
	env := []string{"SUDO_USER=alice", "SSH_AUTH_SOCK=/home/alice/.ssh/agent", "DEBIAN_FRONTEND=noninteractive"}
	out, code := h.as(name, env, "bash", "-c", script+line)
	if code != 0 {
		h.Fatalf("%s: %d\n%s", line, code, out)
	}
	return out
}

// moved has the log go over to another database, as postgresql.md says: audit's key is root's while its unit is stopped.
func (h *installed) moved() {
	const config, next = "/etc/durward/audit.yaml", "/etc/durward/audit-new.yaml"
	text, err := os.ReadFile(config)
	h.must(err)
	h.must(os.WriteFile(next, []byte(strings.Replace(string(text), "state_dir: /var/lib/durward/audit", "state_dir: /var/lib/durward/audit/moved", 1)), 0o644))
	h.root("install", "-d", "-m", "700", "-o", "durward-audit", "-g", "durward-audit", "/var/lib/durward/audit/moved")
	h.root("systemctl", "stop", "durward-audit")
	h.types("sudo durward audit copy " + next)
	h.must(os.Rename(next, config))
	h.root("systemctl", "start", "durward-audit")
	h.eventually("the log is whole where it lies now", func() error {
		if out, code := h.as("alice", nil, "durward", "audit", "verify"); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
}
