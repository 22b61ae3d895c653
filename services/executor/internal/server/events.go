package server

import (
	"time"

	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/sink"
)

// Events implements executorv1.EventServiceServer.
type Events struct {
	executorv1.UnimplementedEventServiceServer
	services *service.Manager
	hub      *progress.Hub
}

// NewEvents returns the streams over the services and the steps of operations.
func NewEvents(services *service.Manager, hub *progress.Hub) *Events {
	return &Events{services: services, hub: hub}
}

// WatchServices sends states and their changes until the permit ends.
func (e *Events) WatchServices(r *executorv1.WatchServicesRequest, stream grpc.ServerStreamingServer[executorv1.WatchServicesResponse]) error {
	ctx := stream.Context()
	if err := sink.Streaming(ctx); err != nil {
		return err
	}
	return e.services.Watch(ctx, r.GetServiceIds(), func(c service.Change) error {
		return stream.Send(&executorv1.WatchServicesResponse{ServiceId: c.ID, State: c.State, Initial: c.Initial})
	})
}

// WatchProgress sends the steps of one operation until it ends or the permit does. An id that nobody was given tells nothing:
// there is nothing under it.
func (e *Events) WatchProgress(r *executorv1.WatchProgressRequest, stream grpc.ServerStreamingServer[executorv1.WatchProgressResponse]) error {
	ctx := stream.Context()
	if err := sink.Streaming(ctx); err != nil {
		return err
	}
	return e.hub.Watch(ctx, r.GetOperationId(), func(s progress.Step) error {
		return stream.Send(&executorv1.WatchProgressResponse{
			Step: uint32(max(s.Number, 0)), Steps: uint32(max(s.Of, 0)), Phase: s.Phase, ServiceId: s.Service,
			ElapsedMs: milliseconds(s.Elapsed), ExpectedMs: milliseconds(s.Expected), Ended: s.Ended, Cause: s.Cause,
		})
	})
}

// milliseconds is a duration as messages hold it.
func milliseconds(d time.Duration) uint32 { return uint32(min(max(d.Milliseconds(), 0), 1<<32-1)) }
