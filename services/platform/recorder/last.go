package recorder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

// Last returns this process's own newest record of a kind, of one operation unless that is "": from its spool, else from the log;
// nil where there is none. Audit could withhold it, and can make nothing up that this process's key did not write: it could but
// have a process halt, which a hostile audit can do anyway.
func (r *Recorder) Last(ctx context.Context, kind auditv1.Kind, operation string) (*auditv1.Entry, error) {
	r.mu.Lock()
	waiting := r.waiting(kind, operation)
	r.mu.Unlock()
	return r.orLogged(ctx, waiting, kind, operation)
}

// orLogged is what waits, or where nothing does what the log has.
func (r *Recorder) orLogged(ctx context.Context, waiting *auditv1.Entry, kind auditv1.Kind, operation string) (*auditv1.Entry, error) {
	if waiting != nil {
		return waiting, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	answer, err := r.cfg.Client.GetLast(ctx, &auditv1.GetLastRequest{Kind: kind, OperationId: operation})
	if err != nil || answer.GetEntry() == nil {
		return nil, err
	}
	e := answer.GetEntry()
	if err := logproof.VerifyEntry(e); err != nil {
		return nil, err
	}
	if e.GetWriter() != r.cfg.Writer || e.GetRecord().GetKind() != kind || operation != "" && e.GetRecord().GetOperationId() != operation {
		return nil, fmt.Errorf("%w: it is another record than was asked for", logproof.ErrEntry)
	}
	return e, nil
}

// waiting returns the newest such record that has not reached the log, with a place behind all that the log has, in the order in which
// records came; nil where there is none. The caller holds mu.
func (r *Recorder) waiting(kind auditv1.Kind, operation string) *auditv1.Entry {
	for _, it := range slices.Backward(slices.Concat(r.flight, r.queue)) {
		if it.record.GetKind() == kind && (operation == "" || it.record.GetOperationId() == operation) {
			return &auditv1.Entry{Index: ^uint64(0) - (r.lastID - it.id), Writer: r.cfg.Writer, Record: it.record, LoggedAt: it.record.GetTime()}
		}
	}
	return nil
}

// Control is what a process last recorded of its switch.
type Control struct {
	// Index is the record's place in the log; 0, with the rest, where there is no such record.
	Index  uint64
	Epoch  uint64
	Halted bool
}

// LastControl returns what this process last recorded of its switch.
func (r *Recorder) LastControl(ctx context.Context) (Control, error) {
	const halted, resumed = auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED
	// Looked for at one moment: of two that wait, the later could be in the log by the time that the earlier is found waiting, before it.
	r.mu.Lock()
	waiting := map[auditv1.Kind]*auditv1.Entry{halted: r.waiting(halted, ""), resumed: r.waiting(resumed, "")}
	r.mu.Unlock()
	var last Control
	for _, kind := range []auditv1.Kind{halted, resumed} {
		e, err := r.orLogged(ctx, waiting[kind], kind, "")
		if err != nil {
			return Control{}, err
		}
		if e == nil {
			continue
		}
		epoch, err := strconv.ParseUint(e.GetRecord().GetBody().GetDetails()["epoch"], 10, 64)
		if err != nil {
			return Control{}, fmt.Errorf("record %d names no epoch: %w", e.GetIndex(), err)
		}
		if e.GetIndex() >= last.Index {
			last = Control{Index: e.GetIndex(), Epoch: epoch, Halted: kind == halted}
		}
	}
	return last, nil
}

// Lost says how a state with that epoch and halt is older than what was recorded; "" where it is not.
func (c Control) Lost(epoch uint64, halted bool) string {
	switch {
	case epoch < c.Epoch:
		return fmt.Sprintf("the log has epoch %d, and the state epoch %d", c.Epoch, epoch)
	case epoch == c.Epoch && c.Halted && !halted:
		return fmt.Sprintf("the log has a halt at epoch %d, and the state does not", c.Epoch)
	default:
		return ""
	}
}

// Unfinished reports whether a resumption is the last that was recorded, and the state is halted from before it: one that was never written
// down looks like that, and an older copy too.
func (c Control) Unfinished(epoch uint64, halted bool) bool {
	return halted && !c.Halted && epoch < c.Epoch
}

// State is what a process's authority data was at one time, as it tells the log each day, at a halt and at its end: with that it
// knows an older copy of them at its next start, whatever of it is older.
type State struct {
	// Revision counts all changes; an older copy has a lower one.
	Revision uint64
	// Digest is keyed, over all rows.
	Digest string
	// Rows counts rows by table.
	Rows map[string]uint64
}

// StateEvery is how often a process tells the log of its state.
const StateEvery = 24 * time.Hour

// Record returns the record that tells the log of it, but for its time.
func (s State) Record() *auditv1.Record {
	// One detail for all tables: what is called after one, as rows.credentials, would be redacted.
	rows := make([]string, 0, len(s.Rows))
	for _, table := range slices.Sorted(maps.Keys(s.Rows)) {
		rows = append(rows, strconv.FormatUint(s.Rows[table], 10)+" "+table)
	}
	details := map[string]string{"revision": strconv.FormatUint(s.Revision, 10), "digest": s.Digest, "rows": strings.Join(rows, ", ")}
	return &auditv1.Record{
		Kind: auditv1.Kind_KIND_STATE, Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{Summary: "what its own state is", Details: details},
	}
}

// LastState returns what this process last told of its state, and the record's place in the log: 0 where there is none.
func (r *Recorder) LastState(ctx context.Context) (State, uint64, error) {
	e, err := r.Last(ctx, auditv1.Kind_KIND_STATE, "")
	if err != nil || e == nil {
		return State{}, 0, err
	}
	details := e.GetRecord().GetBody().GetDetails()
	out := State{Digest: details["digest"], Rows: map[string]uint64{}}
	if out.Revision, err = strconv.ParseUint(details["revision"], 10, 64); err != nil {
		return State{}, 0, fmt.Errorf("record %d names no revision: %w", e.GetIndex(), err)
	}
	// Records of earlier versions have none: what was lost is told by the revision, and the rows only say where.
	for row := range strings.SplitSeq(details["rows"], ", ") {
		n, table, _ := strings.Cut(row, " ")
		if count, err := strconv.ParseUint(n, 10, 64); err == nil {
			out.Rows[table] = count
		}
	}
	return out, e.GetIndex(), nil
}

// Lost says how a state is older than this one, or another; "" where it is not.
func (s State) Lost(now State) string {
	switch {
	case now.Revision < s.Revision:
		fewer := ""
		for _, table := range slices.Sorted(maps.Keys(s.Rows)) {
			if now.Rows[table] < s.Rows[table] {
				fewer += fmt.Sprintf("; %s has %d rows of %d", table, now.Rows[table], s.Rows[table])
			}
		}
		return fmt.Sprintf("the log has revision %d of it, and it is revision %d%s", s.Revision, now.Revision, fewer)
	case now.Revision == s.Revision && now.Digest != s.Digest:
		return fmt.Sprintf("the log has another state of revision %d", s.Revision)
	default:
		return ""
	}
}
