package logproof_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

const executor = "spiffe://durward.local/executor/local"

// runs is a log whose entries were all taken at once.
func runs(t *testing.T, n int) (*fixture, []*auditv1.Record) {
	t.Helper()
	var list []*auditv1.Record
	for i := range n {
		list = append(list, &auditv1.Record{Sequence: uint64(i + 1), Kind: auditv1.Kind_KIND_READ, Time: at(1), RequestId: fmt.Sprint("r-", i)})
	}
	f := newFixture(t, list...)
	f.entries = nil
	f.hashes = nil
	for i, r := range list {
		e := &auditv1.Entry{Index: uint64(i), Writer: executor, Record: r, LoggedAt: at(2), Salt: slices.Repeat([]byte{byte(i)}, logproof.SaltSize)}
		must(t, logproof.Seal(e))
		hashes, err := tlog.StoredHashesForRecordHash(int64(i), tlog.Hash(e.GetLeafHash()), f)
		must(t, err)
		f.entries, f.hashes = append(f.entries, e), append(f.hashes, hashes...)
	}
	return f, list
}

// run is what an honest log says of the entries from one index to below another.
func (f *fixture) run(from, end, size int) *auditv1.Run {
	out := &auditv1.Run{FirstIndex: uint64(from), LoggedAt: f.entries[from].GetLoggedAt()}
	for _, e := range f.entries[from:end] {
		out.Salts = append(out.Salts, e.GetSalt()...)
	}
	for _, s := range append(logproof.Cover(0, uint64(from)), logproof.Cover(uint64(end), uint64(size))...) {
		out.Subtrees = append(out.Subtrees, slices.Clone(f.hashes[tlog.StoredHashIndex(s.Level, int64(s.Number))][:]))
	}
	return out
}

// accept is what a writer does with an answer.
func accept(t *testing.T, f *fixture, records []*auditv1.Record, size int, run *auditv1.Run) error {
	t.Helper()
	leaves, err := logproof.RunLeaves(executor, records, run)
	if err != nil {
		return err
	}
	return keeper(t, f, nil).AcceptRun(t.Context(), &auditv1.AppendResponse{Checkpoint: f.signed(t, size), Run: run}, leaves)
}

// TestRun: every run of every tree is proved, and by nothing that belongs to another.
func TestRun(t *testing.T) {
	const most = 11
	f, list := runs(t, most)
	for size := 1; size <= most; size++ {
		for from := range size {
			for end := from + 1; end <= size; end++ {
				if err := accept(t, f, list[from:end], size, f.run(from, end, size)); err != nil {
					t.Fatalf("%d to %d of %d: %v", from, end, size, err)
				}
			}
		}
	}
	for _, at := range []int{0, 3, 9} {
		if err := accept(t, f, nil, 9, f.run(at, at, 9)); !errors.Is(err, logproof.ErrInclusion) && !errors.Is(err, logproof.ErrIncomplete) {
			t.Errorf("a run of no records at %d: %v", at, err)
		}
	}
	for name, spoil := range map[string]func(r *auditv1.Run){
		"another place":          func(r *auditv1.Run) { r.FirstIndex++ },
		"a place beyond":         func(r *auditv1.Run) { r.FirstIndex = 8 },
		"a place beyond numbers": func(r *auditv1.Run) { r.FirstIndex = math.MaxUint64 },
		"another time":           func(r *auditv1.Run) { r.LoggedAt = timestamppb.New(r.GetLoggedAt().AsTime().Add(1)) },
		"no time":                func(r *auditv1.Run) { r.LoggedAt = nil },
		"another salt":           func(r *auditv1.Run) { r.Salts[40]++ },
		"a salt too few":         func(r *auditv1.Run) { r.Salts = r.GetSalts()[32:] },
		"no salts":               func(r *auditv1.Run) { r.Salts = nil },
		"another tree before":    func(r *auditv1.Run) { r.Subtrees[0][3]++ },
		"another tree behind":    func(r *auditv1.Run) { r.Subtrees[len(r.GetSubtrees())-1][3]++ },
		"a tree too few":         func(r *auditv1.Run) { r.Subtrees = r.GetSubtrees()[1:] },
		"a tree too many":        func(r *auditv1.Run) { r.Subtrees = append(r.GetSubtrees(), r.GetSubtrees()[0]) },
		"trees the wrong way":    func(r *auditv1.Run) { slices.Reverse(r.Subtrees) },
		"half a hash":            func(r *auditv1.Run) { r.Subtrees[0] = r.GetSubtrees()[0][:16] },
		"nothing":                func(r *auditv1.Run) { proto.Reset(r) },
	} {
		r := f.run(3, 6, 9)
		spoil(r)
		if err := accept(t, f, list[3:6], 9, r); !errors.Is(err, logproof.ErrInclusion) && !errors.Is(err, logproof.ErrIncomplete) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := accept(t, f, []*auditv1.Record{list[3], list[5], list[4]}, 9, f.run(3, 6, 9)); !errors.Is(err, logproof.ErrInclusion) {
		t.Errorf("records in another order: %v", err)
	}
	if err := accept(t, f, nil, 9, &auditv1.Run{}); !errors.Is(err, logproof.ErrInclusion) {
		t.Errorf("a run of nothing: %v", err)
	}
	if _, err := logproof.RunLeaves("spiffe://durward.local/egress/local", list[3:6], f.run(3, 6, 9)); err != nil {
		t.Error(err)
	} else if leaves, _ := logproof.RunLeaves("spiffe://durward.local/egress/local", list[3:6], f.run(3, 6, 9)); leaves[0] == tlog.Hash(f.entries[3].GetLeafHash()) {
		t.Error("another writer's records have the same leaves")
	}
}
