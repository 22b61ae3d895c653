package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/rpc"
)

// dreamer is an engine that does as it is told.
type dreamer struct{ asleep bool }

func (d *dreamer) Sleep(context.Context, *catalog.Service) ([]string, error) {
	d.asleep = true
	return nil, nil
}

func (d *dreamer) Wake(context.Context, *catalog.Service, []string) error {
	d.asleep = false
	return nil
}

func (d *dreamer) Asleep(context.Context, *catalog.Service) (bool, error)         { return d.asleep, nil }
func (*dreamer) Warm(context.Context, *catalog.Service) error                     { return nil }
func (*dreamer) Usage(context.Context, *catalog.Service) engine.Usage             { return engine.Usage{} }
func (*dreamer) Drain(context.Context, *catalog.Service, time.Duration) (ok bool) { return true }

const manyServices = `
version: 1
gpus: [{index: 0, name: Test GPU, memory_mib: 24576, simulated: true}]
containers: {mounts: [/srv/models]}
services:
  - {id: unit, driver: systemd, unit: "chat@one.service", port: 17451, network: none}
  - id: box
    driver: docker
    container:
      image: "example.org/vllm@sha256:0000000000000000000000000000000000000000000000000000000000000000"
      command: [serve, "two words"]
      user: "1000"
      port: 8000
      mounts: [{source: /srv/models, target: /models}, {source: /srv/models/cache, target: /cache, writable: true}]
    port: 17452
  - {id: sleepy, driver: process, argv: [/usr/bin/env], port: 17453, gpus: [0], vram_mib: 8192, sleep: vllm-l1, sleep_mib: 512, pin: true}
  - {id: front, driver: process, argv: [/usr/bin/env], port: 17454, depends_on: [sleepy]}
`

func (w *world) preview(name, id string) []string {
	w.t.Helper()
	tool, _ := contract.Lookup(name)
	got, err := w.control.PreviewCall(w.t.Context(), &executorv1.PreviewCallRequest{Tool: tool.Ref(), Arguments: []byte(`{"service_id":"` + id + `"}`)})
	w.must(err)
	return got.GetPlan()
}

// TestPlansSayWhatWouldRun: whoever approves sees the command, the mounts and what nothing enforces.
func TestPlansSayWhatWouldRun(t *testing.T) {
	w := newWorld(t)
	w.write(manyServices)
	w.must(w.source.Reload())
	const sleepy = "/usr/bin/env as the executor's own user, port 17453, GPU 0 (simulated), 8192 MiB declared"
	for _, c := range []struct {
		tool, id string
		running  bool
		want     []string
	}{
		{"start_service", "unit", false, []string{
			"start unit: unit chat@one.service, port 17451",
			"warning: the catalogue expects no more of the network than none, and nothing enforces that",
		}},
		{"start_service", "box", false, []string{
			`start box: container of example.org/vllm@sha256:` + strings.Repeat("0", 64) + ` as user 1000, command serve "two words", ` +
				`mounts /srv/models at /models read-only, mounts /srv/models/cache at /cache WRITABLE, port 17452`,
		}},
		{"stop_service", "sleepy", false, []string{
			"sleepy is not running: nothing changes", "stop sleepy: requests in flight end with it; it is killed after 10 s",
		}},
		{"sleep_service", "sleepy", true, []string{
			"put sleepy to sleep: vllm-l1, 8192 MiB awake and 512 MiB asleep as declared; requests in flight end",
			"front depends on it and runs on without it",
		}},
		{"wake_service", "sleepy", true, []string{"sleepy is running: nothing changes unless it sleeps by then", "wake sleepy: " + sleepy}},
	} {
		w.driver.mu.Lock()
		w.driver.running = map[string]bool{"sleepy": c.running, "front": c.running}
		w.driver.mu.Unlock()
		if diff := cmp.Diff(c.want, w.preview(c.tool, c.id)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.tool, c.id, diff)
		}
	}
	w.driver.running, w.driver.unknown = nil, true
	if got := w.preview("stop_service", "sleepy"); got[0] != "nobody can tell whether sleepy runs" {
		t.Errorf("while its manager does not answer: %q", got)
	}
}

// TestSleepAndWake: the two tools under approval, from the running service to the one that serves again.
func TestSleepAndWake(t *testing.T) {
	d := &dreamer{}
	w := newWorldWith(t, d)
	w.write(manyServices)
	w.must(w.source.Reload())
	sleep := &executorv1.SleepServiceRequest{ServiceId: proto.String("sleepy")}
	wake := &executorv1.WakeServiceRequest{ServiceId: proto.String("sleepy")}
	var trailer metadata.MD
	approved := func(name string, request proto.Message) (context.Context, grpc.CallOption) {
		trailer = nil
		return with(t.Context(), rpc.MetadataGrant, w.sign(w.ticketFor(name, request))), grpc.Trailer(&trailer)
	}

	ctx, into := approved("sleep_service", sleep)
	_, err := w.gateway.SleepService(ctx, sleep, into)
	wantCode(t, err, callv1.Code_CODE_CONFLICT)

	w.driver.running = map[string]bool{"sleepy": true, "front": true}
	ctx, into = approved("sleep_service", sleep)
	slept, err := w.gateway.SleepService(ctx, sleep, into)
	w.must(err)
	if s := slept.GetService(); !slept.GetChanged() || s.GetState() != executorv1.ServiceState_SERVICE_STATE_SLEEPING || s.GetSleep() != "vllm-l1" || !s.GetPinned() {
		t.Errorf("asleep: %v", slept)
	}
	o := outcome(t, trailer)
	if diff := cmp.Diff([]string{"still running and dependent on sleepy: front"}, o.GetWarnings()); diff != "" || o.GetSummary() != "sleepy is sleeping" {
		t.Errorf("%q, warnings (-want +got):\n%s", o.GetSummary(), diff)
	}
	if plan := w.preview("start_service", "sleepy"); !strings.HasPrefix(plan[0], "sleepy sleeps and is woken: ") {
		t.Errorf("to start it would be: %v", plan)
	}

	ctx, into = approved("sleep_service", sleep)
	slept, err = w.gateway.SleepService(ctx, sleep, into)
	w.must(err)
	if slept.GetChanged() || !cmp.Equal(outcome(t, trailer).GetWarnings()[:1], []string{"sleepy slept already; nothing was changed"}) {
		t.Errorf("again: %v, %v", slept.GetChanged(), outcome(t, trailer).GetWarnings())
	}

	ctx, into = approved("wake_service", wake)
	woken, err := w.gateway.WakeService(ctx, wake, into)
	w.must(err)
	if !woken.GetChanged() || woken.GetService().GetState() != executorv1.ServiceState_SERVICE_STATE_RUNNING || d.asleep {
		t.Errorf("woken: %v", woken)
	}
	if w.driver.count() != 0 {
		t.Error("a program was started or stopped")
	}
}
