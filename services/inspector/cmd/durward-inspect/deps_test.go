package main

import (
	"reflect"
	"runtime"
	"testing"

	"durward.internal/services/platform/platformtest"
)

// What the inspector must never link, with the reason. net/http comes with gguf-parser-go, whose package also fetches remote
// files: nothing here calls it, and the process has no sockets when it reads.
var forbidden = map[string]string{
	"github.com/jackc/pgx":                      "audit and the vault alone keep their state on a database server",
	"github.com/moby":                           "the inspector never touches the host",
	"github.com/coreos/go-systemd":              "the inspector never touches the host",
	"github.com/godbus/dbus":                    "the inspector never touches the host",
	"github.com/NVIDIA/go-nvml":                 "the inspector never touches the host",
	"github.com/modelcontextprotocol":           "agents' protocols end at the gateway",
	"modernc.org/sqlite":                        "the inspector keeps nothing",
	"google.golang.org/grpc":                    "the inspector talks to nobody",
	"durward.internal/gateway":                  "another trust zone",
	"durward.internal/services/executor":        "another trust zone",
	"durward.internal/services/vault":           "another trust zone",
	"durward.internal/services/audit":           "another trust zone",
	"durward.internal/services/operator":        "another trust zone",
	"durward.internal/services/platform/grant":  "the inspector decides nothing",
	"durward.internal/services/platform/policy": "the inspector decides nothing",
}

func TestDependencies(t *testing.T) {
	// Using main links the whole program into the test, so that the test cache sees every change of it.
	t.Log("the dependencies of", runtime.FuncForPC(reflect.ValueOf(main).Pointer()).Name())
	platformtest.Dependencies(t, forbidden, []string{})
}
