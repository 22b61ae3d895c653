package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// What the vault must never link, with the reason.
var forbidden = map[string]string{
	"github.com/moby/":                        "the vault never touches the host",
	"github.com/docker/":                      "the vault never touches the host",
	"github.com/coreos/go-systemd":            "the vault never touches the host",
	"github.com/godbus/dbus":                  "the vault never touches the host",
	"github.com/NVIDIA/go-nvml":               "the vault never touches the host",
	"github.com/modelcontextprotocol/":        "agents' protocols end at the gateway",
	"github.com/spf13/cobra":                  "no command line beyond flags",
	"charm.land/":                             "people see the vault through their own program",
	"code.dny.dev/ssrf":                       "the vault dials audit alone",
	"github.com/anthropics/":                  "the vault dials audit alone",
	"github.com/openai/":                      "the vault dials audit alone",
	"durward.internal/gateway":                "another trust zone",
	"durward.internal/services/executor":      "another trust zone",
	"durward.internal/services/audit":         "another trust zone",
	"durward.internal/services/operator":      "another trust zone",
	"durward.internal/services/platform/sink": "the vault is no sink of its own grants",
	"C":           "no cgo",
	"runtime/cgo": "no cgo",
	"plugin":      "no code arrives at run time",
}

// execImporters may import os/exec: SQLite's C library emulation does, for a system() that SQLite never calls.
var execImporters = []string{"modernc.org/libc"}

func TestDependencies(t *testing.T) {
	// Using main links the whole program into the test, so that the test cache sees every change of it.
	t.Log("the dependencies of", runtime.FuncForPC(reflect.ValueOf(main).Pointer()).Name())
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports", ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; packages++ {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for prefix, reason := range forbidden {
			if p.ImportPath == prefix || strings.HasPrefix(p.ImportPath, strings.TrimSuffix(prefix, "/")+"/") {
				t.Errorf("the vault links %s: %s", p.ImportPath, reason)
			}
		}
		if slices.Contains(p.Imports, "os/exec") && !slices.Contains(execImporters, p.ImportPath) {
			t.Errorf("%s imports os/exec: the vault starts no program", p.ImportPath)
		}
		if strings.HasSuffix(p.ImportPath, "platform/platformtest") {
			t.Errorf("the vault links %s, which is for tests", p.ImportPath)
		}
	}
	if packages < 100 {
		t.Errorf("only %d packages were listed", packages)
	}
}

// A product has no switch that removes a guard.
func TestNoWeakenFlag(t *testing.T) {
	out, err := exec.Command("go", "run", ".", "-weaken", "owner", "-version").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "flag provided but not defined: -weaken") {
		t.Errorf("-weaken: %v, %s", err, out)
	}
}
