package main

import (
	"context"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/deepcheck"
)

// How long a gateway tries to reach a peer, and after what time it tells again while something is not well.
const (
	reachPatience = time.Second
	tellAgain     = 5 * time.Second
	lookEvery     = 20 * time.Millisecond
)

// tellHealth tells the vault how this gateway is until ctx ends: operators ask the vault, since nobody may ask a gateway more than
// whether it runs (OBS-1).
func tellHealth(ctx context.Context, vault vaultv1.SessionServiceClient, look func(context.Context) *vaultv1.GatewayHealth) {
	for ctx.Err() == nil {
		health := look(ctx)
		_, err := vault.TellHealth(ctx, &vaultv1.TellHealthRequest{Health: health})
		wait := deepcheck.Every
		if err != nil || !health.GetExecutorReachable() || !health.GetAuditReachable() {
			wait = tellAgain
		}
		clock.Sleep(ctx, wait)
	}
}

// recording reports whether audit's newest answer stood, or does so within a second: after a start the first may be on its way.
func recording(ctx context.Context, stands func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, reachPatience)
	defer cancel()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for !stands() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
