package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// forbidden are packages that the executor must never link, with the reason. It may touch the host; all the more it must not
// talk to strangers, decide, or hold secrets.
var forbidden = map[string]string{
	"github.com/jackc/pgx":                   "audit and the vault alone keep their state on a database server",
	"durward.internal/gateway":               "the edge is another zone",
	"durward.internal/services/vault":        "deciding is the vault's",
	"durward.internal/services/audit":        "history is audit's",
	"durward.internal/services/operator":     "humans' programs sign; a sink only verifies",
	"durward.internal/services/platform/pki": "issuing certificates is a human's process'",
	"github.com/modelcontextprotocol":        "agents' protocol ends at the gateway",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, nil)
}
