//go:build real

package install_test

import (
	"cmp"
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
