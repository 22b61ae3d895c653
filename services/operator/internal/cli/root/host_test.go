package root

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// world is an installation whose vault and executor are this test's: real mutual TLS, made-up answers.
type world struct {
	// undoing: the executor undoes an interrupted switch.
	undoing bool
	// catalogue is the digest of the executor's, and disabled what it has disabled of it.
	catalogue string
	disabled  []*executorv1.DisabledEntry
	t         *testing.T
	home      installdir.Home

	mu sync.Mutex
	// plan is what the executor would do; its canonical JSON is the subject of switch_mode.
	plan []byte
	// entries are what it shows of the plan's steps.
	entries  []*callv1.Subject
	simulate *executorv1.SimulateModeResponse
	// asked are the simulations that were asked for.
	asked    []*executorv1.SimulateModeRequest
	switched *executorv1.SwitchModeResponse
	current  string
	steps    []*executorv1.WatchProgressResponse
	// running are the vault's operations; signed are the statements that it was given.
	running []*vaultv1.Operation
	// decided is the id of one that somebody else decides on while it is looked at.
	decided string
	signed  []*statement.Statement
	calls   []string
	// What the vault says of standing authority, and whether it hangs when it is told to halt.
	standing []*vaultv1.Standing
	muted    []*vaultv1.Mute
	sessions []*vaultv1.OpenSession
	hung     bool
	// deaf: the executor does not answer when something ends.
	deaf bool
	// announced is called with each file whose change was announced. May be nil.
	announced func(file string)
	// startVault starts the vault anew after stopVault.
	startVault func() (stop func())
	stopVault  func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	var steps []map[string]string
	for action, s := range []*catalog.Service{
		{ID: "chat", Driver: catalog.DriverNull},
		{ID: "coder", Driver: catalog.DriverProcess, Argv: []string{"/usr/bin/vllm", "serve"}, RunAs: "llm", Port: 8001, GPUs: []uint32{0}, VRAMMiB: 20000},
	} {
		entry, err := s.Subject("sha256:aa")
		must(t, err)
		w.entries = append(w.entries, &callv1.Subject{Label: "service " + s.ID, Entry: entry})
		steps = append(steps, map[string]string{
			"action": []string{"stop", "start"}[action], "entry_sha256": fmt.Sprintf("%x", canonical.Digest(entry)), "service": s.ID,
		})
	}
	var err error
	if w.plan, err = canonical.Marshal(map[string]any{"catalogue": "sha256:aa", "mode": "coding", "steps": steps}); err != nil {
		t.Fatal(err)
	}
	if w.home, err = installdir.At(filepath.Join(t.TempDir(), "h")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.home.Init(installdir.Options{Development: true, Operator: "alice", BasePort: platformtest.ClaimPorts(t)}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.home.RenewCertificates("alice", time.Now(), true); err != nil {
		t.Fatal(err)
	}
	cfg, err := w.home.Load()
	must(t, err)
	w.simulate = &executorv1.SimulateModeResponse{
		ModeId: "coding", Fits: true, PlanDigest: w.digest(),
		Steps: []*executorv1.PlanStep{{Action: executorv1.PlanAction_PLAN_ACTION_STOP, ServiceId: "chat", ExpectedS: 3},
			{Action: executorv1.PlanAction_PLAN_ACTION_START, ServiceId: "coder", ExpectedS: 95}},
		Gpus: []*executorv1.GpuForecast{{Index: 0, NowMib: 6144, AfterMib: 20000, FreeMib: 4576, TotalMib: 24576, Source: "measured"}},
	}
	w.switched = &executorv1.SwitchModeResponse{
		ModeId: "coding", Outcome: executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED, Changed: true, Done: w.simulate.GetSteps(),
	}
	w.steps = []*executorv1.WatchProgressResponse{
		{Step: 1, Steps: 2, Phase: "stop", ServiceId: "chat", ElapsedMs: 1200, Ended: true},
		{Step: 2, Steps: 2, Phase: "ready", ServiceId: "coder", ElapsedMs: 5000, ExpectedMs: 95000},
	}
	w.serve("executor", cfg.Executor.Address, func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, fakeTools{w: w})
		executorv1.RegisterControlServiceServer(r, fakeControl{w: w})
		executorv1.RegisterEventServiceServer(r, fakeEvents{w: w})
	})
	w.startVault = func() (stop func()) {
		return w.serve("vault", cfg.Vault.Address, w.vaultServices)
	}
	w.stopVault = w.startVault()
	return w
}

func (w *world) vaultServices(r grpc.ServiceRegistrar) {
	vaultv1.RegisterApprovalServiceServer(r, fakeApprovals{w: w})
	vaultv1.RegisterControlServiceServer(r, fakeVaultControl{w: w})
	vaultv1.RegisterStandingServiceServer(r, fakeStanding{w: w})
	vaultv1.RegisterPolicyServiceServer(r, fakePolicy{w: w})
}

// serve serves until stop is called or the test ends.
func (w *world) serve(role, address string, register func(grpc.ServiceRegistrar)) (stop func()) {
	w.t.Helper()
	folder, err := trust.Open(w.home.Trust())
	must(w.t, err)
	source, err := identity.Open(identity.Files{Certificate: w.home.TLS(role, "cert.pem"), Key: w.home.TLS(role, "key.pem")}, folder)
	must(w.t, err)
	server := rpc.NewServer(rpc.ServerConfig{Identity: source, Logger: platformtest.Logger()})
	register(server)
	lis, err := rpc.Listen(address, false)
	must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		folder.Close()
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) digest() string {
	sum := canonical.Digest(w.plan)
	return fmt.Sprintf("%x", sum)
}

// ran is what one run of durward wrote.
type ran struct {
	code     int
	out, err string
}

func (w *world) run(args ...string) ran { return w.runUntil(w.t.Context(), nil, args...) }

// runUntil runs durward until it ends or ctx does; stdin may be nil.
func (w *world) runUntil(ctx context.Context, out *lockedBuffer, args ...string) ran {
	var errs lockedBuffer
	if out == nil {
		out = &lockedBuffer{}
	}
	code := Main(ctx, args, cli.Streams{
		In: strings.NewReader(""), Out: out, Err: &errs, Getenv: at(w.home.Dir), Version: "test",
	})
	return ran{code, out.String(), errs.String()}
}

// lockedBuffer is a buffer that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

func (w *world) called(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, what)
}

type fakeTools struct {
	executorv1.UnimplementedToolServiceServer
	w *world
}

func (f fakeTools) ListServices(context.Context, *executorv1.ListServicesRequest) (*executorv1.ListServicesResponse, error) {
	return &executorv1.ListServicesResponse{Services: []*executorv1.ServiceSummary{
		{ServiceId: "chat", Name: "Chat", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Model: "demo-1b", VramMib: 6144},
		{ServiceId: "coder", Name: "Coder\x1b[31m", State: executorv1.ServiceState_SERVICE_STATE_STOPPED, VramMib: 20000},
	}}, nil
}

func (f fakeTools) ServiceInfo(_ context.Context, r *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
	if r.GetServiceId() != "chat" {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no service has this id", fault.WithField("service_id"), fault.WithSuggestions("chat"))
	}
	return &executorv1.ServiceInfoResponse{Service: &executorv1.ServiceDetail{
		ServiceId: "chat", Name: "Chat", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, BaseUrl: "http://127.0.0.1:7450/v1",
		VramMib: 6144, MeasuredMib: 5900, Sleep: "vllm-l1", Pinned: true, Network: "not enforced", Restarts: 2, UptimeS: 90,
	}}, nil
}

func (f fakeTools) ServiceLogs(_ context.Context, r *executorv1.ServiceLogsRequest) (*executorv1.ServiceLogsResponse, error) {
	f.w.called(fmt.Sprintf("logs %s %s %d", r.GetServiceId(), r.GetCursor(), r.GetLines()))
	return &executorv1.ServiceLogsResponse{ServiceId: r.GetServiceId(), Log: "one\n\x1b[31mtwo\u202e", Cursor: "c-2", More: true}, nil
}

func (f fakeTools) ListModes(context.Context, *executorv1.ListModesRequest) (*executorv1.ListModesResponse, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return &executorv1.ListModesResponse{Current: f.w.current, Modes: []*executorv1.ModeSummary{
		{ModeId: "chatting", Name: "Chatting", Services: []string{"chat"}, VramMib: 6144},
		{ModeId: "coding", Name: "Coding", Services: []string{"coder"}, VramMib: 20000, Running: true},
	}}, nil
}

func (f fakeTools) ModeInfo(_ context.Context, r *executorv1.ModeInfoRequest) (*executorv1.ModeInfoResponse, error) {
	return &executorv1.ModeInfoResponse{ModeId: r.GetModeId(), Name: "Chatting", Current: true, Drifted: []string{"chat"},
		Services: []*executorv1.ServiceSummary{{ServiceId: "chat", State: executorv1.ServiceState_SERVICE_STATE_FAILED}}}, nil
}

func (f fakeTools) ListModels(context.Context, *executorv1.ListModelsRequest) (*executorv1.ListModelsResponse, error) {
	return &executorv1.ListModelsResponse{Models: []*executorv1.ModelSummary{
		{ModelId: "durward/demo-1b", ServedName: "demo-1b", Services: []string{"chat"}, Available: true},
	}}, nil
}

func (f fakeTools) ModelInfo(_ context.Context, r *executorv1.ModelInfoRequest) (*executorv1.ModelInfoResponse, error) {
	return &executorv1.ModelInfoResponse{ModelId: r.GetModelId(), ServedName: "demo-1b", Source: "hf:demo",
		Services: []*executorv1.ServiceDetail{{ServiceId: "chat", BaseUrl: "http://127.0.0.1:7450/v1"}}}, nil
}

func (f fakeTools) SimulateMode(_ context.Context, r *executorv1.SimulateModeRequest) (*executorv1.SimulateModeResponse, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.asked = append(f.w.asked, r)
	if r.GetModeId() != f.w.simulate.GetModeId() {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no mode has this id", fault.WithField("mode_id"), fault.WithSuggestions("coding"))
	}
	return f.w.simulate, nil
}

func (f fakeTools) SwitchMode(ctx context.Context, r *executorv1.SwitchModeRequest) (*executorv1.SwitchModeResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get(rpc.MetadataGrant)) != 1 {
		return nil, fault.New(callv1.Code_CODE_DENIED, "no grant")
	}
	f.w.called("switch " + r.GetModeId() + " " + r.GetPlanDigest())
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.w.switched, f.w.outcome(ctx, f.w.switched.GetOutcome() != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED)
}

func (f fakeTools) SleepService(ctx context.Context, r *executorv1.SleepServiceRequest) (*executorv1.SleepServiceResponse, error) {
	f.w.called("sleep " + r.GetServiceId())
	return &executorv1.SleepServiceResponse{Changed: true, Service: &executorv1.ServiceDetail{ServiceId: r.GetServiceId(),
		State: executorv1.ServiceState_SERVICE_STATE_SLEEPING, BaseUrl: "http://127.0.0.1:7450/v1"}}, f.w.outcome(ctx, false)
}

func (w *world) outcome(ctx context.Context, failed bool) error {
	summary := "coding runs"
	if failed {
		summary = "coding does not run"
	}
	raw, err := proto.Marshal(&callv1.Outcome{Summary: summary, Failed: failed, Receipt: &callv1.Receipt{Index: 7}})
	if err != nil {
		return err
	}
	return grpc.SetTrailer(ctx, metadata.Pairs(rpc.TrailerOutcome, string(raw)))
}

type fakeControl struct {
	executorv1.UnimplementedControlServiceServer
	w *world
}

func (f fakeControl) PreviewCall(_ context.Context, r *executorv1.PreviewCallRequest) (*executorv1.PreviewCallResponse, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	p := &executorv1.PreviewCallResponse{
		Epoch: 3, Audience: clitest.ExecutorID, Plan: []string{"stop chat", "start coder"},
		Subject: &callv1.Subject{Label: "mode coding", Entry: f.w.plan}, Entries: f.w.entries,
	}
	if r.GetTool().GetName() != "switch_mode" {
		p.Subject = &callv1.Subject{Label: "service chat", Entry: []byte(`{"id":"chat"}`)}
		p.Entries = nil
	}
	if strings.Contains(string(r.GetArguments()), `"gone"`) {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no service gone")
	}
	if strings.Contains(string(r.GetArguments()), `"sleepless"`) {
		p.Subject = &callv1.Subject{Label: "service sleepless", Entry: []byte(`{"id":"sleepless","sleep":"none"}`)}
	}
	return p, nil
}

func (f fakeControl) GetStatus(context.Context, *executorv1.GetStatusRequest) (*executorv1.GetStatusResponse, error) {
	return &executorv1.GetStatusResponse{
		Epoch: 3, ServicesRunning: 1, ServicesTotal: 2, GpuSource: "simulated", Gpus: 1, AuditReachable: true, VaultReachable: true,
		CatalogueDigest: f.w.catalogue, Disabled: f.w.disabled,
	}, nil
}

func (f fakeControl) GetHost(context.Context, *executorv1.GetHostRequest) (*executorv1.GetHostResponse, error) {
	return clitest.Host(), nil
}

func (f fakeControl) FollowLogs(_ *executorv1.FollowLogsRequest, stream grpc.ServerStreamingServer[executorv1.FollowLogsResponse]) error {
	for _, lines := range [][]string{{"one", "two"}, {"three\x1b[2J"}} {
		if err := stream.Send(&executorv1.FollowLogsResponse{Lines: lines}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func (f fakeControl) ListSwitches(_ context.Context, r *executorv1.ListSwitchesRequest) (*executorv1.ListSwitchesResponse, error) {
	f.w.called(fmt.Sprintf("switches %d", r.GetLimit()))
	if f.w.undoing {
		return &executorv1.ListSwitchesResponse{Switches: []*executorv1.Switch{{ModeId: "coding\x1b[0m", Recovered: true}}}, nil
	}
	return &executorv1.ListSwitchesResponse{Switches: []*executorv1.Switch{{
		OperationId: "0123456789abcdef0123456789abcdef", ModeId: "coding", FromModeId: "chatting", BeganAt: timestamppb.New(clitest.Now),
		EndedAt: timestamppb.New(clitest.Now.Add(95 * time.Second)), Outcome: executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK,
		Steps: []*executorv1.SwitchStep{
			{Action: executorv1.PlanAction_PLAN_ACTION_STOP, ServiceId: "chat", TookMs: 2000, Done: true},
			{Action: executorv1.PlanAction_PLAN_ACTION_START, ServiceId: "chat", TookMs: 9000, Done: true, Compensation: true},
		},
		FailedService: "coder", Cause: "the GPU's memory ran out", Log: []string{"CUDA out of memory\x1b[0m"}, Recovered: true,
	}}}, nil
}

type fakeEvents struct {
	executorv1.UnimplementedEventServiceServer
	w *world
}

func (f fakeEvents) WatchServices(_ *executorv1.WatchServicesRequest, stream grpc.ServerStreamingServer[executorv1.WatchServicesResponse]) error {
	for _, said := range []*executorv1.WatchServicesResponse{
		{ServiceId: "chat", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Initial: true},
		{ServiceId: "coder", State: executorv1.ServiceState_SERVICE_STATE_STARTING},
	} {
		if err := stream.Send(said); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func (f fakeEvents) WatchProgress(_ *executorv1.WatchProgressRequest, stream grpc.ServerStreamingServer[executorv1.WatchProgressResponse]) error {
	f.w.mu.Lock()
	steps := f.w.steps
	f.w.mu.Unlock()
	for _, said := range steps {
		if err := stream.Send(said); err != nil {
			return err
		}
	}
	return nil
}

type fakeApprovals struct {
	vaultv1.UnimplementedApprovalServiceServer
	w *world
}

func (f fakeApprovals) ListOperations(_ context.Context, r *vaultv1.ListOperationsRequest) (*vaultv1.ListOperationsResponse, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var ops []*vaultv1.Operation
	for _, op := range f.w.running {
		if slices.Contains(r.GetStates(), op.GetState()) {
			ops = append(ops, op)
		}
	}
	return &vaultv1.ListOperationsResponse{Operations: ops}, nil
}

// WatchOperations tells of a call that was quick: it is seen for the first time when it has ended.
func (f fakeApprovals) WatchOperations(
	_ *vaultv1.WatchOperationsRequest, stream grpc.ServerStreamingServer[vaultv1.WatchOperationsResponse],
) error {
	tool, _ := contract.Lookup("stop_service")
	if err := stream.Send(&vaultv1.WatchOperationsResponse{Operation: &vaultv1.Operation{
		OperationId: "2123456789abcdef0123456789abcdef", State: vaultv1.OperationState_OPERATION_STATE_DONE, Tool: tool.Ref(),
		Arguments: []byte(`{"service_id":"chat"}`), Principal: "operator:alice",
	}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (f fakeApprovals) GrantCommand(_ context.Context, r *vaultv1.GrantCommandRequest) (*vaultv1.GrantCommandResponse, error) {
	st, err := statement.Parse(r.GetStatement().GetStatement())
	if err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.signed = append(f.w.signed, st)
	grant := &callv1.SignedGrant{Payload: []byte("grant"), Kid: "k", Signature: make([]byte, 64)}
	return &vaultv1.GrantCommandResponse{OperationId: st.Operation, Grant: grant}, nil
}

type fakeVaultControl struct {
	vaultv1.UnimplementedControlServiceServer
	w *world
}

func (f fakeVaultControl) GetStatus(context.Context, *vaultv1.GetStatusRequest) (*vaultv1.GetStatusResponse, error) {
	return &vaultv1.GetStatusResponse{Epoch: 3}, nil
}

// TestReads runs every command that only looks: what people read, and what programs do.
func TestReads(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		code int
		want []string
		// keys are top-level members of --json.
		keys []string
	}{
		{args: []string{"services"}, want: []string{"chat ", "running", "6144 MiB", "Coder"}, keys: []string{"services"}},
		{args: []string{"service", "ls"}, want: []string{"coder"}, keys: []string{"services"}},
		{args: []string{"service", "show", "chat"}, keys: []string{"service"},
			want: []string{"5900 MiB (measured now)", "vllm-l1", "no switch stops it", "not enforced", "restarts 2", "1:30"}},
		{args: []string{"model", "ls"}, want: []string{"durward/demo-1b", "yes", "demo-1b", "chat"}, keys: []string{"models"}},
		{args: []string{"model", "show", "durward/demo-1b"}, keys: []string{"model_id", "services"},
			want: []string{"hf:demo", "http://127.0.0.1:7450/v1"}},
		{args: []string{"mode", "ls"}, want: []string{"chatting", "coding", "all run"}, keys: []string{"modes", "current"}},
		{args: []string{"mode", "show", "chatting"}, want: []string{"drifted: chat", "durward switch chatting", "failed"}, keys: []string{"drifted"}},
		{args: []string{"simulate", "coding"}, keys: []string{"plan_digest", "steps"},
			want: []string{"FITS after stopping chat\n", "stop chat (~3 s) · start coder (~1:35)\n", "0      6.0   19.5    4.5   24.0  measured",
				"Apply: durward switch coding --plan " + w.digest()[:12]}},
		{args: []string{"gpu"}, keys: []string{"gpus", "source"}, want: []string{
			"GPU 0  NVIDIA X  nvml  12 % busy  driver error 79 (XID)", "█", "▓", "░", "·", "▒",
			"6.0 GiB by services, 2.0 GiB more claimed, 3.0 GiB foreign, 14.5 GiB free, 512 MiB the driver's of 24.0 GiB",
			"foreign", "4242", "bob", "python", "the GPU does not answer any more", "claimed, not used yet",
			"main memory 20.0 GiB available of 64.0 GiB",
		}},
		{args: []string{"logs", "chat"}, want: []string{"one\ntwo"}, keys: []string{"log", "cursor", "more"}},
		{args: []string{"logs", "chat", "-n", "200"}, want: []string{"one\ntwo\nthree\n"}, keys: []string{"log"}},
		{args: []string{"switches"}, keys: []string{"switches"}, want: []string{
			"chatting → coding", "rolled back", "1:35", "coder: the GPU's memory ran out (recovered after a restart)",
		}},
		{args: []string{"switches", "--steps", "--limit", "1"}, keys: []string{"switches"},
			want: []string{"to bring back what was before", "│ CUDA out of memory\n"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			got := w.run(c.args...)
			if got.code != c.code {
				t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
			}
			for _, want := range c.want {
				if !strings.Contains(got.out, want) {
					t.Errorf("%q is not in\n%s", want, got.out)
				}
			}
			if strings.ContainsAny(got.out+got.err, "\x1b\x07\u202e") {
				t.Errorf("hostile characters came through: %q", got.out+got.err)
			}
			got = w.run(append(c.args, "--json")...)
			var object map[string]any
			if err := json.Unmarshal([]byte(got.out), &object); err != nil || got.code != c.code {
				t.Fatalf("--json: exit code %d, %v\n%s%s", got.code, err, got.out, got.err)
			}
			for _, key := range c.keys {
				if _, ok := object[key]; !ok {
					t.Errorf("--json: no %q in\n%s", key, got.out)
				}
			}
		})
	}
}

// TestWrongUsage: exit codes and what to do next.
func TestStatusTellsOfAnInterruptedSwitch(t *testing.T) {
	w := newWorld(t)
	if got := w.run("status"); strings.Contains(got.out, "being undone") {
		t.Errorf("nothing was interrupted, and status says\n%s", got.out)
	}
	w.undoing = true
	got := w.run("status")
	if !strings.Contains(got.out, "switch   to coding") || !strings.Contains(got.out, "is being undone") || strings.Contains(got.out, "\x1b") {
		t.Errorf("status says\n%s%s", got.out, got.err)
	}
}

func TestWrongUsage(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"service", "show", "caht"}, cli.ExitFailed, "Did you mean chat?"},
		{[]string{"service", "show", "a b"}, cli.ExitUsage, "service_id"},
		{[]string{"service", "chat"}, cli.ExitUsage, "durward service show chat"},
		{[]string{"start"}, cli.ExitUsage, "say which: durward start takes ID\n"},
		{[]string{"start", "a", "b"}, cli.ExitUsage, "durward start takes ID, and got 2\n"},
		{[]string{"services", "all"}, cli.ExitUsage, `durward services takes no argument, and "all" is one`},
		{[]string{"client", "connect", "cursr"}, cli.ExitUsage, "Did you mean cursor?"},
		{[]string{"services", "--outpu", "json"}, cli.ExitUsage, "Did you mean --output?"},
		{[]string{"services", "-json"}, cli.ExitUsage, "Did you mean --json?"},
		{[]string{"client", "connect", "emacs"}, cli.ExitUsage, "claude-code|"},
		{[]string{"simulate", "codin"}, cli.ExitFailed, "Did you mean coding?"},
		{[]string{"switch", "coding", "--plan", "xyz"}, cli.ExitUsage, "durward simulate"},
		{[]string{"switch", "coding", "--plan", "", "--yes"}, cli.ExitUsage, "--plan is empty"},
		{[]string{"switch", "coding", "--plan=", "--yes"}, cli.ExitUsage, "--plan is empty"},
		{[]string{"switch", "coding", "--plan", "00000000", "--yes"}, cli.ExitFailed, "nothing was done"},
		{[]string{"switch", "coding"}, cli.ExitDenied, "no terminal"},
		{[]string{"sleep", "chat"}, cli.ExitDenied, "no terminal"},
		{[]string{"logs", "chat", "-n", "0"}, cli.ExitUsage, "at least 1"},
		{[]string{"logs", "chat", "-n", "41", "--cursor", "x"}, cli.ExitUsage, "at most 40"},
		{[]string{"logs", "chat", "-f", "-n", "1001"}, cli.ExitUsage, "at most 1000"},
		{[]string{"logs", "chat", "-f", "--cursor", "x"}, cli.ExitUsage, "no meaning"},
		{[]string{"switches", "--limit", "0"}, cli.ExitUsage, "1 to 200"},
		{[]string{"renew", "--root", t.TempDir()}, cli.ExitFailed, "Durward is not installed on this host\n  What durward up made it renews by itself, and at once with: durward cert renew"},
		{[]string{"credential", "add", "x", "--variable", "A", "--path-variable", "B"}, cli.ExitUsage, "--variable and --path-variable exclude each other\n  See: durward credential add -h"},
		{[]string{"audit", "search", "--follow", "--before", "5"}, cli.ExitUsage, "--follow and --before exclude each other"},
		{[]string{"audit", "hold", "add", "--since", "24h", "--reason", "x"}, cli.ExitUsage, "--since and --until go together"},
	} {
		got := w.run(c.args...)
		if got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%v: exit code %d, want %d, and %q in\n%s", c.args, got.code, c.code, c.want, got.err)
		}
	}
	if len(w.signed) > 0 {
		t.Errorf("%d statements were signed", len(w.signed))
	}
}

// TestSwitch: simulated, shown, signed for exactly that plan, carried out with its steps shown.
func TestSwitch(t *testing.T) {
	w := newWorld(t)
	got := w.run("switch", "coding", "--plan", strings.ToUpper(w.digest()[:8]), "--yes", "--full")
	if got.code != cli.ExitOK {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	for _, want := range []string{
		"about 1:35", "DESTRUCTIVE", "stop chat", "1/2 stopping", "2/2 loading", "5.0 s of about 1:35",
		"  start coder: /usr/bin/vllm serve as llm, port 8001, GPU 0, 20000 MiB declared\n", "Step 2, start coder, as the executor has it (sha256:",
		`"run_as": "llm"`,
	} {
		if !strings.Contains(got.err, want) {
			t.Errorf("%q is not in\n%s", want, got.err)
		}
	}
	if strings.Contains(got.err, "Step 1, stop chat") {
		t.Errorf("the whole entry of what is stopped is shown:\n%s", got.err)
	}
	tool, _ := contract.Lookup("switch_mode")
	if len(w.signed) != 1 || w.signed[0].Tool.Name != tool.Name || !strings.Contains(string(w.signed[0].Arguments), w.digest()) {
		t.Errorf("signed: %+v", w.signed)
	}
	if want := "switch coding " + w.digest(); len(w.calls) != 1 || w.calls[0] != want {
		t.Errorf("carried out: %q, want %q", w.calls, want)
	}
	// What is signed and what is shown go to standard error, so that standard output is one object.
	got = w.run("switch", "coding", "--yes", "--json")
	var answer struct {
		Status string
		Result struct{ Outcome string }
	}
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || answer.Status != "ok" || answer.Result.Outcome != "committed" {
		t.Errorf("%v\n%s", err, got.out)
	}
	if !strings.Contains(got.err, "You sign: switch_mode") || strings.Contains(got.err, "The statement that you sign") || !strings.Contains(got.err, "1/2 stopping") {
		t.Errorf("standard error is\n%s", got.err)
	}
}

// TestOwnCommandsPrintOneLineAndTheID: what a script gets of a person's own command.
func TestOwnCommandsPrintOneLineAndTheID(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sleep", "chat", "--yes"}, "✓ coding runs  ID\n"},
		{[]string{"switch", "coding", "--yes"}, "✓ coding runs  ID\n"},
		{[]string{"switch", "coding", "--yes", "--quiet"}, "ID\n"},
		{[]string{"sleep", "chat", "--yes", "-q"}, "ID\n"},
	} {
		got := w.run(c.args...)
		id := w.signed[len(w.signed)-1].Operation
		if want := strings.Replace(c.want, "ID", id, 1); got.code != cli.ExitOK || got.out != want {
			t.Errorf("%v: exit code %d, standard output\n%swant\n%s", c.args, got.code, got.out, want)
		}
		if quiet := strings.HasSuffix(c.want, "\nID\n") || c.want == "ID\n"; quiet != (got.err == "") {
			t.Errorf("%v: standard error\n%s", c.args, got.err)
		}
	}
}

// TestOneResultInEveryFormat: -o json, yaml and wide, and --quiet, of the same read; two at once are refused.
func TestOneResultInEveryFormat(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"services", "-o", "json"}, `"state": "running"`},
		{[]string{"services", "--output=yaml"}, "services:\n  - service_id: chat\n    name: Chat\n    state: running\n    model: demo-1b\n    vram_mib: 6144\n"},
		{[]string{"services", "-o", "wide"}, "SERVICE  STATE "},
		{[]string{"services", "-q"}, "chat\ncoder\n"},
		{[]string{"mode", "ls", "--quiet"}, "chatting\ncoding\n"},
		{[]string{"simulate", "coding", "-q"}, w.digest() + "\n"},
		{[]string{"service", "show", "chat", "-q"}, "chat\n"},
		{[]string{"version", "-o", "yaml"}, "version: test\n"},
	} {
		if got := w.run(c.args...); got.code != cli.ExitOK || !strings.Contains(got.out, c.want) || slices.Contains(c.args, "-q") && got.out != c.want {
			t.Errorf("%v: exit code %d, %q is not\n%s%s", c.args, got.code, c.want, got.out, got.err)
		}
	}
	if got := w.run("resume", "--json"); got.code != cli.ExitOK || got.out != "{\n  \"processes\": []\n}\n" {
		t.Errorf("resume where nothing is halted: %+v", got)
	}
	for _, args := range [][]string{{"services", "-o", "xml"}, {"services", "--json", "-q"}, {"services", "--json", "-o", "yaml"}, {"services", "-q", "-o", "wide"}} {
		if got := w.run(args...); got.code != cli.ExitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := w.run("services", "--json", "-o", "json"); got.code != cli.ExitOK {
		t.Errorf("the same twice: %+v", got)
	}
}

// TestSwitchThatFails: exit code 1, which service, why, its log, and what to do.
func TestSwitchThatFails(t *testing.T) {
	w := newWorld(t)
	for outcome, want := range map[executorv1.SwitchOutcome]string{
		executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:   "durward: rolled back: coder: the GPU's memory ran out",
		executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:      "durward: degraded: coder: the GPU's memory ran out",
		executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN: "durward: needs a human: coder: the GPU's memory ran out",
	} {
		w.mu.Lock()
		w.switched = &executorv1.SwitchModeResponse{
			ModeId: "coding", Outcome: outcome, FailedService: "coder", Cause: "the GPU's memory ran out",
			Log: "first\nCUDA out of memory\x1b[0m", NotRunning: []string{"chat"},
		}
		w.mu.Unlock()
		got := w.run("switch", "coding", "--yes")
		if got.code != cli.ExitFailed || !strings.Contains(got.err, want) {
			t.Errorf("%s: exit code %d\n%s", outcome, got.code, got.err)
		}
		for _, want := range []string{"✗ coding does not run", "should run and do not: chat", "│ CUDA out of memory\n"} {
			if !strings.Contains(got.out, want) {
				t.Errorf("%s: %q is not in\n%s", outcome, want, got.out)
			}
		}
		if got := w.run("switch", "coding", "--yes", "--json"); got.code != cli.ExitFailed || !strings.Contains(got.out, `"status": "failed"`) {
			t.Errorf("%s, --json: exit code %d\n%s", outcome, got.code, got.out)
		}
	}
}

// TestSwitchWithoutAPlan: what cannot be done is said before anything is signed.
func TestSwitchWithoutAPlan(t *testing.T) {
	w := newWorld(t)
	w.simulate.Fits, w.simulate.Reason = false, "GPU 0 has 4096 MiB too little"
	for _, args := range [][]string{{"simulate", "coding"}, {"simulate", "coding", "--json"}, {"switch", "coding", "--yes"}} {
		got := w.run(args...)
		if got.code != cli.ExitFailed || !strings.Contains(got.err, "coding cannot be switched to: GPU 0 has 4096 MiB too little") {
			t.Errorf("%v: exit code %d\n%s", args, got.code, got.err)
		}
	}
	w.simulate.Fits, w.simulate.Reason, w.simulate.Steps, w.current = true, "", nil, "coding"
	if got := w.run("switch", "coding", "--yes"); got.code != cli.ExitOK || !strings.Contains(got.out, "in this mode already") {
		t.Errorf("nothing to do: exit code %d\n%s", got.code, got.out)
	}
	// An executor that previews another plan than the one that it simulated.
	w.current, w.plan = "", []byte(`{"mode":"coding","steps":[{"action":"stop","service":"everything"}]}`)
	if got := w.run("switch", "coding", "--yes"); got.code != cli.ExitDenied || !strings.Contains(got.err, "another plan") {
		t.Errorf("another plan: exit code %d\n%s", got.code, got.err)
	}
	// One that shows a harmless program in the place of the plan's.
	lying := newWorld(t)
	lying.entries[1].Entry = []byte(strings.Replace(string(lying.entries[1].GetEntry()), "/usr/bin/vllm", "/usr/bin/true", 1))
	got := lying.run("switch", "coding", "--yes")
	if got.code != cli.ExitDenied || !strings.Contains(got.err, "does not show what the plan's steps would run") {
		t.Errorf("other entries: exit code %d\n%s", got.code, got.err)
	}
	if len(lying.signed)+len(lying.calls) > 0 {
		t.Errorf("signed %v, carried out %q", lying.signed, lying.calls)
	}
	if len(w.signed)+len(w.calls) > 0 {
		t.Errorf("signed %v, carried out %q", w.signed, w.calls)
	}
}

func TestSleep(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"sleep", "chat", "--yes"}, {"service", "sleep", "chat", "--yes"}} {
		if got := w.run(args...); got.code != cli.ExitOK || !strings.HasPrefix(got.out, "✓ coding runs  ") {
			t.Errorf("%v: exit code %d\n%s%s", args, got.code, got.out, got.err)
		}
	}
	// What has no way to sleep is refused before anything is shown or signed.
	for verb, cannot := range map[string]string{"sleep": "cannot sleep", "wake": "does not sleep"} {
		got := w.run(verb, "sleepless", "--yes")
		if got.code != cli.ExitFailed || !strings.HasPrefix(got.err, "durward: sleepless "+cannot+": its catalogue entry says no way to [r-") || len(w.signed) != 2 {
			t.Errorf("%s: exit code %d, %d signed\n%s%s", verb, got.code, len(w.signed), got.out, got.err)
		}
	}
	if got := fmt.Sprint(w.calls); got != "[sleep chat sleep chat]" {
		t.Errorf("carried out: %s", got)
	}
}

// until runs durward until what it wrote holds every text, and returns that.
func (w *world) until(t *testing.T, texts []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out lockedBuffer
	done := make(chan ran, 1)
	go func() { done <- w.runUntil(ctx, &out, args...) }()
	for missing := true; missing; {
		missing = false
		for _, text := range texts {
			missing = missing || !strings.Contains(out.String(), text)
		}
		select {
		case got := <-done:
			t.Fatalf("%v ended: exit code %d\n%s%s", args, got.code, got.out, got.err)
		case <-ctx.Done():
			t.Fatalf("%v: not all of %q in\n%s", args, texts, out.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if got := <-done; got.code != cli.ExitOK {
		t.Errorf("%v: exit code %d\n%s", args, got.code, got.err)
	}
	return out.String()
}

func TestFollowLogs(t *testing.T) {
	w := newWorld(t)
	if got := w.until(t, []string{"three\n"}, "logs", "chat", "-f", "-n", "2"); got != "one\ntwo\nthree\n" {
		t.Errorf("%q", got)
	}
	for line := range strings.Lines(w.until(t, []string{"three"}, "service", "logs", "chat", "--follow", "--json")) {
		var object struct {
			ServiceID string `json:"service_id"`
			Line      string
		}
		if err := json.Unmarshal([]byte(line), &object); err != nil || object.ServiceID != "chat" || object.Line == "" {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestWatchAsLines(t *testing.T) {
	w := newWorld(t)
	tool, _ := contract.Lookup("switch_mode")
	w.current = "chatting"
	w.running = []*vaultv1.Operation{
		{OperationId: "0123456789abcdef0123456789abcdef", State: vaultv1.OperationState_OPERATION_STATE_RUNNING, Tool: tool.Ref(), Tier: tool.Tier,
			Principal: "claude\x1b[31m", Arguments: []byte(`{"mode_id":"coding"}`)},
		{OperationId: "1123456789abcdef0123456789abcdef", State: vaultv1.OperationState_OPERATION_STATE_PENDING, Tool: tool.Ref()},
	}
	got := w.until(t, []string{
		"chat                     running", "coder                    starting",
		"GPU 0: 9216 of 24576 MiB used, 3072 foreign, 8192 claimed", "GPU 1 the GPU does not answer any more",
		"mode chatting (drifted)", ": waits for you: durward approvals", "1/2 stopping", "2/2 loading",
		`switch_mode mode_id=coding for claude\u{1B}[31m: running`,
		"stop_service service_id=chat for operator:alice: running", "stop_service service_id=chat for operator:alice: ended",
	}, "watch")
	if strings.Contains(got, "\x1b") {
		t.Errorf("escape codes in %q", got)
	}
	kinds := map[string]bool{}
	objects := w.until(t, []string{
		`"kind":"step"`, `"kind":"gpu"`, `"kind":"mode"`, `"state":"waits"`, `"state":"ended"`, `"kind":"service"`,
	}, "watch", "--json")
	for line := range strings.Lines(objects) {
		var object struct{ Kind string }
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		kinds[object.Kind] = true
	}
	for _, kind := range []string{"service", "gpu", "mode", "operation", "step"} {
		if !kinds[kind] {
			t.Errorf("no %s among %v", kind, kinds)
		}
	}
}

// TestAReadStaysAndShowsItsOwnChanges: -w of services, GPUs and modes, each without the others' lines.
func TestAReadStaysAndShowsItsOwnChanges(t *testing.T) {
	w := newWorld(t)
	w.current = "chatting"
	kinds := []string{"service", "gpu", "mode"}
	for i, args := range [][]string{{"services", "-w"}, {"gpu", "--watch"}, {"mode", "ls", "-w"}} {
		seen := w.until(t, []string{`"kind":"` + kinds[i] + `"`}, append(args, "-o", "json")...)
		for line := range strings.Lines(seen) {
			var object struct{ Kind string }
			if err := json.Unmarshal([]byte(line), &object); err != nil || object.Kind != kinds[i] {
				t.Errorf("%v: %q, %v", args, line, err)
			}
		}
	}
	if text := w.until(t, []string{"service_id: chat\n", "---\n"}, "services", "-w", "-o", "yaml"); strings.Contains(text, "{") {
		t.Errorf("documents of YAML:\n%s", text)
	}
}

// TestCompletion: ids of what is there, quickly, without a word of errors.
func TestCompletion(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ args, want string }{
		{"start", "chat"}, {"service sleep", "coder"}, {"logs", "chat"}, {"switch", "coding"}, {"mode show", "chatting"},
		{"simulate", "coding"}, {"simulate coding --start", "coder"}, {"simulate --context", "chat="}, {"model show", "durward/demo-1b"}, {"service install", "chat"},
	} {
		complete := func() ran {
			return w.run(append(append([]string{"__complete"}, strings.Fields(c.args)...), "")...)
		}
		got := complete()
		for tries := 20; tries > 0 && !strings.Contains(got.out, c.want); tries-- {
			got = complete() // a shell's line does not wait for a busy machine
		}
		if got.code != cli.ExitOK || !strings.Contains(got.out, c.want) {
			t.Errorf("%s: exit code %d\n%s%s", c.args, got.code, got.out, got.err)
		}
	}
}

// TestPrepareSaysHowToGoOn: with the installation and the mode that were prepared; plain "durward up" would start another.
func TestPrepareSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.run("up", "--prepare", "--development")
	if want := "then: durward --home " + cli.ShellWord(w.home.Dir) + " up --development\n"; got.code != cli.ExitOK || !strings.HasSuffix(got.out, want) {
		t.Errorf("%+v, want %q", got, want)
	}
}

// TestWhatIsToBeTypedNamesTheHome: a command that --home sent to one installation names none that means another.
func TestWhatIsToBeTypedNamesTheHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	durward := "durward --home " + cli.ShellWord(w.home.Dir)
	for _, home := range []string{"", w.home.Dir} {
		args, typed := []string{"simulate", "coding"}, "durward"
		if home != "" {
			args, typed = append(args, "--home", home), durward
		}
		if got := w.run(args...); got.code != cli.ExitOK || !strings.Contains(got.out, "Apply: "+typed+" switch coding --plan ") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	w.asks("start_service", `{"service_id":"chat"}`)
	if got := w.run("approvals", "--home", w.home.Dir); got.code != cli.ExitOK || !strings.Contains(got.out, durward+" approve ") || strings.Contains(got.out, "durward approve") {
		t.Errorf("%+v", got)
	}
}
