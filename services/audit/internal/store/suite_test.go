package store_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

// TestSQLite runs the suite on the embedded engine.
func TestSQLite(t *testing.T) {
	suite(t, func(t *testing.T) *store.Store {
		db, err := store.Open(t.Context(), t.TempDir())
		must(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	})
}

var _ log.Store = (*store.Store)(nil)

// suite is what every engine does alike. open opens an empty database.
func suite(t *testing.T, open func(t *testing.T) *store.Store) {
	t.Run("empty", func(t *testing.T) { testEmpty(t, lead(t, open(t))) })
	for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_INTENT} {
		t.Run("refused batches leave nothing, "+kind.String(), func(t *testing.T) { testRefused(t, lead(t, open(t)), kind) })
	}
	t.Run("what is written is read", func(t *testing.T) { testRead(t, lead(t, open(t))) })
	t.Run("search", func(t *testing.T) { testSearch(t, lead(t, open(t))) })
	t.Run("count", func(t *testing.T) { testCount(t, lead(t, open(t))) })
	t.Run("prune", func(t *testing.T) { testPrune(t, lead(t, open(t))) })
	t.Run("reads", func(t *testing.T) { testReads(t, lead(t, open(t))) })
	t.Run("last", func(t *testing.T) { testLast(t, lead(t, open(t))) })
}

func lead(t *testing.T, db *store.Store) *store.Store {
	t.Helper()
	must(t, db.Lead(t.Context()))
	return db
}

func testEmpty(t *testing.T, db *store.Store) {
	ctx := t.Context()
	head, err := db.Head(ctx)
	if err != nil || head.Checkpoint != nil || head.Entries != 0 || head.Hashes != 0 || len(head.Last) != 0 {
		t.Errorf("head %+v, %v", head, err)
	}
	for _, index := range []uint64{0, 1 << 63, 1<<64 - 1} {
		if _, err := db.Entry(ctx, index); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("entry %d: %v", index, err)
		}
	}
	if _, err := db.BySequence(ctx, writer, 1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("sequence: %v", err)
	}
	if _, err := db.Last(ctx, writer, auditv1.Kind_KIND_HALTED, ""); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("last: %v", err)
	}
	if _, err := db.ReadHashes(ctx, []int64{0}); err == nil {
		t.Error("a hash of an empty tree")
	}
	if list, err := db.Range(ctx, 0, 10, 10, 1<<20); err != nil || len(list) != 0 {
		t.Errorf("range: %d, %v", len(list), err)
	}
	if err := errors.Join(db.Probe(ctx), db.InPlace(), db.Hold(ctx)); err != nil {
		t.Error(err)
	}
	if db.Bytes() == 0 {
		t.Error("it has no size")
	}
}

// tree makes batches for a store.
type tree struct {
	t       testing.TB
	db      *store.Store
	entries []*auditv1.Entry
	hashes  []tlog.Hash
	last    map[string]uint64
	// random: salts are what they are in a log.
	random bool
}

func (tr *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = tr.hashes[index]
	}
	return out, nil
}

// batch makes the next batch of these records and remembers it as committed.
func (tr *tree) batch(writer string, records ...*auditv1.Record) store.Batch {
	tr.t.Helper()
	b := store.Batch{FirstHash: int64(len(tr.hashes))}
	for _, r := range records {
		if tr.last == nil {
			tr.last = map[string]uint64{}
		}
		tr.last[writer]++
		r.Sequence = tr.last[writer]
		if r.Time == nil {
			r.Time = timestamppb.New(time.Unix(1_700_000_000, 123456789))
		}
		at := timestamppb.New(time.Unix(1_700_000_000+int64(len(tr.entries)), 5))
		e := &auditv1.Entry{Index: uint64(len(tr.entries)), Writer: writer, Record: r, LoggedAt: at, Salt: slices.Repeat([]byte{7}, logproof.SaltSize)}
		if tr.random {
			_, _ = rand.Read(e.Salt)
		}
		must(tr.t, logproof.Seal(e))
		hashes, err := tlog.StoredHashesForRecordHash(int64(len(tr.entries)), tlog.Hash(e.GetLeafHash()), tr)
		must(tr.t, err)
		tr.hashes, tr.entries = append(tr.hashes, hashes...), append(tr.entries, e)
		b.Entries, b.Hashes = append(b.Entries, e), append(b.Hashes, hashes...)
	}
	b.Checkpoint = fmt.Appendf(nil, "checkpoint of %d", len(tr.entries))
	return b
}

func (tr *tree) commit(writer string, records ...*auditv1.Record) {
	tr.t.Helper()
	must(tr.t, tr.db.Commit(tr.t.Context(), tr.batch(writer, records...)))
}

// testRefused: a batch whose index, sequence or hash is taken is refused as a whole.
func testRefused(t *testing.T, db *store.Store, kind auditv1.Kind) {
	tr := &tree{t: t, db: db}
	tr.commit(writer, &auditv1.Record{Kind: kind}, &auditv1.Record{Kind: kind})
	before, err := db.Head(t.Context())
	must(t, err)
	for name, spoil := range map[string]func(b *store.Batch){
		"an index that is taken":   func(b *store.Batch) { b.Entries[1].Index = 0 },
		"a sequence that is taken": func(b *store.Batch) { b.Entries[0].Record.Sequence = 1 },
		"a hash that is taken":     func(b *store.Batch) { b.FirstHash = 1 },
		"a writer without a role":  func(b *store.Batch) { b.Entries[0].Writer = "nobody" },
	} {
		again := &tree{t: t, db: db, entries: slices.Clone(tr.entries), hashes: slices.Clone(tr.hashes), last: map[string]uint64{writer: 2}}
		b := again.batch(writer, &auditv1.Record{Kind: kind}, &auditv1.Record{Kind: kind})
		spoil(&b)
		if err := db.Commit(t.Context(), b); err == nil || errors.Is(err, store.ErrFollows) {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := db.Head(t.Context()); err != nil || !cmp.Equal(before, after) {
			t.Errorf("%s left something (%v): %s", name, err, cmp.Diff(before, after))
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Commit(ended, (&tree{t: t, entries: tr.entries, hashes: tr.hashes, last: tr.last}).batch(writer, &auditv1.Record{Kind: kind})); err == nil {
		t.Error("a commit without time went through")
	}
}

// odd are records whose every field must come back as it was.
func odd() []*auditv1.Record {
	return []*auditv1.Record{
		{Kind: auditv1.Kind_KIND_READ},
		{Kind: auditv1.Kind_KIND_INTENT, Tier: optionsv1.Tier_TIER_DESTRUCTIVE, Status: auditv1.Status_STATUS_OK, RequestId: "r-?$1", OperationId: "op-'1'", Tool: "gpu_status",
			Body: &auditv1.Body{Principal: "a\x00b", Session: "\x00", Summary: "\x00\n\\x00\u202e", Arguments: `{"a":"$1 ? '"}`, ResultDigest: []byte{0, 1, 0xff},
				Details: map[string]string{"k": "\x00"}, Statement: &callv1.HumanStatement{}}},
		{Kind: auditv1.Kind_KIND_STARTED, Body: &auditv1.Body{}, Time: timestamppb.New(time.Date(2199, 12, 31, 23, 59, 59, 999999999, time.UTC))},
	}
}

func testRead(t *testing.T, db *store.Store) {
	ctx, tr := t.Context(), &tree{t: t, db: db}
	tr.commit(writer, odd()...)
	tr.commit("spiffe://durward.local/vault/main", odd()...)
	tr.commit(writer, odd()...)
	head, err := db.Head(ctx)
	want := store.Head{Checkpoint: []byte("checkpoint of 9"), Entries: 9, Hashes: int64(len(tr.hashes)), LoggedAt: tr.entries[8].GetLoggedAt().AsTime(), Last: tr.last}
	if diff := cmp.Diff(want, head); diff != "" || err != nil {
		t.Errorf("head: %v %s", err, diff)
	}
	all, err := db.Range(ctx, 0, 1<<64-1, 100, 1<<30)
	if err != nil || len(all) != 9 {
		t.Fatalf("%d entries, %v", len(all), err)
	}
	for i, e := range all {
		if e.GetRecord().Body == nil {
			e.Record.Body = tr.entries[i].GetRecord().GetBody() // an empty body and none are the same
		}
		if diff := cmp.Diff(tr.entries[i], e, protocmp.Transform()); diff != "" {
			t.Errorf("entry %d: %s", i, diff)
		}
		if err := logproof.VerifyEntry(e); err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
		if one, err := db.Entry(ctx, uint64(i)); err != nil || one.GetIndex() != uint64(i) {
			t.Errorf("entry %d: %v, %v", i, one, err)
		}
		if one, err := db.BySequence(ctx, e.GetWriter(), e.GetRecord().GetSequence()); err != nil || one.GetIndex() != uint64(i) {
			t.Errorf("entry %d by its sequence: %v, %v", i, one, err)
		}
	}
	bare, err := db.Bare(ctx, 0, 1<<64-1, 100, 1<<30)
	if err != nil || len(bare) != len(all) {
		t.Fatalf("%d bare entries, %v", len(bare), err)
	}
	replay := &logproof.Replay{OnGap: func(*auditv1.Entry, uint64) {}}
	for i, c := range logproof.CheckPage(&auditv1.ExportLogResponse{Entries: bare}) {
		e := c.Entry()
		if err := replay.AddChecked(c); err != nil || !bytes.Equal(e.GetLeaf(), all[i].GetLeaf()) {
			t.Errorf("bare entry %d: %v", i, err)
		}
	}
	if few, err := db.Range(ctx, 2, 9, 100, 1); err != nil || len(few) != 1 || few[0].GetIndex() != 2 {
		t.Errorf("a page of one byte: %v, %v", few, err)
	}
	indexes := []int64{3, 0, 3, int64(len(tr.hashes)) - 1}
	hashes, err := db.ReadHashes(ctx, indexes)
	if wanted, _ := tr.ReadHashes(indexes); err != nil || !slices.Equal(hashes, wanted) {
		t.Errorf("hashes: %v, %v", hashes, err)
	}
	if _, err := db.ReadHashes(ctx, []int64{0, int64(len(tr.hashes))}); err == nil {
		t.Error("a hash behind the end")
	}
}

func testSearch(t *testing.T, db *store.Store) {
	ctx, tr := t.Context(), &tree{t: t, db: db}
	for i := range 20 {
		r := &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Status: auditv1.Status_STATUS_OK, Tier: optionsv1.Tier_TIER_READ, RequestId: fmt.Sprint("r-", i), Tool: fmt.Sprint("tool_", i%3)}
		if i%4 == 0 {
			r.Kind, r.Status, r.Tier, r.OperationId = auditv1.Kind_KIND_INTENT, auditv1.Status_STATUS_DENIED, optionsv1.Tier_TIER_DESTRUCTIVE, "op-1"
		}
		r.Body = &auditv1.Body{Session: fmt.Sprint("s-", i%2), Principal: fmt.Sprint("p-", i%5), Channel: callv1.Channel(i % 3)}
		switch i {
		case 3:
			r.Body.Arguments = `{"service_id":"vllm-chat","note":"Ünïcode naïve \u0000"}`
		case 5:
			r.Body.Summary = "vLLM chat is running\x00; it's 'quoted' \\ & | ! : * (done)"
		case 6:
			r.Body.Reason = strings.Repeat("x", 4000) + " chat NEAR AND OR NOT"
		}
		who := writer
		if i >= 10 {
			who = "spiffe://durward.local/vault/main"
		}
		tr.commit(who, r)
	}
	for name, tc := range map[string]struct {
		query store.Query
		want  []uint64
	}{
		"nothing matches":    {store.Query{RequestID: "r-99"}, nil},
		"text is no pattern": {store.Query{Tool: "tool_%"}, nil},
		"a request":          {store.Query{RequestID: "r-7"}, []uint64{7}},
		"an operation":       {store.Query{OperationID: "op-1", Before: 10}, []uint64{8, 4, 0}},
		"a tool and a tier":  {store.Query{Tool: "tool_0", Tier: optionsv1.Tier_TIER_DESTRUCTIVE}, []uint64{12, 0}},
		"a session and kind": {store.Query{Session: "s-0", Kinds: []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_HALTED}, Before: 9}, []uint64{8, 4, 0}},
		"a principal":        {store.Query{Principal: "p-4"}, []uint64{19, 14, 9, 4}},
		"statuses":           {store.Query{Statuses: []auditv1.Status{auditv1.Status_STATUS_DENIED}}, []uint64{16, 12, 8, 4, 0}},
		"a role":             {store.Query{Writer: "executor", Before: 3}, []uint64{2, 1, 0}},
		"a writer":           {store.Query{Writer: writer, Before: 2}, []uint64{1, 0}},
		"two writers' role":  {store.Query{Writer: "vault", Before: 12}, []uint64{11, 10}},
		"a channel":          {store.Query{Channel: callv1.Channel(2), Before: 9}, []uint64{8, 5, 2}},
		"a word":             {store.Query{Text: "chat"}, []uint64{6, 5, 3}},
		"a word of another":  {store.Query{Text: "CHAT", Before: 6}, []uint64{5, 3}},
		"two words":          {store.Query{Text: "chat vllm"}, []uint64{5, 3}},
		"with its signs":     {store.Query{Text: `"vllm-chat"`}, []uint64{5, 3}},
		"beyond ASCII":       {store.Query{Text: "ünïcode"}, []uint64{3}},
		"an operator's word": {store.Query{Text: "NOT near"}, []uint64{6}},
		"a quote":            {store.Query{Text: "it's 'quoted'"}, []uint64{5}},
		"part of a word":     {store.Query{Text: "cha"}, nil},
		"signs alone":        {store.Query{Text: `"*' & | !`}, nil},
		"a word and a tool":  {store.Query{Text: "chat", Tool: "tool_0"}, []uint64{6, 3}},
		"a word and a time":  {store.Query{Text: "chat", Since: time.Unix(1_700_000_004, 0)}, []uint64{6, 5}},
		"from a place":       {store.Query{From: 18}, []uint64{19, 18}},
		"after all":          {store.Query{Since: time.Unix(1_800_000_000, 0)}, nil},
		"before all":         {store.Query{Until: time.Unix(1_600_000_000, 0)}, nil},
		"until it is over":   {store.Query{Until: time.Unix(1_800_000_000, 0), From: 19}, []uint64{19}},
		"reads and intents":  {store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_INTENT}, From: 18}, []uint64{19, 18}},
		"what ended well":    {store.Query{Statuses: []auditv1.Status{auditv1.Status_STATUS_OK}, From: 17}, []uint64{19, 18, 17}},
		"what only looks":    {store.Query{Tier: optionsv1.Tier_TIER_READ, From: 17}, []uint64{19, 18, 17}},
		"a kind twice":       {store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_INTENT}, Before: 5}, []uint64{4, 0}},
		"kinds and statuses": {store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_INTENT}, Statuses: []auditv1.Status{auditv1.Status_STATUS_OK, auditv1.Status_STATUS_DENIED}, From: 16}, []uint64{19, 18, 17, 16}},
		"a role of nobody's": {store.Query{Writer: "egress"}, nil},
		"a time":             {store.Query{Since: time.Unix(1_700_000_003, 5), Until: time.Unix(1_700_000_005, 5)}, []uint64{4, 3}},
	} {
		list, err := db.Search(ctx, tc.query, 100, 1<<30)
		var got []uint64
		for _, e := range list {
			got = append(got, e.GetIndex())
		}
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tc.want)
		}
	}
	if list, err := db.Search(ctx, store.Query{}, 3, 1<<30); err != nil || len(list) != 3 || list[0].GetIndex() != 19 {
		t.Errorf("a page: %v, %v", list, err)
	}
	// Pages go through all of a writer's, and all of two writers' of a role, whatever fits into one.
	tr.commit("spiffe://durward.local/executor/second", &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Body: &auditv1.Body{Summary: strings.Repeat("y", 400)}})
	tr.commit(writer, &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Body: &auditv1.Body{}})
	for name, q := range map[string]store.Query{"a role": {Writer: "executor"}, "a writer": {Writer: writer}} {
		for _, bytes := range []int{1, 900, 1 << 20} {
			var got []uint64
			for {
				list, err := db.Search(ctx, q, 3, bytes)
				must(t, err)
				if len(list) == 0 {
					break
				}
				for _, e := range list {
					got = append(got, e.GetIndex())
				}
				if q.Before = list[len(list)-1].GetIndex(); q.Before == 0 {
					break
				}
			}
			want := []uint64{21, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}
			if name == "a role" {
				want = slices.Insert(want, 1, 20)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s by %d bytes: %v, want %v", name, bytes, got, want)
			}
			q.Before = 0
		}
	}
}

func testLast(t *testing.T, db *store.Store) {
	ctx, tr := t.Context(), &tree{t: t, db: db}
	halted := func() *auditv1.Record { return &auditv1.Record{Kind: auditv1.Kind_KIND_HALTED} }
	tr.commit(writer, halted(), &auditv1.Record{Kind: auditv1.Kind_KIND_APPROVED, OperationId: "op-1"}, halted(), &auditv1.Record{Kind: auditv1.Kind_KIND_READ})
	tr.commit("spiffe://durward.local/vault/main", halted())
	if e, err := db.Last(ctx, writer, auditv1.Kind_KIND_HALTED, ""); err != nil || e.GetIndex() != 2 {
		t.Errorf("halted: %v, %v", e, err)
	}
	if e, err := db.Last(ctx, writer, auditv1.Kind_KIND_APPROVED, "op-1"); err != nil || e.GetIndex() != 1 {
		t.Errorf("approved: %v, %v", e, err)
	}
	for _, operation := range []string{"", "op-2"} {
		if e, err := db.Last(ctx, writer, auditv1.Kind_KIND_RESUMED, operation); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("resumed of %q: %v, %v", operation, e, err)
		}
	}
}
