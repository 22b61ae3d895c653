package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"crypto/ed25519"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/server"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
)

func publicKey(k grant.Key) string {
	return base64.StdEncoding.EncodeToString(k.Private.Public().(ed25519.PublicKey))
}

// TestMatrix calls every RPC as every role over real mutual TLS: the contract's callers get in, nobody else.
func TestMatrix(t *testing.T) {
	w := newWorld(t)
	var methods []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("durward.executor.v1", func(fd protoreflect.FileDescriptor) bool {
		for i := range fd.Services().Len() {
			for j := range fd.Services().Get(i).Methods().Len() {
				methods = append(methods, fd.Services().Get(i).Methods().Get(j))
			}
		}
		return true
	})
	if len(methods) != 24 {
		t.Fatalf("%d RPCs, want 24: look at the matrix again", len(methods))
	}
	for number := range optionsv1.Role_name {
		role := optionsv1.Role(number)
		if role == optionsv1.Role_ROLE_UNSPECIFIED {
			continue
		}
		instance := "main"
		if role == optionsv1.Role_ROLE_EXECUTOR {
			instance = "other"
		}
		conn := w.dial(role, instance)
		for _, m := range methods {
			callers, _ := proto.GetExtension(m.Options(), optionsv1.E_Callers).([]optionsv1.Role)
			allowed := false
			for _, c := range callers {
				allowed = allowed || c == role
			}
			name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
			err := conn.Invoke(t.Context(), name, dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output()))
			refused := false
			select {
			case f := <-w.refused:
				refused = f.Code == denied
			default:
			}
			if refused == allowed {
				t.Errorf("%s as %s: refused %v, the contract allows %v (%v)", name, role, refused, allowed, err)
			}
		}
	}
	if w.driver.count() != 0 {
		t.Error("the matrix had an effect")
	}
}

func TestPreviewIsWhatTheSinkChecks(t *testing.T) {
	w := newWorld(t)
	tool, _ := contract.Lookup("start_service")
	got, err := w.control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: tool.Ref(), Arguments: []byte(`{"service_id":"alpha"}`)})
	w.must(err)
	digest := sha256.Sum256(got.GetSubject().GetEntry())
	if diff := cmp.Diff(w.ticket("alpha").grant.GetSubjectDigest(), digest[:]); diff != "" {
		t.Errorf("preview's subject is not the sink's:\n%s", diff)
	}
	if got.GetEpoch() != 1 || got.GetAudience() != w.self.String() || got.GetSubject().GetLabel() != "service alpha" {
		t.Errorf("preview is %v", got)
	}
	program, err := w.control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: tool.Ref(), Arguments: []byte(`{"service_id":"program"}`)})
	w.must(err)
	want := []string{`start program: /usr/bin/env --flag "two words" as the executor's own user, port 17450, GPU 0 (simulated), 1024 MiB declared`}
	if diff := cmp.Diff(want, program.GetPlan()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	// Nobody can approve the start of a program that nobody knows; to stop it works all the same.
	w.write(strings.Replace(catalogText, "/usr/bin/env", "/usr/bin/no-such-program", 1))
	w.must(w.source.Reload())
	_, err = w.control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: tool.Ref(), Arguments: []byte(`{"service_id":"program"}`)})
	if f := wantCode(t, err, callv1.Code_CODE_FAILED); f.Message != "program cannot be started: what it runs is missing or cannot be read" {
		t.Errorf("it says %q", f.Message)
	}
	_, err = w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("program"))), start("program"))
	wantCode(t, err, callv1.Code_CODE_FAILED)
	if w.vault.redemptions() != 0 || w.driver.count() != 0 {
		t.Error("an approval was spent on a program that cannot be read")
	}
	stop, _ := contract.Lookup("stop_service")
	stopped, err := w.control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: stop.Ref(), Arguments: []byte(`{"service_id":"program"}`)})
	w.must(err)
	if !strings.Contains(string(stopped.GetSubject().GetEntry()), `"definition_sha256":"unreadable"`) {
		t.Errorf("the entry is %s", stopped.GetSubject().GetEntry())
	}
	for name, r := range map[string]*executorv1.PreviewCallRequest{
		"not canonical":      {Tool: tool.Ref(), Arguments: []byte(`{ "service_id":"alpha"}`)},
		"unknown field":      {Tool: tool.Ref(), Arguments: []byte(`{"service":"alpha"}`)},
		"a shell":            {Tool: tool.Ref(), Arguments: []byte(`{"service_id":"a;rm -rf /"}`)},
		"a newline":          {Tool: tool.Ref(), Arguments: []byte(`{"service_id":"alpha\n"}`)},
		"unknown service":    {Tool: tool.Ref(), Arguments: []byte(`{"service_id":"gamma"}`)},
		"another definition": {Tool: &callv1.ToolRef{Name: tool.Name, Source: tool.Source, DefinitionDigest: make([]byte, 32)}, Arguments: []byte(`{"service_id":"alpha"}`)},
		"the vault's tool":   {Tool: &callv1.ToolRef{Name: "wait_operation", Source: "native", DefinitionDigest: make([]byte, 32)}, Arguments: []byte(`{}`)},
	} {
		if _, err := w.control.PreviewCall(t.Context(), r); err == nil {
			t.Errorf("%s: previewed", name)
		}
	}
}

func TestServiceInfoAndGPU(t *testing.T) {
	w := newWorld(t)
	w.driver.running["alpha"] = true
	var trailer metadata.MD
	info, err := w.operator.ServiceInfo(t.Context(), &executorv1.ServiceInfoRequest{ServiceId: proto.String("alpha")}, grpc.Trailer(&trailer))
	w.must(err)
	if d := info.GetService(); d.GetDriver() != "null (does nothing, for measuring)" || d.GetModel() != "demo-one" || d.GetVramMib() != 6144 {
		t.Errorf("info is %v", d)
	}
	if o := outcome(t, trailer); o.GetSummary() != "alpha is running" {
		t.Errorf("summary is %q", o.GetSummary())
	}
	gpus, err := w.operator.GpuStatus(t.Context(), &executorv1.GpuStatusRequest{})
	w.must(err)
	if g := gpus.GetGpus()[0]; g.GetMemoryUsedMib() != 6144 || !cmp.Equal(g.GetServices(), []string{"alpha"}) {
		t.Errorf("GPU is %v", g)
	}
	_, err = w.operator.ServiceInfo(t.Context(), &executorv1.ServiceInfoRequest{ServiceId: proto.String("--force")})
	wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)

	w.driver.running = map[string]bool{}
	w.write("version: 1\nservices: [{id: alpha, driver: \"null\"}]\n")
	w.must(w.source.Reload())
	gpus, err = w.operator.GpuStatus(t.Context(), &executorv1.GpuStatusRequest{})
	w.must(err)
	if len(gpus.GetGpus()) != 0 || gpus.GetSource() != "none found" {
		t.Errorf("without GPUs: %v", gpus)
	}
}

// TestGpumodD11AStartPassesAdmission: an approved start of what does not fit is not begun, and says what is missing.
func TestGpumodD11AStartPassesAdmission(t *testing.T) {
	w := newWorld(t)
	w.write(strings.Replace(catalogText, "vram_mib: 6144", "vram_mib: 24100", 1))
	w.must(w.source.Reload())
	var trailer metadata.MD
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha"))), start("alpha"), grpc.Trailer(&trailer))
	f := wantCode(t, err, callv1.Code_CODE_DOES_NOT_FIT)
	if want := "alpha does not fit: GPU 0 has 24576 MiB free for it, and 24100 MiB are needed with a margin of 512 MiB"; f.Message != want {
		t.Errorf("it says %q", f.Message)
	}
	if w.driver.count() != 0 || w.vault.redemptions() != 1 {
		t.Errorf("%d effects, %d redemptions", w.driver.count(), w.vault.redemptions())
	}
	if r := w.log.last(); r.GetKind() != auditv1.Kind_KIND_OUTCOME || r.GetStatus() != auditv1.Status_STATUS_ERROR || r.GetBody().GetReason() != "DOES_NOT_FIT" {
		t.Errorf("recorded is %v", r)
	}
	// What another service holds counts, and so does what one holds that is not seen any more but by its claim.
	w.write(strings.Replace(catalogText, "vram_mib: 6144", "vram_mib: 23100", 1))
	w.must(w.source.Reload())
	w.driver.running["program"] = true
	_, err = w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha"))), start("alpha"))
	wantCode(t, err, callv1.Code_CODE_DOES_NOT_FIT)
	delete(w.driver.running, "program")
	_, err = w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha"))), start("alpha"))
	w.must(err)
	if w.driver.count() != 1 {
		t.Errorf("%d effects", w.driver.count())
	}
}

// TestOneCallsStepsAreTold: whoever watches the operation hears of its phases.
func TestOneCallsStepsAreTold(t *testing.T) {
	w := newWorld(t)
	ticket := w.ticket("program")
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(ticket)), start("program"))
	w.must(err)
	var phases []string
	w.must(w.hub.Watch(t.Context(), ticket.grant.GetOperationId(), func(s progress.Step) error {
		phases = append(phases, fmt.Sprintf("%d/%d %s %s %v", s.Number, s.Of, s.Phase, s.Service, s.Ended))
		return nil
	}))
	if diff := cmp.Diff([]string{"1/2 start program true", "2/2 ready program true"}, phases); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestACatalogThatDropsARunningServiceIsNotAdopted(t *testing.T) {
	w := newWorld(t)
	w.driver.running["beta"] = true
	w.write("version: 1\nservices: [{id: alpha, driver: \"null\"}]\n")
	if err := w.source.Reload(); err == nil || !strings.Contains(err.Error(), `"beta" runs`) {
		t.Errorf("reload: %v", err)
	}
	if _, ok := w.source.Current().Lookup("beta"); !ok {
		t.Error("the running service cannot be stopped any more")
	}
}

// left is a driver that knows one program of an earlier executor.
type left struct{ *effects }

func (left) Status(s *catalog.Service) driver.Status {
	if s.ID == "program" {
		return driver.Status{State: driver.Running, PID: 4711}
	}
	return driver.Status{State: driver.Stopped}
}

// A service whose entry became wrong while no executor ran is disabled at the start, and its program runs on: the operator is told of it.
func TestWhatADisabledEntryLeftRunningIsTold(t *testing.T) {
	w := newWorld(t)
	w.write(strings.ReplaceAll(catalogText, `port: 17450, gpus: [0]`, `port: 17450, gpus: [9]`) + "  - {id: other, name: Other, driver: process, argv: [relative/path]}\n")
	source, err := catalog.Open(w.file, catalog.Options{Development: true, Lenient: true}, platformtest.Logger())
	w.must(err)
	t.Cleanup(source.Close)
	control := server.NewControl(server.ControlConfig{
		Services: service.New(service.Config{Catalog: source.Current, Drivers: map[string]func() service.Driver{catalog.DriverProcess: service.Is(left{w.driver}), catalog.DriverNull: service.Is(w.driver)}}),
		GPUs:     w.gpus, Modes: w.modes, Sink: w.sink(),
	})
	status, err := control.GetStatus(t.Context(), &executorv1.GetStatusRequest{})
	w.must(err)
	got := map[string]bool{}
	for _, d := range status.GetDisabled() {
		got[d.GetId()] = strings.HasPrefix(d.GetProblem(), "its program (pid 4711) still runs")
	}
	if diff := cmp.Diff(map[string]bool{"program": true, "other": false}, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%v", diff, status.GetDisabled())
	}
}

// crashAt is set in a child of the test below: it spends a key as a sink does and is killed before any outcome.
const crashAt = "DURWARD_TEST_CRASH_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashAt); dir != "" {
		s, err := store.Open(context.Background(), dir)
		if err == nil {
			err = s.Spend(context.Background(), interrupted())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

const crashedOperation = "00112233445566778899aabbccddeeff"

func interrupted() *sink.Spend {
	digest := contract.Digest([]byte(`{"service_id":"alpha"}`))
	return &sink.Spend{
		Key: crashedOperation + "/1", Operation: crashedOperation, Use: 1, Tool: "start_service", Arguments: []byte(`{"service_id":"alpha"}`),
		ArgumentsDigest: digest[:], RequestID: "r-crash", Principal: "claude", Session: "s-test", Channel: callv1.Channel_CHANNEL_API,
		At: time.Now(), Until: time.Now().Add(time.Hour), Statement: &sink.Use{Digest: [32]byte{1}, Limit: 1, Until: time.Now().Add(time.Hour)},
	}
}

func TestWhatWasInterruptedIsFoundOutAndSaid(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), crashAt+"="+dir)
	if out, err := child.CombinedOutput(); err == nil || child.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v %s", err, out)
	}
	left, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	w := newWorld(t, func(c *sink.Config) { c.Store = left })
	w.driver.running["alpha"] = true
	w.must(w.authority.Recover(t.Context(), server.Subjects{Services: w.services, Modes: w.modes}))
	r := w.log.last()
	if r.GetKind() != auditv1.Kind_KIND_RECOVERED || r.GetStatus() != auditv1.Status_STATUS_UNKNOWN || r.GetRequestId() != "r-crash" ||
		r.GetBody().GetSummary() != "unknown: found running" {
		t.Errorf("record is %v", r)
	}
	tk := w.ticket("alpha")
	tk.grant.OperationId, tk.statement.Operation = crashedOperation, crashedOperation
	ctx := with(t.Context(), rpc.MetadataGrant, w.sign(tk))
	_, err = w.gateway.StartService(ctx, start("alpha"))
	if f := wantCode(t, err, callv1.Code_CODE_UNKNOWN_OUTCOME); !strings.HasSuffix(f.Message, "found running") {
		t.Errorf("who asks again hears %q", f.Message)
	}
	if w.driver.count() != 0 || w.vault.redemptions() != 0 {
		t.Error("a restart acted on what was interrupted")
	}
	// The vault is told in the background.
	ctx, stop := context.WithCancel(t.Context())
	go w.authority.Run(ctx)
	defer stop()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) { // no event: it is settled after the vault has answered
		n, err := w.authority.Unsettled(t.Context())
		w.must(err)
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the interrupted call was not settled")
		}
	}
	w.vault.mu.Lock()
	defer w.vault.mu.Unlock()
	if ok, told := w.vault.settled[crashedOperation]; !told || ok {
		t.Errorf("the vault was told %v, %v", told, ok)
	}
}

// TestPreviewOfASwitchBringsTheEntries: whoever approves sees what each digest of the plan stands for.
func TestPreviewOfASwitchBringsTheEntries(t *testing.T) {
	w := newHost(t)
	tool, _ := contract.Lookup("switch_mode")
	arguments, err := contract.Canonical(switchTo("small", w.plan("small")))
	w.must(err)
	preview, err := w.control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: tool.Ref(), Arguments: arguments})
	w.must(err)
	var labels []string
	for _, e := range preview.GetEntries() {
		labels = append(labels, e.GetLabel())
		digest := canonical.Digest(e.GetEntry())
		if want := fmt.Sprintf(`"entry_sha256":"%x"`, digest); !strings.Contains(string(preview.GetSubject().GetEntry()), want) {
			t.Errorf("the plan has no %s for %s", want, e.GetEntry())
		}
	}
	if diff := cmp.Diff([]string{"service alpha", "service beta"}, labels); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// TestAPreviewShowsTheFitNow: whoever approves a start sees what the start's own check would answer, and what would make room.
func TestAPreviewShowsTheFitNow(t *testing.T) {
	w := newWorld(t)
	w.write(strings.Replace(catalogText, "  - {id: beta", `  - {id: large, name: Large, driver: "null", gpus: [0], vram_mib: 20000}
  - {id: needy, name: Needy, driver: "null", depends_on: [beta]}
  - {id: beta`, 1))
	w.must(w.source.Reload())
	preview := func(tool, service string) *executorv1.PreviewCallResponse {
		t.Helper()
		found, _ := contract.Lookup(tool)
		got, err := w.control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: found.Ref(), Arguments: []byte(`{"service_id":"` + service + `"}`)})
		w.must(err)
		return got
	}
	before := preview("start_service", "large")
	fit := before.GetFit()
	if !fit.GetFits() || fit.GetReason() != "" || len(fit.GetGpus()) != 1 || fit.GetGpus()[0].GetAfterMib() != 20000 || fit.GetNext() != nil {
		t.Errorf("an empty GPU: %v", fit)
	}
	if fit := preview("start_service", "needy").GetFit(); !fit.GetBlocked() || fit.GetReason() != "needy was not started: it depends on beta, which does not run" {
		t.Errorf("what cannot be started for another reason: %v", fit)
	}
	if fit := preview("stop_service", "large").GetFit(); fit != nil {
		t.Errorf("a stop: %v", fit)
	}

	w.driver.running["alpha"] = true
	w.gpus.Read(t.Context())
	after := preview("start_service", "large")
	fit = after.GetFit()
	service, _ := w.services.Catalog().Lookup("large")
	verdict := w.services.Admissible(t.Context(), service)
	if f := wantCode(t, verdict, callv1.Code_CODE_DOES_NOT_FIT); fit.GetFits() || fit.GetBlocked() || fit.GetReason() != f.Message {
		t.Errorf("a full GPU: %v, and a start would say %v", fit, verdict)
	}
	stops := false
	for _, alternative := range fit.GetAlternatives() {
		for _, change := range alternative.GetChanges() {
			stops = stops || change.GetKind() == executorv1.ChangeKind_CHANGE_KIND_STOP && change.GetServiceId() == "alpha"
		}
	}
	if !stops {
		t.Errorf("what would make room is not said: %v", fit.GetAlternatives())
	}
	if !proto.Equal(before.GetSubject(), after.GetSubject()) || !cmp.Equal(before.GetPlan(), after.GetPlan()) {
		t.Error("what is signed depends on what fits")
	}
	if fit := preview("start_service", "alpha").GetFit(); fit != nil {
		t.Errorf("what runs already: %v", fit)
	}
}
