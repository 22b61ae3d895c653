package restored

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/statement"
)

// rig is a log, of which a backup was made after five records.
type rig struct {
	kit    *platformtest.Kit
	dir    string
	signer note.Signer
	roots  Roots
	key    *age.X25519Identity
	part   statecopy.Part
	copied []byte
	head   backup.Head
}

const writer = "spiffe://durward.local/executor/local"

func (r *rig) log(t *testing.T, use func(*log.Log, *store.Store)) {
	t.Helper()
	db, err := store.Open(t.Context(), r.dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := log.Open(t.Context(), log.Config{Store: db, Signer: r.signer, Keys: func() []note.Verifier { return r.roots.Keys }})
	if err != nil {
		t.Fatal(err)
	}
	use(l, db)
	l.Close()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func appendTo(t *testing.T, l *log.Log, r *auditv1.Record) error {
	t.Helper()
	head, err := l.Head(t.Context(), writer, 0)
	if err != nil {
		return err
	}
	r.Sequence, r.Time = head.GetLastSequence()+1, timestamppb.Now()
	_, err = l.Append(t.Context(), writer, []*auditv1.Record{r}, 0)
	return err
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{kit: platformtest.New(t), dir: t.TempDir()}
	r.signer, r.roots = r.kit.LogSigner, Roots{r.kit.Trust.Current().LogKeys, r.kit.Trust.Current().AllowedSigners}
	var err error
	if r.key, err = age.GenerateX25519Identity(); err != nil {
		t.Fatal(err)
	}
	r.part = Part(statecopy.Part{Service: "audit", StateDir: r.dir}, "cosigned", func() (Roots, error) { return r.roots, nil })
	add := func(l *log.Log, _ *store.Store) {
		for range 5 {
			if err := appendTo(t, l, &auditv1.Record{Kind: auditv1.Kind_KIND_OUTCOME, RequestId: "r", Body: &auditv1.Body{Summary: "s"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.log(t, add)
	var out bytes.Buffer
	if err := r.part.Write(t.Context(), &out, []age.Recipient{r.key.Recipient()}); err != nil {
		t.Fatal(err)
	}
	r.copied = out.Bytes()
	if r.head, err = backup.ReadHead(bufio.NewReader(bytes.NewReader(r.copied))); err != nil {
		t.Fatal(err)
	}
	r.log(t, add) // five more, which the backup lacks
	return r
}

// sign is an operator's statement about the backup, after a change.
func (r *rig) sign(t *testing.T, change func(*statement.Statement)) *callv1.HumanStatement {
	t.Helper()
	now := time.Now()
	st := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindRestore, ID: grant.NewID(), Operator: platformtest.Operator, Epoch: 1,
		Audience: "spiffe://" + r.signer.Name(), IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Restore: &statement.Restore{Made: statement.FormatTime(now), Size: r.head.Size, Root: r.head.Root, OldSize: 10, OldRoot: "the old one", Lost: 5},
	}
	change(st)
	h, err := statement.Sign(st, r.kit.OperatorSigner)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (r *rig) restore(t *testing.T, h *callv1.HumanStatement) error {
	t.Helper()
	return r.restoreAt(t, h, time.Now())
}

func (r *rig) restoreAt(t *testing.T, h *callv1.HumanStatement, began time.Time) error {
	t.Helper()
	return r.part.Restore(t.Context(), bufio.NewReader(bytes.NewReader(r.copied)), backup.Given{
		Identities: []age.Identity{r.key}, Statement: h.GetStatement(), Signature: h.GetSignature(),
	}, began)
}

// The log goes on from a backup on an operator's statement alone, about this very backup, which is its next record, once.
func TestTheLogGoesOn(t *testing.T) {
	r := newRig(t)
	if r.head.Size != 5 || r.head.Origin != r.signer.Name() {
		t.Fatalf("%+v", r.head)
	}
	for name, h := range map[string]*callv1.HumanStatement{
		"none":           {},
		"another size":   r.sign(t, func(st *statement.Statement) { st.Restore.Size, st.Restore.Lost = 6, 4 }),
		"another root":   r.sign(t, func(st *statement.Statement) { st.Restore.Root = hex.EncodeToString(make([]byte, 32)) }),
		"another log":    r.sign(t, func(st *statement.Statement) { st.Audience = "spiffe://" + r.signer.Name() + "x" }),
		"another kind":   r.sign(t, func(st *statement.Statement) { st.Kind, st.Restore = statement.KindResume, nil }),
		"from last year": r.sign(t, func(st *statement.Statement) { back(st, -365*24*time.Hour) }),
	} {
		if err := r.restore(t, h); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.log(t, func(l *log.Log, _ *store.Store) {
		if l.Size() != 10 {
			t.Errorf("the log has %d records", l.Size())
		}
	})
	// A large log takes longer to unpack than the statement lasts.
	if err := r.restoreAt(t, r.sign(t, func(st *statement.Statement) { back(st, -time.Hour) }), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	var wrote []*auditv1.Record
	accept := func(l *log.Log, db *store.Store, fail error) error {
		return Accept(t.Context(), r.dir, l, r.roots, db.Entry, func(_ context.Context, record *auditv1.Record) error {
			if fail != nil {
				return fail
			}
			wrote = append(wrote, record)
			return appendTo(t, l, record)
		})
	}
	r.log(t, func(l *log.Log, db *store.Store) {
		full := errors.New("full")
		if err := accept(l, db, full); !errors.Is(err, full) {
			t.Errorf("without a record: %v", err)
		}
		evidence := testfile.Read(t, filepath.Join(r.dir, file))
		for range 2 { // the process ended before the file was gone
			if err := errors.Join(os.WriteFile(filepath.Join(r.dir, file), evidence, 0o600), accept(l, db, nil)); err != nil {
				t.Fatal(err)
			}
		}
		if err := accept(l, db, nil); err != nil {
			t.Error(err)
		}
		if len(wrote) != 1 || wrote[0].GetKind() != auditv1.Kind_KIND_RESTORED || wrote[0].GetBody().GetDetails()["lost"] != "5" {
			t.Errorf("it wrote %v", wrote)
		}
		if !logproof.CarriesStatement(optionsv1.Role_ROLE_AUDIT, auditv1.Kind_KIND_RESTORED) {
			t.Error("nobody believes the record's statement")
		}
		// Nobody who trusts no operator of that name goes on.
		testfile.Write(t, filepath.Join(r.dir, file), evidence[:len(evidence)/2])
		if err := accept(l, db, nil); err == nil {
			t.Error("half a statement was taken")
		}
	})
}

// back moves a statement's times.
func back(st *statement.Statement, by time.Duration) {
	for _, at := range []*string{&st.IssuedAt, &st.NotBefore, &st.ExpiresAt} {
		was, _ := time.Parse(time.RFC3339, *at)
		*at = statement.FormatTime(was.Add(by))
	}
}
