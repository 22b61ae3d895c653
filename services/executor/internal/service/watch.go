package service

import (
	"context"
	"sync"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// Change is what a watcher is told of one service.
type Change struct {
	ID string
	// State is UNKNOWN for a service that the catalog does not hold any more.
	State executorv1.ServiceState
	// Initial is what was there when the watch began.
	Initial bool
}

// watchers are told of changes. A state is told when a start or stop moves it, and otherwise when the health check, which runs
// every few seconds, has seen it: nobody is asked for a watcher's sake.
type watchers struct {
	mu  sync.Mutex
	all map[*watcher]struct{}
}

// watcher gathers changes for one reader: at most one for each service, the newest. A slow reader holds nobody up.
type watcher struct {
	// only holds the services that are watched; empty: all.
	only map[string]bool

	mu      sync.Mutex
	waiting map[string]Change
	order   []string
	signal  chan struct{}
}

func newWatcher(ids []string) *watcher {
	w := &watcher{only: map[string]bool{}, waiting: map[string]Change{}, signal: make(chan struct{}, 1)}
	for _, id := range ids {
		w.only[id] = true
	}
	return w
}

func (w *watcher) wants(id string) bool { return len(w.only) == 0 || w.only[id] }

// put leaves a change for the reader. A state that was there at the beginning gives way to any change.
func (w *watcher) put(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.waiting[c.ID]; !known {
		w.order = append(w.order, c.ID)
	} else if c.Initial {
		return
	}
	w.waiting[c.ID] = c
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// take returns what has gathered, in the order in which the services began to change.
func (w *watcher) take() []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]Change, 0, len(w.order))
	for _, id := range w.order {
		out = append(out, w.waiting[id])
	}
	w.order, w.waiting = nil, map[string]Change{}
	return out
}

// Watch sends the state of each service, then each change, until ctx ends or send fails; its error is theirs. ids narrows it;
// one that is not in the catalog is Find's fault.
func (m *Manager) Watch(ctx context.Context, ids []string, send func(Change) error) error {
	for _, id := range ids {
		if _, err := m.Find(id); err != nil {
			return err
		}
	}
	w := newWatcher(ids)
	// First the place, then the look: what changes in between is told as well.
	m.watchers.add(w)
	defer m.watchers.drop(w)
	for _, s := range m.All() {
		if w.wants(s.ID) {
			w.put(Change{ID: s.ID, State: m.Status(s).State, Initial: true})
		}
	}
	sent := map[string]executorv1.ServiceState{}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.signal:
		}
		for _, c := range w.take() {
			if sent[c.ID] == c.State {
				continue
			}
			if err := send(c); err != nil {
				return err
			}
			sent[c.ID] = c.State
		}
	}
}

func (w *watchers) add(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*watcher]struct{}{}
	}
	w.all[one] = struct{}{}
}

func (w *watchers) drop(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
}

func (w *watchers) tell(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		if one.wants(c.ID) {
			one.put(c)
		}
	}
}

// tell tells watchers what a service looks like by a sight that was taken at that turn, if it is news and nothing changed
// since: whoever changes something tells it too.
func (m *Manager) tell(s *catalog.Service, u *instance, turn int, status driver.Status) {
	u.mu.Lock()
	defer u.mu.Unlock()
	state := u.view(status).State
	if u.turns != turn || u.told == state {
		return
	}
	u.told = state
	m.watchers.tell(Change{ID: s.ID, State: state})
}

// tellGone tells watchers once of each service that the catalog holds no more.
func (m *Manager) tellGone() {
	current := m.cfg.Catalog()
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, u := range m.instances {
		if _, kept := current.Lookup(id); kept {
			continue
		}
		u.mu.Lock()
		told := u.told != executorv1.ServiceState_SERVICE_STATE_UNKNOWN
		u.told = executorv1.ServiceState_SERVICE_STATE_UNKNOWN
		u.mu.Unlock()
		if told {
			m.watchers.tell(Change{ID: id, State: executorv1.ServiceState_SERVICE_STATE_UNKNOWN})
		}
	}
}
