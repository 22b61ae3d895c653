package main

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/sink"
)

// ruleTimeout bounds how long what a rule is about to do waits for the log.
const ruleTimeout = 2 * time.Second

// recordRules returns what records the executor's acts by rule. What is about to be done is in the log before it is done, or it
// is not done; how it went may reach the log later.
func recordRules(log sink.Recorder) service.Rule {
	return func(ctx context.Context, what string, s *catalog.Service, stage service.Stage, how error) error {
		record := &auditv1.Record{
			Kind: auditv1.Kind_KIND_RULE, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_PENDING,
			Body: &auditv1.Body{Summary: clean.Line(what, 500), Details: map[string]string{}},
		}
		if s != nil {
			record.Body.Details["service_id"] = s.ID
		}
		ctx, cancel := context.WithTimeout(ctx, ruleTimeout)
		defer cancel()
		switch {
		case stage == service.Intent:
			_, rerr := log.Record(ctx, record)
			return rerr
		case how == nil:
			record.Status = auditv1.Status_STATUS_OK
		default:
			record.Status, record.Body.Reason = auditv1.Status_STATUS_ERROR, clean.Line(how.Error(), 500)
		}
		_, rerr := log.Report(ctx, record)
		return rerr
	}
}
