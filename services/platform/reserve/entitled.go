package reserve

import (
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/contract"
)

// Denial is the action in the vault's record of a human's no.
const Denial = "deny"

// Field marks audit's refusal of records for which its disk has no room left, where a fault names the argument at fault:
// nothing of the request was written, and what Entitled allows would be.
const Field = "records.kind"

// Relieves reports whether the tool takes load off the host and adds none, so that its calls go on out of the reserve. A
// name that the contract does not know relieves nothing.
func Relieves(tool string) bool {
	t, known := contract.Lookup(tool)
	return known && t.Relieves
}

// Entitled reports whether a record may be written out of the reserve, whoever writes it and however often: that something was
// stopped, refused or taken away, and the whole story of a call that takes load off the host. That a process came and went is
// not among it: every process may write that at any time, and could use the reserve up with it.
func Entitled(r *auditv1.Record) bool { return mayWrite(entitled(r)) }

func entitled(r *auditv1.Record) bool {
	switch r.GetKind() {
	case auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED, auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_MUTED:
		return true
	case auditv1.Kind_KIND_DENIED:
		// A human's no. An agent whom policy refuses could use the reserve up by asking on.
		return r.GetBody().GetAction() == Denial || Relieves(r.GetTool())
	case auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_GRANTED,
		auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED:
		return Relieves(r.GetTool())
	default:
		return false
	}
}
