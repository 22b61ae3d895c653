// Package deepcheck finds out whether a process could do its work: what its answer to a health check does not show, since it costs
// something to find out. Operators are told the problems in plain sentences.
package deepcheck

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"
)

// Every is how long the answer of a deep check counts, and patience how long a check may take.
const (
	Every    = 30 * time.Second
	patience = time.Second
)

// Said is an error whose text is written for operators.
type Said string

func (s Said) Error() string { return string(s) }

// Check is one question of a deep check.
type Check struct {
	// Problem is what operators are told when Ask fails, unless its error is a Said, which they are told instead. The error itself is
	// logged.
	Problem string
	Ask     func(context.Context) error
}

// Checks are a process's deep health: what costs something to find out, and is found out at most once in Every however often it is
// asked for, so that the question is no load (OBS-1). It is safe for concurrent use. A nil *Checks finds nothing wrong.
type Checks struct {
	checks []Check
	logger *slog.Logger

	// turn is held by the one that asks or reads the answer.
	turn     chan struct{}
	asked    time.Time
	problems []string
	// busy are checks that have not returned: one that hangs is not asked again.
	busy []chan error
}

// New returns Checks that have asked nothing yet.
func New(logger *slog.Logger, checks ...Check) *Checks {
	return &Checks{checks: checks, logger: logger, turn: make(chan struct{}, 1), busy: make([]chan error, len(checks))}
}

// Problems returns a sentence for each check that failed or did not answer within a second, in their order. It returns nil when ctx
// ends before its turn comes.
func (d *Checks) Problems(ctx context.Context) []string {
	if d == nil {
		return nil
	}
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil
	}
	if d.asked.IsZero() || time.Since(d.asked) >= Every {
		d.problems = d.ask(context.WithoutCancel(ctx)) // the answer is for others, too
		d.asked = time.Now()
	}
	return d.problems
}

func (d *Checks) ask(ctx context.Context) (problems []string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i, c := range d.checks {
		select {
		case late := <-d.busy[i]:
			d.logger.DebugContext(ctx, "a deep check answered too late to count", "problem", c.Problem, "error", late)
			d.busy[i] = nil
		default:
		}
		if d.busy[i] == nil {
			answer := make(chan error, 1)
			d.busy[i] = answer
			go func() { answer <- c.Ask(ctx) }()
		}
	}
	for i, c := range d.checks {
		err := context.DeadlineExceeded
		select {
		case err = <-d.busy[i]:
			d.busy[i] = nil
		case <-ctx.Done():
		}
		if err != nil {
			d.logger.WarnContext(ctx, "a deep check failed", "problem", c.Problem, "error", err)
			said, _ := errors.AsType[Said](err)
			problems = append(problems, cmp.Or(string(said), c.Problem))
		}
	}
	return problems
}
