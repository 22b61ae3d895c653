package standing

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/statement"
)

// watcher gathers changes for one program. A slow one gets fewer, newer states, and holds nobody up.
type watcher struct {
	changed map[string]*vaultv1.WatchSessionsResponse // under Approvals.mu
	order   []string
	signal  chan struct{}
}

func (w *watcher) touch(c *vaultv1.WatchSessionsResponse) {
	if _, known := w.changed[c.GetSession()]; !known {
		w.order = append(w.order, c.GetSession())
	}
	w.changed[c.GetSession()] = c
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// dangerous says until when a session is in dangerous mode.
func dangerous(session string, until time.Time) *vaultv1.WatchSessionsResponse {
	return &vaultv1.WatchSessionsResponse{Session: session, DangerousUntil: timestamppb.New(until)}
}

func (b *Approvals) tellLocked(c *vaultv1.WatchSessionsResponse) {
	for w := range b.watchers {
		w.touch(c)
	}
}

// Watch sends every session in dangerous mode, then each change. A halt is seen at once. It calls begun, before it sends, when no change
// is missed any more. It returns when ctx ends or either fails. The caller bounds how many watch at once.
func (b *Approvals) Watch(ctx context.Context, begun func() error, send func(*vaultv1.WatchSessionsResponse) error) error {
	w := &watcher{changed: map[string]*vaultv1.WatchSessionsResponse{}, signal: make(chan struct{}, 1)}
	lists := b.Lists()
	b.mu.Lock()
	entries := b.sortedLocked(func(e *entry) bool { return e.Kind == statement.KindDangerous && !e.spent })
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
	for _, e := range entries {
		if b.judge(e, true) == "" {
			if err := send(dangerous(e.Session, e.until)); err != nil {
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
			if err := send(&vaultv1.WatchSessionsResponse{ListsChanged: true}); err != nil {
				return err
			}
			continue
		case <-w.signal:
		}
		b.mu.Lock()
		order, changed := w.order, w.changed
		w.order, w.changed = nil, map[string]*vaultv1.WatchSessionsResponse{}
		b.mu.Unlock()
		for _, session := range order {
			if err := send(changed[session]); err != nil {
				return err
			}
		}
	}
}
