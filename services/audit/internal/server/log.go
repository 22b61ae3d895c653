package server

import (
	"context"
	"errors"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
)

// A record's own time is its writer's claim; these bounds keep it representable.
var (
	earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

type logService struct {
	auditv1.UnimplementedLogServiceServer
	*Server
}

func (s logService) Append(ctx context.Context, req *auditv1.AppendRequest) (*auditv1.AppendResponse, error) {
	writer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range req.GetRecords() {
		if !mayWrite(writer.Role(), r.GetKind()) {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "this process does not write records of that kind", fault.WithField("records.kind"))
		}
		if !maySay(writer.Role(), r.GetKind(), r.GetBody()) {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "this process does not speak of a human's consent in records of that kind", fault.WithField("records.body"))
		}
		if at := r.GetTime().AsTime(); !r.GetTime().IsValid() || at.Before(earliest) || !at.Before(latest) {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a record's time is not a time of this age", fault.WithField("records.time"))
		}
	}
	return s.cfg.Log.Append(ctx, writer.String(), req.GetRecords(), req.GetKnownSize())
}

func (s logService) GetHead(ctx context.Context, req *auditv1.GetHeadRequest) (*auditv1.GetHeadResponse, error) {
	writer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Log.Head(ctx, writer.String(), req.GetKnownSize())
}

func caller(ctx context.Context) (identity.ID, error) {
	id, ok := rpc.Caller(ctx)
	if !ok {
		return identity.ID{}, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(errors.New("the caller has no identity")))
	}
	return id, nil
}
