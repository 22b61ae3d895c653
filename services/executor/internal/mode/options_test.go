package mode

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/vram"
)

// cardsText is a host with GPUs of 24, 24, 48 and 24 GiB, and three engines with a model of 8 billion parameters each.
const cardsText = `
version: 1
gpus: [{index: 0, name: One}, {index: 1, name: Two}, {index: 2, name: Three}, {index: 3, name: Four}]
models:
  - id: eight
    served_name: eight
    card: {weights_mib: 15317, context: 131072, hidden: 4096, feed_forward: 14336, heads: 32, vocabulary: 128256,
      layers: [{count: 32, kind: full, kv_heads: 8, key_dim: 128, value_dim: 128}]}
services:
  - {id: claim, driver: process, argv: [/usr/bin/true, claim], port: 17001, gpus: [0], model: eight,
     extra_config: {engine: vllm, context_size: 8192, gpu_memory_utilization: 0.90}}
  - {id: slots, driver: process, argv: [/usr/bin/true, slots], port: 17002, gpus: [0], model: eight,
     extra_config: {engine: llama.cpp, context_size: 65536, fit: "off"}}
  - {id: pair, driver: process, argv: [/usr/bin/true, pair], port: 17003, gpus: [0, 1], model: eight,
     extra_config: {engine: llama.cpp, context_size: 131072, fit: "off"}}
  - {id: plain, driver: process, argv: [/usr/bin/true, plain], port: 17004, gpus: [0], vram_mib: 9000}
modes: [{id: one, services: [claim]}]
`

// estimating is a Requirements that estimates, as memreq.Requirements does where nothing is measured or declared.
type estimating struct {
	Declared
	h *host
	// measured is what was, of services with one GPU.
	measured map[string]uint32
}

func (b estimating) estimate(s *catalog.Service, bend func(*vram.Run)) (memreq.Need, error) {
	card, ok := b.Card(s)
	if !ok {
		return memreq.Need{}, vram.ErrNoCard
	}
	run, err := vram.RunOf(s)
	if err != nil {
		return memreq.Need{}, err
	}
	bend(&run)
	var gpus []vram.GPU
	for _, index := range s.GPUs {
		gpus = append(gpus, vram.GPU{TotalMiB: b.h.device(index).Total})
	}
	e, err := vram.Of(card, run, gpus)
	if err != nil {
		return memreq.Need{}, err
	}
	out := memreq.Need{PerGPU: map[uint32]uint32{}, Source: vram.Estimated, Context: e.Context, KVTokens: e.KVTokens}
	out.NoStart = !e.Starts
	for i, index := range s.GPUs {
		out.PerGPU[index] = e.PerGPU[i]
		out.NoStart = out.NoStart && e.PerGPU[i] <= gpus[i].TotalMiB
	}
	return out, nil
}

func (b estimating) Awake(s *catalog.Service) memreq.Need {
	if n, err := b.estimate(s, func(*vram.Run) {}); err == nil {
		if mib, ok := b.measured[s.ID]; ok {
			n.PerGPU, n.Source = map[uint32]uint32{s.GPUs[0]: mib}, vram.Measured
		}
		return n
	}
	return b.Declared.Awake(s)
}

func (b estimating) Loading(s *catalog.Service) memreq.Need { return b.Awake(s) }

func (b estimating) AwakeAt(s *catalog.Service, tokens uint32) (memreq.Need, error) {
	then, err := b.estimate(s, func(r *vram.Run) { r.Context = tokens })
	if mib, ok := b.measured[s.ID]; ok && err == nil {
		now, _ := b.estimate(s, func(*vram.Run) {})
		then.PerGPU[s.GPUs[0]] = memreq.Shift(mib, now.PerGPU[s.GPUs[0]], then.PerGPU[s.GPUs[0]])
	}
	return then, err
}

// newCards is a world of cardsText. What strangers hold is by GPU.
func newCards(t *testing.T, foreign ...uint32) *world {
	t.Helper()
	w := newWorld(t)
	w.host.c = parse(t, cardsText)
	for _, s := range w.host.c.Services {
		w.host.state[s.ID] = executorv1.ServiceState_SERVICE_STATE_STOPPED
	}
	w.host.totals = map[uint32]uint32{2: 2 * total}
	for i, mib := range foreign {
		w.host.foreign[uint32(i)] = mib
	}
	w.planner.Requirements = estimating{h: w.host}
	return w
}

const full = total - reserved

func TestWaysThatTakeAnotherCatalog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		foreign []uint32
		start   string
		want    []string
	}{
		"a lower claim, or a GPU that is free": {[]uint32{5000, full, full + total, 0}, "claim",
			[]string{"utilisation claim 0.90>0.75", "gpu claim 0>3"}},
		"a claim is larger on a larger GPU":               {[]uint32{full, full, 0, full}, "claim", []string{"gpu claim 0>2"}},
		"a claim that is too small for the model is none": {[]uint32{12000, full, full + total, full}, "claim", nil},
		"a shorter context":                               {[]uint32{2000, full, full + total, full}, "slots", []string{"context slots 65536>32768"}},
		"a shorter context still, or a split": {[]uint32{6000, 6000, full + total, full}, "slots",
			[]string{"context slots 65536>8192", "split slots 0>0,1"}},
		"GPUs of another size are no place for a split": {[]uint32{full, full, 26000, full}, "slots", nil},
		"one that uses two goes to no single other":     {[]uint32{14000, 14000, 0, full}, "pair", []string{"context pair 131072>16384"}},
		"one without a card goes as it is":              {[]uint32{20000, full, 0, full}, "plain", []string{"gpu plain 0>2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCards(t, c.foreign...)
			got := w.simulate(Request{Start: []string{c.start}, Alternatives: 10})
			if got.Fits || got.CutOff {
				t.Errorf("simulated: %+v", got)
			}
			if diff := cmp.Diff(c.want, saidAll(got.Alternatives)); diff != "" {
				t.Errorf("alternatives (-want +got):\n%s", diff)
			}
			for _, a := range got.Alternatives {
				if a.Digest != "" {
					t.Errorf("%s can be switched to, and takes another catalogue", said(a))
				}
				w.try(t, c.start, a)
			}
		})
	}
}

// try edits the catalog as the alternative says, and sees that the service fits then.
func (w *world) try(t *testing.T, id string, a Alternative) {
	t.Helper()
	text := cardsText
	at := strings.Index(text, "id: "+id+",")
	head, entry := text[:at], text[at:]
	for _, c := range a.Changes {
		from, to := "", ""
		switch c.Kind {
		case changeContext:
			from, to = "context_size: "+c.From, "context_size: "+c.To
		case changeUtilisation:
			from, to = "gpu_memory_utilization: "+c.From, "gpu_memory_utilization: "+c.To
		case changeGPU, changeSplit:
			from, to = fmt.Sprintf("gpus: [%s]", strings.ReplaceAll(c.From, ",", ", ")), fmt.Sprintf("gpus: [%s]", c.To)
		}
		if !strings.Contains(entry, from) {
			t.Fatalf("the entry has no %q", from)
		}
		entry = strings.Replace(entry, from, to, 1)
	}
	after := newCards(t)
	after.host.foreign, after.host.c = w.host.foreign, parse(t, head+entry)
	got := after.simulate(Request{Start: []string{id}})
	if !got.Fits {
		t.Errorf("%s, and it does not fit: %s", said(a), got.Reason)
	}
	if diff := cmp.Diff(got.GPUs, a.GPUs); diff != "" {
		t.Errorf("%s said otherwise (-then +said):\n%s", said(a), diff)
	}
}

// TestAContextThatDoesNotStart: a claim has room for so many tokens, however much of the GPU is free.
func TestAContextThatDoesNotStart(t *testing.T) {
	t.Parallel()
	w := newCards(t)
	got := w.simulate(Request{Start: []string{"claim"}, Contexts: map[string]uint32{"claim": 131072}, Alternatives: 3})
	if got.Fits || !strings.Contains(got.Reason, "claim would not start with a context of 131072 tokens: by the estimate its KV cache has room for ") ||
		len(got.Alternatives) != 0 {
		t.Errorf("simulated: %+v", got)
	}
	if got = w.simulate(Request{Start: []string{"claim"}, Contexts: map[string]uint32{"claim": 16384}}); !got.Fits {
		t.Errorf("simulated: %+v", got)
	}
}

// TestAWayIsNotForNothing: what was measured far below its estimate does not become nothing where less is estimated.
func TestAWayIsNotForNothing(t *testing.T) {
	t.Parallel()
	w := newCards(t, full-8500, 3000, 0, 0)
	w.host.totals[3] = total / 2 // a smaller GPU, of which a claim is half as much
	small := estimating{h: w.host, measured: map[string]uint32{"claim": 9000, "slots": 9000}}
	w.planner.Requirements = small
	for _, id := range []string{"claim", "slots"} {
		got := w.simulate(Request{Start: []string{id}, Alternatives: 10})
		if got.Fits || len(got.Alternatives) == 0 {
			t.Errorf("%s: %+v", id, got)
		}
		for _, a := range got.Alternatives {
			for i, g := range a.GPUs {
				if to := fmt.Sprint(g.GPU); a.Changes[0].Kind == changeGPU && a.Changes[0].To == to && g.After-got.GPUs[i].After < 9000 {
					t.Errorf("%s: GPU %d goes from %d to %d MiB, and %s needs 9000", said(a), g.GPU, got.GPUs[i].After, g.After, id)
				}
			}
			if a.Changes[0].Kind != changeGPU {
				t.Errorf("%s: less than the 9000 MiB that were measured would not fit either, by the estimate", said(a))
			}
		}
	}
}

// TestAnEntryThatDoesNotStart, by its own estimate, is not said to fit, and nobody switches to it.
func TestAnEntryThatDoesNotStart(t *testing.T) {
	t.Parallel()
	const why = "claim would not start as its entry has it: by the estimate its engine does not get what its model needs"
	w := newCards(t)
	w.host.c = parse(t, strings.Replace(cardsText, "gpu_memory_utilization: 0.90", "gpu_memory_utilization: 0.50", 1))
	got := w.simulate(Request{Mode: "one", Alternatives: 3})
	if got.Fits || got.Reason != "it does not fit: "+why || got.Digest != "" || got.Next != nil || len(got.Alternatives) != 0 {
		t.Errorf("simulated: %+v", got)
	}
	if got := w.simulate(Request{Start: []string{"claim"}, Contexts: map[string]uint32{"claim": 4096}}); got.Fits ||
		!strings.Contains(got.Reason, "claim would not start with a context of 4096 tokens: by the estimate ") {
		t.Errorf("with another context: %+v", got)
	}
	p, err := w.planner.Plan(t.Context(), Request{Mode: "one"}, w.host.Last())
	must(t, err)
	if _, err := w.Switch(t.Context(), "one", p.Digest, nil, w.consent()); !fault.Is(err, callv1.Code_CODE_DOES_NOT_FIT) || !strings.Contains(err.Error(), why) {
		t.Errorf("switched: %v", err)
	}
	if w.host.state["claim"] = executorv1.ServiceState_SERVICE_STATE_RUNNING; !w.simulate(Request{Mode: "one"}).Fits {
		t.Error("it runs, and is said not to start")
	}
}

// TestAPlanWaitsForModelsFiles of what is to run, and of nothing else.
func TestAPlanWaitsForModelsFiles(t *testing.T) {
	t.Parallel()
	w := newCards(t)
	waited := &waiting{Requirements: w.planner.Requirements}
	w.planner.Requirements = waited
	w.simulate(Request{Mode: "one", Start: []string{"pair"}})
	if diff := cmp.Diff([]string{"claim", "pair"}, waited.ids); diff != "" {
		t.Errorf("waited for (-want +got):\n%s", diff)
	}
}

// waiting notes which services' files are waited for.
type waiting struct {
	plan.Requirements
	ids []string
}

func (b *waiting) Await(_ context.Context, services ...*catalog.Service) {
	for _, s := range services {
		b.ids = append(b.ids, s.ID)
	}
}
