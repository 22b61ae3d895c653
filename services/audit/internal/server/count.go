package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store"
)

// maxNames bounds how many tools and clients an answer names.
const maxNames = 1000

// calls counts calls by a name.
type calls map[string]*auditv1.CallCount

func (c calls) add(name string, status auditv1.Status, n uint64) {
	if c[name] == nil {
		c[name] = &auditv1.CallCount{Name: name}
	}
	switch status {
	case auditv1.Status_STATUS_OK, auditv1.Status_STATUS_PENDING, auditv1.Status_STATUS_UNSPECIFIED:
		c[name].Ok += n
	case auditv1.Status_STATUS_DENIED:
		c[name].Denied += n
	default:
		c[name].Failed += n
	}
}

// busiest are those with the most calls, first, and how many more there are.
func (c calls) busiest() (most []*auditv1.CallCount, more uint64) {
	all := func(c *auditv1.CallCount) uint64 { return c.GetOk() + c.GetDenied() + c.GetFailed() }
	most = slices.SortedFunc(maps.Values(c), func(a, b *auditv1.CallCount) int {
		return cmp.Or(cmp.Compare(all(b), all(a)), cmp.Compare(a.GetName(), b.GetName()))
	})
	n := min(len(most), maxNames)
	return most[:n], uint64(len(most) - n)
}

func (s historyService) CountRecords(ctx context.Context, req *auditv1.CountRecordsRequest) (*auditv1.CountRecordsResponse, error) {
	since, err := moment(req.GetSince(), "since")
	if err != nil {
		return nil, err
	}
	size := s.cfg.Log.Size()
	var counted store.Counts
	if err := s.inTurn(ctx, func() (err error) {
		counted, err = s.cfg.Store.Count(ctx, since, size)
		return err
	}); err != nil {
		return nil, s.unreadable(ctx, err, 0)
	}
	return summary(size, counted), nil
}

func summary(size uint64, counted store.Counts) *auditv1.CountRecordsResponse {
	out := &auditv1.CountRecordsResponse{Size: size, Kinds: map[string]uint64{}, Approvals: uint64(len(counted.Waits))}
	tools, clients := calls{}, calls{}
	for a, n := range counted.Alike {
		out.Records += n
		out.Kinds[a.Kind.String()] += n
		switch a.Kind {
		case auditv1.Kind_KIND_READ:
			// A read that is about to leave the host is counted once it has ended.
			if a.Status == auditv1.Status_STATUS_PENDING {
				continue
			}
			fallthrough
		case auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED, auditv1.Kind_KIND_SINK_REFUSED:
			tools.add(a.Tool, a.Status, n)
			clients.add(a.Principal, a.Status, n)
		case auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_REFUSED:
			// What came to no sink. It may be of no tool, and of nobody who is known.
			if a.Tool != "" {
				tools.add(a.Tool, a.Status, n)
			}
			if a.Principal != "" {
				clients.add(a.Principal, a.Status, n)
			}
		default:
		}
	}
	out.Tools, out.MoreTools = tools.busiest()
	out.Clients, out.MoreClients = clients.busiest()
	if !counted.First.IsZero() {
		out.First = timestamppb.New(counted.First)
	}
	if len(counted.Waits) > 0 {
		slices.Sort(counted.Waits)
		out.ApprovalP50, out.ApprovalP95 = durationpb.New(within(counted.Waits, 50)), durationpb.New(within(counted.Waits, 95))
	}
	return out
}

// within is the time within which a part of the waits ended, in hundredths.
func within(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}
