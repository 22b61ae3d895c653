// Package sizing finds how a model's service fits on the GPUs of a host, by the estimate of what it takes, and drafts the entries of
// the catalog that say so. It reads no model's file itself: it is given the model's card.
package sizing

import (
	"fmt"
	"net"
	"slices"
	"strconv"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

const (
	// FirstPort is where a port for a new service is looked for.
	FirstPort = 8001
	// usualContext is the context length, in tokens, that a new service gets where the model and the GPUs have room for it. More costs
	// memory that other services want; a human who needs it says so.
	usualContext = 32768
	// leastContext is below what no service is drafted, unless the model or a human wants less; goodContext is what a further GPU is
	// taken for.
	leastContext = 4096
	goodContext  = 8192
	// modelStartS is what a service gets to load its model.
	modelStartS = 900
	// MarginMiB is what the executor leaves free on each GPU unless it is told otherwise (deploy/config/executor.yaml).
	MarginMiB = 512
)

// Choice is how the service would run, and what that takes.
type Choice struct {
	GPUs        []GPU
	context     uint32
	utilisation string
	estimate    vram.Estimate
	// fits: on every GPU there is room; sized: the GPUs' memory is known.
	fits, sized bool
}

// GPU is one that a service may use.
type GPU struct {
	Index uint32
	// Driver is the driver's own index, and Real: it is none that the catalog made up.
	Driver   uint32
	Real     bool
	TotalMiB uint32
	// Missing: the catalog does not have it; UUID and Name are for its entry.
	Missing    bool
	UUID, Name string
}

// FreePort is the port that was asked for, or the first from FirstPort on that neither a service has nor a program of this host.
func FreePort(wanted uint32, present *catalog.Catalog) (uint32, error) {
	taken := func(port uint32) bool {
		return slices.ContainsFunc(present.Services, func(s *catalog.Service) bool { return s.Port == port })
	}
	if wanted != 0 {
		return wanted, nil // the catalog's check says whose it is
	}
	for port := uint32(FirstPort); port < 10000; port++ {
		if taken(port) {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.FormatUint(uint64(port), 10))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port, nil
	}
	return 0, fmt.Errorf("no port from %d on is free", FirstPort)
}

// Choose finds how the service fits: the fewest GPUs first, and on them the longest context, at most usualContext unless more was
// asked for. Where nothing fits, it says what the least would take.
func Choose(card model.Card, engine string, gpus []GPU, all bool, wanted uint32) Choice {
	contexts := contextsOf(card, wanted)
	sets := setsOf(gpus, engine, all)
	var last Choice
	for _, least := range []uint32{min(goodContext, contexts[0]), 0} {
		for _, set := range sets {
			for _, context := range contexts {
				if context < least {
					break
				}
				c := runOn(card, engine, set, context)
				if c.fits || !c.sized {
					return c
				}
				last = c
			}
		}
	}
	return last
}

// contextsOf are the context lengths to try, the longest first.
func contextsOf(card model.Card, wanted uint32) []uint32 {
	if wanted > 0 {
		return []uint32{wanted}
	}
	longest := uint32(usualContext)
	if card.Context > 0 {
		longest = min(longest, card.Context)
	}
	out := []uint32{longest}
	for n := uint32(usualContext) / 2; n >= leastContext; n /= 2 {
		if n < longest {
			out = append(out, n)
		}
	}
	return out
}

// setsOf are the GPUs to try together. vLLM divides a model's heads by a power of two, among GPUs that are alike.
func setsOf(gpus []GPU, engine string, all bool) [][]GPU {
	if all || len(gpus) == 0 {
		return [][]GPU{gpus}
	}
	var out [][]GPU
	for _, g := range gpus {
		out = append(out, []GPU{g})
	}
	for n := 2; n <= len(gpus); n++ {
		if engine == enginecmd.VLLM && n&(n-1) != 0 {
			continue
		}
		for first := 0; first+n <= len(gpus); first++ {
			set := gpus[first : first+n]
			if engine == enginecmd.LlamaCPP || !slices.ContainsFunc(set, func(g GPU) bool { return g.TotalMiB != set[0].TotalMiB }) {
				out = append(out, set)
			}
		}
	}
	return out
}

// runOn estimates the service on these GPUs.
func runOn(card model.Card, engine string, gpus []GPU, context uint32) Choice {
	out := Choice{GPUs: gpus, context: context, sized: len(gpus) > 0}
	run, _ := vram.Defaults(engine)
	run.Context = context
	on := make([]vram.GPU, len(gpus))
	for i, g := range gpus {
		on[i].TotalMiB = g.TotalMiB
		out.sized = out.sized && g.TotalMiB > 0
	}
	if len(gpus) == 0 {
		return out
	}
	if engine == enginecmd.VLLM {
		run.TensorParallel = uint32(len(gpus))
		return out.claim(card, run, on)
	}
	run.Fit = false // whether all of it fits is the question
	estimate, err := vram.Of(card, run, on)
	out.estimate = estimate
	out.fits = err == nil && out.sized && estimate.Starts && out.room()
	return out
}

// claim finds the smallest share of the GPUs with which vLLM starts, and takes one step more where there is room: what it needs at its start is the least
// certain of all.
func (c Choice) claim(card model.Card, run vram.Run, on []vram.GPU) Choice {
	for percent := 30; percent <= 95; percent += 5 {
		run.Utilisation = float64(percent) / 100
		estimate, err := vram.Of(card, run, on)
		if err != nil {
			return c
		}
		next := c
		next.estimate, next.utilisation = estimate, fmt.Sprintf("%.2f", run.Utilisation)
		room := c.sized && next.room()
		next.fits = room && estimate.Starts
		switch {
		case c.fits && !next.fits:
			return c // there is no room for the step more
		case c.fits, c.sized && !room, !c.sized && percent >= 90:
			return next
		}
		c = next
	}
	return c
}

// room reports whether each GPU has what the estimate takes, and the executor's margin.
func (c Choice) room() bool {
	for i, g := range c.GPUs {
		if i >= len(c.estimate.PerGPU) || uint64(c.estimate.PerGPU[i])+MarginMiB > uint64(g.TotalMiB) {
			return false
		}
	}
	return true
}
