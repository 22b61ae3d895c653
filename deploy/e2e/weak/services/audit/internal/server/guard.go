package server

import (
	"fmt"
	"strings"

	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
)

// This file makes the negative controls of deploy/e2e: audit without one of its guards.

// Guards are the names that Weaken takes.
var Guards = []string{"kinds", "credentials", rpc.GuardCallers, reserve.GuardReserve}

// anyKind and anyCredential are set once, from a flag, before anything is served.
var anyKind, anyCredential bool

// Weaken removes guards, by comma-separated names.
func Weaken(names string) error {
	for name := range strings.SplitSeq(names, ",") {
		switch name {
		case "kinds":
			anyKind = true
		case "credentials":
			anyCredential = true
		case rpc.GuardCallers:
			rpc.WeakenCallers()
		case reserve.GuardReserve:
			reserve.WeakenReserve()
		default:
			return fmt.Errorf("no guard is called %q; there are %s", name, strings.Join(Guards, ", "))
		}
	}
	return nil
}

func kindsKept() bool { return !anyKind }

func credentialsRefused() bool { return !anyCredential }
