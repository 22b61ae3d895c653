package history

import (
	"cmp"
	"slices"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// Notable are the newest of the entries that stand out, each once, at most limit of them, oldest first.
func Notable(entries []*auditv1.Entry, limit int) []*auditv1.Entry {
	out := slices.DeleteFunc(slices.Clone(entries), func(e *auditv1.Entry) bool { return StandsOut(e) == "" })
	slices.SortFunc(out, func(a, b *auditv1.Entry) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	out = slices.CompactFunc(out, func(a, b *auditv1.Entry) bool { return a.GetIndex() == b.GetIndex() })
	return out[max(0, len(out)-limit):]
}

// FewDays is how many days a disk should last at least.
const FewDays = 14

// DaysLeft is how many days the log's disk lasts at the rate at which the log grows; false where that cannot be told, since the log is
// young, does not grow, or lies with a database server.
func DaysLeft(audit *auditv1.GetStatusResponse) (days uint64, known bool) {
	if audit.GetBytesPerDay() == 0 || audit.GetDiskFreeBytes() == 0 {
		return 0, false
	}
	return audit.GetDiskFreeBytes() / audit.GetBytesPerDay(), true
}
