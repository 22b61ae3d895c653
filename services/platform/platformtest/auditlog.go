package platformtest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/redaction"
)

// AuditLog is the client of a log in memory that has one writer, true checkpoints and true proofs, and the manners that a
// test gives it. It needs no network, so that it works in a synctest bubble. Its exported fields are changed within Set.
type AuditLog struct {
	origin, writer string
	signer         note.Signer
	keys           []note.Verifier

	mu      sync.Mutex
	appends int
	// Entries is the log, and Hashes its tree as tlog stores it.
	Entries []*auditv1.Entry
	Hashes  []tlog.Hash
	// Down refuses; Hang accepts and never answers; Deaf commits and never answers.
	Down, Hang, Deaf bool
	// Refuse makes it refuse records for good.
	Refuse func(*auditv1.Record) bool
	// Finds names the field of a record that holds a credential by rules which its writer does not have; "" for none.
	Finds func(*auditv1.Record) string
	// Spoil alters answers.
	Spoil func(*auditv1.AppendResponse)
	// Delay is how long an answer takes.
	Delay time.Duration
}

// NewAuditLog returns an empty log with a key of its own. The writer is a SPIFFE ID.
func NewAuditLog(t testing.TB, origin, writer string) *AuditLog {
	t.Helper()
	secret, public, err := note.GenerateKey(nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	a := &AuditLog{origin: origin, writer: writer}
	if a.signer, err = note.NewSigner(secret); err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(public)
	if err != nil {
		t.Fatal(err)
	}
	a.keys = []note.Verifier{v}
	return a
}

// Keys returns what verifies the log's checkpoints.
func (a *AuditLog) Keys() []note.Verifier { return a.keys }

// ReadHashes implements tlog.HashReader for the log itself.
func (a *AuditLog) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = a.Hashes[index]
	}
	return out, nil
}

// Set changes the log's fields.
func (a *AuditLog) Set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// meet waits out what the test's manners ask for.
func (a *AuditLog) meet(ctx context.Context) error {
	a.mu.Lock()
	down, hang, delay := a.Down, a.Hang, a.Delay
	a.mu.Unlock()
	if down {
		return fault.New(callv1.Code_CODE_UNAVAILABLE, "a process of Durward cannot be reached")
	}
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(delay) // how long audit takes is what a test asks for
	return nil
}

func (a *AuditLog) head(known uint64) ([]byte, [][]byte, error) {
	size := int64(len(a.Entries))
	root, err := tlog.TreeHash(size, a)
	if err != nil {
		return nil, nil, err
	}
	signed, err := logproof.SignCheckpoint(logproof.Checkpoint{Origin: a.origin, Size: uint64(size), Root: root}, a.signer)
	if err != nil || known == 0 || int64(known) >= size {
		return signed, nil, err
	}
	proof, err := tlog.ProveTree(size, int64(known), a)
	return signed, raw(proof), err
}

func raw(hashes []tlog.Hash) [][]byte {
	var out [][]byte
	for i := range hashes {
		out = append(out, hashes[i][:])
	}
	return out
}

func (a *AuditLog) last() uint64 {
	if n := len(a.Entries); n > 0 {
		return a.Entries[n-1].GetRecord().GetSequence()
	}
	return 0
}

// GetHead implements auditv1.LogServiceClient.
func (a *AuditLog) GetHead(ctx context.Context, req *auditv1.GetHeadRequest, _ ...grpc.CallOption) (*auditv1.GetHeadResponse, error) {
	if err := a.meet(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	signed, proof, err := a.head(req.GetKnownSize())
	return &auditv1.GetHeadResponse{Checkpoint: signed, Consistency: proof, LastSequence: a.last()}, err
}

// GetLast implements auditv1.LogServiceClient.
func (a *AuditLog) GetLast(ctx context.Context, req *auditv1.GetLastRequest, _ ...grpc.CallOption) (*auditv1.GetLastResponse, error) {
	if err := a.meet(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range slices.Backward(a.Entries) {
		if r := e.GetRecord(); r.GetKind() == req.GetKind() && (req.GetOperationId() == "" || r.GetOperationId() == req.GetOperationId()) {
			return &auditv1.GetLastResponse{Entry: e}, nil
		}
	}
	return &auditv1.GetLastResponse{}, nil
}

// Append implements auditv1.LogServiceClient.
func (a *AuditLog) Append(ctx context.Context, req *auditv1.AppendRequest, _ ...grpc.CallOption) (*auditv1.AppendResponse, error) {
	a.Set(func() { a.appends++ })
	if err := a.meet(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.last() + 1
	for _, r := range req.GetRecords() {
		switch {
		case a.Refuse != nil && a.Refuse(r):
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "this process does not write records of that kind")
		case a.Finds != nil && a.Finds(r) != "":
			return nil, redaction.Refusal(a.Finds(r))
		case r.GetSequence() == next:
			next++
		case r.GetSequence() > next:
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "the next sequence is another")
		case r.GetSequence() <= a.last() && !proto.Equal(r, a.Entries[r.GetSequence()-1].GetRecord()):
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "another record has the sequence")
		}
	}
	out := &auditv1.AppendResponse{}
	var placed []*auditv1.Entry
	now := timestamppb.Now()
	for _, r := range req.GetRecords() {
		if r.GetSequence() > a.last() {
			e := &auditv1.Entry{
				Index: uint64(len(a.Entries)), Writer: a.writer, Record: proto.CloneOf(r),
				LoggedAt: now, Salt: make([]byte, logproof.SaltSize),
			}
			if err := logproof.Seal(e); err != nil {
				return nil, err
			}
			hashes, err := tlog.StoredHashesForRecordHash(int64(len(a.Entries)), tlog.Hash(e.GetLeafHash()), a)
			if err != nil {
				return nil, err
			}
			a.Hashes, a.Entries = append(a.Hashes, hashes...), append(a.Entries, e)
		}
		placed = append(placed, a.Entries[r.GetSequence()-1])
	}
	var err error
	if out.Checkpoint, out.Consistency, err = a.head(req.GetKnownSize()); err != nil {
		return nil, err
	}
	if together := req.GetTogether() && placed[0].GetLoggedAt().AsTime().Equal(now.AsTime()); together {
		out.Run = &auditv1.Run{FirstIndex: placed[0].GetIndex(), LoggedAt: now}
		end := out.Run.FirstIndex + uint64(len(placed))
		for _, s := range append(logproof.Cover(0, out.Run.FirstIndex), logproof.Cover(end, uint64(len(a.Entries)))...) {
			out.Run.Subtrees = append(out.Run.Subtrees, a.Hashes[tlog.StoredHashIndex(s.Level, int64(s.Number))][:])
		}
	}
	for _, e := range placed {
		if out.Run != nil {
			out.Run.Salts = append(out.Run.Salts, e.GetSalt()...)
			continue
		}
		proof, err := tlog.ProveRecord(int64(len(a.Entries)), int64(e.GetIndex()), a)
		if err != nil {
			return nil, err
		}
		out.Receipts = append(out.Receipts, &callv1.Receipt{Index: e.GetIndex(), Checkpoint: out.GetCheckpoint(), LeafHash: e.GetLeafHash(), Inclusion: raw(proof)})
		out.Placements = append(out.Placements, &auditv1.Placement{LoggedAt: e.GetLoggedAt(), Salt: bytes.Clone(e.GetSalt())})
	}
	if a.Deaf {
		a.mu.Unlock()
		<-ctx.Done()
		a.mu.Lock()
		return nil, ctx.Err()
	}
	if a.Spoil != nil {
		a.Spoil(out)
	}
	return out, nil
}

// Size is how many entries the log holds.
func (a *AuditLog) Size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.Entries)
}

// Requests is how many Append requests came, whatever became of them.
func (a *AuditLog) Requests() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.appends
}

// RequestID is that of an entry's record.
func (a *AuditLog) RequestID(index int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Entries[index].GetRecord().GetRequestId()
}

// Holds checks that the log's records are exactly these, by request id, numbered without gaps.
func (a *AuditLog) Holds(t testing.TB, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var got []string
	for i, e := range a.Entries {
		if e.GetRecord().GetSequence() != uint64(i)+1 {
			t.Errorf("entry %d has the sequence %d", i, e.GetRecord().GetSequence())
		}
		got = append(got, e.GetRecord().GetRequestId())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the log holds %v, want %v", got, want)
	}
}
