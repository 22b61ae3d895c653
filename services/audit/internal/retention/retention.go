// Package retention decides what the log keeps of a record beside its header, by what humans signed, and removes the rest (AUD-5). It
// belongs to the audit process. It keeps no state of its own: what was decided is in the log, and is verified again each time that it is
// acted on, so that a key that is no operator's any more removes nothing more.
//
// Bodies are removed a piece at a time, each between two transactions of the log. A process that is killed goes on where it was, since a
// body that is gone is not looked at again.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/retention"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

const (
	// piece bounds what is removed at once, and looked bounds what is looked through at once.
	piece, looked = 200, 5000
	// rest is how much longer than a piece it waits after one, and least the least of that: writers have the log for most of the time, and what a
	// reader keeps is not tried again at once.
	rest  = 4
	least = 5 * time.Millisecond
	// again is how often what is left to do is looked for.
	again = time.Minute
	// decisions bounds one read of what was decided.
	decisions = 1000
)

// Log is what a Keeper needs of the log.
type Log interface {
	Size() uint64
	Follows() bool
	Between(ctx context.Context, f func(context.Context) error) error
}

// Store is what a Keeper needs of its database.
type Store interface {
	Search(ctx context.Context, q store.Query, limit, maxBytes int) ([]*auditv1.Entry, error)
	Headers(ctx context.Context, from, end uint64, limit int, row func(*auditv1.Entry)) (uint64, error)
	Newest(ctx context.Context, end uint64) (map[uint64]bool, error)
	Prune(ctx context.Context, by uint64, entries []uint64) error
	Pruned(ctx context.Context, by uint64) (bool, error)
	SetPruned(ctx context.Context, by uint64) error
	Wipe(ctx context.Context) (more bool, err error)
}

// Config is what a Keeper needs; all of it is required.
type Config struct {
	Log   Log
	Store Store
	// Identity is audit's own.
	Identity identity.ID
	// Record writes a record of this process, and returns its index.
	Record func(ctx context.Context, r *auditv1.Record) (uint64, error)
	// Allowed returns the operators' keys.
	Allowed func() *trust.AllowedSigners
	Logger  *slog.Logger
	Now     func() time.Time
}

// Keeper is safe for concurrent use; run it.
type Keeper struct {
	cfg Config
	// deciding is held while a decision is made, and while a piece is removed: a hold that was answered keeps.
	deciding sync.Mutex
	wake     chan struct{}
}

// New returns a keeper.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg, wake: make(chan struct{}, 1)} }

// Survey is what a pruning would remove.
type Survey struct {
	Size           uint64
	Kinds          map[string]uint64
	Oldest, Newest time.Time
	Held           uint64
}

// Survey counts what goes of the records that were written before a time.
func (k *Keeper) Survey(ctx context.Context, before time.Time) (Survey, error) {
	ledger, err := k.ledger(ctx)
	if err != nil {
		return Survey{}, err
	}
	return k.survey(ctx, ledger, &statement.Prune{Size: k.cfg.Log.Size(), Before: statement.FormatTime(before)})
}

func (k *Keeper) survey(ctx context.Context, ledger *retention.Ledger, p *statement.Prune) (Survey, error) {
	out := Survey{Size: p.Size, Kinds: map[string]uint64{}}
	needed, err := k.cfg.Store.Newest(ctx, p.Size)
	for next := uint64(0); err == nil && next < p.Size; {
		var list []*auditv1.Entry
		list, next, err = k.candidates(ctx, p, needed, next)
		for _, e := range list {
			if ledger.Keeps(e) {
				out.Held++
				continue
			}
			out.Kinds[e.GetRecord().GetKind().String()]++
			at := e.GetRecord().GetTime().AsTime()
			if out.Oldest.IsZero() || at.Before(out.Oldest) {
				out.Oldest = at
			}
			if at.After(out.Newest) {
				out.Newest = at
			}
		}
	}
	return out, err
}

// candidates returns, from one index on, records whose bodies are there and may go by the statement, but for holds; and where to go on.
func (k *Keeper) candidates(ctx context.Context, p *statement.Prune, needed map[uint64]bool, from uint64) (list []*auditv1.Entry, next uint64, err error) {
	next, err = k.cfg.Store.Headers(ctx, from, p.Size, looked, func(e *auditv1.Entry) {
		if retention.Prunable(p, e) && !needed[e.GetIndex()] {
			list = append(list, e)
		}
	})
	return list, next, err
}

// ledger reads what was decided.
func (k *Keeper) ledger(ctx context.Context) (*retention.Ledger, error) {
	ledger := &retention.Ledger{Allowed: k.cfg.Allowed()}
	var all []*auditv1.Entry
	for q := (store.Query{Kinds: retention.Kinds, Writer: k.cfg.Identity.String()}); ; {
		found, err := k.cfg.Store.Search(ctx, q, decisions, 1<<24)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			break
		}
		all = append(all, found...)
		if q.Before = found[len(found)-1].GetIndex(); q.Before == 0 {
			break
		}
	}
	for _, e := range slices.Backward(all) {
		for _, problem := range ledger.Add(e) {
			k.cfg.Logger.WarnContext(ctx, "a decision about what the log keeps does not stand", "record", problem.Index, "cause", problem.Text)
		}
	}
	return ledger, nil
}

// State is what was decided.
type State struct {
	Holds    []*retention.Decision
	Prunings []*retention.Decision
	// Done are those that are carried out to the end, by their index.
	Done map[uint64]bool
}

// State returns what was decided.
func (k *Keeper) State(ctx context.Context) (State, error) {
	ledger, err := k.ledger(ctx)
	if err != nil {
		return State{}, err
	}
	out := State{Holds: ledger.Holds(), Prunings: ledger.Prunings(), Done: map[uint64]bool{}}
	for _, p := range out.Prunings {
		if out.Done[p.Index], err = k.cfg.Store.Pruned(ctx, p.Index); err != nil {
			return State{}, err
		}
	}
	return out, nil
}

func conflict(text string) *fault.Error {
	return fault.New(callv1.Code_CODE_CONFLICT, text, fault.WithField("statement"))
}

// Decide verifies a statement, records it, and returns its record's index. What it decides holds from then on.
func (k *Keeper) Decide(ctx context.Context, signed *callv1.HumanStatement) (uint64, error) {
	k.deciding.Lock()
	defer k.deciding.Unlock()
	ledger, err := k.ledger(ctx)
	if err != nil {
		return 0, err
	}
	if at, used := ledger.Used(signed.GetStatement()); used {
		return at, nil
	}
	refused := func(err error) *fault.Error {
		return fault.New(callv1.Code_CODE_DENIED, "the statement decides nothing about this log: audit does not know its key, or it is for another log or time",
			fault.WithField("statement"), fault.WithCause(err))
	}
	st, err := statement.Parse(signed.GetStatement())
	if err != nil {
		return 0, refused(err)
	}
	kind := retention.KindOf(st.Kind)
	now := timestamppb.New(k.cfg.Now())
	logged, err := k.logged(ctx)
	if err != nil {
		return 0, err
	}
	body := &auditv1.Body{Action: string(st.Kind), Summary: summary(st), DecisionSource: "operator " + st.Operator, Statement: signed, Persistent: true}
	if st.Hold != nil {
		body.Reason = st.Hold.Reason
	}
	record := &auditv1.Record{Kind: kind, Time: now, Status: auditv1.Status_STATUS_OK, Body: body}
	decision, err := ledger.Decide(signed, &auditv1.Entry{Index: k.cfg.Log.Size(), Writer: k.cfg.Identity.String(), Record: record, LoggedAt: logged})
	ahead := logged.AsTime().Sub(now.AsTime())
	switch {
	case errors.Is(err, statement.ErrTime) && ahead >= time.Second:
		return 0, conflict(fmt.Sprintf("nothing can be decided about what the log keeps: by its clock, which does not go back, it is %s later than by this host's, which is behind or was ahead: set the clock, or wait",
			ahead.Round(time.Second)))
	case errors.Is(err, retention.ErrAhead):
		return 0, conflict(err.Error())
	case err != nil:
		return 0, refused(err)
	}
	if st.Kind == statement.KindPrune {
		if err := k.counted(ctx, ledger, st.Prune); err != nil {
			return 0, err
		}
	}
	if err := ledger.Apply(decision); err != nil {
		return 0, conflict(err.Error())
	}
	index, err := k.cfg.Record(ctx, record)
	if err != nil {
		return 0, err
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return index, nil
}

// logged is the time that the log would give a record now, by which others judge it: not before that of its newest.
func (k *Keeper) logged(ctx context.Context) (*timestamppb.Timestamp, error) {
	at := timestamppb.New(k.cfg.Now())
	size := k.cfg.Log.Size()
	_, err := k.cfg.Store.Headers(ctx, max(size, 1)-1, size, 1, func(e *auditv1.Entry) {
		if e.GetLoggedAt().AsTime().After(at.AsTime()) {
			at = e.GetLoggedAt()
		}
	})
	return at, err
}

// counted demands that what the human was shown is what would go.
func (k *Keeper) counted(ctx context.Context, ledger *retention.Ledger, p *statement.Prune) error {
	now, err := k.survey(ctx, ledger, p)
	if err != nil {
		return err
	}
	if !maps.Equal(now.Kinds, p.Kinds) || now.Held != p.Held || statement.FormatTime(now.Oldest) != p.Oldest || statement.FormatTime(now.Newest) != p.Newest {
		return conflict("other records would go than those that were shown and signed: look again")
	}
	return nil
}

// Run removes what may go, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	look := time.NewTicker(again)
	defer look.Stop()
	for {
		if err := k.work(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrFollows) {
			k.cfg.Logger.ErrorContext(ctx, "pruning the log goes on later", "cause", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-k.wake:
		}
	}
}

// work carries out what was decided and is not done.
func (k *Keeper) work(ctx context.Context) error {
	if k.cfg.Log.Follows() {
		return nil
	}
	state, err := k.State(ctx)
	if err != nil {
		return err
	}
	var left []*retention.Decision
	for _, p := range state.Prunings {
		if !state.Done[p.Index] {
			left = append(left, p)
		}
	}
	if len(left) == 0 {
		return nil
	}
	for _, p := range left {
		removed, err := k.prune(ctx, p)
		if err != nil {
			return err
		}
		k.cfg.Logger.InfoContext(ctx, "bodies of the log were removed, as an operator signed", "record", p.Index, "operator", p.Operator, "bodies", removed)
	}
	for more := true; more; {
		began := time.Now()
		if more, err = k.cfg.Store.Wipe(ctx); err != nil {
			return err
		}
		if !clock.Sleep(ctx, max(rest*time.Since(began), least)) {
			return ctx.Err()
		}
	}
	for _, p := range left {
		if err := k.cfg.Log.Between(ctx, func(ctx context.Context) error { return k.cfg.Store.SetPruned(ctx, p.Index) }); err != nil {
			return err
		}
	}
	return nil
}

// prune removes bodies, and returns how many.
func (k *Keeper) prune(ctx context.Context, p *retention.Decision) (removed int, err error) {
	needed, err := k.cfg.Store.Newest(ctx, p.Prune.Size)
	for next := uint64(0); err == nil && next < p.Prune.Size; {
		var list []*auditv1.Entry
		list, next, err = k.candidates(ctx, p.Prune, needed, next)
		for part := range slices.Chunk(list, piece) {
			began := time.Now()
			gone, err := k.remove(ctx, p, part)
			if err != nil {
				return removed, err
			}
			if !clock.Sleep(ctx, rest*time.Since(began)) {
				return removed, ctx.Err()
			}
			removed += gone
		}
	}
	return removed, err
}

// remove removes one piece, of what no hold keeps now, nor kept when the pruning was signed.
func (k *Keeper) remove(ctx context.Context, p *retention.Decision, list []*auditv1.Entry) (int, error) {
	k.deciding.Lock()
	defer k.deciding.Unlock()
	ledger, err := k.ledger(ctx)
	if err != nil {
		return 0, err
	}
	if _, stands := ledger.Used(p.Evidence.GetStatement()); !stands {
		return 0, errors.New("the statement does not stand any more")
	}
	var gone []uint64
	for _, e := range list {
		if !ledger.Keeps(e) && !p.Spares(e) {
			gone = append(gone, e.GetIndex())
		}
	}
	return len(gone), k.cfg.Log.Between(ctx, func(ctx context.Context) error { return k.cfg.Store.Prune(ctx, p.Index, gone) })
}
