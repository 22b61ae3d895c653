package statement

import (
	"fmt"
	"time"
)

// Prune is which records of the log lose their bodies. Headers, commitments and the tree stay. The counts are what the operator's
// program displayed: no more records than that go.
type Prune struct {
	// Size is the tree that was counted: no record behind it goes.
	Size uint64 `json:"size"`
	// Before: a record goes if it was written before, by its writer's clock and by the log's.
	Before string `json:"before"`
	// Kinds is how many records of each kind go, by the kind's name, and Held how many stay because of a hold.
	Kinds map[string]uint64 `json:"kinds"`
	Held  uint64            `json:"held"`
	// Oldest and Newest are of the records that go, by their writers' clocks.
	Oldest string `json:"oldest"`
	Newest string `json:"newest"`
}

// Hold is which records no pruning reaches: those of a request or operation, and those that were written in a time, by their writer's
// clock or by the log's.
type Hold struct {
	// IDs are request and operation ids.
	IDs []string `json:"ids,omitempty"`
	// Since <= a record's time < Until; both or neither.
	Since string `json:"since,omitempty"`
	Until string `json:"until,omitempty"`
	// Reason is the human's: the case that it is for.
	Reason string `json:"reason"`
}

// Bounds of a hold.
const (
	MaxHeldIDs    = 200
	maxHeldID     = 64
	maxHeldReason = 500
)

// Sum is how many records go.
func (p *Prune) Sum() (n uint64) {
	for _, count := range p.Kinds {
		n += count
	}
	return n
}

// Cutoff is Before, and Period Since and Until, of a checked statement.
func (p *Prune) Cutoff() time.Time {
	at, _ := parseTime(p.Before)
	return at
}

// Period is zero twice for a hold of ids alone.
func (h *Hold) Period() (since, until time.Time) {
	since, _ = parseTime(h.Since)
	until, _ = parseTime(h.Until)
	return since, until
}

func (p *Prune) check(issued time.Time) error {
	bad := func(what string) error { return fmt.Errorf("%w: a pruning's %s", ErrMalformed, what) }
	before, err := parseTime(p.Before)
	if err != nil || before.After(issued) {
		return bad("time is no time in the past")
	}
	oldest, err := parseTime(p.Oldest)
	if err != nil {
		return bad("oldest record has no time")
	}
	newest, err := parseTime(p.Newest)
	if err != nil || newest.Before(oldest) || newest.After(before) {
		return bad("newest record has no time before its end")
	}
	if len(p.Kinds) == 0 || p.Size == 0 || p.Size >= 1<<53 || p.Held > p.Size {
		return bad("size or counts are missing")
	}
	left := p.Size
	for kind, n := range p.Kinds {
		if kind == "" || n == 0 || n > left {
			return bad("counts are more than its records")
		}
		left -= n
	}
	return nil
}

func (h *Hold) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: a hold's %s", ErrMalformed, what) }
	if h.Reason == "" || len(h.Reason) > maxHeldReason {
		return bad("reason is missing or too long")
	}
	if len(h.IDs) == 0 && h.Since == "" || len(h.IDs) > MaxHeldIDs {
		return bad("records are not named: 1 to 200 ids, or a time")
	}
	seen := map[string]bool{}
	for _, id := range h.IDs {
		if id == "" || len(id) > maxHeldID || seen[id] {
			return bad("ids are not ids, once each")
		}
		seen[id] = true
	}
	if h.Since == "" && h.Until == "" {
		return nil
	}
	since, err1 := parseTime(h.Since)
	until, err2 := parseTime(h.Until)
	if err1 != nil || err2 != nil || !since.Before(until) {
		return bad("time does not begin before it ends")
	}
	return nil
}
