package store_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

// canary is a word that no other record holds.
func canary(i int) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i), byte(i >> 8)}))[:24]
}

// told is a record that says a word of its own in every place where bodies are kept or indexed.
func told(i int) *auditv1.Record {
	word := canary(i)
	return &auditv1.Record{Kind: auditv1.Kind_KIND_OUTCOME, RequestId: fmt.Sprint("r-", i), OperationId: "op-1", Tool: "logs", Body: &auditv1.Body{
		Session: "s" + word, Principal: "p" + word, Summary: word, Reason: strings.Repeat(word+" ", 40), Arguments: `{"a":"` + word + strings.Repeat("x", 3000*(i%3)) + `"}`,
		Details: map[string]string{"k": word},
	}}
}

func wipe(t *testing.T, db *store.Store) {
	t.Helper()
	for range 10_000 {
		more, err := db.Wipe(t.Context())
		must(t, err)
		if !more {
			return
		}
	}
	t.Fatal("wiping does not end")
}

// testPrune: bodies, salts and words go, and headers, commitments and the tree stay.
func testPrune(t *testing.T, db *store.Store) {
	ctx, tr := t.Context(), &tree{t: t, db: db}
	for i := range 12 {
		tr.commit(writer, told(i))
	}
	tr.commit("spiffe://durward.local/vault/main", told(12))
	before, err := db.Head(ctx)
	must(t, err)
	gone := []uint64{2, 3, 5, 12}
	if err := db.Prune(ctx, 1<<63, gone); err == nil {
		t.Error("bodies went for an entry that cannot be")
	}
	for range 2 { // again changes nothing
		must(t, errors.Join(db.Prune(ctx, 40, gone), db.Prune(ctx, 40, nil)))
	}
	wipe(t, db)
	if after, err := db.Head(ctx); err != nil || !bytes.Equal(after.Checkpoint, before.Checkpoint) || after.Entries != before.Entries || after.Hashes != before.Hashes {
		t.Errorf("head %+v, %v; before %+v", after, err, before)
	}
	for i, was := range tr.entries {
		e, err := db.Entry(ctx, uint64(i))
		must(t, err)
		if err := logproof.VerifyEntry(e); err != nil || !bytes.Equal(e.GetLeafHash(), was.GetLeafHash()) {
			t.Errorf("entry %d: %v", i, err)
		}
		pruned := slices.Contains(gone, uint64(i))
		if logproof.BodyMissing(e) != pruned || (e.GetRecord().GetBody() == nil) != pruned || pruned != (e.PrunedBy != nil) || pruned && e.GetPrunedBy() != 40 {
			t.Errorf("entry %d: %v", i, e)
		}
		for name, q := range map[string]store.Query{
			"its word": {Text: was.GetRecord().GetBody().GetSummary()}, "its session": {Session: was.GetRecord().GetBody().GetSession()},
			"its client": {Principal: was.GetRecord().GetBody().GetPrincipal()},
		} {
			if found, err := db.Search(ctx, q, 10, 1<<20); err != nil || (len(found) == 0) != pruned {
				t.Errorf("entry %d by %s: %v, %v", i, name, found, err)
			}
		}
		if found, err := db.Search(ctx, store.Query{RequestID: was.GetRecord().GetRequestId()}, 10, 1<<20); err != nil || len(found) != 1 {
			t.Errorf("entry %d by its request: %v, %v", i, found, err)
		}
	}
	var left []uint64
	for next, pages := uint64(0), 0; next < 13; pages++ {
		if next, err = db.Headers(ctx, next, 13, 5, func(e *auditv1.Entry) {
			left = append(left, e.GetIndex())
			if was := tr.entries[e.GetIndex()]; e.GetWriter() != was.GetWriter() || e.GetRecord().GetOperationId() != "op-1" || !proto.Equal(e.GetLoggedAt(), was.GetLoggedAt()) {
				t.Errorf("header %v of %v", e, was)
			}
		}); err != nil || pages > 3 {
			t.Fatal(next, err)
		}
	}
	if want := []uint64{0, 1, 4, 6, 7, 8, 9, 10, 11}; !slices.Equal(left, want) {
		t.Errorf("bodies of %v, want %v", left, want)
	}
	newest, err := db.Newest(ctx, 12)
	if err != nil || len(newest) != 1 || !newest[11] {
		t.Errorf("newest %v, %v", newest, err)
	}
	for range 2 {
		if done, err := db.Pruned(ctx, 40); done || err != nil {
			t.Errorf("done before it is: %v", err)
		}
	}
	if err := errors.Join(db.SetPruned(ctx, 40), db.SetPruned(ctx, 40)); err != nil {
		t.Error(err)
	}
	if done, err := db.Pruned(ctx, 40); !done || err != nil {
		t.Errorf("not done: %v", err)
	}
	tr.commit(writer, told(13)) // the log goes on

	// A copy brings an entry without its body as it is.
	copied, err := db.Entry(ctx, 2)
	must(t, err)
	copied.Index = uint64(len(tr.entries))
	copied.Record.Sequence = tr.last[writer] + 1
	if copied.Leaf, err = logproof.Leaf(copied); err != nil {
		t.Fatal(err)
	}
	hash := logproof.LeafHash(copied.GetLeaf())
	copied.LeafHash = hash[:]
	must(t, db.Commit(ctx, store.Batch{Entries: []*auditv1.Entry{copied}, FirstHash: int64(len(tr.hashes)), Checkpoint: []byte("x")}))
	if e, err := db.Entry(ctx, copied.GetIndex()); err != nil || !logproof.BodyMissing(e) || e.GetPrunedBy() != 40 || logproof.VerifyEntry(e) != nil {
		t.Errorf("copied: %v, %v", e, err)
	}
}

// TestBytesAreGone looks for what was pruned in the database's files.
func TestBytesAreGone(t *testing.T) {
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	defer db.Close()
	tr := &tree{t: t, db: lead(t, db)}
	const all = 900
	for i := 0; i < all; i += 3 {
		tr.commit(writer, told(i), told(i+1), told(i+2))
	}
	// The index of words leaves out what a word begins with like the one before.
	found := func() (out []int) {
		var files []byte
		for _, suffix := range []string{"", "-wal", "-shm"} {
			b, err := os.ReadFile(filepath.Join(dir, store.File+suffix))
			must(t, err)
			files = append(files, b...)
		}
		for i := range all {
			if bytes.Contains(files, []byte(canary(i)[6:])) {
				out = append(out, i)
			}
		}
		return out
	}
	if n := len(found()); n < all {
		t.Fatalf("%d words are in the files before: this test sees nothing", n)
	}
	var gone []uint64
	for i := range all {
		if i%5 != 0 {
			gone = append(gone, uint64(i))
		}
	}
	for piece := range slices.Chunk(gone, 100) {
		must(t, db.Prune(t.Context(), all, piece))
	}
	wipe(t, db)
	for _, i := range found() {
		if i%5 != 0 {
			t.Errorf("the word of entry %d is in the files", i)
		}
	}
	for i := 0; i < all; i += 5 {
		if list, err := db.Search(t.Context(), store.Query{Text: canary(i)}, 2, 1<<20); err != nil || len(list) != 1 {
			t.Errorf("the word of entry %d, which stays, is found %d times, %v", i, len(list), err)
		}
	}
}

// TestGrowth: of the last week, or since the log began; of a log that is younger than an hour nothing.
func TestGrowth(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	defer db.Close()
	tr := &tree{t: t, db: lead(t, db)}
	growth := func(now time.Time) store.Growth {
		g, err := db.Growth(t.Context(), now)
		must(t, err)
		return g
	}
	begun := time.Unix(1_700_000_000, 5)
	if g := growth(begun); g != (store.Growth{}) {
		t.Errorf("of an empty log: %v", g)
	}
	for range 48 {
		tr.commit(writer, &auditv1.Record{Kind: auditv1.Kind_KIND_READ}) // each a second after the one before
	}
	if g := growth(begun.Add(59 * time.Minute)); g != (store.Growth{}) {
		t.Errorf("after less than an hour: %v", g)
	}
	if g := growth(begun.Add(2 * 24 * time.Hour)); g.Records != 24 || g.Bytes != 24*float64(db.Bytes())/48 {
		t.Errorf("after two days: %v", g)
	}
	if g := growth(begun.Add(7*24*time.Hour + 23*time.Second)); g.Records < 3.5 || g.Records > 3.7 {
		t.Errorf("of the last week: %v", g)
	}
	if g := growth(begun.Add(30 * 24 * time.Hour)); g != (store.Growth{}) {
		t.Errorf("after a month of nothing: %v", g)
	}
}
