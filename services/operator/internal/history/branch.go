package history

import (
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/contract"
)

// Branch is one operation of a story, or what was recorded of its request beside its operations.
type Branch struct {
	// Operation is "" for what belongs to none.
	Operation string `json:"operation_id"`
	Tool      string `json:"tool,omitempty"`
	Principal string `json:"client,omitempty"`
	Session   string `json:"session,omitempty"`
	// Status is how it ended, or how it stands; StandsOut says why a reader should look at it.
	Status    string `json:"status,omitempty"`
	StandsOut string `json:"stands_out,omitempty"`
	// Waited is from being asked for to a human's decision, Ran from the intent to the outcome, Took from the first step to the last.
	// Nil: it did not come so far.
	Waited *Milliseconds `json:"waited_ms,omitempty"`
	Ran    *Milliseconds `json:"ran_ms,omitempty"`
	Took   *Milliseconds `json:"took_ms,omitempty"`
	Steps  []Step        `json:"steps"`
}

// Step is a record of a branch.
type Step struct {
	Entry *auditv1.Entry `json:"-"`
	Index uint64         `json:"index"`
	Kind  string         `json:"kind"`
	// After is how long after the step before; of a look at an operation there is none, and none is counted from it.
	After *Milliseconds `json:"after_ms,omitempty"`
}

// Milliseconds is a time between two records, by the log's clock: one clock for all writers.
type Milliseconds int64

func between(from, to time.Time) *Milliseconds {
	d := Milliseconds(to.Sub(from).Milliseconds())
	return &d
}

// Branches lays out a story, whose entries are in the order of the log. Operations come in the order in which they begin, and what
// belongs to none comes last.
func Branches(entries []*auditv1.Entry) []Branch {
	var out []*Branch
	byID := map[string]*Branch{}
	for _, e := range entries {
		id := e.GetRecord().GetOperationId()
		b := byID[id]
		if b == nil {
			b = &Branch{Operation: id}
			byID[id] = b
			if id != "" {
				out = append(out, b)
			}
		}
		b.Steps = append(b.Steps, Step{Entry: e, Index: e.GetIndex(), Kind: contract.WordOf(e.GetRecord().GetKind())})
	}
	if rest := byID[""]; rest != nil {
		out = append(out, rest)
	}
	branches := make([]Branch, len(out))
	for i, b := range out {
		if b.Operation != "" {
			b.measure()
		}
		branches[i] = *b
	}
	return branches
}

// measure reads from an operation's steps what it was about, how it ended, and how long its parts took.
func (b *Branch) measure() {
	var first, before, asked, began time.Time
	for i := range b.Steps {
		e := b.Steps[i].Entry
		r, at := e.GetRecord(), e.GetLoggedAt().AsTime()
		set := func(to *string, text string) {
			if *to == "" {
				*to = text
			}
		}
		set(&b.Tool, r.GetTool())
		set(&b.Principal, r.GetBody().GetPrincipal())
		set(&b.Session, r.GetBody().GetSession())
		if why := StandsOut(e); why != "" {
			b.StandsOut = why
		}
		if r.GetKind() == auditv1.Kind_KIND_READ {
			continue // somebody looked how it stands
		}
		b.Status = contract.WordOf(r.GetKind())
		if first.IsZero() {
			first = at
		} else {
			b.Steps[i].After, b.Took = between(before, at), between(first, at)
		}
		before = at
		switch r.GetKind() {
		case auditv1.Kind_KIND_ASKED:
			asked = at
		case auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_DENIED:
			if b.Waited == nil && !asked.IsZero() {
				b.Waited = between(asked, at)
			}
		case auditv1.Kind_KIND_INTENT:
			began = at
		case auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED:
			if !began.IsZero() {
				b.Ran = between(began, at)
			}
			if r.GetStatus() != auditv1.Status_STATUS_UNSPECIFIED {
				b.Status = contract.WordOf(r.GetStatus())
			}
		default:
		}
	}
}
