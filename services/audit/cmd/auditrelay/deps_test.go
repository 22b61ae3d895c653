package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// What the relay must never link, with the reason. This test is in the command's own package, where the test cache sees every change of
// a dependency.
var forbidden = map[string]string{
	"modernc.org":                                       "the relay keeps no more than how far each destination is",
	"database/sql":                                      "the relay keeps no more than how far each destination is",
	"github.com/jackc/pgx":                              "the relay keeps no more than how far each destination is",
	"github.com/moby":                                   "the relay never touches the host",
	"github.com/docker":                                 "the relay never touches the host",
	"github.com/coreos/go-systemd":                      "the relay never touches the host",
	"github.com/modelcontextprotocol":                   "agents' protocols end at the gateway",
	"github.com/spf13/cobra":                            "no command line beyond flags",
	"durward.internal/services/audit/internal/log":      "the relay holds no key of the log's and reads what audit gives it alone",
	"durward.internal/services/audit/internal/store":    "the relay holds no key of the log's and reads what audit gives it alone",
	"durward.internal/services/audit/internal/server":   "the relay serves nobody",
	"durward.internal/services/audit/internal/cosigned": "audit keeps what the relay brings",
	"github.com/grpc-ecosystem/grpc-gateway":            "OTLP's messages are enough, its HTTP gateway is not wanted",
	"go.opentelemetry.io/otel/exporters/otlp/otlplog":   "it hides what a collector refused, and takes settings from the environment",
	"durward.internal/services/platform/recorder":       "the relay records nothing",
	"durward.internal/services/platform/sink":           "the relay is no sink",
	"durward.internal/services/platform/grant":          "the relay judges no call",
	"durward.internal/services/platform/statement":      "the relay sees nothing that a human signed",
	"durward.internal/gateway":                          "another trust zone",
	"durward.internal/services/executor":                "another trust zone",
	"durward.internal/services/vault":                   "another trust zone",
	"durward.internal/services/operator":                "another trust zone",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, nil)
}
