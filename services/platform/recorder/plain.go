package recorder

import (
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// plain reports that a record surely keeps the contract, at a tenth of the time that protovalidate takes to say so: most records are of
// reads, and short. It counts bytes where the contract counts characters. What it does not know, it leaves to protovalidate; TestPlain
// holds the two together.
func plain(record *auditv1.Record) bool {
	_, kind := auditv1.Kind_name[int32(record.GetKind())]
	_, tier := optionsv1.Tier_name[int32(record.GetTier())]
	_, status := auditv1.Status_name[int32(record.GetStatus())]
	if !kind || !tier || !status || record.GetKind() == auditv1.Kind_KIND_UNSPECIFIED || record.GetSequence() == 0 || record.GetTime() == nil ||
		!printable(record.GetRequestId(), 64) || !printable(record.GetOperationId(), 64) || !printable(record.GetTool(), 128) {
		return false
	}
	b := record.GetBody()
	if b.GetStatement() != nil || len(b.GetDetails()) > 32 {
		return false
	}
	for name, value := range b.GetDetails() {
		if name == "" || len(name) > 64 || len(value) > 1024 {
			return false
		}
	}
	return len(b.GetPrincipal()) <= 128 && len(b.GetSession()) <= 64 && len(b.GetSource()) <= 64 && len(b.GetArguments()) <= 65536 && len(b.GetSummary()) <= 500 &&
		len(b.GetParentRequestId()) <= 64 && len(b.GetAction()) <= 128 && len(b.GetReason()) <= 500 && len(b.GetDecisionSource()) <= 256 && len(b.GetResultDigest()) <= 32
}

func printable(text string, most int) bool {
	for i := range len(text) {
		if text[i] < '!' || text[i] > '~' {
			return false
		}
	}
	return len(text) <= most
}
