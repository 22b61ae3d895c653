package process

import "os"

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
