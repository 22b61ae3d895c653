package server

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink/control"
)

// maxDisabled bounds how many disabled entries are shown.
const maxDisabled = 100

// ControlConfig is what a Control is made of; everything but Refused is required.
type ControlConfig struct {
	Sink     *control.Sink
	Services *service.Manager
	GPUs     *gpu.Monitor
	Modes    *mode.Switcher
	// Refused says why the catalog that is there now is not in force; "": it is. May be nil.
	Refused func() string
}

// unimplemented stands below what a sink has, so that control.Sink's methods are the ones that count.
type unimplemented struct {
	executorv1.UnimplementedControlServiceServer
}

// Control implements executorv1.ControlServiceServer.
type Control struct {
	unimplemented
	*control.Sink
	cfg ControlConfig
}

// NewControl returns the control side.
func NewControl(cfg ControlConfig) *Control { return &Control{Sink: cfg.Sink, cfg: cfg} }

// PreviewCall returns what a call would act on and do.
func (c *Control) PreviewCall(ctx context.Context, r *executorv1.PreviewCallRequest) (*executorv1.PreviewCallResponse, error) {
	tool, request, out, err := c.Preview(r)
	if err != nil {
		return nil, err
	}
	if r, ok := request.(*executorv1.SwitchModeRequest); ok {
		p, err := c.cfg.Modes.Preview(ctx, r)
		if err != nil {
			return nil, err
		}
		out.Subject, out.Plan, out.Entries, out.Fit = p.Subject, p.Lines, p.Entries, simulation(p.Fit)
		return out, nil
	}
	if out.Subject, err = c.cfg.Services.Subject(ctx, tool, request); err != nil {
		return nil, err
	}
	if r, ok := request.(interface{ GetServiceId() string }); ok {
		s, err := c.cfg.Services.Find(r.GetServiceId())
		if err != nil {
			return nil, err
		}
		out.Plan, out.Fit = c.plan(ctx, tool.Name, s), c.fit(ctx, tool.Name, s)
	}
	return out, nil
}

// fit is whether a service that is to start or wake fits now: the numbers and other ways of a simulation, and the verdict of the check
// that the start or wake itself will meet. nil where nothing is loaded, and where nothing can be simulated.
func (c *Control) fit(ctx context.Context, tool string, s *catalog.Service) *executorv1.SimulateModeResponse {
	if tool != "start_service" && tool != "wake_service" || c.cfg.Services.Status(s).Running() {
		return nil
	}
	verdict := c.cfg.Services.Admissible(ctx, s)
	asked := plan.Request{Start: []string{s.ID}}
	if verdict != nil {
		asked.Alternatives = defaultAlternatives
	}
	sim, err := c.cfg.Modes.Simulate(ctx, asked)
	if err != nil {
		return nil
	}
	out := simulation(sim)
	out.Next = nil
	out.Fits = !fault.Is(verdict, callv1.Code_CODE_DOES_NOT_FIT)
	out.Blocked = verdict != nil && out.Fits
	if out.Reason = ""; verdict != nil {
		out.Reason = fault.From(verdict).Message
	}
	return out
}

// Subjects knows what a call acts on: a switch on its plan, everything else on a service or on nothing. It is the sink's Subjects
// and its Finder.
type Subjects struct {
	Services *service.Manager
	Modes    *mode.Switcher
}

// Subject implements sink.Subjects.
func (s Subjects) Subject(ctx context.Context, tool contract.Tool, request proto.Message) (*callv1.Subject, error) {
	if r, ok := request.(*executorv1.SwitchModeRequest); ok {
		return s.Modes.Subject(ctx, r)
	}
	return s.Services.Subject(ctx, tool, request)
}

// Found implements sink.Finder.
func (s Subjects) Found(ctx context.Context, tool, operation string, arguments []byte) string {
	if found, ok := s.Modes.Found(ctx, tool, operation); ok {
		return found
	}
	return s.Services.Found(ctx, tool, arguments)
}

// plan says what the call would do, a step a line.
func (c *Control) plan(ctx context.Context, tool string, s *catalog.Service) []string {
	v := c.cfg.Services.Status(s)
	var lines []string
	switch tool {
	case "start_service":
		switch {
		case v.Asleep():
			lines = append(lines, s.ID+" sleeps and is woken: "+sleepLine(s))
		case v.State == executorv1.ServiceState_SERVICE_STATE_RUNNING:
			lines = append(lines, s.ID+" is running already: nothing changes")
		}
		lines = append(lines, "start "+s.ID+": "+s.Describe(c.cfg.Services.Catalog().GPUs))
		lines = append(lines, c.cfg.Services.Pins(ctx, s)...)
		warnings := c.cfg.Services.Warnings(s)
		if len(warnings) == 0 && networkName(s, v) == "not enforced" {
			warnings = []string{"the catalogue expects no more of the network than " + s.Network + ", and nothing enforces that"}
		}
		for _, w := range warnings {
			lines = append(lines, "warning: "+w)
		}
	case "stop_service":
		if v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN {
			lines = append(lines, "nobody can tell whether "+s.ID+" runs")
		} else if !v.Running() && !v.Asleep() {
			lines = append(lines, s.ID+" is not running: nothing changes")
		}
		lines = append(lines, fmt.Sprintf("stop %s: requests in flight end with it; it is killed after %d s", s.ID, s.StopTimeoutS))
		for _, id := range c.cfg.Services.Dependents(s) {
			lines = append(lines, id+" depends on it and runs on without it")
		}
	case "sleep_service":
		if !v.Running() {
			lines = append(lines, s.ID+" is "+service.StateName(v.State)+": nothing changes")
		}
		lines = append(lines, "put "+s.ID+" to sleep: "+sleepLine(s)+"; requests in flight end")
		for _, id := range c.cfg.Services.Dependents(s) {
			lines = append(lines, id+" depends on it and runs on without it")
		}
	case "wake_service":
		if !v.Asleep() {
			lines = append(lines, s.ID+" is "+service.StateName(v.State)+": nothing changes unless it sleeps by then")
		}
		lines = append(lines, "wake "+s.ID+": "+s.Describe(c.cfg.Services.Catalog().GPUs))
	default:
		lines = append(lines, "look at "+s.ID)
	}
	return lines
}

// sleepLine says how a service sleeps.
func sleepLine(s *catalog.Service) string {
	return fmt.Sprintf("%s, %d MiB awake and %d MiB asleep as declared", cmp.Or(s.Sleep, catalog.SleepNone), s.VRAMMiB, s.SleepMiB)
}

// GetStatus is deep health.
func (c *Control) GetStatus(ctx context.Context, _ *executorv1.GetStatusRequest) (*executorv1.GetStatusResponse, error) {
	cat := c.cfg.Services.Catalog()
	gpus := c.cfg.GPUs.Last()
	running := 0
	for _, s := range cat.Services {
		if c.cfg.Services.Status(s).Running() {
			running++
		}
	}
	status := &executorv1.GetStatusResponse{
		ServicesRunning: uint32(running), ServicesTotal: uint32(len(cat.Services)), CatalogueDigest: cat.Digest,
		GpuSource: gpus.Source, Gpus: uint32(len(gpus.GPUs)),
	}
	for _, d := range cat.Disabled[:min(len(cat.Disabled), maxDisabled)] {
		problem := clean.Line(d.Problem.Error(), 400)
		if d.Kind == "service" {
			if pid := c.cfg.Services.Left(d.ID); pid != 0 {
				problem = fmt.Sprintf("its program (pid %d) still runs, as a stranger's until the entry is right: %s", pid, problem)
			}
		}
		status.Disabled = append(status.Disabled, &executorv1.DisabledEntry{Kind: d.Kind, Id: d.ID, Problem: problem})
	}
	if c.cfg.Refused != nil {
		status.CatalogueRefused = clean.Line(c.cfg.Refused(), 1000)
	}
	return status, c.Status(ctx, status)
}
