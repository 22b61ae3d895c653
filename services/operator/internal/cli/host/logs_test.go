package host

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/peers"
)

// searched is an executor that looks for a log's lines for a while.
type searched struct {
	executorv1.ControlServiceClient
	takes time.Duration
	said  [][]string
}

type searchedStream struct {
	grpc.ServerStreamingClient[executorv1.FollowLogsResponse]
	ctx  context.Context
	of   searched
	next int
}

func (s searched) FollowLogs(ctx context.Context, _ *executorv1.FollowLogsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[executorv1.FollowLogsResponse], error) {
	return &searchedStream{ctx: ctx, of: s}, nil
}

func (s *searchedStream) Recv() (*executorv1.FollowLogsResponse, error) {
	if s.next == 0 {
		time.Sleep(s.of.takes) // in a bubble
	}
	if s.next == len(s.of.said) {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	s.next++
	return &executorv1.FollowLogsResponse{Lines: s.of.said[s.next-1]}, nil
}

// TestTheEndOfALogIsWaitedFor: lines that take a while to be found are shown, and an empty log is known as soon as the executor says so.
func TestTheEndOfALogIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		executor searched
		want     string
		within   time.Duration
	}{
		"a journal that is searched": {searched{takes: 5 * time.Second, said: [][]string{{"one"}, {"two"}}}, "one\ntwo\n", 6 * time.Second},
		"nothing there":              {searched{said: [][]string{nil}}, "", time.Second},
		"an older executor's":        {searched{}, "", 11 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			core, out, _ := clitest.Printing(false)
			s := &cli.Session{Peers: &peers.Peers{Executor: peers.Executor{ControlServiceClient: c.executor}}}
			began := time.Now()
			err := (&app{core}).showTail(t.Context(), s, "chat", 100)
			if took := time.Since(began); err != nil || out.String() != c.want || took > c.within {
				t.Errorf("%s: %q after %s, %v", name, out, took, err)
			}
		})
	}
}
