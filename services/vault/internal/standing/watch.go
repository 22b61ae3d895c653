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

// change is how a session stands: until when it is in dangerous mode (zero: it is not), and whether it has ended.
type change struct {
	until time.Time
	ended bool
}

// watcher gathers changes for one program. A slow one gets fewer, newer states, and holds nobody up.
type watcher struct {
	changed map[string]change // under Approvals.mu
	order   []string
	signal  chan struct{}
}

func (w *watcher) touch(session string, c change) {
	if _, known := w.changed[session]; !known {
		w.order = append(w.order, session)
	}
	w.changed[session] = c
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (b *Approvals) tellLocked(session string, c change) {
	for w := range b.watchers {
		w.touch(session, c)
	}
}

// Watch sends every session in dangerous mode, then each change: until when a session is in it (zero: no more), and that a session
// has ended. A halt is seen at once. It calls begun, before it sends, when no change is missed any more. It returns when ctx ends or either fails.
func (b *Approvals) Watch(ctx context.Context, begun func() error, send func(session string, until time.Time, ended bool) error) error {
	w := &watcher{changed: map[string]change{}, signal: make(chan struct{}, 1)}
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
			if err := send(e.Session, e.until, false); err != nil {
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
		case <-w.signal:
		}
		b.mu.Lock()
		order, changed := w.order, w.changed
		w.order, w.changed = nil, map[string]change{}
		b.mu.Unlock()
		for _, session := range order {
			if err := send(session, changed[session].until, changed[session].ended); err != nil {
				return err
			}
		}
	}
}
