package process

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"

	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/config"
)

// A process is at rest that has allocated less than quiet in each of as many restIntervals as make half a minute. The first calls after
// that take some milliseconds longer, and giving memory back takes a collection, so it is done once worth was allocated since. A process
// that ends within half a minute pays for neither.
const (
	restInterval  = 5 * time.Second
	restIntervals = 6
	quiet         = 2 << 20
	worth         = 8 << 20
)

// limitMemory lets the heap grow between collections as far as a soft limit allows, throughput without the memory, and gives memory back
// once the process has started and whenever it is at rest, until ctx ends. It returns at once.
func limitMemory(ctx context.Context, c *config.Common, logger *slog.Logger) error {
	limit := int64(cmp.Or(c.MemoryLimitMiB, config.DefaultMemoryLimitMiB)) << 20
	debug.SetMemoryLimit(limit)
	debug.SetGCPercent(cmp.Or(c.GOGC, config.DefaultGOGC))
	keepRoom(ctx, limit)
	// gRPC's own steps from 32 KiB to 1 MiB at once, which a batch of records takes and keeps.
	buffers, err := mem.NewBinaryTieredBufferPool(8, 10, 12, 14, 15, 16, 17, 18, 20)
	if err != nil {
		return err
	}
	experimental.SetDefaultBufferPool(buffers)
	go rest(ctx, logger)
	return nil
}

// rest gives memory back half a minute after the start, under load too, and whenever the process has come to rest: the heap's free pages,
// which Go keeps for later, and those of the program itself, most of which its start alone needs.
func rest(ctx context.Context, logger *slog.Logger) {
	var last, given uint64
	rested := 0
	for intervals := 1; clock.Every(ctx, restInterval); intervals++ {
		now := sample("/gc/heap/allocs:bytes")
		if rested++; now-last >= quiet {
			rested = 0
		}
		if intervals == restIntervals || rested >= restIntervals && now-given > worth {
			given = now
			debug.FreeOSMemory()
			if err := releaseProgram(); err != nil {
				logger.DebugContext(ctx, "the program's pages stay in memory", "error", err)
			}
		}
		last = now
	}
}

// sample is one of the runtime's numbers.
func sample(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// keepRoom raises the soft limit while what is in use comes near it, after each collection, and takes it back later, until ctx ends: a
// process with many sessions would do little else than collect. It has twice what is in use, as Go has by default.
func keepRoom(ctx context.Context, limit int64) {
	runtime.AddCleanup(&struct{ _ *byte }{}, func(limit int64) {
		if ctx.Err() != nil {
			return
		}
		debug.SetMemoryLimit(max(limit, needed()))
		keepRoom(ctx, limit)
	}, limit)
}

// needed is twice what the last collection found in use, and what the runtime has beside the heap.
func needed() int64 {
	out := sample("/memory/classes/total:bytes") + 2*sample("/gc/heap/live:bytes")
	for _, part := range []string{"objects", "unused", "free", "released"} {
		out -= min(out, sample("/memory/classes/heap/"+part+":bytes"))
	}
	return int64(out)
}

// releaseProgram takes the pages of the program itself out of this process's memory. The kernel brings back from the file those that are
// used again.
func releaseProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer f.Close()
	unchanged, err := fileOnly(f, program)
	if err != nil {
		return err
	}
	for _, m := range unchanged {
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, m.from, m.to-m.from, syscall.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

// mapping is a part of a process's memory.
type mapping struct{ from, to uintptr }

// fileOnly returns, of what the kernel says in smaps, the parts that hold the file's bytes and nothing else: those that cannot be
// written and of which no page was changed, as the loader changes some of a program that can lie anywhere.
func fileOnly(smaps io.Reader, file string) (out []mapping, err error) {
	var m mapping
	candidate := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-") && !strings.HasSuffix(fields[0], ":"):
			if _, err := fmt.Sscanf(fields[0], "%x-%x", &m.from, &m.to); err != nil {
				return nil, fmt.Errorf("smaps: %q: %w", lines.Text(), err)
			}
			candidate = strings.HasSuffix(lines.Text(), " "+file) && strings.HasPrefix(fields[1], "r-") && strings.HasSuffix(fields[1], "p")
		case candidate && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			out = append(out, m)
		}
	}
	return out, lines.Err()
}
