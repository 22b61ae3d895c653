package harness

import (
	"context"
	"fmt"
	"slices"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// Records returns what the audit log holds, oldest first, read with the operator's certificate. A nil query means the newest
// 1,000.
func (h *Host) Records(query *auditv1.SearchRecordsRequest) []*auditv1.Entry {
	h.t.Helper()
	if query == nil {
		query = &auditv1.SearchRecordsRequest{}
	}
	if query.GetLimit() == 0 {
		query.Limit = 1000
	}
	if h.history == nil {
		h.history = auditv1.NewHistoryServiceClient(h.DialAs(h.OperatorIdentity(), Audit))
	}
	var entries []*auditv1.Entry
	Eventually(h.t, "the audit log answers", func() error {
		ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Second)
		defer cancel()
		response, err := h.history.SearchRecords(ctx, query)
		entries = response.GetEntries()
		return err
	})
	slices.Reverse(entries)
	return entries
}

// Story returns the records of one request, oldest first, once the log holds one that done accepts. Records of reads arrive
// through a spool, a moment after the answer.
func (h *Host) Story(requestID string, done func(*auditv1.Record) bool) []*auditv1.Entry {
	h.t.Helper()
	var entries []*auditv1.Entry
	Eventually(h.t, "the record of "+requestID, func() error {
		entries = h.Records(&auditv1.SearchRecordsRequest{RequestId: requestID})
		for _, e := range entries {
			if done(e.GetRecord()) {
				return nil
			}
		}
		var kinds []string
		for _, e := range entries {
			kinds = append(kinds, e.GetRecord().GetKind().String()+" "+e.GetRecord().GetStatus().String())
		}
		return fmt.Errorf("the log holds %v", kinds)
	})
	return entries
}

// OfKind accepts the records of one kind.
func OfKind(kind auditv1.Kind) func(*auditv1.Record) bool {
	return func(r *auditv1.Record) bool { return r.GetKind() == kind }
}
