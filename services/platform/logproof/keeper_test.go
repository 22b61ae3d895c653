package logproof_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

type memory struct {
	saved, witnessed []byte
	fail             error
}

func (m *memory) at(which logproof.Kept) *[]byte {
	if which == logproof.KeptWitnessed {
		return &m.witnessed
	}
	return &m.saved
}

func (m *memory) LoadCheckpoint(_ context.Context, which logproof.Kept) ([]byte, error) {
	return *m.at(which), nil
}

func (m *memory) SaveCheckpoint(_ context.Context, which logproof.Kept, b []byte) error {
	if m.fail != nil {
		return m.fail
	}
	*m.at(which) = b
	return nil
}

func keeper(t *testing.T, f *fixture, store logproof.CheckpointStore) *logproof.Keeper {
	t.Helper()
	k, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Origin: origin, Keys: func() []note.Verifier { return f.keys }, Store: store})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// answer is what an honest log of that size says to a writer that knows a smaller one.
func (f *fixture) answer(t *testing.T, size, known int, indexes ...int) *auditv1.AppendResponse {
	t.Helper()
	a := &auditv1.AppendResponse{Checkpoint: f.signed(t, size), Consistency: f.consistency(t, size, known)}
	for _, i := range indexes {
		a.Receipts = append(a.Receipts, f.receipt(t, size, i))
	}
	return a
}

func TestKeeperRefuses(t *testing.T) {
	f := newFixture(t, records()...)
	fork := newFixture(t, append(records()[1:], records()[0])...)
	for _, tc := range []struct {
		name   string
		answer func() *auditv1.AppendResponse
		want   error
	}{
		{"a shorter log", func() *auditv1.AppendResponse { return f.answer(t, 2, 0, 1) }, logproof.ErrRollback},
		{"another history of the same size", func() *auditv1.AppendResponse { return fork.answer(t, 3, 0, 2) }, logproof.ErrFork},
		{"another history that has grown", func() *auditv1.AppendResponse { return fork.answer(t, 5, 3, 4) }, logproof.ErrFork},
		{"no consistency proof", func() *auditv1.AppendResponse { return f.answer(t, 5, 0, 4) }, logproof.ErrFork},
		{"no signature", func() *auditv1.AppendResponse {
			a := f.answer(t, 5, 3, 4)
			a.Checkpoint = []byte(f.checkpoint(t, 5).Text())
			return a
		}, logproof.ErrFormat},
		{"a receipt that proves nothing", func() *auditv1.AppendResponse {
			a := f.answer(t, 5, 3, 4)
			a.Receipts[0] = proto.CloneOf(a.GetReceipts()[0])
			a.Receipts[0].Inclusion[0][0]++
			return a
		}, logproof.ErrInclusion},
		{"a receipt from a tree of its own", func() *auditv1.AppendResponse {
			a := f.answer(t, 5, 3, 4)
			a.Receipts[0] = fork.receipt(t, 5, 4)
			return a
		}, logproof.ErrInclusion},
	} {
		store := &memory{saved: f.signed(t, 3)}
		k := keeper(t, f, store)
		if err := k.Accept(t.Context(), tc.answer()); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
		}
		if k.Held() != f.checkpoint(t, 3) || string(store.saved) != string(f.signed(t, 3)) {
			t.Errorf("%s: the held checkpoint moved", tc.name)
		}
	}
}

func TestKeeperFollows(t *testing.T) {
	f := newFixture(t, records()...)
	store := &memory{}
	k := keeper(t, f, store)
	for known, size := range []int{1, 2, 3, 4, 5} {
		if err := k.Accept(t.Context(), f.answer(t, size, known, size-1)); err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		if k.Held() != f.checkpoint(t, size) || string(store.saved) != string(k.Signed()) {
			t.Fatalf("size %d is not held and saved", size)
		}
	}
	if c, err := keeper(t, f, store).AcceptHead(t.Context(), f.signed(t, 5), nil); err != nil || c.Size != 5 {
		t.Fatalf("the same head after a restart: %v", err)
	}
	store.fail = errors.New("disk full")
	f.add(t, &auditv1.Record{Sequence: 6, Kind: auditv1.Kind_KIND_STARTED, Time: at(9)})
	if err := k.Accept(t.Context(), f.answer(t, 6, 5, 5)); !errors.Is(err, store.fail) {
		t.Fatalf("a checkpoint that cannot be saved: %v", err)
	}
	if k.Held().Size != 5 {
		t.Fatal("a checkpoint is held that was not saved")
	}
}

func TestKeeperRefusesWhatWasSaved(t *testing.T) {
	f := newFixture(t, records()...)
	for name, saved := range map[string][]byte{
		"rubbish":  []byte("rubbish"),
		"unsigned": []byte(f.checkpoint(t, 3).Text()),
	} {
		if _, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{
			Origin: origin, Keys: func() []note.Verifier { return f.keys }, Store: &memory{saved: saved},
		}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{
		Origin: "durward.local/audit/other", Keys: func() []note.Verifier { return f.keys }, Store: &memory{saved: f.signed(t, 3)},
	}); !errors.Is(err, logproof.ErrOrigin) {
		t.Errorf("another log's: %v", err)
	}
}

// TestKeeperKeepsWhatWitnessesSaid: what a quorum cosigned outlives the process. It is held against the log although the other checkpoint
// was lost, counts at once for changes that wait for a fresh quorum, and counts for nothing with other witnesses. Without it the log that
// somebody wrote anew passes.
func TestKeeperKeepsWhatWitnessesSaid(t *testing.T) {
	f := newFixture(t, records()...)
	fork := newFixture(t, append(records()[1:], records()[0])...)
	now := time.Now()
	one, other := cosigner(t, "witness.example/one", now), cosigner(t, "witness.example/other", now)
	asks := logproof.Witnesses{Keys: []*logproof.Witness{one.Witness}, Quorum: 1, Within: time.Hour}
	open := func(store logproof.CheckpointStore, asks logproof.Witnesses) (*logproof.Keeper, error) {
		return logproof.NewKeeper(t.Context(), logproof.KeeperConfig{
			Origin: origin, Keys: func() []note.Verifier { return f.keys }, Store: store, Witnesses: func() logproof.Witnesses { return asks },
		})
	}
	must := func(k *logproof.Keeper, err error) *logproof.Keeper {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	head := func(f *fixture, size, known int) *auditv1.GetHeadResponse {
		return &auditv1.GetHeadResponse{Checkpoint: f.signed(t, size), Consistency: f.consistency(t, size, known)}
	}
	store := &memory{}
	answer := head(f, 5, 0)
	answer.Witnessed, answer.WitnessedConsistency = cosign(t, f, f.signed(t, 3), one), f.consistency(t, 5, 3)
	if err := must(open(store, asks)).AcceptAnswer(t.Context(), answer, now); err != nil {
		t.Fatal(err)
	}
	if w, err := must(open(store, asks)).Witnessed(now); err != nil || w.Checkpoint != f.checkpoint(t, 3) {
		t.Errorf("after a restart: %d entries, %v", w.Size, err)
	}
	if _, err := must(open(store, asks)).Witnessed(now.Add(2 * time.Hour)); err == nil {
		t.Error("an old quorum's word counts as a fresh one after a restart")
	}

	lost := &memory{witnessed: store.witnessed}
	if k := must(open(lost, asks)); k.Held() != f.checkpoint(t, 3) {
		t.Errorf("with the checkpoint lost %d entries are held", k.Held().Size)
	} else if err := k.AcceptAnswer(t.Context(), head(fork, 5, 3), now); !errors.Is(err, logproof.ErrFork) {
		t.Errorf("another history: %v", err)
	}
	if _, err := open(&memory{saved: fork.signed(t, 3), witnessed: store.witnessed}, asks); !errors.Is(err, logproof.ErrFork) {
		t.Errorf("two checkpoints that cannot both be true: %v", err)
	}
	// The controls: with nothing kept, and with witnesses that never saw it.
	for name, k := range map[string]*logproof.Keeper{
		"nothing kept":    must(open(&memory{}, asks)),
		"other witnesses": must(open(lost, logproof.Witnesses{Keys: []*logproof.Witness{other.Witness}, Quorum: 1})),
	} {
		if err := k.AcceptAnswer(t.Context(), head(fork, 5, 0), now); err != nil || k.Held() != fork.checkpoint(t, 5) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// The same tree again is saved when the quorum's word is a minute newer, and a failing disk is told.
	k, before := must(open(store, asks)), store.witnessed
	for _, tc := range []struct {
		later time.Duration
		saved bool
	}{{30 * time.Second, false}, {time.Minute, true}} {
		at := now.Add(tc.later)
		answer.Consistency, answer.Witnessed = nil, cosign(t, f, f.signed(t, 3), cosigner(t, "witness.example/one", at))
		if err := k.AcceptAnswer(t.Context(), answer, at); err != nil || (string(store.witnessed) != string(before)) != tc.saved {
			t.Errorf("the same tree %s later, saved %v: %v", tc.later, !tc.saved, err)
		}
	}
	// An older quorum's word takes nothing away from a newer one, and one that the log did not sign is refused with the answer.
	newest, err := k.Witnessed(now)
	if err != nil {
		t.Fatal(err)
	}
	answer.Witnessed = cosign(t, f, f.signed(t, 3), one)
	if err := k.AcceptAnswer(t.Context(), answer, now.Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if w, err := k.Witnessed(now); err != nil || !w.At.Equal(newest.At) {
		t.Errorf("an older quorum's word counts from %s on: %v", w.At, err)
	}
	unsigned, err := note.Sign(&note.Note{Text: f.checkpoint(t, 3).Text()}, one)
	if err != nil {
		t.Fatal(err)
	}
	bad := &auditv1.GetHeadResponse{Checkpoint: f.signed(t, 5), Witnessed: unsigned}
	if err := k.AcceptAnswer(t.Context(), bad, now); !errors.Is(err, logproof.ErrSignature) {
		t.Errorf("what witnesses cosigned and the log did not sign: %v", err)
	}
	full := &memory{fail: errors.New("disk full")}
	if k := must(open(full, asks)); !errors.Is(k.AcceptAnswer(t.Context(), head(f, 5, 0), now), full.fail) || k.Held().Size != 0 {
		t.Errorf("a head that is not saved is held: %d entries", k.Held().Size)
	}
	store.fail = errors.New("disk full")
	answer.Witnessed, answer.WitnessedConsistency = cosign(t, f, f.signed(t, 4), cosigner(t, "witness.example/one", now.Add(time.Hour))), f.consistency(t, 5, 4)
	if err := k.AcceptAnswer(t.Context(), answer, now.Add(time.Hour)); !errors.Is(err, store.fail) {
		t.Errorf("a disk that takes nothing: %v", err)
	}
}
