package recorder

import (
	"context"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/reserve"
)

// Reserved is a store whose disk can become full: then the records that reserve.Entitled allows are written out of the reserve,
// and others stay in memory until there is room. A batch that holds one such record is written as a whole: the spool's own bound
// is on how much that can be.
func Reserved(store Store, kept *reserve.Reserve) Store { return reserved{store, kept} }

type reserved struct {
	Store
	kept *reserve.Reserve
}

// Commit implements Store.
func (s reserved) Commit(ctx context.Context, change Change) error {
	if !s.kept.InUse() {
		if err := s.Store.Commit(ctx, change); !reserve.Full(err) {
			return err
		}
	}
	return s.kept.Write(mayUse(change), func() error { return s.Store.Commit(ctx, change) })
}

// mayUse reports whether a change may use the reserve: it takes rows away, or numbers them, or one of those that it adds may.
func mayUse(change Change) bool {
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
