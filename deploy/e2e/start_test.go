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

// initBytes is how much each program may allocate before its main begins, a tenth and more above what it does. Every command of durward pays
// for its share, and from 4 MiB on for a cycle of the garbage collector as well. The vault, the gateway and egress check other people's tools:
// 1.7 MB of theirs is the library that does.
var initBytes = map[string]int{
	harness.Audit: 9 << 18, harness.Executor: 11 << 18, harness.Vault: 16 << 18, harness.Gateway: 16 << 18, harness.Egress: 18 << 18, "durward": 9 << 18,
}

// TestProgramsBeginLean: what a program might need later (patterns, lists, rules) is made when it is needed.
func TestProgramsBeginLean(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^init (\S+) @.* (\d+) bytes, \d+ allocs$`)
	bin := harness.Binaries(t, harness.Build{})
	for program, limit := range initBytes {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), "-h")
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		total, most, by := 0, 0, ""
		for _, m := range line.FindAllStringSubmatch(string(out), -1) {
			n, err := strconv.Atoi(m[2])
			must(t, err)
			if total += n; n > most {
				most, by = n, m[1]
			}
		}
		if total == 0 || total > limit {
			t.Errorf("%s allocates %d bytes before it begins, and may %d: %d of them in %s", program, total, limit, most, by)
		}
	}
}
