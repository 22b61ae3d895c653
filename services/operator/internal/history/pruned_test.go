package history

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
)

// TestPruned: a body that is gone as an operator signed is no finding, online and offline; one that is gone otherwise is, whatever audit
// says of it.
func TestPruned(t *testing.T) {
	sealed := func(kinds map[string]uint64) *log {
		l := newLog(t)
		for range 3 {
			l.addBy(vaultID, &auditv1.Record{Kind: auditv1.Kind_KIND_ASKED, Time: timestamppb.New(testNow.AddDate(0, 0, -100)), Body: remark("x")})
		}
		st := &statement.Statement{
			Type: statement.Type, Version: statement.Version, Kind: statement.KindPrune, ID: strings.Repeat("a", 32), Operator: platformtest.Operator,
			IssuedAt: statement.FormatTime(testNow.Add(time.Minute)), NotBefore: statement.FormatTime(testNow.Add(time.Minute)),
			ExpiresAt: statement.FormatTime(testNow.Add(2 * time.Minute)), Epoch: 1, Audience: auditID,
			Prune: &statement.Prune{Size: 3, Before: statement.FormatTime(testNow.Add(time.Minute)), Kinds: kinds,
				Oldest: statement.FormatTime(testNow.AddDate(0, 0, -100)), Newest: statement.FormatTime(testNow.AddDate(0, 0, -100))},
		}
		evidence, err := statement.Sign(st, l.kit.OperatorSigner)
		l.must(err)
		l.addBy(auditID, &auditv1.Record{Kind: auditv1.Kind_KIND_PRUNED, Time: timestamppb.New(testNow), Body: &auditv1.Body{Statement: evidence}})
		return l
	}
	for name, tc := range map[string]struct {
		shown           uint64
		gone            map[int]*uint64
		pruned, missing int
	}{
		"as it was signed":       {3, map[int]*uint64{0: proto.Uint64(3), 2: proto.Uint64(3)}, 2, 0},
		"without a word of it":   {3, map[int]*uint64{0: proto.Uint64(3), 2: nil}, 1, 1},
		"more than was shown":    {1, map[int]*uint64{0: proto.Uint64(3), 2: proto.Uint64(3)}, 1, 1},
		"by what is no pruning":  {3, map[int]*uint64{0: proto.Uint64(9), 1: proto.Uint64(0), 2: proto.Uint64(1)}, 0, 3},
		"the statement is gone":  {3, map[int]*uint64{0: proto.Uint64(3), 3: nil}, 0, 2},
		"nothing of it happened": {3, nil, 0, 0},
	} {
		l := sealed(map[string]uint64{"KIND_ASKED": tc.shown})
		for index, by := range tc.gone {
			l.entries[index].Record.Body, l.entries[index].Salt, l.entries[index].PrunedBy = nil, nil, by
		}
		own := l.open(t.TempDir())
		report, err := own.Verify(context.Background(), l.export(0), own.Verifier())
		if err != nil || report.PrunedBodies != tc.pruned || report.MissingBodies != tc.missing || report.BadStatements != 0 {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
		var file bytes.Buffer
		l.must(WriteHead(&file, l.checkpoint()))
		for _, e := range l.entries {
			l.must(WriteEntry(&file, e))
		}
		offline, err := VerifyFile(&file, own.Verifier().Complete())
		if err != nil || offline.PrunedBodies != tc.pruned || offline.MissingBodies != tc.missing {
			t.Errorf("%s, offline: %+v, %v", name, offline, err)
		}
		l.must(own.Close())
	}
}

// TestPrunedBy: the record that is said to have let a body go is a human's pruning, and one that the body fell under.
func TestPrunedBy(t *testing.T) {
	l := newLog(t)
	for range 3 {
		l.addBy(vaultID, &auditv1.Record{Kind: auditv1.Kind_KIND_ASKED, Time: timestamppb.New(testNow.AddDate(0, 0, -100)), Body: remark("x")})
	}
	now, day := statement.FormatTime(testNow.Add(time.Minute)), statement.FormatTime(testNow.AddDate(0, 0, -100))
	signed := func(kind auditv1.Kind, edit func(*statement.Statement)) uint64 {
		st := &statement.Statement{
			Type: statement.Type, Version: statement.Version, ID: strings.Repeat("a", 32), Operator: platformtest.Operator,
			IssuedAt: now, NotBefore: now, ExpiresAt: statement.FormatTime(testNow.Add(2 * time.Minute)), Epoch: 1, Audience: auditID,
		}
		edit(st)
		evidence, err := statement.Sign(st, l.kit.OperatorSigner)
		l.must(err)
		receipt, _ := l.addBy(auditID, &auditv1.Record{Kind: kind, Time: timestamppb.New(testNow), Body: &auditv1.Body{Statement: evidence}})
		return receipt.GetIndex()
	}
	pruning := signed(auditv1.Kind_KIND_PRUNED, func(st *statement.Statement) {
		st.Kind, st.Prune = statement.KindPrune, &statement.Prune{Size: 2, Before: now, Kinds: map[string]uint64{"KIND_ASKED": 2}, Oldest: day, Newest: day}
	})
	hold := signed(auditv1.Kind_KIND_HELD, func(st *statement.Statement) {
		st.Kind, st.Hold = statement.KindHold, &statement.Hold{Since: day, Until: now, Reason: "a case"}
	})
	for _, tc := range []struct {
		name   string
		record int
		by     uint64
		said   string
	}{
		{"a record that was counted", 1, pruning, ""},
		{"a record behind what was counted", 2, pruning, "is not for it"},
		{"by a hold", 1, hold, "is not for it"},
		{"by no statement", 1, 0, "allows nothing"},
	} {
		e := proto.CloneOf(l.entries[tc.record])
		e.PrunedBy = proto.Uint64(tc.by)
		decision, err := PrunedBy(t.Context(), archive{answer: &auditv1.GetRecordResponse{Entry: l.entries[tc.by], Receipt: l.receipt(tc.by)}}, e, l.kit.Trust.Current())
		if (err == nil) != (tc.said == "") || (decision != nil) != (tc.said == "") || err != nil && !strings.Contains(err.Error(), tc.said) {
			t.Errorf("%s: %+v, %v, want %q", tc.name, decision, err, tc.said)
		}
	}
}
