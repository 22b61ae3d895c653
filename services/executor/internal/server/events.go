package server

import (
	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/sink"
)

// Events implements executorv1.EventServiceServer.
type Events struct {
	executorv1.UnimplementedEventServiceServer
	services *service.Manager
}

// NewEvents returns the streams over the services.
func NewEvents(services *service.Manager) *Events { return &Events{services: services} }

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
