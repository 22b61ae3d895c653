package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/client"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/trust"
)

// fourEyes looks for what nobody could approve where another human than the client's own has to: what clients ask that belong to
// nobody, and for operators whose name no client's user can have, so that nothing tells whose clients are theirs.
func fourEyes(_ context.Context, cfg Config) []Finding {
	if _, err := os.Stat(cfg.Operator.SecurityDir); err != nil {
		return nil // what is built in does not ask for it
	}
	state, _ := security.Look(security.Options{Dir: cfg.Operator.SecurityDir}, nil)
	list, err := client.Read(cfg.Operator.Clients)
	if state == nil || err != nil {
		return nil // the vault says what is wrong with its files
	}
	var without []string
	bound := false
	for _, c := range list {
		if c.Revoked || !state.Values(c.ID, c.User).FourEyes {
			continue
		}
		bound = true
		if c.User == "" {
			without = append(without, clean.Line(c.ID, 64))
		}
	}
	if !bound {
		return nil
	}
	var out []Finding
	if len(without) > 0 {
		out = append(out, Finding{Warning, "four eyes", "nobody can approve what " + strings.Join(without, ", ") + " ask: approvals.four_eyes is on, and they have no user",
			"Give each its user: in " + cfg.Operator.Clients})
	}
	var strange []string
	if raw, err := os.ReadFile(filepath.Join(cfg.Operator.TrustDir, trust.FileAllowedSigners)); err == nil {
		if signers, err := trust.ParseAllowedSigners(raw); err == nil {
			for _, s := range signers.All() {
				if name := clean.Visible(s.Operator); security.CheckUser(s.Operator) != nil && !slices.Contains(strange, name) {
					strange = append(strange, name)
				}
			}
		}
	}
	if len(strange) > 0 {
		out = append(out, Finding{Warning, "four eyes", "no client's user can be called like " + strings.Join(strange, ", ") +
			": approvals.four_eyes does not know which clients are theirs, and lets them approve their own", "Enter the key under a name of a-z, 0-9, _ and -: durward operator add"})
	}
	if len(out) == 0 {
		out = append(out, good("four eyes", "every client that needs another human's approval has a user"))
	}
	return out
}
