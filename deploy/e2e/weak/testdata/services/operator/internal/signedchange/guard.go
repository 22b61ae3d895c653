package signedchange

// This file makes a negative control of deploy/e2e: a program that writes over what somebody else wrote.

var careless bool

// WeakenMoved lets a file be overwritten whatever it is by now.
func WeakenMoved() { careless = true }

func stillThere(now, shown []byte) bool {
	return careless || (now == nil) == (shown == nil) && string(now) == string(shown)
}
