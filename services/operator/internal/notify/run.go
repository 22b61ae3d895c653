package notify

import (
	"context"
	"fmt"
	"sync"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
)

// Pauses between two tries to watch.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// lasted is how long a watch must have gone on to be begun again without a word: servers have each peer prove itself anew every hour or so.
const lasted = time.Minute

// Run tells every destination what waits, until ctx ends. log gets a line for each thing that an operator should know.
func Run(ctx context.Context, cfg *Config, vault vaultv1.NoticeServiceClient, log func(string)) error {
	b := &board{}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, d := range cfg.Destinations {
		to, err := cfg.sender(d)
		if err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		all.Go(func() { newTeller(cfg, d.Name, to, log).run(ctx, b) })
	}
	watch(ctx, cfg, vault, b, log)
	return nil
}

// watch keeps the board as the vault has it. While the vault is away the board stays as it was: those who were told are not told again.
func watch(ctx context.Context, cfg *Config, vault vaultv1.NoticeServiceClient, b *board, log func(string)) {
	pause, silent := firstRetry, false
	for {
		began, spoke := time.Now(), false
		err := follow(ctx, cfg, vault, b, func() {
			if silent {
				log("The vault is there again.")
			}
			pause, silent, spoke = firstRetry, false, true
		})
		if ctx.Err() != nil {
			return
		}
		if spoke && time.Since(began) >= lasted {
			continue
		}
		if !silent {
			log(fmt.Sprintf("The vault does not say what waits: %s. It is asked again, and this is said once.", clean.Line(err.Error(), 200)))
			silent = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, lastRetry)
	}
}

// follow watches once. answered is called at each answer.
func follow(ctx context.Context, cfg *Config, vault vaultv1.NoticeServiceClient, b *board, answered func()) error {
	stream, err := vault.WatchWaiting(ctx, &vaultv1.WatchWaitingRequest{})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		answered()
		b.set(cfg.notices(response.GetWaiting()))
	}
}

// Tried is what became of a test.
type Tried struct {
	Name, Kind string
	Err        error
}

// Test sends a made-up notice to each destination, whatever the hour.
func Test(ctx context.Context, cfg *Config, now time.Time) []Tried {
	out := make([]Tried, len(cfg.Destinations))
	for i, d := range cfg.Destinations {
		out[i] = Tried{Name: d.Name, Kind: d.Kind}
		to, err := cfg.sender(d)
		if err == nil {
			err = newTeller(cfg, d.Name, to, nil).try(ctx, newMessage([]Notice{cfg.made(now)}, true))
		}
		out[i].Err = err
	}
	return out
}
