package retention_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/retention"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

const (
	self   = "spiffe://durward.test/audit/main"
	writer = "spiffe://durward.test/executor/local"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func signer(t *testing.T, seed byte) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// book is a log as a hostile audit may show it.
type book struct {
	t       *testing.T
	entries []*auditv1.Entry
}

func (b *book) add(e *auditv1.Entry) *auditv1.Entry {
	e.Index = uint64(len(b.entries))
	if e.Writer == "" {
		e.Writer = writer
	}
	if e.LoggedAt == nil {
		e.LoggedAt = timestamppb.New(now)
	}
	if e.Record.Time == nil {
		e.Record.Time = e.LoggedAt
	}
	e.Salt = make([]byte, logproof.SaltSize)
	b.entries = append(b.entries, e)
	return e
}

// old adds a read of a hundred days ago.
func (b *book) old(request string) *auditv1.Entry {
	return b.add(&auditv1.Entry{LoggedAt: timestamppb.New(now.AddDate(0, 0, -100)), Record: &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: request, Body: &auditv1.Body{Summary: "x"}}})
}

func without(e *auditv1.Entry, by uint64) {
	e.Salt, e.Record.Body, e.PrunedBy = nil, nil, proto.Uint64(by)
}

func (b *book) statement(kind statement.Kind) *statement.Statement {
	return &statement.Statement{Type: statement.Type, Version: statement.Version, Kind: kind, ID: fmt.Sprintf("%032x", len(b.entries)), Operator: "ada",
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)), Epoch: 1, Audience: self}
}

func (b *book) prune(size, reads uint64) *statement.Statement {
	st := b.statement(statement.KindPrune)
	st.Prune = &statement.Prune{Size: size, Before: statement.FormatTime(now.AddDate(0, 0, -90)), Kinds: map[string]uint64{"KIND_READ": reads},
		Oldest: statement.FormatTime(now.AddDate(0, 0, -100)), Newest: statement.FormatTime(now.AddDate(0, 0, -100))}
	return st
}

func (b *book) hold(h statement.Hold) *statement.Statement {
	st := b.statement(statement.KindHold)
	h.Reason = "case 7"
	st.Hold = &h
	return st
}

func (b *book) sign(st *statement.Statement, key ssh.Signer) *callv1.HumanStatement {
	b.t.Helper()
	signed, err := statement.Sign(st, key)
	if err != nil {
		b.t.Fatal(err)
	}
	return signed
}

func (b *book) decided(signed *callv1.HumanStatement, kind auditv1.Kind) uint64 {
	return b.add(&auditv1.Entry{Writer: self, Record: &auditv1.Record{Kind: kind, Body: &auditv1.Body{Statement: signed}}}).GetIndex()
}

// found is what a verifier with that allowed_signers finds: the indexes, and their texts.
func (b *book) found(allowed *trust.AllowedSigners) (indexes []uint64, text string) {
	ledger := retention.Ledger{Allowed: allowed}
	var all []retention.Problem
	for _, e := range b.entries {
		all = append(all, ledger.Add(e)...)
	}
	for _, p := range append(all, ledger.Finish()...) {
		if p.Writer != b.entries[p.Index].GetWriter() {
			b.t.Errorf("%v is of %s", p, b.entries[p.Index].GetWriter())
		}
		indexes, text = append(indexes, p.Index), text+p.Text+"\n"
	}
	return indexes, text
}

// TestLedger: a body may be missing by a statement that stands, was for that record, was not used before, and met no hold.
func TestLedger(t *testing.T) {
	ada, eve := signer(t, 1), signer(t, 2)
	allowed, err := trust.ParseAllowedSigners([]byte(trust.FormatSigner("ada", ada.PublicKey(), statement.Namespace)))
	if err != nil {
		t.Fatal(err)
	}
	pruned, held, released := auditv1.Kind_KIND_PRUNED, auditv1.Kind_KIND_HELD, auditv1.Kind_KIND_RELEASED
	for name, tc := range map[string]struct {
		make func(b *book)
		want []uint64
		says string
	}{
		"nothing is missing": {func(b *book) { b.old("r-0") }, nil, ""},
		"as it was signed": {func(b *book) {
			without(b.old("r-0"), 2)
			without(b.old("r-1"), 2)
			b.decided(b.sign(b.prune(2, 2), ada), pruned)
		}, nil, ""},
		"some of it": {func(b *book) {
			without(b.old("r-0"), 2)
			b.old("r-1")
			b.decided(b.sign(b.prune(2, 2), ada), pruned)
		}, nil, ""},
		"no such record":        {func(b *book) { without(b.old("r-0"), 9) }, []uint64{0}, "is no pruning"},
		"an older record":       {func(b *book) { b.old("r-0"); without(b.old("r-1"), 0) }, []uint64{1}, "is no later one"},
		"itself":                {func(b *book) { without(b.old("r-0"), 0) }, []uint64{0}, "is no later one"},
		"a record of another":   {func(b *book) { without(b.old("r-0"), 1); b.old("r-1") }, []uint64{0}, "is no pruning"},
		"a body that is there":  {func(b *book) { b.old("r-0").PrunedBy = proto.Uint64(1) }, []uint64{0}, "has its body"},
		"unsigned":              {func(b *book) { without(b.old("r-0"), 1); b.decided(nil, pruned) }, []uint64{1, 0}, "no statement that allows it"},
		"signed by another key": {func(b *book) { without(b.old("r-0"), 1); b.decided(b.sign(b.prune(1, 1), eve), pruned) }, []uint64{1, 0}, "key is not an operator's"},
		"by another's statement": {func(b *book) {
			without(b.old("r-0"), 1)
			b.decided(b.sign(b.hold(statement.Hold{IDs: []string{"x"}}), ada), pruned)
		}, []uint64{1, 0}, "another kind"},
		"recorded by another": {func(b *book) {
			without(b.old("r-0"), 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
			b.entries[1].Writer = writer
		}, []uint64{1, 0}, "audit alone"},
		"for another log": {func(b *book) {
			without(b.old("r-0"), 1)
			st := b.prune(1, 1)
			st.Audience = "spiffe://durward.test/audit/other"
			b.decided(b.sign(st, ada), pruned)
		}, []uint64{1, 0}, "another log"},
		"recorded after its end": {func(b *book) {
			without(b.old("r-0"), 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
			b.entries[1].LoggedAt = timestamppb.New(now.Add(time.Hour))
		}, []uint64{1, 0}, "not valid at this time"},
		"its statement is gone too": {func(b *book) {
			without(b.old("r-0"), 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
			b.entries[1].Salt, b.entries[1].Record.Body = nil, nil
		}, []uint64{0}, "no statement that allows it"},
		"the pruning was pruned": {func(b *book) {
			without(b.old("r-0"), 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
			b.decided(b.sign(b.prune(2, 1), ada), pruned)
			without(b.entries[1], 2)
		}, []uint64{1, 0}, "not for it"},
		"what a log goes on by after a restore": {func(b *book) {
			e := b.old("r-0")
			e.Record.Kind = auditv1.Kind_KIND_RESTORED
			without(e, 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "not for it"},
		"a younger record": {func(b *book) {
			e := b.old("r-0")
			e.Record.Time = timestamppb.New(now.AddDate(0, 0, -90))
			without(e, 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "not for it"},
		"younger by the log's clock": {func(b *book) {
			e := b.old("r-0")
			e.LoggedAt = timestamppb.New(now.AddDate(0, 0, -90))
			without(e, 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "not for it"},
		"a record that came after": {func(b *book) {
			b.old("r-0")
			without(b.old("r-1"), 2)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{1}, "not for it"},
		"more than was shown": {func(b *book) {
			without(b.old("r-0"), 2)
			without(b.old("r-1"), 2)
			b.decided(b.sign(b.prune(2, 1), ada), pruned)
		}, []uint64{1}, "as many records as"},
		"a kind that was not shown": {func(b *book) {
			e := b.old("r-0")
			e.Record.Kind = auditv1.Kind_KIND_DENIED
			without(e, 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "as many records as"},
		"used twice": {func(b *book) {
			without(b.old("r-0"), 2)
			without(b.old("r-1"), 3)
			signed := b.sign(b.prune(2, 1), ada)
			b.decided(signed, pruned)
			b.decided(signed, pruned)
		}, []uint64{3, 1}, "used before, by record 2"},
		"held by its request": {func(b *book) {
			without(b.old("r-0"), 2)
			b.decided(b.sign(b.hold(statement.Hold{IDs: []string{"r-9", "r-0"}}), ada), held)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "legal hold"},
		"held by its operation": {func(b *book) {
			e := b.old("r-0")
			e.Record.OperationId = "op-0"
			without(e, 2)
			b.decided(b.sign(b.hold(statement.Hold{IDs: []string{"op-0"}}), ada), held)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "legal hold"},
		"held by its time": {func(b *book) {
			without(b.old("r-0"), 2)
			at := now.AddDate(0, 0, -100)
			b.decided(b.sign(b.hold(statement.Hold{Since: statement.FormatTime(at), Until: statement.FormatTime(at.Add(time.Second))}), ada), held)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "legal hold"},
		"held by its writer's time": {func(b *book) {
			e := b.old("r-0")
			e.Record.Time = timestamppb.New(now.AddDate(-1, 0, 0))
			without(e, 2)
			at := now.AddDate(-1, 0, 0)
			b.decided(b.sign(b.hold(statement.Hold{Since: statement.FormatTime(at), Until: statement.FormatTime(at.Add(time.Hour))}), ada), held)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "legal hold"},
		"held from the beginning to the end of time": {func(b *book) {
			without(b.old("r-0"), 2)
			b.decided(b.sign(b.hold(statement.Hold{Since: "0001-01-01T00:00:00Z", Until: "9999-12-31T23:59:59Z"}), ada), held)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "legal hold"},
		"held with no end in sight": {func(b *book) {
			without(b.old("r-0"), 2)
			b.decided(b.sign(b.hold(statement.Hold{Since: "2026-01-01T00:00:00Z", Until: "9999-01-01T00:00:00Z"}), ada), held)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{0}, "legal hold"},
		"beside a hold": {func(b *book) {
			without(b.old(""), 2)
			at := now.AddDate(0, 0, -99)
			b.decided(b.sign(b.hold(statement.Hold{IDs: []string{"r-1"}, Since: statement.FormatTime(at), Until: statement.FormatTime(at.Add(time.Hour))}), ada), held)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, nil, ""},
		"a hold that ended": {func(b *book) {
			without(b.old("r-0"), 3)
			hold := b.sign(b.hold(statement.Hold{IDs: []string{"r-0"}}), ada)
			b.decided(hold, held)
			st := b.statement(statement.KindRelease)
			st.Releases = canonical.DigestText(hold.GetStatement())
			b.decided(b.sign(st, ada), released)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, nil, ""},
		"a hold that nobody ended": {func(b *book) {
			without(b.old("r-0"), 3)
			hold := b.sign(b.hold(statement.Hold{IDs: []string{"r-0"}}), ada)
			b.decided(hold, held)
			st := b.statement(statement.KindRelease)
			st.Releases = canonical.DigestText(hold.GetStatement())
			b.decided(b.sign(st, eve), released)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
		}, []uint64{2, 0}, "legal hold"},
		"a hold that came after": {func(b *book) {
			without(b.old("r-0"), 1)
			b.decided(b.sign(b.prune(1, 1), ada), pruned)
			b.decided(b.sign(b.hold(statement.Hold{IDs: []string{"r-0"}}), ada), held)
		}, nil, ""},
		"an unsigned hold": {func(b *book) { b.decided(nil, held) }, []uint64{0}, "signature"},
	} {
		b := &book{t: t}
		tc.make(b)
		got, text := b.found(allowed)
		if !slices.Equal(got, tc.want) || !strings.Contains(text, tc.says) {
			t.Errorf("%s: %v %s; want %v %q", name, got, text, tc.want, tc.says)
		}
	}
	// A key that is no operator's any more.
	b := &book{t: t}
	without(b.old("r-0"), 1)
	b.decided(b.sign(b.prune(1, 1), ada), pruned)
	retired, err := trust.ParseAllowedSigners([]byte(strings.Replace(trust.FormatSigner("ada", ada.PublicKey(), statement.Namespace), " namespaces", ` valid-before="20261101Z",namespaces`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string]*trust.AllowedSigners{"removed": nil, "retired before": retired} {
		if got, text := b.found(keys); !slices.Equal(got, []uint64{1, 0}) {
			t.Errorf("%s: %v %s", name, got, text)
		}
	}
}
