package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// What the witness must never link, with the reason. This test is in the command's own package, where the test cache sees every change
// of a dependency.
var forbidden = map[string]string{
	"modernc.org":                                     "the witness keeps a file for each log, and no database",
	"database/sql":                                    "the witness keeps a file for each log, and no database",
	"github.com/jackc/pgx":                            "the witness keeps a file for each log, and no database",
	"code.dny.dev/ssrf":                               "the witness dials nobody",
	"github.com/moby":                                 "the witness never touches the host",
	"github.com/docker":                               "the witness never touches the host",
	"github.com/coreos/go-systemd":                    "the witness never touches the host",
	"github.com/modelcontextprotocol":                 "agents' protocols end at the gateway",
	"github.com/spf13/cobra":                          "no command line beyond flags",
	"durward.internal/services/audit/internal/log":    "the witness writes no log",
	"durward.internal/services/audit/internal/store":  "the witness writes no log",
	"durward.internal/services/audit/internal/server": "the witness serves nobody of Durward's",
	"durward.internal/services/audit/internal/relay":  "the witness dials nobody",
	"durward.internal/services/platform/dialer":       "the witness dials nobody",
	"durward.internal/services/platform/recorder":     "the witness records nothing",
	"durward.internal/services/platform/sink":         "the witness is no sink",
	"durward.internal/services/platform/grant":        "the witness judges no call",
	"durward.internal/services/platform/statement":    "the witness sees nothing that a human signed",
	"durward.internal/gateway":                        "another trust zone",
	"durward.internal/services/executor":              "another trust zone",
	"durward.internal/services/vault":                 "another trust zone",
	"durward.internal/services/operator":              "another trust zone",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, nil)
}
