package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// forbidden are packages that egress must never link, with the reason. It may reach other hosts; all the more it must not touch this one,
// decide, or hold secrets.
var forbidden = map[string]string{
	"github.com/moby":                        "only the executor touches the host",
	"github.com/docker":                      "only the executor touches the host",
	"github.com/coreos/go-systemd":           "only the executor touches the host",
	"github.com/godbus/dbus":                 "only the executor touches the host",
	"github.com/NVIDIA/go-nvml":              "only the executor touches the host",
	"github.com/cedar-policy":                "deciding is the vault's",
	"github.com/jackc/pgx":                   "audit and the vault alone keep their state on a database server",
	"durward.internal/gateway":               "the edge is another zone",
	"durward.internal/services/vault":        "deciding is the vault's",
	"durward.internal/services/executor":     "the host is another zone",
	"durward.internal/services/audit":        "history is audit's",
	"durward.internal/services/operator":     "humans' programs sign; a sink only verifies",
	"durward.internal/services/platform/pki": "issuing certificates is a human's process'",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, nil)
}
