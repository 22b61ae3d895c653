package postgres

import "sync/atomic"

// This file makes negative controls: a process that lost its lead writes on.

var unfenced atomic.Bool

// WeakenFence takes the fence away.
func WeakenFence() { unfenced.Store(true) }

// Fence is the condition under which a process may write.
func Fence() string {
	if unfenced.Load() {
		return "epoch >= $1"
	}
	return "epoch = $1"
}
