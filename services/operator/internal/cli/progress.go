package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/live"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
)

const (
	// Redraw is how often what moves on a terminal is drawn anew.
	Redraw = 200 * time.Millisecond
	// LastStep is how long the last steps of an operation that has answered are waited for.
	LastStep = 500 * time.Millisecond
)

// Steps is what is known of one operation's steps.
type Steps struct {
	ByNumber map[uint32]*step
}

type step struct {
	said *executorv1.WatchProgressResponse
	// at is when it was said, by this machine's clock.
	at time.Time
}

// Take notes what was said of a step and reports whether its phase is new or it has ended: what a line of a log is worth.
func (v *Steps) Take(said *executorv1.WatchProgressResponse, now time.Time) bool {
	if v.ByNumber == nil {
		v.ByNumber = map[uint32]*step{}
	}
	before := v.ByNumber[said.GetStep()]
	v.ByNumber[said.GetStep()] = &step{said: said, at: now}
	return before == nil || before.said.GetPhase() != said.GetPhase() || before.said.GetEnded() != said.GetEnded()
}

// sorted returns the steps in their order.
func (v *Steps) sorted() []*step {
	return slices.SortedFunc(maps.Values(v.ByNumber), func(a, b *step) int { return int(a.said.GetStep()) - int(b.said.GetStep()) })
}

// Lines lays the steps out for a terminal.
func (v *Steps) Lines(out *output.Printer, now time.Time) []string {
	return output.Each(v.sorted(), func(s *step) string { return s.Line(out, now) })
}

// Line is one step: where it stands, what is done to which service, and how long it takes.
func (s *step) Line(out *output.Printer, now time.Time) string {
	elapsed := time.Duration(s.said.GetElapsedMs()) * time.Millisecond
	mark := out.Blue("●")
	switch {
	case s.said.GetCause() != "":
		mark = out.Red("✗")
	case s.said.GetEnded():
		mark = out.Green("✓")
	default:
		elapsed += max(0, now.Sub(s.at))
	}
	text := fmt.Sprintf("%s %s %s  %s", mark, s.number(), output.Pad(cmp.Or(phases[s.said.GetPhase()], clean.Line(s.said.GetPhase(), 32)), 24),
		clean.Line(s.said.GetServiceId(), 64))
	switch {
	case s.said.GetCause() != "":
		return text + "  " + out.Red(clean.Line(s.said.GetCause(), 300))
	case s.said.GetEnded():
		return text + "  " + out.Dim(Seconds(elapsed))
	case s.said.GetExpectedMs() >= 100:
		expected := time.Duration(s.said.GetExpectedMs()) * time.Millisecond
		return text + "  " + Seconds(elapsed) + out.Dim(" of about "+Seconds(expected))
	default:
		return text + "  " + Seconds(elapsed)
	}
}

// number is "2/5", or "2" where it is not known how many there are.
func (s *step) number() string {
	number := strconv.FormatUint(uint64(s.said.GetStep()), 10)
	if of := s.said.GetSteps(); of > 0 {
		number += "/" + strconv.FormatUint(uint64(of), 10)
	}
	return number
}

// phases says for people what is done in a phase.
var phases = map[string]string{
	"drain": "letting requests finish", "stop": "stopping", "sleep": "putting to sleep", "verify": "waiting for free memory", "start": "starting",
	"ready": "loading", "warm": "asking for one token", "wake": "waking", "compensate": "bringing back",
}

// stepJSON is a step in --json. Field names are stable.
type stepJSON struct {
	Kind        string `json:"kind"`
	OperationID string `json:"operation_id"`
	Step        uint32 `json:"step"`
	Steps       uint32 `json:"steps,omitempty"`
	Phase       string `json:"phase"`
	ServiceID   string `json:"service_id,omitempty"`
	ElapsedMS   uint32 `json:"elapsed_ms"`
	ExpectedMS  uint32 `json:"expected_ms,omitempty"`
	Ended       bool   `json:"ended"`
	Cause       string `json:"cause,omitempty"`
}

func NewStepJSON(operationID string, s *executorv1.WatchProgressResponse) stepJSON {
	return stepJSON{
		Kind: "step", OperationID: operationID, Step: s.GetStep(), Steps: s.GetSteps(), Phase: s.GetPhase(),
		ServiceID: s.GetServiceId(), ElapsedMS: s.GetElapsedMs(), ExpectedMS: s.GetExpectedMs(), Ended: s.GetEnded(), Cause: s.GetCause(),
	}
}

// EachOf calls f with each message of a stream until f fails or ctx ends, which is how Ctrl-C ends a command that stays. ended is
// the error of a stream that the process ended.
func EachOf[T any](ctx context.Context, stream interface{ Recv() (T, error) }, ended error, f func(T) error) error {
	for {
		message, err := stream.Recv()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			return ended
		case err != nil:
			return err
		}
		if err := f(message); err != nil {
			return err
		}
	}
}

// lasted is how long a stream must have gone on to be opened again.
const lasted = time.Minute

// Follow is EachOf for a stream that is opened again where its connection ended after a while: servers have each peer prove itself anew every
// hour or so. again: it is not the first.
func Follow[T any](ctx context.Context, now func() time.Time, ended error, open func(again bool) (grpc.ServerStreamingClient[T], error), f func(*T) error) error {
	for again := false; ; again = true {
		began := now()
		stream, err := open(again)
		if err == nil {
			err = EachOf(ctx, stream, ended, f)
		}
		if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || fault.FromPeer(err) || now().Sub(began) < lasted {
			return err
		}
	}
}

// FollowLog passes on the lines of a service's log: so many of those that are there, and those that come.
func (s *Session) FollowLog(ctx context.Context, now func() time.Time, ended error, service string, lines uint32, tell func([]string) error) error {
	return Follow(ctx, now, ended, func(again bool) (grpc.ServerStreamingClient[executorv1.FollowLogsResponse], error) {
		if again {
			lines = 0 // they were passed on
		}
		return s.Executor.FollowLogs(ctx, &executorv1.FollowLogsRequest{ServiceId: service, Lines: lines})
	}, func(said *executorv1.FollowLogsResponse) error { return tell(said.GetLines()) })
}

// WatchProgress passes on what the executor says of an operation's steps until the operation or ctx ends. That there is
// nothing to say is no error of the operation's.
func (s *Session) WatchProgress(ctx context.Context, operationID string, tell func(*executorv1.WatchProgressResponse)) error {
	stream, err := s.Executor.Events.WatchProgress(ctx, &executorv1.WatchProgressRequest{OperationId: operationID})
	if err != nil {
		return err
	}
	for {
		said, err := stream.Recv()
		if err != nil {
			return err
		}
		tell(said)
	}
}

// follow shows the steps of an operation while it runs: in place on a terminal, and otherwise as lines. The returned function
// ends the showing; it waits a moment for the last step.
func (a *App) follow(ctx context.Context, s *Session, operationID string) (stop func()) {
	if s.Executor.Events == nil || operationID == "" || a.Format == output.Quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan *executorv1.WatchProgressResponse)
	go func() {
		defer close(told)
		// Progress is for looking at: how the operation went is said by its answer.
		_ = s.WatchProgress(ctx, operationID, func(said *executorv1.WatchProgressResponse) {
			select {
			case told <- said:
			case <-ctx.Done():
			}
		})
	}()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		a.showSteps(told)
	}()
	return func() {
		select {
		case <-shown:
		case <-time.After(LastStep):
		}
		cancel()
		<-shown
	}
}

// Looking says on standard error, where that is a terminal to draw on, what is being looked at, for commands that have nothing else to say for a while:
// one line, each in place of the one before. done takes it away.
func (a *App) Looking() (at func(what string), done func()) {
	out := output.New(a.Streams.Err, a.Streams.Err, a.Streams.Getenv)
	if !out.Draws {
		return func(string) {}, func() {}
	}
	area := live.Below(a.Streams.Err)
	return func(what string) { area.Draw([]string{out.Dim("Looking at " + what + " …")}) }, sync.OnceFunc(func() {
		area.Draw(nil)
		area.Close()
	})
}

// showSteps draws steps until told is closed. Where there is no terminal to draw on they are lines on standard error.
func (a *App) showSteps(told <-chan *executorv1.WatchProgressResponse) {
	out := a.Display()
	var all Steps
	if !out.Draws {
		out = output.New(a.Streams.Err, a.Streams.Err, a.Streams.Getenv)
		for said := range told {
			if all.Take(said, a.Now()) {
				out.Printf("%s\n", all.ByNumber[said.GetStep()].Line(out, a.Now()))
			}
		}
		return
	}
	area := live.Below(out.Out)
	defer area.Close()
	tick := time.NewTicker(Redraw)
	defer tick.Stop()
	for {
		select {
		case said, ok := <-told:
			if !ok {
				if len(all.ByNumber) > 0 {
					area.Draw(all.Lines(out, a.Now()))
				}
				return
			}
			all.Take(said, a.Now())
		case <-tick.C:
		}
		if len(all.ByNumber) > 0 {
			area.Draw(all.Lines(out, a.Now()))
		}
	}
}
