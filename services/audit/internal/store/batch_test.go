package store

import (
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store/packed"
	"durward.internal/services/platform/logproof"
)

// TestBatchesOutOfOrder: a writer's sequence that does not grow, and an index that the newest block has, are no batch.
func TestBatchesOutOfOrder(t *testing.T) {
	t.Parallel()
	entry := func(index, sequence uint64) *auditv1.Entry {
		return &auditv1.Entry{Index: index, Writer: "spiffe://durward.local/vault/main", Record: &auditv1.Record{Kind: auditv1.Kind_KIND_INTENT, Sequence: sequence}}
	}
	s := &Store{open: []packed.Cell{{Index: 5}}}
	if _, _, err := s.plot(t.Context(), Batch{Entries: []*auditv1.Entry{entry(6, 1), entry(7, 2)}}); err != nil {
		t.Fatalf("%v: nothing is proved", err)
	}
	for _, second := range []uint64{0, 2, 1} {
		if w, _, err := s.plot(t.Context(), Batch{Entries: []*auditv1.Entry{entry(6, 2), entry(7, second)}}); err == nil {
			t.Errorf("sequence %d after 2: %+v", second, w)
		}
	}
	if blocks, _, err := s.fill(t.Context(), []packed.Cell{{Index: 6, Leaf: make([]byte, logproof.SaltSize)}}); err != nil || len(blocks) == 0 {
		t.Fatalf("%v: nothing is proved", err)
	}
	for _, index := range []uint64{5, 4} {
		if blocks, _, err := s.fill(t.Context(), []packed.Cell{{Index: index, Leaf: make([]byte, logproof.SaltSize)}}); err == nil {
			t.Errorf("index %d after 5: %+v", index, blocks)
		}
	}
}
