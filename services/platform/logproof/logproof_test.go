package logproof_test

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/logproof"
)

//go:embed testdata/log.json
var vectors []byte

var update = flag.Bool("update", false, "write testdata/log.json anew; a change of the formats is a change of every log")

const origin = "durward.local/audit/main"

// signer is deterministic: Ed25519 from the seed 00 01 … 1f.
func signer(t testing.TB, name string) (note.Signer, note.Verifier) {
	t.Helper()
	secret, public, err := note.GenerateKey(bytes.NewReader(seed()), name)
	must(t, err)
	s, err := note.NewSigner(secret)
	must(t, err)
	v, err := note.NewVerifier(public)
	must(t, err)
	return s, v
}

func seed() []byte {
	b := make([]byte, 32)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// fixture builds a log of a few entries, deterministically.
type fixture struct {
	signer   note.Signer
	keys     []note.Verifier
	entries  []*auditv1.Entry
	hashes   []tlog.Hash
	previous []logproof.Checkpoint
}

func (f *fixture) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = f.hashes[index]
	}
	return out, nil
}

func newFixture(t testing.TB, records ...*auditv1.Record) *fixture {
	t.Helper()
	f := &fixture{}
	s, v := signer(t, origin)
	f.signer, f.keys = s, []note.Verifier{v}
	for _, r := range records {
		f.add(t, r)
	}
	return f
}

func (f *fixture) add(t testing.TB, r *auditv1.Record) *auditv1.Entry {
	t.Helper()
	n := len(f.entries)
	e := &auditv1.Entry{
		Index: uint64(n), Writer: "spiffe://durward.local/executor/local", Record: r,
		LoggedAt: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5+n, 7, time.UTC)), Salt: bytes.Repeat([]byte{byte(n + 1)}, logproof.SaltSize),
	}
	must(t, logproof.Seal(e))
	hashes, err := tlog.StoredHashesForRecordHash(int64(n), tlog.Hash(e.GetLeafHash()), f)
	must(t, err)
	f.hashes = append(f.hashes, hashes...)
	f.entries = append(f.entries, e)
	f.previous = append(f.previous, f.checkpoint(t, len(f.entries)))
	return e
}

func (f *fixture) checkpoint(t testing.TB, size int) logproof.Checkpoint {
	t.Helper()
	root, err := tlog.TreeHash(int64(size), f)
	must(t, err)
	return logproof.Checkpoint{Origin: origin, Size: uint64(size), Root: root}
}

func (f *fixture) signed(t testing.TB, size int) []byte {
	t.Helper()
	b, err := logproof.SignCheckpoint(f.checkpoint(t, size), f.signer)
	must(t, err)
	return b
}

func (f *fixture) receipt(t testing.TB, size, index int) *callv1.Receipt {
	t.Helper()
	proof, err := tlog.ProveRecord(int64(size), int64(index), f)
	must(t, err)
	return &callv1.Receipt{Index: uint64(index), Checkpoint: f.signed(t, size), LeafHash: f.entries[index].GetLeafHash(), Inclusion: raw(proof)}
}

func (f *fixture) consistency(t testing.TB, size, known int) [][]byte {
	t.Helper()
	if known == 0 || known == size {
		return nil
	}
	proof, err := tlog.ProveTree(int64(size), int64(known), f)
	must(t, err)
	return raw(proof)
}

func raw(hashes []tlog.Hash) [][]byte {
	var out [][]byte
	for _, h := range hashes {
		out = append(out, bytes.Clone(h[:]))
	}
	return out
}

func at(second int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 120_000_000, time.UTC))
}

// records is one short story: every member of a leaf set, none of the optional ones, and a body with hostile text.
func records() []*auditv1.Record {
	return []*auditv1.Record{
		{Sequence: 1, Kind: auditv1.Kind_KIND_STARTED, Time: at(0)},
		{
			Sequence: 2, Kind: auditv1.Kind_KIND_INTENT, Time: at(1), RequestId: "r-abcdefghijklmnopqrstuvwxyz",
			OperationId: "0123456789abcdef0123456789abcdef", Tool: "start_service", Tier: optionsv1.Tier_TIER_WRITE, Status: auditv1.Status_STATUS_PENDING,
			Body: &auditv1.Body{
				Principal: "claude", Session: "s-1", Channel: callv1.Channel_CHANNEL_CLI, Source: "native", Arguments: `{"service":"demo-chat"}`,
				Summary: "start <demo> & \u20ac\u2028\U0001F680 \"quoted\"", Confirmed: true, DurationMs: 4294967295, ResultDigest: bytes.Repeat([]byte{0xfe}, 32),
				Details: map[string]string{"b": "2", "a": "1", "\u20ac": "euro"},
			},
		},
		{Sequence: 3, Kind: auditv1.Kind_KIND_OUTCOME, Time: at(2), RequestId: "r-abcdefghijklmnopqrstuvwxyz", Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{}},
		{Sequence: 4, Kind: auditv1.Kind_KIND_READ, Time: at(3), Tool: "gpu_status", Tier: optionsv1.Tier_TIER_READ},
		{Sequence: 5, Kind: auditv1.Kind_KIND_STOPPED, Time: at(4)},
	}
}

// golden is testdata/log.json: what the formats are, field by field.
type golden struct {
	VerifierKey string        `json:"verifier_key"`
	Entries     []goldenEntry `json:"entries"`
	Checkpoints []goldenHead  `json:"checkpoints"`
}

type goldenEntry struct {
	Record         string   `json:"record"`
	Salt           []byte   `json:"salt"`
	BodyCommitment []byte   `json:"body_commitment"`
	Leaf           string   `json:"leaf"`
	LeafHash       []byte   `json:"leaf_hash"`
	Inclusion      [][]byte `json:"inclusion_in_newest"`
}

type goldenHead struct {
	Signed      string   `json:"signed"`
	Consistency [][]byte `json:"newest_extends_it"`
}

func TestGolden(t *testing.T) {
	f := newFixture(t, records()...)
	_, public, err := note.GenerateKey(bytes.NewReader(seed()), origin)
	must(t, err)
	got := golden{VerifierKey: public}
	size := len(f.entries)
	for i, e := range f.entries {
		record, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e.GetRecord())
		must(t, err)
		if record, err = canonical.Transform(record); err != nil {
			t.Fatal(err)
		}
		got.Entries = append(got.Entries, goldenEntry{
			Record: string(record), Salt: e.GetSalt(), BodyCommitment: e.GetBodyCommitment(), Leaf: string(e.GetLeaf()),
			LeafHash: e.GetLeafHash(), Inclusion: f.receipt(t, size, i).GetInclusion(),
		})
		got.Checkpoints = append(got.Checkpoints, goldenHead{Signed: string(f.signed(t, i+1)), Consistency: f.consistency(t, size, i+1)})
	}
	if *update {
		b, err := json.MarshalIndent(got, "", "  ")
		must(t, err)
		must(t, os.WriteFile("testdata/log.json", append(b, '\n'), 0o600))
		t.Skip("the vectors are written anew: run again to compare")
	}
	var want golden
	must(t, json.Unmarshal(vectors, &want))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("formats changed (-want +got):\n%s", diff)
	}

	// The other way round: what is written there verifies.
	verifier, err := note.NewVerifier(want.VerifierKey)
	must(t, err)
	keys := []note.Verifier{verifier}
	newest := want.Checkpoints[len(want.Checkpoints)-1]
	for i, e := range want.Entries {
		r := &callv1.Receipt{Index: uint64(i), Checkpoint: []byte(newest.Signed), LeafHash: e.LeafHash, Inclusion: e.Inclusion}
		if _, err := logproof.VerifyReceipt(r, keys); err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
	}
	head, err := logproof.OpenCheckpoint([]byte(newest.Signed), keys)
	must(t, err)
	for i, c := range want.Checkpoints {
		older, err := logproof.OpenCheckpoint([]byte(c.Signed), keys)
		must(t, err)
		if err := logproof.VerifyConsistency(older, head, c.Consistency); err != nil {
			t.Errorf("checkpoint %d: %v", i, err)
		}
	}
}

func TestLeafRefuses(t *testing.T) {
	whole := func() *auditv1.Entry {
		return proto.CloneOf(newFixture(t, records()[1]).entries[0])
	}
	for name, spoil := range map[string]func(*auditv1.Entry){
		"no writer":            func(e *auditv1.Entry) { e.Writer = "" },
		"no sequence":          func(e *auditv1.Entry) { e.Record.Sequence = 0 },
		"no kind":              func(e *auditv1.Entry) { e.Record.Kind = 0 },
		"no time":              func(e *auditv1.Entry) { e.Record.Time = nil },
		"no logged_at":         func(e *auditv1.Entry) { e.LoggedAt = nil },
		"time out of range":    func(e *auditv1.Entry) { e.Record.Time = &timestamppb.Timestamp{Seconds: 1 << 60} },
		"negative nanoseconds": func(e *auditv1.Entry) { e.LoggedAt.Nanos = -1 },
		"short commitment":     func(e *auditv1.Entry) { e.BodyCommitment = e.BodyCommitment[:31] },
		"no record":            func(e *auditv1.Entry) { e.Record = nil },
	} {
		e := whole()
		spoil(e)
		if _, err := logproof.Leaf(e); !errors.Is(err, logproof.ErrIncomplete) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := logproof.BodyCommitment(make([]byte, 31), nil); !errors.Is(err, logproof.ErrIncomplete) {
		t.Errorf("short salt: error %v", err)
	}
}

func TestVerifyEntryFindsEveryAlteration(t *testing.T) {
	f := newFixture(t, records()...)
	whole := f.entries[1]
	if err := logproof.VerifyEntry(whole); err != nil {
		t.Fatalf("whole: %v", err)
	}
	bare := func(e *auditv1.Entry, without ...*[]byte) (*auditv1.Entry, error) {
		for _, field := range append(without, &e.Leaf) {
			*field = nil
		}
		replay := &logproof.Replay{}
		must(t, replay.Add(f.entries[0]))
		return e, replay.AddChecked(logproof.CheckPage(&auditv1.ExportLogResponse{Entries: []*auditv1.Entry{e}})[0])
	}
	again := proto.CloneOf(whole)
	if again, err := bare(again, &again.BodyCommitment); err != nil || !proto.Equal(again, whole) {
		t.Fatalf("bare: %v, %v", err, again)
	}
	for name, alter := range map[string]func(*auditv1.Entry){
		"index":        func(e *auditv1.Entry) { e.Index++ },
		"writer":       func(e *auditv1.Entry) { e.Writer += "x" },
		"sequence":     func(e *auditv1.Entry) { e.Record.Sequence++ },
		"kind":         func(e *auditv1.Entry) { e.Record.Kind = auditv1.Kind_KIND_OUTCOME },
		"time":         func(e *auditv1.Entry) { e.Record.Time.Nanos++ },
		"logged_at":    func(e *auditv1.Entry) { e.LoggedAt.Nanos++ },
		"request_id":   func(e *auditv1.Entry) { e.Record.RequestId = "" },
		"operation_id": func(e *auditv1.Entry) { e.Record.OperationId = "" },
		"tool":         func(e *auditv1.Entry) { e.Record.Tool = "stop_service" },
		"tier":         func(e *auditv1.Entry) { e.Record.Tier = optionsv1.Tier_TIER_READ },
		"status":       func(e *auditv1.Entry) { e.Record.Status = auditv1.Status_STATUS_OK },
		"salt":         func(e *auditv1.Entry) { e.Salt[0]++ },
		"body":         func(e *auditv1.Entry) { e.Record.Body.Arguments = `{"service":"other"}` },
		"body gone":    func(e *auditv1.Entry) { e.Record.Body = nil },
		"salt gone":    func(e *auditv1.Entry) { e.Salt = nil },
		"leaf":         func(e *auditv1.Entry) { e.Leaf[0] = ' ' },
		"leaf hash":    func(e *auditv1.Entry) { e.LeafHash[0]++ },
	} {
		e := proto.CloneOf(whole)
		alter(e)
		if err := logproof.VerifyEntry(e); !errors.Is(err, logproof.ErrEntry) {
			t.Errorf("%s: error %v", name, err)
		}
		// Of a bare entry the leaf is computed. A commitment that comes all the same counts for nothing beside a body.
		if _, err := bare(e); name != "leaf" && !errors.Is(err, logproof.ErrEntry) {
			t.Errorf("%s, bare: error %v", name, err)
		}
	}
	// Retention drops body and salt together, and the entry still stands.
	dropped := proto.CloneOf(whole)
	dropped.Salt, dropped.Record.Body = nil, nil
	if err := logproof.VerifyEntry(dropped); err != nil {
		t.Errorf("body dropped: %v", err)
	}
	if _, err := bare(dropped); err != nil {
		t.Errorf("body dropped, bare: %v", err)
	}
	if _, err := bare(dropped, &dropped.BodyCommitment); !errors.Is(err, logproof.ErrIncomplete) {
		t.Errorf("body and commitment dropped: %v", err)
	}
}

func TestOpenCheckpointRefuses(t *testing.T) {
	f := newFixture(t, records()...)
	good := string(f.signed(t, 5))
	stranger, _ := signer(t, "other.example/log")
	sign := func(text string, signers ...note.Signer) string {
		b, err := note.Sign(&note.Note{Text: text}, signers...)
		must(t, err)
		return string(b)
	}
	root := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for _, tc := range []struct {
		name, text string
		want       error
	}{
		{"empty", "", logproof.ErrFormat},
		{"no signature", strings.SplitAfter(good, "\n\n")[0], logproof.ErrFormat},
		{"altered size", strings.Replace(good, "\n5\n", "\n6\n", 1), logproof.ErrSignature},
		{"a stranger's signature", sign(origin+"\n5\n"+root+"\n", stranger), logproof.ErrSignature},
		{"a trusted key that is named otherwise", sign("other.example/log\n5\n"+root+"\n", f.signer), logproof.ErrSignature},
		{"leading zero", sign(origin+"\n05\n"+root+"\n", f.signer), logproof.ErrFormat},
		{"plus sign", sign(origin+"\n+5\n"+root+"\n", f.signer), logproof.ErrFormat},
		{"negative size", sign(origin+"\n-5\n"+root+"\n", f.signer), logproof.ErrFormat},
		{"size beyond 2^63", sign(origin+"\n9223372036854775808\n"+root+"\n", f.signer), logproof.ErrFormat},
		{"short root", sign(origin+"\n5\nAAAA\n", f.signer), logproof.ErrFormat},
		{"root with other trailing bits", sign(origin+"\n5\n"+root[:len(root)-2]+"B=\n", f.signer), logproof.ErrFormat},
		{"extension line", sign(origin+"\n5\n"+root+"\nextra\n", f.signer), logproof.ErrFormat},
		{"carriage return", strings.ReplaceAll(good, "\n", "\r\n"), logproof.ErrFormat},
		{"two megabytes", good + strings.Repeat(" ", 2<<20), logproof.ErrFormat},
	} {
		if _, err := logproof.OpenCheckpoint([]byte(tc.text), f.keys); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
		}
	}
	c, err := logproof.OpenCheckpoint([]byte(good), f.keys)
	if err != nil || c != f.checkpoint(t, 5) {
		t.Errorf("good: %+v, %v", c, err)
	}
	if _, err := logproof.OpenCheckpoint([]byte(good), nil); !errors.Is(err, logproof.ErrSignature) {
		t.Errorf("no trusted key: error %v", err)
	}
	if _, err := logproof.SignCheckpoint(c, stranger); err == nil {
		t.Error("a key signs for a log of another name")
	}
}

func TestVerifyReceiptRefuses(t *testing.T) {
	f := newFixture(t, records()...)
	for name, spoil := range map[string]func(*callv1.Receipt){
		"another index":     func(r *callv1.Receipt) { r.Index = 3 },
		"beyond the tree":   func(r *callv1.Receipt) { r.Index = 5 },
		"far beyond":        func(r *callv1.Receipt) { r.Index = 1 << 63 },
		"another leaf":      func(r *callv1.Receipt) { r.LeafHash = f.entries[1].GetLeafHash() },
		"short leaf hash":   func(r *callv1.Receipt) { r.LeafHash = r.LeafHash[:31] },
		"no proof":          func(r *callv1.Receipt) { r.Inclusion = nil },
		"proof too long":    func(r *callv1.Receipt) { r.Inclusion = append(r.Inclusion, r.Inclusion[0]) },
		"short proof hash":  func(r *callv1.Receipt) { r.Inclusion[0] = r.Inclusion[0][:8] },
		"another tree":      func(r *callv1.Receipt) { r.Checkpoint = f.signed(t, 4) },
		"hashes in a swap":  func(r *callv1.Receipt) { r.Inclusion[0], r.Inclusion[1] = r.Inclusion[1], r.Inclusion[0] },
		"unsigned":          func(r *callv1.Receipt) { r.Checkpoint = []byte(f.checkpoint(t, 5).Text()) },
		"checkpoint absent": func(r *callv1.Receipt) { r.Checkpoint = nil },
	} {
		r := proto.CloneOf(f.receipt(t, 5, 2))
		spoil(r)
		if _, err := logproof.VerifyReceipt(r, f.keys); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for size := 1; size <= 5; size++ {
		for index := range size {
			if c, err := logproof.VerifyReceipt(f.receipt(t, size, index), f.keys); err != nil || c.Size != uint64(size) {
				t.Errorf("entry %d in %d: %v", index, size, err)
			}
		}
	}
}

func TestVerifyConsistency(t *testing.T) {
	f := newFixture(t, records()...)
	other := newFixture(t, append(records()[1:], records()[0])...)
	elsewhere := f.checkpoint(t, 3)
	elsewhere.Origin = "durward.local/audit/other"
	for _, tc := range []struct {
		name         string
		older, newer logproof.Checkpoint
		proof        [][]byte
		want         error
	}{
		{"shorter", f.checkpoint(t, 5), f.checkpoint(t, 4), nil, logproof.ErrRollback},
		{"same size, another root", other.checkpoint(t, 5), f.checkpoint(t, 5), nil, logproof.ErrFork},
		{"another history", other.checkpoint(t, 3), f.checkpoint(t, 5), f.consistency(t, 5, 3), logproof.ErrFork},
		{"no proof", f.checkpoint(t, 3), f.checkpoint(t, 5), nil, logproof.ErrFork},
		{"another size's proof", f.checkpoint(t, 3), f.checkpoint(t, 5), f.consistency(t, 5, 2), logproof.ErrFork},
		{"malformed proof", f.checkpoint(t, 3), f.checkpoint(t, 5), [][]byte{{1}}, logproof.ErrFork},
		{"another log", elsewhere, f.checkpoint(t, 5), f.consistency(t, 5, 3), logproof.ErrOrigin},
		{"first contact", logproof.Checkpoint{}, f.checkpoint(t, 5), nil, nil},
		{"empty before", f.checkpoint(t, 0), f.checkpoint(t, 5), nil, nil},
		{"unchanged", f.checkpoint(t, 5), f.checkpoint(t, 5), nil, nil},
		{"grown", f.checkpoint(t, 3), f.checkpoint(t, 5), f.consistency(t, 5, 3), nil},
	} {
		if err := logproof.VerifyConsistency(tc.older, tc.newer, tc.proof); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
		}
	}
}

func TestVerifyPlacement(t *testing.T) {
	f := newFixture(t, records()...)
	e := f.entries[1]
	sent, placement, receipt := e.GetRecord(), &auditv1.Placement{LoggedAt: e.GetLoggedAt(), Salt: e.GetSalt()}, f.receipt(t, 5, 1)
	must(t, logproof.VerifyPlacement(e.GetWriter(), sent, placement, receipt))
	altered := proto.CloneOf(sent)
	altered.Body.Confirmed = false
	for name, err := range map[string]error{
		"another writer":  logproof.VerifyPlacement("spiffe://durward.local/vault/main", sent, placement, receipt),
		"another record":  logproof.VerifyPlacement(e.GetWriter(), f.entries[2].GetRecord(), placement, receipt),
		"another body":    logproof.VerifyPlacement(e.GetWriter(), altered, placement, receipt),
		"another receipt": logproof.VerifyPlacement(e.GetWriter(), sent, placement, f.receipt(t, 5, 2)),
		"no placement":    logproof.VerifyPlacement(e.GetWriter(), sent, nil, receipt),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestReplay(t *testing.T) {
	f := newFixture(t, records()...)
	replay := func(entries []*auditv1.Entry, end logproof.Checkpoint, expect ...logproof.Checkpoint) error {
		r := &logproof.Replay{}
		for _, c := range expect {
			r.Expect(c)
		}
		for _, e := range entries {
			if err := r.Add(e); err != nil {
				return err
			}
		}
		return r.Finish(end)
	}
	if err := replay(f.entries, f.checkpoint(t, 5), f.previous...); err != nil {
		t.Fatalf("whole log: %v", err)
	}
	if err := replay(nil, f.checkpoint(t, 0)); err != nil {
		t.Fatalf("empty log: %v", err)
	}
	altered := proto.CloneOf(f.entries[2])
	altered.Record.Status = auditv1.Status_STATUS_ERROR
	resealed := proto.CloneOf(altered)
	must(t, logproof.Seal(resealed))
	gap := newFixture(t, records()[0], records()[2])
	longer := f.checkpoint(t, 5)
	longer.Size = 6
	for name, err := range map[string]error{
		"an entry missing at the end": replay(f.entries[:4], f.checkpoint(t, 5)),
		"an entry missing":            replay(append(f.entries[:1:1], f.entries[2:]...), f.checkpoint(t, 4)),
		"two in a swap":               replay([]*auditv1.Entry{f.entries[1], f.entries[0]}, f.checkpoint(t, 2)),
		"an entry altered":            replay([]*auditv1.Entry{f.entries[0], f.entries[1], altered}, f.checkpoint(t, 3)),
		"altered and sealed again":    replay([]*auditv1.Entry{f.entries[0], f.entries[1], resealed}, f.checkpoint(t, 3)),
		"a gap in a sequence":         replay(gap.entries, gap.checkpoint(t, 2)),
		"another earlier checkpoint":  replay(f.entries, f.checkpoint(t, 5), gap.checkpoint(t, 2)),
		"an earlier, longer one":      replay(f.entries, f.checkpoint(t, 5), longer),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzOpenCheckpoint shows that a checkpoint has one spelling: what opens is exactly what its fields say.
func FuzzOpenCheckpoint(f *testing.F) {
	fix := newFixture(f, records()...)
	f.Add(fix.signed(f, 5))
	f.Add(fix.signed(f, 1))
	f.Add([]byte(origin + "\n5\nAAAA\n\n— x y\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := logproof.OpenCheckpoint(b, fix.keys)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(b, []byte(c.Text()+"\n")) {
			t.Fatalf("%q opened as %q", b, c.Text())
		}
	})
}

// A clone goes its own way, whichever of the two goes on first.
func TestReplayClone(t *testing.T) {
	f := newFixture(t, records()...)
	first := &logproof.Replay{}
	first.Expect(f.checkpoint(t, 5))
	add := func(r *logproof.Replay, entries ...*auditv1.Entry) {
		t.Helper()
		for _, e := range entries {
			must(t, r.Add(e))
		}
	}
	add(first, f.entries[:3]...)
	second := first.Clone()
	add(first, f.entries[3:]...)
	if err := second.Finish(f.checkpoint(t, 3)); !errors.Is(err, logproof.ErrRollback) {
		t.Errorf("the clone with what was expected of the first: %v", err)
	}
	add(second, f.entries[3:]...)
	for _, r := range []*logproof.Replay{first, second} {
		if err := r.Finish(f.checkpoint(t, 5)); err != nil {
			t.Error(err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
