// Package subscription tells clients that a resource changed, and never what it is now: whoever wants to know reads it, and
// is judged then. It runs in the gateway, the untrusted edge.
//
// What changes is watched under the permit of the very session that subscribed, so that nobody hears of a change that its own
// session might not look at. However many resources a session is subscribed to, it has one watch of the services and one of
// each operation; they end with its last subscription to them. A watch that is refused is tried again for as long as somebody
// is subscribed; until it is let in, nothing is told (relay.Relay.WatchServices).
package subscription

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"durward.internal/gateway/internal/relay"
	"durward.internal/gateway/internal/resource"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// MaxURIs is how many subscriptions one principal has at a time.
const MaxURIs = 64

// Watcher sees changes; relay.Relay is one. Its methods return when ctx or the session ends.
type Watcher interface {
	WatchServices(ctx context.Context, s *relay.Session, tell func(id string))
	WatchOperation(ctx context.Context, s *relay.Session, id string, known vaultv1.OperationState, tell func(now vaultv1.OperationState))
}

// Table holds every subscription. It is safe for concurrent use.
type Table struct {
	watcher Watcher

	mu sync.Mutex
	// counts are subscriptions by principal.
	counts  map[string]int
	watches map[subject]*watch
}

// subject is what one watch is of: the services, or one operation.
type subject struct {
	session   *relay.Session
	operation string
}

// watch is one running watch and who is told.
type watch struct {
	end       context.CancelFunc
	listeners map[*Listener]int
	// state is the last one of its operation that the watch knows.
	state vaultv1.OperationState
}

// New returns a Table without subscriptions.
func New(w Watcher) (*Table, error) {
	if w == nil {
		return nil, errors.New("subscription: a watcher is required")
	}
	return &Table{watcher: w, counts: map[string]int{}, watches: map[subject]*watch{}}, nil
}

// Listener is one client's end of its subscriptions: a session of the stateful era, or one stream of the other.
type Listener struct {
	table     *Table
	session   *relay.Session
	principal string
	signal    chan struct{}
	closed    chan struct{}

	// Guarded by the table's mutex.
	uris    map[resource.URI]bool
	pending []resource.URI
	over    bool
}

// Listen returns a Listener that calls notify, one call at a time, with each URI that changed. Changes that come together, or
// while notify has not returned, are told once. It ends with Close, and with the session.
func (t *Table) Listen(session *relay.Session, principal string, notify func(uri string)) *Listener {
	l := &Listener{
		table: t, session: session, principal: principal, signal: make(chan struct{}, 1), closed: make(chan struct{}),
		uris: map[resource.URI]bool{},
	}
	go l.run(notify)
	return l
}

// gather is how long a listener waits for further changes before it tells of the first.
const gather = 50 * time.Millisecond

func (l *Listener) run(notify func(uri string)) {
	for {
		select {
		case <-l.closed:
			return
		case <-l.session.Done():
			l.Close()
			return
		case <-l.signal:
		}
		select {
		case <-l.closed:
			return
		case <-time.After(gather):
		}
		for _, uri := range l.take() {
			notify(uri.String())
		}
	}
}

func (l *Listener) take() []resource.URI {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	out := l.pending
	l.pending = nil
	return out
}

// Add subscribes to a resource that changes; known is the state in which an operation was found when the client was judged:
// whatever comes after it is told. Adding what is there changes nothing. CODE_RATE_LIMITED above MaxURIs of the principal,
// CODE_UNAUTHENTICATED once the listener is closed.
func (l *Listener) Add(uri resource.URI, known vaultv1.OperationState) error {
	t := l.table
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case l.over:
		return fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; connect again")
	case l.uris[uri]:
		return nil
	case t.counts[l.principal] >= MaxURIs:
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: there are too many subscriptions; end one first")
	}
	t.counts[l.principal]++
	l.uris[uri] = true
	of := l.subject(uri)
	w := t.watches[of]
	if w == nil {
		ctx, end := context.WithCancel(context.Background())
		w = &watch{end: end, listeners: map[*Listener]int{}, state: known}
		t.watches[of] = w
		go t.follow(ctx, of, w, known)
	} else if uri.Kind == resource.Operation && w.state != known {
		l.mark(uri) // it changed since, and the watch has told of that
	}
	w.listeners[l]++
	return nil
}

func (l *Listener) subject(uri resource.URI) subject {
	if uri.Kind == resource.Operation {
		return subject{l.session, uri.ID}
	}
	return subject{session: l.session}
}

// follow runs one watch to its end.
func (t *Table) follow(ctx context.Context, of subject, w *watch, known vaultv1.OperationState) {
	defer w.end()
	if of.operation == "" {
		t.watcher.WatchServices(ctx, of.session, func(id string) { t.changed(w, id) })
		return
	}
	t.watcher.WatchOperation(ctx, of.session, of.operation, known, func(now vaultv1.OperationState) {
		t.mu.Lock()
		w.state = now
		t.mu.Unlock()
		t.changed(w, of.operation)
	})
}

// changed marks what the change of one service or operation is seen in.
func (t *Table) changed(w *watch, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range w.listeners {
		for uri := range l.uris {
			if t.watches[l.subject(uri)] == w && shows(uri, id) {
				l.mark(uri)
			}
		}
	}
}

// shows reports whether the change of one service or operation may be seen in a resource. What a mode and a model are made of is
// not known here: any service's change may be.
func shows(uri resource.URI, id string) bool {
	return uri.ID == "" || uri.ID == id && (uri.Kind == resource.Service || uri.Kind == resource.Operation) ||
		uri.Kind == resource.Mode || uri.Kind == resource.Model
}

// mark is called with the table locked.
func (l *Listener) mark(uri resource.URI) {
	if slices.Contains(l.pending, uri) {
		return
	}
	l.pending = append(l.pending, uri)
	select {
	case l.signal <- struct{}{}:
	default:
	}
}

// Remove ends one subscription; one that is not there is none the less ended.
func (l *Listener) Remove(uri resource.URI) {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	l.remove(uri)
}

func (l *Listener) remove(uri resource.URI) {
	t := l.table
	if !l.uris[uri] {
		return
	}
	delete(l.uris, uri)
	for i, p := range l.pending {
		if p == uri {
			l.pending = append(l.pending[:i], l.pending[i+1:]...)
			break
		}
	}
	if t.counts[l.principal]--; t.counts[l.principal] == 0 {
		delete(t.counts, l.principal)
	}
	of := l.subject(uri)
	w := t.watches[of]
	if w.listeners[l]--; w.listeners[l] == 0 {
		delete(w.listeners, l)
	}
	if len(w.listeners) == 0 {
		delete(t.watches, of)
		w.end()
	}
}

// Close ends the listener with all its subscriptions. It may be called more than once, and from notify.
func (l *Listener) Close() {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	close(l.closed)
	for uri := range l.uris {
		l.remove(uri)
	}
}

// Count returns how many subscriptions there are.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := 0
	for _, n := range t.counts {
		all += n
	}
	return all
}
