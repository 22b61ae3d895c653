package server

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/rpc"
)

// What audit's file may let be forwarded.
const (
	// ForwardNothing is the default.
	ForwardNothing = ""
	// ForwardHeaders are records without their bodies: who did what when and how it ended, and not what was said.
	ForwardHeaders = "headers"
	// ForwardRecords are records as they are searched, without what authorises or proves.
	ForwardRecords = "records"
)

// maxDestinations bounds what is remembered of them: the relay names them.
const maxDestinations = 8

// quiet is how long nothing is heard of a destination that its relay's file does not name any more, while that relay comes for others: for each
// that it names it comes every two minutes at least, whatever keeps it.
const quiet = 10 * time.Minute

// Forwarding is what audit knows of where its log is forwarded: what the relay said last, in memory. It is safe for concurrent use.
type Forwarding struct {
	what  string
	since time.Time

	mu  sync.Mutex
	all map[string]told
}

// told is what a relay said of a destination.
type told struct {
	*auditv1.ForwardStatus
	relay string
}

// NewForwarding returns one that lets headers, records or nothing be forwarded.
func NewForwarding(what string) *Forwarding {
	return &Forwarding{what: what, since: time.Now(), all: map[string]told{}}
}

// Behind is how far a log of that size is ahead of the destination that has the least of it, in records and time. Where records are to be
// forwarded and no relay has come for them, that is all of them, since this process began.
func (f *Forwarding) Behind(size uint64, now time.Time) (records uint64, waits time.Duration) {
	all := f.Status()
	if f.What() != ForwardNothing && len(all) == 0 {
		return size, now.Sub(f.since)
	}
	for _, s := range all {
		r, w := logproof.Behind(s, size, now)
		if s.GetNextIndex() > size { // the log was put back before this process began, and nothing of it goes there
			r, w = size, now.Sub(f.since)
		}
		records, waits = max(records, r), max(waits, w)
	}
	return records, waits
}

// What is what is forwarded; nothing, by nil.
func (f *Forwarding) What() string {
	if f == nil {
		return ForwardNothing
	}
	return f.what
}

// Status is how far each destination is, by name.
func (f *Forwarding) Status() []*auditv1.ForwardStatus {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*auditv1.ForwardStatus
	for _, s := range f.all {
		out = append(out, s.ForwardStatus)
	}
	slices.SortFunc(out, func(a, b *auditv1.ForwardStatus) int { return strings.Compare(a.GetDestination(), b.GetDestination()) })
	return out
}

// note remembers what the relay says, and forgets what that relay was told to forward to and does not any more; false: there are too many
// destinations.
func (f *Forwarding) note(relay string, s *auditv1.ForwardStatus) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.all, func(_ string, old told) bool {
		return old.relay == relay && s.GetHeardAt().AsTime().Sub(old.GetHeardAt().AsTime()) > quiet
	})
	if _, known := f.all[s.GetDestination()]; !known && len(f.all) == maxDestinations {
		return false
	}
	f.all[s.GetDestination()] = told{s, relay}
	return true
}

type forwardService struct {
	auditv1.UnimplementedForwardServiceServer
	*Server
}

func (s forwardService) ReadRecords(ctx context.Context, req *auditv1.ReadRecordsRequest) (*auditv1.ReadRecordsResponse, error) {
	f := s.cfg.Forwarding
	if f.What() == ForwardNothing {
		return nil, fault.New(callv1.Code_CODE_DENIED, "audit's file lets nothing be forwarded: its key forward is empty", fault.WithField("forward"))
	}
	if err := s.leads(); err != nil {
		return nil, err
	}
	size, _, _, err := s.cfg.Log.Export(ctx, 0)
	if err != nil {
		return nil, err
	}
	from := req.GetFromIndex()
	status := &auditv1.ForwardStatus{Destination: req.GetDestination(), NextIndex: from, HeardAt: timestamppb.Now(), Problem: req.GetProblem()}
	out := &auditv1.ReadRecordsResponse{Size: size}
	if from > size {
		status.Problem = cmp.Or(status.GetProblem(), "the log is shorter than what is at the destination")
	} else {
		// The one before, too: the relay sees by it that the log is the one whose records it sent.
		begin, limit := from-min(from, 1), uint64(page)
		if n := uint64(req.GetLimit()); n > 0 {
			limit = n
		}
		entries, err := s.cfg.Store.Range(ctx, begin, min(size, from+limit), page+1, pageBytes)
		if err != nil {
			return nil, unreadable(err)
		}
		if begin < from {
			if len(entries) == 0 {
				return nil, unreadable(errors.New("an entry is missing"))
			}
			out.Before, entries = entries[0].GetLeafHash(), entries[1:]
		}
		if len(entries) == 0 && from < size {
			return nil, unreadable(errors.New("entries are missing"))
		}
		for _, e := range entries {
			out.Records = append(out.Records, forwarded(e, f.what))
		}
		if len(entries) > 0 {
			status.WaitsSince = entries[0].GetLoggedAt()
		}
	}
	relay, _ := rpc.Caller(ctx)
	switch {
	case !f.note(relay.String(), status):
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the log is forwarded to 8 destinations at most", fault.WithField("destination"))
	case from > size:
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the log is shorter than that", fault.WithField("from_index"))
	}
	return out, nil
}

// forwarded is a record as it leaves the host. Each field is named: one that the contract gains later is not forwarded by that.
func forwarded(e *auditv1.Entry, what string) *auditv1.ForwardedRecord {
	r := e.GetRecord()
	out := &auditv1.ForwardedRecord{
		Index: e.GetIndex(), Writer: e.GetWriter(), LoggedAt: e.GetLoggedAt(), LeafHash: e.GetLeafHash(),
		Record: &auditv1.Record{
			Sequence: r.GetSequence(), Kind: r.GetKind(), Time: r.GetTime(), RequestId: r.GetRequestId(), OperationId: r.GetOperationId(),
			Tool: r.GetTool(), Tier: r.GetTier(), Status: r.GetStatus(),
		},
	}
	if b := r.GetBody(); b != nil && what == ForwardRecords {
		out.Record.Body = &auditv1.Body{
			Principal: b.GetPrincipal(), Session: b.GetSession(), Channel: b.GetChannel(), Source: b.GetSource(), Arguments: b.GetArguments(),
			Summary: b.GetSummary(), Confirmed: b.GetConfirmed(), DurationMs: b.GetDurationMs(), Dangerous: b.GetDangerous(),
			ParentRequestId: b.GetParentRequestId(), Action: b.GetAction(), Reason: b.GetReason(), Persistent: b.GetPersistent(),
			DecisionSource: b.GetDecisionSource(), Details: b.GetDetails(),
		}
	}
	return out
}
