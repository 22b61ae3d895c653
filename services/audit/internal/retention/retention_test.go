package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	auditlog "durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/retention"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

const (
	executor = "spiffe://durward.test/executor/local"
	vault    = "spiffe://durward.test/vault/main"
)

// world is a log on a disk with a keeper. Its clock is the test's.
type world struct {
	t       *testing.T
	kit     *platformtest.Kit
	self    identity.ID
	now     time.Time
	db      *store.Store
	log     *auditlog.Log
	keeper  *Keeper
	last    map[string]uint64
	allowed *trust.AllowedSigners
	// broken makes the store's nth removal fail; 0: none.
	broken, removals int
	// copied: the store does not know which prunings were carried out, as a copy of the log does not.
	copied bool
}

// Prune counts removals, and breaks one.
func (w *world) Prune(ctx context.Context, by uint64, entries []uint64) error {
	if w.removals++; w.removals == w.broken {
		return errors.New("killed")
	}
	return w.db.Prune(ctx, by, entries)
}

// breaking is the store with the world's Prune.
type breaking struct {
	*store.Store
	*world
}

func (b breaking) Prune(ctx context.Context, by uint64, entries []uint64) error {
	return b.world.Prune(ctx, by, entries)
}

func (b breaking) Pruned(ctx context.Context, by uint64) (bool, error) {
	done, err := b.Store.Pruned(ctx, by)
	return done && !b.copied, err
}

func newWorld(t *testing.T) *world {
	t.Helper()
	kit := platformtest.New(t)
	w := &world{t: t, kit: kit, self: kit.ID(optionsv1.Role_ROLE_AUDIT, "main"), now: time.Now().Truncate(time.Second), last: map[string]uint64{}}
	w.allowed = kit.Trust.Current().AllowedSigners
	var err error
	if w.db, err = store.Open(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	if w.log, err = auditlog.Open(t.Context(), auditlog.Config{Store: w.db, Signer: kit.LogSigner,
		Keys: func() []note.Verifier { return kit.Trust.Current().LogKeys }, Clock: func() time.Time { return w.now }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.log.Close)
	w.restart()
	return w
}

// restart makes the keeper anew.
func (w *world) restart() {
	w.keeper = New(Config{Log: w.log, Store: breaking{w.db, w}, Identity: w.self, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now },
		Allowed: func() *trust.AllowedSigners { return w.allowed },
		Record: func(_ context.Context, r *auditv1.Record) (uint64, error) {
			return w.write(w.self.String(), r), nil
		}})
}

func (w *world) write(writer string, r *auditv1.Record) uint64 {
	w.t.Helper()
	w.last[writer]++
	r.Sequence = w.last[writer]
	if r.Time == nil {
		r.Time = timestamppb.New(w.now)
	}
	answer, err := w.log.Append(w.t.Context(), writer, []*auditv1.Record{r}, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.GetReceipts()[0].GetIndex()
}

// past writes a story of a hundred days ago: reads of two requests, a change, and what a process asks for when its state is lost.
func (w *world) past() {
	w.now = w.now.AddDate(0, 0, -100)
	for i := range 6 {
		w.write(executor, &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: fmt.Sprint("r-", i), Body: &auditv1.Body{Summary: "read"}})
	}
	for _, r := range []*auditv1.Record{
		{Kind: auditv1.Kind_KIND_INTENT, OperationId: "op-1"}, {Kind: auditv1.Kind_KIND_OUTCOME, OperationId: "op-1"},
		{Kind: auditv1.Kind_KIND_INTENT, OperationId: "op-2"}, {Kind: auditv1.Kind_KIND_OUTCOME, OperationId: "op-2"},
	} {
		r.Body = &auditv1.Body{Summary: "change"}
		w.write(executor, r) // 6 to 9: the last two are the executor's newest
	}
	w.write(vault, &auditv1.Record{Kind: auditv1.Kind_KIND_SESSION_OPENED, Time: timestamppb.New(w.now.AddDate(0, 0, 100))}) // 10: a clock far ahead
	w.now = w.now.AddDate(0, 0, 100)
	w.write(executor, &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Time: timestamppb.New(w.now.AddDate(0, 0, -100))}) // 11: a clock far behind
}

func (w *world) statement(kind statement.Kind) *statement.Statement {
	return &statement.Statement{Type: statement.Type, Version: statement.Version, Kind: kind, ID: fmt.Sprintf("%032x", w.log.Size()), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(w.now), NotBefore: statement.FormatTime(w.now), ExpiresAt: statement.FormatTime(w.now.Add(5 * time.Minute)),
		Epoch: 1, Audience: w.self.String()}
}

// prune makes a statement as the operator's program would, of what was surveyed.
func (w *world) prune(before time.Time) *statement.Statement {
	w.t.Helper()
	s, err := w.keeper.Survey(w.t.Context(), before)
	if err != nil {
		w.t.Fatal(err)
	}
	st := w.statement(statement.KindPrune)
	st.Prune = &statement.Prune{Size: s.Size, Before: statement.FormatTime(before), Kinds: s.Kinds, Held: s.Held,
		Oldest: statement.FormatTime(s.Oldest), Newest: statement.FormatTime(s.Newest)}
	return st
}

func (w *world) hold(h statement.Hold) *statement.Statement {
	st := w.statement(statement.KindHold)
	h.Reason = "case 7"
	st.Hold = &h
	return st
}

func (w *world) sign(st *statement.Statement, key ssh.Signer) *callv1.HumanStatement {
	w.t.Helper()
	signed, err := statement.Sign(st, key)
	if err != nil {
		w.t.Fatal(err)
	}
	return signed
}

func (w *world) decide(st *statement.Statement) uint64 {
	w.t.Helper()
	at, err := w.keeper.Decide(w.t.Context(), w.sign(st, w.kit.OperatorSigner))
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

// audited verifies all of the log as somebody else would, and returns which records lack their bodies.
func (w *world) audited() (gone []uint64) {
	w.t.Helper()
	size, checkpoint, _, err := w.log.Export(w.t.Context(), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	head, err := logproof.OpenCheckpoint(checkpoint, w.kit.Trust.Current().LogKeys)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := w.db.Range(w.t.Context(), 0, size, 1000, 1<<30)
	if err != nil {
		w.t.Fatal(err)
	}
	var replay logproof.Replay
	ledger := retention.Ledger{Allowed: w.allowed}
	var problems []retention.Problem
	for _, e := range all {
		if err := replay.Add(e); err != nil {
			w.t.Fatal(err)
		}
		problems = append(problems, ledger.Add(e)...)
		if logproof.BodyMissing(e) {
			gone = append(gone, e.GetIndex())
			if e.PrunedBy == nil {
				w.t.Errorf("entry %d names nothing that let its body go", e.GetIndex())
			}
		}
	}
	if err := replay.Finish(head); err != nil {
		w.t.Fatal(err)
	}
	if problems = append(problems, ledger.Finish()...); len(problems) > 0 {
		w.t.Errorf("problems: %v", problems)
	}
	return gone
}

func (w *world) work() {
	w.t.Helper()
	if err := w.keeper.work(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// TestPrune: what a human signed goes, and nothing that is young by either clock, that a process needs, or that is held.
func TestPrune(t *testing.T) {
	w := newWorld(t)
	w.past()
	before := w.now.AddDate(0, 0, -90)
	held := w.decide(w.hold(statement.Hold{IDs: []string{"r-1", "op-1"}}))
	stale := w.prune(before)
	if stale.Prune.Held != 3 || stale.Prune.Sum() != 5 || stale.Prune.Kinds["KIND_READ"] != 5 {
		t.Fatalf("surveyed: %+v", stale.Prune)
	}
	w.decide(w.hold(statement.Hold{IDs: []string{"r-4"}}))
	if _, err := w.keeper.Decide(t.Context(), w.sign(stale, w.kit.OperatorSigner)); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Fatalf("a pruning that was signed before a hold: %v", err)
	}
	st := w.prune(before)
	signed := w.sign(st, w.kit.OperatorSigner)
	at, err := w.keeper.Decide(t.Context(), signed)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := w.keeper.Decide(t.Context(), signed); err != nil || again != at {
		t.Errorf("the same statement again: record %d, %v; want %d", again, err, at)
	}
	w.work()
	if gone := w.audited(); !slices.Equal(gone, []uint64{0, 2, 3, 5}) {
		t.Errorf("bodies of %v are gone", gone)
	}
	state, err := w.keeper.State(t.Context())
	if err != nil || len(state.Holds) != 2 || len(state.Prunings) != 1 || !state.Done[at] || state.Prunings[0].Index != at {
		t.Errorf("state %+v, %v", state, err)
	}

	// The hold ends, and what it kept goes by another statement alone.
	release := w.statement(statement.KindRelease)
	release.Releases = state.Holds[0].Digest()
	if state.Holds[0].Index != held {
		t.Fatal("holds are not in order")
	}
	w.decide(release)
	w.copied = true
	w.restart()
	w.work()
	w.copied = false
	if gone := w.audited(); len(gone) != 4 {
		t.Errorf("what was held went with its hold: %v", gone)
	}
	again := w.statement(statement.KindRelease)
	again.Releases = release.Releases
	if _, err := w.keeper.Decide(t.Context(), w.sign(again, w.kit.OperatorSigner)); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("released twice: %v", err)
	}
	w.decide(w.prune(before))
	w.work()
	if gone := w.audited(); !slices.Equal(gone, []uint64{0, 1, 2, 3, 5, 6, 7}) {
		t.Errorf("bodies of %v are gone", gone)
	}
}

// TestDecideRefuses: what no operator signed for this log, for now and for what is there, decides nothing.
func TestDecideRefuses(t *testing.T) {
	w := newWorld(t)
	w.past()
	before := w.now.AddDate(0, 0, -90)
	other := platformtest.New(t).OperatorSigner
	good := func() *statement.Statement { return w.prune(before) }
	size := w.log.Size()
	for name, tc := range map[string]struct {
		spoil func(*statement.Statement)
		key   ssh.Signer
		want  callv1.Code
	}{
		"another key":         {nil, other, callv1.Code_CODE_DENIED},
		"another log":         {func(s *statement.Statement) { s.Audience = vault }, nil, callv1.Code_CODE_DENIED},
		"another operator":    {func(s *statement.Statement) { s.Operator = "eve" }, nil, callv1.Code_CODE_DENIED},
		"over":                {func(s *statement.Statement) { s.IssuedAt, s.NotBefore, s.ExpiresAt = back(s, w.now.Add(-time.Hour)) }, nil, callv1.Code_CODE_DENIED},
		"a resume":            {func(s *statement.Statement) { s.Kind, s.Prune = statement.KindResume, nil }, nil, callv1.Code_CODE_DENIED},
		"records to come":     {func(s *statement.Statement) { s.Prune.Size = size + 1 }, nil, callv1.Code_CODE_CONFLICT},
		"more than there are": {func(s *statement.Statement) { s.Prune.Kinds["KIND_READ"]++ }, nil, callv1.Code_CODE_CONFLICT},
		"fewer":               {func(s *statement.Statement) { s.Prune.Kinds["KIND_READ"]-- }, nil, callv1.Code_CODE_CONFLICT},
		"another kind":        {func(s *statement.Statement) { s.Prune.Kinds["KIND_DENIED"] = 1 }, nil, callv1.Code_CODE_CONFLICT},
		"fewer held":          {func(s *statement.Statement) { s.Prune.Held++ }, nil, callv1.Code_CODE_CONFLICT},
		"another age":         {func(s *statement.Statement) { s.Prune.Oldest = statement.FormatTime(before.AddDate(0, 0, -20)) }, nil, callv1.Code_CODE_CONFLICT},
		"releases nothing": {func(s *statement.Statement) {
			s.Kind, s.Prune, s.Releases = statement.KindRelease, nil, "sha256:"+fmt.Sprintf("%064x", 1)
		}, nil, callv1.Code_CODE_CONFLICT},
	} {
		st, key := good(), w.kit.OperatorSigner
		if tc.spoil != nil {
			tc.spoil(st)
		}
		if tc.key != nil {
			key = tc.key
		}
		if _, err := w.keeper.Decide(t.Context(), w.sign(st, key)); !fault.Is(err, tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	unsigned := w.sign(good(), w.kit.OperatorSigner)
	unsigned.Signature = nil
	altered := w.sign(good(), w.kit.OperatorSigner)
	altered.Statement = bytes.Replace(altered.Statement, []byte(`"KIND_READ":6`), []byte(`"KIND_READ":5`), 1)
	for name, signed := range map[string]*callv1.HumanStatement{"unsigned": unsigned, "altered": altered, "none": nil} {
		if _, err := w.keeper.Decide(t.Context(), signed); !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.work()
	if gone := w.audited(); len(gone) > 0 || w.log.Size() != size {
		t.Errorf("something was decided: %v are gone, %d records", gone, w.log.Size())
	}
}

// TestAClockThatWasAhead: what others would not let stand, by the log's clock, is not decided; it is when this host's clock has come there.
func TestAClockThatWasAhead(t *testing.T) {
	w := newWorld(t)
	w.past()
	w.now = w.now.AddDate(0, 0, 1)
	w.write(executor, &auditv1.Record{Kind: auditv1.Kind_KIND_READ})
	w.now = w.now.AddDate(0, 0, -1)
	size := w.log.Size()
	for _, st := range []*statement.Statement{w.hold(statement.Hold{IDs: []string{"r-1"}}), w.prune(w.now.AddDate(0, 0, -90))} {
		_, err := w.keeper.Decide(t.Context(), w.sign(st, w.kit.OperatorSigner))
		if !fault.Is(err, callv1.Code_CODE_CONFLICT) || !strings.Contains(err.Error(), "24h0m0s later than by this host's") {
			t.Errorf("%s: %v", st.Kind, err)
		}
	}
	if w.audited(); w.log.Size() != size {
		t.Errorf("it is recorded: %d records, not %d", w.log.Size(), size)
	}
	w.now = w.now.AddDate(0, 0, 1).Add(-time.Minute)
	w.decide(w.hold(statement.Hold{IDs: []string{"r-1"}}))
	w.audited()
	if state, err := w.keeper.State(t.Context()); err != nil || len(state.Holds) != 1 {
		t.Errorf("the hold does not stand: %+v, %v", state, err)
	}
}

func back(s *statement.Statement, at time.Time) (issued, from, until string) {
	s.Prune.Before = statement.FormatTime(at.AddDate(0, 0, -90))
	return statement.FormatTime(at), statement.FormatTime(at), statement.FormatTime(at.Add(5 * time.Minute))
}

// TestPruningGoesOn: a process that is killed in the middle goes on when it starts again, a hold that comes in between keeps what is
// left, and a key that is no operator's any more removes nothing more.
func TestPruningGoesOn(t *testing.T) {
	w := newWorld(t)
	w.now = w.now.AddDate(0, 0, -100)
	const all = 3*piece + 7
	for i := range all {
		w.write(executor, &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: fmt.Sprint("r-", i), Body: &auditv1.Body{Summary: "read"}})
	}
	w.now = w.now.AddDate(0, 0, 100)
	at := w.decide(w.prune(w.now.AddDate(0, 0, -90)))
	w.broken = 2
	if err := w.keeper.work(t.Context()); err == nil {
		t.Fatal("it was not killed")
	}
	if gone := w.audited(); len(gone) != piece {
		t.Fatalf("%d bodies went", len(gone))
	}
	if state, err := w.keeper.State(t.Context()); err != nil || state.Done[at] {
		t.Fatalf("done in the middle: %v", err)
	}
	was := w.allowed
	w.allowed = nil
	w.restart()
	w.work()
	w.allowed = was
	if gone := w.audited(); len(gone) != piece {
		t.Fatalf("a key that is no operator's removed %d", len(gone)-piece)
	}
	w.decide(w.hold(statement.Hold{IDs: []string{fmt.Sprint("r-", all-1)}}))
	w.restart()
	w.work()
	if gone := w.audited(); len(gone) != all-1 || slices.Contains(gone, all-1) {
		t.Errorf("%d bodies went of %d", len(gone), all)
	}
	if state, err := w.keeper.State(t.Context()); err != nil || !state.Done[at] {
		t.Errorf("not done: %v", err)
	}
	before := w.removals
	w.restart()
	w.work()
	if w.removals != before {
		t.Error("what is done is looked at again")
	}
}

// TestRun wakes for a decision.
func TestRun(t *testing.T) {
	w := newWorld(t)
	w.past()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.keeper.Run(ctx); close(ended) }()
	w.decide(w.prune(w.now.AddDate(0, 0, -90)))
	for len(w.gone()) == 0 {
		select {
		case <-ended:
			t.Fatal("it ended")
		default:
		}
	}
	cancel()
	<-ended
}

func (w *world) gone() (out []*auditv1.Entry) {
	all, err := w.db.Range(w.t.Context(), 0, w.log.Size(), 1000, 1<<30)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range all {
		if logproof.BodyMissing(e) {
			out = append(out, e)
		}
	}
	return out
}
