package history

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/logproof"
)

// polled is a log of one request that led to an operation, at whose state its client then looked, over and over. It answers in pages.
type polled struct {
	auditv1.HistoryServiceClient
	entries []*auditv1.Entry
	page    int
}

func (p *polled) SearchRecords(_ context.Context, q *auditv1.SearchRecordsRequest, _ ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	out := &auditv1.SearchRecordsResponse{}
	for _, e := range slices.Backward(p.entries) {
		r := e.GetRecord()
		if q.GetBefore() > 0 && e.GetIndex() >= q.GetBefore() || q.GetRequestId() != "" && q.GetRequestId() != r.GetRequestId() || q.GetOperationId() != "" && q.GetOperationId() != r.GetOperationId() {
			continue
		}
		if len(out.Entries) == p.page {
			out.NextBefore = out.Entries[p.page-1].GetIndex()
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// TestLongStory: a client that looks at its operation often does not hide who approved it, and what was done.
func TestLongStory(t *testing.T) {
	const operation = "0123456789abcdef0123456789abcdef"
	log := &polled{page: 7}
	for i := range uint64(50) {
		r := &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: "r-2", OperationId: operation}
		switch i {
		case 0:
			r.Kind, r.RequestId = auditv1.Kind_KIND_ASKED, "r-1"
		case 1:
			r.Kind, r.Body = auditv1.Kind_KIND_APPROVED, &auditv1.Body{Statement: &callv1.HumanStatement{Statement: []byte("{}")}}
		case 10:
			r.OperationId = "another"
		}
		log.entries = append(log.entries, &auditv1.Entry{Index: i, Writer: "spiffe://durward.local/vault/main", Record: r})
	}
	for _, id := range []string{operation, "r-1"} {
		got, err := Story(t.Context(), log, id)
		if err != nil || len(got) != 49 || got[0].GetRecord().GetKind() != auditv1.Kind_KIND_ASKED || len(Signed(got)) != 1 {
			t.Errorf("%s: %d records, %v", id, len(got), err)
		}
	}
}

// astray is an audit that answers with all that it has, whatever was asked for.
type astray struct{ polled }

func (a *astray) SearchRecords(ctx context.Context, _ *auditv1.SearchRecordsRequest, _ ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	return a.polled.SearchRecords(ctx, &auditv1.SearchRecordsRequest{})
}

// TestAnotherStory: audit tells no other story than the one that was asked for.
func TestAnotherStory(t *testing.T) {
	const operation = "0123456789abcdef0123456789abcdef"
	log := &astray{polled{page: 1000, entries: []*auditv1.Entry{
		{Index: 1, Record: &auditv1.Record{OperationId: "ffffffffffffffffffffffffffffffff", RequestId: "r-1"}},
		{Index: 2, Record: &auditv1.Record{OperationId: operation, RequestId: "r-2"}},
	}}}
	for _, id := range []string{operation, "r-2"} {
		if got, err := Story(t.Context(), log, id); err == nil {
			t.Errorf("%s: %v", id, got)
		}
	}
}

// proving is an audit that answers for each record with its receipt.
type proving struct {
	auditv1.HistoryServiceClient
	log *log
}

func (p proving) GetRecord(_ context.Context, r *auditv1.GetRecordRequest, _ ...grpc.CallOption) (*auditv1.GetRecordResponse, error) {
	return &auditv1.GetRecordResponse{Entry: p.log.entries[r.GetIndex()], Receipt: p.log.receipt(r.GetIndex())}, nil
}

// TestAStoryIsProved: what audit tells and its log does not hold so is no part of a story.
func TestAStoryIsProved(t *testing.T) {
	l := newLog(t)
	for range 3 {
		l.addBy(vaultID, &auditv1.Record{Kind: auditv1.Kind_KIND_APPROVED, Time: timestamppb.New(testNow), Body: remark("x")})
	}
	other := newLog(t) // another history, with the same key
	for range 3 {
		other.addBy(vaultID, &auditv1.Record{Kind: auditv1.Kind_KIND_APPROVED, Time: timestamppb.New(testNow), Body: remark("y")})
	}
	changed := proto.CloneOf(l.entries[1])
	changed.Record.Body.Summary = "nothing"
	bodiless := proto.CloneOf(l.entries[1])
	bodiless.Record.Body, bodiless.Salt = nil, nil
	for name, c := range map[string]struct {
		told *auditv1.Entry
		want error
	}{
		"as it is":             {l.entries[1], nil},
		"without its body":     {bodiless, nil},
		"changed":              {changed, logproof.ErrEntry},
		"another in its place": {other.entries[1], logproof.ErrInclusion},
	} {
		if err := ProveStory(t.Context(), proving{log: l}, []*auditv1.Entry{l.entries[0], c.told, l.entries[2]}, l.kit.Trust.Current().LogKeys); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	stranger := newLog(t).kit.Trust.Current().LogKeys
	if err := ProveStory(t.Context(), proving{log: l}, l.entries, stranger); !errors.Is(err, logproof.ErrInclusion) {
		t.Errorf("by another key: %v", err)
	}
}

func TestSignedEntries(t *testing.T) {
	entry := func(index uint64, writer string, kind auditv1.Kind) *auditv1.Entry {
		return &auditv1.Entry{Index: index, Writer: "spiffe://durward.local/" + writer, Record: &auditv1.Record{Kind: kind,
			Body: &auditv1.Body{Statement: &callv1.HumanStatement{Statement: []byte("{}")}}}}
	}
	bare := entry(4, "vault/main", auditv1.Kind_KIND_APPROVED)
	bare.Record.Body = nil
	var got []uint64
	for _, e := range Signed([]*auditv1.Entry{
		entry(0, "gateway/main", auditv1.Kind_KIND_REFUSED), entry(1, "gateway/main", auditv1.Kind_KIND_APPROVED),
		entry(2, "executor/local", auditv1.Kind_KIND_INTENT), entry(3, "executor/local", auditv1.Kind_KIND_OUTCOME), bare,
		entry(5, "vault/main", auditv1.Kind_KIND_APPROVED),
	}) {
		got = append(got, e.GetIndex())
	}
	if want := []uint64{5, 2}; !slices.Equal(got, want) {
		t.Errorf("signed: %v, want %v", got, want)
	}
}
