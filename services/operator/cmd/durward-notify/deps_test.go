package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// What durward-notify must never link, with the reason. This test is in the command's own package, where the test cache sees every
// change of a dependency.
var forbidden = map[string]string{
	"github.com/moby":                                          "only the executor touches the host",
	"github.com/docker":                                        "only the executor touches the host",
	"github.com/coreos/go-systemd":                             "only the executor touches the host",
	"github.com/NVIDIA/go-nvml":                                "only the executor touches the host",
	"github.com/modelcontextprotocol":                          "agents' protocol ends at the gateway",
	"modernc.org/sqlite":                                       "it keeps nothing",
	"github.com/jackc/pgx":                                     "it keeps nothing",
	"github.com/pressly/goose":                                 "it keeps nothing",
	"github.com/spf13/cobra":                                   "it has four flags",
	"charm.land":                                               "it has no screen",
	"durward.internal/gateway":                                 "another trust zone",
	"durward.internal/services/vault":                          "another trust zone",
	"durward.internal/services/executor":                       "another trust zone",
	"durward.internal/services/audit":                          "another trust zone",
	"durward.internal/services/platform/sink":                  "it is no sink",
	"durward.internal/services/platform/pki":                   "it issues nothing",
	"durward.internal/services/operator/internal/approval":     "it approves nothing",
	"durward.internal/services/operator/internal/cli":          "it approves nothing",
	"durward.internal/services/operator/internal/installdir":   "it makes and changes no files",
	"durward.internal/services/operator/internal/peers":        "it connects to the vault alone, as a notifier",
	"durward.internal/services/operator/internal/signingkey":   "it signs nothing",
	"durward.internal/services/operator/internal/signedchange": "it signs nothing",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, []string{
		"durward.internal/services/operator/internal/notify", // a command of the operator's own
		"github.com/godbus/dbus/v5",                          // starts dbus-launch where no address is given; one is always given
	})
}
