package notify

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// scripted is a vault whose watches a test feeds: a response, or an end.
type scripted struct{ events chan any }

type scriptedStream struct {
	grpc.ServerStreamingClient[vaultv1.WatchWaitingResponse]

	ctx    context.Context
	events chan any
}

func (s scripted) WatchWaiting(ctx context.Context, _ *vaultv1.WatchWaitingRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[vaultv1.WatchWaitingResponse], error) {
	return scriptedStream{ctx: ctx, events: s.events}, nil
}

func (s scriptedStream) Recv() (*vaultv1.WatchWaitingResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case event := <-s.events:
		if err, ended := event.(error); ended {
			return nil, err
		}
		response, _ := event.(*vaultv1.WatchWaitingResponse)
		return response, nil
	}
}

// TestWatch: while the vault is away that is said once and the vault asked again; who was told is not told again when it is back.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cfg := &Config{Command: "durward", Gather: 2 * time.Second, Apart: 30 * time.Second, AnHour: 30}
		vault, b, to := scripted{make(chan any)}, &board{}, &fake{}
		var mu sync.Mutex
		var lines []string
		log := func(line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		}
		var all sync.WaitGroup
		all.Go(func() { watch(ctx, cfg, vault, b, log) })
		all.Go(func() { newTeller(cfg, "x", to, log).run(ctx, b) })
		one := waiting("K7F3ABCDEFGHJKMNPQRSTVWXYZ", "claude-code", "start_service", optionsv1.Tier_TIER_WRITE)
		one[0].ExpiresAt.Seconds = time.Now().Add(time.Hour).Unix()
		vault.events <- &vaultv1.WatchWaitingResponse{}
		vault.events <- &vaultv1.WatchWaitingResponse{Waiting: one}
		pass(10 * time.Second)
		want(t, "told", to.numbers(), "K7F3")
		began := time.Now()
		for range 10 {
			vault.events <- errors.New("it is \x1b[31mgone")
		}
		if took := time.Since(began); took < 2*time.Minute || took > 5*time.Minute {
			t.Errorf("asked ten times in %s", took)
		}
		vault.events <- &vaultv1.WatchWaitingResponse{Waiting: one}
		pass(10 * time.Minute)
		want(t, "after a restart of the vault", to.numbers(), "K7F3")
		two := waiting("K7F3BBCDEFGHJKMNPQRSTVWXYZ", "cursor", "stop_service", optionsv1.Tier_TIER_DESTRUCTIVE)
		two[0].ExpiresAt.Seconds = time.Now().Add(time.Hour).Unix()
		vault.events <- &vaultv1.WatchWaitingResponse{Waiting: append(slices.Clone(one), two...)}
		pass(time.Minute)
		want(t, "numbers that are alike", to.numbers(), "K7F3", "K7F3B")
		vault.events <- errors.New("the connection is an hour old")
		vault.events <- &vaultv1.WatchWaitingResponse{Waiting: two}
		pass(time.Minute)
		want(t, "after an hour", to.numbers(), "K7F3", "K7F3B")
		cancel()
		all.Wait()
		if len(lines) != 2 || !strings.Contains(lines[0], "it is gone") || strings.Contains(lines[0], "\x1b") || lines[1] != "The vault is there again." {
			t.Errorf("said %q", lines)
		}
	})
}
