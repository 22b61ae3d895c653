package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// initBytes is how much a program may allocate before its main begins: less than the garbage collector's first cycle waits for, which
// every command of durward would pay for.
const initBytes = 4 << 20

// TestProgramsBeginLean: what a program might need later (patterns, lists, rules) is made when it is needed.
func TestProgramsBeginLean(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^init (\S+) @.* (\d+) bytes, \d+ allocs$`)
	bin := harness.Binaries(t, harness.Build{})
	for _, program := range append(harness.Roles(), harness.Egress, "durward") {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), "-h")
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		total, most, by := 0, 0, ""
		for _, m := range line.FindAllStringSubmatch(string(out), -1) {
			n, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			if total += n; n > most {
				most, by = n, m[1]
			}
		}
		if total == 0 || total > initBytes {
			t.Errorf("%s allocates %d bytes before it begins, %d of them in %s", program, total, most, by)
		}
	}
}
