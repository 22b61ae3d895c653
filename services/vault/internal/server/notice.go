package server

import (
	"google.golang.org/grpc"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/opnumber"
)

// noticeService is for programs that tell an operator that something waits. What they see is enough for that and for nothing else: the
// id of an operation, its arguments and its asker's words stay here.
type noticeService struct {
	vaultv1.UnimplementedNoticeServiceServer
	*Server
}

// WatchWaiting sends what waits, whole, and again after each change.
func (s *noticeService) WatchWaiting(_ *vaultv1.WatchWaitingRequest, stream grpc.ServerStreamingServer[vaultv1.WatchWaitingResponse]) error {
	return s.Queue.WatchWaiting(stream.Context(), func(ops []*vaultv1.Operation) error {
		response := &vaultv1.WatchWaitingResponse{}
		for _, o := range ops {
			response.Waiting = append(response.Waiting, &vaultv1.Waiting{
				Number: opnumber.Of(o.GetOperationId()), Principal: o.GetPrincipal(), Tool: o.GetTool().GetName(),
				Tier: max(o.GetTier(), o.GetPolicyTier()), AskedAt: o.GetAskedAt(), ExpiresAt: o.GetExpiresAt(),
			})
		}
		return stream.Send(response)
	})
}
