package server

import (
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/weakness"
)

// This file makes the negative controls of deploy/e2e: audit without one of its guards.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("kinds", "credentials").Also("written", log.WeakenWritten).Also("place", log.WeakenPlace).Also("synced", database.WeakenSync).
	Also(rpc.GuardCallers, rpc.WeakenCallers).Also(rpc.GuardUnseen, rpc.WeakenUnseen).Also(reserve.GuardReserve, reserve.WeakenReserve)

func kindsKept() bool { return !Guards.Off("kinds") }

func credentialsRefused() bool { return !Guards.Off("credentials") }
