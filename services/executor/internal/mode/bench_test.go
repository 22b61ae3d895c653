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
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalogue"
)

// executor is a real one from the switcher down to the disk; only its driver runs nothing.
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
	c, err := catalogue.Parse("catalogue.yaml", []byte(text.String()), catalogue.Options{Development: true})
	if err != nil {
		b.Fatal(err)
	}
	current := func() *catalogue.Catalogue { return c }
	memory, err := store.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = memory.Close() })
	logger := slog.New(slog.DiscardHandler)
	var manager *service.Manager
	gpus := gpu.New(gpu.Config{Catalogue: current, Claims: func() []gpu.Claim { return manager.Claims() }, Logger: logger})
	leases := &lease.Leases{}
	consent := func(_ context.Context, begin func()) error {
		begin()
		return nil
	}
	manager = service.New(service.Config{
		Catalogue: current, Drivers: map[string]service.Driver{catalogue.DriverNull: &null.Driver{StartTakes: takes, StopTakes: takes}},
		Health: health.New(), GPUs: gpus, Leases: leases, Confirm: consent, Logger: logger,
	})
	return mode.New(mode.Config{
		Catalogue: current, Services: manager, GPUs: gpus, Leases: leases, Journal: memory, Margin: 512, Hub: &progress.Hub{},
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
	plan, err := s.Simulate(b.Context(), id, nil)
	if err != nil {
		b.Fatal(err)
	}
	out, err := s.Switch(b.Context(), id, plan.Digest, nil, mode.Consent{First: consent, Later: consent, Operation: "bench"})
	if err != nil || out.Outcome != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED {
		b.Fatalf("switch to %s: %+v, %v", id, out, err)
	}
}

// BenchmarkSwitchOfEightServices stops four services and starts four others, with everything that a switch writes to the disk. What
// the drivers take is subtracted in overhead-ms: the aim is 50 ms at most.
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
			manager.Look(one)
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
		if _, err := s.Simulate(b.Context(), "two", nil); err != nil {
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
