package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
)

// Tally counts what a part of the log says. Add takes its entries in order.
type Tally struct {
	Records int `json:"records"`
	// Calls are those that ended, by how: reads, changes, refusals at a sink.
	Tools      map[string]*Count `json:"tools"`
	Principals map[string]*Count `json:"clients"`
	// Decisions are the vault's of operations.
	Decisions map[string]int `json:"decisions"`
	// Refused counts what never reached a decision, or a sink did not accept.
	Refused int `json:"refused"`
	// Waits is how long those took, in order, that a human approved after they were asked for.
	Waits []time.Duration `json:"-"`
	// Notable are the newest entries that stand out, at most maxNotable, oldest first.
	Notable []*auditv1.Entry `json:"-"`
	asked   map[string]time.Time
}

// Count is how calls ended.
type Count struct {
	OK     int `json:"ok"`
	Denied int `json:"denied"`
	Failed int `json:"failed"`
}

// All is how many there were.
func (c Count) All() int { return c.OK + c.Denied + c.Failed }

const maxNotable = 100

// NewTally returns one that has seen nothing.
func NewTally() *Tally {
	return &Tally{Tools: map[string]*Count{}, Principals: map[string]*Count{}, Decisions: map[string]int{}, asked: map[string]time.Time{}}
}

// Add counts an entry.
func (t *Tally) Add(e *auditv1.Entry) {
	t.Records++
	r := e.GetRecord()
	switch r.GetKind() {
	case auditv1.Kind_KIND_ASKED:
		if _, known := t.asked[r.GetOperationId()]; !known {
			t.asked[r.GetOperationId()] = e.GetLoggedAt().AsTime()
		}
	case auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_WITHDRAWN:
		t.Decisions[word(r.GetKind())]++
		if at, known := t.asked[r.GetOperationId()]; known && r.GetKind() == auditv1.Kind_KIND_APPROVED {
			t.Waits = append(t.Waits, e.GetLoggedAt().AsTime().Sub(at))
			delete(t.asked, r.GetOperationId())
		}
	case auditv1.Kind_KIND_REFUSED, auditv1.Kind_KIND_AUTHENTICATION_FAILED:
		t.Refused++
	case auditv1.Kind_KIND_SINK_REFUSED:
		t.Refused++
		t.ended(e)
	case auditv1.Kind_KIND_READ, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED:
		t.ended(e)
	default:
	}
	if StandsOut(e) != "" || withheld(e) {
		if t.Notable = append(t.Notable, e); len(t.Notable) > maxNotable {
			t.Notable = t.Notable[1:]
		}
	}
}

// ended counts a call by its tool and by its client.
func (t *Tally) ended(e *auditv1.Entry) {
	one := Count{OK: 1}
	switch e.GetRecord().GetStatus() {
	case auditv1.Status_STATUS_OK, auditv1.Status_STATUS_PENDING, auditv1.Status_STATUS_UNSPECIFIED:
	case auditv1.Status_STATUS_DENIED:
		one = Count{Denied: 1}
	default:
		one = Count{Failed: 1}
	}
	add := func(to map[string]*Count, name string) {
		if name = clean.Line(name, 128); name == "" {
			name = "-"
		}
		if to[name] == nil {
			to[name] = &Count{}
		}
		to[name].OK += one.OK
		to[name].Denied += one.Denied
		to[name].Failed += one.Failed
	}
	add(t.Tools, e.GetRecord().GetTool())
	add(t.Principals, e.GetRecord().GetBody().GetPrincipal())
}

// Busiest are the names of counts, those with the most calls first.
func Busiest(counts map[string]*Count) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b].All(), counts[a].All()), cmp.Compare(a, b))
	})
}

// Wait is the time within which a part of those who were asked approved, in hundredths; 0 where nobody approved.
func (t *Tally) Wait(percent int) time.Duration {
	if len(t.Waits) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t.Waits))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// FewDays is how many days a disk should last at least.
const FewDays = 14

// DaysLeft is how many days the log's disk lasts at the rate at which the log grows; false where that cannot be told, since the log is
// young, does not grow, or lies with a database server.
func DaysLeft(audit *auditv1.GetStatusResponse) (days uint64, known bool) {
	if audit.GetBytesPerDay() == 0 || audit.GetDiskFreeBytes() == 0 {
		return 0, false
	}
	return audit.GetDiskFreeBytes() / audit.GetBytesPerDay(), true
}
