package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/damage"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/postgres"
)

const (
	defaultLimit = 50
	// page bounds one read of the store and one message of a stream, in entries and bytes. A message stays below the
	// 4 MB that a client accepts, since no entry is near 1 MB.
	page      = 256
	pageBytes = 2 << 20
	// several is how many entries are read at once where all are: of the blocks of reads in them, the last alone is read again.
	several = 1024
	// searches is how many searches and counts go on at once. They can take long, and records are written over the connections to a
	// PostgreSQL server that they leave.
	searches = 3
)

type historyService struct {
	auditv1.UnimplementedHistoryServiceServer
	*Server
}

func (s historyService) SearchRecords(ctx context.Context, req *auditv1.SearchRecordsRequest) (*auditv1.SearchRecordsResponse, error) {
	limit := cmp.Or(int(req.GetLimit()), defaultLimit)
	q, err := query(req)
	if err != nil {
		return nil, err
	}
	// The store answers with several reads. What is committed between two of them waits for the next search: on this page it could stand
	// without what came right before it, which no later page would have.
	q.Before = cmp.Or(q.Before, s.cfg.Log.Size())
	entries, err := s.search(ctx, q, limit+1)
	if err != nil {
		return nil, s.unreadable(ctx, err, s.cfg.Log.Size())
	}
	out := &auditv1.SearchRecordsResponse{Entries: entries[:min(len(entries), limit)]}
	// There may be older ones where a page is as long as was asked for, and where it is as large as a message may be.
	if n := len(out.Entries); n > 0 && out.Entries[n-1].GetIndex() > 0 && (len(entries) > limit || proto.Size(out) >= pageBytes) {
		out.NextBefore = out.Entries[n-1].GetIndex()
	}
	return out, nil
}

// search waits for its turn.
func (s historyService) search(ctx context.Context, q store.Query, limit int) (entries []*auditv1.Entry, err error) {
	err = s.inTurn(ctx, func() error {
		entries, err = s.cfg.Store.Search(ctx, q, limit, pageBytes)
		return err
	})
	return entries, err
}

// inTurn calls read when fewer than searches others go on.
func (s historyService) inTurn(ctx context.Context, read func() error) error {
	select {
	case s.searching <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.searching }()
	return read()
}

func query(req *auditv1.SearchRecordsRequest) (q store.Query, err error) {
	q = store.Query{
		RequestID: req.GetRequestId(), OperationID: req.GetOperationId(), Session: req.GetSession(), Principal: req.GetPrincipal(),
		Tool: req.GetTool(), Tier: req.GetTier(), Channel: req.GetChannel(), Kinds: req.GetKinds(), Statuses: req.GetStatuses(),
		Writer: req.GetWriter(), Text: req.GetText(), Before: req.GetBefore(),
	}
	if q.Since, err = moment(req.GetSince(), "since"); err != nil {
		return q, err
	}
	q.Until, err = moment(req.GetUntil(), "until")
	return q, err
}

func moment(ts *timestamppb.Timestamp, field string) (time.Time, error) {
	if ts == nil {
		return time.Time{}, nil
	}
	if at := ts.AsTime(); ts.IsValid() && !at.Before(earliest) && at.Before(latest) {
		return at, nil
	}
	return time.Time{}, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, field+" is not a time of this age", fault.WithField(field))
}

func (s historyService) GetRecord(ctx context.Context, req *auditv1.GetRecordRequest) (*auditv1.GetRecordResponse, error) {
	entry, err := s.cfg.Store.Entry(ctx, req.GetIndex())
	switch {
	case errors.Is(err, store.ErrNotFound) && req.GetIndex() >= s.cfg.Log.Size():
		return nil, notFound()
	case err != nil:
		return nil, s.unreadable(ctx, err, req.GetIndex())
	}
	var cosigned []byte
	if s.cfg.Cosigned != nil {
		cosigned, _ = s.cfg.Cosigned.Newest()
	}
	receipt, err := s.cfg.Log.Receipt(ctx, entry, cosigned)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, notFound()
	case err != nil:
		return nil, err
	}
	return &auditv1.GetRecordResponse{Entry: entry, Receipt: receipt}, nil
}

func (s historyService) TailRecords(req *auditv1.TailRecordsRequest, stream grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
	ctx := stream.Context()
	q, err := query(req.GetFilter())
	if err != nil {
		return err
	}
	next := req.GetFromIndex()
	for {
		size := s.cfg.Log.Size()
		for next < size {
			var entries []*auditv1.Entry
			var err error
			end := size
			if req.GetFilter() == nil {
				entries, err = s.rest(ctx, false, next, size)
			} else {
				end = min(size, next+window)
				entries, err = s.matching(ctx, q, next, end)
			}
			if err != nil {
				return s.unreadable(ctx, err, next)
			}
			for _, e := range entries {
				if err := stream.Send(&auditv1.TailRecordsResponse{Entry: e}); err != nil {
					return err
				}
			}
			if req.GetFilter() == nil {
				end = entries[len(entries)-1].GetIndex() + 1
			}
			next = end
		}
		if req.GetNoFollow() {
			return nil
		}
		select {
		case <-s.cfg.Log.Grown(max(size, next)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// window is how many entries are looked through at once for those that somebody follows.
const window = 4096

// matching returns what matches of the entries from one index to below another, in order.
func (s historyService) matching(ctx context.Context, q store.Query, from, end uint64) ([]*auditv1.Entry, error) {
	var out []*auditv1.Entry
	for q.From, q.Before = from, end; q.Before > from; {
		entries, err := s.search(ctx, q, page)
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			break
		}
		out = append(out, entries...)
		q.Before = entries[len(entries)-1].GetIndex()
	}
	slices.Reverse(out)
	return out, nil
}

func (s historyService) ExportLog(req *auditv1.ExportLogRequest, stream grpc.ServerStreamingServer[auditv1.ExportLogResponse]) error {
	ctx := stream.Context()
	size, checkpoint, consistency, err := s.cfg.Log.Export(ctx, req.GetKnownSize())
	if err != nil {
		return err
	}
	if err := stream.Send(&auditv1.ExportLogResponse{Checkpoint: checkpoint, Consistency: consistency}); err != nil {
		return err
	}
	// The next page is read while one is sent.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pages, read := make(chan []*auditv1.Entry), make(chan error, 1)
	go func() {
		read <- s.pages(ctx, req.GetBare(), req.GetFromIndex(), size, pages)
		close(pages)
	}()
	for entries := range pages {
		response := &auditv1.ExportLogResponse{Entries: entries}
		if req.GetBodiesApart() {
			logproof.Apart(response)
		}
		if err = stream.Send(response); err != nil {
			cancel() // no more pages come
		}
	}
	return cmp.Or(err, <-read)
}

// pages reads entries from one index to below another.
func (s historyService) pages(ctx context.Context, bare bool, next, end uint64, out chan<- []*auditv1.Entry) error {
	for next < end {
		entries, err := s.rest(ctx, bare, next, end)
		if err != nil {
			return s.unreadable(ctx, err, next)
		}
		select {
		case out <- entries:
		case <-ctx.Done():
			return ctx.Err()
		}
		next = entries[len(entries)-1].GetIndex() + 1
	}
	return nil
}

// rest returns the next entries that are to be sent, at least one.
func (s historyService) rest(ctx context.Context, bare bool, next, size uint64) ([]*auditv1.Entry, error) {
	// An index is never left out, so that a page needs no more of either part of the store.
	read := s.cfg.Store.Range
	if bare {
		read = s.cfg.Store.Bare
	}
	entries, err := read(ctx, next, min(size, next+several), several, pageBytes)
	if err == nil && len(entries) == 0 {
		err = store.ErrNotFound
	}
	return entries, err
}

// unreadable names the record that cannot be read, of those from one index on that were asked for.
func (s historyService) unreadable(ctx context.Context, err error, from uint64) error {
	if !store.Damaged(err) && !errors.Is(err, store.ErrNotFound) {
		return unreadable(err)
	}
	end := min(s.cfg.Log.Size(), from+several)
	return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, damage.Refused(ctx, s.cfg.Store, min(from, end), end), fault.WithCause(err))
}

func (s historyService) GetStatus(ctx context.Context, _ *auditv1.GetStatusRequest) (*auditv1.GetStatusResponse, error) {
	var free uint64
	if folder := s.cfg.Store.Folder(); folder != "" {
		var disk syscall.Statfs_t
		if err := syscall.Statfs(folder, &disk); err != nil {
			return nil, unreadable(err)
		}
		free = freeBytes(&disk)
	}
	size, checkpoint := s.cfg.Log.Newest()
	witnessed, _, err := s.witnessed(ctx, size)
	if err != nil {
		return nil, s.away(err)
	}
	growth, err := s.cfg.Store.Growth(ctx, time.Now())
	if err != nil && !store.Damaged(err) { // what is damaged stands among the problems, and the growth is not known
		return nil, s.away(unreadable(err))
	}
	return &auditv1.GetStatusResponse{
		RecordsPerDay: uint64(growth.Records), BytesPerDay: uint64(growth.Bytes),
		Witnessed: witnessed, Size: size, Checkpoint: checkpoint, Version: s.cfg.Version, StartedAt: timestamppb.New(s.started),
		DatabaseBytes: s.cfg.Store.Bytes(), DiskFreeBytes: free,
		Problems: s.cfg.Deep.Problems(ctx), Forward: s.cfg.Forwarding.What(), Forwarding: s.cfg.Forwarding.Status(),
	}, nil
}

// away tells operators, and nobody else, that the database server is what fails.
func (s historyService) away(err error) error {
	if s.cfg.Store.Folder() == "" && postgres.Transient(err) {
		return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "the log's database cannot be reached", fault.WithRetry(time.Second), fault.WithCause(err))
	}
	return err
}

// freeBytes is how much an ordinary process may still write to a disk. 0 says that the disk is a database server's, and so a full one has 1.
func freeBytes(disk *syscall.Statfs_t) uint64 { return max(1, disk.Bavail*uint64(max(disk.Bsize, 0))) }
