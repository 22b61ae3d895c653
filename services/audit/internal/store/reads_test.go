package store_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"math"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/audit/internal/store/packed"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest/full"
)

const vault = "spiffe://durward.local/vault/main"

// request is an id as the project's own processes give it.
func request() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	return "r-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(id))
}

// read is one of many reads, which differ as those of a host do.
func read(random *mrand.Rand) *auditv1.Record {
	any := func(list ...string) string { return list[random.IntN(len(list))] }
	r := &auditv1.Record{
		Kind: auditv1.Kind_KIND_READ, Tier: optionsv1.Tier_TIER_READ, Status: auditv1.Status(1 + random.IntN(4)), Tool: any("list_services", "gpu_status", "logs", ""),
		Time: timestamppb.New(time.Unix(1_700_000_000+random.Int64N(1000), random.Int64N(1e9))), RequestId: any(request(), "r-1", "r-abcdefghijklmnopqrstuvwxy9", "r-abcdefghijklmnopqrstuvwxyz"),
	}
	switch random.IntN(8) {
	case 0: // a body that says nothing
	case 1:
		r.OperationId = "op-1"
		r.Body = &auditv1.Body{Summary: fmt.Sprint("word", random.IntN(50)), ResultDigest: []byte{0, 1, 0xff}, Details: map[string]string{"b": "\x00", "a": "ü"}, Statement: &callv1.HumanStatement{}}
	default:
		r.Body = &auditv1.Body{
			Principal: any("claude", "codex", "a\x00b"), Session: fmt.Sprint("s-", random.IntN(40)), Channel: callv1.Channel(random.IntN(4)), Source: "native",
			Arguments: fmt.Sprintf(`{"service_id":"chat-%d"}`, random.IntN(9)), DurationMs: random.Uint32N(1 << 20), Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
		}
	}
	return r
}

// wanted is what a search among these entries finds, by looking at each.
func wanted(entries []*auditv1.Entry, limit int, fits func(r *auditv1.Record) bool) (out []uint64) {
	for _, e := range slices.Backward(entries) {
		if len(out) < limit && fits(e.GetRecord()) {
			out = append(out, e.GetIndex())
		}
	}
	return out
}

// same compares what is stored with what was written.
func same(t *testing.T, want, got *auditv1.Entry) {
	t.Helper()
	if body := want.GetRecord().GetBody(); body != nil && proto.Equal(body, &auditv1.Body{}) || body == nil && got.GetRecord().GetBody() != nil {
		t.Fatalf("entry %d: body %v, want %v", want.GetIndex(), got.GetRecord().GetBody(), body)
	}
	// To look for a difference takes fifty times as long as to see that there is none.
	if !proto.Equal(want, got) {
		t.Fatalf("entry %d: %s", want.GetIndex(), cmp.Diff(want, got, protocmp.Transform()))
	}
	if err := logproof.VerifyEntry(got); err != nil {
		t.Fatalf("entry %d: %v", want.GetIndex(), err)
	}
}

// testReads: reads are found and read like everything else, however they were grouped, among other records, and after some were pruned.
func testReads(t *testing.T, db *store.Store) {
	ctx, tr, random := t.Context(), &tree{t: t, db: db, random: true}, mrand.New(mrand.NewPCG(3, 4))
	for len(tr.entries) < 1500 {
		who := []string{writer, writer, vault}[random.IntN(3)]
		var records []*auditv1.Record
		for range []int{1, 1, 3, 40, 400}[random.IntN(5)] {
			r := read(random)
			if random.IntN(10) == 0 {
				r.Kind, r.Body = auditv1.Kind_KIND_PERMIT_ISSUED, &auditv1.Body{Session: fmt.Sprint("s-", random.IntN(40))}
			}
			records = append(records, r)
		}
		tr.commit(who, records...)
		if random.IntN(9) == 0 {
			lead(t, db) // it reads the newest block again
		}
	}
	check := func() {
		t.Helper()
		for from := 0; from < len(tr.entries); {
			list, err := db.Range(ctx, uint64(from), math.MaxUint64, 97, 1<<14)
			if err != nil || len(list) == 0 {
				t.Fatalf("from %d: %d entries, %v", from, len(list), err)
			}
			for _, e := range list {
				same(t, tr.entries[from], e)
				from++
			}
		}
		for range 40 {
			want := tr.entries[random.IntN(len(tr.entries))]
			one, err := db.Entry(ctx, want.GetIndex())
			must(t, err)
			same(t, want, one)
			if one, err = db.BySequence(ctx, want.GetWriter(), want.GetRecord().GetSequence()); err != nil {
				t.Fatal(err)
			}
			same(t, want, one)
		}
		if _, err := db.BySequence(ctx, writer, tr.last[writer]+1); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a sequence that was never: %v", err)
		}
		if _, err := db.Entry(ctx, uint64(len(tr.entries))); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("an entry that was never: %v", err)
		}
		indexes := []int64{0, 125, 126, 127, 251, 252, int64(len(tr.hashes)) - 1}
		got, err := db.ReadHashes(ctx, indexes)
		if want, _ := tr.ReadHashes(indexes); err != nil || !slices.Equal(got, want) {
			t.Errorf("hashes: %v", err)
		}
		one := tr.entries[700].GetRecord()
		for name, c := range map[string]struct {
			query store.Query
			fits  func(r *auditv1.Record) bool
		}{
			"everything":    {store.Query{}, func(*auditv1.Record) bool { return true }},
			"a request":     {store.Query{RequestID: one.GetRequestId()}, func(r *auditv1.Record) bool { return r.GetRequestId() == one.GetRequestId() }},
			"an operation":  {store.Query{OperationID: "op-1"}, func(r *auditv1.Record) bool { return r.GetOperationId() == "op-1" }},
			"a session":     {store.Query{Session: "s-7"}, func(r *auditv1.Record) bool { return r.GetBody().GetSession() == "s-7" }},
			"a client":      {store.Query{Principal: "codex", Tool: "logs"}, func(r *auditv1.Record) bool { return r.GetBody().GetPrincipal() == "codex" && r.GetTool() == "logs" }},
			"a channel":     {store.Query{Channel: 3}, func(r *auditv1.Record) bool { return r.GetBody().GetChannel() == 3 }},
			"reads":         {store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ}}, func(r *auditv1.Record) bool { return r.GetKind() == auditv1.Kind_KIND_READ }},
			"others":        {store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_PERMIT_ISSUED}}, func(r *auditv1.Record) bool { return r.GetKind() != auditv1.Kind_KIND_READ }},
			"what looks":    {store.Query{Tier: optionsv1.Tier_TIER_READ, Session: "s-9"}, func(r *auditv1.Record) bool { return r.GetBody().GetSession() == "s-9" }},
			"two statuses":  {store.Query{Statuses: []auditv1.Status{3, 4}}, func(r *auditv1.Record) bool { return r.GetStatus() == 3 || r.GetStatus() == 4 }},
			"a word":        {store.Query{Text: "WORD7"}, func(r *auditv1.Record) bool { return r.GetBody().GetSummary() == "word7" }},
			"words":         {store.Query{Text: "chat 3"}, func(r *auditv1.Record) bool { return r.GetBody().GetArguments() == `{"service_id":"chat-3"}` }},
			"no such thing": {store.Query{Session: "s-99"}, func(*auditv1.Record) bool { return false }},
		} {
			for _, limit := range []int{1, 30, 10_000} {
				list, err := db.Search(ctx, c.query, limit, 1<<30)
				var got []uint64
				for _, e := range list {
					got = append(got, e.GetIndex())
				}
				if want := wanted(tr.entries, limit, c.fits); err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: %v, %v; want %v", name, got, err, want)
				}
			}
		}
		from, until := tr.entries[300].GetLoggedAt().AsTime(), tr.entries[720].GetLoggedAt().AsTime()
		list, err := db.Search(ctx, store.Query{Since: from, Until: until}, 10_000, 1<<30)
		if err != nil || len(list) != 420 || list[0].GetIndex() != 719 {
			t.Errorf("a time: %d, %v", len(list), err)
		}
	}
	check()
	var gone []uint64
	for i, e := range tr.entries {
		if i%3 == 0 || i > 200 && i < 900 {
			gone = append(gone, uint64(i))
			e.Record.Body, e.Salt, e.PrunedBy = nil, nil, proto.Uint64(9)
		}
	}
	for some := range slices.Chunk(gone, 100) {
		must(t, db.Prune(ctx, 9, some))
	}
	check()
	n := 0
	if _, err := db.Headers(ctx, 0, uint64(len(tr.entries)), len(tr.entries), func(e *auditv1.Entry) {
		n++
		if want := tr.entries[e.GetIndex()]; want.PrunedBy != nil || want.GetRecord().GetRequestId() != e.GetRecord().GetRequestId() || !proto.Equal(want.GetRecord().GetTime(), e.GetRecord().GetTime()) {
			t.Errorf("header %v of %v", e, want)
		}
	}); err != nil || n != len(tr.entries)-len(gone) {
		t.Errorf("%d bodies, %v", n, err)
	}
	tr.commit(writer, read(random)) // the log goes on
	check()
}

// TestReadsAreGone looks for the salts of pruned reads in the database's files: they are there as they are, and what is compressed
// beside them says nothing once a commitment cannot be compared with it.
func TestReadsAreGone(t *testing.T) {
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	defer db.Close()
	tr, random := &tree{t: t, db: lead(t, db), random: true}, mrand.New(mrand.NewPCG(5, 6))
	for len(tr.entries) < 3000 {
		var records []*auditv1.Record
		for range 1 + random.IntN(30) {
			records = append(records, read(random))
		}
		tr.commit(writer, records...)
	}
	// Every tenth salt, but for its ends, since a page may end in it. All are looked for at once: the files are large.
	salts := map[[16]byte]int{}
	for i := 0; i < len(tr.entries); i += 10 {
		salts[[16]byte(tr.entries[i].GetSalt()[8:24])] = i
	}
	found := func() map[int]bool {
		out := map[int]bool{}
		for _, suffix := range []string{"", "-wal", "-shm"} {
			b, err := os.ReadFile(filepath.Join(dir, store.File+suffix))
			must(t, err)
			for ; len(b) >= 16; b = b[1:] {
				if i, ok := salts[[16]byte(b)]; ok {
					out[i] = true
				}
			}
		}
		return out
	}
	if n := len(found()); n < 290 {
		t.Fatalf("%d salts are in the files before: this test sees nothing", n)
	}
	var gone []uint64
	for i := range tr.entries {
		if i%20 != 0 {
			gone = append(gone, uint64(i))
		}
	}
	for some := range slices.Chunk(gone, 200) {
		must(t, db.Prune(t.Context(), 1, some))
	}
	wipe(t, db)
	for i := range found() {
		if i%20 != 0 {
			t.Errorf("the salt of entry %d is in the files", i)
		}
	}
	for i := 0; i < len(tr.entries); i += 20 {
		if e, err := db.Entry(t.Context(), uint64(i)); err != nil || logproof.BodyMissing(e) || logproof.VerifyEntry(e) != nil {
			t.Fatalf("entry %d, which stays: %v, %v", i, e, err)
		}
	}
}

// TestAnAlteredBlockShows: whichever byte of a block is altered, an entry of it does not verify, or the block is not read; or all of it
// is as it was.
func TestAnAlteredBlockShows(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	defer db.Close()
	tr, random := &tree{t: t, db: lead(t, db), random: true}, mrand.New(mrand.NewPCG(7, 8))
	for range 6 {
		tr.commit(writer, read(random))
	}
	must(t, db.Prune(t.Context(), 2, []uint64{3}))
	tr.entries[3].Record.Body, tr.entries[3].Salt, tr.entries[3].PrunedBy = nil, nil, proto.Uint64(2)
	var sound []byte
	if err := db.Blocks(t.Context(), func(data []byte) []byte { sound = data; return nil }); err != nil {
		t.Fatal(err)
	}
	// One bit of each byte, or three at full size.
	bits, seen := []byte{1, 16, 128}, 0
	seed, n := full.Sample(t, len(bits), 1)
	for at := range sound {
		for k := range n {
			bit := bits[(uint64(at)+seed+uint64(k))%uint64(len(bits))]
			altered := bytes.Clone(sound)
			altered[at] ^= bit
			cells, err := packed.Decode(altered)
			if err != nil {
				seen++
				continue
			}
			whole := len(cells) == len(tr.entries)
			for i := 0; whole && i < len(cells); i++ {
				e, err := cells[i].Stored(nil)
				if err != nil || logproof.VerifyEntry(e) != nil {
					whole = false
				} else if whole = cmp.Equal(e.PrunedBy, tr.entries[i].PrunedBy); whole { // verifiers hold it to a statement
					same(t, tr.entries[i], e)
				}
			}
			if !whole {
				seen++
			}
		}
	}
	if seen < len(sound)*n*9/10 {
		t.Errorf("%d of %d changes are seen", seen, n*len(sound))
	}
	must(t, db.Blocks(t.Context(), func([]byte) []byte { return sound[:len(sound)/2] }))
	if _, err := db.Range(t.Context(), 0, 6, 10, 1<<20); err == nil || !strings.Contains(err.Error(), "entries 0 to 5") {
		t.Errorf("half a block: %v", err)
	}
}

// TestAnEarlierVersionsLogOpens: reads that have rows of their own, and a tree with a row a hash, are found and read as ever, and new
// reads after them.
func TestAnEarlierVersionsLogOpens(t *testing.T) {
	dir := t.TempDir()
	earlier := fstest.MapFS{}
	files, err := fs.Glob(store.Migrations, "migrations/0000[1-6]*.sql")
	if err != nil || len(files) != 6 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		data, err := fs.ReadFile(store.Migrations, name)
		must(t, err)
		earlier[filepath.Base(name)] = &fstest.MapFile{Data: data}
	}
	old, err := database.Open(t.Context(), database.Config{Path: filepath.Join(dir, store.File), StateDir: dir, Service: "audit", Migrations: earlier})
	must(t, err)
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := old.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	tr, random := &tree{t: t, random: true}, mrand.New(mrand.NewPCG(9, 10))
	exec(`INSERT INTO writers VALUES (1, ?, 'executor', 200)`, writer)
	for i := range 200 {
		r := read(random)
		if i%7 == 0 {
			r.Kind = auditv1.Kind_KIND_OUTCOME
		}
		b := tr.batch(writer, r)
		e, body := b.Entries[0], r.GetBody()
		raw, err := proto.Marshal(body)
		must(t, err)
		exec(`INSERT INTO entries VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)`, e.GetIndex(), r.GetSequence(), r.GetKind(), r.GetTier(), r.GetStatus(),
			r.GetTime().AsTime().UnixNano(), e.GetLoggedAt().AsTime().UnixNano(), r.GetRequestId(), r.GetOperationId(), r.GetTool(), e.GetBodyCommitment(), e.GetLeafHash())
		exec(`INSERT INTO bodies (idx, salt, session, principal, channel, body) VALUES (?, ?, ?, ?, ?, ?)`, e.GetIndex(), e.GetSalt(), body.GetSession(), body.GetPrincipal(), body.GetChannel(), append([]byte{}, raw...))
		for n, h := range b.Hashes {
			exec(`INSERT INTO hashes VALUES (?, ?)`, b.FirstHash+int64(n), h[:])
		}
		exec(`INSERT INTO checkpoints VALUES (?, ?)`, i+1, b.Checkpoint)
	}
	must(t, old.Close())
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	defer db.Close()
	tr.db = lead(t, db)
	head, err := db.Head(t.Context())
	if err != nil || head.Entries != 200 || head.Hashes != tlog.StoredHashCount(200) || string(head.Checkpoint) != "checkpoint of 200" {
		t.Fatalf("head %v, %v", head, err)
	}
	for range 5 {
		tr.commit(writer, read(random), read(random))
	}
	list, err := db.Range(t.Context(), 0, 300, 300, 1<<30)
	if err != nil || len(list) != 210 {
		t.Fatalf("%d entries, %v", len(list), err)
	}
	for i, e := range list {
		same(t, tr.entries[i], e)
	}
	all := make([]int64, len(tr.hashes))
	for i := range all {
		all[i] = int64(i)
	}
	if got, err := db.ReadHashes(t.Context(), all); err != nil || !slices.Equal(got, tr.hashes) {
		t.Errorf("the tree: %v", err)
	}
	for name, c := range map[string]struct {
		query store.Query
		fits  func(r *auditv1.Record) bool
	}{
		"reads":      {store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ}}, func(r *auditv1.Record) bool { return r.GetKind() == auditv1.Kind_KIND_READ }},
		"what looks": {store.Query{Tier: optionsv1.Tier_TIER_READ}, func(*auditv1.Record) bool { return true }},
		"a session":  {store.Query{Session: "s-1"}, func(r *auditv1.Record) bool { return r.GetBody().GetSession() == "s-1" }},
	} {
		found, err := db.Search(t.Context(), c.query, 1000, 1<<30)
		var got []uint64
		for _, e := range found {
			got = append(got, e.GetIndex())
		}
		if want := wanted(tr.entries, 1000, c.fits); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
}
