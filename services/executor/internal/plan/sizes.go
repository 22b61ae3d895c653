package plan

import (
	"context"

	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

// Requirements says what services need, and where each number comes from; memreq.Requirements is one. Nobody changes the maps that it returns.
type Requirements interface {
	Awake(s *catalog.Service) memreq.Need
	Loading(s *catalog.Service) memreq.Need
	Asleep(s *catalog.Service) memreq.Need
	// AwakeAt is what it would take with another context length, in tokens.
	AwakeAt(s *catalog.Service, context uint32) (memreq.Need, error)
	// HostAsleep and HostLoading are MiB of the host's memory; 0: not known or none.
	HostAsleep(s *catalog.Service) uint32
	HostLoading(s *catalog.Service) uint32
	// Await waits for what is still to be read of the services' models, a few seconds at most.
	Await(ctx context.Context, services ...*catalog.Service)
	// Card is what estimates are made of.
	Card(s *catalog.Service) (model.Card, bool)
}

// Sizes are what one plan goes by: the requirements, each asked for once, so that a measurement that comes in between does not
// make the plan contradict itself. Where a simulation or an alternative wants a service otherwise, that stands instead.
type Sizes struct {
	requirements          Requirements
	awake, loading, sleep map[*catalog.Service]memreq.Need
}

func NewSizes(requirements Requirements) *Sizes {
	return &Sizes{
		requirements: requirements, awake: map[*catalog.Service]memreq.Need{}, loading: map[*catalog.Service]memreq.Need{},
		sleep: map[*catalog.Service]memreq.Need{},
	}
}

func remembered(known map[*catalog.Service]memreq.Need, s *catalog.Service, ask func(*catalog.Service) memreq.Need) memreq.Need {
	n, ok := known[s]
	if !ok {
		n = ask(s)
		known[s] = n
	}
	return n
}

func (z *Sizes) running(s *catalog.Service) memreq.Need {
	return remembered(z.awake, s, z.requirements.Awake)
}

func (z *Sizes) asleep(s *catalog.Service) memreq.Need {
	return remembered(z.sleep, s, z.requirements.Asleep)
}

// Awake implements capacity.Sizes.
func (z *Sizes) Awake(s *catalog.Service) map[uint32]uint32 { return z.running(s).PerGPU }

// Loading implements capacity.Sizes.
func (z *Sizes) Loading(s *catalog.Service) map[uint32]uint32 {
	return remembered(z.loading, s, z.requirements.Loading).PerGPU
}

// Asleep implements capacity.Sizes.
func (z *Sizes) Asleep(s *catalog.Service) map[uint32]uint32 { return z.asleep(s).PerGPU }

// want lets a service need that instead of what is measured or declared.
func (z *Sizes) want(s *catalog.Service, awake memreq.Need, loading map[uint32]uint32) {
	z.awake[s], z.loading[s] = awake, memreq.Need{PerGPU: loading, Source: awake.Source}
}

// rank orders sources, the best first.
func rank(source string) int {
	switch source {
	case vram.Measured:
		return 0
	case vram.Declared:
		return 1
	case vram.Estimated:
		return 2
	}
	return 3
}

// weaker is the one of two sources that is trusted less.
func weaker(a, b string) string {
	if rank(b) > rank(a) {
		return b
	}
	return a
}
