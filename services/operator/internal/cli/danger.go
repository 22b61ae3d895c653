package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/statement"
)

// bannerPatience is how long a command waits to know whether anything is dangerous.
const bannerPatience = time.Second

// Dangers are the dangerous modes in force.
func Dangers(list *vaultv1.ListStandingResponse) (out []*vaultv1.Standing) {
	for _, one := range list.GetStanding() {
		if one.GetKind() == string(statement.KindDangerous) {
			out = append(out, one)
		}
	}
	return out
}

// warnOfDanger writes one red line to standard error while any session is in dangerous mode. It asks only a vault that this
// command talked to anyway, and waits for it a second at most.
func (a *App) warnOfDanger(s *Session) {
	if !s.Vault.Spoken() {
		return
	}
	// The command's own context may have ended: Ctrl-C is how watching ends.
	ctx, cancel := context.WithTimeout(context.Background(), bannerPatience)
	defer cancel()
	list, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
	if err != nil {
		return
	}
	if line := DangerLine(Dangers(list)); line != "" {
		errs := output.New(a.Streams.Err, a.Streams.Err, false, a.Streams.Getenv)
		errs.Printf("%s\n", errs.Red(line))
	}
}

// DangerLine is the banner; "" while nothing is dangerous.
func DangerLine(found []*vaultv1.Standing) string {
	if len(found) == 0 {
		return ""
	}
	var parts []string
	for _, one := range found {
		parts = append(parts, fmt.Sprintf("%s (%s) until %s", clean.Line(one.GetPrincipal(), 64), clean.Line(one.GetSession(), 32),
			one.GetExpiresAt().AsTime().Local().Format("15:04")))
	}
	return "DANGEROUS MODE: " + strings.Join(parts, ", ") + ": changes run without asking. End it: durward dangerous disable"
}
