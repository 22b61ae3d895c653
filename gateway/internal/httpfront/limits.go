package httpfront

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"durward.internal/gateway/internal/connlimit"
	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/credential"
	"durward.internal/services/platform/fault"
)

// sentenceRate is what every client over a limit is told, in the words of SEC-R2.
const sentenceRate = "Rate limit exceeded"

// admission decides who comes in, and how much of it.
type admission struct {
	*limit.Limiter
	known *limit.Known
	gate  *limit.Gate
	// unnamed counts what is refused before anybody asks who is calling, at the rate of strangers.
	unnamed *rate.Limiter
	delay   time.Duration
}

func newAdmission(conf limit.Config) (*admission, error) {
	l, err := limit.New(conf)
	if err != nil {
		return nil, err
	}
	conf = l.Config()
	return &admission{
		Limiter: l, known: limit.NewKnown(conf.Principals), gate: limit.NewGate(conf), delay: conf.RefusalDelay(),
		unnamed: rate.NewLimiter(rate.Limit(conf.Strangers.PerS), conf.Strangers.Burst),
	}, nil
}

// visit is one HTTP request with a token. It is used by the goroutine that serves the request alone.
type visit struct {
	*admission
	// conn is what the request came on; nil where connections are not counted.
	conn  *connlimit.Conn
	token [sha256.Size]byte
	// principal is whom the token names, as the vault said last; empty for strangers.
	principal string
	// serving: conn serves the principal. entered: the request is one of the principal's that are under way.
	serving, entered bool
}

func (v *visit) stranger() bool { return v.principal == "" }

// enter lets a request with a token in, before its body is read. Whether it may go on or not, leave must be called when it is
// answered.
func (a *admission) enter(ctx context.Context, token string) (*visit, *refused) {
	v := &visit{admission: a, conn: connlimit.Of(ctx), token: credential.Digest(token)}
	principal, known := a.known.Principal(v.token)
	if !known {
		if a.gate.Wait(ctx) != nil {
			return v, overLimit("", "strangers", time.Second)
		}
		return v, nil
	}
	if no := v.connect(principal); no != nil {
		return v, no
	}
	if retry := a.Take(principal, limit.Messages); retry > 0 {
		return v, overLimit(principal, limit.Messages.String(), retry)
	}
	return v, v.begin()
}

// accepted puts a stranger's visit, whose token the vault has accepted by now, to its principal's account: as when another of the token's
// sessions ended meanwhile, which made it a stranger's.
func (v *visit) accepted(principal string) *refused {
	if !v.stranger() {
		return nil
	}
	v.known.Remember(v.token, principal)
	if no := v.connect(principal); no != nil {
		return no
	}
	return v.begin()
}

// connect says whom the visit's connection serves.
func (v *visit) connect(principal string) *refused {
	v.principal = principal
	if v.conn == nil {
		return nil
	}
	if v.serving = v.conn.Serve(principal); !v.serving {
		no := overLimit(principal, "connections", time.Second)
		no.hangUp = true
		return no
	}
	return nil
}

// begin counts the visit as one of its principal's.
func (v *visit) begin() *refused {
	if v.entered = v.Enter(v.principal, limit.Requests); !v.entered {
		return overLimit(v.principal, "requests", time.Second)
	}
	return nil
}

// leave ends what the visit began.
func (v *visit) leave() {
	if v.entered {
		v.Leave(v.principal, limit.Requests)
	}
	if v.serving {
		v.conn.Done()
	}
}

// overLimit refuses what is too much, of a principal where one is known.
func overLimit(principal, what string, retry time.Duration) *refused {
	return &refused{status: http.StatusTooManyRequests, code: callv1.Code_CODE_RATE_LIMITED, message: sentenceRate, reason: "limit: " + what,
		cause:     fault.New(callv1.Code_CODE_RATE_LIMITED, sentenceRate, fault.WithRetry(retry)),
		principal: principal, retryable: true, retry: retry, slow: true, often: true}
}

// opening is around the vault's verdict on a credential: strangers wait their turn, and the verdict is remembered. The
// error is CODE_RATE_LIMITED if it is not asked for.
func (a *admission) opening(ctx context.Context, token [sha256.Size]byte, open func() (*relay.Session, error)) (*relay.Session, error) {
	principal, known := a.known.Principal(token)
	if known {
		if retry := a.Take(principal, limit.Lists); retry > 0 {
			return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, sentenceRate, fault.WithRetry(retry))
		}
	} else {
		leave, err := a.gate.Enter(ctx)
		if err != nil {
			return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, sentenceRate, fault.WithRetry(time.Second))
		}
		defer leave()
	}
	session, err := open()
	switch {
	case err == nil:
		a.known.Remember(token, session.Principal())
	case fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED):
		a.known.Forget(token)
	}
	return session, err
}

// unasked marks a refusal that came before anybody asked who is calling: a crowd of them is answered slowly.
func (a *admission) unasked(no *refused) *refused {
	if !a.unnamed.Allow() {
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

// over reports whether a message is more than its principal may send of its kind, and if so answers it.
func (f *Front) over(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) bool {
	kind, counted := kindOf(frame)
	if !counted {
		return false
	}
	principal := call.Session.Principal()
	// A stream costs what its subscriptions would cost one by one.
	retry := f.admission.TakeN(principal, kind, max(1, frame.Resources))
	if retry == 0 {
		return false
	}
	no := overLimit(principal, kind.String(), retry)
	no.session = call.Session
	no.settle(frame, no.status)
	call.Seen.Refuse(no.code)
	f.refuse(w, r, call.RequestID, no)
	return true
}

// pause holds a refusal back, so that a client that asks again at once costs next to nothing: for the delay and up to half of
// it more, so that those who were refused together do not come back together. Those who wait are bounded by their
// connections, each of which serves one request at a time.
func (a *admission) pause(ctx context.Context) {
	clock.Sleep(ctx, a.delay+rand.N(a.delay/2)) //nolint:gosec // it spreads, it hides nothing
}
