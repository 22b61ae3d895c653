package damage

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

// rewritten is a store whose record 7 was written anew, leaf and all.
type rewritten struct{ *store.Store }

func (s rewritten) Range(ctx context.Context, from, end uint64, limit, maxBytes int) ([]*auditv1.Entry, error) {
	entries, err := s.Store.Range(ctx, from, end, limit, maxBytes)
	for _, e := range entries {
		if e.GetIndex() == 7 {
			e.Record.Tool = "another_tool"
			err = logproof.Seal(e)
		}
	}
	return entries, err
}

// TestWeakened is the negative control of this package's tests: a read whose salt was changed in its block is not named without the leaf,
// and one that was written anew, leaf and all, is not named without the tree.
func TestWeakened(t *testing.T) {
	secret, public, err := note.GenerateKey(nil, "durward.local/audit/main")
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := note.NewVerifier(public)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	history, err := log.Open(t.Context(), log.Config{Store: db, Signer: signer, Keys: func() []note.Verifier { return []note.Verifier{verifier} }})
	if err != nil {
		t.Fatal(err)
	}
	defer history.Close()
	var reads []*auditv1.Record
	for n := range uint64(20) {
		reads = append(reads, &auditv1.Record{Sequence: n + 1, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-1", Tool: "gpu_status", Body: &auditv1.Body{Summary: "x"}})
	}
	if _, err := history.Append(t.Context(), "spiffe://durward.local/executor/local", reads, 0); err != nil {
		t.Fatal(err)
	}
	wrong := func(s Store) uint64 {
		t.Helper()
		r := &Report{}
		if err := r.Examine(t.Context(), s, 0, 20, nil); err != nil || r.Seen != 20 {
			t.Fatal(r, err)
		}
		return r.Wrong
	}
	if n := wrong(db); n != 0 {
		t.Fatalf("%d of a sound log", n)
	}
	for _, weak := range []bool{false, true} {
		withoutTree.Store(weak)
		if n := wrong(rewritten{db}); (n == 0) != weak {
			t.Errorf("written anew, weak %v: %d are named", weak, n)
		}
	}
	withoutTree.Store(false)
	raw, err := sql.Open("sqlite", filepath.Join(dir, store.File))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var data []byte
	if err := raw.QueryRowContext(t.Context(), `SELECT data FROM packs`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	data[len(data)-40] ^= 1 // the last read's salt; its leaf hash comes last
	if _, err := raw.ExecContext(t.Context(), `UPDATE packs SET data = ?`, data); err != nil {
		t.Fatal(err)
	}
	for _, weak := range []bool{false, true} {
		withoutLeaves.Store(weak)
		if n := wrong(db); (n == 0) != weak {
			t.Errorf("a salt was changed, weak %v: %d are named", weak, n)
		}
	}
	withoutLeaves.Store(false)
}
