// Package sessions hears from the vault what becomes of sessions while nobody calls. The gateway and egress link it; it decides nothing.
package sessions

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
)

// Bounds of the pause before a watch that broke off goes on, and how long it must have lasted to be taken as sound.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
	sound    = time.Second
)

// Watch tells heard what the vault says of sessions, until ctx ends. Before the first word of each stream that the vault answers it calls
// begun, with a context that ends when the stream breaks off. The log says lost once where the vault is away for longer.
func Watch(ctx context.Context, vault vaultv1.SessionServiceClient, logger *slog.Logger, lost string, begun func(stream context.Context), heard func(*vaultv1.WatchSessionsResponse)) {
	pause, said := minPause, false
	for ctx.Err() == nil {
		began := time.Now()
		err := watch(ctx, vault, begun, heard)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= sound {
			pause, said = minPause, false
		}
		level := slog.LevelDebug
		if !said && pause >= maxPause {
			level, said = slog.LevelWarn, true
		}
		logger.Log(ctx, level, lost, "fault", fault.From(err))
		clock.Sleep(ctx, pause/2+rand.N(pause)) //nolint:gosec // spreads those that broke off together
		pause = min(2*pause, maxPause)
	}
}

func watch(ctx context.Context, vault vaultv1.SessionServiceClient, begun func(stream context.Context), heard func(*vaultv1.WatchSessionsResponse)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := vault.WatchSessions(ctx, &vaultv1.WatchSessionsRequest{})
	if err != nil {
		return err
	}
	if answered, _ := stream.Header(); answered != nil { // the next Recv says what is wrong
		begun(ctx)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		heard(m)
	}
}
