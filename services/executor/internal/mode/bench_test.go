package mode_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver/null"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/health"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
)

// executor is one with a GPU for everything.
func executor(b *testing.B, services, members int, takes time.Duration) (*mode.Switcher, *service.Manager) {
	b.Helper()
	var text strings.Builder
	text.WriteString("version: 1\ngpus: [{index: 0, name: Made up, memory_mib: 81920, simulated: true}]\nservices:\n")
	var ids []string
	for i := range services {
		id := fmt.Sprintf("s%d", i)
		ids = append(ids, id)
		fmt.Fprintf(&text, "  - {id: %s, driver: \"null\", gpus: [0], vram_mib: 64}\n", id)
	}
	fmt.Fprintf(&text, "modes:\n  - {id: one, services: [%s]}\n  - {id: two, services: [%s]}\n",
		strings.Join(ids[:members], ", "), strings.Join(ids[members:2*members], ", "))
	return open(b, text.String(), takes)
}

// open is a real executor from the switcher down to the disk; only its driver runs nothing. bend changes the catalog before that.
func open(b *testing.B, text string, takes time.Duration, bend ...func(*catalog.Service)) (*mode.Switcher, *service.Manager) {
	b.Helper()
	c, err := catalog.Parse("catalogue.yaml", []byte(text), catalog.Options{Development: true})
	if err != nil {
		b.Fatal(err)
	}
	for _, change := range bend {
		for _, one := range c.Services {
			change(one)
		}
	}
	current := func() *catalog.Catalog { return c }
	memory, err := store.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = memory.Close() })
	logger := slog.New(slog.DiscardHandler)
	gpus := gpu.New(gpu.Config{Catalog: current, Logger: logger})
	leases := &lease.Leases{}
	consent := func(_ context.Context, begin func()) error {
		begin()
		return nil
	}
	manager := service.New(service.Config{
		Catalog: current, Drivers: map[string]func() service.Driver{catalog.DriverNull: service.Is(&null.Driver{StartTakes: takes, StopTakes: takes})},
		Health: health.New(), GPUs: gpus, Leases: leases, Confirm: consent, Logger: logger,
	})
	gpus.Claimed(manager.Claims)
	return mode.New(mode.Config{
		Catalog: current, Services: manager, GPUs: gpus, Requirements: mode.Declared{}, Leases: leases, Journal: memory, Margin: 512, Hub: &progress.Hub{},
		Proceed: func(begin func()) error {
			begin()
			return nil
		},
		Logger: logger,
	}), manager
}

func to(b *testing.B, s *mode.Switcher, id string) {
	b.Helper()
	consent := func(_ context.Context, begin func()) error {
		begin()
		return nil
	}
	plan, err := s.Simulate(b.Context(), plan.Request{Mode: id})
	if err != nil {
		b.Fatal(err)
	}
	out, err := s.Switch(b.Context(), id, plan.Digest, nil, mode.Consent{First: consent, Later: consent, Operation: "bench"})
	if err != nil || out.Outcome != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED {
		b.Fatalf("switch to %s: %+v, %v", id, out, err)
	}
}

// BenchmarkSwitchOfEightServices stops four services and starts four others, with everything that a switch writes to the disk. What
// the drivers take is subtracted in overhead-ms: the resolve is 50 ms at most.
func BenchmarkSwitchOfEightServices(b *testing.B) {
	for _, takes := range []time.Duration{0, 10 * time.Millisecond} {
		b.Run(fmt.Sprintf("drivers-take-%s", takes), func(b *testing.B) {
			s, _ := executor(b, 8, 4, takes)
			to(b, s, "one")
			var all []time.Duration
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				to(b, s, []string{"two", "one"}[i%2])
				all = append(all, time.Since(began)-8*takes)
			}
			quantiles(b, "overhead", all)
		})
	}
}

// BenchmarkLookAtFiveHundredServices is what list_services and each tick of the observation ask of the manager.
func BenchmarkLookAtFiveHundredServices(b *testing.B) {
	s, manager := executor(b, 500, 8, 0)
	to(b, s, "one")
	var all []time.Duration
	for b.Loop() {
		began := time.Now()
		for _, one := range manager.All() {
			manager.Status(one)
		}
		all = append(all, time.Since(began))
	}
	quantiles(b, "all", all)
}

// BenchmarkSimulateAmongFiveHundredServices makes a plan, with the digests of what it would start.
func BenchmarkSimulateAmongFiveHundredServices(b *testing.B) {
	s, _ := executor(b, 500, 8, 0)
	to(b, s, "one")
	var all []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := s.Simulate(b.Context(), plan.Request{Mode: "two"}); err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(began))
	}
	quantiles(b, "plan", all)
}

// quantiles reports the median and the 99th percentile, in milliseconds.
func quantiles(b *testing.B, what string, all []time.Duration) {
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(all[len(all)/2]), what+"-p50-ms")
	b.ReportMetric(ms(all[len(all)*99/100]), what+"-p99-ms")
}

// large is a host with eight GPUs, most of whose memory is taken by four fifths of its services, and 20 modes of five services
// each. Every fourth service can sleep.
func large(b *testing.B, services int) *mode.Switcher {
	b.Helper()
	var text strings.Builder
	text.WriteString("version: 1\ngpus:\n")
	for i := range 8 {
		fmt.Fprintf(&text, "  - {index: %d, name: Made up, memory_mib: 81920, simulated: true}\n", i)
	}
	text.WriteString("services:\n")
	each := 8 * 81920 / services
	var full []string
	for i := range services {
		mib := each * (10 + i%5) / 12
		if i%5 == 0 {
			mib = 81920 * 3 / 10 // of whom the modes are made: two or three others have to go for one
		}
		fmt.Fprintf(&text, "  - {id: s%d, driver: \"null\", gpus: [%d], vram_mib: %d}\n", i, i%8, mib)
		if i%5 != 0 {
			full = append(full, fmt.Sprintf("s%d", i))
		}
	}
	fmt.Fprintf(&text, "modes:\n  - {id: full, services: [%s]}\n", strings.Join(full, ", "))
	for m := range 20 {
		var ids []string
		for i := range 5 {
			ids = append(ids, fmt.Sprintf("s%d", (m*35+i*5)%services))
		}
		fmt.Fprintf(&text, "  - {id: m%d, services: [%s]}\n", m, strings.Join(ids, ", "))
	}
	n := 0
	s, _ := open(b, text.String(), 0, func(one *catalog.Service) {
		if n++; n%4 == 0 { // no entry of this driver may say so; the plans are the same
			one.Sleep, one.SleepMiB = catalog.SleepVLLM1, one.VRAMMiB/10
		}
	})
	to(b, s, "full")
	return s
}

// BenchmarkSimulate is what simulate_mode asks for, in all modes by turns: whether it fits, and with ten alternatives.
func BenchmarkSimulate(b *testing.B) {
	for _, c := range []struct {
		name         string
		services     int
		alternatives int
	}{
		{"fits-100-services", 100, 0}, {"alternatives-100-services", 100, 10},
		{"fits-1000-services", 1000, 0}, {"alternatives-1000-services", 1000, 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := large(b, c.services)
			var all []time.Duration
			found, cut := 0, 0
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				out, err := s.Simulate(b.Context(), plan.Request{Mode: fmt.Sprintf("m%d", i%20), Alternatives: c.alternatives})
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, time.Since(began))
				found += len(out.Alternatives)
				if out.CutOff {
					cut++
				}
			}
			quantiles(b, "simulate", all)
			b.ReportMetric(float64(found)/float64(len(all)), "alternatives")
			b.ReportMetric(float64(cut)/float64(len(all)), "cut-off")
		})
	}
}
