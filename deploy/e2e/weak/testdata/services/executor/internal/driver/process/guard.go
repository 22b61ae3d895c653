package process

import (
	"os"
	"time"
)

// This file makes negative controls of deploy/e2e: an executor that gives programs the file of their log, and one that takes long
// before a program begins.

var unbounded, slow bool

// drag is longer than a start's confirmation waits for its driver.
const drag = 700 * time.Millisecond

// WeakenPrompt has each program begin long after its start was confirmed.
func WeakenPrompt() { slow = true }

// WeakenLog has programs write to the file of their log, past its keeper.
func WeakenLog() { unbounded = true }

func output(pipe *os.File, file string) *os.File {
	if slow {
		time.Sleep(drag)
	}
	if !unbounded {
		return pipe
	}
	log, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return pipe
	}
	return log
}
