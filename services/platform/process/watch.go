package process

import (
	"context"
	"log/slog"
	"time"
)

// watchInterval is how soon a file that was not taken up is complained of.
const watchInterval = 2 * time.Second

// Watch says in the log when something that is read again while the process runs (the trust folder, a certificate)
// could not be taken up, and when that is over: the last good state stays in use, and nobody would know. It returns at
// once and watches until ctx ends.
func Watch(ctx context.Context, logger *slog.Logger, what string, failure func() error) {
	go func() {
		tick := time.NewTicker(watchInterval)
		defer tick.Stop()
		said := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := ""
			if err := failure(); err != nil {
				now = err.Error()
			}
			switch now {
			case said:
			case "":
				logger.Info("taken up", "what", what)
			default:
				logger.Error("not taken up: the last good state stays in use", "what", what, "error", now)
			}
			said = now
		}
	}()
}
