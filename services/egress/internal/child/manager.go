package child

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"durward.internal/services/egress/internal/journal"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// Manager runs the servers that are in force: each when it is first called, for each principal that calls it, or once where its entry
// shares it. Its methods may be called concurrently.
type Manager struct {
	Config

	mu        sync.Mutex
	servers   map[string]*downstream.Pinned
	instances map[key]*instance
	// over are the sessions that ended last: a call of one may still come.
	over   []string
	frozen bool
	closed bool
	// ending are the processes that are not gone yet, and places those that there may be at once.
	ending sync.WaitGroup
	places chan struct{}
}

// key is what an instance is for. A shared one has no principal; that of one session is CLIENT/SESSION.
type key struct{ server, principal string }

// session is the session that an instance is for; "" for none.
func (k key) session() string {
	_, session, _ := strings.Cut(k.principal, "/")
	return session
}

// instance is a server for a principal, whether it runs or not.
type instance struct {
	key
	// run is its process or connection, nil when it has none.
	run *run
	// gone is closed when the process before the next one is no more.
	gone <-chan struct{}
	// ends is how often it ended by itself, one after the other; next is when it may start again, and last why it ended.
	ends  int
	next  time.Time
	last  string
	log   journal.Journal
	tools map[string]Presence
	// orphan: its session ended, so that its last call ends it.
	orphan bool
	// older: it is of an older revision, and does not survive the first question of the newest.
	older bool
}

const (
	// maxEnds is how often a server ends by itself, one after the other, before it is stopped.
	maxEnds = 5
	// steady is how long a server runs before what it did earlier is forgotten.
	steady = 5 * time.Minute
	// maxOver is how many sessions that ended are remembered: as many as there may be at once.
	maxOver = 4096
)

var (
	errClosed   = errors.New("egress is ending")
	errFrozen   = errors.New("it is stopped by a panic")
	errReplaced = errors.New("what a human says of it has changed")
	errRestart  = errors.New("a human restarted it")
	errIdle     = errors.New("nobody called it for a while")
	errEvicted  = errors.New("another server needed its place")
	errSession  = errors.New("its session ended")
	errLost     = errors.New("the connection to it broke")
)

// New returns a Manager with no server in force.
func New(config Config) *Manager {
	return &Manager{
		Config: config, servers: map[string]*downstream.Pinned{}, instances: map[key]*instance{}, places: make(chan struct{}, downstream.MaxServers),
	}
}

// Set says which servers are in force. What runs of another, or of another definition, ends.
func (m *Manager) Set(servers []downstream.Pinned) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := make(map[string]*downstream.Pinned, len(servers))
	for i := range servers {
		now[servers[i].Entry.ID] = &servers[i]
	}
	for k, i := range m.instances {
		switch is := now[k.server]; {
		case is == nil:
			i.stop(errReplaced)
			i.renew()
			m.forget(i)
		case !reflect.DeepEqual(is, m.servers[k.server]):
			i.stop(errReplaced)
			i.renew()
		default:
			now[k.server] = m.servers[k.server]
		}
	}
	m.servers = now
}

// Call calls a tool as it was pinned, with arguments in RFC 8785 form. confirm runs once nothing is left to wait for; where it fails,
// nothing is sent, and Call returns its error as it is. Other errors are of type *Error, or ctx's. A server that may ask gets one call at a
// time, and may answer with a question, which a call of AnswerQuestion answers.
func (m *Manager) Call(ctx context.Context, principal, server, tool string, arguments []byte, confirm func() error) (Result, error) {
	r, err := m.allowed(ctx, principal, server, tool)
	if err != nil {
		return Result{}, wrap(ctx, server, err, false)
	}
	defer m.leave(r)
	var result Result
	if entry := r.server.Entry; !entry.Elicitation {
		f, over, refused := r.begin(ctx, confirm)
		if refused != nil {
			return Result{}, wrap(ctx, server, refused, false)
		}
		defer over()
		result, err = r.call(f, tool, arguments)
	} else {
		var f *flight
		if entry.Answers(tool) {
			f, err = r.settle(ctx, arguments, confirm)
		} else {
			f, err = r.launch(ctx, tool, arguments, confirm)
		}
		if err != nil {
			return Result{}, wrap(ctx, server, err, false)
		}
		result, err = f.next(ctx)
	}
	if err != nil {
		return Result{}, wrap(ctx, server, err, true)
	}
	return result, nil
}

// unconfirmed is what a caller's confirm failed with.
type unconfirmed struct{ error }

// wrap names the server, in one line, which is whole: the sink cuts it when it was looked through. The caller's own end is told as such, and its
// own error as it is.
func wrap(ctx context.Context, server string, err error, sent bool) error {
	if own, is := errors.AsType[unconfirmed](err); is {
		return own.error
	}
	if ctx.Err() != nil {
		return fmt.Errorf("server %s: %w", server, ctx.Err())
	}
	return &Error{Server: server, Text: clean.Line(err.Error(), clean.Whole), Sent: sent}
}

// allowed is enter for a tool that is as it was accepted. What was there before the call and ends before anything of it is sent, such as a
// session that a remote server forgot, is begun anew once.
func (m *Manager) allowed(ctx context.Context, principal, server, tool string) (r *run, err error) {
	for range 2 {
		if r, err = m.enter(ctx, principal, server); err != nil {
			return nil, err
		}
		if err = r.allows(ctx, tool); err == nil {
			return r, nil
		}
		m.leave(r)
		if r.ctx.Err() == nil {
			break
		}
	}
	return nil, err
}

// enter returns the run that serves a principal, ready, with one more call in flight.
func (m *Manager) enter(ctx context.Context, principal, server string) (*run, error) {
	m.mu.Lock()
	r, err := m.admit(principal, server)
	if err == nil {
		r.calls++
	}
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-r.ready:
	case <-r.ctx.Done():
		err = context.Cause(r.ctx)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		m.leave(r)
		return nil, err
	}
	return r, nil
}

// admit returns a run, which it starts if there is none. The caller holds mu.
func (m *Manager) admit(principal, server string) (*run, error) {
	pinned := m.servers[server]
	switch {
	case m.closed:
		return nil, errClosed
	case pinned == nil:
		return nil, errors.New("it is not in force")
	case m.frozen:
		return nil, errFrozen
	}
	k := key{server, principal}
	if pinned.Entry.Shared {
		k.principal = ""
	}
	i := m.instances[k]
	if i == nil {
		i = &instance{key: k, orphan: k.session() != "" && slices.Contains(m.over, k.session())}
	}
	if i.run != nil && i.run.ctx.Err() != nil {
		i.over(i.run)
	}
	if i.run != nil {
		return i.run, nil
	}
	switch wait := time.Until(i.next); {
	case i.ends >= maxEnds:
		return nil, fmt.Errorf("%s. That was the %dth time in a row: `durward server restart %s` starts it again", i.last, i.ends, server)
	case wait > 0:
		return nil, fmt.Errorf("%s. It may start again in %s", i.last, wait.Round(time.Second))
	}
	if err := m.makeRoom(); err != nil {
		return nil, err
	}
	m.instances[k] = i
	m.start(i, pinned)
	return i.run, nil
}

// makeRoom ends the run that was unused the longest, if as many run as may. The caller holds mu.
func (m *Manager) makeRoom() error {
	var running int
	var oldest *instance
	for _, i := range m.instances {
		if i.run == nil {
			continue
		}
		running++
		if i.run.calls == 0 && (oldest == nil || i.run.used.Before(oldest.run.used)) {
			oldest = i
		}
	}
	if running < downstream.MaxServers {
		return nil
	}
	if oldest == nil {
		return fmt.Errorf("%d servers run already, each with a call", running)
	}
	oldest.stop(errEvicted)
	return nil
}

// leave ends a call in flight.
func (m *Manager) leave(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.calls--
	r.used = time.Now()
	r.idle.Reset(r.timeouts.Idle)
	m.dismiss(r.instance)
}

// EndSession ends and forgets what runs for a session that is over, or with "" what runs for any session. What has a call ends with that
// call; one that comes later, which a human may have approved, has a process for itself.
func (m *Manager) EndSession(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if session != "" {
		m.over = append(m.over, session)
		m.over = m.over[max(0, len(m.over)-maxOver):]
	}
	for k, i := range m.instances {
		if own := k.session(); own != "" && (own == session || session == "") {
			i.orphan = true
			m.dismiss(i)
		}
	}
}

// dismiss ends and forgets an instance whose session is over, once it has no call. The caller holds mu.
func (m *Manager) dismiss(i *instance) {
	if !i.orphan || i.run != nil && i.run.calls > 0 {
		return
	}
	i.stop(errSession)
	m.forget(i)
}

// forget forgets an instance that was stopped once its process is gone, unless it runs again by then: what is started before that waits for
// the process that ends, and does not run beside it. The caller holds mu.
func (m *Manager) forget(i *instance) {
	if m.closed {
		return
	}
	gone := i.gone
	m.ending.Go(func() {
		<-gone
		m.mu.Lock()
		defer m.mu.Unlock()
		if i.run == nil && m.instances[i.key] == i {
			delete(m.instances, i.key)
		}
	})
}

// unused ends a run that nobody called for a while.
func (m *Manager) unused(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.instance.run != r || r.calls > 0: // it ended, or the last call winds the timer up again
	case m.frozen:
		r.idle.Reset(r.timeouts.Idle)
	default:
		r.instance.stop(errIdle)
	}
}

// lost ends a run whose connection the SDK gives up, of which it tells those alone that wait for it: a stream ended, and the server did not
// let it begin again. The next call makes another connection; that this one broke is held against the server where a call was under way.
func (m *Manager) lost(r *run) {
	_ = r.session.Wait() // its words are the SDK's own
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.ctx.Err() != nil: // why it ended is known
	case r.calls > 0:
		r.end(errLost)
	default:
		r.instance.stop(errLost)
	}
}

// renew forgets what became of an instance under another definition. The caller holds the manager's mu.
func (i *instance) renew() { i.ends, i.next, i.last, i.tools = 0, time.Time{}, "", nil }

// stop ends an instance's run, for a reason that is none of its own. The caller holds mu.
func (i *instance) stop(why error) {
	if i.run != nil {
		i.run.end(why)
		i.run = nil
	}
}

// over notes why the instance's run ended by itself. The caller holds mu.
func (i *instance) over(r *run) {
	if i.run != r {
		return // it was stopped, and the reason is ours
	}
	if !r.since.IsZero() && time.Since(r.since) > steady {
		i.ends = 0
	}
	i.run, i.last = nil, context.Cause(r.ctx).Error()
	i.ends++
	// The first time it starts again at once; then it waits 1, 2, 4 … seconds.
	if i.ends > 1 {
		i.next = time.Now().Add(time.Second << (i.ends - 2))
	}
}

// Freeze stops every process as it is, ends the calls in flight and what leads to other hosts, and refuses others until Thaw: a panic.
func (m *Manager) Freeze() error { return m.freeze(true) }

// Thaw lets everything go on.
func (m *Manager) Thaw() error { return m.freeze(false) }

func (m *Manager) freeze(on bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.frozen == on {
		return nil
	}
	m.frozen = on
	var errs []error
	for _, i := range m.instances {
		if i.run == nil {
			continue
		}
		if on && i.run.process == nil {
			i.stop(errFrozen) // nothing holds a server on another host, or what it streams, or one that is being started
		} else if err := i.run.freeze(on); err != nil {
			// What cannot be held is ended.
			errs = append(errs, fmt.Errorf("server %s: %w", i.server, err))
			i.stop(errFrozen)
		}
	}
	return errors.Join(errs...)
}

// Restart ends what runs of a server, and forgets how often it ended: the next call starts it.
func (m *Manager) Restart(server string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.servers[server] == nil {
		return &Error{Server: server, Text: "it is not in force"}
	}
	for k, i := range m.instances {
		if k.server == server {
			i.stop(errRestart)
			i.ends, i.next = 0, time.Time{}
		}
	}
	return nil
}

// Close ends everything, and returns when it is gone.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	for _, i := range m.instances {
		i.stop(errClosed)
	}
	m.mu.Unlock()
	m.ending.Wait()
}

// Logs returns what a server's instances wrote.
func (m *Manager) Logs(server string) []Log {
	m.mu.Lock()
	defer m.mu.Unlock()
	var logs []Log
	for k, i := range m.instances {
		if k.server == server {
			logs = append(logs, Log{Principal: k.principal, Text: i.log.String()})
		}
	}
	slices.SortFunc(logs, func(a, b Log) int { return strings.Compare(a.Principal, b.Principal) })
	return logs
}

// Status returns what is known of each server in force: its instances, or that it has none.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Status
	known := map[string]bool{}
	for k, i := range m.instances {
		known[k.server] = true
		all = append(all, i.status(m.frozen))
	}
	for id := range m.servers {
		if !known[id] {
			all = append(all, Status{Server: id, State: Idle})
		}
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Principal, b.Principal))
	})
	return all
}

// status is what is known of an instance. The caller holds the manager's mu.
func (i *instance) status(frozen bool) Status {
	s := Status{Server: i.server, Principal: i.principal, State: Idle, Reason: clean.Line(i.last, maxMessage), Tools: maps.Clone(i.tools), Frozen: frozen}
	switch {
	case i.run != nil:
		s.State, s.Since, s.Calls, s.Dropped = Running, i.run.since, i.run.calls, int(i.run.frames.dropped.Load())
		if s.Since.IsZero() {
			s.State = Starting
		}
	case i.ends >= maxEnds:
		s.State = Stopped
	case time.Now().Before(i.next):
		s.State = Waiting
	}
	return s
}
