package root

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/host"
	"durward.internal/services/platform/platformtest/testfile"
)

// install runs durward service install.
func (c catalogWorld) install(args ...string) ran {
	c.t.Helper()
	return c.run("", append([]string{"service", "install"}, args...)...)
}

func TestServiceInstallRefuses(t *testing.T) {
	c := newCatalog(t)
	cases := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"nothing", nil, cli.ExitUsage, "one service's id"},
		{"an id and a rule", []string{"chat", "--polkit"}, cli.ExitUsage, "one service's id"},
		{"a service that is not there", []string{"chatt"}, cli.ExitFailed, `no service "chatt"`},
		{"nobody to run as", []string{"chat"}, cli.ExitFailed, "run_as"},
		{"no unit to rule", []string{"--polkit"}, cli.ExitFailed, "no service of the systemd driver"},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			if got := c.install(test.args...); got.code != test.code || !strings.Contains(got.err, test.want) || got.out != "" {
				t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
			}
		})
	}
	c.write("version: 7\n")
	if got := c.install("chat"); got.code != cli.ExitFailed || !strings.Contains(got.err, "not good") {
		t.Errorf("a bad catalogue: exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

func TestServiceInstall(t *testing.T) {
	c := newCatalog(t)
	c.write(strings.Replace(testCatalog, "driver: process", "driver: process\n    run_as: nobody", 1))
	got := c.install("chat")
	for _, want := range []string{"\nUser=nobody\n", "\nExecStart=:\"/bin/true\" \"-x\"\n", "\nIPAddressDeny=any\n", "\nRestart=no\n", "\nProtectSystem=strict\n"} {
		if got.code != cli.ExitOK || !strings.Contains(got.out, want) {
			t.Errorf("exit code %d, no line %q:\n%s%s", got.code, strings.TrimSpace(want), got.out, got.err)
		}
	}
	var answer host.RenderedJSON
	shown := c.install("chat", "--json")
	if err := json.Unmarshal([]byte(shown.out), &answer); err != nil || answer.Text != got.out || answer.Name != "durward-service-chat.service" {
		t.Errorf("--json: %v\n%s", err, shown.out)
	}
	file := filepath.Join(t.TempDir(), "x.service")
	for range 2 {
		if again := c.install("chat", "--out", file); again.code != cli.ExitOK || !strings.Contains(again.out, file) {
			t.Errorf("--out: exit code %d\n%s%s", again.code, again.out, again.err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != got.out {
		t.Errorf("the file holds %q, %v", text, err)
	}
	testfile.Write(t, file, "mine")
	if again := c.install("chat", "--out", file); again.code != cli.ExitFailed || !strings.Contains(again.err, "there already") {
		t.Errorf("over another file: exit code %d\n%s%s", again.code, again.out, again.err)
	}
	if text, _ := os.ReadFile(file); string(text) != "mine" {
		t.Errorf("somebody's file was written over: %q", text)
	}
}

func TestServiceInstallPolkit(t *testing.T) {
	c := newCatalog(t)
	c.write(strings.Replace(testCatalog, "driver: process\n    argv: [/bin/true, -x]", "driver: systemd\n    unit: durward-service-chat.service", 1))
	got := c.install("--polkit")
	if got.code != cli.ExitOK || !strings.Contains(got.out, `"durward-service-chat.service"`) || !strings.Contains(got.out, `subject.user === "durward-executor"`) {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if got := c.install("chat"); got.code != cli.ExitFailed || !strings.Contains(got.err, "process driver") {
		t.Errorf("of a unit already: exit code %d\n%s%s", got.code, got.out, got.err)
	}
}
