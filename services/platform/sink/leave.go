package sink

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Party is for whom a call is made, by a verified grant.
type Party struct {
	// Client is who asks, and Agent its agent, if one was named.
	Client, Agent string
	// Approved: a human said yes to this very call, or to calls like it, and the statement was verified here.
	Approved bool
}

// For returns for whom a tool's call is made; the zero value elsewhere.
func For(ctx context.Context) Party {
	n, ok := ctx.Value(notesKey{}).(*notes)
	if !ok {
		return Party{}
	}
	return Party{Client: n.call.who.principal, Agent: n.call.grant.GetAgent(), Approved: n.call.agreed != nil}
}

// look runs the handler of a read. One that leaves this host has its intent in the log first, and ends with a halt.
func (a *Authority) look(ctx context.Context, c *call, request proto.Message, handler grpc.UnaryHandler) (proto.Message, error) {
	if !c.tool.Leaves {
		return a.run(ctx, c, request, handler)
	}
	moved := a.streams.next() // before the halt is judged, so that none is missed
	record := a.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_PENDING, c)
	record.Body.Summary = "about to leave this host"
	if _, err := a.recordNow(ctx, record); err != nil && intentRequired() {
		return nil, newFault(callv1.Code_CODE_AUDIT_UNAVAILABLE, err)
	}
	halted := fault.New(callv1.Code_CODE_HALTED, sayHalted)
	if haltHolds(a.Control().Halted) {
		return nil, halted
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-moved:
				moved = a.streams.next()
				if haltHolds(a.Control().Halted) {
					end(halted)
				}
			}
		}
	}()
	response, err := a.run(ctx, c, request, handler)
	if errors.Is(context.Cause(ctx), halted) {
		return nil, halted
	}
	return response, err
}
