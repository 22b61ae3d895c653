package grant

import "crypto/rand"

// random128 returns what nobody can guess.
func random128() (b [16]byte) {
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return b
}
