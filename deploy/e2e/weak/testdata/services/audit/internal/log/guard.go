package log

// This file makes negative controls of deploy/e2e: a log that acknowledges what it has not written, and one that does not look where
// its files are.

// unwritten is set once, from a flag, before anything is served.
var unwritten bool

// pending is the transaction that was acknowledged before it was written. It belongs to the writing goroutine.
var pending chan error

// WeakenWritten acknowledges records while they are being written. One transaction is behind at most.
func WeakenWritten() { unwritten = true }

func written(commit func() error) error {
	if !unwritten {
		return commit()
	}
	if pending != nil {
		if err := <-pending; err != nil {
			pending = nil
			return err
		}
	}
	pending = make(chan error, 1)
	go func(ended chan<- error) { ended <- commit() }(pending)
	return nil
}

// anywhere is set once, from a flag, before anything is served.
var anywhere bool

// WeakenPlace has the log go on when its files are gone.
func WeakenPlace() { anywhere = true }

func inPlace(found error) error {
	if anywhere {
		return nil
	}
	return found
}
