package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/server"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
)

func (w *world) events() executorv1.EventServiceClient {
	return executorv1.NewEventServiceClient(w.dial(optionsv1.Role_ROLE_GATEWAY, "main"))
}

// watch opens a stream under a genuine permit, bent by change.
func (w *world) watch(ctx context.Context, client executorv1.EventServiceClient, change func(*callv1.Permit), ids ...string) grpc.ServerStreamingClient[executorv1.WatchServicesResponse] {
	w.t.Helper()
	p := w.permit("list_services")
	if change != nil {
		change(p)
	}
	signed, err := grant.SignPermit(w.kit.GrantKey, p)
	w.must(err)
	stream, err := client.WatchServices(with(ctx, rpc.MetadataPermit, signed), &executorv1.WatchServicesRequest{ServiceIds: ids})
	w.must(err)
	return stream
}

// seen reads n messages as "id state", with a star for what was there at the beginning.
func seen(t *testing.T, stream grpc.ServerStreamingClient[executorv1.WatchServicesResponse], n int) []string {
	t.Helper()
	var out []string
	for range n {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", out, err)
		}
		line := m.GetServiceId() + " " + m.GetState().String()[len("SERVICE_STATE_"):]
		if m.GetInitial() {
			line += "*"
		}
		out = append(out, line)
	}
	return out
}

func TestWatchServicesIsRefused(t *testing.T) {
	w := newWorld(t)
	client := w.events()
	for name, c := range map[string]struct {
		ctx  func(ctx context.Context) context.Context
		ids  []string
		code callv1.Code
	}{
		"no permit": {ctx: func(ctx context.Context) context.Context { return ctx }, code: denied},
		"a permit for another tool": {ctx: func(ctx context.Context) context.Context {
			signed, err := grant.SignPermit(w.kit.GrantKey, w.permit("gpu_status", "service_info"))
			w.must(err)
			return with(ctx, rpc.MetadataPermit, signed)
		}, code: denied},
		"a grant in its place": {ctx: func(ctx context.Context) context.Context {
			return with(ctx, rpc.MetadataGrant, w.sign(w.ticketFor("list_services", &executorv1.ListServicesRequest{})))
		}, code: denied},
		"no such service": {ids: []string{"alpha", "nothing"}, code: callv1.Code_CODE_NOT_FOUND},
		"no id":           {ids: []string{"--force"}, code: callv1.Code_CODE_INVALID_ARGUMENT},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if c.ctx != nil {
				ctx = c.ctx(ctx)
			} else {
				signed, err := grant.SignPermit(w.kit.GrantKey, w.permit("list_services"))
				w.must(err)
				ctx = with(ctx, rpc.MetadataPermit, signed)
			}
			stream, err := client.WatchServices(ctx, &executorv1.WatchServicesRequest{ServiceIds: c.ids})
			w.must(err)
			_, err = stream.Recv()
			wantCode(t, err, c.code)
		})
	}
	if _, err := w.control.Halt(t.Context(), &executorv1.HaltRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := w.watch(t.Context(), client, func(p *callv1.Permit) { p.Epoch = 1 }).Recv()
	wantCode(t, err, denied)
}

// A watcher sees what is there, then each change as it comes, whoever caused it.
func TestWatchServices(t *testing.T) {
	w := newWorld(t)
	w.driver.running["beta"] = true
	stream := w.watch(t.Context(), w.events(), nil)
	if diff := cmp.Diff([]string{"alpha STOPPED*", "beta RUNNING*", "program STOPPED*"}, seen(t, stream, 3)); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	one := w.watch(t.Context(), w.events(), nil, "beta")
	seen(t, one, 1)
	w.driver.entered, w.driver.leave = make(chan struct{}), make(chan struct{})
	started := make(chan error, 1)
	go func() {
		_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha"))), start("alpha"))
		started <- err
	}()
	<-w.driver.entered
	if diff := cmp.Diff([]string{"alpha STARTING"}, seen(t, stream, 1)); diff != "" {
		t.Errorf("while it starts (-want +got):\n%s", diff)
	}
	w.driver.leave <- struct{}{}
	w.must(<-started)
	if diff := cmp.Diff([]string{"alpha RUNNING"}, seen(t, stream, 1)); diff != "" {
		t.Errorf("when it runs (-want +got):\n%s", diff)
	}
	// What ends by itself is seen by the health check.
	running, stop := context.WithCancel(t.Context())
	defer stop()
	w.driver.mu.Lock()
	delete(w.driver.running, "beta")
	w.driver.mu.Unlock()
	go w.services.Run(running)
	if diff := cmp.Diff([]string{"beta STOPPED"}, seen(t, one, 1)); diff != "" {
		t.Errorf("when it ended by itself (-want +got):\n%s", diff)
	}
	reads := 0
	for _, kind := range w.log.kinds() {
		if kind == auditv1.Kind_KIND_READ {
			reads++
		}
	}
	if reads != 2 {
		t.Errorf("%d reads are recorded, want one for each stream", reads)
	}
}

// A stream ends when its permit does and when an operator halts; the next permit opens the next.
func TestWatchServicesEndsWithItsPermit(t *testing.T) {
	t.Parallel() // it waits for the end of a permit
	w := newWorld(t)
	client := w.events()
	short := w.watch(t.Context(), client, func(p *callv1.Permit) {
		p.ExpiresAt = timestamppb.New(time.Now().Add(time.Second))
	}, "alpha")
	seen(t, short, 1)
	_, err := short.Recv()
	wantCode(t, err, callv1.Code_CODE_EXPIRED)
	stream := w.watch(t.Context(), client, nil, "alpha")
	seen(t, stream, 1)
	_, err = w.control.Halt(t.Context(), &executorv1.HaltRequest{})
	w.must(err)
	_, err = stream.Recv()
	wantCode(t, err, callv1.Code_CODE_EXPIRED)
	seen(t, w.watch(t.Context(), client, nil, "alpha"), 1) // under the new epoch: looking is safe during a halt
}

func TestWatchersOfOnePrincipalAreCounted(t *testing.T) {
	w := newWorld(t)
	client := w.events()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range sink.MaxPrincipalStreams {
		seen(t, w.watch(ctx, client, nil, "alpha"), 1)
	}
	_, err := w.watch(ctx, client, nil, "alpha").Recv()
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	seen(t, w.watch(ctx, client, func(p *callv1.Permit) { p.Principal = "other" }, "alpha"), 1)
	cancel()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // no event: the server gives a place back when its end of the stream ends
		_, err := w.watch(t.Context(), client, nil, "alpha").Recv()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the places of watchers that left are not given back: %v", err)
		}
	}
}

// A server that forgot the interceptor for streams shows nothing.
func TestWatchServicesWithoutItsDiscipline(t *testing.T) {
	w := newWorld(t)
	addr := w.kit.Serve(t, optionsv1.Role_ROLE_EXECUTOR, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterEventServiceServer(r, server.NewEvents(w.services, &w.hub))
	}, func(cfg *rpc.ServerConfig) { cfg.Logger = platformtest.Logger() })
	client := executorv1.NewEventServiceClient(w.kit.Dial(t, w.kit.ID(optionsv1.Role_ROLE_GATEWAY, "main"), addr, w.self))
	_, err := w.watch(t.Context(), client, nil).Recv()
	wantCode(t, err, callv1.Code_CODE_INTERNAL)
}
