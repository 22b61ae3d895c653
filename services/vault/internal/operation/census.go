package operation

import (
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// Census is what the queue holds at one moment.
type Census struct {
	// States counts the operations that are waiting, approved or running.
	States map[vaultv1.OperationState]int
	// Oldest is how long the longest-waiting operation has waited for a human; 0 when none waits.
	Oldest time.Duration
	// Waiters is how many calls wait for an operation.
	Waiters int
	// PendingCap is how many operations may wait for a human.
	PendingCap int
}

// Census counts what is live. It costs a walk over it and no query.
func (q *Queue) Census() Census {
	now := q.Now()
	c := Census{PendingCap: q.PendingCap, States: map[vaultv1.OperationState]int{pending: 0, approved: 0, running: 0}}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.live {
		c.States[e.op.State]++
		c.Waiters += int(e.waiters)
		if e.op.State == pending {
			c.Oldest = max(c.Oldest, now.Sub(e.op.AskedAt))
		}
	}
	return c
}
