package wiring

import (
	"context"
	"log/slog"
	"sync"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
)

// Serving is what a sink serves; Note and Stopping may be left out.
type Serving struct {
	// Service is the sink's name, and Version its program's.
	Service, Version string
	Server           *rpc.Server
	Authority        *sink.Authority
	// Background runs until the last call has ended.
	Background []func(context.Context)
	// Note is logged with the start, as keys and values.
	Note []any
	// Stopping is called, maybe twice, once the process is told to end.
	Stopping func()
	Logger   *slog.Logger
}

// Serve serves until ctx ends, and returns when what was begun has ended, or had its time.
func (l *Links) Serve(ctx context.Context, s Serving) error {
	if s.Stopping == nil {
		s.Stopping = func() {}
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, run := range append(s.Background, s.Authority.Run) {
		running.Go(func() { run(background) })
	}
	running.Go(func() {
		if err := l.Telemetry.Serve(background, l.health, nil); err != nil {
			s.Logger.Error("health is not served any more", "error", err)
		}
	})
	process.Note(ctx, l.Log, s.Logger, s.Service+" "+s.Version, auditv1.Kind_KIND_STARTED)
	s.Logger.Info("serving", append([]any{"listen", l.listen, "identity", l.Self.ID()}, s.Note...)...)
	defer context.AfterFunc(ctx, s.Stopping)()
	err := s.Server.Serve(ctx, l.listener)
	s.Stopping()

	// What is cut off here is found again at the next start.
	drained, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	s.Authority.Wait(drained)
	stop()
	running.Wait()
	process.Note(ctx, l.Log, s.Logger, s.Service+" "+s.Version, auditv1.Kind_KIND_STOPPED)
	return err
}
