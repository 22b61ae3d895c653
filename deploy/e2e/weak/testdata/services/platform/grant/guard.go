package grant

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
)

// This file makes the negative controls of deploy/e2e: ids that can be guessed.

// GuardIDs is the name of the guard that WeakenIDs removes.
const GuardIDs = "ids"

var (
	counted atomic.Bool
	counter atomic.Uint64
)

// WeakenIDs makes every further id the number after the one before.
func WeakenIDs() { counted.Store(true) }

func random128() (b [16]byte) {
	if counted.Load() {
		binary.BigEndian.PutUint64(b[8:], counter.Add(1))
		return b
	}
	_, _ = rand.Read(b[:])
	return b
}
