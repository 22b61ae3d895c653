package server

import (
	"context"
	"log/slog"
	"strconv"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/refusals"
)

// Refusals are calls that never reached a service: of peers that did not prove who they are, of roles that may not call, of broken
// messages. It is safe for concurrent use; run it.
type Refusals struct{ *refusals.Counter }

// Refusals returns what records refused calls in the log itself.
func (s *Server) Refusals(logger *slog.Logger) Refusals {
	return Refusals{refusals.New(refusals.Config{Write: func(ctx context.Context, r *auditv1.Record, more uint64) {
		r.Body.Details = map[string]string{"times": strconv.FormatUint(max(more, 1), 10)}
		if err := s.Record(context.WithoutCancel(ctx), r); err != nil {
			logger.ErrorContext(ctx, "refusals could not be recorded", "method", r.GetBody().GetSummary(), "caller", r.GetBody().GetDecisionSource(),
				"times", max(more, 1), "error", err)
		}
	}})}
}

// Refused counts one that the chain in front of the services refused. It is rpc.ServerConfig's OnRefused.
func (r Refusals) Refused(ctx context.Context, method string, caller identity.ID, err *fault.Error) {
	reason := clean.Line(err.Message, 200)
	if err.Code == callv1.Code_CODE_DENIED && err.Cause != nil {
		reason = clean.Line(err.Cause.Error(), 200) // which of the reasons that look alike
	}
	method = clean.Line(method, 200)
	r.Add(ctx, refusals.Kind{Peer: caller.String(), What: method + " " + reason}, &auditv1.Record{
		Kind: auditv1.Kind_KIND_REFUSED, Status: auditv1.Status_STATUS_DENIED,
		Body: &auditv1.Body{Action: "rpc-refused", Summary: method, DecisionSource: caller.String(), Reason: reason},
	})
}
