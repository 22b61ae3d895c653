package sink

import (
	"context"
	"errors"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/recorder"
)

// Reasons why a Store refuses a Spend.
var (
	// ErrSpent: the spend key is known.
	ErrSpent = errors.New("the spend key was spent before")
	// ErrUsedUp: the statement has no uses left.
	ErrUsedUp = errors.New("the statement has no uses left")
)

// State is how far a spent key came.
type State string

// The states of a spent key.
const (
	// StateSpent: spent, and no outcome known. After a restart it means that the process was interrupted.
	StateSpent State = "spent"
	// StateNotActed: spent, and nothing was done, because the intent could not be recorded.
	StateNotActed State = "not acted"
	// StateDone: done, well or not; the outcome is kept.
	StateDone State = "done"
	// StateUnknown: interrupted between intent and outcome; Found says what was there afterwards.
	StateUnknown State = "unknown"
)

// Use is one use of a human's statement.
type Use struct {
	// Digest is SHA-256 of the statement's bytes.
	Digest [32]byte
	// Limit is how often it may be used.
	Limit int
	// Until is when its uses may be forgotten.
	Until time.Time
}

// Spend is everything that is written down, in one transaction, before anything is done.
type Spend struct {
	// Key is the operation and the number of the use; unique.
	Key       string
	Operation string
	Use       uint32
	Tool      string
	// Arguments is the RFC 8785 JSON, redacted; ArgumentsDigest is over the whole.
	Arguments       []byte
	ArgumentsDigest []byte
	RequestID       string
	Principal       string
	Session         string
	Channel         callv1.Channel
	Dangerous       bool
	At              time.Time
	// Until is when the key may be forgotten.
	Until time.Time
	// Statement is nil for what runs unattended.
	Statement *Use
}

// Result is how a spent key ended.
type Result struct {
	State State
	// OK: done and worked.
	OK bool
	// Response is the serialised response of the tool; Fault the serialised callv1.Fault of a failure.
	Response, Fault []byte
	// Outcome is the serialised callv1.Outcome.
	Outcome []byte
	// Found is what a restart found, in StateUnknown.
	Found string
}

// Entry is a spent key with its result, if it has one.
type Entry struct {
	Spend
	Result
}

// Control is the durable state of the panic switch.
type Control struct {
	// Epoch is at least 1; grants of a lower one are void.
	Epoch  uint64
	Halted bool
	// Reason, By and At say why it is halted, by whom (an identity, its own where it halted itself), and since when.
	Reason, By string
	At         time.Time
}

// Store is a sink's own durable memory. Every change is durable (fsync) when the method returns. It is safe for concurrent
// use.
type Store interface {
	// Lookup returns nil for a key that is not known.
	Lookup(ctx context.Context, key string) (*Entry, error)
	// Knows reports whether a spent key of the operation is known.
	Knows(ctx context.Context, operation string) (bool, error)
	// Spend writes the spent key, the statement's use and the journal's intent in one transaction, or fails with ErrSpent or
	// ErrUsedUp and writes nothing.
	Spend(ctx context.Context, s *Spend) error
	// EndStatement leaves a statement no use, now and until it may be forgotten.
	EndStatement(ctx context.Context, digest [32]byte, until time.Time) error
	// Finish sets the result of a key in StateSpent.
	Finish(ctx context.Context, key string, r *Result) error
	// Interrupted returns the entries in StateSpent.
	Interrupted(ctx context.Context) ([]*Entry, error)
	// Unsettled returns finished entries that the vault has not been told of.
	Unsettled(ctx context.Context) ([]*Entry, error)
	// Settled notes that the vault knows. Keys that are not known are ignored.
	Settled(ctx context.Context, keys []string) error
	// Purge drops keys and uses whose Until is before now. Entries that are not settled stay.
	Purge(ctx context.Context, now time.Time) error

	Control(ctx context.Context) (Control, error)
	SetControl(ctx context.Context, c Control) error
	// State is what all of it is now.
	State(ctx context.Context) (recorder.State, error)
}
