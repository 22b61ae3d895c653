package sink

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Party is for whom a call is made, by a verified grant or permit.
type Party struct {
	// Client is who asks, in Session, and Agent its agent, if one was named.
	Client, Session, Agent string
	// User is whose client it is, by the vault's list of them.
	User string
	// Approved: a human said yes to this very call, or to calls like it, and the statement was verified here.
	Approved bool
}

// For returns for whom a tool's call is made; the zero value elsewhere.
func For(ctx context.Context) Party {
	n, ok := ctx.Value(notesKey{}).(*notes)
	if !ok {
		return Party{}
	}
	return Party{Client: n.call.who.principal, Session: n.call.who.session, Agent: n.call.grant.GetAgent(), User: n.call.grant.GetUser(), Approved: n.call.agreed != nil}
}

// leaving are the calls under way that send something to other hosts.
type leaving struct {
	mu   sync.Mutex
	ends map[*context.CancelCauseFunc]bool
}

// errHalted is why the context of a call ended that was under way when a halt came.
var errHalted = errors.New("halted while the call was under way")

// untilHalt returns a context in which a tool that leaves this host runs; for any other tool ctx itself. It has ended when Halt returns.
// It is made before the halt is judged, so that none is missed. end releases it.
func (a *Authority) untilHalt(ctx context.Context, c *call) (_ context.Context, end func()) {
	if !c.tool.Leaves {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a.leaving.mu.Lock()
	defer a.leaving.mu.Unlock()
	a.leaving.ends[&cancel] = true
	return ctx, func() {
		a.leaving.mu.Lock()
		defer a.leaving.mu.Unlock()
		delete(a.leaving.ends, &cancel)
		cancel(nil)
	}
}

// end ends what is under way.
func (l *leaving) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for cancel := range l.ends {
		if haltHolds(true) {
			(*cancel)(errHalted)
		}
	}
}

// look runs the handler of a read. One that leaves this host has its intent in the log first.
func (a *Authority) look(ctx context.Context, c *call, request proto.Message, handler grpc.UnaryHandler) (proto.Message, error) {
	if !c.tool.Leaves {
		return a.run(ctx, c, request, handler)
	}
	ctx, end := a.untilHalt(ctx, c)
	defer end()
	record := a.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_PENDING, c)
	record.Body.Summary = "about to leave this host"
	if _, err := recordNow(ctx, record, a.cfg.Recorder.Record); err != nil && intentRequired() {
		return nil, newFault(callv1.Code_CODE_AUDIT_UNAVAILABLE, err)
	}
	halted := fault.New(callv1.Code_CODE_HALTED, say(callv1.Code_CODE_HALTED))
	if haltHolds(a.Control().Halted) {
		return nil, halted
	}
	response, err := a.run(ctx, c, request, handler)
	if errors.Is(context.Cause(ctx), errHalted) {
		return nil, halted
	}
	return response, err
}
