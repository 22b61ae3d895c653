package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

const (
	auditID = "spiffe://durward.local/audit/main"
	writer  = "spiffe://durward.local/operator/alice"
)

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// log is an audit log in memory, as honest as a test lets it be.
type log struct {
	auditv1.LogServiceClient
	t       *testing.T
	kit     *platformtest.Kit
	entries []*auditv1.Entry
	hashes  []tlog.Hash
	down    bool
	// mute makes Append durable and loses its answer.
	mute bool
	// refuses is audit's judgement of a record; nil takes everything.
	refuses func(*auditv1.Record) error
	// lie changes an answer before it goes out.
	lie func(*auditv1.AppendResponse)
	// told are the refusals of records that had waited.
	told []string
	// ahead is how far the head's last sequence is from the truth.
	ahead uint64
	// cosigned is what witnesses cosigned, at the size cosignedAt; nil: nothing.
	cosigned   []byte
	cosignedAt uint64
}

func (l *log) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = l.hashes[index]
	}
	return out, nil
}

func (l *log) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *log) size() int64 { return int64(len(l.entries)) }

func (l *log) add(record *auditv1.Record) (*callv1.Receipt, *auditv1.Placement) {
	return l.addBy(writer, record)
}

// own are the entries of the operator's.
func (l *log) own() []*auditv1.Entry {
	return slices.DeleteFunc(slices.Clone(l.entries), func(e *auditv1.Entry) bool { return e.GetWriter() != writer })
}

// addBy is add for another writer, whose next sequence it gives the record.
func (l *log) addBy(who string, record *auditv1.Record) (*callv1.Receipt, *auditv1.Placement) {
	if who != writer {
		record.Sequence = 1
		for _, e := range l.entries {
			if e.GetWriter() == who {
				record.Sequence++
			}
		}
	}
	placed := &auditv1.Placement{LoggedAt: timestamppb.New(testNow.Add(time.Duration(l.size()) * time.Second)), Salt: bytes.Repeat([]byte{byte(l.size() + 1)}, logproof.SaltSize)}
	cloned, ok := proto.Clone(record).(*auditv1.Record)
	if !ok {
		l.t.Fatal("clone")
	}
	e := &auditv1.Entry{Index: uint64(l.size()), Writer: who, Record: cloned, LoggedAt: placed.LoggedAt, Salt: placed.Salt}
	l.must(logproof.Seal(e))
	stored, err := tlog.StoredHashes(l.size(), e.Leaf, l)
	l.must(err)
	l.hashes = append(l.hashes, stored...)
	l.entries = append(l.entries, e)
	return &callv1.Receipt{Index: e.Index, LeafHash: e.LeafHash}, placed
}

func (l *log) checkpoint() []byte {
	root, err := tlog.TreeHash(l.size(), l)
	l.must(err)
	b, err := logproof.SignCheckpoint(logproof.Checkpoint{Origin: logproof.Origin(auditID), Size: uint64(l.size()), Root: root}, l.kit.LogSigner)
	l.must(err)
	return b
}

// receipt is that of a record in the whole log.
func (l *log) receipt(index uint64) *callv1.Receipt {
	path, err := tlog.ProveRecord(l.size(), int64(index), l)
	l.must(err)
	out := &callv1.Receipt{Index: index, LeafHash: l.entries[index].GetLeafHash(), Checkpoint: l.checkpoint()}
	for _, h := range path {
		out.Inclusion = append(out.Inclusion, h[:])
	}
	return out
}

func (l *log) consistency(known uint64) [][]byte { return l.between(known, uint64(l.size())) }

func (l *log) between(known, size uint64) [][]byte {
	if known == 0 || known >= size {
		return nil
	}
	hashes, err := tlog.ProveTree(int64(size), int64(known), l)
	l.must(err)
	out := make([][]byte, len(hashes))
	for i, h := range hashes {
		out[i] = h[:]
	}
	return out
}

func (l *log) GetHead(_ context.Context, in *auditv1.GetHeadRequest, _ ...grpc.CallOption) (*auditv1.GetHeadResponse, error) {
	if l.down {
		return nil, errors.New("down")
	}
	out := &auditv1.GetHeadResponse{Checkpoint: l.checkpoint(), Consistency: l.consistency(in.GetKnownSize()), LastSequence: uint64(len(l.own())) + l.ahead}
	if l.cosigned != nil {
		out.Witnessed, out.WitnessedConsistency = l.cosigned, l.consistency(l.cosignedAt)
	}
	return out, nil
}

func (l *log) GetConsistency(_ context.Context, in *auditv1.GetConsistencyRequest, _ ...grpc.CallOption) (*auditv1.GetConsistencyResponse, error) {
	return &auditv1.GetConsistencyResponse{Consistency: l.between(in.GetOldSize(), in.GetNewSize())}, nil
}

func (l *log) Append(_ context.Context, in *auditv1.AppendRequest, _ ...grpc.CallOption) (*auditv1.AppendResponse, error) {
	if l.down {
		return nil, errors.New("down")
	}
	out := &auditv1.AppendResponse{}
	own := l.own()
	for i, r := range in.GetRecords() {
		n := int(r.GetSequence())
		if n < 1 || n > len(own)+1+i || n <= len(own) && !proto.Equal(own[n-1].GetRecord(), r) {
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "the sequence is taken, or leaves a gap")
		}
	}
	if l.refuses != nil {
		for _, r := range in.GetRecords() {
			if err := l.refuses(r); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range in.GetRecords() {
		if n := int(r.GetSequence()); n <= len(own) {
			e := own[n-1]
			out.Receipts = append(out.Receipts, &callv1.Receipt{Index: e.GetIndex(), LeafHash: e.GetLeafHash()})
			out.Placements = append(out.Placements, &auditv1.Placement{LoggedAt: e.GetLoggedAt(), Salt: e.GetSalt()})
			continue
		}
		receipt, placement := l.add(r)
		out.Receipts, out.Placements = append(out.Receipts, receipt), append(out.Placements, placement)
	}
	out.Checkpoint, out.Consistency = l.checkpoint(), l.consistency(in.GetKnownSize())
	for _, r := range out.GetReceipts() {
		path, err := tlog.ProveRecord(l.size(), int64(r.GetIndex()), l)
		l.must(err)
		for _, h := range path {
			r.Inclusion = append(r.Inclusion, h[:])
		}
		r.Checkpoint = out.Checkpoint
	}
	if l.lie != nil {
		l.lie(out)
	}
	if l.mute {
		return nil, errors.New("the answer was lost")
	}
	return out, nil
}

// export is ExportLog, two entries a message.
type export struct {
	parts []*auditv1.ExportLogResponse
}

func (e *export) Recv() (*auditv1.ExportLogResponse, error) {
	if len(e.parts) == 0 {
		return nil, io.EOF
	}
	part := e.parts[0]
	e.parts = e.parts[1:]
	return part, nil
}

func (l *log) export(known uint64) *export {
	first := &auditv1.ExportLogResponse{Checkpoint: l.checkpoint(), Consistency: l.consistency(known)}
	out := &export{parts: []*auditv1.ExportLogResponse{first}}
	for i := 0; i < len(l.entries); i += 2 {
		out.parts = append(out.parts, &auditv1.ExportLogResponse{Entries: l.entries[i:min(i+2, len(l.entries))]})
	}
	return out
}

// older is an audit that knows no bodies apart.
type older struct {
	*log
	asked []*auditv1.ExportLogRequest
}

func (o *older) ExportLog(_ context.Context, in *auditv1.ExportLogRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[auditv1.ExportLogResponse], error) {
	o.asked = append(o.asked, proto.CloneOf(in))
	if in.GetBodiesApart() {
		return refusing{}, nil
	}
	return sending{export: o.export(in.GetKnownSize())}, nil
}

type refusing struct {
	grpc.ServerStreamingClient[auditv1.ExportLogResponse]
}

func (refusing) Recv() (*auditv1.ExportLogResponse, error) {
	return nil, status.Error(codes.InvalidArgument, "bodies_apart: unknown field")
}

type sending struct {
	grpc.ServerStreamingClient[auditv1.ExportLogResponse]
	*export
}

func (s sending) Recv() (*auditv1.ExportLogResponse, error) { return s.export.Recv() }

// TestFetchFromAnOlderAudit: one that refuses to send bodies apart is asked again without.
func TestFetchFromAnOlderAudit(t *testing.T) {
	o := &older{log: newLog(t)}
	for n := range uint64(3) {
		o.add(&auditv1.Record{Sequence: n + 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("a note")})
	}
	stream, err := Fetch(t.Context(), o, 0, 0)
	must(t, err)
	entries := 0
	if err := Each(stream, func([]byte, [][]byte) error { return nil }, func(logproof.Checked) error { entries++; return nil }); err != nil || entries != 3 {
		t.Errorf("%d entries, %v", entries, err)
	}
	if len(o.asked) != 2 || !o.asked[0].GetBodiesApart() || o.asked[1].GetBodiesApart() || !o.asked[1].GetBare() {
		t.Errorf("asked: %v", o.asked)
	}
}

func newLog(t *testing.T) *log {
	return &log{t: t, kit: platformtest.New(t)}
}

func (l *log) open(dir string) *Log {
	l.t.Helper()
	opened, err := Open(context.Background(), Config{
		Client: l, Audit: auditID, Writer: writer, Trust: l.kit.Trust, StateDir: dir, Now: func() time.Time { return testNow },
		OnRefused: func(r *Refusal) { l.told = append(l.told, r.Action+": "+r.Reason) },
	})
	l.must(err)
	return opened
}

func remark(text string) *auditv1.Body { return &auditv1.Body{Action: text, Summary: text} }

func TestWriteWaitsForAudit(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	l.down = true
	own := l.open(dir)
	for _, text := range []string{"one", "two"} {
		if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_CONFIG_CHANGED, "r-1", remark(text)); sent || err != nil {
			t.Fatalf("audit is down: %v, %v", sent, err)
		}
	}
	l.must(own.Close())
	l.down = false
	own = l.open(dir)
	sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "r-2", remark("three"))
	if !sent || err != nil {
		t.Fatalf("audit is up: %v, %v", sent, err)
	}
	var got []string
	for _, e := range l.entries {
		got = append(got, e.GetRecord().GetBody().GetAction())
	}
	if strings.Join(got, " ") != "one two three" {
		t.Errorf("recorded %v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, unsentFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something still waits: %v", err)
	}
	if own.Held().Size != 3 {
		t.Errorf("kept a checkpoint of %d", own.Held().Size)
	}
	l.must(own.Flush(context.Background()))
	if len(l.entries) != 3 {
		t.Error("a flush of nothing wrote something")
	}
	l.must(own.Close())
}

func TestLostAnswerIsNotWrittenTwice(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	own := l.open(dir)
	l.mute = true
	if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("one")); sent || err != nil {
		t.Fatalf("the answer was lost: %v, %v", sent, err)
	}
	l.mute = false
	if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("two")); !sent || err != nil {
		t.Fatalf("%v, %v", sent, err)
	}
	if len(l.entries) != 2 {
		t.Errorf("%d records of two writes", len(l.entries))
	}
	l.must(own.Close())
}

// TestNothingIsDroppedOnAuditsWord: only a receipt ends a record's waiting.
func TestNothingIsDroppedOnAuditsWord(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	own := l.open(dir)
	l.down = true
	if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("one")); sent || err != nil {
		t.Fatalf("audit is down: %v, %v", sent, err)
	}
	// Audit refuses what was sent, and says afterwards that it has it.
	l.down, l.ahead = false, 1
	for _, text := range []string{"two", "three"} {
		if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark(text)); sent || err != nil {
			t.Fatalf("audit's numbers leave a gap: %v, %v", sent, err)
		}
		l.ahead = 9
	}
	l.ahead = 0
	l.must(own.Flush(context.Background()))
	l.wrote("one", "two", "three")

	// What was sent and not proved waits as well.
	l.lie = func(r *auditv1.AppendResponse) { r.Placements[0].Salt = bytes.Repeat([]byte{0xff}, logproof.SaltSize) }
	if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("four")); sent || err == nil {
		t.Fatalf("an answer that proves nothing: %v, %v", sent, err)
	}
	if waiting, err := own.unsent(); err != nil || len(waiting) != 1 {
		t.Fatalf("%d records wait, %v", len(waiting), err)
	}
	l.lie = nil
	l.must(own.Flush(context.Background()))
	l.wrote("one", "two", "three", "four")
	l.must(own.Close())
}

// TestTakenNumbers: a record that was sent once and finds another under its number gets a new one.
func TestTakenNumbers(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	own := l.open(dir)
	l.must(own.keepUnsent([]*auditv1.Record{{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("mine")}}))
	l.add(&auditv1.Record{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("from elsewhere")})
	if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("next")); !sent || err != nil {
		t.Fatalf("%v, %v", sent, err)
	}
	l.wrote("from elsewhere", "mine", "next")
	l.must(own.Close())
}

// wrote checks what the operator's records are, in order.
func (l *log) wrote(want ...string) {
	l.t.Helper()
	var got []string
	for _, e := range l.own() {
		got = append(got, e.GetRecord().GetBody().GetAction())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		l.t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

func TestWriteBelievesOnlyProofs(t *testing.T) {
	for name, lie := range map[string]func(*auditv1.AppendResponse){
		"another record's receipt": func(r *auditv1.AppendResponse) { r.Placements[0].Salt[0] ^= 1 },
		"no receipt":               func(r *auditv1.AppendResponse) { r.Receipts, r.Placements = nil, nil },
		"a path that leads elsewhere": func(r *auditv1.AppendResponse) {
			r.Receipts[0].Inclusion = append(r.Receipts[0].Inclusion, make([]byte, 32))
		},
		"an unsigned checkpoint": func(r *auditv1.AppendResponse) { r.Checkpoint = []byte("durward.local/audit/main\n1\nx\n\n") },
	} {
		l, dir := newLog(t), t.TempDir()
		l.add(&auditv1.Record{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow)})
		l.lie = lie
		own := l.open(dir)
		if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("x")); sent || err == nil {
			t.Errorf("%s: %v, %v", name, sent, err)
		}
		l.must(own.Close())
	}
}

// TestWriteSaysThatTheLogWasReplaced: that is no audit that is away, though the record waits as then.
func TestWriteSaysThatTheLogWasReplaced(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	own := l.open(dir)
	for i := range 3 {
		if _, err := own.Write(t.Context(), auditv1.Kind_KIND_NOTE, "", remark(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	l.must(own.Close())
	shorter := &log{t: t, kit: l.kit}
	shorter.add(l.entries[0].GetRecord())
	own = shorter.open(dir)
	if sent, err := own.Write(t.Context(), auditv1.Kind_KIND_NOTE, "", remark("mine")); sent || !errors.Is(err, logproof.ErrRollback) {
		t.Errorf("%v, %v", sent, err)
	}
	if waiting, err := own.unsent(); err != nil || len(waiting) != 1 {
		t.Errorf("%d records wait, %v", len(waiting), err)
	}
	l.must(own.Close())
}

// TestUnsentIsBounded: what waits is never more than one append takes, and what was sent no longer waits, or that is said.
func TestUnsentIsBounded(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	own := l.open(dir)
	l.down = true
	l.must(own.keepUnsent(slices.Repeat([]*auditv1.Record{{Kind: auditv1.Kind_KIND_NOTE, Body: remark("earlier")}}, maxUnsent)))
	if sent, err := own.Write(t.Context(), auditv1.Kind_KIND_NOTE, "", remark("one more")); sent || err == nil || !strings.Contains(err.Error(), "too many changes wait") {
		t.Errorf("%v, %v", sent, err)
	}
	if waiting, err := own.unsent(); err != nil || len(waiting) != maxUnsent {
		t.Errorf("%d records wait, %v", len(waiting), err)
	}
	path := filepath.Join(dir, unsentFile)
	l.must(os.Remove(path))
	l.must(os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	if err := own.keepUnsent(nil); err == nil {
		t.Error("what cannot be removed is said to be gone")
	}
	l.must(own.Close())
}

func TestRollbackIsSeen(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	own := l.open(dir)
	for i := range 3 {
		if _, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	l.must(own.Close())

	shorter := &log{t: t, kit: l.kit}
	shorter.add(l.entries[0].GetRecord())
	own = shorter.open(dir)
	if _, err := own.Keep(context.Background()); !errors.Is(err, logproof.ErrRollback) {
		t.Errorf("a log that was cut back: %v", err)
	}
	for i := range 5 {
		shorter.add(&auditv1.Record{Sequence: uint64(i + 2), Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("other")})
	}
	if _, err := own.Keep(context.Background()); !errors.Is(err, logproof.ErrFork) {
		t.Errorf("a log that was rewritten: %v", err)
	}
	if _, err := own.Verify(context.Background(), shorter.export(3), own.Verifier()); !errors.Is(err, logproof.ErrFork) {
		t.Errorf("a log that was rewritten, exported: %v", err)
	}
	l.must(own.Close())
}

// What a process has seen of the log is held against audit's: the sentence has both sizes.
func TestExtends(t *testing.T) {
	l := newLog(t)
	grow := func(l *log, n int, word string) {
		for range n {
			l.add(&auditv1.Record{Sequence: uint64(l.size()) + 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark(word)})
		}
	}
	open := func(b []byte) (logproof.Checkpoint, error) {
		return logproof.OpenCheckpoint(b, l.kit.Trust.Current().LogKeys)
	}
	grow(l, 5, "x")
	kept, err := open(l.checkpoint())
	l.must(err)
	seen := Seen{By: "the vault", Checkpoint: kept}
	shorter, other, stranger := &log{t: t, kit: l.kit}, &log{t: t, kit: l.kit}, newLog(t)
	grow(shorter, 3, "x")
	grow(other, 7, "other")
	grow(stranger, 7, "x")
	grow(l, 2, "y")
	for _, c := range []struct {
		log  *log
		want string
	}{
		{l, "<nil>"},
		{shorter, "the log was put back: it has 3 records, and the vault has seen 5"},
		{other, "the log was replaced: its 7 records do not go on from the 5 that the vault has seen"},
		{stranger, "audit shows a log that no key in the trust folder's log_keys signed"},
	} {
		if err := Extends(t.Context(), c.log, c.log, open, seen); fmt.Sprint(err) != c.want || err != nil && !errors.As(err, new(*Altered)) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	// Audit that keeps two histories shows each of them to who has seen something of it.
	begun, err := open(shorter.checkpoint())
	l.must(err)
	late, err := open(other.checkpoint())
	l.must(err)
	forked := &twoHistories{log: l, other: other, known: late.Size}
	grow(l, 1, "z")
	err = Extends(t.Context(), forked, forked, open, seen, Seen{By: "egress", Checkpoint: late})
	if want := "the log was replaced: its 7 records do not go on from the 5 that the vault has seen"; fmt.Sprint(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := Extends(t.Context(), l, l, open, Seen{By: "the executor", Checkpoint: begun}, seen, Seen{By: "this program"}); err != nil {
		t.Errorf("what three have seen: %v", err)
	}
	l.down = true
	if err := Extends(t.Context(), l, l, open, seen); err == nil || errors.As(err, new(*Altered)) {
		t.Errorf("no answer: %v", err)
	}
}

// twoHistories is an audit that shows another log to who has seen the other one, which is of that size.
type twoHistories struct {
	*log
	other *log
	known uint64
}

func (h *twoHistories) GetHead(ctx context.Context, in *auditv1.GetHeadRequest, opts ...grpc.CallOption) (*auditv1.GetHeadResponse, error) {
	if in.GetKnownSize() == h.known {
		return h.other.GetHead(ctx, in, opts...)
	}
	return h.log.GetHead(ctx, in, opts...)
}

func (h *twoHistories) GetConsistency(ctx context.Context, in *auditv1.GetConsistencyRequest, opts ...grpc.CallOption) (*auditv1.GetConsistencyResponse, error) {
	if in.GetOldSize() == h.known {
		return h.other.GetConsistency(ctx, in, opts...)
	}
	return h.log.GetConsistency(ctx, in, opts...)
}

// signed is an approval's record with a real signature.
func (l *log) signed(operation string) *auditv1.Record {
	arguments := []byte(`{"service_id":"demo"}`)
	sum := canonical.Digest(arguments)
	digest := canonical.FormatDigest(sum[:])
	st := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindApprove, ID: strings.Repeat("a", 32), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(testNow), NotBefore: statement.FormatTime(testNow), ExpiresAt: statement.FormatTime(testNow.Add(time.Minute)),
		Epoch: 1, Audience: "spiffe://durward.local/executor/local", Principal: "p", Session: "s-1", Channel: "cli", Operation: strings.Repeat("b", 32),
		Tool: &statement.Tool{Name: "start_service", Source: "native", DefinitionDigest: digest}, Tier: "WRITE",
		Arguments: arguments, ArgumentsDigest: digest, SubjectDigest: digest, Uses: 1,
	}
	evidence, err := statement.Sign(st, l.kit.OperatorSigner)
	l.must(err)
	return &auditv1.Record{Sequence: uint64(l.size()) + 1, Kind: auditv1.Kind_KIND_APPROVED, Time: timestamppb.New(testNow), OperationId: operation,
		Tier: optionsv1.Tier_TIER_WRITE, Body: &auditv1.Body{Statement: evidence}}
}

func TestVerifyRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*log)
		want   string
	}{
		{"a body that was changed", func(l *log) { l.entries[1].Record.Body.Summary = "nothing happened" }, "committed"},
		{"a header that was changed", func(l *log) { l.entries[1].Record.Tool = "gpu_status" }, "header"},
		{"an entry that was taken out", func(l *log) { l.entries = append(l.entries[:1], l.entries[2:]...) }, "index 2 where 1"},
		{"a tail that was cut off", func(l *log) { l.entries = l.entries[:len(l.entries)-1] }, "do not add up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLog(t)
			for i := range 5 {
				l.add(&auditv1.Record{Sequence: uint64(i + 1), Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("x")})
			}
			head := l.checkpoint()
			c.change(l)
			own := l.open(t.TempDir())
			stream := &export{parts: []*auditv1.ExportLogResponse{{Checkpoint: head, Entries: l.entries}}}
			report, err := own.Verify(context.Background(), stream, own.Verifier())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v; want an error with %q", report, err, c.want)
			}
			if own.Held().Size != 0 {
				t.Error("the checkpoint of a log that does not stand was kept")
			}
			l.must(own.Close())
		})
	}
}

// TestBadStatements: a statement that does not stand is reported, and the log is proved all the same. Where a writer has
// none to give it means nothing.
func TestBadStatements(t *testing.T) {
	const vault, executor, gateway = "spiffe://durward.local/vault/main", "spiffe://durward.local/executor/local", "spiffe://durward.local/gateway/main"
	l := newLog(t)
	operation := strings.Repeat("b", 32)
	unsigned := func(kind auditv1.Kind) *auditv1.Record {
		r := l.signed(operation)
		r.Kind, r.Body.Statement.Signature = kind, []byte("-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n")
		return r
	}
	l.addBy(gateway, unsigned(auditv1.Kind_KIND_REFUSED))
	l.addBy(gateway, unsigned(auditv1.Kind_KIND_APPROVED)) // as an audit that took anything would
	l.addBy(executor, unsigned(auditv1.Kind_KIND_OUTCOME))
	l.addBy("nobody", unsigned(auditv1.Kind_KIND_APPROVED))
	l.addBy(vault, l.signed(operation))
	want := []Finding{{5, vault, "signature"}, {6, executor, "signature"}, {7, vault, "another operation"}}
	l.addBy(vault, unsigned(auditv1.Kind_KIND_APPROVED))
	changed := l.signed(operation)
	changed.Kind = auditv1.Kind_KIND_INTENT
	changed.Body.Statement.Statement = bytes.Replace(changed.Body.Statement.Statement, []byte("demo"), []byte("evil"), 1)
	l.addBy(executor, changed)
	l.addBy(vault, l.signed(strings.Repeat("c", 32)))

	own := l.open(t.TempDir())
	report, err := own.Verify(context.Background(), l.export(0), own.Verifier())
	if err != nil {
		t.Fatalf("the log is whole: %v", err)
	}
	if report.Records != 8 || report.Statements != 1 || report.BadStatements != 3 || own.Held().Size != 8 {
		t.Errorf("report %+v, held %d", report, own.Held().Size)
	}
	for i, bad := range report.Bad {
		if i < len(want) && strings.Contains(bad.Problem, want[i].Problem) {
			report.Bad[i].Problem = want[i].Problem
		}
	}
	if diff := cmp.Diff(want, report.Bad); diff != "" {
		t.Errorf("bad statements (-want +got):\n%s", diff)
	}

	for range 2 * maxFindings {
		l.addBy(vault, unsigned(auditv1.Kind_KIND_RESUMED))
	}
	report, err = own.Verify(context.Background(), l.export(8), own.Verifier())
	if err != nil || report.BadStatements != 3+2*maxFindings || len(report.Bad) != maxFindings {
		t.Errorf("%d bad ones, %d listed, %v", report.BadStatements, len(report.Bad), err)
	}
	l.must(own.Close())
}

// TestUnknownSigners: a statement is counted once, in however many records it stands, and so it is once its signer is no operator any more.
func TestUnknownSigners(t *testing.T) {
	l := newLog(t)
	approved := l.signed(strings.Repeat("b", 32))
	l.addBy("spiffe://durward.local/vault/main", approved)
	intent := proto.CloneOf(approved)
	intent.Kind = auditv1.Kind_KIND_INTENT
	l.addBy("spiffe://durward.local/executor/local", intent)
	for unjudged, roots := range []*trust.Snapshot{l.kit.Trust.Current(), {LogKeys: l.kit.Trust.Current().LogKeys}} {
		own := l.open(t.TempDir())
		report, err := own.Verify(context.Background(), l.export(0), NewVerifier(roots))
		if err != nil || report.Statements != 1 || report.Unjudged != unjudged || report.BadStatements != 0 {
			t.Errorf("%d are of unknown signers: %+v, %v", unjudged, report, err)
		}
		l.must(own.Close())
	}
}

func TestVerify(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	for i := range 6 {
		l.add(&auditv1.Record{Sequence: uint64(i + 1), Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("x")})
	}
	own := l.open(dir)
	if _, err := own.Keep(context.Background()); err != nil {
		t.Fatal(err)
	}
	l.must(own.Close())
	l.addBy("spiffe://durward.local/vault/main", l.signed(strings.Repeat("b", 32)))
	// A body is taken away with its salt: the tree stays provable, and the record is named.
	l.entries[2].Record.Body, l.entries[2].Salt = nil, nil

	own = l.open(dir)
	report, err := own.Verify(context.Background(), l.export(6), own.Verifier())
	must(t, err)
	if report.Records != 7 || report.Statements != 1 || report.Unjudged != 0 || report.MissingBodies != 1 || len(report.Missing) != 1 || report.Missing[0].Index != 2 || report.KeptSize != 6 || len(report.Root) != 64 {
		t.Errorf("report %+v", report)
	}
	if !strings.HasPrefix(report.SignedBy, "durward.local/audit/main+") || own.Held().Size != 7 {
		t.Errorf("report %+v, held %d", report, own.Held().Size)
	}
	l.must(own.Close())

	// The same as a file, offline.
	var file bytes.Buffer
	l.must(WriteHead(&file, l.checkpoint()))
	for _, e := range l.entries {
		l.must(WriteEntry(&file, e))
	}
	again, err := VerifyFile(bytes.NewReader(file.Bytes()), NewVerifier(l.kit.Trust.Current()))
	if err != nil || again.Root != report.Root || again.Records != 7 || again.MissingBodies != 1 {
		t.Errorf("offline: %+v, %v", again, err)
	}
	lines := bytes.SplitAfter(file.Bytes(), []byte("\n"))
	if report, err := VerifyFile(bytes.NewReader(nil), NewVerifier(l.kit.Trust.Current())); err == nil || err.Error() != "the log holds no checkpoint" {
		t.Errorf("an empty file: %+v, %v", report, err)
	}
	for name, content := range map[string][]byte{
		"no checkpoint":  bytes.Join(lines[1:], nil),
		"a line missing": bytes.Join(slices.Delete(slices.Clone(lines), 3, 4), nil),
		"garbage":        append(bytes.Clone(file.Bytes()), []byte("x\n")...),
	} {
		if report, err := VerifyFile(bytes.NewReader(content), NewVerifier(l.kit.Trust.Current())); err == nil {
			t.Errorf("%s: %+v", name, report)
		}
	}
}
