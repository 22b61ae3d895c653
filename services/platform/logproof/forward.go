package logproof

import (
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// Behind is how many records of a log of that size are not at the destination to which it is forwarded, and since when the first of them waits.
func Behind(s *auditv1.ForwardStatus, size uint64, now time.Time) (records uint64, waits time.Duration) {
	if s.GetNextIndex() >= size {
		return 0, 0
	}
	since := s.GetWaitsSince()
	if since == nil {
		since = s.GetHeardAt() // it had all of them then
	}
	return size - s.GetNextIndex(), max(now.Sub(since.AsTime()), 0)
}
