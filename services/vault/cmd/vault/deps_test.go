package main

import (
	"bytes"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/process"
	"durward.internal/services/vault/internal/settings"
)

// What the vault must never link, with the reason.
var forbidden = map[string]string{
	"github.com/moby":                         "the vault never touches the host",
	"github.com/docker":                       "the vault never touches the host",
	"github.com/coreos/go-systemd":            "the vault never touches the host",
	"github.com/godbus/dbus":                  "the vault never touches the host",
	"github.com/NVIDIA/go-nvml":               "the vault never touches the host",
	"github.com/modelcontextprotocol":         "agents' protocols end at the gateway",
	"github.com/spf13/cobra":                  "no command line beyond flags",
	"charm.land":                              "people see the vault through their own program",
	"code.dny.dev/ssrf":                       "the vault dials audit and its database alone",
	"github.com/anthropics":                   "the vault dials audit and its database alone",
	"github.com/openai":                       "the vault dials audit and its database alone",
	"durward.internal/gateway":                "another trust zone",
	"durward.internal/services/executor":      "another trust zone",
	"durward.internal/services/audit":         "another trust zone",
	"durward.internal/services/operator":      "another trust zone",
	"durward.internal/services/platform/sink": "the vault is no sink of its own grants",
}

// execImporters may import os/exec: SQLite's C library emulation does, for a system() that SQLite never calls.
var execImporters = []string{"modernc.org/libc"}

func TestDependencies(t *testing.T) {
	// Using main links the whole program into the test, so that the test cache sees every change of it.
	t.Log("the dependencies of", runtime.FuncForPC(reflect.ValueOf(main).Pointer()).Name())
	platformtest.Dependencies(t, forbidden, execImporters)
}

// A product has no switch that removes a guard.
func TestNoWeakenFlag(t *testing.T) {
	var out, complaint bytes.Buffer
	code := process.Main(program(&settings.Settings{}), []string{"-weaken", "owner", "-version"}, &out, &complaint)
	if code != process.ExitBadConfiguration || out.Len() > 0 || !strings.Contains(complaint.String(), "flag provided but not defined: -weaken") {
		t.Errorf("-weaken: %d, %s%s", code, &out, &complaint)
	}
}
