package plan

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// Preview is what a switch would do, for whoever approves it: all of one plan.
type Preview struct {
	// Subject is the plan's.
	Subject *callv1.Subject
	// Lines say it in words, a step a line.
	Lines []string
	// Entries are what stands behind each entry_sha256 of the plan, a step each and in the steps' order: RFC 8785 JSON with the
	// digest of what the service runs, labelled "service ID".
	Entries []*callv1.Subject
	// Fit is whether it fits now, with other ways where it does not.
	Fit *Simulation
}

// otherWays is how many other ways an approver is shown of what does not fit.
const otherWays = 3

// Preview describes a plan for whoever approves it. CODE_PLAN_CHANGED: what a service runs changed since the plan was made.
func (pl *Planner) Preview(ctx context.Context, p *Plan) (*Preview, error) {
	entries, err := pl.entries(ctx, p)
	if err != nil {
		return nil, err
	}
	others := 0
	if p.Unfit() != "" {
		others = otherWays
	}
	fit, err := pl.simulation(ctx, p, others)
	if err != nil {
		return nil, err
	}
	return &Preview{Subject: p.Subject(), Lines: pl.describe(ctx, p), Entries: entries, Fit: fit}, nil
}

func (pl *Planner) describe(ctx context.Context, p *Plan) []string {
	var lines []string
	for i, st := range p.Steps {
		line := fmt.Sprintf("%d. %s %s", i+1, ActionName(st.Action), st.Service.ID)
		if st.releases() {
			line += ": requests in flight end with it"
		}
		if expected := pl.Expected(ctx, st.Action, st.Service.ID); expected > 0 {
			line += fmt.Sprintf(" (took %d s before)", seconds(expected))
		}
		lines = append(lines, line)
		if st.Action == Start {
			for _, pin := range pl.Services.Pins(ctx, st.Service) {
				lines = append(lines, "   "+pin)
			}
		}
	}
	if len(lines) == 0 {
		lines = append(lines, "every service of "+p.Mode()+" runs already: nothing changes")
	}
	if len(p.keeps) > 0 {
		ids := make([]string, 0, len(p.keeps))
		for _, one := range p.keeps {
			ids = append(ids, one.ID)
		}
		lines = append(lines, "left as it is though the mode does not name it: "+strings.Join(ids, ", "))
	}
	if p.request.Margin != nil {
		setting, _ := pl.Margin(nil) // it refuses overrides alone
		lines = append(lines, fmt.Sprintf("%d MiB stay free on each GPU, by the call's own wish; the host's setting is %d MiB", p.Margin, setting))
	}
	if unfit := p.Unfit(); unfit != "" {
		lines = append(lines, "it does not fit now: "+unfit)
	}
	return append(lines, "if a step fails, the services from before are brought back")
}

func (pl *Planner) entries(ctx context.Context, p *Plan) ([]*callv1.Subject, error) {
	var out []*callv1.Subject
	for _, st := range p.Steps {
		definition, err := pl.Services.Definition(ctx, st.Service)
		if err != nil { // it was said when the plan was made; what cannot be read can be stopped
			definition = catalog.Unreadable
		}
		entry, err := st.Service.Subject(definition)
		if err != nil {
			return nil, err
		}
		if digest := canonical.Digest(entry); hex.EncodeToString(digest[:]) != st.Entry {
			return nil, fault.New(callv1.Code_CODE_PLAN_CHANGED,
				"what "+st.Service.ID+" runs is changing; nothing was done. Call simulate_mode again", fault.WithField("plan_digest"))
		}
		out = append(out, &callv1.Subject{Label: "service " + st.Service.ID, Entry: entry})
	}
	return out, nil
}
