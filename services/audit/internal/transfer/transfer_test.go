package transfer

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

const writer = "spiffe://durward.local/executor/local"

// rig is a log of some entries.
type rig struct {
	signer note.Signer
	keys   []note.Verifier
	from   *store.Store
}

func fresh(t *testing.T) *store.Store {
	t.Helper()
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func newRig(t *testing.T, from *store.Store, entries int) *rig {
	t.Helper()
	secret, public, err := note.GenerateKey(nil, "durward.local/audit/main")
	must(t, err)
	r := &rig{from: from}
	v, err := note.NewVerifier(public)
	must(t, err)
	r.keys = []note.Verifier{v}
	if r.signer, err = note.NewSigner(secret); err != nil {
		t.Fatal(err)
	}
	r.add(t, from, entries)
	return r
}

// add appends entries through the log, as audit does, and returns its newest checkpoint.
func (r *rig) add(t *testing.T, db *store.Store, entries int) []byte {
	t.Helper()
	l, err := log.Open(t.Context(), log.Config{Store: db, Signer: r.signer, Keys: func() []note.Verifier { return r.keys }})
	must(t, err)
	defer l.Close()
	head, err := l.Head(t.Context(), writer, 0)
	must(t, err)
	kinds := []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_OUTCOME}
	for i := range entries {
		record := &auditv1.Record{
			Sequence: head.GetLastSequence() + 1 + uint64(i), Kind: kinds[min(i%5, 1)], Time: timestamppb.Now(), RequestId: "r",
			Body: &auditv1.Body{Arguments: strings.Repeat("a", 5000)},
		}
		if _, err := l.Append(t.Context(), writer, []*auditv1.Record{record}, 0); err != nil {
			t.Fatal(err)
		}
	}
	_, checkpoint := l.Newest()
	return checkpoint
}

func (r *rig) run(t *testing.T, to *store.Store) error {
	t.Helper()
	return Run(t.Context(), r.config(to))
}

func (r *rig) config(to *store.Store) Config {
	return Config{From: r.from, To: to, Place: to.Folder(), Signer: r.signer, Keys: r.keys, Logger: slog.New(slog.DiscardHandler)}
}

// check proves the copy, and that it goes on where the log ended, and that the source does not.
func (r *rig) check(t *testing.T, to *store.Store, entries int) {
	t.Helper()
	before, err := logproof.OpenCheckpoint(r.add(t, to, 0), r.keys)
	if err != nil || before.Size != uint64(entries) {
		t.Fatalf("%d entries, %v; want %d", before.Size, err, entries)
	}
	after, err := logproof.OpenCheckpoint(r.add(t, to, 1), r.keys)
	must(t, err)
	all, err := to.Range(t.Context(), 0, after.Size, 1<<20, 1<<30)
	must(t, err)
	replay := &logproof.Replay{}
	replay.Expect(before)
	for _, e := range all {
		must(t, replay.Add(e))
	}
	if err := replay.Finish(after); err != nil {
		t.Error(err)
	}
	r.from.Fill("")
	if err := r.from.Lead(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("the source is open: %v", err)
	}
}

func TestCopy(t *testing.T) {
	r, to := newRig(t, fresh(t), 30), fresh(t)
	must(t, r.run(t, to))
	r.check(t, to, 30)
	must(t, r.run(t, to)) // the same command again changes nothing
	r.check(t, to, 31)
	second := fresh(t)
	if err := r.run(t, second); !errors.Is(err, store.ErrClosed) || !strings.Contains(err.Error(), "all of its log was moved") {
		t.Errorf("a log that was moved is copied a second time: %v", err)
	}
	damaged := r.config(second)
	damaged.Damaged = true
	for _, closed := range []string{
		fmt.Sprintf(moved, to.Folder()), filling,
		"its log was moved to another database by durward audit copy; the configuration must name that one", // as earlier versions had it
	} {
		if err := r.from.SetClosed(t.Context(), closed); err != nil {
			t.Fatal(err)
		}
		if err := Run(t.Context(), damaged); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s, and is copied as damaged: %v", closed, err)
		}
		if err := r.run(t, second); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s, and is copied: %v", closed, err)
		}
	}
	if err := errors.Join(r.from.SetClosed(t.Context(), moving), Run(t.Context(), damaged)); err != nil {
		t.Errorf("what broke off at a damaged record is not copied without it: %v", err)
	}
}

func TestCopyOfNothing(t *testing.T) {
	r, to := newRig(t, fresh(t), 0), fresh(t)
	must(t, r.run(t, to))
	r.check(t, to, 0)
}

// TestBrokenOff: a copy that broke off is not opened, and goes on where it was.
func TestBrokenOff(t *testing.T) {
	r, to := newRig(t, fresh(t), 20), fresh(t)
	ctx, cut := context.WithCancel(t.Context())
	cfg := r.config(to)
	cfg.Progress, cfg.part = func(int64, int64) { cut() }, 7
	if err := Run(ctx, cfg); err == nil {
		t.Fatal("it did not break off")
	}
	if head, err := to.Head(t.Context()); err != nil || head.Entries != 7 {
		t.Fatalf("%d entries, %v", head.Entries, err)
	}
	for name, db := range map[string]*store.Store{"the part": to, "the source": r.from} {
		db.Fill("")
		if err := db.Lead(t.Context()); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s is opened: %v", name, err)
		}
	}
	must(t, r.run(t, to))
	r.check(t, to, 20)
}

// TestEndsAtTheLastSteps: a copy that ends while it closes the source or opens the target leaves both closed. It goes on when it is run
// again, and to no other database once the source says where its log is.
func TestEndsAtTheLastSteps(t *testing.T) {
	for name, at := range map[string]func(r *rig, to *store.Store) *store.Store{
		"all of its log was moved": func(r *rig, _ *store.Store) *store.Store { return r.from },
		"":                         func(_ *rig, to *store.Store) *store.Store { return to },
	} {
		t.Run(name, func(t *testing.T) {
			r, to := newRig(t, fresh(t), 7), fresh(t)
			db, err := sql.Open("sqlite", filepath.Join(at(r, to).Folder(), store.File))
			must(t, err)
			defer db.Close()
			exec := func(statement string) {
				t.Helper()
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			exec(`CREATE TRIGGER killed BEFORE UPDATE OF closed ON sequencer WHEN substr(new.closed, 1, 24) = '` + name + `' BEGIN SELECT RAISE(FAIL, 'killed'); END`)
			if err := r.run(t, to); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatal(err)
			}
			exec(`DROP TRIGGER killed`)
			for name, db := range map[string]*store.Store{"the copy": to, "the source": r.from} {
				db.Fill("")
				if err := db.Lead(t.Context()); !errors.Is(err, store.ErrClosed) {
					t.Errorf("%s is opened: %v", name, err)
				}
			}
			if closed, _ := r.from.Closed(t.Context()); closed != moving {
				if err := r.run(t, fresh(t)); !errors.Is(err, store.ErrClosed) || !strings.Contains(err.Error(), to.Folder()) {
					t.Errorf("a second copy: %v", err)
				}
				lost := r.config(fresh(t))
				lost.Place = to.Folder()
				if err := Run(t.Context(), lost); err == nil || !strings.Contains(err.Error(), "where it is no more") {
					t.Errorf("an empty database in the copy's place: %v", err)
				}
			}
			must(t, r.run(t, to))
			r.check(t, to, 7)
		})
	}
}

// TestAnotherLog: a copy does not go on with a part of another log, whose records may be the same.
func TestAnotherLog(t *testing.T) {
	r, other := newRig(t, fresh(t), 20), newRig(t, fresh(t), 7)
	must(t, other.from.SetClosed(t.Context(), filling))
	if err := r.run(t, other.from); err == nil || !strings.Contains(err.Error(), "another log") {
		t.Fatalf("it goes on with another log: %v", err)
	}
}

// TestCopyRefuses: what the log's key did not sign, and a target with a log of its own.
func TestCopyRefuses(t *testing.T) {
	r := newRig(t, fresh(t), 3)
	other := newRig(t, fresh(t), 2)
	if err := r.run(t, other.from); err == nil || !strings.Contains(err.Error(), "has a log of 2 entries") {
		t.Errorf("a target with a log: %v", err)
	}
	r.keys = other.keys
	if err := r.run(t, fresh(t)); err == nil || !strings.Contains(err.Error(), "log_keys") {
		t.Errorf("a stranger's log: %v", err)
	}
}

// TestDamaged: of a damaged log all is copied but the bodies that are not what was committed to, and the file is left as it is. What
// the tree cannot be made of again is refused, by its index.
func TestDamaged(t *testing.T) {
	r := newRig(t, fresh(t), 30)
	dir := r.from.Folder()
	must(t, r.from.Close())
	file, err := os.ReadFile(filepath.Join(dir, store.File))
	must(t, err)
	copied := func(statements ...string) (string, *store.Store, error) {
		t.Helper()
		dir := t.TempDir()
		path := filepath.Join(dir, store.File)
		must(t, os.WriteFile(path, file, 0o600))
		db, err := sql.Open("sqlite", path)
		must(t, err)
		for _, s := range statements {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		must(t, db.Close())
		from, err := store.OpenDamaged(t.Context(), dir)
		must(t, err)
		t.Cleanup(func() { _ = from.Close() })
		to := fresh(t)
		return path, to, Run(t.Context(), Config{From: from, To: to, Signer: r.signer, Keys: r.keys, Logger: slog.New(slog.DiscardHandler), Damaged: true, part: 7})
	}
	path, to, err := copied(`UPDATE bodies SET body = x'0a0178' WHERE idx = 3`, `UPDATE bodies SET body = x'ff' WHERE idx = 4`, `UPDATE tree SET hashes = CAST(zeroblob(320) || substr(hashes, 321) AS BLOB)`)
	must(t, err)
	if before, err := logproof.OpenCheckpoint(r.add(t, to, 1), r.keys); err != nil || before.Size != 31 {
		t.Errorf("the copy does not go on: %v, %v", before, err)
	}
	all, err := to.Range(t.Context(), 0, 30, 1<<20, 1<<30)
	if err != nil || len(all) != 30 {
		t.Fatal(len(all), err)
	}
	replay := &logproof.Replay{}
	for i, e := range all {
		if err := replay.Add(e); err != nil || logproof.BodyMissing(e) != (i == 3 || i == 4) {
			t.Errorf("entry %d: %v, without its body: %v", i, err, logproof.BodyMissing(e))
		}
	}
	if again, err := store.Open(t.Context(), filepath.Dir(path)); err != nil {
		t.Error(err)
	} else if err := errors.Join(again.Lead(t.Context()), again.Close()); err != nil {
		t.Errorf("the damaged database was closed: %v", err)
	}
	for statement, want := range map[string]string{
		`UPDATE entries SET tool = 'x' WHERE idx = 11`:                 "record 11 of the log",
		`DELETE FROM entries WHERE idx = 12`:                           "record 12 of the log to be copied: it is missing",
		`UPDATE entries SET tool = CAST(x'ff' AS TEXT) WHERE idx = 13`: "record 13 of the log",
	} {
		if _, _, err := copied(statement); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// TestDamagedTail is TestPostgresDamagedTail with SQLite.
func TestDamagedTail(t *testing.T) {
	r := newRig(t, fresh(t), 30)
	must(t, r.from.Close())
	db, err := sql.Open("sqlite", filepath.Join(r.from.Folder(), store.File))
	must(t, err)
	_, err = db.ExecContext(t.Context(), `INSERT INTO tail VALUES (32, x'ff', 0, x'', x'')`)
	must(t, errors.Join(err, db.Close()))
	from, err := store.OpenDamaged(t.Context(), r.from.Folder())
	must(t, err)
	defer from.Close()
	r.unread(t, from)
}

// unread copies a log of 30 records, in whose tail there were two more.
func (r *rig) unread(t *testing.T, from *store.Store) {
	t.Helper()
	to, said := fresh(t), &bytes.Buffer{}
	must(t, Run(t.Context(), Config{From: from, To: to, Signer: r.signer, Keys: r.keys, Logger: slog.New(slog.NewTextHandler(said, nil)), Damaged: true}))
	if head, err := to.Head(t.Context()); err != nil || head.Entries != 30 {
		t.Errorf("%d records are copied, %v", head.Entries, err)
	}
	if got := said.String(); !strings.Contains(got, "first=30 records=2") {
		t.Errorf("it says of the two that are not copied: %q", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
