// Package retention judges what of the audit log may be gone: which records a human's statement lets lose their bodies, and which a
// legal hold keeps (AUD-5). Audit links it, which removes them, and so does every program that verifies a log: one that finds a record
// without its body holds it to the statement that audit names.
//
// It trusts allowed_signers and the log's own tree. It does not trust audit: a statement that is not there, or is older, or was used
// before, or is for other records, lets nothing be missing.
package retention

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// Kinds are the records that hold statements about what is kept. Their bodies never go.
var Kinds = []auditv1.Kind{auditv1.Kind_KIND_PRUNED, auditv1.Kind_KIND_HELD, auditv1.Kind_KIND_RELEASED}

// stays reports whether the bodies of records of a kind never go: those of Kinds, and the statement by which a log that was put back goes on.
func stays(kind auditv1.Kind) bool {
	return kind == auditv1.Kind_KIND_RESTORED || slices.Contains(Kinds, kind)
}

// Prunable reports whether a record's body may go by that statement, if no hold keeps it.
func Prunable(p *statement.Prune, e *auditv1.Entry) bool {
	before := p.Cutoff()
	return e.GetIndex() < p.Size && e.GetRecord().GetTime().AsTime().Before(before) && e.GetLoggedAt().AsTime().Before(before) &&
		!stays(e.GetRecord().GetKind())
}

// Held reports whether a hold keeps a record.
func Held(h *statement.Hold, e *auditv1.Entry) bool {
	for _, id := range []string{e.GetRecord().GetRequestId(), e.GetRecord().GetOperationId()} {
		if id != "" && slices.Contains(h.IDs, id) {
			return true
		}
	}
	return within(h, e.GetRecord().GetTime().AsTime()) || within(h, e.GetLoggedAt().AsTime())
}

func within(h *statement.Hold, at time.Time) bool {
	since, until := h.Period()
	return !at.Before(since) && at.Before(until)
}

// Problem is what is wrong with a record.
type Problem struct {
	Index  uint64
	Writer string
	Text   string
	// Gone: its body is missing, or said to be. Otherwise a decision does not stand.
	Gone bool
}

// Decision is a statement that stands, and its record.
type Decision struct {
	Index    uint64
	At       time.Time
	Evidence *callv1.HumanStatement
	*statement.Statement
	digest [sha256.Size]byte
	// pruned is how many records of each kind name it, and holds are those that were in force when a pruning was signed.
	pruned map[string]uint64
	holds  []*Decision
}

// Ledger follows, through the log in its order, what humans decided about it. The zero value with Allowed set is ready; it is not safe
// for concurrent use.
type Ledger struct {
	Allowed *trust.AllowedSigners

	holds    []*Decision // in force
	prunings []*Decision
	used     map[[sha256.Size]byte]uint64
	claims   map[uint64][]claim
	writers  []string
	seed     maphash.Seed
	seeded   bool
}

// claim is a record that says which one let its body go. A log may have millions: request and operation are digests of their ids.
type claim struct {
	index, request, operation uint64
	written, logged           int64
	kind                      auditv1.Kind
	writer                    int32
}

func (l *Ledger) digest(id string) uint64 {
	if !l.seeded {
		l.seed, l.seeded = maphash.MakeSeed(), true
	}
	if id == "" {
		return 0
	}
	return maphash.String(l.seed, id)
}

// Add takes the next entry of a log, and returns what is wrong with it, or with records before it.
func (l *Ledger) Add(e *auditv1.Entry) []Problem {
	if e.PrunedBy != nil {
		return l.claim(e)
	}
	kind := e.GetRecord().GetKind()
	if !slices.Contains(Kinds, kind) {
		return nil
	}
	decision, err := l.Decide(e.GetRecord().GetBody().GetStatement(), e)
	if err != nil {
		out := l.refused(e.GetIndex(), fmt.Sprintf("record %d, which let its body go, has no statement that allows it: %v", e.GetIndex(), err))
		if logproof.BodyMissing(e) {
			return out // that is found already
		}
		return append([]Problem{{e.GetIndex(), e.GetWriter(), err.Error(), false}}, out...)
	}
	if err := l.Apply(decision); err != nil {
		return append([]Problem{{e.GetIndex(), e.GetWriter(), err.Error(), false}},
			l.refused(e.GetIndex(), fmt.Sprintf("record %d, which let its body go, does not count: %v", e.GetIndex(), err))...)
	}
	if kind == auditv1.Kind_KIND_PRUNED {
		return l.settle(decision)
	}
	return nil
}

func (l *Ledger) claim(e *auditv1.Entry) []Problem {
	by := e.GetPrunedBy()
	switch {
	case !logproof.BodyMissing(e):
		return []Problem{{e.GetIndex(), e.GetWriter(), "it has its body, and is said to have lost it", false}}
	case by <= e.GetIndex():
		return []Problem{{e.GetIndex(), e.GetWriter(), fmt.Sprintf("its body is missing, and record %d, which is said to have let it go, is no later one", by), true}}
	}
	writer := slices.Index(l.writers, e.GetWriter())
	if writer < 0 {
		writer = len(l.writers)
		l.writers = append(l.writers, e.GetWriter())
	}
	if l.claims == nil {
		l.claims = map[uint64][]claim{}
	}
	r := e.GetRecord()
	l.claims[by] = append(l.claims[by], claim{
		index: e.GetIndex(), request: l.digest(r.GetRequestId()), operation: l.digest(r.GetOperationId()),
		written: r.GetTime().AsTime().Unix(), logged: e.GetLoggedAt().AsTime().Unix(), kind: r.GetKind(), writer: int32(writer),
	})
	return nil
}

// refused answers for all records that name the one at index.
func (l *Ledger) refused(index uint64, text string) (out []Problem) {
	for _, c := range l.claims[index] {
		out = append(out, Problem{c.index, l.writers[c.writer], text, true})
	}
	delete(l.claims, index)
	return out
}

// settle holds the records that name a pruning to its statement and to the holds that were in force.
func (l *Ledger) settle(d *Decision) (out []Problem) {
	before := d.Prune.Cutoff().Unix()
	type period struct{ since, until int64 }
	var periods []period
	held := map[uint64]bool{}
	for _, h := range l.holds {
		for _, id := range h.Hold.IDs {
			held[l.digest(id)] = true
		}
		if since, until := h.Hold.Period(); !until.IsZero() {
			periods = append(periods, period{since.Unix(), until.Unix()})
		}
	}
	delete(held, 0)
	for _, c := range l.claims[d.Index] {
		in := func(p period) bool {
			return c.written >= p.since && c.written < p.until || c.logged >= p.since && c.logged < p.until
		}
		kind := c.kind.String()
		text := ""
		switch {
		case c.index >= d.Prune.Size || c.written >= before || c.logged >= before || stays(c.kind):
			text = "its body is missing, and the statement in record %d is not for it"
		case held[c.request] || held[c.operation] || slices.ContainsFunc(periods, in):
			text = "its body is missing, and a legal hold kept it when record %d was written"
		case d.pruned[kind] >= d.Prune.Kinds[kind]:
			text = "its body is missing, and so are as many records as the human who signed record %d was shown"
		default:
			d.pruned[kind]++
			continue
		}
		out = append(out, Problem{c.index, l.writers[c.writer], fmt.Sprintf(text, d.Index), true})
	}
	delete(l.claims, d.Index)
	return out
}

// Finish returns what is wrong with records that name a pruning which never came.
func (l *Ledger) Finish() (out []Problem) {
	for by := range l.claims {
		out = append(out, l.refused(by, fmt.Sprintf("its body is missing, and record %d, which is said to have let it go, is no pruning", by))...)
	}
	slices.SortFunc(out, func(a, b Problem) int { return int(int64(a.Index) - int64(b.Index)) })
	return out
}

// Reasons why a decision does not stand.
var (
	errKind     = errors.New("the statement is of another kind than its record")
	errAudience = errors.New("the statement is for another log")
	errWriter   = errors.New("audit alone writes such records")
	// ErrUsed: a statement counts once.
	ErrUsed = errors.New("the statement was used before")
	// ErrNoHold: there is no such hold, or not any more.
	ErrNoHold = errors.New("no hold is in force that the statement could release")
	// ErrAhead: it speaks of records that are not there yet.
	ErrAhead = errors.New("the statement speaks of records that the log does not have yet")
)

var kindOf = map[statement.Kind]auditv1.Kind{
	statement.KindPrune: auditv1.Kind_KIND_PRUNED, statement.KindHold: auditv1.Kind_KIND_HELD, statement.KindRelease: auditv1.Kind_KIND_RELEASED,
}

// KindOf is the kind of the record that holds a statement; KIND_UNSPECIFIED: it is not about what is kept.
func KindOf(k statement.Kind) auditv1.Kind { return kindOf[k] }

// Decide verifies what a record of one of Kinds says: the signature by the keys of allowed_signers at the record's time, and that the
// statement was for that log, at that time.
func (l *Ledger) Decide(evidence *callv1.HumanStatement, e *auditv1.Entry) (*Decision, error) {
	writer, err := identity.Parse(e.GetWriter())
	if err != nil || !logproof.CarriesStatement(writer.Role(), e.GetRecord().GetKind()) {
		return nil, errWriter
	}
	v, err := statement.Verify(evidence, l.Allowed, e.GetLoggedAt().AsTime())
	if err != nil {
		return nil, err
	}
	switch {
	case kindOf[v.Kind] == 0 || kindOf[v.Kind] != e.GetRecord().GetKind():
		return nil, errKind
	case v.Audience != e.GetWriter():
		return nil, errAudience
	case v.Prune != nil && v.Prune.Size > e.GetIndex():
		return nil, ErrAhead
	}
	return &Decision{Index: e.GetIndex(), At: e.GetLoggedAt().AsTime(), Evidence: evidence, Statement: v.Statement, digest: v.Digest, pruned: map[string]uint64{}}, nil
}

// Apply counts a decision that stands.
func (l *Ledger) Apply(d *Decision) error {
	if at, used := l.used[d.digest]; used {
		return fmt.Errorf("%w, by record %d", ErrUsed, at)
	}
	switch d.Kind {
	case statement.KindPrune:
		d.holds = l.Holds()
		l.prunings = append(l.prunings, d)
	case statement.KindHold:
		l.holds = append(l.holds, d)
	default:
		at := slices.IndexFunc(l.holds, func(h *Decision) bool { return canonical.FormatDigest(h.digest[:]) == d.Releases })
		if at < 0 {
			return ErrNoHold
		}
		l.holds = slices.Delete(l.holds, at, at+1)
	}
	if l.used == nil {
		l.used = map[[sha256.Size]byte]uint64{}
	}
	l.used[d.digest] = d.Index
	return nil
}

// Used returns the record that holds a statement, by its signed bytes.
func (l *Ledger) Used(signed []byte) (uint64, bool) {
	at, used := l.used[canonical.Digest(signed)]
	return at, used
}

// Holds are the holds in force, and Prunings all that stand, each in the order of the log.
func (l *Ledger) Holds() []*Decision { return slices.Clone(l.holds) }

// Prunings are documented with Holds.
func (l *Ledger) Prunings() []*Decision { return slices.Clone(l.prunings) }

// Digest is the digest of the signed bytes, as a release names it.
func (d *Decision) Digest() string { return canonical.FormatDigest(d.digest[:]) }

// Keeps reports whether a hold in force keeps a record.
func (l *Ledger) Keeps(e *auditv1.Entry) bool { return keep(l.holds, e) }

// Spares reports whether a hold that was in force when a pruning was signed keeps a record of it, though it may have been released since.
func (d *Decision) Spares(e *auditv1.Entry) bool { return keep(d.holds, e) }

func keep(holds []*Decision, e *auditv1.Entry) bool {
	return slices.ContainsFunc(holds, func(h *Decision) bool { return Held(h.Hold, e) })
}
