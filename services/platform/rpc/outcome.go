package rpc

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Invoke calls a tool's method with a permission under its metadata key, fills response, and returns the outcome that came
// beside it: an empty one where none came. The call may have been carried out when its outcome cannot be read: that is
// CODE_UNKNOWN_OUTCOME.
func Invoke(ctx context.Context, conn grpc.ClientConnInterface, method string, request, response proto.Message, key, permission string) (*callv1.Outcome, error) {
	var trailer metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, key, permission)
	if err := conn.Invoke(ctx, method, request, response, grpc.Trailer(&trailer)); err != nil {
		return nil, err
	}
	outcome := new(callv1.Outcome)
	values := trailer.Get(TrailerOutcome)
	if len(values) == 0 {
		return outcome, nil
	}
	err := proto.Unmarshal([]byte(values[0]), outcome)
	if len(values) > 1 {
		err = errors.New("more than one")
	}
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_UNKNOWN_OUTCOME, "the call was answered, but how it ended cannot be read", fault.WithCause(err))
	}
	return outcome, nil
}

// SetOutcome sends the outcome beside the reply of the call that ctx belongs to. It fails only when the caller is gone.
func SetOutcome(ctx context.Context, o *callv1.Outcome) {
	raw, err := proto.Marshal(o)
	if err != nil {
		return // strings of our own
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs(TrailerOutcome, string(raw)))
}
