package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/notify"
	"durward.internal/services/operator/internal/output"
)

// notifier puts a program in durward-notify's place.
func notifier(t *testing.T, program string) {
	t.Helper()
	beside, err := cli.OwnFolder()
	if err == nil {
		err = os.WriteFile(filepath.Join(beside, notifyProgram), []byte(program), 0o700) // #nosec G306 -- a program
	}
	must(t, err)
	t.Cleanup(func() { _ = os.Remove(filepath.Join(beside, notifyProgram)) })
}

// TestNotifyForPrograms: what a program reads of notify is a stream of objects, one for each line.
func TestNotifyForPrograms(t *testing.T) {
	notifier(t, "#!/bin/sh\necho Telling 1 destinations.; echo 'The \"vault\"'\nexit 1\n")
	core, out, _ := clitest.Printing(true)
	core.Home = installdir.Home{Dir: t.TempDir()}
	must(t, errors.Join(os.Mkdir(filepath.Dir(core.Home.Config("notify")), 0o700), os.WriteFile(core.Home.Config("notify"), nil, 0o600)))
	if err := (&app{core}).notifyLines(t.Context()); err == nil || !strings.Contains(err.Error(), "durward-notify has ended") {
		t.Errorf("%v", err)
	}
	if want := "{\"line\":\"Telling 1 destinations.\"}\n{\"line\":\"The \\\"vault\\\"\"}\n"; out.String() != want {
		t.Errorf("%s, want %s", out, want)
	}
}

// unread is an output that nobody reads any more.
type unread struct{ last []byte }

func (u *unread) Write(b []byte) (int, error) {
	u.last = bytes.Clone(b)
	return 0, syscall.EPIPE
}

// TestNotifyForNobody: where nobody reads the lines any more, the program that tells of what waits ends as well.
func TestNotifyForNobody(t *testing.T) {
	notifier(t, "#!/bin/sh\necho $$\nexec sleep 60\n")
	core, _, _ := clitest.Printing(true)
	out := &unread{}
	core.Out = output.New(out, io.Discard, core.Streams.Getenv)
	core.Home = installdir.Home{Dir: t.TempDir()}
	must(t, errors.Join(os.Mkdir(filepath.Dir(core.Home.Config("notify")), 0o700), os.WriteFile(core.Home.Config("notify"), nil, 0o600)))
	if err := (&app{core}).notifyLines(t.Context()); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v", err)
	}
	var said struct{ Line string }
	must(t, json.Unmarshal(out.last, &said))
	pid, err := strconv.Atoi(said.Line)
	must(t, err)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("it goes on: %v", err)
	}
}

// TestNotifyInstallOfAnyFolder: what notify install writes is what durward-notify takes, and the commands that come next are of that
// installation, whatever its folder is called.
func TestNotifyInstallOfAnyFolder(t *testing.T) {
	notifier(t, "")
	for _, name := range []string{"plain", "at@home", "a+b,c=d%e", "münchen", "a b"} {
		core, out, _ := clitest.Printing(false)
		folder := t.TempDir()
		core.Streams.Getenv = func(key string) string { return map[string]string{"XDG_CONFIG_HOME": folder}[key] }
		core.HomeDir = filepath.Join(folder, name)
		core.Home = installdir.Home{Dir: core.HomeDir}
		if _, err := core.Home.Init(installdir.Options{Development: true, Operator: "alice"}); err != nil {
			t.Fatal(err)
		}
		cfg, err := core.Home.Load()
		must(t, err)
		if err := (&app{App: core}).notifyInstall(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := notify.Load(core.Home.Config("notify")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		unit, err := os.ReadFile(filepath.Join(folder, "systemd", "user", notifyProgram+".service"))
		must(t, err)
		if want := fmt.Sprintf("\nRestartPreventExitStatus=%d\n", cli.ExitUsage); !strings.Contains(string(unit), want) {
			t.Errorf("%s: systemd starts it every ten seconds with a file that it cannot use:\n%s", name, unit)
		}
		if want := "durward --home " + cli.ShellWord(core.HomeDir) + " notify test"; !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q does not stand in\n%s", name, want, out)
		}
	}
}
