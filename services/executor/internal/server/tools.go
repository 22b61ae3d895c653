// Package server answers the executor's RPCs. ToolService runs behind the sink's discipline: when a handler that changes
// something is reached, the call was proved, redeemed and recorded. ControlService is the human's side.
//
// It trusts the chain in front of it and the service manager behind it, and builds every answer from catalogue text.
package server

import (
	"context"
	"fmt"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalogue"
	"durward.internal/services/platform/sink"
)

// Tools implements executorv1.ToolServiceServer.
type Tools struct {
	executorv1.UnimplementedToolServiceServer
	services *service.Manager
}

// NewTools returns the tools over the services.
func NewTools(services *service.Manager) *Tools { return &Tools{services: services} }

// GpuStatus lists the GPUs and what is declared on each.
func (t *Tools) GpuStatus(ctx context.Context, _ *executorv1.GpuStatusRequest) (*executorv1.GpuStatusResponse, error) {
	c := t.services.Catalogue()
	var running []*catalogue.Service
	for _, s := range c.Services {
		if t.services.Look(s).Running() {
			running = append(running, s)
		}
	}
	out := &executorv1.GpuStatusResponse{Gpus: gpu.Status(c, running), Source: gpu.Source(c)}
	if len(out.Gpus) == 0 {
		sink.Summarise(ctx, "no GPU was found on this host")
	} else {
		sink.Summarise(ctx, fmt.Sprintf("%s, %s", count(len(out.Gpus), "GPU"), out.Source))
	}
	return out, nil
}

// ListServices lists the catalogue's services with their states.
func (t *Tools) ListServices(ctx context.Context, _ *executorv1.ListServicesRequest) (*executorv1.ListServicesResponse, error) {
	out := &executorv1.ListServicesResponse{}
	running := 0
	for _, s := range t.services.All() {
		v := t.services.Look(s)
		if v.Running() {
			running++
		}
		out.Services = append(out.Services, &executorv1.ServiceSummary{
			ServiceId: s.ID, Name: s.Name, State: v.State, Model: s.ServedModel(), VramMib: s.VRAMMiB,
		})
	}
	sink.Summarise(ctx, fmt.Sprintf("%s, %d running", count(len(out.Services), "service"), running))
	return out, nil
}

// ServiceInfo shows one service.
func (t *Tools) ServiceInfo(ctx context.Context, r *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
	s, err := t.services.Find(r.GetServiceId())
	if err != nil {
		return nil, err
	}
	d := t.detail(s)
	sink.Summarise(ctx, sentence(d))
	return &executorv1.ServiceInfoResponse{Service: d}, nil
}

// StartService starts a service and waits until it is healthy.
func (t *Tools) StartService(ctx context.Context, r *executorv1.StartServiceRequest) (*executorv1.StartServiceResponse, error) {
	s, err := t.services.Find(r.GetServiceId())
	if err != nil {
		return nil, err
	}
	changed, err := t.services.Start(ctx, s)
	if err != nil {
		return nil, err
	}
	d := t.detail(s)
	sink.Summarise(ctx, sentence(d))
	if !changed {
		sink.Warn(ctx, s.ID+" was running already; nothing was changed")
	}
	return &executorv1.StartServiceResponse{Service: d, Changed: changed}, nil
}

// StopService stops a service.
func (t *Tools) StopService(ctx context.Context, r *executorv1.StopServiceRequest) (*executorv1.StopServiceResponse, error) {
	s, err := t.services.Find(r.GetServiceId())
	if err != nil {
		return nil, err
	}
	changed, err := t.services.Stop(ctx, s)
	if err != nil {
		return nil, err
	}
	d := t.detail(s)
	sink.Summarise(ctx, sentence(d))
	if !changed {
		sink.Warn(ctx, s.ID+" was stopped already; nothing was changed")
	}
	return &executorv1.StopServiceResponse{Service: d, Changed: changed}, nil
}

func (t *Tools) detail(s *catalogue.Service) *executorv1.ServiceDetail {
	v := t.services.Look(s)
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
	}
	if v.Running() && !v.Since.IsZero() {
		d.UptimeS = uint32(min(max(time.Since(v.Since)/time.Second, 0), 1<<32-1))
	}
	return d
}

func driverName(name string) string {
	if name == catalogue.DriverNull {
		return "null (does nothing, for measuring)"
	}
	return name
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
