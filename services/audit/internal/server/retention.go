package server

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// retentionService is for operators. What it changes needs a statement that a human signed, whoever calls.
type retentionService struct {
	auditv1.UnimplementedRetentionServiceServer
	*Server
}

func (s retentionService) SurveyPrune(ctx context.Context, req *auditv1.SurveyPruneRequest) (*auditv1.SurveyPruneResponse, error) {
	before, err := moment(req.GetBefore(), "before")
	if err != nil {
		return nil, err
	}
	found, err := s.retention.Survey(ctx, before)
	if err != nil {
		return nil, unreadable(err)
	}
	out := &auditv1.SurveyPruneResponse{Size: found.Size, Kinds: found.Kinds, Held: found.Held}
	if len(found.Kinds) > 0 {
		out.Oldest, out.Newest = timestamppb.New(found.Oldest), timestamppb.New(found.Newest)
	}
	return out, nil
}

func (s retentionService) DecideRetention(ctx context.Context, req *auditv1.DecideRetentionRequest) (*auditv1.DecideRetentionResponse, error) {
	index, err := s.retention.Decide(ctx, req.GetStatement())
	if fault.Is(err, callv1.Code_CODE_DENIED) {
		r := &auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED, Status: auditv1.Status_STATUS_DENIED, Body: &auditv1.Body{Action: "retention-refused"}}
		if by, ok := rpc.Caller(ctx); ok {
			r.Body.DecisionSource = by.String()
		}
		if cause := fault.From(err).Cause; cause != nil {
			r.Body.Reason = clean.Line(cause.Error(), 200)
		}
		if failed := s.Record(ctx, r); failed != nil {
			return nil, failed
		}
		return nil, err
	}
	if errors.As(err, new(*fault.Error)) {
		return nil, err
	}
	if err != nil {
		return nil, unreadable(err)
	}
	return &auditv1.DecideRetentionResponse{Index: index}, nil
}

func (s retentionService) ListRetention(ctx context.Context, _ *auditv1.ListRetentionRequest) (*auditv1.ListRetentionResponse, error) {
	state, err := s.retention.State(ctx)
	if err != nil {
		return nil, unreadable(err)
	}
	out := &auditv1.ListRetentionResponse{}
	for _, h := range state.Holds {
		out.Holds = append(out.Holds, &auditv1.Hold{Index: h.Index, Since: timestamppb.New(h.At), Statement: h.Evidence})
	}
	for _, p := range state.Prunings {
		out.Prunings = append(out.Prunings, &auditv1.Pruning{Index: p.Index, Since: timestamppb.New(p.At), Statement: p.Evidence, Done: state.Done[p.Index]})
	}
	return out, nil
}
