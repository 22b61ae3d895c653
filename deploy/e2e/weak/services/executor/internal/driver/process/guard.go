package process

import (
	"os"

	"durward.internal/services/platform/handover"
)

// This file makes a negative control of deploy/e2e: an executor that gives programs the file of their log.

var unbounded bool

// WeakenLog has programs write to the file of their log, past its keeper.
func WeakenLog() { unbounded = true }

func output(pipe *os.File, file string) *os.File {
	if !unbounded {
		return pipe
	}
	log, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return pipe
	}
	return log
}

// seen are the values that a weakened executor has opened; nil: it opens none.
var seen [][]handover.Value

// WeakenHandover has the executor open what the vault seals for a launcher, and seal it again.
func WeakenHandover() { seen = [][]handover.Value{} }

func recipient(public []byte) (to []byte, pass func(sealed []byte, service string) []byte) {
	key, err := handover.NewKey()
	if seen == nil || err != nil {
		return public, func(sealed []byte, _ string) []byte { return sealed }
	}
	return key.Public(), func(sealed []byte, service string) []byte {
		values, err := key.Open(sealed, service)
		if err != nil {
			return nil
		}
		seen = append(seen, values)
		again, _ := handover.Seal(public, service, values)
		return again
	}
}
