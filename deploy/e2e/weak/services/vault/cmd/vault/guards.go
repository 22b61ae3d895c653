package main

import (
	"flag"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/vault/internal/changelog"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/server"
	"durward.internal/services/vault/internal/usage"
)

// guardFlags adds -weaken, for the negative controls of deploy/e2e.
func guardFlags(flags *flag.FlagSet) {
	own := map[string]func(){
		changelog.GuardAnnouncement: changelog.WeakenAnnouncement,
		halt.GuardHalted:            halt.Weaken,
		clients.GuardRotation:       clients.WeakenRotation,
		usage.GuardReservation:      usage.WeakenReservation,
		// What the vault reads of others' packages.
		"ownership":          ownership.WeakenOwnership,
		"layers":             security.WeakenLayers,
		reserve.GuardReserve: reserve.WeakenReserve,
	}
	for _, name := range server.Guards {
		own[name] = func() { server.Weaken(name) }
	}
	for _, name := range policy.Guards {
		own[name] = func() { _ = policy.Weaken(name) } // it knows every name of its own list
	}
	for _, name := range desktop.Guards {
		own[name] = func() { _ = desktop.Weaken(name) } // as well
	}
	names := slices.Clone(operation.Guards)
	for name := range own {
		names = append(names, name)
	}
	slices.Sort(names)
	flags.Func("weaken", fmt.Sprintf("remove guards: %v", names), func(list string) error {
		for name := range strings.SplitSeq(list, ",") {
			if weaken, ok := own[name]; ok {
				weaken()
			} else if err := operation.Weaken(name); err != nil {
				return err
			}
		}
		return nil
	})
}
