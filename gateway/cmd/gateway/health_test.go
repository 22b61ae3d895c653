package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/deepcheck"
)

// listener is a vault that hears how gateways are.
type listener struct {
	vaultv1.SessionServiceClient
	heard []*vaultv1.GatewayHealth
	down  bool
}

func (l *listener) TellHealth(_ context.Context, r *vaultv1.TellHealthRequest, _ ...grpc.CallOption) (*vaultv1.TellHealthResponse, error) {
	l.heard = append(l.heard, r.GetHealth())
	if l.down {
		return nil, errors.New("the vault is away")
	}
	return &vaultv1.TellHealthResponse{}, nil
}

// A gateway looks at itself and tells the vault at once, and then every 30 seconds: sooner while something is not well.
func TestTheGatewayTellsOfItself(t *testing.T) {
	for name, c := range map[string]struct {
		health *vaultv1.GatewayHealth
		down   bool
		every  time.Duration
	}{
		"well":             {&vaultv1.GatewayHealth{ExecutorReachable: true, AuditReachable: true}, false, deepcheck.Every},
		"without executor": {&vaultv1.GatewayHealth{AuditReachable: true}, false, tellAgain},
		"without audit":    {&vaultv1.GatewayHealth{ExecutorReachable: true}, false, tellAgain},
		"without vault":    {&vaultv1.GatewayHealth{ExecutorReachable: true, AuditReachable: true}, true, tellAgain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				vault, looked := &listener{down: c.down}, atomic.Int32{}
				ctx, cancel := context.WithCancel(t.Context())
				go tellHealth(ctx, vault, func(context.Context) *vaultv1.GatewayHealth { looked.Add(1); return c.health })
				synctest.Wait()
				if n := looked.Load(); n != 1 {
					t.Errorf("at once it looks %d times", n)
				}
				time.Sleep(10*c.every + time.Millisecond)
				synctest.Wait()
				if n := looked.Load(); n != 11 || len(vault.heard) != 11 {
					t.Errorf("it looked %d times, and told %d times", n, len(vault.heard))
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// The first exchange with audit may be on its way when the gateway first looks: it is waited for, and not for ever.
func TestTheFirstAnswerOfAuditIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		answered time.Duration
		want     bool
		took     time.Duration
	}{
		"answered before": {0, true, 0},
		"answers soon":    {3*lookEvery - time.Millisecond, true, 3 * lookEvery},
		"does not answer": {time.Hour, false, reachPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				if got := recording(t.Context(), func() bool { return time.Since(began) >= c.answered }); got != c.want || time.Since(began) != c.took {
					t.Errorf("%v after %v; want %v after %v", got, time.Since(began), c.want, c.took)
				}
			})
		})
	}
}
