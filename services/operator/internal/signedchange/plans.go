package signedchange

import (
	"fmt"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
)

// maxSignable is the longest statement that processes take, and room for what is not known before it is signed.
const maxSignable = 65536 - 256

// Signable reports which change is too long for a statement, before anything is shown or asked.
func Signable(cfg installdir.Config, plans []*Plan) error {
	for _, p := range plans {
		raw, err := Statement(cfg.Operator, cfg.Vault.Identity, 1, time.Time{}, p.Change()).Marshal()
		if err != nil {
			return err
		}
		if len(raw) > maxSignable {
			return fmt.Errorf("the difference of %s is too long to be signed: %d KB, and a statement is of at most %d", clean.Visible(p.Name), len(raw)>>10, maxSignable>>10)
		}
	}
	return nil
}

// WhatStands says how far a change of several files came that failed at one of them.
func WhatStands(plans []*Plan, failed int) string {
	if failed == 0 {
		return "nothing was written"
	}
	var names []string
	for _, p := range plans[:failed] {
		names = append(names, clean.Visible(p.Name))
	}
	return strings.Join(names, ", ") + " is changed already, and " + clean.Visible(plans[failed].Name) + " is not"
}

func StatementDigest(h *callv1.HumanStatement) string {
	sum := canonical.Digest(h.GetStatement())
	return canonical.FormatDigest(sum[:])
}

func Effective(plans []*Plan) []*Plan {
	var out []*Plan
	for _, p := range plans {
		if !p.Empty() {
			out = append(out, p)
		}
	}
	return out
}

// WhereToEdit is what a human edits by hand, file and line.
func WhereToEdit(plans []*Plan) string {
	var places []string
	for _, p := range plans {
		if p.Before == nil {
			places = append(places, clean.Visible(p.Path)+" (a new file)")
			continue
		}
		places = append(places, fmt.Sprintf("%s, line %d", clean.Visible(p.Path), p.Line()))
	}
	return "Edit by hand: " + strings.Join(places, "; and ")
}
