package server

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// redeemService spends grants, for sinks.
type redeemService struct {
	vaultv1.UnimplementedRedeemServiceServer
	*Server
}

// Redeem spends a grant's key for the sink on the connection.
func (s *redeemService) Redeem(ctx context.Context, req *vaultv1.RedeemRequest) (*vaultv1.RedeemResponse, error) {
	at, err := s.Queue.Redeem(ctx, req.GetGrant(), caller(ctx).String())
	if err != nil {
		return nil, err
	}
	return &vaultv1.RedeemResponse{RedeemedAt: timestamppb.New(at), Epoch: s.Halt.Now().Epoch}, nil
}

// Settle says how a redeemed operation ended.
func (s *redeemService) Settle(ctx context.Context, req *vaultv1.SettleRequest) (*vaultv1.SettleResponse, error) {
	if err := s.Queue.Settle(ctx, req.GetOperationId(), req.GetUse(), req.GetOk(), caller(ctx).String()); err != nil {
		return nil, err
	}
	return &vaultv1.SettleResponse{}, nil
}
