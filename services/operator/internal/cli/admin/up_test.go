package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/supervisor"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/procfs"
)

func TestChildEnvironment(t *testing.T) {
	env := childEnvironment(func(name string) string {
		return map[string]string{"PATH": "/bin", "HOME": "/home/me", "SSH_AUTH_SOCK": "/tmp/agent", "OPENAI_API_KEY": "secret", "LD_PRELOAD": "x"}[name]
	})
	if got := strings.Join(env, " "); got != "PATH=/bin HOME=/home/me" {
		t.Errorf("children inherit %s", got)
	}
}

// A configuration that its program refuses is wrong usage, as one that is no YAML is; a program that breaks off has failed, whatever its code.
func TestWhyNothingStarted(t *testing.T) {
	for _, c := range []struct {
		name, program string
		code          int
		want          string
	}{
		{"a wrong key", "echo 'audit: audit.yaml:10:1: unknown key' >&2; exit 2", cli.ExitUsage, "audit: audit.yaml:10:1: unknown key"},
		{"a crash", `case "$*" in *-check) exit 0; esac; echo 'panic: x' >&2; exit 2`, cli.ExitFailed, "audit stopped by itself (exit status 2)"},
		{"a failure", "echo no >&2; exit 1", cli.ExitFailed, "audit stopped by itself (exit status 1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := t.TempDir()
			program := filepath.Join(bin, "audit")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+c.program+"\n"), 0o700); err != nil { // #nosec G306 -- a program
				t.Fatal(err)
			}
			s, err := supervisor.New(supervisor.Config{Children: []supervisor.Child{{Role: "audit", Path: program, Log: filepath.Join(bin, "log"), Health: "127.0.0.1:9"}}})
			must(t, err)
			core, _, _ := clitest.Printing(false)
			core.Home = installdir.Home{Dir: bin}
			var p *cli.Problem
			if err := (&app{core}).notStarted(s.Run(t.Context(), func() { t.Error("healthy") }), bin); !errors.As(err, &p) || p.Code != c.code || !strings.HasPrefix(p.Error(), c.want) {
				t.Errorf("code %d: %v", p.Code, err)
			}
		})
	}
}

// TestDownForPrograms: what a program reads of down is one result, with those of the services that it stopped.
func TestDownForPrograms(t *testing.T) {
	core, out, _ := clitest.Printing(true)
	core.Home = installdir.Home{Dir: t.TempDir()}
	up := exec.CommandContext(t.Context(), "sleep", "60")
	must(t, errors.Join(os.Mkdir(filepath.Join(core.Home.Dir, "run"), 0o700), up.Start()))
	ended := make(chan error, 1)
	go func() { ended <- up.Wait() }()
	raw := testfile.Read(t, "/proc/"+strconv.Itoa(up.Process.Pid)+"/stat")
	start, err := strconv.ParseUint(procfs.Stat(raw)[19], 10, 64)
	if err == nil {
		err = core.Home.WriteProcess(installdir.Process{PID: up.Process.Pid, StartTime: start})
	}
	must(t, err)
	var result struct {
		Stopped  bool
		Process  int
		Services []struct{ Status string }
	}
	services := func(err error) func() error {
		return func() error { return errors.Join(core.Show(map[string]any{"status": "ok"}, nil), err) }
	}
	refused := errors.New("refused")
	if err := (&app{core}).down(t.Context(), services(refused)); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &result); err != nil || result.Stopped || len(result.Services) != 1 {
		t.Errorf("after a service that was not stopped: %v: %s", err, out)
	}
	out.Reset()
	must(t, (&app{core}).down(t.Context(), services(nil)))
	<-ended
	if err := json.Unmarshal(out.Bytes(), &result); err != nil || !result.Stopped || result.Process != up.Process.Pid || len(result.Services) != 1 || result.Services[0].Status != "ok" {
		t.Errorf("%v: %s", err, out)
	}
	out.Reset()
	if err := (&app{core}).down(t.Context(), services(nil)); err == nil {
		t.Fatal("it was stopped again")
	}
	if err := json.Unmarshal(out.Bytes(), &result); err != nil || result.Stopped || len(result.Services) != 1 {
		t.Errorf("where Durward is not stopped: %v: %s", err, out)
	}
}

// TestUpWritesNothingForPrograms: what asks for JSON is told so, and not given text.
func TestUpWritesNothingForPrograms(t *testing.T) {
	core, out, errs := clitest.Printing(true)
	err := (&app{core}).up(t.Context(), upOptions{prepare: true})
	if core.Explain(err) != cli.ExitUsage || out.Len() > 0 || !strings.Contains(errs.String(), "durward status -o json") {
		t.Errorf("%v: %s%s", err, out, errs)
	}
}

// TestPrepareAnew: an operator.yaml that is gone is made as it was: by the name that the trust folder has, and with the home's egress.
func TestPrepareAnew(t *testing.T) {
	h, err := installdir.At(t.TempDir())
	must(t, err)
	core, _, errs := clitest.Printing(false)
	core.Home, core.Now = h, time.Now
	a, base := &app{core}, platformtest.ClaimPorts(t)
	if _, err := a.prepare(t.Context(), upOptions{development: true, prepare: true, egress: true, operator: "bob", basePort: base}); err != nil {
		t.Fatal(err)
	}
	before := testfile.Read(t, h.Config("operator"))
	must(t, os.Remove(h.Config("operator")))
	taken := fmt.Sprintf("127.0.0.1:%d", base+1)
	l, err := net.Listen("tcp", taken)
	must(t, err)
	_, err = a.prepare(t.Context(), upOptions{development: true})
	if core.Explain(err); !strings.Contains(errs.String(), taken+" is in use") || strings.Contains(errs.String(), "--base-port") || !strings.Contains(errs.String(), filepath.Dir(h.Config("vault"))) {
		t.Errorf("its files say the ports: %s", errs)
	}
	must(t, l.Close())
	if _, err := a.prepare(t.Context(), upOptions{development: true, prepare: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, testfile.Read(t, h.Config("operator"))); diff != "" {
		t.Error(diff)
	}
	must(t, os.Remove(h.Config("operator")))
	if _, err := a.prepare(t.Context(), upOptions{prepare: true}); err == nil || !strings.Contains(err.Error(), "the signing key has no passphrase") {
		t.Errorf("of the key that is there, and no passphrase of another: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
