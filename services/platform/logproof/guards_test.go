package logproof_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/proto"

	"durward.internal/services/platform/logproof"
)

// Each of these is refused by one guard alone; nothing behind it would notice.
func TestWhatOneGuardAloneRefuses(t *testing.T) {
	f := newFixture(t, records()...)
	for name, c := range map[string]struct {
		try  func() error
		want error
	}{
		// Audit could show each writer a tree of its own, with receipts that are sound in it.
		"a receipt with another checkpoint of the same tree": {func() error {
			a := f.answer(t, 5, 3, 4)
			a.Receipts[0].Checkpoint = append(a.GetReceipts()[0].GetCheckpoint(), "— witness 7PZPHVoI\n"...)
			return keeper(t, f, &memory{saved: f.signed(t, 3)}).Accept(t.Context(), a)
		}, logproof.ErrInclusion},
		"a receipt beyond the tree": {func() error {
			receipt := f.receipt(t, 5, 4)
			receipt.Index = math.MaxUint64
			_, err := logproof.VerifyReceipt(receipt, f.keys)
			return err
		}, logproof.ErrInclusion},
		"a receipt with half a hash, where none is needed": {func() error {
			one := newFixture(t, records()[0])
			receipt := one.receipt(t, 1, 0)
			receipt.Inclusion = [][]byte{{1}}
			_, err := logproof.VerifyReceipt(receipt, one.keys)
			return err
		}, logproof.ErrInclusion},
		"a proof with half a hash": {func() error {
			proof := f.consistency(t, 5, 3)
			proof[0] = proof[0][:16]
			return logproof.VerifyConsistency(f.checkpoint(t, 3), f.checkpoint(t, 5), proof)
		}, logproof.ErrFork},
		"a tree that is too large to be one": {func() error {
			newer := f.checkpoint(t, 5)
			newer.Size = math.MaxInt64 + 1
			return logproof.VerifyConsistency(f.checkpoint(t, 3), newer, f.consistency(t, 5, 3))
		}, logproof.ErrFork},
		"an entry that says another place": {func() error {
			moved := proto.CloneOf(f.entries[0])
			moved.Index = 7
			must(t, logproof.Seal(moved))
			return new(logproof.Replay).Add(moved)
		}, logproof.ErrEntry},
		"an entry whose parts do not belong together": {func() error {
			altered := proto.CloneOf(f.entries[0])
			altered.Record.Tool = "stop_service"
			return new(logproof.Replay).Add(altered)
		}, logproof.ErrEntry},
		"an earlier checkpoint of another log": {func() error {
			r, earlier := &logproof.Replay{}, f.checkpoint(t, 5)
			earlier.Origin = "another"
			r.Expect(earlier)
			for _, e := range f.entries {
				must(t, r.Add(e))
			}
			return r.Finish(f.checkpoint(t, 5))
		}, logproof.ErrOrigin},
		"a record without a time": {func() error {
			bare := proto.CloneOf(f.entries[0])
			bare.LoggedAt = nil
			return logproof.Seal(bare)
		}, logproof.ErrIncomplete},
		"a keeper of no log": {func() error {
			if _, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Keys: func() []note.Verifier { return nil }, Store: &memory{}}); err == nil {
				return nil
			}
			return logproof.ErrOrigin
		}, logproof.ErrOrigin},
	} {
		if err := try(c.try); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// try is what a check says, a panic included: a guard may be what stands between a hostile log and one.
func try(check func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panics: %v", p)
		}
	}()
	return check()
}

// A checkpoint is so many lines with an origin, and no longer than one that many witnesses signed.
func TestCheckpointsOfAnotherShape(t *testing.T) {
	s, v := signer(t, "x")
	for name, text := range map[string]string{
		"no origin":       "\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n",
		"two lines":       "x\n0\n",
		"a line too many": "x\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\nmore\n",
	} {
		signed, err := note.Sign(&note.Note{Text: text}, s)
		must(t, err)
		if err := try(func() error { _, err := logproof.OpenCheckpoint(signed, []note.Verifier{v}); return err }); !errors.Is(err, logproof.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := newFixture(t, records()...)
	padded := append(f.signed(t, 5), "— "+strings.Repeat("w", 1<<17)+" 7PZPHVoI\n"...)
	if _, err := logproof.OpenCheckpoint(padded, f.keys); !errors.Is(err, logproof.ErrFormat) {
		t.Errorf("long: %v", err)
	}
	text, _, _ := strings.Cut(string(f.signed(t, 5)), "\n\n")
	for name, signed := range map[string][]byte{"long": padded, "without a place for signatures": []byte(text)} {
		if _, err := logproof.ReadCheckpoint(signed); !errors.Is(err, logproof.ErrFormat) {
			t.Errorf("read, %s: %v", name, err)
		}
	}
	if c, err := logproof.ReadCheckpoint(f.signed(t, 5)); err != nil || c != f.checkpoint(t, 5) {
		t.Errorf("read: %+v, %v", c, err)
	}
}
