package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// What the operator's program must never link, with the reason. This test is in the command's own package, where the test
// cache sees every change of a dependency.
var forbidden = map[string]string{
	"github.com/moby":                         "only the executor touches the host",
	"github.com/docker":                       "only the executor touches the host",
	"github.com/coreos/go-systemd":            "only the executor touches the host",
	"github.com/godbus/dbus":                  "only the executor and durward-notify speak to a bus",
	"github.com/NVIDIA/go-nvml":               "only the executor touches the host",
	"github.com/santhosh-tekuri/jsonschema":   "strangers' schemas are compiled where no signing key is opened, and at every start",
	"github.com/modelcontextprotocol":         "agents' protocol ends at the gateway; the bridge relays messages without understanding them",
	"modernc.org/sqlite":                      "it keeps files that a person can read, no database",
	"github.com/jackc/pgx":                    "it keeps files that a person can read, no database",
	"github.com/pressly/goose":                "it keeps files that a person can read, no database",
	"github.com/tink-crypto":                  "secrets are the vault's",
	"code.dny.dev/ssrf":                       "only egress and durward-notify dial out",
	"durward.internal/gateway":                "another trust zone",
	"durward.internal/services/vault":         "another trust zone",
	"durward.internal/services/executor":      "another trust zone",
	"durward.internal/services/audit":         "another trust zone",
	"durward.internal/services/platform/sink": "it is no sink",
	"github.com/prometheus":                   "nothing asks it for metrics",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, nil)
}
