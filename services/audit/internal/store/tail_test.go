package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store"
)

// alike reports whether these are the same entries: to look for a difference takes fifty times as long as to see that there is none.
func alike(a, b []*auditv1.Entry) bool {
	return slices.EqualFunc(a, b, func(a, b *auditv1.Entry) bool { return proto.Equal(a, b) })
}

// tailed opens a store whose tail stays where it is, with n entries in it, each committed by itself.
func tailed(t *testing.T, dir string, n int) (*store.Store, *tree) {
	t.Helper()
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	waits(t, lead(t, db), 0)
	tr := &tree{t: t, db: db}
	for i := range n {
		tr.commit(writer, intent(i))
	}
	waits(t, db, n)
	return db, tr
}

func intent(i int) *auditv1.Record {
	return &auditv1.Record{Kind: auditv1.Kind_KIND_INTENT, Tool: "start_service", RequestId: "r-" + strconv.Itoa(i), Body: &auditv1.Body{Principal: "claude", Summary: "word" + strconv.Itoa(i)}}
}

func waits(t *testing.T, db *store.Store, want int) {
	t.Helper()
	if n, err := db.Unsettled(t.Context()); n != want || err != nil {
		t.Fatalf("%d batches wait, %v; want %d", n, err, want)
	}
}

// holds checks that the store has all that was committed, by place.
func holds(t *testing.T, db *store.Store, tr *tree) {
	t.Helper()
	ctx, n := t.Context(), uint64(len(tr.entries))
	head, err := db.Head(ctx)
	if err != nil || uint64(head.Entries) != n || head.Hashes != int64(len(tr.hashes)) || head.Last[writer] != n || string(head.Checkpoint) != "checkpoint of "+strconv.Itoa(len(tr.entries)) {
		t.Errorf("it ends at %+v, %v", head, err)
	}
	list, err := db.Range(ctx, 0, n+5, 100, 1<<30)
	if err != nil || !alike(tr.entries, list) {
		t.Errorf("%v %s", err, cmp.Diff(tr.entries, list, protocmp.Transform()))
	}
	if part, err := db.Range(ctx, 1, n, 2, 1<<30); err != nil || !alike(tr.entries[1:3], part) {
		t.Errorf("two from entry 1: %v, %v", part, err)
	}
	if bare, err := db.Bare(ctx, n-1, n, 1, 1<<30); err != nil || len(bare) != 1 || bare[0].GetLeaf() != nil || bare[0].GetLeafHash() == nil {
		t.Errorf("without what can be computed: %v, %v", bare, err)
	}
	var indexes []int64
	for i, e := range tr.entries {
		byIndex, err := db.Entry(ctx, uint64(i))
		if err != nil || !proto.Equal(e, byIndex) {
			t.Errorf("entry %d: %v, %v", i, byIndex, err)
		}
		bySequence, err := db.BySequence(ctx, writer, e.GetRecord().GetSequence())
		if err != nil || !proto.Equal(e, bySequence) {
			t.Errorf("sequence of entry %d: %v, %v", i, bySequence, err)
		}
	}
	for i := range tr.hashes {
		indexes = append(indexes, int64(i))
	}
	if hashes, err := db.ReadHashes(ctx, indexes); err != nil || !slices.Equal(hashes, tr.hashes) {
		t.Errorf("the tree: %v", err)
	}
	if _, err := db.ReadHashes(ctx, []int64{int64(len(tr.hashes))}); err == nil {
		t.Error("a hash that the tree does not have")
	}
}

// TestTail: small batches are read by their place before they are in their tables, are moved there before anything is searched for, and
// together with what does not go through the tail.
func TestTail(t *testing.T) {
	ctx := t.Context()
	db, tr := tailed(t, t.TempDir(), 5)
	holds(t, db, tr)
	waits(t, db, 5)
	if found, err := db.Search(ctx, store.Query{Text: "word4"}, 10, 1<<20); err != nil || len(found) != 1 || found[0].GetIndex() != 4 {
		t.Errorf("the newest word: %v, %v", found, err)
	}
	waits(t, db, 0)
	holds(t, db, tr)

	tr.commit(writer, intent(5))
	tr.commit(writer, intent(6))
	holds(t, db, tr) // some here, some there
	waits(t, db, 2)
	tr.commit(writer, &auditv1.Record{Kind: auditv1.Kind_KIND_READ}) // reads go to their block at once
	waits(t, db, 0)
	holds(t, db, tr)
	for i := range 100 {
		tr.commit(writer, intent(i))
	}
	if n, err := db.Unsettled(ctx); err != nil || n == 0 || n > 64 {
		t.Errorf("after 100 batches %d wait, %v", n, err)
	}
}

// TestTailAfterAKill: a process that is killed leaves its tail behind, and the next one has all of it.
func TestTailAfterAKill(t *testing.T) {
	dir, after := t.TempDir(), t.TempDir()
	_, tr := tailed(t, dir, 5)
	for _, name := range []string{store.File, store.File + "-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(after, name), b, 0o600)
		}
		must(t, err)
	}
	db, err := store.Open(t.Context(), after)
	must(t, err)
	waits(t, lead(t, db), 5)
	tr.db = db
	holds(t, db, tr)
	tr.commit(writer, intent(5))
	holds(t, db, tr)
	// Nobody writes or searches, and it gets into its tables.
	db.SettleAfter(0)
	must(t, db.Lead(t.Context()))
	if _, err := db.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n := 1; n > 0; runtime.Gosched() {
		if n, err = db.Unsettled(soon); err != nil || soon.Err() != nil {
			t.Fatal(n, err, soon.Err())
		}
	}
	must(t, db.Close())

	for name, read := range map[string]func() (*store.Store, error){
		"again":      func() (*store.Store, error) { return store.Open(t.Context(), after) },
		"as damaged": func() (*store.Store, error) { return store.OpenDamaged(t.Context(), after) },
	} {
		db, err := read()
		must(t, err)
		if waits(t, db, 0); name == "again" {
			lead(t, db)
		}
		holds(t, db, tr)
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDamagedTail: a tail that was altered is told, and what is left of it is read as far as it goes.
func TestDamagedTail(t *testing.T) {
	for name, statement := range map[string]string{
		"an entry":               `UPDATE tail SET entries = x'ff' WHERE size = 3`,
		"half an entry":          `UPDATE tail SET entries = substr(entries, 1, 40) WHERE size = 3`,
		"no entry":               `UPDATE tail SET entries = x'' WHERE size = 3`,
		"half a hash":            `UPDATE tail SET hashes = substr(hashes, 1, 20) WHERE size = 3`,
		"a hash less":            `UPDATE tail SET hashes = x'' WHERE size = 3`,
		"another place":          `UPDATE tail SET first_hash = first_hash + 1 WHERE size = 3`,
		"another entry":          `UPDATE tail SET entries = (SELECT entries FROM tail WHERE size = 2) WHERE size = 3`,
		"a batch is gone":        `DELETE FROM tail WHERE size = 3`,
		"the first is":           `DELETE FROM tail WHERE size = 1`,
		"a batch is there twice": `INSERT INTO tail SELECT size + 10, entries, first_hash, hashes, checkpoint FROM tail WHERE size = 2`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			db, tr := tailed(t, dir, 5)
			must(t, db.AlterTail(t.Context(), statement))
			must(t, db.Lead(t.Context()))
			for what, err := range map[string]error{
				"head": second(db.Head(t.Context())), "search": second(db.Search(t.Context(), store.Query{}, 10, 1<<20)),
				"commit": db.Commit(t.Context(), tr.batch(writer, intent(5))),
			} {
				if !store.Damaged(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			damaged, err := store.OpenDamaged(t.Context(), dir)
			must(t, err)
			defer damaged.Close()
			sound := map[string]int{"the first is": 0, "a batch is there twice": 5}
			want, named := sound[name]
			if !named {
				want = 2
			}
			list, err := damaged.Range(t.Context(), 0, 20, 20, 1<<20)
			if !alike(list, tr.entries[:want]) || err != nil {
				t.Errorf("%d entries before it, %v; want %d", len(list), err, want)
			}
			if head, err := damaged.Head(t.Context()); head.Entries != int64(want) || err != nil {
				t.Errorf("it ends at %+v, %v", head, err)
			}
			if size, err := damaged.Extent(t.Context()); size != uint64(want) || err != nil {
				t.Errorf("its extent is %d, %v", size, err)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// TestFullTail: what is in the tail is written, although a full disk has no room for it in the tables.
func TestFullTail(t *testing.T) {
	ctx := t.Context()
	db, tr := tailed(t, t.TempDir(), 5)
	must(t, db.LimitPages(ctx, 0))
	var failed error
	for i := 0; i < 1000 && failed == nil; i++ {
		if failed = db.Commit(ctx, tr.batch(writer, intent(i))); failed == nil {
			failed = db.Alter(ctx, `SELECT 1`) // which has the tail moved
		}
	}
	if failed == nil {
		t.Fatal("the disk is never full")
	}
	must(t, db.Lead(ctx))
	head, err := db.Head(ctx)
	must(t, err)
	tr.entries, tr.last[writer] = tr.entries[:head.Entries], uint64(head.Entries)
	tr.hashes = tr.hashes[:head.Hashes]
	holds(t, db, tr)
	must(t, db.LimitPages(ctx, -1))
	tr.commit(writer, intent(0))
	if found, err := db.Search(ctx, store.Query{Text: "word0"}, 10, 1<<20); err != nil || len(found) != 2 && len(found) != 3 {
		t.Errorf("with room again: %d, %v", len(found), err)
	}
	holds(t, db, tr)
}

// TestSearchInATailThatStays: what a full disk has no room for in the tables is found where it is, by whatever it is found there; and so it
// is in a database that is damaged.
func TestSearchInATailThatStays(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	db, err := store.Open(ctx, dir)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	tr := &tree{t: t, db: lead(t, db)}
	commit := func(i int, kind auditv1.Kind) {
		tr.commit([]string{writer, vault}[i%2], &auditv1.Record{
			Kind: kind, Status: auditv1.Status(i % 4), Tier: optionsv1.Tier(i % 3), RequestId: "r-" + strconv.Itoa(i/2), OperationId: "op-" + strconv.Itoa(i/4), Tool: "tool_" + strconv.Itoa(i%3),
			Body: &auditv1.Body{Session: "s-" + strconv.Itoa(i%2), Principal: "p-" + strconv.Itoa(i%5), Channel: callv1.Channel(i % 3), Summary: "word" + strconv.Itoa(i%4) + strings.Repeat(" ünïcode", 300)},
		})
	}
	for i := range 20 {
		commit(i, []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_READ}[i/10]) // reads go to their block at once, with all before
	}
	waits(t, db, 0)
	for i := range 12 {
		commit(i, []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME}[i%2])
	}
	for i, kind := range []auditv1.Kind{auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED} {
		commit(12+i, kind)
	}
	waits(t, db, 14)
	must(t, db.LimitPages(ctx, 0))
	damaged, err := store.OpenDamaged(ctx, dir)
	must(t, err)
	defer damaged.Close()
	queries := []store.Query{
		{}, {RequestID: "r-3"}, {OperationID: "op-1"}, {Tool: "tool_2"}, {Session: "s-1"}, {Principal: "p-4"}, {Tier: optionsv1.Tier_TIER_READ}, {Channel: callv1.Channel(2)},
		{Kinds: []auditv1.Kind{auditv1.Kind_KIND_OUTCOME}}, {Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_INTENT}}, {Statuses: []auditv1.Status{1, 2}}, {Statuses: []auditv1.Status{3}},
		{Since: tr.entries[25].GetLoggedAt().AsTime()}, {Until: tr.entries[25].GetLoggedAt().AsTime()}, {Writer: writer}, {Writer: "vault"}, {Text: "WORD3"}, {Text: "word2 ünïcode", Tool: "tool_1"}, {Text: "&"},
		{Before: 27}, {From: 15}, {RequestID: "r-99"},
	}
	var stuck [][]*auditv1.Entry
	spans := []time.Time{tr.entries[0].GetLoggedAt().AsTime(), tr.entries[5].GetLoggedAt().AsTime(), tr.entries[25].GetLoggedAt().AsTime()}
	counts := func(db *store.Store) (all []any) {
		for _, since := range spans {
			for _, end := range []uint64{8, 27, 100} {
				n, err := db.Count(ctx, since, end)
				if err != nil {
					t.Fatalf("count since %s below %d: %v", since, end, err)
				}
				all = append(all, n)
			}
			g, err := db.Growth(ctx, since.Add(7*24*time.Hour)) // the week before begins there
			if err != nil {
				t.Fatalf("growth since %s: %v", since, err)
			}
			all = append(all, g.Records)
		}
		return all
	}
	// What processes ask for whose own state is lost, and what a pruning would remove.
	kept := func(db *store.Store) (all []any) {
		for _, operation := range []string{"", "op-0", "op-3"} {
			for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_ASKED} {
				e, err := db.Last(ctx, vault, kind, operation)
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					t.Fatalf("the last %s of %q: %v", kind, operation, err)
				}
				all = append(all, e.GetIndex(), err)
			}
		}
		for _, end := range []uint64{8, 27, 100} {
			newest, err := db.Newest(ctx, end)
			if err != nil {
				t.Fatalf("the newest below %d: %v", end, err)
			}
			all = append(all, newest)
			var headers []string
			if next, err := db.Headers(ctx, 5, end, 20, func(e *auditv1.Entry) {
				r := e.GetRecord()
				headers = append(headers, fmt.Sprint(e.GetIndex(), e.GetWriter(), r.GetKind(), r.GetTier(), r.GetTime().AsTime(), e.GetLoggedAt().AsTime(), r.GetRequestId(), r.GetOperationId()))
			}); err != nil || next != min(end, 25) {
				t.Fatalf("headers below %d: to %d, %v", end, next, err)
			}
			all = append(all, headers)
		}
		if _, _, found, err := db.Misfiled(ctx, 0, 100); found || err != nil {
			t.Errorf("blocks with wrong filters: %v, %v", found, err)
		}
		return all
	}
	keeps := kept(db)
	if diff := cmp.Diff(keeps, kept(damaged), cmpopts.EquateErrors()); diff != "" {
		t.Errorf("what is kept where it is damaged: %s", diff)
	}
	counted := counts(db)
	if diff := cmp.Diff(counted, counts(damaged)); diff != "" {
		t.Errorf("counts where it is damaged: %s", diff)
	}
	if done, err := db.Pruned(ctx, 7); done || err != nil {
		t.Errorf("a pruning that never was: %v, %v", done, err)
	}
	for _, q := range queries {
		for _, limit := range []int{5, 100} {
			found, err := db.Search(ctx, q, limit, 1<<20)
			if err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
			stuck = append(stuck, found)
			if other, err := damaged.Search(ctx, q, limit, 1<<20); err != nil || !alike(found, other) {
				t.Errorf("%+v: %d entries, and %d where it is damaged, %v", q, len(found), len(other), err)
			}
		}
	}
	waits(t, db, 14)
	must(t, db.LimitPages(ctx, -1))
	for _, q := range queries {
		for _, limit := range []int{5, 100} {
			found, err := db.Search(ctx, q, limit, 1<<20)
			if err != nil || !alike(found, stuck[0]) {
				t.Errorf("%+v: in the tables %v, %s", q, err, cmp.Diff(found, stuck[0], protocmp.Transform(), cmpopts.EquateEmpty()))
			}
			stuck = stuck[1:]
		}
	}
	waits(t, db, 0)
	if diff := cmp.Diff(kept(db), keeps, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("what is kept in the tables: %s", diff)
	}
	if diff := cmp.Diff(counts(db), counted); diff != "" {
		t.Errorf("counts in the tables: %s", diff)
	}
}

// TestSearchWhileForgotten: searches go on while what is kept in memory is forgotten, as a pruning and a failed transaction have it. Each has
// a lock that the other takes too.
func TestSearchWhileForgotten(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	tr := &tree{t: t, db: lead(t, db)}
	tr.commit(vault, &auditv1.Record{Kind: auditv1.Kind_KIND_READ})
	ended := make(chan error, 2)
	const times = 2000
	go func() {
		var err error
		for i := 0; i < times && err == nil; i++ {
			_, err = db.Search(t.Context(), store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ}}, 10, 1<<20)
		}
		ended <- err
	}()
	go func() {
		var err error
		for i := 0; i < times && err == nil; i++ {
			err = db.Lead(t.Context())
		}
		ended <- err
	}()
	for range 2 {
		select {
		case err := <-ended:
			must(t, err)
		case <-time.After(time.Minute):
			t.Fatal("a search and what forgets wait for each other") // to close the database waits, too
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
