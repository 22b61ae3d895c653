package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/postgres"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/vault/internal/metrics"
	"durward.internal/services/vault/internal/settings"
	"durward.internal/services/vault/internal/store"
)

// tryEvery is how often a vault that stands by tries to lead.
const tryEvery = 200 * time.Millisecond

// openState opens the database; where several vaults share it, when this one leads, and nothing where ctx ended before it did.
func openState(ctx context.Context, s *settings.Settings, diskReserve *reserve.Reserve, tel *telemetry.Telemetry, logger *slog.Logger) (*store.Store, error) {
	if !s.Database.Shared() {
		return store.Open(ctx, s.StateDir, diskReserve)
	}
	health, err := rpc.Listen(s.HealthListen, false)
	if err != nil {
		return nil, err
	}
	b := &standby{settings: s, logger: logger}
	metrics.Leads(tel.Metrics, b.leads)
	var state *store.Store
	waiting, leads := context.WithCancel(ctx)
	defer leads()
	group, waiting := errgroup.WithContext(waiting)
	group.Go(func() error { return tel.Serve(waiting, health, b.ready) })
	group.Go(func() (err error) {
		defer leads()
		state, err = b.lead(waiting)
		return err
	})
	if err = group.Wait(); err != nil && state != nil {
		err = errors.Join(err, state.Close())
	}
	return state, err
}

// standby waits for the lead. It listens for nobody but who asks for its health: whoever calls finds nobody, and goes to the next.
type standby struct {
	settings *settings.Settings
	logger   *slog.Logger
	// trouble is why it could not lead now, or nil.
	trouble atomic.Pointer[error]
	// state is what it leads.
	state atomic.Pointer[store.Store]
}

// leads reports whether this vault leads.
func (b *standby) leads() bool {
	state := b.state.Load()
	return state != nil && state.Leads()
}

// ready reports why this vault could not take over.
func (b *standby) ready() error {
	if err := b.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// lead returns when this vault leads, or never can. A server that cannot be reached is waited for.
func (b *standby) lead(ctx context.Context) (*store.Store, error) {
	var db *store.Standby
	said := ""
	for {
		var state *store.Store
		var err error
		if db == nil {
			db, err = store.OpenPostgres(ctx, b.settings.Database, b.settings.StateDir, b.logger)
		}
		if err == nil {
			state, err = db.Lead(ctx)
		}
		if err == nil {
			b.logger.Info("this vault leads")
			b.state.Store(state)
			return state, nil
		}
		follows, ended := errors.Is(err, store.ErrFollows), ctx.Err() != nil
		if ended {
			err = nil
		}
		if ended || !follows && !postgres.Transient(err) {
			if db != nil {
				err = errors.Join(err, db.Close())
			}
			return nil, err
		}
		if follows {
			b.trouble.Store(nil)
		} else {
			b.trouble.Store(&err)
		}
		if now := err.Error(); now != said {
			said = now
			if follows {
				b.logger.Info("stands by: another vault leads")
			} else {
				b.logger.Warn("stands by: the database cannot be used", "cause", now)
			}
		}
		clock.Sleep(ctx, tryEvery)
	}
}
