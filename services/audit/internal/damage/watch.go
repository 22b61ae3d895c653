package damage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/deepcheck"
)

const (
	// newest is how many records are looked at before a process serves: what a torn write gets wrong is among the last.
	newest = 1024
	// daily is how often the whole log is read again, and share the part of the time that this may take.
	daily = 24 * time.Hour
	share = 10
	// keep begins what a human does about it.
	keep = "Stop audit, and keep a copy of its database as it is. "
	// advice is the rest where headers and the tree can be read, restore where they cannot.
	advice  = keep + `Then put a backup back, or have "sudo durward audit copy --damaged NEW.yaml" bring to a new database what verifies ("A damaged log" in deploy/docs/audit.md)`
	restore = keep + `Then put a backup back ("A damaged log" in deploy/docs/audit.md); "durward audit copy --damaged" needs the header of each record, and makes no copy here`
)

// advice is what a human does about what was found.
func (r *Report) advice() string {
	if r.Lost > 0 {
		return restore
	}
	return advice
}

// Explain adds to the error of a log that does not open, if it is damaged, what of it is, and what to do: by what can be read of the file
// in stateDir, or by db where that is another process's. A nil db is one that does not open.
func Explain(ctx context.Context, db *store.Store, stateDir string, cause error) error {
	if !errors.Is(cause, log.ErrDamaged) && !store.Damaged(cause) {
		return cause
	}
	if db == nil || db.Folder() != "" {
		var err error
		if db, err = store.OpenDamaged(ctx, stateDir); err != nil {
			return fmt.Errorf("%w. No record can be read: %w. %s", cause, err, advice)
		}
		defer func() { _ = db.Close() }() // it was read alone
	}
	return explain(ctx, db, cause)
}

func explain(ctx context.Context, db *store.Store, cause error) error {
	size, err := db.Extent(ctx)
	r := &Report{}
	if err == nil {
		err = r.Examine(ctx, db, 0, size, nil)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w. No record can be read: %w. %s", cause, err, advice)
	case r.Sound():
		return fmt.Errorf("%w. Each of the %d records is sound by the tree that is stored. %s", cause, r.Seen, advice)
	}
	said := ""
	if r.Cause != "" {
		said = " (" + r.Cause + ")"
	}
	return fmt.Errorf("%w. %s%s. %s", cause, r, said, r.advice())
}

// Newest refuses a log of that size whose newest records are damaged. One that lacks its body is not refused.
func Newest(ctx context.Context, db *store.Store, size uint64) error {
	r := &Report{}
	if err := r.Examine(ctx, db, size-min(size, newest), size, nil); err != nil {
		return fmt.Errorf("the stored log cannot be read: %w", err)
	}
	if r.Wrong == r.Absent {
		return nil
	}
	return explain(ctx, db, fmt.Errorf("%w: %d of its newest records", log.ErrDamaged, r.Wrong))
}

// Watch reads a whole log after a start and once a day, at a tenth of the time, so that damage is known before somebody needs the record.
// It is safe for concurrent use.
type Watch struct {
	store  Store
	size   func() uint64
	logger *slog.Logger
	found  atomic.Pointer[Report]
}

// NewWatch returns a watch over a store of a log with that size.
func NewWatch(s Store, size func() uint64, logger *slog.Logger) *Watch {
	return &Watch{store: s, size: size, logger: logger}
}

// Run examines until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		w.once(ctx)
		clock.Sleep(ctx, daily)
	}
}

func (w *Watch) once(ctx context.Context) {
	r := &Report{}
	began := time.Now()
	err := r.Examine(ctx, w.store, 0, w.size(), func(ctx context.Context) error {
		if !r.Sound() {
			w.tell(ctx, r)
		}
		clock.Sleep(ctx, (share-1)*time.Since(began))
		began = time.Now()
		return ctx.Err()
	})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		w.logger.WarnContext(ctx, "the log could not be read to its end to look for damage", "read", r.Seen, "error", err)
	default:
		w.tell(ctx, r)
		w.logger.InfoContext(ctx, "the log was read to look for damage", "records", r.Seen, "damaged", r.Wrong)
	}
}

// tell publishes a report, and logs it when it has something new.
func (w *Watch) tell(ctx context.Context, r *Report) {
	copied := *r
	copied.Findings = append([]Finding(nil), r.Findings...)
	if old := w.found.Swap(&copied); !r.Sound() && (old == nil || old.String() != r.String()) {
		w.logger.ErrorContext(ctx, "THE LOG IS DAMAGED", "damage", r.String(), "cause", r.Cause, "do", r.advice())
	}
}

// Ask is for a deep check.
func (w *Watch) Ask(context.Context) error {
	if r := w.found.Load(); r != nil && !r.Sound() {
		return deepcheck.Said("the log is damaged: " + r.String())
	}
	return nil
}

// Refused is what somebody is told whose read met damage in the records from one index to below another.
func Refused(ctx context.Context, s Store, from, end uint64) string {
	r := &Report{}
	if err := r.Examine(ctx, s, from, end, nil); err != nil || r.Sound() {
		return `the audit log is damaged where this reads it; "durward doctor" names the records`
	}
	return "the audit log is damaged: " + r.Findings[0].String()
}
