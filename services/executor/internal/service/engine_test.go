package service_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/process"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/gpu/smi"
	"durward.internal/services/executor/internal/health"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest/input"
)

// stub builds the stand-in for a model server and the one for nvidia-smi once, and returns their folder.
var stub = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "durward-stub-")
	if err != nil {
		return "", err
	}
	stubs = dir
	cmd := exec.Command("go", "build", "-mod=readonly", "-o", dir+"/", "./engine/durward-engine", "./fakegpu/nvidia-smi")
	cmd.Dir = "../../../../deploy/e2e"
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the stub engine: %w\n%s", err, out)
	}
	return dir, nil
})

// stubs is the folder that stub made, if it did.
var stubs string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == process.KeepLog {
		os.Exit(process.KeepLogMain(os.Args[2:]))
	}
	code := m.Run()
	if stubs != "" {
		// The result of the tests is what the exit status says.
		_ = os.RemoveAll(stubs)
	}
	os.Exit(code)
}

// box is a host with two GPUs of files, real programs, the real driver and the real engine client.
type box struct {
	*service.Manager
	t      *testing.T
	dir    string
	source *catalog.Catalog
	gpus   *gpu.Monitor
}

// newBox makes one whose catalog is a service "chat" with these lines and these flags of the stub engine.
func newBox(t *testing.T, lines, flags string) (*box, *catalog.Service) {
	t.Helper()
	input.Outside(t)
	bin, err := stub()
	must(t, err)
	b := &box{t: t, dir: t.TempDir()}
	fake := filepath.Join(b.dir, "gpu")
	b.write("gpu/gpus", "GPU-00000000-0000-0000-0000-000000000000 One 24000 400\nGPU-00000000-0000-0000-0000-000000000001 Two 24000 400\n")
	must(t, os.MkdirAll(filepath.Join(fake, "alloc"), 0o755))
	// The executor gives nvidia-smi no variable of its own.
	b.write("nvidia-smi", fmt.Sprintf("#!/bin/sh\nDURWARD_FAKE_GPU='%s' exec '%s' \"$@\"\n", fake, filepath.Join(bin, "nvidia-smi")))
	must(t, os.Chmod(b.path("nvidia-smi"), 0o755))
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	argv := fmt.Sprintf("%s, -port, %q, -name, chat, -gpus, \"0,1\", -vram, \"8000\", -record, %q", filepath.Join(bin, "durward-engine"), fmt.Sprint(port), b.path("record"))
	for flag := range strings.FieldsSeq(flags) {
		argv += fmt.Sprintf(", %q", flag)
	}
	b.source, err = catalog.Parse("c.yaml", fmt.Appendf(nil, `version: 1
gpus: [{index: 0, name: One}, {index: 1, name: Two}]
models: [{id: stub}]
services:
  - id: chat
    driver: process
    argv: [%s]
    environment: {DURWARD_FAKE_GPU: %q}
    port: %d
    health: {interval_s: 1}
    openai: true
    model: stub
    gpus: [0, 1]
    vram_mib: 8000
    stop_timeout_s: 2
%s`, argv, fake, port, lines), catalog.Options{Development: true})
	must(t, err)
	d, err := process.New(process.Config{Dir: b.dir, Log: slog.New(slog.DiscardHandler), Development: true})
	must(t, err)
	t.Cleanup(d.Close)
	measured, err := smi.New(b.path("nvidia-smi"))
	must(t, err)
	known := func() *catalog.Catalog { return b.source }
	b.gpus = gpu.New(gpu.Config{Source: measured, Catalog: known, Logger: slog.New(slog.DiscardHandler)})
	b.Manager = service.New(service.Config{
		Catalog: known, Drivers: map[string]func() service.Driver{"process": service.Is(d)}, Health: health.New(), Engine: engine.New(), GPUs: b.gpus,
		MarginMiB: 100,
		Admit: func(ctx context.Context, s *catalog.Service) error {
			return capacity.Admit(capacity.Declared{}, b.gpus.Read(ctx), s, 100)
		},
		Confirm: func(_ context.Context, begin func()) error { begin(); return nil },
		Logger:  slog.New(slog.DiscardHandler),
	})
	b.gpus.Claimed(b.Claims)
	s, _ := b.source.Lookup("chat")
	// It may not run, or its entry may be one that is refused.
	t.Cleanup(func() { _, _ = b.Stop(context.Background(), s) })
	return b, s
}

func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

func (b *box) write(name, text string) {
	b.t.Helper()
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// posts are what the engine was asked to do, in order.
func (b *box) posts() string {
	b.t.Helper()
	raw, err := os.ReadFile(b.path("record"))
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if call, ok := strings.CutPrefix(strings.TrimSpace(line), "POST "); ok {
			out = append(out, call)
		}
	}
	return strings.Join(out, " ")
}

// used is what is measured on the two GPUs.
func (b *box) used() [2]uint32 {
	b.t.Helper()
	h := b.gpus.Read(b.t.Context())
	if len(h.GPUs) != 2 || h.GPUs[0].Problem != "" {
		b.t.Fatalf("measured: %+v", h)
	}
	return [2]uint32{h.GPUs[0].Used, h.GPUs[1].Used}
}

// says is what the engine answers to a request.
func (b *box) says(s *catalog.Service) string {
	res, err := http.Post(s.BaseURL+"/completions", "application/json", strings.NewReader(`{"model":"stub","max_tokens":1}`))
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		return res.Status
	}
	if strings.Contains(string(body), `"text":"sense"`) {
		return "sense"
	}
	return "nonsense"
}

// TestEnginesSleepAndWake: each way of sleeping, over the real client, with memory that is measured and an engine that answers
// nonsense unless it is woken as its documentation says.
func TestEnginesSleepAndWake(t *testing.T) {
	for sleep, c := range map[string]struct{ flags, asleep, awake string }{
		"vllm-l1": {"-api vllm -sleep-mib 600", "/sleep?level=1&mode=wait", "/wake_up"},
		"vllm-l2": {
			"-api vllm -sleep-mib 600", "/sleep?level=2&mode=wait",
			"/wake_up?tags=weights /collective_rpc /wake_up?tags=kv_cache /reset_prefix_cache",
		},
		"llama-router": {"-api llama", "/models/unload", "/models/load"},
	} {
		t.Run(sleep, func(t *testing.T) {
			t.Parallel()
			b, s := newBox(t, "    sleep: "+sleep+"\n    sleep_mib: 600\n", c.flags)
			if changed, err := b.Start(t.Context(), s); !changed || err != nil {
				t.Fatalf("start: %v, %v", changed, err)
			}
			if used := b.used(); used != [2]uint32{4000, 4000} || b.says(s) != "sense" || b.Measured(s) != 8000 {
				t.Errorf("started: used %v, %d measured, it says %s", used, b.Measured(s), b.says(s))
			}
			before := b.posts()
			if changed, err := b.SleepService(t.Context(), s); !changed || err != nil {
				t.Fatalf("sleep: %v, %v", changed, err)
			}
			if used := b.used(); used[0] > 300 || used[1] > 300 || b.says(s) == "sense" || !b.Status(s).Asleep() {
				t.Errorf("asleep: used %v, %v, it says %s", used, b.Status(s), b.says(s))
			}
			if changed, err := b.SleepService(t.Context(), s); changed || err != nil {
				t.Errorf("sleep again: %v, %v", changed, err)
			}
			if changed, err := b.WakeService(t.Context(), s); !changed || err != nil {
				t.Fatalf("wake: %v, %v", changed, err)
			}
			if used := b.used(); used != [2]uint32{4000, 4000} || b.says(s) != "sense" {
				t.Errorf("awake: used %v, it says %s", used, b.says(s))
			}
			const asked = " /v1/completions" // whether it answers
			want := before + " " + c.asleep + asked + " " + c.awake + " /v1/completions" + asked
			if got := b.posts(); got != want && got != strings.Replace(want, c.asleep+asked, c.asleep+asked+asked, 1) {
				t.Errorf("it was asked %s\nwant %s", got, want)
			}
			if changed, err := b.Stop(t.Context(), s); !changed || err != nil || b.used() != [2]uint32{} {
				t.Errorf("stop: %v, %v, used %v", changed, err, b.used())
			}
		})
	}
}

// TestASleepThatIsNone: an engine that lies, or leaks, is seen to, still serves nobody, and can be woken or stopped.
func TestASleepThatIsNone(t *testing.T) {
	for _, flags := range []string{"-lying-sleep", "-leak 900"} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			b, s := newBox(t, "    sleep: vllm-l1\n    sleep_mib: 600\n", "-api vllm -sleep-mib 600 "+flags)
			if _, err := b.Start(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			_, err := b.SleepService(t.Context(), s)
			if service.Cause(err) != driver.CauseStillHeld || b.Status(s).Cause != driver.CauseStillHeld || !b.Status(s).Running() {
				t.Errorf("%v, %+v", err, b.Status(s))
			}
			if changed, err := b.WakeService(t.Context(), s); !changed || err != nil || b.says(s) != "sense" {
				t.Errorf("wake: %v, %v", changed, err)
			}
		})
	}
}

// TestEnginesThatFail: at every step, with the cause that its last words tell; what was started is stopped, and no memory is held.
func TestEnginesThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		lines, flags string
		sentence     string
	}{
		"out of memory":         {"", "-api vllm -load-time 100ms -oom-at 4000", "chat did not start: the GPU's memory ran out"},
		"crash while loading":   {"", "-api vllm -load-time 100ms -crash-at load", "chat did not start: the program ended by itself"},
		"crash when ready":      {"", "-api vllm -crash-at ready", "chat did not start: the program ended by itself"},
		"crash at a token":      {"", "-api openai -crash-at request", "chat did not start: the program ended by itself"},
		"hangs, not listening":  {"    stall_timeout_s: 3\n", "-api vllm -stall", "chat did not start: the service made no progress while it was starting"},
		"hangs, answering":      {"    stall_timeout_s: 3\n", "-api openai -stall", "chat did not start: the service made no progress while it was starting"},
		"slow":                  {"    start_timeout_s: 2\n", "-api openai -load-time 1m", "chat did not start: the service did not become healthy in time"},
		"another model":         {"", "-api openai -model other", "chat did not start: the service answers and does not serve its model"},
		"fails at a token":      {"    start_timeout_s: 2\n", "-api openai -fail-at request", "chat did not start: the service did not become healthy in time"},
		"the model of a router": {"    sleep: llama-router\n", "-api llama -fail-at wake", "chat did not start: the service answers and does not serve its model"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, s := newBox(t, c.lines, c.flags)
			_, err := b.Start(t.Context(), s)
			f := fault.From(err)
			if err == nil || f.Code != callv1.Code_CODE_FAILED || f.Message != c.sentence {
				t.Errorf("%v, want %q", err, c.sentence)
			}
			if v := b.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_FAILED || b.used() != [2]uint32{} {
				t.Errorf("then it is %+v, used %v", v, b.used())
			}
			if page, err := b.Logs(t.Context(), s, "", 20); err != nil || len(page.Lines) == 0 {
				t.Errorf("its last words: %v, %v", page, err)
			}
		})
	}
}

// TestASlowLoadIsNoStall: an engine that loads for longer than stall_timeout_s shows by its memory and its log that it does.
func TestASlowLoadIsNoStall(t *testing.T) {
	t.Parallel()
	b, s := newBox(t, "    stall_timeout_s: 3\n", "-api vllm -load-time 5s")
	if changed, err := b.Start(t.Context(), s); !changed || err != nil {
		t.Errorf("%v, %v", changed, err)
	}
}

// TestAStrangersMemoryCounts: what a program took that is no service is not there to be promised.
func TestAStrangersMemoryCounts(t *testing.T) {
	t.Parallel()
	b, s := newBox(t, "", "-api openai")
	bin, err := stub()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	grab := exec.CommandContext(ctx, filepath.Join(bin, "durward-engine"), "grab", "-fake-gpu", b.path("gpu"), "-mib", "20000", "-gpu", "1")
	out, err := grab.StdoutPipe()
	must(t, err)
	must(t, grab.Start())
	if _, err := io.ReadFull(out, make([]byte, len("taken\n"))); err != nil {
		t.Fatal(err)
	}
	_, err = b.Start(t.Context(), s)
	const want = "chat does not fit: GPU 1 has 3600 MiB free for it, and 4000 MiB are needed with a margin of 100 MiB; " +
		"programs that are no service of this host hold 20000 MiB"
	if f := fault.From(err); err == nil || f.Code != callv1.Code_CODE_DOES_NOT_FIT || f.Message != want {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(b.path("record")); err == nil {
		t.Error("it was started")
	}
	cancel()
	// A cancelled command ends with an error.
	_ = grab.Wait()
	if changed, err := b.Start(t.Context(), s); !changed || err != nil {
		t.Errorf("once the stranger is gone: %v, %v", changed, err)
	}
}

// TestRequestsInFlightEndFirst: a stop waits for them.
func TestRequestsInFlightEndFirst(t *testing.T) {
	t.Parallel()
	b, s := newBox(t, "    sleep: vllm-l1\n", "-api vllm -token-time 20ms")
	if _, err := b.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	answered := make(chan string, 1)
	go func() {
		res, err := http.Post(s.BaseURL+"/completions", "application/json", strings.NewReader(`{"model":"stub","max_tokens":100}`))
		if err != nil {
			answered <- err.Error()
			return
		}
		_ = res.Body.Close()
		answered <- res.Status
	}()
	for client, deadline := engine.New(), time.Now().Add(10*time.Second); client.Usage(t.Context(), s).Requests == 0; time.Sleep(5 * time.Millisecond) { // no event: another process is asked
		if time.Now().After(deadline) {
			t.Fatal("no request is seen")
		}
	}
	if changed, err := b.Stop(t.Context(), s); !changed || err != nil {
		t.Errorf("%v, %v", changed, err)
	}
	if got := <-answered; got != "200 OK" {
		t.Errorf("the request in flight ended with %s", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
