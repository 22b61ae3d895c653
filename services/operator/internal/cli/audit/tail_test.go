package audit

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
)

// brief is an audit each of whose streams brings one record and then ends: after so long, and with that error.
type brief struct {
	auditv1.HistoryServiceClient
	now   time.Time
	lasts []time.Duration
	ends  []error
	from  []uint64
}

type briefStream struct {
	grpc.ServerStreamingClient[auditv1.TailRecordsResponse]
	b    *brief
	sent bool
}

func (b *brief) TailRecords(_ context.Context, in *auditv1.TailRecordsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[auditv1.TailRecordsResponse], error) {
	b.from = append(b.from, in.GetFromIndex())
	return &briefStream{b: b}, nil
}

func (s *briefStream) Recv() (*auditv1.TailRecordsResponse, error) {
	if s.sent {
		n := len(s.b.from) - 1
		s.b.now = s.b.now.Add(s.b.lasts[n])
		return nil, s.b.ends[n]
	}
	s.sent = true
	e := &auditv1.Entry{
		Index: s.b.from[len(s.b.from)-1], Writer: "w", LoggedAt: timestamppb.New(s.b.now), Salt: make([]byte, logproof.SaltSize),
		Record: &auditv1.Record{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(s.b.now), Body: &auditv1.Body{}},
	}
	return &auditv1.TailRecordsResponse{Entry: e}, logproof.Seal(e)
}

// TestATailGoesOn where its connection ended after a while, from the record after the last one that was shown; at no other end.
func TestATailGoesOn(t *testing.T) {
	away := fault.New(callv1.Code_CODE_UNAVAILABLE, "audit cannot be reached")
	for name, c := range map[string]struct {
		lasts []time.Duration
		ends  []error
		want  int
	}{
		"an old connection ends":       {[]time.Duration{time.Hour, 2 * time.Hour, time.Hour}, []error{away, away, io.EOF}, 3},
		"audit goes away soon":         {[]time.Duration{time.Second}, []error{away}, 1},
		"audit refuses":                {[]time.Duration{time.Hour}, []error{fault.New(callv1.Code_CODE_DENIED, "no")}, 1},
		"it comes back and goes again": {[]time.Duration{time.Hour, time.Second}, []error{away, away}, 2},
	} {
		from := &brief{now: time.Unix(1_800_000_000, 0), lasts: c.lasts, ends: c.ends}
		core, out, _ := clitest.Printing(false)
		core.Now = func() time.Time { return from.now }
		err := (&app{core}).follow(t.Context(), &cli.Session{Peers: &peers.Peers{Audit: peers.Audit{HistoryServiceClient: from}}}, 7, nil)
		if err == nil || len(from.from) != c.want || from.from[c.want-1] != uint64(7+c.want-1) || strings.Count(out.String(), "\n") != c.want {
			t.Errorf("%s: %v, asked from %d\n%s", name, err, from.from, out)
		}
	}
}
