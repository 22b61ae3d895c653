package mode

import (
	"context"
	"encoding/hex"
	"fmt"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// Preview is what a switch would do, for whoever approves it: all of one plan.
type Preview struct {
	// Subject is that of Switcher.Subject.
	Subject *callv1.Subject
	// Lines say it in words, a step a line.
	Lines []string
	// Entries are what stands behind each entry_sha256 of the plan, a step each and in the steps' order: RFC 8785 JSON with the
	// digest of what the service runs, labelled "service ID".
	Entries []*callv1.Subject
}

// Preview plans a switch and carries nothing out. Errors are faults, as those of Subject; CODE_PLAN_CHANGED also where what a service
// runs changed meanwhile.
func (s *Switcher) Preview(ctx context.Context, r *executorv1.SwitchModeRequest) (*Preview, error) {
	p, err := s.asked(ctx, r.GetModeId(), r.GetPlanDigest(), r.MarginMibOverride, s.cfg.GPUs.Last())
	if err != nil {
		return nil, err
	}
	entries, err := s.entries(ctx, p)
	if err != nil {
		return nil, err
	}
	return &Preview{Subject: p.acted(), Lines: s.describe(ctx, r, p), Entries: entries}, nil
}

func (s *Switcher) describe(ctx context.Context, r *executorv1.SwitchModeRequest, p *plan) []string {
	var lines []string
	for i, st := range p.steps {
		line := fmt.Sprintf("%d. %s %s", i+1, ActionName(st.action), st.service.ID)
		if st.releases() {
			line += ": requests in flight end with it"
		}
		if expected := s.expected(ctx, st.action, st.service.ID); expected > 0 {
			line += fmt.Sprintf(" (took %d s before)", seconds(expected))
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = append(lines, "every service of "+p.target.mode.ID+" runs already: nothing changes")
	}
	if len(p.keeps) > 0 {
		ids := make([]string, 0, len(p.keeps))
		for _, one := range p.keeps {
			ids = append(ids, one.ID)
		}
		lines = append(lines, "left as it is though the mode does not name it: "+join(ids))
	}
	if r.MarginMibOverride != nil {
		lines = append(lines, fmt.Sprintf("%d MiB stay free on each GPU, by the call's own wish; the host's setting is %d MiB", p.margin, s.cfg.Margin))
	}
	if unfit := p.unfit(); unfit != "" {
		lines = append(lines, "it does not fit now: "+unfit)
	}
	return append(lines, "if a step fails, the services from before are brought back")
}

func (s *Switcher) entries(ctx context.Context, p *plan) ([]*callv1.Subject, error) {
	var out []*callv1.Subject
	for _, st := range p.steps {
		definition, err := s.cfg.Services.Definition(ctx, st.service)
		if err != nil { // it was said when the plan was made; what cannot be read can be stopped
			definition = catalog.Unreadable
		}
		entry, err := st.service.Subject(definition)
		if err != nil {
			return nil, err
		}
		if digest := canonical.Digest(entry); hex.EncodeToString(digest[:]) != st.entry {
			return nil, fault.New(callv1.Code_CODE_PLAN_CHANGED,
				"what "+st.service.ID+" runs is changing; nothing was done. Call simulate_mode again", fault.WithField("plan_digest"))
		}
		out = append(out, &callv1.Subject{Label: "service " + st.service.ID, Entry: entry})
	}
	return out, nil
}
