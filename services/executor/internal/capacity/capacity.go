// Package capacity decides whether services fit in the memory of the host's GPUs: what is measured to be free, less what is promised
// already and not taken yet, against what is needed. Every program on a GPU counts, whosever it is, and every GPU counts for
// itself.
//
// It trusts its two sources, the driver's measurement and whoever gives it Sizes, and invents no number: a GPU that cannot be
// measured has no room. It holds no state and changes nothing.
package capacity

import (
	"fmt"
	"maps"
	"math"
	"slices"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// DefaultMargin is what stays free on each GPU beyond what services need, in MiB, unless the configuration says otherwise.
const DefaultMargin = 512

// Sizes says what a service takes of each of its GPUs, in MiB by the catalog's index. memreq.Tracker has them from what was measured, is
// declared or can be estimated; nobody changes what a method returns. Package room asks for nothing else about a number.
type Sizes interface {
	// Awake is what it takes while it runs, Loading the most that it takes until then, Asleep what it keeps in its sleep.
	Awake(s *catalog.Service) map[uint32]uint32
	Loading(s *catalog.Service) map[uint32]uint32
	Asleep(s *catalog.Service) map[uint32]uint32
}

// Declared are the Sizes where nothing is known but the catalog: what services declare, shared evenly by their GPUs. A service that
// declares none takes none.
type Declared struct{}

// Awake implements Sizes.
func (Declared) Awake(s *catalog.Service) map[uint32]uint32 { return shares(s.VRAMMiB, s.Visible()) }

// Loading implements Sizes.
func (Declared) Loading(s *catalog.Service) map[uint32]uint32 { return shares(s.VRAMMiB, s.Visible()) }

// Asleep implements Sizes.
func (Declared) Asleep(s *catalog.Service) map[uint32]uint32 { return shares(s.SleepMiB, s.Visible()) }

func shares(mib uint32, gpus []uint32) map[uint32]uint32 {
	if mib == 0 {
		return nil
	}
	out := make(map[uint32]uint32, len(gpus))
	for _, index := range gpus {
		out[index] = catalog.Share(mib, len(gpus))
	}
	return out
}

// Need is what has to be there for the services to start or wake together, in MiB by the catalog's index of the GPU: of each what
// it takes while it runs or while it loads, whichever is more. A service whose size nobody knows is not in it.
func Need(z Sizes, services ...*catalog.Service) map[uint32]uint32 {
	out := map[uint32]uint32{}
	for _, s := range services {
		awake, loading := z.Awake(s), z.Loading(s)
		for index, mib := range awake {
			add(out, index, max(mib, loading[index]))
		}
		for index, mib := range loading {
			if _, counted := awake[index]; !counted {
				add(out, index, mib)
			}
		}
	}
	return out
}

// add does not wrap: sizes come from files and estimates.
func add(to map[uint32]uint32, index, mib uint32) {
	to[index] = uint32(min(uint64(to[index])+uint64(mib), math.MaxUint32))
}

// Short says on which GPU something does not fit. Sizes are MiB.
type Short struct {
	GPU uint32
	// Need is what would be taken, Free what there would be for it, Foreign what programs hold that are no service of this host,
	// Margin what has to stay free.
	Need, Free, Foreign, Margin uint32
	// Problem is why the GPU could not be measured, one of the gpu package's sentences; then the numbers but Need are 0.
	Problem string
}

// Sentence says it in plain words.
func (s *Short) Sentence() string {
	if s.Problem != "" {
		return fmt.Sprintf("GPU %d cannot be measured: %s", s.GPU, s.Problem)
	}
	line := fmt.Sprintf("GPU %d has %d MiB free for it, and %d MiB are needed with a margin of %d MiB", s.GPU, s.Free, s.Need, s.Margin)
	if s.Foreign > 0 {
		line += fmt.Sprintf("; programs that are no service of this host hold %d MiB", s.Foreign)
	}
	return line
}

// Fault is the sentence as CODE_DOES_NOT_FIT.
func (s *Short) Fault() error {
	return fault.New(callv1.Code_CODE_DOES_NOT_FIT, "it does not fit: "+s.Sentence())
}

// Check reports whether need fits on every GPU once released is given back: nil, or the first GPU, by index, where it does not.
// Free is what is measured, less what services that hold memory there need and have not taken yet. Where a service is among
// those that release or take, what it holds and what it was promised belongs in released: see Held.
func Check(h gpu.Host, need, released map[uint32]uint32, margin uint32) *Short {
	for _, index := range slices.Sorted(maps.Keys(need)) {
		if need[index] == 0 {
			continue
		}
		g, ok := h.Find(index)
		switch {
		case !ok:
			return &Short{GPU: index, Need: need[index], Problem: gpu.ProblemAbsent}
		case g.Problem != "":
			return &Short{GPU: index, Need: need[index], Problem: g.Problem}
		}
		// A simulated GPU can be promised more than it has; then nothing is free, and what is over is owed first.
		free := int64(g.Free) - promised(g) - owed(g) + int64(released[index])
		if free < int64(need[index])+int64(margin) {
			return &Short{GPU: index, Need: need[index], Free: uint32(max(free, 0)), Foreign: g.Foreign, Margin: margin}
		}
	}
	return nil
}

// owed is what is used beyond what there is.
func owed(g gpu.Device) int64 { return max(int64(g.Used)-int64(g.Total)+int64(g.Reserved), 0) }

// promised is what services need on the GPU and have not taken yet. Memory that is used by a program whose share the driver
// does not tell counts as taken by the services that such programs belong to, and by no other: it is not counted twice.
func promised(g gpu.Device) int64 {
	var silent uint32
	for _, c := range g.Claims {
		if slices.ContainsFunc(g.Processes, func(p gpu.Process) bool { return p.MiB == 0 && p.Service == c.Service }) {
			silent += c.MiB - min(c.MiB, g.ServiceMiB(c.Service))
		}
	}
	return int64(g.Outstanding()) - int64(min(silent, untold(g)))
}

// untold is what is used on the GPU by programs of services whose share the driver does not tell. Where it does not tell a
// stranger's either, that is nobody's: a stranger's memory keeps no service's promise.
func untold(g gpu.Device) uint32 {
	var told uint32
	silent := false
	for _, p := range g.Processes {
		told += p.MiB
		if p.MiB == 0 && p.Service == "" {
			return 0
		}
		silent = silent || p.MiB == 0
	}
	if !silent || told >= g.Used {
		return 0
	}
	return g.Used - told
}

// Held is what the service has of each of its GPUs, in MiB: what its programs are measured to use, or what it claims in its
// present state, whichever is more. A service that neither runs nor sleeps holds nothing.
func Held(h gpu.Host, s *catalog.Service) map[uint32]uint32 {
	out := map[uint32]uint32{}
	for _, index := range s.GPUs {
		if g, ok := h.Find(index); ok {
			if mib := max(g.ServiceMiB(s.ID), g.ClaimedMiB(s.ID)); mib > 0 {
				out[index] = mib
			}
		}
	}
	return out
}

// Released is what there will be on each GPU once the services have stopped, those in sleeping: have gone to sleep, and keep
// what they keep in their sleep.
func Released(z Sizes, h gpu.Host, stopping, sleeping []*catalog.Service) map[uint32]uint32 {
	out := map[uint32]uint32{}
	for _, s := range stopping {
		for index, mib := range Held(h, s) {
			add(out, index, mib)
		}
	}
	for _, s := range sleeping {
		keeps := z.Asleep(s)
		for index, mib := range Held(h, s) {
			add(out, index, mib-min(mib, keeps[index]))
		}
	}
	return out
}

// Fits is Check for services that are to run beside what is on the GPUs now: what they hold themselves already, because they
// sleep, is no reason against them. released is what will have been given back before.
func Fits(z Sizes, h gpu.Host, incoming []*catalog.Service, released map[uint32]uint32, margin uint32) *Short {
	own := maps.Clone(released)
	if own == nil {
		own = map[uint32]uint32{}
	}
	for index, mib := range Released(z, h, incoming, nil) {
		add(own, index, mib)
	}
	return Check(h, Need(z, incoming...), own, margin)
}

// Admit is Fits for one service that is to be started or woken now. Its error is a fault: CODE_DOES_NOT_FIT.
func Admit(z Sizes, h gpu.Host, s *catalog.Service, margin uint32) error {
	if short := Fits(z, h, []*catalog.Service{s}, nil, margin); short != nil {
		return fault.New(callv1.Code_CODE_DOES_NOT_FIT, s.ID+" does not fit: "+short.Sentence())
	}
	return nil
}

// Forecast is what is used of one GPU now, and what would be after a switch. Sizes are MiB.
type Forecast struct {
	GPU, Total, Now, After, Free, Foreign uint32
	// Measured: Now comes from the driver; else it is what services claim.
	Measured bool
}

// Forecasts says of each GPU what would be used once some services have stopped, others gone to sleep, and the incoming ones run.
// What is given up is what was measured, wherever it was; what is taken is what they take once they run, not what they take for a
// moment while they load.
func Forecasts(z Sizes, h gpu.Host, stopping, sleeping, incoming []*catalog.Service) []Forecast {
	taken := map[uint32]uint32{}
	for _, s := range incoming {
		for index, mib := range z.Awake(s) {
			add(taken, index, mib)
		}
	}
	var out []Forecast
	for _, g := range h.GPUs {
		after := int64(g.Used) + int64(taken[g.Index])
		for _, s := range stopping {
			after -= int64(uses(g, s))
		}
		for _, s := range incoming {
			after -= int64(uses(g, s))
		}
		for _, s := range sleeping {
			after -= max(int64(uses(g, s))-int64(z.Asleep(s)[g.Index]), 0)
		}
		after = max(after, 0)
		free := max(int64(g.Total)-int64(g.Reserved)-after, 0)
		out = append(out, Forecast{
			GPU: g.Index, Total: g.Total, Now: g.Used, After: uint32(min(after, math.MaxUint32)), Free: uint32(free), Foreign: g.Foreign,
			Measured: !g.Simulated && g.Problem == "",
		})
	}
	return out
}

// uses is what the service uses of the GPU now: what is measured or, where the driver does not tell what its programs use, what
// it claims.
func uses(g gpu.Device, s *catalog.Service) uint32 {
	measured, silent := uint32(0), false
	for _, p := range g.Processes {
		if p.Service == s.ID {
			measured += p.MiB
			silent = silent || p.MiB == 0
		}
	}
	if silent {
		return min(max(measured, g.ClaimedMiB(s.ID)), g.Used)
	}
	return measured
}

// Spare is what the GPU has for those who come, in MiB, as Check reckons it before anything is given back and without a margin;
// negative where more is promised than there is. ok is false for a GPU that cannot be measured or is not there.
func Spare(h gpu.Host, index uint32) (mib int64, ok bool) {
	g, found := h.Find(index)
	if !found || g.Problem != "" {
		return 0, false
	}
	return int64(g.Free) - promised(g) - owed(g), true
}
