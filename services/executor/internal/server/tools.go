// Package server answers the executor's RPCs. ToolService runs behind the sink's discipline: when a handler that changes
// something is reached, the call was proved, redeemed and recorded. ControlService is the human's side.
//
// It trusts the chain in front of it and the managers behind it, and builds every answer from catalog text, but for the fields
// that the contract marks as text from outside.
package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/sink"
)

// ToolsConfig is what the tools are made of; everything is required.
type ToolsConfig struct {
	Services *service.Manager
	GPUs     *gpu.Monitor
	Modes    *mode.Switcher
	// Progress is where the steps of operations are told.
	Progress *progress.Hub
}

// Tools implements executorv1.ToolServiceServer.
type Tools struct {
	executorv1.UnimplementedToolServiceServer
	cfg      ToolsConfig
	services *service.Manager
}

// NewTools returns the tools.
func NewTools(cfg ToolsConfig) *Tools { return &Tools{cfg: cfg, services: cfg.Services} }

// ListServices lists the catalog's services with their states.
func (t *Tools) ListServices(ctx context.Context, _ *executorv1.ListServicesRequest) (*executorv1.ListServicesResponse, error) {
	out := &executorv1.ListServicesResponse{}
	running := 0
	for _, s := range t.services.All() {
		v := t.services.Status(s)
		if v.Running() {
			running++
		}
		out.Services = append(out.Services, summary(s, v))
	}
	line := fmt.Sprintf("%s, %d running", count(len(out.Services), "service"), running)
	for _, d := range t.services.Catalog().Disabled {
		if d.Kind == "service" && d.ID != "" {
			out.Disabled = append(out.Disabled, d.ID)
		}
	}
	if len(out.Disabled) > 0 {
		line += fmt.Sprintf(", %d disabled", len(out.Disabled))
	}
	sink.Summarise(ctx, line)
	return out, nil
}

// summary is a service in a list.
func summary(s *catalog.Service, v service.View) *executorv1.ServiceSummary {
	return &executorv1.ServiceSummary{ServiceId: s.ID, Name: s.Name, State: v.State, Model: s.ServedModel(), VramMib: s.VRAMMiB}
}

// ServiceInfo shows one service.
func (t *Tools) ServiceInfo(ctx context.Context, r *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
	s, err := t.services.Find(r.GetServiceId())
	if err != nil {
		return nil, err
	}
	d := t.detail(s)
	sink.Summarise(ctx, sentence(d))
	for _, w := range t.services.Warnings(s) {
		sink.Warn(ctx, s.ID+": "+w)
	}
	return &executorv1.ServiceInfoResponse{Service: d}, nil
}

// change carries out a change of one service and returns how it is then.
func (t *Tools) change(
	ctx context.Context, id string, act func(context.Context, *catalog.Service) (bool, error), already string,
) (*executorv1.ServiceDetail, bool, error) {
	s, err := t.services.Find(id)
	if err != nil {
		return nil, false, err
	}
	if operation := sink.Operation(ctx); operation != "" && t.cfg.Progress != nil {
		told, end := t.cfg.Progress.Open(ctx, operation)
		defer end()
		ctx = told
	}
	changed, err := act(ctx, s)
	if err != nil {
		return nil, false, err
	}
	d := t.detail(s)
	sink.Summarise(ctx, sentence(d))
	if !changed {
		sink.Warn(ctx, s.ID+" "+already+" already; nothing was changed")
	}
	return d, changed, nil
}

// StartService starts a service and waits until it is healthy.
func (t *Tools) StartService(ctx context.Context, r *executorv1.StartServiceRequest) (*executorv1.StartServiceResponse, error) {
	d, changed, err := t.change(ctx, r.GetServiceId(), t.services.Start, "was running")
	if err != nil {
		return nil, err
	}
	return &executorv1.StartServiceResponse{Service: d, Changed: changed}, nil
}

// StopService stops a service.
func (t *Tools) StopService(ctx context.Context, r *executorv1.StopServiceRequest) (*executorv1.StopServiceResponse, error) {
	d, changed, err := t.change(ctx, r.GetServiceId(), t.services.Stop, "was stopped")
	if err != nil {
		return nil, err
	}
	t.warnDependents(ctx, d.GetServiceId())
	return &executorv1.StopServiceResponse{Service: d, Changed: changed}, nil
}

// SleepService puts a service to sleep.
func (t *Tools) SleepService(ctx context.Context, r *executorv1.SleepServiceRequest) (*executorv1.SleepServiceResponse, error) {
	d, changed, err := t.change(ctx, r.GetServiceId(), t.services.SleepService, "slept")
	if err != nil {
		return nil, err
	}
	t.warnDependents(ctx, d.GetServiceId())
	return &executorv1.SleepServiceResponse{Service: d, Changed: changed}, nil
}

// WakeService wakes a sleeping service.
func (t *Tools) WakeService(ctx context.Context, r *executorv1.WakeServiceRequest) (*executorv1.WakeServiceResponse, error) {
	d, changed, err := t.change(ctx, r.GetServiceId(), t.services.WakeService, "was awake")
	if err != nil {
		return nil, err
	}
	return &executorv1.WakeServiceResponse{Service: d, Changed: changed}, nil
}

// warnDependents says which running services depend on one that does not answer any more.
func (t *Tools) warnDependents(ctx context.Context, id string) {
	s, err := t.services.Find(id)
	if err != nil {
		return
	}
	if ids := t.services.Dependents(s); len(ids) > 0 {
		sink.Warn(ctx, "still running and dependent on "+id+": "+strings.Join(ids, ", "))
	}
}

func (t *Tools) detail(s *catalog.Service) *executorv1.ServiceDetail {
	v := t.services.Status(s)
	d := &executorv1.ServiceDetail{
		ServiceId:   s.ID,
		Name:        s.Name,
		Description: s.Description,
		State:       v.State,
		Healthy:     v.Healthy,
		Driver:      driverName(s.Driver),
		BaseUrl:     s.BaseURL,
		Model:       s.ServedModel(),
		Gpus:        s.GPUs,
		VramMib:     s.VRAMMiB,
		Cause:       v.Cause,
		MeasuredMib: t.services.Measured(s),
		Pinned:      s.Pin,
		Restarts:    v.Restarts,
		Network:     networkName(s, v),
	}
	if s.Sleep != catalog.SleepNone {
		d.Sleep = s.Sleep
	}
	if (v.Running() || v.Asleep()) && !v.Since.IsZero() {
		d.UptimeS = uint32(min(max(time.Since(v.Since)/time.Second, 0), 1<<32-1))
	}
	return d
}

func driverName(name string) string {
	if name == catalog.DriverNull {
		return "null (does nothing, for measuring)"
	}
	return name
}

// networkName says whether what the catalog expects of the network is enforced. Whatever nobody enforces is not.
func networkName(s *catalog.Service, v service.View) string {
	switch {
	case s.Network == "" || s.Network == catalog.NetworkHost:
		return ""
	case v.Network == driver.NetworkEnforced:
		return "enforced"
	}
	return "not enforced"
}

// sentence says in one line how a service is.
func sentence(d *executorv1.ServiceDetail) string {
	line := d.GetServiceId() + " is " + service.StateName(d.GetState())
	if d.GetState() == executorv1.ServiceState_SERVICE_STATE_RUNNING && d.GetBaseUrl() != "" {
		line += " at " + d.GetBaseUrl()
	}
	if d.GetCause() != "" {
		line += ": " + d.GetCause()
	}
	return line
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Events implements executorv1.EventServiceServer.
type Events struct {
	executorv1.UnimplementedEventServiceServer
	services *service.Manager
	hub      *progress.Hub
}

// NewEvents returns the streams over the services and the steps of operations.
func NewEvents(services *service.Manager, hub *progress.Hub) *Events {
	return &Events{services: services, hub: hub}
}

// WatchServices sends states and their changes until the permit ends.
func (e *Events) WatchServices(r *executorv1.WatchServicesRequest, stream grpc.ServerStreamingServer[executorv1.WatchServicesResponse]) error {
	ctx := stream.Context()
	if err := sink.Streaming(ctx); err != nil {
		return err
	}
	return e.services.Watch(ctx, r.GetServiceIds(), func(c service.Change) error {
		return stream.Send(&executorv1.WatchServicesResponse{ServiceId: c.ID, State: c.State, Initial: c.Initial})
	})
}

// WatchProgress sends the steps of one operation until it ends or the permit does. An id that nobody was given tells nothing:
// there is nothing under it.
func (e *Events) WatchProgress(r *executorv1.WatchProgressRequest, stream grpc.ServerStreamingServer[executorv1.WatchProgressResponse]) error {
	ctx := stream.Context()
	if err := sink.Streaming(ctx); err != nil {
		return err
	}
	return e.hub.Watch(ctx, r.GetOperationId(), func(s progress.Step) error {
		return stream.Send(&executorv1.WatchProgressResponse{
			Step: uint32(max(s.Number, 0)), Steps: uint32(max(s.Of, 0)), Phase: s.Phase, ServiceId: s.Service,
			ElapsedMs: milliseconds(s.Elapsed), ExpectedMs: milliseconds(s.Expected), Ended: s.Ended, Cause: s.Cause,
		})
	})
}

// milliseconds is a duration as messages hold it.
func milliseconds(d time.Duration) uint32 { return uint32(min(max(d.Milliseconds(), 0), 1<<32-1)) }
