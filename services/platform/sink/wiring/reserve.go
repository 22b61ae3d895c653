package wiring

import (
	"context"

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
