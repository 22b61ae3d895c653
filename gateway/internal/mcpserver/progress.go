package mcpserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/httpfront"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

// progressEvery is how often a waiting client that asked for progress hears that we are still there, where Config says nothing else.
const progressEvery = 5 * time.Second

// What is told is whole percent, and only ever grows: each tick is one, until mostWaiting. The end is the answer itself.
const (
	whole       = 100
	mostWaiting = 99
)

// teller tells one client how its call goes, if it asked for that. It is safe for concurrent use.
type teller struct {
	session *mcp.ServerSession
	token   any

	mu   sync.Mutex
	last int
	// at is the last step that was told of.
	at      *executorv1.WatchProgressResponse
	message string
}

type tellerKey struct{}

// telling puts a teller for the request into the context, unless there is one.
func telling(ctx context.Context, req *mcp.CallToolRequest) context.Context {
	token := req.Params.GetProgressToken()
	if token == nil || tellerOf(ctx) != nil {
		return ctx
	}
	return context.WithValue(ctx, tellerKey{}, &teller{session: req.Session, token: token, message: "waiting for approval"})
}

// tellerOf returns the context's teller; nil: nobody wants to know.
func tellerOf(ctx context.Context) *teller {
	t, _ := ctx.Value(tellerKey{}).(*teller)
	return t
}

// tick says that we are still there.
func (t *teller) tick(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tell(ctx, t.last+1)
}

// say sets what is told from now on until something else is.
func (t *teller) say(message string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.message = message
}

// step tells of a step of the operation.
func (t *teller) step(ctx context.Context, p *executorv1.WatchProgressResponse) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	percent := 0
	if p.GetSteps() > 0 {
		percent = int(stepsDone(p) * whole / float64(p.GetSteps()))
	}
	fresh := p.GetStep() != t.at.GetStep() || p.GetEnded() != t.at.GetEnded()
	t.at, t.message = p, sentenceOf(p)
	if !fresh && percent <= t.last {
		return nil // a tick tells of it
	}
	return t.tell(ctx, max(t.last+1, percent))
}

// tell is called with the teller locked.
func (t *teller) tell(ctx context.Context, percent int) error {
	if percent = min(percent, mostWaiting); percent == t.last {
		return nil
	}
	t.last = percent
	return t.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: t.token, Progress: float64(percent), Total: whole, Message: t.message,
	})
}

// stepsDone is how far an operation is, in steps: a step that goes on counts for the part of its usual time that is over.
func stepsDone(p *executorv1.WatchProgressResponse) float64 {
	n := float64(p.GetStep())
	switch {
	case p.GetEnded():
		return n
	case n < 1:
		return 0
	case p.GetExpectedMs() == 0:
		return n - 1
	default:
		return n - 1 + min(float64(p.GetElapsedMs())/float64(p.GetExpectedMs()), 0.95)
	}
}

// sentenceOf is a step in words: "step 2 of 5: start demo-chat, 12 s of about 40 s".
func sentenceOf(p *executorv1.WatchProgressResponse) string {
	s := fmt.Sprintf("step %d", p.GetStep())
	if p.GetSteps() > 0 {
		s += fmt.Sprintf(" of %d", p.GetSteps())
	}
	s += ": " + p.GetPhase()
	if p.GetServiceId() != "" {
		s += " " + p.GetServiceId()
	}
	seconds := func(ms uint32) int64 {
		return (time.Duration(ms) * time.Millisecond).Round(time.Second).Milliseconds() / 1000
	}
	switch {
	case p.GetEnded() && p.GetCause() != "":
		s += ", failed: " + p.GetCause()
	case p.GetEnded():
		s += fmt.Sprintf(", done in %d s", seconds(p.GetElapsedMs()))
	case p.GetExpectedMs() > 0:
		s += fmt.Sprintf(", %d s of about %d s", seconds(p.GetElapsedMs()), seconds(p.GetExpectedMs()))
	case p.GetElapsedMs() >= 1000:
		s += fmt.Sprintf(", %d s", seconds(p.GetElapsedMs()))
	}
	return clean.Line(s, maxSummary)
}

// watchSteps tells the client of each step of an operation that the executor carries out, as far as the client may look at its
// services. Without that, or when nothing comes, the call goes on as it does. What it returns ends the watch.
func (s *Server) watchSteps(ctx context.Context, call *httpfront.Call, t contract.Tool, operation string) func() {
	teller := tellerOf(ctx)
	teller.say("running")
	if teller == nil || t.Sink != optionsv1.Role_ROLE_EXECUTOR {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		s.conf.Relay.WatchProgress(ctx, call.Session, call.Caller, operation, func(p *executorv1.WatchProgressResponse) error {
			return teller.step(ctx, p)
		})
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// watchClient keeps the client informed while a call waits, and calls leave when there is nobody left to inform: the client
// closed the request or the session, or the process is about to stop. What it returns ends the watch.
func (s *Server) watchClient(ctx context.Context, call *httpfront.Call, leave context.CancelFunc) func() {
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(s.conf.progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-call.Gone:
				leave()
				return
			case <-call.Session.Done():
				leave()
				return
			case <-s.conf.Draining:
				leave()
				return
			case <-tick.C:
			}
			if err := tellerOf(ctx).tick(ctx); err != nil {
				leave()
				return
			}
		}
	})
	return func() {
		close(stop)
		watching.Wait()
	}
}
