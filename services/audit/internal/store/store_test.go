package store_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
)

const (
	origin = "durward.local/audit/main"
	writer = "spiffe://durward.local/executor/local"
)

func open(t *testing.T, dir string, secret, public string) (*store.Store, *log.Log, []note.Verifier) {
	t.Helper()
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	signer, err := note.NewSigner(secret)
	must(t, err)
	v, err := note.NewVerifier(public)
	must(t, err)
	keys := []note.Verifier{v}
	l, err := log.Open(t.Context(), log.Config{Store: db, Signer: signer, Keys: func() []note.Verifier { return keys }})
	must(t, err)
	return db, l, keys
}

// record says what nothing makes smaller.
func record(sequence uint64) *auditv1.Record {
	raw := make([]byte, 40_000)
	_, _ = rand.Read(raw)
	return &auditv1.Record{
		Sequence: sequence, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-1",
		Body: &auditv1.Body{Arguments: hex.EncodeToString(raw)},
	}
}

// TestDiskFull: while the disk takes no more, nothing is acknowledged and nothing is half written; when there is space again
// the log goes on by itself, and what is on disk is what was acknowledged.
func TestDiskFull(t *testing.T) {
	secret, public, err := note.GenerateKey(nil, origin)
	must(t, err)
	dir := t.TempDir()
	db, l, keys := open(t, dir, secret, public)
	next := uint64(1)
	appendOne := func() error {
		_, err := l.Append(t.Context(), writer, []*auditv1.Record{record(next)}, 0)
		if err == nil {
			next++
		}
		return err
	}
	for round := range 3 {
		for range 5 {
			must(t, appendOne())
		}
		must(t, db.LimitPages(t.Context(), 2*round))
		for full := false; !full; { // the database has pages that are free
			full = appendOne() != nil
		}
		for range 3 {
			if err := appendOne(); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
				t.Fatalf("round %d: %v", round, err)
			} else if strings.Contains(err.Error(), "full") || !strings.Contains(errors.Unwrap(err).Error(), "full") {
				t.Errorf("the reason must be ours alone to see: %q because %q", err, errors.Unwrap(err))
			}
		}
		if size := l.Size(); size != next-1 {
			t.Fatalf("%d entries, want %d", size, next-1)
		}
		must(t, db.LimitPages(t.Context(), -1))
	}
	if err := appendOne(); err != nil {
		t.Fatalf("there is space again: %v", err)
	}
	l.Close()
	must(t, db.Close())
	db, l, _ = open(t, dir, secret, public)
	defer db.Close()
	defer l.Close()
	size, checkpoint := l.Newest()
	head, err := logproof.OpenCheckpoint(checkpoint, keys)
	if err != nil || size != next-1 {
		t.Fatalf("%d entries, want %d: %v", size, next-1, err)
	}
	entries, err := db.Range(t.Context(), 0, size, 100, 1<<30)
	must(t, err)
	replay := &logproof.Replay{}
	for _, e := range entries {
		must(t, replay.Add(e))
	}
	must(t, replay.Finish(head))
}

// TestSynchronous: a commit is on disk when it returns.
func TestSynchronous(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	defer db.Close()
	if level, err := db.Synchronous(t.Context()); level != 2 || err != nil {
		t.Errorf("synchronous is %d, %v; want 2, FULL", level, err)
	}
}

func TestNotFound(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	defer db.Close()
	for _, index := range []uint64{0, 1 << 63, 1<<64 - 1} {
		if _, err := db.Entry(t.Context(), index); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("entry %d: %v", index, err)
		}
	}
	if _, err := db.BySequence(t.Context(), writer, 1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("sequence: %v", err)
	}
}

// TestAnAlteredHeaderIsNotItsLeaf: whichever column of a header is altered, the entry does not verify.
func TestAnAlteredHeaderIsNotItsLeaf(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	tr := &tree{t: t, db: db}
	note := func() *auditv1.Record {
		return &auditv1.Record{Kind: auditv1.Kind_KIND_INTENT, Time: timestamppb.Now(), RequestId: "r-1", Body: &auditv1.Body{Summary: "x"}}
	}
	tr.commit(writer, note(), note())
	tr.commit("spiffe://durward.local/vault/main", note())
	for column, value := range map[string]string{
		"writer": "2", "sequence": "7", "kind": "42", "tier": "2", "status": "3", "time": "time + 1", "logged_at": "logged_at + 1",
		"request_id": "'r-2'", "operation_id": "'o'", "tool": "'list_modes'", "body_commitment": "zeroblob(32)", "leaf": "zeroblob(32)",
	} {
		must(t, db.Alter(t.Context(), "CREATE TEMP TABLE kept AS SELECT * FROM entries WHERE idx = 1"))
		must(t, db.Alter(t.Context(), "UPDATE entries SET "+column+" = "+value+" WHERE idx = 1"))
		e, err := db.Entry(t.Context(), 1)
		if err != nil {
			t.Fatalf("%s: %v", column, err)
		}
		if logproof.VerifyEntry(e) == nil {
			t.Errorf("%s was altered, and the entry verifies: %v", column, e)
		}
		if err := db.Alter(t.Context(), "DELETE FROM entries WHERE idx = 1; INSERT INTO entries SELECT * FROM kept; DROP TABLE kept"); err != nil {
			t.Fatal(err)
		}
		if e, err = db.Entry(t.Context(), 1); err != nil || logproof.VerifyEntry(e) != nil {
			t.Fatalf("%s: what was put back does not verify: %v", column, err)
		}
	}
}
