package history

import (
	"context"
	"errors"
	"fmt"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/retention"
	"durward.internal/services/platform/trust"
)

// Gone is what stands in the place of a body that is not there; "": it is there.
func Gone(e *auditv1.Entry) string {
	switch {
	case !logproof.BodyMissing(e):
		return ""
	case e.PrunedBy == nil:
		return "✗ THE BODY OF THIS RECORD IS MISSING: what it said is gone or withheld"
	default:
		return fmt.Sprintf("what it said was pruned: see record %d", e.GetPrunedBy())
	}
}

// PrunedBy returns the decision that let a record's body go, proved and verified; nil for a record that has its body. What it does not
// see is whether a legal hold kept the record: that takes all of the log, and Verifier sees it. Its error says that no human let it go.
func PrunedBy(ctx context.Context, log auditv1.HistoryServiceClient, e *auditv1.Entry, roots *trust.Snapshot) (*retention.Decision, error) {
	if e.PrunedBy == nil {
		return nil, nil
	}
	response, _, err := Record(ctx, log, e.GetPrunedBy(), roots.LogKeys)
	if err != nil {
		return nil, err
	}
	ledger := retention.Ledger{Allowed: roots.AllowedSigners}
	by := response.GetEntry()
	decision, err := ledger.Decide(by.GetRecord().GetBody().GetStatement(), by)
	if err != nil {
		return nil, fmt.Errorf("record %d, which is said to have let it go, allows nothing: %w", by.GetIndex(), err)
	}
	if decision.Prune == nil || !retention.Prunable(decision.Prune, e) {
		return nil, errors.New("the statement that is said to have let it go is not for it")
	}
	return decision, nil
}
