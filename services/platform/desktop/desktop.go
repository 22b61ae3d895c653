// Package desktop holds the rules under which an agent may control a screen, a pointer and a keyboard (DSK-1), for tools that
// the contract tags "desktop:KIND". The vault applies them before it asks a human, and the sink again before it acts, each
// with a gate of its own; both are in memory, so that a restart forgets every consent and remembers none.
//
// It trusts the contract's tags and the clock that it is given. A session's name and channel come from a session, a permit or
// a grant, never from what an agent says.
package desktop

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

const (
	// Spacing is the least time between two actions of a session.
	Spacing = 500 * time.Millisecond
	// Span is how long a session may control the desktop, from its first confirmed action on.
	Span = 5 * time.Minute
	// memory is how long a session is remembered after its last action or its end: longer than any session lives.
	memory = 24 * time.Hour
	// capacity bounds the sessions that are remembered. A session beyond it is refused.
	capacity = 4096
)

// Confirmation says whether an action needs a human's yes of its own.
type Confirmation int

const (
	// Needed: a human confirms this action; no standing authority does. It is the zero value.
	Needed Confirmation = iota
	// None: the tool controls no desktop, or a human has confirmed actions of this kind in this session.
	None
)

// kind is what an action does to a desktop.
type kind int

const (
	// each is confirmed every time: a click, typing, a shortcut, a window.
	each kind = iota
	// screenshot is confirmed the first time in a session, since consent is never written down (APR-2).
	screenshot
	// pointer is confirmed once a session.
	pointer
)

// kinds are the words that the contract's tags may say after "desktop:".
var kinds = map[string]kind{
	"screenshot": screenshot, "pointer": pointer,
	"click": each, "type": each, "shortcut": each, "window": each,
}

// Gate judges actions. It is safe for concurrent use.
type Gate struct {
	now func() time.Time

	mu       sync.Mutex
	sessions map[string]*session
}

// session is what a gate remembers of one.
type session struct {
	// last is when an action was let through; began when the first was confirmed; touched when anything was.
	last, began, touched time.Time
	killed               bool
	confirmed            map[kind]bool
}

// New returns a gate that nothing has passed yet. now is the process's clock.
func New(now func() time.Time) *Gate { return &Gate{now: now, sessions: map[string]*session{}} }

// Controls reports whether the tool is one for controlling a desktop.
func Controls(tool contract.Tool) bool { return tool.Tagged("desktop") }

// Judge decides on one action and, if it lets it through, counts it: the next one of the session is due Spacing later. allowed
// is the human's setting desktop.allowed. A tool without a desktop tag is none of its business: None.
//
// Faults: CODE_DENIED while desktop control is off, over messaging, for a tag that this version does not know, and for a
// session that was killed or whose time is over; CODE_RATE_LIMITED, with when to try again, for an action that comes too soon.
func (g *Gate) Judge(session string, tool contract.Tool, channel callv1.Channel, allowed bool) (Confirmation, error) {
	if !Controls(tool) {
		return None, nil
	}
	of, known := kindsOf(tool)
	switch {
	case !known:
		return Needed, denied("the tool has a desktop tag that is not known")
	case !switchedOn(allowed):
		return Needed, denied("desktop control is off")
	case !channelMay(channel):
		return Needed, denied("desktop control over this channel")
	case session == "":
		return Needed, denied("desktop control without a session")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	s := g.session(session, now)
	switch {
	case s == nil:
		return Needed, denied("too many sessions control a desktop")
	case !alive(s.killed):
		return Needed, denied("desktop control was ended for the session")
	case !inTime(s.began, now):
		return Needed, denied("the session's time for desktop control is over")
	}
	if wait := due(s.last, now); wait > 0 {
		return Needed, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: half a second lies between two actions on a desktop",
			fault.WithRetry(wait))
	}
	s.last, s.touched = now, now
	for _, k := range of {
		if !consented(k, s.confirmed) {
			return Needed, nil
		}
	}
	return None, nil
}

// Confirmed says that a human confirmed an action with this tool in the session. The first one starts the session's Span. For
// a session that was killed or is over it does nothing.
func (g *Gate) Confirmed(session string, tool contract.Tool) {
	of, known := kindsOf(tool)
	if !known || !Controls(tool) || session == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	s := g.session(session, now)
	if s == nil || s.killed || !inTime(s.began, now) {
		return
	}
	if s.began.IsZero() {
		s.began = now
	}
	s.touched = now
	for _, k := range of {
		s.confirmed[k] = true
	}
}

// Kill ends desktop control in the session for good: no action and no confirmation of it counts any more. An empty session
// stands for all that the gate knows.
func (g *Gate) Kill(session string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if session == "" {
		for _, s := range g.sessions {
			s.killed, s.touched = true, now
		}
		return
	}
	s := g.session(session, now)
	if s == nil { // a human's word is remembered beyond the bound
		s = g.add(session, now)
	}
	s.killed, s.touched = true, now
}

// Active returns when the session's time for desktop control ends, and whether it has any now: what an indicator shows.
func (g *Gate) Active(session string) (until time.Time, active bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sessions[session]
	if s == nil || s.killed || s.began.IsZero() || !inTime(s.began, g.now()) {
		return time.Time{}, false
	}
	return s.began.Add(Span), true
}

// kindsOf returns what the tool does to a desktop, and whether every desktop tag is one that is known.
func kindsOf(tool contract.Tool) (of []kind, known bool) {
	for _, tag := range tool.Tags {
		what, word, _ := strings.Cut(tag, ":")
		if what != "desktop" {
			continue
		}
		k, ok := kinds[word]
		if !ok {
			return nil, false
		}
		of = append(of, k)
	}
	return of, true
}

// session finds the session or makes room for it; nil: there is none. The caller holds mu.
func (g *Gate) session(name string, now time.Time) *session {
	if s := g.sessions[name]; s != nil {
		return s
	}
	if len(g.sessions) >= capacity {
		maps.DeleteFunc(g.sessions, func(_ string, s *session) bool { return now.Sub(s.touched) > memory })
	}
	if len(g.sessions) >= capacity {
		return nil
	}
	return g.add(name, now)
}

func (g *Gate) add(name string, now time.Time) *session {
	s := &session{touched: now, confirmed: map[kind]bool{}}
	g.sessions[name] = s
	return s
}

// denied looks like every other refusal; why is for our log.
func denied(why string) error {
	return fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(errors.New(why)))
}
