package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
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
}

// execImporters may import os/exec: the SDK's transport for child processes is in its one package; nothing here uses it.
var execImporters = []string{"github.com/modelcontextprotocol/go-sdk/mcp"}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, execImporters)
}
