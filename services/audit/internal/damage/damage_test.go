package damage_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/damage"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/platformtest/full"
)

const (
	writer  = "spiffe://durward.local/executor/local"
	reader  = "spiffe://durward.local/executor/other"
	records = 200
)

// rig is a sound log, closed.
type rig struct {
	signer  note.Signer
	keys    []note.Verifier
	file    []byte
	entries []*auditv1.Entry
}

func newRig(t *testing.T) *rig {
	t.Helper()
	secret, public, err := note.GenerateKey(nil, "durward.local/audit/main")
	must(t, err)
	v, err := note.NewVerifier(public)
	must(t, err)
	r := &rig{keys: []note.Verifier{v}}
	if r.signer, err = note.NewSigner(secret); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	r.fill(t, db)
	must(t, db.Close())
	if r.file, err = os.ReadFile(filepath.Join(dir, store.File)); err != nil {
		t.Fatal(err)
	}
	return r
}

// fill writes the records and keeps what they are.
func (r *rig) fill(t *testing.T, db *store.Store) {
	t.Helper()
	l := r.open(t, db)
	defer l.Close()
	for first := uint64(1); first <= records; first += 50 {
		var group []*auditv1.Record
		for n := first; n < first+50; n++ {
			group = append(group, &auditv1.Record{
				Sequence: n, Kind: auditv1.Kind_KIND_INTENT, Time: timestamppb.Now(), RequestId: fmt.Sprintf("r-%d", n), Tool: "start_service",
				Body: &auditv1.Body{Arguments: fmt.Sprintf(`{"service_id":"service-%d"}`, n), Session: fmt.Sprintf("s%d", n%7), Summary: strings.Repeat("x", int(n%90))},
			})
		}
		if _, err := l.Append(t.Context(), writer, group, 0); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if r.entries, err = db.Range(t.Context(), 0, records, records, 1<<30); err != nil || len(r.entries) != records {
		t.Fatal(len(r.entries), err)
	}
}

func (r *rig) open(t *testing.T, db *store.Store) *log.Log {
	t.Helper()
	l, err := r.log(t, db)
	must(t, err)
	return l
}

func (r *rig) log(t *testing.T, db *store.Store) (*log.Log, error) {
	return log.Open(t.Context(), log.Config{Store: db, Signer: r.signer, Keys: func() []note.Verifier { return r.keys }})
}

// folder is a state folder with this file.
func folder(t *testing.T, file []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, store.File), file, 0o600)
	}
	must(t, err)
	return dir
}

// start is what audit does before it serves.
func (r *rig) start(t *testing.T, dir string) error {
	t.Helper()
	db, err := store.Open(t.Context(), dir)
	if err != nil {
		return damage.Explain(t.Context(), nil, dir, err)
	}
	defer db.Close()
	return r.startOn(t, db, dir)
}

func (r *rig) startOn(t *testing.T, db *store.Store, dir string) error {
	t.Helper()
	l, err := r.log(t, db)
	if err != nil {
		return damage.Explain(t.Context(), db, dir, err)
	}
	defer l.Close()
	return damage.Newest(t.Context(), db, l.Size())
}

// altered is a state folder in whose database statements were carried out.
func (r *rig) altered(t *testing.T, statements ...string) string {
	t.Helper()
	dir := folder(t, r.file)
	db, err := sql.Open("sqlite", filepath.Join(dir, store.File))
	must(t, err)
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(s, err)
		}
	}
	must(t, db.Close())
	return dir
}

// rows are damages that whoever writes the database can do, and what must be said.
var rows = map[string]struct {
	statement string
	says      []string
}{
	"a header":         {`UPDATE entries SET tool = 'stop_service' WHERE idx = 100`, []string{"record 100 (" + writer + "'s 101): its header is not", "199 of 200"}},
	"a leaf":           {`UPDATE entries SET leaf = (SELECT leaf FROM entries WHERE idx = 5) WHERE idx = 100`, []string{"record 100 (" + writer + "'s 101): its header is not"}},
	"a writer":         {`UPDATE entries SET sequence = 9000 WHERE idx = 100`, []string{"record 100 (", "9000): its header is not"}},
	"a missing record": {`DELETE FROM entries WHERE idx BETWEEN 100 AND 109`, []string{"records 100 to 109: missing", "190 of 200", makesNoCopy}},
	"the tree over a record": {overwrite(leafAt(100), 7),
		[]string{"record 100 (", "not the record that the tree has", "durward audit copy --damaged NEW.yaml"}},
	"a missing hash":  {`DELETE FROM tree WHERE chunk = ` + fmt.Sprint(leafAt(100)/126), []string{"record 63 (", "the tree above it cannot be read"}},
	"the last record": {`DELETE FROM entries WHERE idx = 199`, []string{"199 entries and its newest checkpoint says 200", "record 199: missing"}},
	"the checkpoint":  {`DELETE FROM checkpoints`, []string{"has entries and no checkpoint", "Each of the 200 records is sound by the tree that is stored"}},
	"the root":        {overwrite(leafAt(127)+7, 0), []string{"does not add up", "the tree's hash over the 128 records up to it"}},
}

// overwrite puts one of the tree's hashes in the place of another.
func overwrite(index, by int64) string {
	return fmt.Sprintf(`UPDATE tree SET hashes = CAST(substr(hashes, 1, %d) || (SELECT substr(hashes, %d, 32) FROM tree WHERE chunk = %d) || substr(hashes, %d) AS BLOB) WHERE chunk = %d`,
		index%126*32, by%126*32+1, by/126, index%126*32+33, index/126)
}

// leafAt is the stored index of a leaf.
func leafAt(n int64) int64 { return tlog.StoredHashIndex(0, n) }

func TestRows(t *testing.T) {
	r := newRig(t)
	if err := r.start(t, folder(t, r.file)); err != nil {
		t.Fatalf("a sound log: %v", err)
	}
	for name, tc := range rows {
		t.Run(name, func(t *testing.T) { says(t, r.start(t, r.altered(t, tc.statement)), tc.says...) })
	}
}

// TestTail: newest entries that cannot be read, or follow no others, are told apart from the ones before them.
func TestTail(t *testing.T) {
	r := newRig(t)
	for name, statement := range map[string]string{
		"unread":        `INSERT INTO tail VALUES (201, x'ff', 400, x'', x'00')`,
		"another log's": `INSERT INTO tail VALUES (7, x'020806', 400, x'', x'00')`,
	} {
		t.Run(name, func(t *testing.T) {
			says(t, r.start(t, r.altered(t, statement)), "the newest entries do not follow", "Each of the 200 records is sound")
		})
	}
}

// makesNoCopy is said where only a backup helps.
const makesNoCopy = "makes no copy here"

// says fails unless the error says these, and what to do.
func says(t *testing.T, err error, what ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("audit starts")
	}
	for _, want := range append(what, "-damaged") {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %q", err, want)
		}
	}
}

// TestFile damages the file in ways that SQLite notices by itself, or not.
func TestFile(t *testing.T) {
	r := newRig(t)
	says(t, r.start(t, folder(t, r.file[:len(r.file)-4096])), "the file is damaged", "of 200 records that were read are sound")
	says(t, r.start(t, folder(t, r.file[:len(r.file)/2])), "the file is damaged")
	spoilt := bytes.Clone(r.file)
	copy(spoilt, "no database at all")
	says(t, r.start(t, folder(t, spoilt)), "No record can be read")
}

// TestWhatIsNotNamedIsSound spoils pages and bytes of the file: whatever audit does not name is what was written, and it never starts on
// a record that is not.
func TestWhatIsNotNamedIsSound(t *testing.T) {
	r := newRig(t)
	const page = 4096
	random := rand.New(rand.NewPCG(1, 2))
	refused, named := 0, 0
	spoil := func(what string, file []byte) {
		dir := folder(t, file)
		err := r.start(t, dir)
		if err != nil {
			refused++
		}
		db, openErr := store.OpenDamaged(t.Context(), dir)
		if openErr != nil {
			if err == nil {
				t.Errorf("%s: audit starts on what cannot be opened: %v", what, openErr)
			}
			return
		}
		defer db.Close()
		report := &damage.Report{}
		if examined := report.Examine(t.Context(), db, 0, records, nil); examined != nil {
			t.Errorf("%s: %v", what, examined)
		}
		if !report.Sound() {
			named++
			if err == nil && report.Wrong > report.Absent {
				t.Errorf("%s: audit starts with %v", what, report)
			}
		}
		wrong := map[uint64]bool{}
		for _, f := range report.Findings {
			for i := f.First; i <= f.Last; i++ {
				wrong[i] = true
			}
		}
		if uint64(len(wrong)) != report.Wrong {
			return // there are more than are named
		}
		for i, want := range r.entries {
			if wrong[uint64(i)] {
				continue
			}
			if got, err := db.Entry(t.Context(), uint64(i)); err != nil || !proto.Equal(want, got) {
				t.Errorf("%s: record %d is not named: %v\n%v\nwas %v", what, i, err, got, want)
			}
		}
	}
	picked := full.Picks(t, 3)
	tried := 0
	for range 24 {
		at := random.IntN(len(r.file)/page-1) + 1
		if !picked() {
			continue
		}
		tried++
		file := bytes.Clone(r.file)
		clear(file[at*page : (at+1)*page])
		spoil(fmt.Sprintf("page %d", at), file)
	}
	for range 60 {
		at, by := random.IntN(len(r.file)-page)+page, byte(1+random.IntN(255))
		if !picked() {
			continue
		}
		tried++
		file := bytes.Clone(r.file)
		file[at] ^= by
		spoil(fmt.Sprintf("byte %d", at), file)
	}
	t.Logf("of %d damages %d were named, and %d starts refused", tried, named, refused)
	if named < tried/4 || refused < named {
		t.Errorf("of %d damages %d were named, and %d starts refused: the test shows little", tried, named, refused)
	}
}

// TestMissingBody: a record without its body is named, and keeps nobody from going on.
// TestReads: a read that was changed in its block, a block that is gone or cannot be read, and a filter that hides reads from search, are
// named; audit starts on the last of these alone.
func TestReads(t *testing.T) {
	r := newRig(t)
	dir := folder(t, r.file)
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	l := r.open(t, db)
	for first := uint64(1); first <= 512; first += 128 {
		var group []*auditv1.Record
		for n := first; n < first+128; n++ {
			group = append(group, &auditv1.Record{Sequence: n, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-1", Tool: "gpu_status",
				Body: &auditv1.Body{Session: "s-9", Summary: "unique"}})
		}
		if _, err := l.Append(t.Context(), reader, group, 0); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	must(t, db.Close())
	if r.file, err = os.ReadFile(filepath.Join(dir, store.File)); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		statement string
		says      []string
	}{
		"a salt": {`UPDATE packs SET data = CAST(substr(data, 1, length(data) - 40) || x'00' || substr(data, length(data) - 38) AS BLOB) WHERE first = 200`,
			[]string{"record 327 (" + reader + "'s 128): its header is not", "711 of 712"}},
		"half a block": {`UPDATE packs SET data = substr(data, 1, length(data) / 2) WHERE first = 200`, []string{"records 200 to 327: cannot be read", "584 of 712"}},
		"no pack":      {`DELETE FROM packs WHERE first = 200`, []string{"records 200 to 327: missing", "584 of 712", makesNoCopy}},
		"no newest pack": {`DELETE FROM packs WHERE first = (SELECT MAX(first) FROM packs)`,
			[]string{"newest entry, 711, is missing", "records 584 to 711: missing", "584 of 712", "put a backup back", makesNoCopy}},
		"no newest block": {`DELETE FROM blocks WHERE first = (SELECT MAX(first) FROM blocks)`,
			[]string{"584 entries and its newest checkpoint says 712", "records 584 to 711: missing", "put a backup back", makesNoCopy}},
	} {
		t.Run(name, func(t *testing.T) { says(t, r.start(t, r.altered(t, tc.statement)), tc.says...) })
	}
	dir = r.altered(t, `UPDATE blocks SET filter = zeroblob(length(filter)) WHERE first = 200`)
	if err := r.start(t, dir); err != nil {
		t.Errorf("reads that search does not find: %v", err)
	}
	if db, err = store.OpenDamaged(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if found, err := db.Search(t.Context(), store.Query{Session: "s-9"}, 1000, 1<<30); err != nil || len(found) != 384 {
		t.Errorf("search finds %d of 512, %v; without the filter of a block it should miss 128", len(found), err)
	}
	report := &damage.Report{}
	if err := report.Examine(t.Context(), db, 0, 712, nil); err != nil || report.Wrong != 0 || report.Hidden != 1 ||
		!strings.Contains(report.String(), "records 200 to 327: sound, but search does not find all of the reads among them; 712 of 712 records") {
		t.Errorf("%v, %v", report, err)
	}
}

func TestMissingBody(t *testing.T) {
	r := newRig(t)
	dir := r.altered(t, `DELETE FROM bodies WHERE idx = 100`)
	if err := r.start(t, dir); err != nil {
		t.Error(err)
	}
	db, err := store.OpenDamaged(t.Context(), dir)
	must(t, err)
	defer db.Close()
	report := &damage.Report{}
	if err := report.Examine(t.Context(), db, 0, records, nil); err != nil || report.Absent != 1 || !strings.Contains(report.String(), "record 100 ("+writer+"'s 101): its body is missing") {
		t.Errorf("%v, %v", report, err)
	}
}

// TestAway: a store that cannot be asked is no damage.
func TestAway(t *testing.T) {
	r := newRig(t)
	db, err := store.Open(t.Context(), folder(t, r.file))
	must(t, err)
	defer db.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report := &damage.Report{}
	if err := report.Examine(ctx, db, 0, records, nil); !errors.Is(err, context.Canceled) || !report.Sound() {
		t.Errorf("%v, %v", err, report)
	}
	if err := damage.Explain(t.Context(), nil, t.TempDir(), context.Canceled); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "-damaged") {
		t.Errorf("another error: %v", err)
	}
}

// handler passes messages on.
type handler struct {
	slog.Handler
	said chan slog.Record
}

func (h handler) Enabled(context.Context, slog.Level) bool { return true }
func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.said <- r
	return nil
}

// TestWatch: what is damaged far from the log's end is found while audit serves, and operators are told which record.
func TestWatch(t *testing.T) {
	r := newRig(t)
	db, err := store.OpenDamaged(t.Context(), r.altered(t, `UPDATE bodies SET body = x'0a0178' WHERE idx = 7`))
	must(t, err)
	defer db.Close()
	said := make(chan slog.Record, 10)
	w := damage.NewWatch(db, func() uint64 { return records }, slog.New(handler{slog.DiscardHandler, said}))
	if err := w.Ask(t.Context()); err != nil {
		t.Errorf("before it looked: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.Run(ctx); close(ended) }()
	first := <-said
	want := "record 7 (" + writer + "'s 8): its body is not what was committed to; 199 of 200 records that were read are sound"
	if first.Message != "THE LOG IS DAMAGED" {
		t.Errorf("it says %q", first.Message)
	}
	var told deepcheck.Said
	if err := w.Ask(t.Context()); !errors.As(err, &told) || string(told) != "the log is damaged: "+want {
		t.Errorf("operators are told %v", err)
	}
	cancel()
	<-ended
}

// TestTornWrite: of the last writes to the write-ahead log a part reached the disk, cut off or full of zeros at any place, and the kernel
// said of none of them that it is there. The log is one that was: it adds up, nothing in it is damaged, and it goes on.
func TestTornWrite(t *testing.T) {
	r := &rig{}
	secret, public, err := note.GenerateKey(nil, "durward.local/audit/main")
	must(t, err)
	v, err := note.NewVerifier(public)
	must(t, err)
	r.keys = []note.Verifier{v}
	if r.signer, err = note.NewSigner(secret); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	defer db.Close()
	r.fill(t, db)
	file, err := os.ReadFile(filepath.Join(dir, store.File))
	must(t, err)
	wal, err := os.ReadFile(filepath.Join(dir, store.File+"-wal"))
	if err != nil || len(wal) < 100_000 {
		t.Fatalf("a write-ahead log of %d bytes, %v", len(wal), err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	sizes := map[uint64]bool{}
	picked := full.Picks(t, 3)
	for range 40 {
		at := random.IntN(len(wal))
		if !picked() {
			continue
		}
		for what, torn := range map[string][]byte{"cut": wal[:at], "zeros": append(bytes.Clone(wal[:at]), make([]byte, len(wal)-at)...)} {
			dir := folder(t, file)
			must(t, os.WriteFile(filepath.Join(dir, store.File+"-wal"), torn, 0o600))
			if err := r.start(t, dir); err != nil {
				t.Errorf("%s at %d: %v", what, at, err)
				continue
			}
			db, err := store.Open(t.Context(), dir)
			must(t, err)
			l := r.open(t, db)
			size := l.Size()
			sizes[size] = true
			report := &damage.Report{}
			if err := report.Examine(t.Context(), db, 0, size, nil); err != nil || !report.Sound() || size%50 != 0 {
				t.Errorf("%s at %d: %d records, %v, %v", what, at, size, report, err)
			}
			if _, err := l.Append(t.Context(), writer, []*auditv1.Record{{Sequence: size + 1, Kind: auditv1.Kind_KIND_INTENT, Time: timestamppb.Now()}}, 0); err != nil {
				t.Errorf("%s at %d: %v", what, at, err)
			}
			l.Close()
			must(t, db.Close())
		}
	}
	if len(sizes) < 3 {
		t.Errorf("every log has one of %d sizes: the test shows little", len(sizes))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
