package mode

import (
	"context"

	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

// Declared is a Requirements of what the catalog says and nothing else.
type Declared struct{}

func (Declared) Awake(s *catalog.Service) memreq.Need {
	return memreq.Need{PerGPU: capacity.Declared{}.Awake(s), Source: stated(s.VRAMMiB)}
}

func (d Declared) Loading(s *catalog.Service) memreq.Need { return d.Awake(s) }

func (Declared) Asleep(s *catalog.Service) memreq.Need {
	return memreq.Need{PerGPU: capacity.Declared{}.Asleep(s), Source: stated(s.SleepMiB)}
}

func (Declared) AwakeAt(*catalog.Service, uint32) (memreq.Need, error) {
	return memreq.Need{}, vram.ErrNoCard
}
func (Declared) HostAsleep(*catalog.Service) uint32  { return 0 }
func (Declared) HostLoading(*catalog.Service) uint32 { return 0 }

// Await implements Requirements: there is nothing to read.
func (Declared) Await(context.Context, ...*catalog.Service) {}

func (Declared) Card(s *catalog.Service) (model.Card, bool) {
	if s.Model == nil || s.Model.Card == nil {
		return model.Card{}, false
	}
	return *s.Model.Card, true
}

func stated(mib uint32) string {
	if mib == 0 {
		return vram.Unknown
	}
	return vram.Declared
}
