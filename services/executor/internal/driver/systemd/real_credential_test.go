//go:build real

package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/handover"
)

// TestRealCredentials: a unit loads its credential from a launcher, for each of its programs, whatever its type; started by anybody else
// it gets none, and no file but systemd's own in memory holds it.
func TestRealCredentials(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "c")
	canary := fmt.Sprintf("canary-%x", t.TempDir())
	w := newWorld(t, Config{Credentials: folder, Release: func(_ context.Context, service string, _ []string, public []byte) ([]byte, error) {
		return handover.Seal(public, service, []handover.Value{{Name: "hf", File: true, Variable: "HF", Value: []byte(canary)}})
	}})
	for _, kind := range []string{"simple", "exec", "oneshot"} {
		t.Run(kind, func(t *testing.T) {
			pipes := [2]string{}
			for i := range pipes {
				pipes[i] = filepath.Join(t.TempDir(), "pipe")
				must(t, unix.Mkfifo(pipes[i], 0o600))
			}
			lines := []string{"Type=" + kind, "ExecStartPre=ACT credential hf " + pipes[0], "ExecStart=ACT credential hf " + pipes[1] + " wait"}
			if kind == "oneshot" {
				lines[2] = strings.TrimSuffix(lines[2], " wait")
				lines = append(lines, "RemainAfterExit=yes")
			}
			s := w.unit("credential-"+kind+".service", lines...)
			s.Credentials = []string{"hf"}
			if err := ask(t.Context(), w.Driver, s); !errors.Is(err, driver.ErrNotTaken) || !strings.Contains(err.Error(), "LoadCredential=hf:"+folder+"/s") {
				t.Fatalf("a unit that does not load it: %v", err)
			}
			s = w.unit("credential-"+kind+".service", append(lines, "LoadCredential=hf:"+filepath.Join(folder, "s"))...)
			s.Credentials = []string{"hf"}
			started := make(chan error, 1)
			go func() { started <- ask(t.Context(), w.Driver, s) }()
			for _, pipe := range pipes {
				if got, err := os.ReadFile(pipe); err != nil || string(got) != canary {
					t.Fatalf("a program of the unit read %q, %v", got, err)
				}
			}
			must(t, <-started)
			w.until(s, driver.Running)
			if out, err := exec.Command("grep", "-rlsF", "--devices=skip", "--exclude-dir=credentials", canary, "/run", "/etc", "/var/lib", folder).CombinedOutput(); len(bytes.TrimSpace(out)) > 0 {
				t.Errorf("it is in %s (%v)", out, err)
			}
			if changed, err := w.Stop(t.Context(), s); !changed || err != nil {
				t.Fatalf("Stop = %v, %v", changed, err)
			}
		})
	}
	t.Run("by another", func(t *testing.T) {
		s := w.unit("credential-other.service", "Type=exec", "ExecStart=ACT credential hf /dev/null wait", "LoadCredential=hf:"+filepath.Join(folder, "s"))
		s.Credentials = []string{"hf"}
		for {
			if _, err := os.Stat(filepath.Join(folder, "s")); errors.Is(err, os.ErrNotExist) {
				break // the launchers of the starts above have gone
			}
			time.Sleep(5 * time.Millisecond) // no event: a launcher ends in its own time
		}
		done := make(chan string, 1)
		if _, err := w.root.StartUnitContext(t.Context(), s.Unit, "fail", done); err != nil {
			t.Fatal(err)
		}
		if result := <-done; result != "failed" {
			t.Errorf("an administrator's start without the executor: %s", result)
		}
		w.until(s, driver.Ended)
	})
}
