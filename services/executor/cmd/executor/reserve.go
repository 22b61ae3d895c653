package main

import (
	"context"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/sink"
)

// reservedStore is the sink's store on a disk that can become full: then what takes load off the host, and a halt, are written
// down out of the reserve, and a change that is neither is refused before anything is done.
type reservedStore struct {
	sink.Store
	kept *reserve.Reserve
}

// Spend implements sink.Store.
func (s reservedStore) Spend(ctx context.Context, p *sink.Spend) error {
	return s.kept.Write(reserve.Relieves(p.Tool), func() error { return s.Store.Spend(ctx, p) })
}

// Finish implements sink.Store. What was done is always written down.
func (s reservedStore) Finish(ctx context.Context, key string, r *sink.Result) error {
	return s.kept.Write(true, func() error { return s.Store.Finish(ctx, key, r) })
}

// Settled implements sink.Store.
func (s reservedStore) Settled(ctx context.Context, keys []string) error {
	return s.kept.Write(true, func() error { return s.Store.Settled(ctx, keys) })
}

// SetControl implements sink.Store: a halt, above all.
func (s reservedStore) SetControl(ctx context.Context, c sink.Control) error {
	return s.kept.Write(true, func() error { return s.Store.SetControl(ctx, c) })
}

// reservedSpool is the spool on such a disk. A batch that holds one record that may use the reserve is written as a whole: the
// spool's own bound is on how much that can be.
type reservedSpool struct {
	recorder.Store
	kept *reserve.Reserve
}

// Commit implements recorder.Store.
func (s reservedSpool) Commit(ctx context.Context, change recorder.Change) error {
	if !s.kept.Given() {
		if err := s.Store.Commit(ctx, change); !reserve.Full(err) {
			return err
		}
	}
	return s.kept.Write(mayUse(change), func() error { return s.Store.Commit(ctx, change) })
}

// mayUse reports whether a change of the spool may use the reserve: it takes rows away, or numbers them, or one of those that it
// adds may.
func mayUse(change recorder.Change) bool {
	if len(change.Add) == 0 {
		return true
	}
	for _, row := range change.Add {
		record := &auditv1.Record{}
		if proto.Unmarshal(row.Record, record) == nil && reserve.Entitled(record) {
			return true
		}
	}
	return false
}
