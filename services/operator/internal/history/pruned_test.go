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
	const audit, vault = "spiffe://durward.local/audit/main", "spiffe://durward.local/vault/main"
	sealed := func(kinds map[string]uint64) *log {
		l := newLog(t)
		for range 3 {
			l.addBy(vault, &auditv1.Record{Kind: auditv1.Kind_KIND_ASKED, Time: timestamppb.New(testNow.AddDate(0, 0, -100)), Body: remark("x")})
		}
		st := &statement.Statement{
			Type: statement.Type, Version: statement.Version, Kind: statement.KindPrune, ID: strings.Repeat("a", 32), Operator: platformtest.Operator,
			IssuedAt: statement.FormatTime(testNow.Add(time.Minute)), NotBefore: statement.FormatTime(testNow.Add(time.Minute)),
			ExpiresAt: statement.FormatTime(testNow.Add(2 * time.Minute)), Epoch: 1, Audience: audit,
			Prune: &statement.Prune{Size: 3, Before: statement.FormatTime(testNow.Add(time.Minute)), Kinds: kinds,
				Oldest: statement.FormatTime(testNow.AddDate(0, 0, -100)), Newest: statement.FormatTime(testNow.AddDate(0, 0, -100))},
		}
		evidence, err := statement.Sign(st, l.kit.OperatorSigner)
		l.must(err)
		l.addBy(audit, &auditv1.Record{Kind: auditv1.Kind_KIND_PRUNED, Time: timestamppb.New(testNow), Body: &auditv1.Body{Statement: evidence}})
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
