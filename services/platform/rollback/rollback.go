// Package rollback holds a process's state against what the log knows of it. State that was lost, or is an older copy, would take spent
// keys, used statements and a halt for new: such a process halts, above every epoch that the log knows, until a human's statement
// resumes.
//
// It runs in the processes that keep authority: the vault and the sinks. It believes what this process itself recorded; a hostile audit
// can withhold that, and can make the process halt, which it can anyway.
package rollback

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/recorder"
)

// Retry is how often a log that did not answer is asked again.
const Retry = time.Second

// History is what the log knows of this process; the platform's recorder is one.
type History interface {
	// Last returns this process's own newest record of a kind, of one operation unless that is ""; nil for none.
	Last(ctx context.Context, kind auditv1.Kind, operation string) (*auditv1.Entry, error)
	// LastControl returns what it last recorded of its switch.
	LastControl(ctx context.Context) (recorder.Control, error)
	// LastState returns what it last told of its state, and the record's place; 0 where there is none.
	LastState(ctx context.Context) (recorder.State, uint64, error)
}

// Config is what a Keeper needs; everything but History is required.
type Config struct {
	// History is nil where the state is compared with nothing.
	History History
	// Control is the process's switch as it is.
	Control func() (epoch uint64, halted bool)
	// State is what the state is now; one of revision 0 is not told.
	State func(ctx context.Context) (recorder.State, error)
	// Missing says what else the log has that the state should know and does not; "" for nothing. What a human resumed after, the
	// records before that place in the log, is no matter any more.
	Missing func(ctx context.Context, resumed uint64) (string, error)
	// Halt halts, durably, at an epoch above that one.
	Halt func(ctx context.Context, reason string, above uint64) error
	// Tell records what happens whether or not it can be recorded.
	Tell func(ctx context.Context, record *auditv1.Record) error
	// Now is the process's clock.
	Now    func() time.Time
	Logger *slog.Logger
}

// Keeper compares the state with the log, and tells the log of it. It is safe for concurrent use.
type Keeper struct {
	cfg Config
	// compared: the state was held against the log; comparing is held meanwhile.
	compared  atomic.Bool
	comparing sync.Mutex
	due       chan struct{}
}

// New returns a Keeper of a state that was compared with nothing yet.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg, due: make(chan struct{}, 1)} }

// Compare holds the state against what the log knows of this process, once. An error says that the log did not answer, or that the
// halt is not durable.
func (k *Keeper) Compare(ctx context.Context) error {
	if k.cfg.History == nil || k.compared.Load() {
		return nil
	}
	k.comparing.Lock()
	defer k.comparing.Unlock()
	if k.compared.Load() {
		return nil
	}
	known, err := k.cfg.History.LastControl(ctx)
	if err != nil {
		return err
	}
	lost := known.Lost(k.cfg.Control())
	for _, look := range []func(context.Context, uint64) (string, error){k.cfg.Missing, k.older} {
		if lost == "" {
			if lost, err = look(ctx, known.Index); err != nil {
				return err
			}
		}
	}
	if lost = lostHolds(lost); lost != "" {
		what := "the state was lost or is an older copy"
		if known.Unfinished(k.cfg.Control()) {
			what = "a resumption was recorded and not written down, or the state is an older copy"
		}
		k.cfg.Logger.ErrorContext(ctx, "HALTED: "+strings.ToUpper(what)+". Find out why; put the newest back, or go on without it: durward resume", "missing", lost)
		if err := k.cfg.Halt(ctx, what+": "+lost, known.Epoch); err != nil {
			return err
		}
	}
	k.compared.Store(true)
	return nil
}

// Apart keeps comparisons, and others that call it, off until done is called: who resumes records that the switch is another before it is,
// and the log would be found ahead of the state.
func (k *Keeper) Apart() (done func()) {
	k.comparing.Lock()
	return k.comparing.Unlock
}

// compareUntil compares until the log has answered, and reports whether it did before ctx ended.
func (k *Keeper) compareUntil(ctx context.Context) bool {
	for k.Compare(ctx) != nil {
		if !clock.Sleep(ctx, Retry) {
			return false
		}
	}
	return true
}

// older says how the state is older than what was told of it, or another.
func (k *Keeper) older(ctx context.Context, resumed uint64) (string, error) {
	told, index, err := k.cfg.History.LastState(ctx)
	if err != nil || told.Revision == 0 || index < resumed {
		return "", err
	}
	now, err := k.cfg.State(ctx)
	if err != nil {
		return "", err
	}
	return told.Lost(now), nil
}

// Soon has Run tell the log of the state. It waits for nothing: a halt calls it before it answers.
func (k *Keeper) Soon() {
	select {
	case k.due <- struct{}{}:
	default: // it is due already
	}
}

// Run compares the state until the log has answered, and from then on tells the log of it each day, when it is due, and when ctx ends.
// Nothing is told before: an older copy would be compared with itself by the next process.
func (k *Keeper) Run(ctx context.Context) {
	if !k.compareUntil(ctx) {
		return
	}
	daily := time.NewTicker(recorder.StateEvery)
	defer daily.Stop()
	for {
		select {
		case <-ctx.Done():
			k.tell(context.WithoutCancel(ctx))
			return
		case <-k.due:
		case <-daily.C:
		}
		k.tell(ctx)
	}
}

func (k *Keeper) tell(ctx context.Context) {
	state, err := k.cfg.State(ctx)
	if err == nil && state.Revision > 0 {
		record := state.Record()
		record.Time = timestamppb.New(k.cfg.Now())
		err = k.cfg.Tell(ctx, record)
	}
	if err != nil {
		k.cfg.Logger.WarnContext(ctx, "what the state is could not be recorded", "error", err)
	}
}

// Damaged halts where rows of the state do not bear their seals, and then takes them as they are: at another epoch nothing of them is
// in force. It is called before anything acts by the state.
func Damaged(ctx context.Context, logger *slog.Logger, damage []string, halt func(ctx context.Context, reason string) error, accept func(ctx context.Context) error) error {
	if len(damage) == 0 {
		return nil
	}
	logger.ErrorContext(ctx, "HALTED: THE STATE IS DAMAGED. Find out why; put the newest backup back, or go on without what is damaged: durward resume", "damage", damage)
	if err := halt(ctx, "the state is damaged: "+strings.Join(damage, "; ")); err != nil {
		return err
	}
	return accept(ctx)
}
