package main

import (
	"flag"
	"fmt"

	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/trust"
	"durward.internal/services/platform/weakness"
	"durward.internal/services/vault/internal/changelog"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/credential"
	"durward.internal/services/vault/internal/decision"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/server"
	"durward.internal/services/vault/internal/usage"
)

// guardFlags adds -weaken, for the negative controls of deploy/e2e.
func guardFlags(flags *flag.FlagSet) {
	guards := weakness.Of().And(operation.Guards).And(server.Guards).And(decision.Guards).And(credential.Guards).
		Also(changelog.GuardAnnouncement, changelog.WeakenAnnouncement).Also(halt.GuardHalted, halt.Weaken).
		Also(clients.GuardRotation, clients.WeakenRotation).Also(usage.GuardReservation, usage.WeakenReservation).
		// What the vault reads of others' packages.
		And(policy.Guards).And(desktop.Guards).
		Also(rpc.GuardUnseen, rpc.WeakenUnseen).Also(trust.GuardForms, trust.WeakenForms).Also(filewatch.GuardStamps, filewatch.WeakenStamps).
		Also("ownership", ownership.WeakenOwnership).Also("layers", security.WeakenLayers).Also(reserve.GuardReserve, reserve.WeakenReserve).
		Also(downstream.GuardAccepted, downstream.WeakenAccepted)
	flags.Func("weaken", fmt.Sprintf("remove guards: %v", guards.Names()), guards.Weaken)
}
