//go:build real && hardware && nvml && cgo

package nvml

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest"
)

// hardware opens the driver's own library; its absence is a failure.
func hardware(t testing.TB) gpu.Source {
	t.Helper()
	s, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestHardware reads a real GPU twice: what must hold of any.
func TestHardware(t *testing.T) {
	s := hardware(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var done sync.WaitGroup
	done.Go(func() { s.Watch(ctx, func(uuid string, xid uint32) { t.Logf("%s: XID %d", uuid, xid) }) })
	m := gpu.New(gpu.Config{Source: s, Catalog: func() *catalog.Catalog { return &catalog.Catalog{} }, Logger: platformtest.Logger()})
	for range 2 {
		h := m.Read(t.Context())
		if h.Problem != "" || h.Source != gpu.SourceNVML || len(h.GPUs) == 0 {
			t.Fatalf("got %+v", h)
		}
		for _, d := range h.GPUs {
			if d.Problem != "" || !strings.HasPrefix(d.UUID, "GPU-") || d.Name == "" || d.Total < 1000 || d.Simulated {
				t.Errorf("a GPU is %+v", d)
			}
			// The parts are rounded down one by one.
			if sum := d.Reserved + d.Used + d.Free; sum > d.Total || d.Total-sum > 3 {
				t.Errorf("reserved %d, used %d and free %d are not the total %d", d.Reserved, d.Used, d.Free, d.Total)
			}
			t.Logf("%d %s %s: total %d, reserved %d, used %d, free %d, foreign %d MiB; %s; programs %+v", d.Index, d.UUID, d.Name, d.Total,
				d.Reserved, d.Used, d.Free, d.Foreign, sensors(d), d.Processes)
		}
	}
	done.Wait()
}

func sensors(d gpu.Device) string {
	var out []string
	for _, x := range []struct {
		name  string
		value *uint32
	}{{"%", d.Utilisation}, {"C", d.Temperature}, {"W", d.Power}, {"ECC", d.ECC}} {
		if x.value == nil {
			out = append(out, x.name+" unknown")
			continue
		}
		out = append(out, strconv.FormatUint(uint64(*x.value), 10)+" "+x.name)
	}
	return strings.Join(out, ", ")
}

func BenchmarkReadHardware(b *testing.B) { bench(b, hardware(b)) }
