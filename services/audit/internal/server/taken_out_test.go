package server

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// A destination that a relay's file does not name any more holds nobody up once the relay comes for its others alone. One whose relay does not
// come at all stays: it is behind.
func TestADestinationThatWasTakenOutIsForgotten(t *testing.T) {
	f, began := NewForwarding(ForwardHeaders), time.Now()
	note := func(relay, name string, after time.Duration) {
		f.note(relay, &auditv1.ForwardStatus{Destination: name, HeardAt: timestamppb.New(began.Add(after))})
	}
	names := func() (out []string) {
		for _, s := range f.Status() {
			out = append(out, s.GetDestination())
		}
		return out
	}
	note("one", "gone", 0)
	note("one", "stays", 0)
	note("two", "away", 0)
	note("one", "stays", quiet)
	if got := names(); !slices.Equal(got, []string{"away", "gone", "stays"}) {
		t.Errorf("within the time: %q", got)
	}
	note("one", "stays", quiet+time.Second)
	if got := names(); !slices.Equal(got, []string{"away", "stays"}) {
		t.Errorf("after it: %q", got)
	}
	if records, _ := f.Behind(7, began); records != 7 {
		t.Errorf("%d records behind: the relay that is away is not told of", records)
	}
}
