package picture

import (
	"testing"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

// TestSmallChangesOfMemoryAddUp: one line for what is worth one.
func TestSmallChangesOfMemoryAddUp(t *testing.T) {
	p := New()
	at := func(used uint32) int {
		g := &executorv1.Gpu{MemoryTotalMib: 10000, MemoryUsedMib: used}
		return len(HostChange(&executorv1.GetHostResponse{Gpus: []*executorv1.GpuHolders{{Gpu: g}}})(p))
	}
	lines := 0
	for used := uint32(0); used <= 1024; used += 64 {
		lines += at(used)
	}
	if lines != 5 {
		t.Errorf("%d lines for 1 GiB in small steps, want 5", lines)
	}
}
