package operation

import "durward.internal/services/vault/internal/store"

// Joins reports whether a request for the operation would join one that a human was asked about, now: nothing new would come of it.
func (q *Queue) Joins(o *store.Operation) bool {
	epoch := q.Halt.Now().Epoch
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.identicalLocked(o, epoch)
	return e != nil && !alone(&e.op)
}
