package server

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/vram"
)

// defaultSwitches is how many switches are listed unless told.
const defaultSwitches = 20

// ListModes lists the modes and says which one the host is in.
func (t *Tools) ListModes(ctx context.Context, _ *executorv1.ListModesRequest) (*executorv1.ListModesResponse, error) {
	c := t.services.Catalog()
	out := &executorv1.ListModesResponse{Current: t.cfg.Modes.Current()}
	for _, m := range c.Modes {
		one := &executorv1.ModeSummary{ModeId: m.ID, Name: m.Name, Services: m.Services, Running: true}
		for _, s := range c.Members(m) {
			one.VramMib += s.VRAMMiB
			one.Running = one.Running && t.services.Status(s).Up()
		}
		out.Modes = append(out.Modes, one)
	}
	line := count(len(out.Modes), "mode")
	if out.Current != "" {
		line += ", the host is in " + out.Current
	}
	sink.Summarise(ctx, line)
	return out, nil
}

// ModeInfo shows one mode.
func (t *Tools) ModeInfo(ctx context.Context, r *executorv1.ModeInfoRequest) (*executorv1.ModeInfoResponse, error) {
	m, err := t.cfg.Modes.Find(r.GetModeId())
	if err != nil {
		return nil, err
	}
	out := &executorv1.ModeInfoResponse{ModeId: m.ID, Name: m.Name, Description: m.Description, Current: t.cfg.Modes.Current() == m.ID}
	running := 0
	for _, s := range t.services.Catalog().Members(m) {
		v := t.services.Status(s)
		if v.Up() {
			running++
		}
		out.Services = append(out.Services, summary(s, v))
	}
	line := fmt.Sprintf("%s: %d of %s running", m.ID, running, count(len(out.Services), "service"))
	if out.Current {
		out.Drifted = t.cfg.Modes.Drifted()
		line += "; the host is in it"
		if len(out.Drifted) > 0 {
			line += ", not running: " + strings.Join(out.Drifted, ", ")
		}
	}
	sink.Summarise(ctx, line)
	return out, nil
}

// ListModels lists the models and who serves them.
func (t *Tools) ListModels(ctx context.Context, _ *executorv1.ListModelsRequest) (*executorv1.ListModelsResponse, error) {
	c := t.services.Catalog()
	out := &executorv1.ListModelsResponse{}
	available := 0
	for _, m := range c.Models {
		one := &executorv1.ModelSummary{ModelId: m.ID, ServedName: m.ServedName}
		for _, s := range serving(c, m.ID) {
			one.Services = append(one.Services, s.ID)
			one.Available = one.Available || t.services.Status(s).Up()
		}
		if one.Available {
			available++
		}
		out.Models = append(out.Models, one)
	}
	sink.Summarise(ctx, fmt.Sprintf("%s, %d available now", count(len(out.Models), "model"), available))
	return out, nil
}

// ModelInfo shows one model and who serves it. Where its file is stays here.
func (t *Tools) ModelInfo(ctx context.Context, r *executorv1.ModelInfoRequest) (*executorv1.ModelInfoResponse, error) {
	c := t.services.Catalog()
	m, ok := c.Model(r.GetModelId())
	if !ok {
		ids := make([]string, 0, len(c.Models))
		for _, one := range c.Models {
			ids = append(ids, one.ID)
		}
		slices.Sort(ids)
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no model has that id", fault.WithField("model_id"),
			fault.WithSuggestions(config.Suggest(r.GetModelId(), ids)...))
	}
	out := &executorv1.ModelInfoResponse{ModelId: m.ID, ServedName: m.ServedName, Source: m.Source}
	running := 0
	for _, s := range serving(c, m.ID) {
		d := t.detail(s)
		if d.GetState() == executorv1.ServiceState_SERVICE_STATE_RUNNING {
			running++
		}
		out.Services = append(out.Services, d)
	}
	sink.Summarise(ctx, fmt.Sprintf("%s: %s, %d running", m.ID, count(len(out.Services), "service"), running))
	return out, nil
}

// serving are the services that serve a model.
func serving(c *catalog.Catalog, id string) []*catalog.Service {
	var out []*catalog.Service
	for _, s := range c.Services {
		if s.Model != nil && s.Model.ID == id {
			out = append(out, s)
		}
	}
	return out
}

// defaultAlternatives is how many alternatives are looked for unless told.
const defaultAlternatives = 3

// maxNamed is how many services are named of those whose size nobody knows.
const maxNamed = 5

// SimulateMode shows what a switch would do, or a start or stop, and other ways that fit.
func (t *Tools) SimulateMode(ctx context.Context, r *executorv1.SimulateModeRequest) (*executorv1.SimulateModeResponse, error) {
	asked := plan.Request{
		Mode: r.GetModeId(), Start: r.GetStart(), Stop: r.GetStop(), Contexts: r.GetContextOverrides(), Margin: r.MarginMibOverride,
		Alternatives: defaultAlternatives,
	}
	if r.Alternatives != nil {
		asked.Alternatives = int(min(r.GetAlternatives(), contract.MostAlternatives))
	}
	sim, err := t.cfg.Modes.Simulate(ctx, asked)
	if err != nil {
		return nil, err
	}
	out := simulation(sim)
	sink.Summarise(ctx, simulated(sim))
	overridden(ctx, r.MarginMibOverride)
	return out, nil
}

// simulation is what people and agents see of one.
func simulation(sim *plan.Simulation) *executorv1.SimulateModeResponse {
	out := &executorv1.SimulateModeResponse{
		ModeId: sim.Mode, Fits: sim.Fits, Reason: sim.Reason, PlanDigest: sim.Digest, Steps: planSteps(sim.Steps),
		Gpus: forecasts(sim.GPUs), CutOff: sim.CutOff, HostMib: sim.HostMiB, HostAvailableMib: sim.HostAvailable, Blocked: sim.Blocked,
	}
	for _, n := range sim.Needs {
		out.Needs = append(out.Needs, &executorv1.ServiceNeed{
			ServiceId: n.Service, NeedMib: n.MiB, Source: n.Source, Context: n.Context, KvTokens: uint32(min(n.KVTokens, math.MaxUint32)),
		})
	}
	for _, a := range sim.Alternatives {
		one := &executorv1.Alternative{Gpus: forecasts(a.GPUs), PlanDigest: a.Digest, HostMib: a.HostMiB, ExpectedS: wholeSeconds(a.Expected)}
		for _, c := range a.Changes {
			one.Changes = append(one.Changes, &executorv1.Change{Kind: c.Kind, ServiceId: c.Service, From: c.From, To: c.To})
		}
		out.Alternatives = append(out.Alternatives, one)
	}
	if sim.Next != nil {
		out.Next = &executorv1.NextCall{Tool: sim.Next.Tool, Arguments: sim.Next.Arguments}
	}
	return out
}

func forecasts(gpus []plan.Forecast) []*executorv1.GpuForecast {
	var out []*executorv1.GpuForecast
	for _, g := range gpus {
		out = append(out, &executorv1.GpuForecast{
			Index: g.GPU, NowMib: g.Now, AfterMib: g.After, FreeMib: g.Free, ForeignMib: g.Foreign, TotalMib: g.Total, Source: g.Source,
		})
	}
	return out
}

// overridden says that a call set the margin for itself, where it did.
func overridden(ctx context.Context, margin *uint32) {
	if margin != nil {
		sink.Override(ctx, "margin_mib", strconv.FormatUint(uint64(*margin), 10))
	}
}

// simulated says in one line what a plan does.
func simulated(sim *plan.Simulation) string {
	line := ""
	words := make([]string, 0, len(sim.Steps))
	for _, s := range sim.Steps {
		words = append(words, plan.ActionName(s.Action)+" "+s.Service)
	}
	switch {
	case sim.Reason != "" && sim.Mode != "":
		line = "the host cannot be switched to " + sim.Mode + " now: " + sim.Reason
	case sim.Reason != "":
		line = "that cannot be done now: " + sim.Reason
	case len(sim.Steps) == 0 && sim.Mode != "":
		line = "every service of " + sim.Mode + " runs already: switching changes nothing"
	case len(sim.Steps) == 0:
		line = "nothing changes"
	case sim.Mode != "":
		line = sim.Mode + " fits: " + strings.Join(words, ", ")
	default:
		line = "it fits: " + strings.Join(words, ", ")
	}
	var unknown []string
	for _, n := range sim.Needs {
		if n.Source == vram.Unknown {
			unknown = append(unknown, n.Service)
		}
	}
	if more := len(unknown) - maxNamed; more > 0 {
		unknown = append(unknown[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	if len(unknown) > 0 {
		line += "; nobody knows what these need, so they count nothing: " + strings.Join(unknown, ", ")
	}
	if n := len(sim.Alternatives); n > 0 {
		line += "; " + count(n, "alternative")
	}
	return line
}

func planSteps(steps []plan.Step) []*executorv1.PlanStep {
	var out []*executorv1.PlanStep
	for _, s := range steps {
		out = append(out, &executorv1.PlanStep{Action: s.Action, ServiceId: s.Service, ExpectedS: wholeSeconds(s.Expected)})
	}
	return out
}

// wholeSeconds is a duration in whole seconds, rounded up.
func wholeSeconds(d time.Duration) uint32 {
	return uint32(min(max((d+time.Second-1)/time.Second, 0), 1<<32-1))
}

// SwitchMode carries a plan out.
func (t *Tools) SwitchMode(ctx context.Context, r *executorv1.SwitchModeRequest) (*executorv1.SwitchModeResponse, error) {
	result, err := t.cfg.Modes.Switch(ctx, r.GetModeId(), r.GetPlanDigest(), r.MarginMibOverride, mode.Consent{
		First: sink.Confirm, Later: sink.Continue, Operation: sink.Operation(ctx),
	})
	if err != nil {
		return nil, err
	}
	overridden(ctx, r.MarginMibOverride)
	if result.Outcome == executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED {
		sink.Summarise(ctx, result.Sentence())
	} else {
		sink.Fail(ctx, result.Sentence())
	}
	sink.Cut(ctx, func(out *executorv1.SwitchModeResponse) { out.Log = shortLines(out.GetLog(), maxSwitchLine) })
	return &executorv1.SwitchModeResponse{
		ModeId: result.Mode, Outcome: result.Outcome, Done: planSteps(result.Done), FailedService: result.FailedService,
		Cause: result.Cause, NotRunning: result.NotRunning, Log: logText(result.Log), Changed: result.Changed,
	}, nil
}

// logText is a service's lines as one text that can be shown.
func logText(lines []string) string {
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		out = append(out, clean.Line(l, clean.Whole))
	}
	return strings.Join(out, "\n")
}

// maxSwitchLine bounds a line of a failed service's log.
const maxSwitchLine = 500

// ListSwitches returns the newest switches with what happened in each.
func (c *Control) ListSwitches(ctx context.Context, r *executorv1.ListSwitchesRequest) (*executorv1.ListSwitchesResponse, error) {
	known, err := c.cfg.Modes.History(ctx, cmp.Or(int(r.GetLimit()), defaultSwitches))
	if err != nil {
		return nil, err
	}
	out := &executorv1.ListSwitchesResponse{}
	for _, w := range known {
		one := &executorv1.Switch{
			OperationId: w.Operation, ModeId: w.Mode, FromModeId: w.From, BeganAt: timestamppb.New(w.BeganAt), Outcome: w.Outcome,
			FailedService: w.FailedService, Cause: w.Cause, Recovered: w.Recovered,
		}
		if w.EndedAt.IsZero() {
			one.Recovered = c.cfg.Modes.Undoing() // only one can be open
		} else {
			one.EndedAt = timestamppb.New(w.EndedAt)
		}
		for _, l := range w.Log {
			one.Log = append(one.Log, atWord(clean.Line(l, clean.Whole), maxSwitchLine))
		}
		for _, s := range w.Steps {
			one.Steps = append(one.Steps, &executorv1.SwitchStep{
				Action: s.Action, ServiceId: s.Service, TookMs: milliseconds(s.Took), Done: s.Done,
				Compensation: s.Compensation,
			})
		}
		out.Switches = append(out.Switches, one)
	}
	return out, nil
}
