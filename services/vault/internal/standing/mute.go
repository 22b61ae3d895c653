package standing

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/journal"
)

// Muted reports until when an operator does not want to be asked by the principal.
func (b *Approvals) Muted(principal string) (until time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.mutes[principal]
	if !ok || !b.Now().Before(m.GetUntil().AsTime()) {
		return time.Time{}, false
	}
	return m.GetUntil().AsTime(), true
}

func (b *Approvals) isMuted(principal string) bool {
	_, muted := b.Muted(principal)
	return muted
}

// Mute refuses what a client asks a human for, for so long, and ends what its sessions were let do; 0 ends the mute, and returns
// nil. It is in memory alone: a restart asks again. What waits is the caller's to deny, after this. CODE_NOT_FOUND for a client
// that there is not.
func (b *Approvals) Mute(ctx context.Context, principal string, length time.Duration, reason, by string) (*vaultv1.Mute, error) {
	var mute *vaultv1.Mute
	if length > 0 {
		if _, ok := b.Client(principal); !ok {
			return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such client", fault.WithField("client"))
		}
		mute = &vaultv1.Mute{Principal: principal, Until: timestamppb.New(b.Now().Add(length)), By: by, Reason: reason}
	}
	b.mu.Lock()
	_, before := b.mutes[principal]
	if mute != nil {
		b.mutes[principal] = mute
	} else {
		delete(b.mutes, principal)
	}
	b.mu.Unlock()
	if mute == nil && !before {
		return nil, nil
	}
	b.recordMute(ctx, principal, mute, reason, by)
	if mute != nil {
		b.withdraw(ctx, whyMute, by, func(p *proposal) bool { return p.Principal == principal })
		b.end(ctx, by, func(e *entry) string {
			if e.Principal == principal {
				return whyMute
			}
			return ""
		})
	}
	return mute, nil
}

func (b *Approvals) recordMute(ctx context.Context, principal string, mute *vaultv1.Mute, reason, by string) {
	r := journal.Session(auditv1.Kind_KIND_MUTED, auditv1.Status_STATUS_OK, principal, "", 0)
	r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "unmute", reason, by
	if mute != nil {
		r.Body.Action = "mute"
		r.Body.Details = map[string]string{"until": mute.GetUntil().AsTime().UTC().Format(time.RFC3339)}
	}
	b.Journal.Note(ctx, r)
}

func (b *Approvals) sweepMutes(ctx context.Context, now time.Time) {
	b.mu.Lock()
	var over []string
	for principal, m := range b.mutes {
		if !now.Before(m.GetUntil().AsTime()) {
			delete(b.mutes, principal)
			over = append(over, principal)
		}
	}
	b.mu.Unlock()
	slices.Sort(over)
	for _, principal := range over {
		b.recordMute(ctx, principal, nil, whyTime, "")
	}
}

func (b *Approvals) muted() []*vaultv1.Mute {
	now := b.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*vaultv1.Mute
	for _, m := range b.mutes {
		if now.Before(m.GetUntil().AsTime()) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(x, y *vaultv1.Mute) int {
		return cmp.Or(x.GetUntil().AsTime().Compare(y.GetUntil().AsTime()), strings.Compare(x.GetPrincipal(), y.GetPrincipal()))
	})
	return out
}

// clip shortens what somebody else wrote.
func clip(s string) string { return clean.Line(s, 128) }
