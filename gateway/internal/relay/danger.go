package relay

import (
	"context"
	"maps"
	"sync"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/sessions"
)

// dangers are the sessions in dangerous mode, by public reference, as the vault says. They are for banners and marks in
// records alone: what may run is the vault's to decide. The zero value is ready; it is safe for concurrent use.
type dangers struct {
	mu sync.Mutex
	of map[string]danger
	// generation is which of the streams from the vault is open, or was last.
	generation uint64
}

// danger is what was heard of one session last. Word that it is not in dangerous mode is kept for a while too, against an answer of
// before that comes late.
type danger struct {
	until, heard time.Time
	generation   uint64
}

// remembered is how long word is kept that a session is not in dangerous mode: longer than any answer is under way.
const remembered = time.Minute

// maxDangers bounds how many sessions there is word of. The vault has far fewer in dangerous mode.
const maxDangers = 4096

// hear takes the vault's word on a session as it stood at some time; until is zero, or of the past, when it is not in dangerous mode.
func (d *dangers) hear(session string, until, at time.Time) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	before, known := d.of[session]
	switch {
	case !known && !until.After(now) || known && at.Before(before.heard):
		return
	case d.of == nil:
		d.of = map[string]danger{}
	case !known && len(d.of) >= maxDangers:
		maps.DeleteFunc(d.of, func(_ string, other danger) bool { return !other.until.After(now) && now.Sub(other.heard) > remembered })
		if len(d.of) >= maxDangers {
			return
		}
	}
	d.of[session] = danger{until, at, d.generation}
}

// until returns until when a session is in dangerous mode, and whether it is.
func (d *dangers) until(session string) (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, known := d.of[session]
	if !known {
		return time.Time{}, false
	}
	if now := time.Now(); !found.until.After(now) {
		if now.Sub(found.heard) > remembered {
			delete(d.of, session)
		}
		return time.Time{}, false
	}
	return found.until, true
}

// changed reports whether a session went into dangerous mode, or out of it, since the vault gave the permit, which says so to sinks.
func (d *dangers) changed(session string, p permit) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, known := d.of[session]
	return known && found.heard.After(p.got) && found.until.After(time.Now()) != p.dangerous
}

// begin starts a generation, and returns it: what the new stream does not repeat is over once confirm is called.
func (d *dangers) begin() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.generation++
	return d.generation
}

// confirm forgets what was heard before that generation and not again, if it is the present one still.
func (d *dangers) confirm(generation uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.of, func(_ string, found danger) bool { return d.generation == generation && found.generation != generation })
}

// Dangerous returns until when the session is in dangerous mode, and whether it is, as the vault said last.
func (r *Relay) Dangerous(s *Session) (time.Time, bool) { return r.dangers.until(s.Ref()) }

// repeated is how long a new stream may take to repeat what is so.
const repeated = 2 * time.Second

// WatchSessions keeps what Dangerous returns up to date until ctx ends, and hears when lists change: within a moment while the vault can
// be reached. What was so when the vault went away is taken to be so until it says otherwise; lists may have changed meanwhile.
func (r *Relay) WatchSessions(ctx context.Context) {
	sessions.Watch(ctx, r.watched, r.conf.Logger, "the watch of sessions broke off and goes on soon", func(stream context.Context) {
		generation := r.dangers.begin()
		if generation > 1 {
			r.ListsChanged()
		}
		time.AfterFunc(repeated, func() {
			if stream.Err() == nil {
				r.dangers.confirm(generation)
			}
		})
	}, func(m *vaultv1.WatchSessionsResponse) {
		if m.GetListsChanged() {
			r.ListsChanged()
			return
		}
		until := m.GetDangerousUntil().AsTime()
		if m.GetEnded() {
			until = time.Time{}
			r.sessionEnded(m.GetSession())
		}
		r.dangers.hear(m.GetSession(), until, time.Now())
	})
}
