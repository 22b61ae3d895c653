// Package progress tells whoever watches an operation which step it is at. What it tells is made of catalog ids, numbers and
// fixed words, so that an agent may read it.
package progress

import (
	"context"
	"slices"
	"sync"
	"time"

	"durward.internal/services/platform/clock"
)

// Step is one step of an operation, as it begins, moves on or ends.
type Step struct {
	// Number is 1 for the first; Of is how many there will be, 0 where that is not known.
	Number, Of int
	// Phase is what is done: one of the words below.
	Phase   string
	Service string
	Elapsed time.Duration
	// Expected is how long the step took before on this host; 0 where that is not known.
	Expected time.Duration
	Ended    bool
	// Cause is why it failed: one of the driver package's sentences.
	Cause string
}

// What a step does.
const (
	PhaseSleep      = "sleep"
	PhaseStop       = "stop"
	PhaseVerify     = "verify"
	PhaseStart      = "start"
	PhaseReady      = "ready"
	PhaseWarm       = "warm"
	PhaseWake       = "wake"
	PhaseDrain      = "drain"
	PhaseCompensate = "compensate"
)

// Tell passes a step to whoever watches the operation of this context; without one it does nothing. It never waits.
func Tell(ctx context.Context, s Step) {
	if t, ok := ctx.Value(key{}).(*told); ok {
		t.put(s)
	}
}

type key struct{}

// keep is how many operations that began are remembered, ended ones included, and maxSteps how many steps of each. What has not
// begun is remembered as long as somebody watches it, so that ids which somebody makes up push nobody out.
const (
	keep     = 64
	maxSteps = 1024
)

// Hub remembers the steps of recent operations. Its zero value is ready, and it is safe for concurrent use.
type Hub struct {
	mu    sync.Mutex
	all   map[string]*told
	order []string // of those that began, oldest first
}

type told struct {
	begun    bool // this and the next are guarded by the hub's mu
	watchers int

	mu    sync.Mutex
	steps []Step
	// byNumber finds the newest telling of a step.
	byNumber map[int]int
	ended    bool
	moved    clock.Signal
}

// Open returns a context whose steps are told under the operation's id, and a function that ends the telling.
func (h *Hub) Open(ctx context.Context, operation string) (context.Context, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.get(operation, true)
	return context.WithValue(ctx, key{}, t), t.end
}

// Watch sends each step of the operation: those that are known, the newest telling of each, then every change, until the
// operation ends, ctx does, or send fails; the error is the latter two's. An operation that has not begun is waited for.
func (h *Hub) Watch(ctx context.Context, operation string, send func(Step) error) error {
	t, leave := h.enter(operation)
	defer leave()
	sent := map[int]Step{}
	for {
		t.mu.Lock()
		steps, ended, moved := t.steps[:len(t.steps):len(t.steps)], t.ended, t.moved.Wait()
		news := make([]Step, 0, len(steps))
		for _, s := range steps {
			if sent[s.Number] != s {
				news = append(news, s)
			}
		}
		t.mu.Unlock()
		for _, s := range news {
			if err := send(s); err != nil {
				return err
			}
			sent[s.Number] = s
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-moved:
		}
	}
}

// enter returns an operation for somebody who watches it until leave.
func (h *Hub) enter(operation string) (t *told, leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t = h.get(operation, false)
	t.watchers++
	return t, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if t.watchers--; t.watchers == 0 && !t.begun {
			delete(h.all, operation)
		}
	}
}

// get returns an operation that has begun or is watched, a new one if it is not known. The caller holds mu.
func (h *Hub) get(operation string, begun bool) *told {
	t, ok := h.all[operation]
	if !ok {
		if h.all == nil {
			h.all = map[string]*told{}
		}
		t = &told{byNumber: map[int]int{}}
		h.all[operation] = t
	}
	if kept(begun) && !t.begun {
		t.begun = true
		if h.order = append(h.order, operation); len(h.order) > keep {
			h.forget()
		}
	}
	return t
}

// forget drops the oldest operation that has ended; the oldest of all where every one goes on. The caller holds mu.
func (h *Hub) forget() {
	i := max(slices.IndexFunc(h.order[:len(h.order)-1], func(id string) bool { return h.all[id].over() }), 0)
	delete(h.all, h.order[i])
	h.order = slices.Delete(h.order, i, i+1)
}

func (t *told) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

func (t *told) put(s Step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.byNumber[s.Number]
	switch {
	case known:
		// Readers hold the old slice.
		t.steps = append([]Step(nil), t.steps...)
		t.steps[i] = s
	case len(t.steps) >= maxSteps:
		return
	default:
		t.byNumber[s.Number] = len(t.steps)
		t.steps = append(t.steps, s)
	}
	t.moved.Raise()
}

func (t *told) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.ended = true
	t.moved.Raise()
}
