package standing

import (
	"context"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
)

// maxWatchers bounds how many programs watch at once.
const maxWatchers = 16

// Change is how a session stands: until when it is in dangerous mode (zero: it is not), and whether it has ended. Lists, of no session:
// what any may call may have changed.
type Change struct {
	Session string
	Until   time.Time
	Ended   bool
	Lists   bool
}

// watcher gathers changes for one program. A slow one gets fewer, newer states, and holds nobody up.
type watcher struct {
	changed map[string]Change // under Approvals.mu
	order   []string
	signal  chan struct{}
}

func (w *watcher) touch(c Change) {
	if _, known := w.changed[c.Session]; !known {
		w.order = append(w.order, c.Session)
	}
	w.changed[c.Session] = c
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (b *Approvals) tellLocked(c Change) {
	for w := range b.watchers {
		w.touch(c)
	}
}

// Watch sends every session in dangerous mode, then each change. A halt is seen at once. It calls begun, before it sends, when no change
// is missed any more. It returns when ctx ends or either fails.
func (b *Approvals) Watch(ctx context.Context, begun func() error, send func(Change) error) error {
	w := &watcher{changed: map[string]Change{}, signal: make(chan struct{}, 1)}
	lists := b.Lists()
	b.mu.Lock()
	if len(b.watchers) >= maxWatchers {
		b.mu.Unlock()
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many programs watch already", fault.WithRetry(time.Minute))
	}
	dangerous := b.sortedLocked(func(e *entry) bool { return e.Kind == statement.KindDangerous })
	b.watchers[w] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.watchers, w)
		b.mu.Unlock()
	}()
	if err := begun(); err != nil {
		return err
	}
	for _, e := range dangerous {
		if b.judge(e, true) == "" {
			if err := send(Change{Session: e.Session, Until: e.until}); err != nil {
				return err
			}
		}
	}
	for {
		moved := b.Halt.Moved()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
			b.Sweep(context.WithoutCancel(ctx))
			continue
		case <-lists:
			lists = b.Lists() // before anybody hears, so that no change after this one is missed
			if err := send(Change{Lists: true}); err != nil {
				return err
			}
			continue
		case <-w.signal:
		}
		b.mu.Lock()
		order, changed := w.order, w.changed
		w.order, w.changed = nil, map[string]Change{}
		b.mu.Unlock()
		for _, session := range order {
			if err := send(changed[session]); err != nil {
				return err
			}
		}
	}
}
