package history

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// TestWitnessedIsKept: what a quorum cosigned is kept in a file, and with it a program that lost everything else finds a log that was
// rewritten with its own key: online and offline. Without the file the rewrite passes.
func TestWitnessedIsKept(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	signer, err := logproof.NewCosigner("witness.example/one", ed25519.NewKeyFromSeed(make([]byte, 32)), func() time.Time { return testNow })
	l.must(err)
	l.kit.WriteTrust(trust.FileWitnesses, fmt.Appendf(nil, "quorum: 1\nwitnesses: [%q]\n", signer.String()))
	l.must(l.kit.Trust.Reload())
	write := func(n int, said string) {
		for range n {
			l.add(&auditv1.Record{Sequence: uint64(len(l.entries)) + 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark(said)})
		}
	}
	write(5, "true")
	opened, err := note.Open(l.checkpoint(), note.VerifierList(l.kit.Trust.Current().LogKeys...))
	l.must(err)
	l.cosigned, err = note.Sign(opened, signer)
	l.must(err)
	l.cosignedAt = 5
	write(3, "true")
	keep := func() error {
		view := l.open(dir)
		defer view.Close()
		_, err := view.Keep(t.Context())
		return err
	}
	l.must(keep())
	view := l.open(dir)
	report, err := view.Verify(t.Context(), l.export(view.Held().Size), view.Verifier())
	l.must(errors.Join(err, view.Close()))
	if report.WitnessedSize != 5 || !slices.Equal(report.WitnessedBy, []string{"witness.example/one"}) {
		t.Errorf("the report: %+v", report)
	}

	l.entries, l.hashes, l.cosigned = nil, nil, nil
	write(40, "another")
	l.must(os.Remove(filepath.Join(dir, checkpointFile)))
	if err := keep(); !errors.Is(err, logproof.ErrFork) {
		t.Errorf("with what was cosigned: %v", err)
	}
	verify := func() error {
		view := l.open(dir)
		defer view.Close()
		v := view.Verifier()
		l.must(v.Head(l.checkpoint()))
		for _, e := range l.entries {
			if err := v.Add(logproof.Check(e)); err != nil {
				return err
			}
		}
		_, err := v.Finish()
		return err
	}
	if err := verify(); !errors.Is(err, logproof.ErrFork) {
		t.Errorf("offline, with what was cosigned: %v", err)
	}
	l.must(os.Remove(filepath.Join(dir, witnessedFile)))
	if err := errors.Join(verify(), keep()); err != nil {
		t.Errorf("without it the rewrite passes: %v", err)
	}
}

func TestWitnessLine(t *testing.T) {
	l := newLog(t)
	if line, good := WitnessLine(l.kit.Trust.Current(), nil, testNow); line != "no witnesses" || !good {
		t.Errorf("%q, %v", line, good)
	}
	signer, err := logproof.NewCosigner("witness.example/one", ed25519.NewKeyFromSeed(make([]byte, 32)), func() time.Time { return testNow })
	l.must(err)
	l.add(&auditv1.Record{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow)})
	opened, err := note.Open(l.checkpoint(), note.VerifierList(l.kit.Trust.Current().LogKeys...))
	l.must(err)
	signed, err := note.Sign(opened, signer)
	l.must(err)
	for _, tc := range []struct {
		required string
		signed   []byte
		after    time.Duration
		want     []string
		good     bool
	}{
		{"", nil, 0, []string{"NO QUORUM OF ITS 1 WITNESSES"}, false},
		{"", l.checkpoint(), 0, []string{"NO QUORUM"}, false},
		{"", signed, -time.Hour, []string{"NO QUORUM OF ITS 1 WITNESSES: a witness's clock is ahead"}, false},
		{"10m", signed, -time.Hour, []string{"NO QUORUM", "clock is ahead", "CHANGES WAIT"}, false},
		{"", signed, 59 * time.Minute, []string{"cosigned by witness.example/one at 1 record, 59m0s ago"}, true},
		{"", signed, time.Hour, []string{"cosigned by witness.example/one at 1 record, 1h0m0s ago"}, false},
		{"10m", signed, time.Minute, []string{"cosigned by", "1m0s ago"}, true},
		{"10m", signed, time.Hour, []string{"cosigned by", "CHANGES WAIT", "within 10m0s"}, false},
		{"10m", nil, 0, []string{"NO QUORUM", "CHANGES WAIT"}, false},
	} {
		l.kit.WriteTrust(trust.FileWitnesses, fmt.Appendf(nil, "quorum: 1\nrequired_within: %q\nwitnesses: [%q]\n", tc.required, signer.String()))
		l.must(l.kit.Trust.Reload())
		line, good := WitnessLine(l.kit.Trust.Current(), tc.signed, testNow.Add(tc.after))
		if good != tc.good || slices.ContainsFunc(tc.want, func(w string) bool { return !strings.Contains(line, w) }) {
			t.Errorf("required %q after %s: %q, %v; want %q", tc.required, tc.after, line, good, tc.want)
		}
	}
}
