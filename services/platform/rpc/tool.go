package rpc

import (
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
)

// What the gateway lets a client do before anybody else hears of it, an internal program may do here: so many calls a second, so many at
// once, and so many under way.
const (
	toolRate  = 50
	toolBurst = 100
	toolOpen  = 64
)

// toolCalls counts the calls of internal programs. There is an entry for each that has a certificate, of which humans make few.
type toolCalls struct {
	mu   sync.Mutex
	byID map[identity.ID]*toolCount
}

type toolCount struct {
	left float64
	at   time.Time
	open int
}

// enter counts a call of the caller's, if that is an internal program. leave must follow where it returns no fault.
func (t *toolCalls) enter(caller identity.ID) (leave func(), refused *fault.Error) {
	if caller.Role() != optionsv1.Role_ROLE_TOOL {
		return func() {}, nil
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[identity.ID]*toolCount{}
	}
	c := t.byID[caller]
	if c == nil {
		c = &toolCount{left: toolBurst, at: now}
		t.byID[caller] = c
	}
	c.left, c.at = min(toolBurst, c.left+now.Sub(c.at).Seconds()*toolRate), now
	if c.left < 1 || c.open >= toolOpen {
		return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded", fault.WithRetry(time.Second))
	}
	c.left--
	c.open++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		c.open--
	}, nil
}
