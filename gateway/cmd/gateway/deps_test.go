package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What the gateway must never link, with the reason. This test is in the command's own package, where the test cache sees
// every change of a dependency.
var forbidden = map[string]string{
	"modernc.org":              "the gateway has no database",
	"database/sql":             "the gateway has no database",
	"github.com/jackc/pgx":     "the gateway has no database",
	"github.com/pressly/goose": "the gateway has no database",
	"durward.internal/services/platform/database":       "the gateway has no database",
	"durward.internal/services/platform/recorder/spool": "the gateway spools to no disk",
	"durward.internal/services/platform/sink":           "the gateway is no sink: nothing happens here",
	"durward.internal/services/platform/grant":          "the gateway neither signs nor judges grants",
	"durward.internal/services/platform/statement":      "the gateway has nothing that a human signs",
	"durward.internal/services/platform/proof":          "the gateway holds no client's key",
	"durward.internal/services/platform/pki":            "the gateway issues no certificates",
	"durward.internal/services/vault":                   "another trust zone",
	"durward.internal/services/executor":                "another trust zone",
	"durward.internal/services/audit":                   "another trust zone",
	"durward.internal/services/operator":                "another trust zone",
	"github.com/moby":                                   "the gateway never touches the host",
	"github.com/docker":                                 "the gateway never touches the host",
	"github.com/coreos/go-systemd":                      "the gateway never touches the host",
	"github.com/godbus/dbus":                            "the gateway never touches the host",
	"github.com/NVIDIA/go-nvml":                         "the gateway never touches the host",
	"C":                                                 "no cgo",
	"runtime/cgo":                                       "no cgo",
	"plugin":                                            "no code arrives at run time",
}

// execImporters may import os/exec: the SDK's transport for child processes is in its one package; nothing here uses it.
var execImporters = []string{"github.com/modelcontextprotocol/go-sdk/mcp"}

func TestDependencies(t *testing.T) {
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
			if p.ImportPath == prefix || strings.HasPrefix(p.ImportPath, prefix+"/") {
				t.Errorf("the gateway links %s: %s", p.ImportPath, reason)
			}
		}
		if slices.Contains(p.Imports, "os/exec") && !slices.Contains(execImporters, p.ImportPath) {
			t.Errorf("%s imports os/exec: the gateway starts no program", p.ImportPath)
		}
		if strings.HasSuffix(p.ImportPath, "platform/platformtest") {
			t.Errorf("the gateway links %s, which is for tests", p.ImportPath)
		}
	}
	if packages < 100 {
		t.Errorf("only %d packages were listed", packages)
	}
}
