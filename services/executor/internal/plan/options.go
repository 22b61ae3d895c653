package plan

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

const (
	// leastContext is how small a context is made: below it few programs work with a model.
	leastContext = 4096
	// leastUtilisation is how low a claim is made, in steps of utilisationStep.
	leastUtilisation = 0.30
	utilisationStep  = 0.05
	// maxPool is up to how many GPUs alike every pair of them is tried for a split; of more, neighbours alone.
	maxPool = 8
)

// optionsIn are those of a service that comes: as the catalog says, and what a human could change there.
func (w *search) optionsIn(one *catalog.Service) []option {
	z := w.p.movements.z
	base := z.running(one)
	options := []option{{kind: changeKeep, awake: base, loading: z.Loading(one)}}
	if len(one.GPUs) == 0 || base.MiB() == 0 {
		return options
	}
	e := &estimator{search: w, one: one, base: base}
	e.prepare()
	options = append(options, e.contexts()...)
	options = append(options, e.utilisations()...)
	options = append(options, e.others()...)
	return append(options, e.splits()...)
}

// estimator says what a service would need if its entry were another. It trusts the measured or declared number for the entry as it is, and adds
// what estimates differ by.
type estimator struct {
	*search
	one  *catalog.Service
	base memreq.Need
	// known: there is a card, and now is the estimate for the entry as it is.
	known bool
	card  model.Card
	run   vram.Run
	now   vram.Estimate
}

func (e *estimator) prepare() {
	card, ok := e.p.movements.z.requirements.Card(e.one)
	if !ok {
		return
	}
	run, err := vram.RunOf(e.one)
	if err != nil {
		return
	}
	if tokens, ok := e.p.request.Contexts[e.one.ID]; ok {
		run.Context = tokens
	}
	now, err := vram.Of(card, run, e.totals(e.one.GPUs))
	if err != nil || len(now.PerGPU) != len(e.one.GPUs) {
		return
	}
	e.known, e.card, e.run, e.now = true, card, run, now
}

// totals are what GPUs have in all; nil where one of them is not known.
func (e *estimator) totals(gpus []uint32) []vram.GPU {
	var out []vram.GPU
	for _, index := range gpus {
		g, ok := e.p.movements.h.Find(index)
		if !ok || g.Problem != "" {
			return nil
		}
		out = append(out, vram.GPU{TotalMiB: g.Total})
	}
	return out
}

// option is one with that need.
func (e *estimator) option(w option, awake map[uint32]uint32, source string) option {
	z := e.p.movements.z
	w.awake = memreq.Need{PerGPU: awake, Source: weaker(e.base.Source, source), Context: e.base.Context}
	w.loading = loadingOf(z, e.one, e.base, awake)
	return w
}

// differ is the need on the service's own GPUs when the estimate becomes then.
func (e *estimator) differ(then vram.Estimate) map[uint32]uint32 {
	out := map[uint32]uint32{}
	for i, index := range e.one.GPUs {
		out[index] = memreq.Shift(e.base.PerGPU[index], e.now.PerGPU[i], then.PerGPU[i])
	}
	return out
}

// contexts are smaller ones, each half of the one before.
func (e *estimator) contexts() []option {
	var out []option
	requirements := e.p.movements.z.requirements
	for n, tokens := int64(1), e.base.Context/2; tokens >= leastContext; n, tokens = n+1, tokens/2 {
		then, err := requirements.AwakeAt(e.one, tokens)
		if err != nil {
			break
		}
		one := e.option(option{
			kind: changeContext, from: decimal(e.base.Context), to: decimal(tokens), cost: costContext + halving(n),
		}, then.PerGPU, then.Source)
		one.awake.Context = tokens
		out = append(out, one)
	}
	return out
}

// utilisations are lower claims of vLLM, as far as the model still starts.
func (e *estimator) utilisations() []option {
	if !e.known || e.run.Utilisation == 0 || e.run.KVCacheBytes != 0 || e.run.Engine != enginecmd.VLLM {
		return nil
	}
	var out []option
	for n := int64(1); ; n++ {
		run := e.run
		run.Utilisation = math.Round((e.run.Utilisation-float64(n)*utilisationStep)*100) / 100
		if run.Utilisation < leastUtilisation {
			return out
		}
		then, err := vram.Of(e.card, run, e.totals(e.one.GPUs))
		if err != nil || !then.Starts || len(then.PerGPU) != len(e.one.GPUs) {
			return out
		}
		one := e.option(option{
			kind: changeUtilisation, from: share(e.run.Utilisation), to: share(run.Utilisation), cost: costUtilisation + n*costEachStep,
		}, e.differ(then), vram.Estimated)
		one.awake.KVTokens = then.KVTokens
		out = append(out, one)
	}
}

// others are the host's other GPUs, for a service that uses one.
func (e *estimator) others() []option {
	if len(e.one.GPUs) != 1 {
		return nil
	}
	from := e.one.GPUs[0]
	var out []option
	for _, g := range e.p.movements.h.GPUs {
		if g.Index == from || g.Problem != "" || g.Simulated != e.simulated() {
			continue
		}
		mib, source := e.base.PerGPU[from], e.base.Source
		if e.known {
			// A claim is a share of the GPU, so it is another one there.
			then, err := vram.Of(e.card, e.run, []vram.GPU{{TotalMiB: g.Total}})
			if err != nil || len(then.PerGPU) != 1 || !then.Starts {
				continue
			}
			mib, source = memreq.Shift(mib, e.now.PerGPU[0], then.PerGPU[0]), vram.Estimated
		}
		out = append(out, e.option(option{kind: changeGPU, from: decimal(from), to: decimal(g.Index), cost: costGPU},
			map[uint32]uint32{g.Index: mib}, source))
	}
	return out
}

func (e *estimator) simulated() bool {
	g, _ := e.p.movements.h.Find(e.one.GPUs[0])
	return g.Simulated
}

// splits share the model among 2 or 4 GPUs that have as much memory as the service's own.
func (e *estimator) splits() []option {
	if !e.known {
		return nil
	}
	own, ok := e.p.movements.h.Find(e.one.GPUs[0])
	if !ok {
		return nil
	}
	var pool []uint32
	for _, g := range e.p.movements.h.GPUs {
		if g.Problem == "" && g.Simulated == own.Simulated && g.Total == own.Total {
			pool = append(pool, g.Index)
		}
	}
	slices.Sort(pool)
	var out []option
	for _, n := range []int{2, 4} {
		if n <= len(e.one.GPUs) || e.card.Heads%uint32(n) != 0 {
			continue
		}
		for _, on := range sets(pool, n) {
			run := e.run
			run.Visible = ""
			if run.Engine == enginecmd.VLLM || run.Engine == enginecmd.SGLang {
				run.TensorParallel = uint32(n)
			}
			then, err := vram.Of(e.card, run, e.totals(on))
			if err != nil || !then.Starts || len(then.PerGPU) != n {
				continue
			}
			// What the service needs beyond its estimate it needs there as well.
			var beyond int64
			for i, index := range e.one.GPUs {
				beyond += int64(e.base.PerGPU[index]) - int64(e.now.PerGPU[i])
			}
			each := int64(math.Ceil(float64(max(beyond, 0)) / float64(n)))
			awake := map[uint32]uint32{}
			for i, index := range on {
				awake[index] = uint32(min(int64(then.PerGPU[i])+each, math.MaxUint32))
			}
			out = append(out, e.option(option{kind: changeSplit, from: list(e.one.GPUs), to: list(on), cost: costSplit}, awake, vram.Estimated))
		}
	}
	return out
}

// sets are the pairs of a pool of GPUs, and the fours that lie side by side: GPUs that are linked do.
func sets(pool []uint32, n int) [][]uint32 {
	var out [][]uint32
	if n == 2 && len(pool) <= maxPool {
		for i := range pool {
			for j := i + 1; j < len(pool); j++ {
				out = append(out, []uint32{pool[i], pool[j]})
			}
		}
		return out
	}
	for i := 0; i+n <= len(pool); i++ {
		out = append(out, pool[i:i+n])
	}
	return out
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func share(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }

func list(gpus []uint32) string {
	words := make([]string, 0, len(gpus))
	for _, index := range gpus {
		words = append(words, decimal(index))
	}
	return strings.Join(words, ",")
}
