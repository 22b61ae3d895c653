package history

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/logproof"
)

// notes is a log of three records, and the receipt of each.
func notes(t *testing.T) (*log, []*callv1.Receipt) {
	t.Helper()
	l := newLog(t)
	answer, err := l.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{
		{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("one")},
		{Sequence: 2, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("two")},
		{Sequence: 3, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("three")},
	}})
	l.must(err)
	return l, answer.GetReceipts()
}

func TestProveReceiptRefuses(t *testing.T) {
	l, receipts := notes(t)
	whole := func(e *auditv1.Entry, r *callv1.Receipt) string {
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&auditv1.GetRecordResponse{Entry: e, Receipt: r})
		l.must(err)
		return string(b)
	}
	changed := proto.CloneOf(l.entries[1])
	changed.Record.Body.Summary = "nothing"
	alone, err := json.Marshal(logproof.NewReceipt(receipts[1]))
	l.must(err)
	for _, tc := range []struct {
		name, file string
		want       error
		said       string
	}{
		{"not JSON", "x", logproof.ErrReceipt, ""},
		{"a list", "[" + string(alone) + "]", logproof.ErrReceipt, "it is no JSON object"},
		{"null", "null", logproof.ErrReceipt, "it is no JSON object"},
		{"a record without a receipt", whole(l.entries[1], nil), logproof.ErrReceipt, "it is no record with its receipt"},
		{"a record that is none", `{"entry":7,"receipt":` + string(alone) + `}`, logproof.ErrReceipt, "it is no record with its receipt"},
		{"no record with a receipt", strings.Replace(whole(nil, receipts[1]), "{", `{"entry":null,`, 1), logproof.ErrReceipt, "it is no record with its receipt"},
		{"a record that was changed", whole(changed, receipts[1]), logproof.ErrEntry, ""},
		{"another record's receipt", whole(l.entries[1], receipts[2]), logproof.ErrInclusion, "the receipt is another record's"},
		{"a result of nothing that was recorded", `{"result":{"_meta":{"other":1}}}`, logproof.ErrReceipt, "nothing was recorded under it"},
		{"a result that is none", `{"result":7}`, logproof.ErrReceipt, "its result is no JSON object"},
		{"meta that is none", `{"_meta":7}`, logproof.ErrReceipt, "nothing was recorded under it"},
		{"a receipt that was changed", strings.Replace(string(alone), `"index":1`, `"index":2`, 1), logproof.ErrInclusion, ""},
		{"a stranger's log", string(alone), logproof.ErrSignature, ""},
	} {
		keys := l.kit.Trust.Current().LogKeys
		if tc.name == "a stranger's log" {
			keys = newLog(t).kit.Trust.Current().LogKeys
		}
		if p, err := ProveReceipt([]byte(tc.file), keys, logproof.Witnesses{}, testNow); !errors.Is(err, tc.want) || !strings.Contains(fmt.Sprint(err), tc.said) {
			t.Errorf("%s: %+v, %v, want %q", tc.name, p, err, tc.said)
		}
	}
	for name, file := range map[string]string{
		"alone": string(alone), "with its record": whole(l.entries[1], receipts[1]),
		"in a result": `{"_meta":{"` + logproof.MetaReceipt + `":` + string(alone) + `}}`,
	} {
		if p, err := ProveReceipt([]byte(file), l.kit.Trust.Current().LogKeys, logproof.Witnesses{}, testNow); err != nil || p.Receipt.GetIndex() != 1 || p.Checkpoint.Size != 3 || (p.Entry != nil) != (name == "with its record") {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

// archive is an audit that answers each question for a record with the same.
type archive struct {
	auditv1.HistoryServiceClient
	answer *auditv1.GetRecordResponse
}

func (a archive) GetRecord(context.Context, *auditv1.GetRecordRequest, ...grpc.CallOption) (*auditv1.GetRecordResponse, error) {
	return a.answer, nil
}

func TestRecordBelievesOnlyProofs(t *testing.T) {
	l, receipts := notes(t)
	changed := proto.CloneOf(l.entries[1])
	changed.Record.Body.Summary = "nothing"
	longer := proto.CloneOf(receipts[1])
	longer.Inclusion = append(longer.Inclusion, bytes.Repeat([]byte{1}, 32))
	keys := l.kit.Trust.Current().LogKeys
	for _, tc := range []struct {
		name    string
		entry   *auditv1.Entry
		receipt *callv1.Receipt
		want    error
	}{
		{"another record with its receipt", l.entries[2], receipts[2], logproof.ErrInclusion},
		{"another record's receipt", l.entries[1], receipts[2], logproof.ErrInclusion},
		{"no record", nil, receipts[1], logproof.ErrInclusion},
		{"no receipt", l.entries[1], nil, logproof.ErrInclusion},
		{"a record that was changed", changed, receipts[1], logproof.ErrEntry},
		{"a path that leads elsewhere", l.entries[1], longer, logproof.ErrInclusion},
		{"as it is", l.entries[1], receipts[1], nil},
	} {
		_, at, err := Record(t.Context(), archive{answer: &auditv1.GetRecordResponse{Entry: tc.entry, Receipt: tc.receipt}}, 1, keys)
		if !errors.Is(err, tc.want) || (at.Size == 3) != (tc.want == nil) {
			t.Errorf("%s: %v, %v, want %v", tc.name, at, err, tc.want)
		}
	}
}
