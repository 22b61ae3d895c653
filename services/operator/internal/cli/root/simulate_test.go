package root

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/platformtest/testfile"
)

// Of plans.
const (
	stop  = executorv1.PlanAction_PLAN_ACTION_STOP
	sleep = executorv1.PlanAction_PLAN_ACTION_SLEEP
	start = executorv1.PlanAction_PLAN_ACTION_START
	wake  = executorv1.PlanAction_PLAN_ACTION_WAKE
)

func oneStep(action executorv1.PlanAction, id string, s uint32) *executorv1.PlanStep {
	return &executorv1.PlanStep{Action: action, ServiceId: id, ExpectedS: s}
}

func oneChange(kind executorv1.ChangeKind, id, from, to string) *executorv1.Change {
	return &executorv1.Change{Kind: kind, ServiceId: id, From: from, To: to}
}

// otherWays are alternatives of every kind; the numbers of the first two begin alike.
func otherWays(first, second string) []*executorv1.Alternative {
	return []*executorv1.Alternative{
		{Changes: []*executorv1.Change{oneChange(executorv1.ChangeKind_CHANGE_KIND_SLEEP, "chat-70b", "", "")}, HostMib: 41 << 10, ExpectedS: 4, PlanDigest: first},
		{Changes: []*executorv1.Change{oneChange(executorv1.ChangeKind_CHANGE_KIND_KEEP, "embed", "", ""), oneChange(executorv1.ChangeKind_CHANGE_KIND_STOP, "chat-70b", "", "")},
			ExpectedS: 90, PlanDigest: second},
		{Changes: []*executorv1.Change{oneChange(executorv1.ChangeKind_CHANGE_KIND_CONTEXT, "coder", "32768", "16384"), oneChange(executorv1.ChangeKind_CHANGE_KIND_UTILISATION, "vl", "0.90", "0.80")}},
		{Changes: []*executorv1.Change{oneChange(executorv1.ChangeKind_CHANGE_KIND_GPU, "coder", "0", "1")}},
		{Changes: []*executorv1.Change{oneChange(executorv1.ChangeKind_CHANGE_KIND_SPLIT, "unit-made", "0", "0,1")}},
		{Changes: []*executorv1.Change{oneChange(executorv1.ChangeKind_CHANGE_KIND_CONTEXT, "unit-made", "8192", "4096"), oneChange(executorv1.ChangeKind_CHANGE_KIND_CONTEXT, "extra", "8192", "4096")}},
	}
}

const simulatedCatalog = `version: 1
services:
  - id: coder
    driver: process
    argv: [llama-server, --ctx-size, "8192",
      -m, /m.gguf,
      -c, "32768"]
    gpus: [0]
  - id: vl
    driver: docker
    container:
      image: vllm/vllm-openai
      command:
        - --model=x
        - --gpu-memory-utilization=0.90
  - id: unit-made
    driver: systemd
    unit: llama.service
    gpus:
      - 0
  - id: extra
    driver: process
    argv: [ollama, serve]
    extra_config:
      context_size: 8192
`

// TestSimulateShows is what people see, whole.
func TestSimulateShows(t *testing.T) {
	w := newWorld(t)
	testfile.Write(t, filepath.Join(w.home.Dir, "config", "catalogue.yaml"), simulatedCatalog)
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	two := []*executorv1.GpuForecast{
		{Index: 0, NowMib: 22630, AfterMib: 19866, FreeMib: 4710, TotalMib: 24576, Source: "measured"},
		{Index: 1, NowMib: 22323, AfterMib: 614, FreeMib: 23962, TotalMib: 24576, Source: "measured"},
	}
	mode := []string{"coding"}
	for _, c := range []struct {
		name string
		args []string
		plan *executorv1.SimulateModeResponse
		code int
		want string
	}{
		{"it fits", mode, &executorv1.SimulateModeResponse{
			ModeId: "coding", Fits: true, PlanDigest: a, Gpus: two, Steps: []*executorv1.PlanStep{oneStep(stop, "chat-70b", 0), oneStep(start, "qwen3-32b", 50)},
			Alternatives: otherWays(b, "")[:1], Needs: []*executorv1.ServiceNeed{{ServiceId: "qwen3-32b", NeedMib: 19866, Source: "measured"}},
		}, cli.ExitOK, `FITS after stopping chat-70b
GPU    now  after   free  total  source    GiB afterwards
0     22.1   19.4    4.6   24.0  measured  ████████████████████████······
1     21.8    0.6   23.4   24.0  measured  █·····························
stop chat-70b · start qwen3-32b (~50 s)
Instead: 1) sleep chat-70b (host RAM +41.0 GiB, ~4 s)  plan bbbbbbbbbbbb
Apply: durward switch coding --plan aaaaaaaaaaaa
`},
		{"it does not fit, and what takes a change of the catalogue says where", mode, &executorv1.SimulateModeResponse{
			ModeId: "coding", Reason: "it does not fit: GPU 0 has 4096 MiB free for it, and 7270 MiB are needed with a margin of 512 MiB", CutOff: true,
			Gpus:  []*executorv1.GpuForecast{{Index: 0, NowMib: 20480, AfterMib: 27000, TotalMib: 24576, ForeignMib: 2048, Source: "estimated"}},
			Steps: []*executorv1.PlanStep{oneStep(start, "coder", 0)}, Alternatives: otherWays(a, b),
			Needs: []*executorv1.ServiceNeed{{ServiceId: "coder", NeedMib: 7270, Source: "estimated", Context: 32768, KvTokens: 41000}, {ServiceId: "embed", Source: "unknown"},
				{ServiceId: "sure", NeedMib: 1024, Source: "declared"}},
		}, cli.ExitFailed, `DOES NOT FIT: GPU 0 has 4096 MiB free for it, and 7270 MiB are needed with a margin of 512 MiB
GPU    now  after   free  foreign  total  source     GiB afterwards
0     20.0   26.4    0.0      2.0   24.0  estimated  ██████████████████████████████
start coder
coder needs 7.1 GiB, estimated at 32768 tokens of context; its cache holds 41000
embed: nobody knows what it needs, so it counts as 0; declare its vram_mib, or give its model a card or a file
Instead: 1) sleep chat-70b (host RAM +41.0 GiB, ~4 s)  plan aaaaaaaaaaaa
         2) keep embed, stop chat-70b (~1:30)  plan bbbbbbbbbbbb
         3) coder with a context of 16384 instead of 32768, vl with a share of the GPU of 0.80 instead of 0.90
            change catalogue.yaml:7: -c 16384
            change catalogue.yaml:15: --gpu-memory-utilization=0.80
         4) coder on GPU 1 instead of 0
            change catalogue.yaml:8: gpus: [1]
         5) unit-made split over GPUs 0,1 instead of 0
            change catalogue.yaml:20: gpus: [0, 1], and its engine's tensor parallel size to 2
         6) unit-made with a context of 4096 instead of 8192, extra with a context of 4096 instead of 8192
            change catalogue.yaml:18: the context length in the command line of llama.service: 4096
            change catalogue.yaml:25: context_size: 4096
The search for other ways ended early: there may be better ones.
`},
		{"services alone", []string{"--stop", "chat-70b", "--start", "coder"}, &executorv1.SimulateModeResponse{
			Fits: true, Steps: []*executorv1.PlanStep{oneStep(sleep, "chat-70b", 0), oneStep(start, "coder", 0)},
			Next: &executorv1.NextCall{Tool: "sleep_service", Arguments: map[string]string{"service_id": "chat-70b"}},
		}, cli.ExitOK, `FITS after putting chat-70b to sleep
sleep chat-70b · start coder
Apply: durward sleep chat-70b && durward start coder
`},
		{"a mode and services", []string{"coding", "--start", "embed"}, &executorv1.SimulateModeResponse{
			ModeId: "coding", Fits: true, Steps: []*executorv1.PlanStep{oneStep(stop, "a", 0), oneStep(sleep, "b", 0), oneStep(stop, "c", 0), oneStep(wake, "embed", 0), oneStep(start, "c", 0)},
		}, cli.ExitOK, `FITS after stopping a and putting b to sleep
stop a · sleep b · stop c · wake embed · start c
This is no mode of the catalogue. To make it one: durward catalog add mode -h
`},
		{"another context", []string{"coding", "--context", "coder=16384", "-v"}, &executorv1.SimulateModeResponse{
			ModeId: "coding", Fits: true, Steps: []*executorv1.PlanStep{oneStep(start, "coder", 0)}, HostMib: 2048, HostAvailableMib: 32768,
			Needs: []*executorv1.ServiceNeed{{ServiceId: "coder", NeedMib: 6144, Source: "declared", Context: 16384}},
		}, cli.ExitOK, `FITS
start coder
coder needs 6.0 GiB, declared at 16384 tokens of context
main memory: what sleeps and loads takes 2.0 GiB; 32.0 GiB are available
Another context takes a change of the catalogue: durward catalog show coder
`},
		{"nothing", nil, &executorv1.SimulateModeResponse{Fits: true}, cli.ExitOK, "FITS: nothing to do\n"},
		{"nothing to do", mode, &executorv1.SimulateModeResponse{ModeId: "coding", Fits: true, PlanDigest: a}, cli.ExitOK,
			"FITS: nothing to do, exactly this runs\nApply: durward switch coding --plan aaaaaaaaaaaa\n"},
		{"a margin of one's own is no plan", []string{"coding", "--margin", "0"}, &executorv1.SimulateModeResponse{ModeId: "coding", Fits: true, PlanDigest: a}, cli.ExitOK,
			"FITS: nothing to do, exactly this runs\n"},
		{"it fits and cannot be", mode, &executorv1.SimulateModeResponse{ModeId: "coding", Fits: true, Reason: "a switch is being undone"}, cli.ExitFailed,
			"CANNOT BE DONE NOW: a switch is being undone\nGPU"},
		{"hostile words", []string{"--start", "x"}, &executorv1.SimulateModeResponse{
			Fits: true, Steps: []*executorv1.PlanStep{oneStep(start, "x;\x1b[31mrm -rf $HOME", 0)},
			Gpus:  []*executorv1.GpuForecast{{Source: "\x1b]0;x\x07measured", TotalMib: 1024}},
			Needs: []*executorv1.ServiceNeed{{ServiceId: "x\u202ey", Source: "unknown"}},
			Alternatives: []*executorv1.Alternative{{Changes: []*executorv1.Change{
				oneChange(executorv1.ChangeKind(99), "z\n", "", ""), oneChange(executorv1.ChangeKind_CHANGE_KIND_GPU, "z\r", "\x1b[2J", "0\x1b[2J")}}},
		}, cli.ExitOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.mu.Lock()
			w.simulate = c.plan
			w.mu.Unlock()
			got := w.run(append([]string{"simulate"}, c.args...)...)
			if got.code != c.code {
				t.Errorf("exit code %d, want %d: %s", got.code, c.code, got.err)
			}
			switch {
			case c.want == "":
				if i := strings.IndexFunc(got.out, func(r rune) bool { return r < ' ' && r != '\n' || r == '\u202e' || r == 0x7f }); i >= 0 || strings.Contains(got.out, "Apply") {
					t.Errorf("%q", got.out)
				}
			case strings.HasSuffix(c.want, "GPU"):
				if !strings.HasPrefix(got.out, strings.TrimSuffix(c.want, "GPU")) {
					t.Errorf("%s", got.out)
				}
			default:
				if diff := cmp.Diff(c.want, got.out); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

// TestSimulateAsks: what is typed is what the executor is asked.
func TestSimulateAsks(t *testing.T) {
	w := newWorld(t)
	w.simulate = &executorv1.SimulateModeResponse{Fits: true}
	for _, c := range []struct {
		args []string
		want *executorv1.SimulateModeRequest
	}{
		{nil, &executorv1.SimulateModeRequest{}},
		{[]string{"--start", "a,b", "--start", "c", "--stop", "d"}, &executorv1.SimulateModeRequest{Start: []string{"a", "b", "c"}, Stop: []string{"d"}}},
		{[]string{"--context", "a=4096,b=8192", "--context", "c=1"}, &executorv1.SimulateModeRequest{ContextOverrides: map[string]uint32{"a": 4096, "b": 8192, "c": 1}}},
		{[]string{"--alternatives", "0", "--margin", "0"}, &executorv1.SimulateModeRequest{Alternatives: proto.Uint32(0), MarginMibOverride: proto.Uint32(0)}},
		{[]string{"--alternatives", "10", "--margin", "512"}, &executorv1.SimulateModeRequest{Alternatives: proto.Uint32(10), MarginMibOverride: proto.Uint32(512)}},
	} {
		w.asked = nil
		if got := w.run(append([]string{"simulate", "--json"}, c.args...)...); got.code != cli.ExitOK || len(w.asked) != 1 {
			t.Errorf("%v: exit code %d: %s", c.args, got.code, got.err)
			continue
		}
		if diff := cmp.Diff(c.want, w.asked[0], protocmp.Transform()); diff != "" {
			t.Errorf("%v (-want +got)\n%s", c.args, diff)
		}
	}
	w.asked = nil
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--alternatives", "11"}, "0 to 10"}, {[]string{"--context", "a"}, "SERVICE=TOKENS"}, {[]string{"--context", "a=x"}, "SERVICE=TOKENS"},
		{[]string{"--context", "=1"}, "SERVICE=TOKENS"}, {[]string{"--context", "a=-1"}, "SERVICE=TOKENS"}, {[]string{"--context", "a=1,a=2"}, "twice"},
		{[]string{"--context", "a\x1b[31m"}, `a\u{1B}[31m`}, {[]string{"one", "two"}, "takes [MODE], and got 2"},
	} {
		if got := w.run(append([]string{"simulate"}, c.args...)...); got.code != cli.ExitUsage || !strings.Contains(got.err, c.want) {
			t.Errorf("%v: exit code %d, want %q in %s", c.args, got.code, c.want, got.err)
		}
	}
	if len(w.asked) > 0 {
		t.Errorf("the executor was asked %v", w.asked)
	}
}

// TestSwitchToAnAlternative: its number, or the beginning of it, names it; one that names two names none.
func TestSwitchToAnAlternative(t *testing.T) {
	w := newWorld(t)
	own := strings.Repeat("0", 64)
	w.simulate.PlanDigest = own
	w.simulate.Alternatives = otherWays(w.digest(), w.digest()[:8]+strings.Repeat("f", 56))
	w.simulate.Alternatives[0].Gpus = []*executorv1.GpuForecast{{Index: 0, NowMib: 6144, AfterMib: 7168, FreeMib: 17408, TotalMib: 24576, Source: "declared"}}
	for _, c := range []struct {
		prefix string
		code   int
		want   string
	}{
		{w.digest()[:8], cli.ExitFailed, "2 plans begin with " + w.digest()[:8]},
		{strings.Repeat("9", 12), cli.ExitFailed, "the plan is not 999999999999 any more"},
	} {
		if got := w.run("switch", "coding", "--plan", c.prefix, "--yes"); got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: exit code %d\n%s", c.prefix, got.code, got.err)
		}
	}
	if len(w.signed)+len(w.calls) > 0 {
		t.Fatalf("signed %v, carried out %q", w.signed, w.calls)
	}
	got := w.run("switch", "coding", "--plan", w.digest()[:12], "--yes")
	if got.code != cli.ExitOK || !strings.Contains(got.err, "coding: sleep chat-70b  plan "+w.digest()[:12]) || !strings.Contains(got.err, "7.0") {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if want := []string{"switch coding " + w.digest()}; !slices.Equal(w.calls, want) {
		t.Errorf("carried out: %q, want %q", w.calls, want)
	}
	for _, asked := range w.asked {
		if asked.GetAlternatives() != contract.MostAlternatives {
			t.Errorf("asked for %d alternatives", asked.GetAlternatives())
		}
	}
	// An alternative without a number takes a human's change: no prefix names it, and the plan's own number does not mean it.
	w.simulate.Alternatives, w.calls = otherWays("", ""), nil
	if got := w.run("switch", "coding", "--plan", w.digest()[:12], "--yes"); got.code != cli.ExitFailed || len(w.calls) > 0 {
		t.Errorf("exit code %d, carried out %q", got.code, w.calls)
	}
}

// TestSimulateCompletesPartsOfWords: the last of several ids, and a length behind its service.
func TestSimulateCompletesPartsOfWords(t *testing.T) {
	w := newWorld(t)
	for typed, want := range map[string]string{
		"--stop=chat,": "chat,coder", "--start=": "chat\tChat", "--context=coder,": "coder,chat=", "--context=chat=": "chat=16384",
		"--context=chat=8192,coder=": "chat=8192,coder=4096",
	} {
		if got := w.run("__complete", "simulate", "coding", typed); got.code != cli.ExitOK || !strings.Contains(got.out, want) {
			t.Errorf("%s: exit code %d, no %q in\n%s%s", typed, got.code, want, got.out, got.err)
		}
	}
}

// TestARefusedFieldIsItsFlag: what the contract refuses of a field is said of the flag that was typed for it.
func TestARefusedFieldIsItsFlag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withClients(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"simulate", "--margin", "999999999"}, "durward: --margin is too large, the most is 1048576\n"},
		{[]string{"simulate", "--start", "a b"}, "durward: --start does not have the expected form\n"},
		{[]string{"simulate", "--context", "a b=5"}, "durward: a key of --context does not have the expected form\n"},
		{[]string{"simulate", "--context", "chat=0"}, "durward: --context is out of range\n"},
		{[]string{"simulate", "a b"}, "durward: mode_id does not match the pattern of an id\n"},
	} {
		if got := w.run(c.args...); got.code != cli.ExitUsage || got.err != c.want {
			t.Errorf("%q: exit code %d\n%s", c.args, got.code, got.err)
		}
	}
}
