package history

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
)

// TestStatementsOfOtherRecords: what a human did sign, and what lies in the log for everybody to copy, stands for nothing but what it says.
func TestStatementsOfOtherRecords(t *testing.T) {
	const vault, audit = "spiffe://durward.local/vault/main", "spiffe://durward.local/audit/main"
	l := newLog(t)
	carries := func(kind auditv1.Kind, st *statement.Statement) *auditv1.Record {
		st.Type, st.Version, st.ID, st.Operator, st.Epoch = statement.Type, statement.Version, strings.Repeat("a", 32), platformtest.Operator, 1
		st.IssuedAt, st.NotBefore, st.ExpiresAt = statement.FormatTime(testNow), statement.FormatTime(testNow), statement.FormatTime(testNow.Add(time.Minute))
		evidence, err := statement.Sign(st, l.kit.OperatorSigner)
		l.must(err)
		return &auditv1.Record{Sequence: uint64(l.size()) + 1, Kind: kind, Time: timestamppb.New(testNow), Body: &auditv1.Body{Statement: evidence}}
	}
	resume := func() *statement.Statement { return &statement.Statement{Kind: statement.KindResume, Audience: vault} }
	restore := func(size uint64, root [32]byte, of string) *statement.Statement {
		text := hex.EncodeToString(root[:])
		return &statement.Statement{Kind: statement.KindRestore, Audience: of, Restore: &statement.Restore{
			Made: statement.FormatTime(testNow), Size: size, Root: text, OldSize: size, OldRoot: text,
		}}
	}
	here := func() [32]byte { // the root of what is there so far
		var replay logproof.Replay
		for _, e := range l.entries {
			l.must(replay.Add(e))
		}
		return replay.Root()
	}
	l.addBy(vault, carries(auditv1.Kind_KIND_RESUMED, resume()))
	l.addBy(vault, carries(auditv1.Kind_KIND_APPROVED, resume()))
	l.addBy(vault, carries(auditv1.Kind_KIND_CONFIG_ADOPTED, resume()))
	l.addBy(audit, carries(auditv1.Kind_KIND_RESTORED, restore(2, here(), audit)))
	l.addBy(audit, carries(auditv1.Kind_KIND_RESTORED, restore(uint64(l.size()), [32]byte{1}, audit)))
	l.addBy(audit, carries(auditv1.Kind_KIND_RESTORED, restore(uint64(l.size()), here(), "spiffe://durward.local/audit/other")))
	l.addBy(audit, carries(auditv1.Kind_KIND_RESTORED, restore(uint64(l.size()), here(), audit)))
	own := l.open(t.TempDir())
	report, err := own.Verify(context.Background(), l.export(0), own.Verifier())
	l.must(err)
	var bad []uint64
	for _, f := range report.Bad {
		bad = append(bad, f.Index)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5}, bad); diff != "" || report.Statements != 2 {
		t.Errorf("bad ones (-want +got), with %d good ones:\n%s\n%+v", report.Statements, diff, report.Bad)
	}
	l.must(own.Close())
}
