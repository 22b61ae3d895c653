package server_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/server"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
)

const withModes = catalogText + `
  - {id: gamma, name: Gamma, driver: "null", model: demo/one, gpus: [0], vram_mib: 20000}
  - {id: mystery, name: Mystery, driver: "null", gpus: [0]}
modes:
  - {id: small, name: Small, description: The small one., services: [alpha, beta]}
  - {id: large, name: Large, services: [gamma]}
  - {id: huge, services: [alpha, gamma]}
`

// newHost is a world with modes.
func newHost(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.write(withModes)
	w.must(w.source.Reload())
	return w
}

func switchTo(mode, digest string) *executorv1.SwitchModeRequest {
	return &executorv1.SwitchModeRequest{ModeId: &mode, PlanDigest: &digest}
}

// plan is the digest that simulate_mode returns.
func (w *world) plan(mode string) string {
	w.t.Helper()
	out, err := w.operator.SimulateMode(w.t.Context(), &executorv1.SimulateModeRequest{ModeId: &mode})
	w.must(err)
	return out.GetPlanDigest()
}

// switchTicket is a genuine one for a switch.
func (w *world) switchTicket(r *executorv1.SwitchModeRequest) *ticket {
	w.t.Helper()
	t := w.ticketFor("switch_mode", r)
	tool, _ := contract.Lookup("switch_mode")
	subject, err := server.Subjects{Services: w.services, Modes: w.modes}.Subject(w.t.Context(), tool, r)
	w.must(err)
	digest := contract.Digest(subject.GetEntry())
	t.grant.SubjectDigest, t.statement.SubjectDigest = digest[:], canonical.FormatDigest(digest[:])
	return t
}

func TestModesAndModels(t *testing.T) {
	w := newHost(t)
	w.driver.running["alpha"] = true
	_, err := w.operator.ModeInfo(t.Context(), &executorv1.ModeInfoRequest{ModeId: proto.String("smal")})
	if f := wantCode(t, err, callv1.Code_CODE_NOT_FOUND); !cmp.Equal(f.DidYouMean, []string{"small"}) {
		t.Errorf("it offers %v", f.DidYouMean)
	}
	_, err = w.operator.ModelInfo(t.Context(), &executorv1.ModelInfoRequest{ModelId: proto.String("demo/oen")})
	if f := wantCode(t, err, callv1.Code_CODE_NOT_FOUND); !cmp.Equal(f.DidYouMean, []string{"demo/one"}) {
		t.Errorf("it offers %v", f.DidYouMean)
	}
	_, err = w.operator.SimulateMode(t.Context(), &executorv1.SimulateModeRequest{ModeId: proto.String("nothing")})
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)

	modes, err := w.operator.ListModes(t.Context(), &executorv1.ListModesRequest{})
	w.must(err)
	if m := modes.GetModes(); len(m) != 3 || modes.GetCurrent() != "" || m[0].GetRunning() || m[2].GetVramMib() != 26144 ||
		!cmp.Equal(m[0].GetServices(), []string{"alpha", "beta"}) {
		t.Errorf("modes: %v", modes)
	}
	var trailer metadata.MD
	info, err := w.operator.ModeInfo(t.Context(), &executorv1.ModeInfoRequest{ModeId: proto.String("small")}, grpc.Trailer(&trailer))
	w.must(err)
	if info.GetName() != "Small" || info.GetDescription() != "The small one." || len(info.GetServices()) != 2 || info.GetCurrent() {
		t.Errorf("mode: %v", info)
	}
	if o := outcome(t, trailer); o.GetSummary() != "small: 1 of 2 services running" {
		t.Errorf("summary is %q", o.GetSummary())
	}
	models, err := w.operator.ListModels(t.Context(), &executorv1.ListModelsRequest{})
	w.must(err)
	if m := models.GetModels(); len(m) != 1 || !m[0].GetAvailable() || !cmp.Equal(m[0].GetServices(), []string{"alpha", "gamma"}) {
		t.Errorf("models: %v", models)
	}
	model, err := w.operator.ModelInfo(t.Context(), &executorv1.ModelInfoRequest{ModelId: proto.String("demo/one")})
	w.must(err)
	if model.GetServedName() != "demo-one" || len(model.GetServices()) != 2 || model.GetServices()[0].GetServiceId() != "alpha" {
		t.Errorf("model: %v", model)
	}

	fits, err := w.operator.SimulateMode(t.Context(), &executorv1.SimulateModeRequest{ModeId: proto.String("large")})
	w.must(err)
	want := &executorv1.SimulateModeResponse{
		ModeId: "large", Fits: true, PlanDigest: fits.GetPlanDigest(),
		Steps: []*executorv1.PlanStep{
			{Action: executorv1.PlanAction_PLAN_ACTION_STOP, ServiceId: "alpha"}, {Action: executorv1.PlanAction_PLAN_ACTION_START, ServiceId: "gamma"}},
		Gpus:  []*executorv1.GpuForecast{{NowMib: 6144, AfterMib: 20000, FreeMib: 4576, TotalMib: 24576, Source: "declared"}},
		Needs: []*executorv1.ServiceNeed{{ServiceId: "gamma", NeedMib: 20000, Source: "declared"}},
		Next: &executorv1.NextCall{Tool: "switch_mode", Arguments: map[string]string{
			"mode_id": "large", "plan_digest": fits.GetPlanDigest(),
		}},
		HostAvailableMib: fits.GetHostAvailableMib(),
	}
	if !proto.Equal(want, fits) || len(fits.GetPlanDigest()) != 64 {
		t.Errorf("simulated: %v", fits)
	}
	full, err := w.operator.SimulateMode(t.Context(), &executorv1.SimulateModeRequest{ModeId: proto.String("huge")})
	w.must(err)
	if full.GetFits() || full.GetPlanDigest() != "" ||
		full.GetReason() != "it does not fit: GPU 0 has 18432 MiB free for it, and 20000 MiB are needed with a margin of 512 MiB" {
		t.Errorf("simulated: %v", full)
	}
	if w.driver.count() != 0 {
		t.Error("looking changed something")
	}
}

// TestSimulateMode: what is asked reaches the switcher, what it finds reaches the caller, and the record has it in a line.
func TestSimulateMode(t *testing.T) {
	for name, c := range map[string]struct {
		running []string
		request *executorv1.SimulateModeRequest
		fits    bool
		next    string
		alters  []string
		summary string
	}{
		"nothing": {nil, &executorv1.SimulateModeRequest{}, true, "", nil, "nothing changes"},
		"a mode":  {[]string{"program"}, &executorv1.SimulateModeRequest{ModeId: proto.String("small")}, true, "switch_mode small", []string{"KEEP program"}, "small fits: stop program, start alpha, start beta; 1 alternative"},
		"a mode, and no alternatives": {[]string{"program"}, &executorv1.SimulateModeRequest{ModeId: proto.String("small"), Alternatives: proto.Uint32(0)}, true,
			"switch_mode small", nil, "small fits: stop program, start alpha, start beta"},
		"a mode with a stop": {nil, &executorv1.SimulateModeRequest{ModeId: proto.String("small"), Stop: []string{"beta"}}, true, "", nil, "small fits: start alpha"},
		"a start":            {[]string{"alpha"}, &executorv1.SimulateModeRequest{Start: []string{"program"}}, true, "start_service program", nil, "it fits: start program"},
		"a start without room": {[]string{"alpha"}, &executorv1.SimulateModeRequest{Start: []string{"gamma"}}, false, "", []string{"STOP alpha"},
			"that cannot be done now: it does not fit: GPU 0 has 18432 MiB free for it, and 20000 MiB are needed with a margin of 512 MiB; 1 alternative"},
		"what nobody knows the size of": {nil, &executorv1.SimulateModeRequest{Start: []string{"mystery"}}, true, "start_service mystery", nil,
			"it fits: start mystery; nobody knows what these need, so they count nothing: mystery"},
		"a stop": {[]string{"alpha"}, &executorv1.SimulateModeRequest{Stop: []string{"alpha"}}, true, "stop_service alpha", nil, "it fits: stop alpha"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHost(t)
			for _, id := range c.running {
				w.driver.running[id] = true
			}
			var trailer metadata.MD
			out, err := w.operator.SimulateMode(t.Context(), c.request, grpc.Trailer(&trailer))
			w.must(err)
			next := ""
			if n := out.GetNext(); n != nil {
				next = n.GetTool() + " " + n.GetArguments()["mode_id"] + n.GetArguments()["service_id"]
				if tool, ok := contract.Lookup(n.GetTool()); !ok {
					t.Errorf("no tool is called %s", n.GetTool())
				} else if raw, err := json.Marshal(n.GetArguments()); err != nil {
					t.Error(err)
				} else if _, err := tool.Decode(raw); err != nil {
					t.Errorf("the call cannot be made as it stands: %v", err)
				}
			}
			var alters []string
			for _, a := range out.GetAlternatives() {
				for _, change := range a.GetChanges() {
					alters = append(alters, strings.TrimPrefix(change.GetKind().String(), "CHANGE_KIND_")+" "+change.GetServiceId())
				}
				if (len(a.GetPlanDigest()) == 64) != (c.request.ModeId != nil) || len(a.GetGpus()) != 1 {
					t.Errorf("alternative: %v", a)
				}
			}
			if out.GetFits() != c.fits || next != c.next || !slices.Equal(alters, c.alters) || out.GetCutOff() {
				t.Errorf("simulated: %v", out)
			}
			if o := outcome(t, trailer); o.GetSummary() != c.summary {
				t.Errorf("summary is %q", o.GetSummary())
			}
			if w.driver.count() != 0 {
				t.Error("looking changed something")
			}
		})
	}
	w := newHost(t)
	_, err := w.operator.SimulateMode(t.Context(), &executorv1.SimulateModeRequest{Stop: []string{"alpa"}})
	if f := wantCode(t, err, callv1.Code_CODE_NOT_FOUND); f.Field != "stop" || !cmp.Equal(f.DidYouMean, []string{"alpha"}) {
		t.Errorf("refused: %+v", f)
	}
	_, err = w.operator.SimulateMode(t.Context(), &executorv1.SimulateModeRequest{
		ModeId: proto.String("small"), ContextOverrides: map[string]uint32{"beta": 4096},
	})
	if f := wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT); f.Field != "context_overrides" {
		t.Errorf("refused: %+v", f)
	}
}

// TestSwitchToAnAlternative: it takes an approval of its own, and does what that says.
func TestSwitchToAnAlternative(t *testing.T) {
	simulated := func(w *world) (plan, other string) {
		w.t.Helper()
		w.driver.running["program"] = true
		out, err := w.operator.SimulateMode(w.t.Context(), &executorv1.SimulateModeRequest{ModeId: proto.String("small")})
		w.must(err)
		if len(out.GetAlternatives()) != 1 {
			w.t.Fatalf("simulated: %v", out)
		}
		return out.GetPlanDigest(), out.GetAlternatives()[0].GetPlanDigest()
	}
	for _, approved := range []bool{true, false} { // the plan, or the alternative
		w := newHost(t)
		plan, other := simulated(w)
		if !approved {
			plan, other = other, plan
		}
		ticket := w.switchTicket(switchTo("small", plan))
		_, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(ticket)), switchTo("small", other))
		wantCode(t, err, denied)
		// A grant that names the other's arguments and this one's subject is no better.
		mixed := w.switchTicket(switchTo("small", other))
		mixed.grant.SubjectDigest, mixed.statement.SubjectDigest = ticket.grant.SubjectDigest, ticket.statement.SubjectDigest
		_, err = w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(mixed)), switchTo("small", other))
		if err == nil {
			t.Error("the approval of one was good for the other")
		}
		if w.driver.count() != 0 {
			t.Error("it had an effect")
		}
	}
	w := newHost(t)
	_, other := simulated(w)
	request := switchTo("small", other)
	out, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(w.switchTicket(request))), request)
	w.must(err)
	if out.GetOutcome() != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED || len(out.GetDone()) != 2 || !w.driver.running["program"] {
		t.Errorf("result: %v, running %v", out, w.driver.running)
	}
}

// A switch takes a grant that a human's statement to this very plan is in; whatever else is asked has no effect.
func TestSwitchModeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		bend func(w *world, t *ticket) *executorv1.SwitchModeRequest
		code callv1.Code
	}{
		"another mode": {func(w *world, _ *ticket) *executorv1.SwitchModeRequest { return switchTo("large", w.plan("large")) }, denied},
		"another plan": {func(w *world, _ *ticket) *executorv1.SwitchModeRequest {
			return switchTo("small", strings.Repeat("0", 64))
		}, denied},
		"no statement": {func(w *world, t *ticket) *executorv1.SwitchModeRequest {
			t.statement = nil
			return switchTo("small", w.plan("small"))
		}, denied},
		"a service that started since": {func(w *world, _ *ticket) *executorv1.SwitchModeRequest {
			r := switchTo("small", w.plan("small"))
			w.driver.mu.Lock()
			w.driver.running["beta"] = true
			w.driver.mu.Unlock()
			return r
		}, callv1.Code_CODE_PLAN_CHANGED},
		"an edit since": {func(w *world, _ *ticket) *executorv1.SwitchModeRequest {
			r := switchTo("small", w.plan("small"))
			w.write(strings.Replace(withModes, "name: Beta", "name: Another", 1))
			w.must(w.source.Reload())
			return r
		}, callv1.Code_CODE_PLAN_CHANGED},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHost(t)
			ticket := w.switchTicket(switchTo("small", w.plan("small")))
			request := c.bend(w, ticket)
			_, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(ticket)), request)
			wantCode(t, err, c.code)
			if w.driver.count() != 0 || w.vault.redemptions() != 0 {
				t.Error("it had an effect, or spent the approval")
			}
		})
	}
	w := newHost(t)
	_, err := w.gateway.SwitchMode(t.Context(), switchTo("small", w.plan("small")))
	wantCode(t, err, denied)
	if w.driver.count() != 0 {
		t.Error("a switch without a grant had an effect")
	}
}

func TestSwitchMode(t *testing.T) {
	w := newHost(t)
	request := switchTo("small", w.plan("small"))
	tool, _ := contract.Lookup("switch_mode")
	arguments, err := contract.Canonical(request)
	w.must(err)
	preview, err := w.control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: tool.Ref(), Arguments: arguments})
	w.must(err)
	want := []string{"1. start alpha", "2. start beta", "if a step fails, the services from before are brought back"}
	if diff := cmp.Diff(want, preview.GetPlan()); diff != "" || preview.GetSubject().GetLabel() != "mode small" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}

	ticket := w.switchTicket(request)
	signed := w.sign(ticket)
	var trailer metadata.MD
	out, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, signed), request, grpc.Trailer(&trailer))
	w.must(err)
	if out.GetOutcome() != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED || !out.GetChanged() || len(out.GetDone()) != 2 {
		t.Errorf("result: %v", out)
	}
	if o := outcome(t, trailer); o.GetSummary() != "the host is in mode small" || o.GetFailed() {
		t.Errorf("outcome: %v", o)
	}
	// Once more is the same answer, and no second switch.
	before := w.driver.count()
	again, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, signed), request)
	if err != nil || !proto.Equal(out, again) || w.driver.count() != before {
		t.Errorf("replayed: %v, %v", again, err)
	}
	modes, err := w.operator.ListModes(t.Context(), &executorv1.ListModesRequest{})
	w.must(err)
	if modes.GetCurrent() != "small" || !modes.GetModes()[0].GetRunning() {
		t.Errorf("modes: %v", modes)
	}
	// The steps can be watched, late as well.
	p := w.permit("list_services")
	permit, err := grant.SignPermit(w.kit.GrantKey, p)
	w.must(err)
	stream, err := w.events().WatchProgress(with(t.Context(), rpc.MetadataPermit, permit),
		&executorv1.WatchProgressRequest{OperationId: ticket.grant.GetOperationId()})
	w.must(err)
	var steps []string
	for {
		step, err := stream.Recv()
		if err != nil {
			break
		}
		if !step.GetEnded() || step.GetSteps() != 3 {
			t.Errorf("step: %v", step)
		}
		steps = append(steps, step.GetPhase()+" "+step.GetServiceId())
	}
	if diff := cmp.Diff([]string{"verify ", "ready alpha", "ready beta"}, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	// A stranger to the contract's permit sees nothing.
	bare, err := w.events().WatchProgress(t.Context(), &executorv1.WatchProgressRequest{OperationId: ticket.grant.GetOperationId()})
	w.must(err)
	_, err = bare.Recv()
	wantCode(t, err, denied)
}

// A switch that failed is an answer, not only an error: it says what became of the host, and the log is looked through first.
func TestASwitchThatFailsSaysHow(t *testing.T) {
	w := newHost(t)
	w.driver.running["alpha"] = true
	w.driver.lines = []string{"loading", "the key is " + secret, "\x1b[31mgone"}
	request := switchTo("large", w.plan("large"))
	ticket := w.switchTicket(request)
	w.driver.failOnce = errors.New("it does not")
	var trailer metadata.MD
	out, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(ticket)), request, grpc.Trailer(&trailer))
	if err != nil {
		t.Fatalf("%v: %v", err, fault.From(err).Cause)
	}
	if out.GetOutcome() != executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK || out.GetFailedService() != "gamma" || out.GetCause() == "" {
		t.Errorf("result: %v", out)
	}
	if out.GetLog() != "loading\nthe key is "+reference+"\ngone" {
		t.Errorf("log: %q", out.GetLog())
	}
	if !w.driver.running["alpha"] || w.driver.running["gamma"] {
		t.Errorf("running: %v", w.driver.running)
	}
	if o := outcome(t, trailer); !o.GetFailed() || !strings.Contains(o.GetSummary(), "the switch to large failed at gamma and was undone") {
		t.Errorf("outcome: %v", o)
	}
	if r := w.log.last(); r.GetKind() != auditv1.Kind_KIND_OUTCOME || r.GetStatus() != auditv1.Status_STATUS_ERROR {
		t.Errorf("recorded: %v", r)
	}
	list, err := w.control.ListSwitches(t.Context(), &executorv1.ListSwitchesRequest{})
	w.must(err)
	if s := list.GetSwitches(); len(s) != 1 || s[0].GetOperationId() != ticket.grant.GetOperationId() || len(s[0].GetSteps()) != 3 ||
		!s[0].GetSteps()[2].GetCompensation() || len(s[0].GetLog()) != 3 || s[0].GetLog()[2] != "gone" || s[0].GetEndedAt() == nil {
		t.Errorf("history: %v", list)
	}
}
