package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// WhileItLeads refuses calls once another vault may lead: this one was stopped, or cut off from the database that they share, and what it
// knows may be old.
func (s *Server) WhileItLeads(leads func() bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !leads() {
			return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "this vault leads no more, and another one takes over; try again", fault.WithRetry(time.Second))
		}
		return handle(ctx, req)
	}
}
