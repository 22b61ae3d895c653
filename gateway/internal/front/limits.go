package front

import (
	"context"
	"crypto/sha256"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// sentenceRate is what every client over a limit is told, in the words of SEC-R2.
const sentenceRate = "Rate limit exceeded"

// limits is what the front knows about how much its callers may ask of it.
type limits struct {
	*limit.Limiter
	known *limit.Known
	gate  *limit.Gate
	// outside counts what is refused before anybody asks who is calling.
	outside *rate.Limiter
	delay   time.Duration
}

func newLimits(conf limit.Config) (*limits, error) {
	l, err := limit.New(conf)
	if err != nil {
		return nil, err
	}
	conf = l.Config()
	return &limits{
		Limiter: l, known: limit.NewKnown(conf.Principals), gate: limit.NewGate(conf), delay: conf.RefusalDelay(),
		outside: rate.NewLimiter(rate.Limit(conf.Strangers.PerS), conf.Strangers.Burst),
	}, nil
}

// visit is one HTTP request that may go on.
type visit struct {
	token [sha256.Size]byte
	// principal is whom the token named when the vault last accepted it; empty for strangers.
	principal string
	leave     func()
}

func (v visit) stranger() bool { return v.principal == "" }

// enter lets a request with a token in, before its body is read. If it may go on, leave must be called.
func (l *limits) enter(ctx context.Context, token string) (visit, *refused) {
	v := visit{token: sha256.Sum256([]byte(token)), leave: func() {}}
	var known bool
	if v.principal, known = l.known.Principal(v.token); !known {
		if l.gate.Wait(ctx) != nil {
			return v, overLimit("", "strangers", time.Second)
		}
		return v, nil
	}
	c := connOf(ctx)
	if c != nil && !c.serve(v.principal) {
		no := overLimit(v.principal, "connections", time.Second)
		no.hangUp = true
		return v, no
	}
	v.leave = func() {
		if c != nil {
			c.done()
		}
	}
	retry := l.Take(v.principal, limit.Messages)
	if retry == 0 && !l.Enter(v.principal, limit.Requests) {
		return v, l.turnAway(v, overLimit(v.principal, "requests", time.Second))
	}
	if retry > 0 {
		return v, l.turnAway(v, overLimit(v.principal, limit.Messages.String(), retry))
	}
	v.leave = func() {
		l.Leave(v.principal, limit.Requests)
		if c != nil {
			c.done()
		}
	}
	return v, nil
}

func (l *limits) turnAway(v visit, no *refused) *refused {
	v.leave()
	return no
}

// overLimit refuses what is too much, of a principal where one is known.
func overLimit(principal, what string, retry time.Duration) *refused {
	return &refused{status: http.StatusTooManyRequests, code: callv1.Code_CODE_RATE_LIMITED, message: sentenceRate, reason: "limit: " + what,
		cause:     fault.New(callv1.Code_CODE_RATE_LIMITED, sentenceRate, fault.WithRetry(retry)),
		principal: principal, retryable: true, retry: retry, slow: true, often: true}
}

// opening is around the vault's verdict on a credential: strangers wait their turn, and the verdict is remembered. The
// error is CODE_RATE_LIMITED if it is not asked for.
func (l *limits) opening(ctx context.Context, token [sha256.Size]byte, open func() (*relay.Session, error)) (*relay.Session, error) {
	principal, known := l.known.Principal(token)
	if known {
		if retry := l.Take(principal, limit.Lists); retry > 0 {
			return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, sentenceRate, fault.WithRetry(retry))
		}
	} else {
		leave, err := l.gate.Enter(ctx)
		if err != nil {
			return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, sentenceRate, fault.WithRetry(time.Second))
		}
		defer leave()
	}
	session, err := open()
	switch {
	case err == nil:
		l.known.Remember(token, session.Principal())
	case fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED):
		l.known.Forget(token)
	}
	return session, err
}

// unasked marks a refusal that came before anybody asked who is calling: a crowd of them is answered slowly.
func (l *limits) unasked(no *refused) *refused {
	if !l.outside.Allow() {
		no.slow, no.often = true, true
	}
	return no
}

// kindOf returns the bucket that a message counts in beside its principal's messages; false: in none. An opening counts
// where the vault is asked, in both eras.
func kindOf(frame *Frame) (limit.Kind, bool) {
	if frame.ID == nil {
		return 0, false
	}
	switch frame.Method {
	case methodCallTool:
		t, ok := contract.Lookup(frame.Name)
		if ok && t.Tier == optionsv1.Tier_TIER_READ && t.FullMethod != vaultv1.ToolService_WaitOperation_FullMethodName {
			return limit.Reads, true
		}
		return limit.Tools, true
	case "tasks/get", "tasks/update", "tasks/cancel":
		return limit.Tools, true
	case "resources/read", "resources/subscribe", "resources/unsubscribe", "completion/complete", "subscriptions/listen":
		return limit.Resources, true
	case methodInitialize, "ping":
		return 0, false
	default:
		return limit.Lists, true
	}
}

// over reports whether a message is more than its principal may send of its kind, and if so answers it. A tool answers for
// itself. For everything else the stateless era has HTTP's word for it; of clients of the other era nothing but a JSON-RPC
// answer to their request reaches anybody.
func (f *Front) over(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) bool {
	kind, counted := kindOf(frame)
	if !counted {
		return false
	}
	principal := call.Session.Principal()
	retry := f.limits.Take(principal, kind)
	if retry == 0 {
		return false
	}
	no := overLimit(principal, kind.String(), retry)
	no.id, no.session, no.tool, no.stateful = frame.ID, call.Session, frame.Method == methodCallTool, call.Era == Stateful
	if no.tool || no.stateful {
		no.status = http.StatusOK
	}
	call.Seen.Refuse(no.code)
	f.refuse(w, r, call.RequestID, no)
	return true
}

// pause holds a refusal back, so that a client that asks again at once costs next to nothing: for the delay and up to half of
// it more, so that those who were refused together do not come back together. Those who wait are bounded by their
// connections, each of which serves one request at a time.
func (l *limits) pause(ctx context.Context) {
	t := time.NewTimer(l.delay + rand.N(l.delay/2)) //nolint:gosec // it spreads, it hides nothing
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// note writes a refusal down: each by itself, or the first and then how many there were, for refusals that come in floods.
func (f *Front) note(r *http.Request, requestID string, no *refused) {
	event := refusal.Event{RequestID: requestID, Code: no.code, Reason: no.reason, Principal: no.principal}
	if no.session != nil {
		event.Principal, event.Session = no.session.Principal(), no.session.Ref()
	}
	if no.often {
		f.conf.Refusals.RecordOften(r.Context(), event)
		return
	}
	f.conf.Refusals.Record(r.Context(), event)
}

// header says in HTTP's words when to come back, and whether on another connection.
func (no *refused) header(h http.Header) {
	if no.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(no.retry.Seconds())))))
	}
	if no.hangUp {
		h.Set("Connection", "close")
	}
}
