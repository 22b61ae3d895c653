package main

import (
	"os/exec"
	"strings"
	"testing"
)

// forbidden are packages that the executor must never link, with the reason. It may touch the host; all the more it must not
// talk to strangers, decide, or hold secrets.
var forbidden = map[string]string{
	"durward.internal/gateway":               "the edge is another zone",
	"durward.internal/services/vault":        "deciding is the vault's",
	"durward.internal/services/audit":        "history is audit's",
	"durward.internal/services/operator":     "humans' programs sign; a sink only verifies",
	"durward.internal/services/platform/pki": "issuing certificates is a human's process'",
	"github.com/modelcontextprotocol/":       "agents' protocol ends at the gateway",
	"net/http/pprof":                         "no debugging surface",
	"net/rpc":                                "one kind of RPC",
	"plugin":                                 "no code from elsewhere",
	"testing":                                "tests stay out of the product",
	"expvar":                                 "no debugging surface",
	"C":                                      "no cgo",
}

func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("only %d packages: the list is not the program's", len(packages))
	}
	for _, p := range packages {
		for bad, reason := range forbidden {
			if p == bad || strings.HasSuffix(bad, "/") && strings.HasPrefix(p, bad) || strings.HasPrefix(p, bad+"/") && strings.Contains(bad, ".") {
				t.Errorf("%s is linked: %s", p, reason)
			}
		}
	}
}
