package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	"durward.internal/deploy/e2e/fakegpu"
)

// Why a real GPU gives nothing.
var (
	errRoom   = errors.New("the GPU has not enough free memory")
	errDriver = errors.New("there is no CUDA driver, or this build knows of none")
)

// loadSteps is in how many pieces it loads.
const loadSteps = 10

// engine is the model server.
type engine struct {
	*settings
	host *fakegpu.Host

	mu    sync.Mutex
	ready bool
	// level is how deep it sleeps; 0: awake.
	level int
	// weights, reloaded and cache are how far a wake from level 2 is.
	weights, reloaded, cache bool
	// loaded is the state of a router's models.
	loaded map[string]string
	// busy and served count requests.
	busy, served int
}

func (e *engine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// at crashes here, if it was told to.
func (e *engine) at(step string) {
	if e.crashAt == step {
		log.Printf("crash at %s, as asked", step)
		os.Exit(crashed)
	}
}

// note appends a line to the record.
func (e *engine) note(line string) {
	if e.record == "" {
		return
	}
	f, err := os.OpenFile(e.record, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		log.Print(err)
		return
	}
	_, _ = fmt.Fprintln(f, line)
	_ = f.Close()
}

// load takes the memory, a piece after the other.
func (e *engine) load(ctx context.Context) {
	for i := 1; i <= loadSteps; i++ {
		if i == loadSteps/2 {
			e.at("load")
			if e.stall {
				log.Print("loading hangs, as asked")
				<-ctx.Done()
				os.Exit(0)
			}
		}
		select {
		case <-ctx.Done():
			os.Exit(0)
		case <-time.After(e.loadTime / loadSteps):
		}
		e.take(e.vram * uint(i) / loadSteps)
		log.Printf("loading: %d %%", i*100/loadSteps)
	}
}

// take holds so many MiB, shared among the GPUs as services share, and ends the program where there is no room.
func (e *engine) take(mib uint) { e.hold(mib, 0) }

// hold is take with more on the first GPU.
func (e *engine) hold(mib, first uint) {
	if e.oomAt > 0 && mib >= e.oomAt {
		e.oom(e.gpus[0], mib)
	}
	share := (mib + uint(len(e.gpus)) - 1) / uint(len(e.gpus))
	if e.cuda {
		for i, index := range e.gpus {
			want := share
			if i == 0 {
				want += first
			}
			if err := card(index).hold(want); errors.Is(err, errRoom) {
				e.oom(index, want)
			} else if err != nil {
				log.Fatal(err)
			}
		}
		return
	}
	if e.folder == "" {
		return
	}
	now, err := e.host.Read()
	if err != nil {
		log.Fatal(err)
	}
	var holds []fakegpu.Hold
	for i, index := range e.gpus {
		want := share
		if i == 0 {
			want += first
		}
		if int(index) >= len(now) || now[index].Lost {
			log.Print("RuntimeError: No CUDA GPUs are available")
			os.Exit(outOfMemory)
		}
		if want > 0 {
			holds = append(holds, fakegpu.Hold{PID: os.Getpid(), GPU: index, MiB: uint32(want)})
		}
	}
	err = e.host.Take(e.name, holds...)
	if full := (*fakegpu.Full)(nil); errors.As(err, &full) {
		e.oom(full.GPU, uint(full.MiB))
	} else if err != nil {
		log.Fatal(err)
	}
}

func (e *engine) oom(index uint32, mib uint) {
	log.Printf("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %d.00 MiB. GPU %d has not enough free memory.", mib, index)
	os.Exit(outOfMemory)
}

// sleep gives memory back, or says so. The engine is locked.
func (e *engine) sleep(level int) {
	e.level, e.weights, e.reloaded, e.cache = level, false, level != 2, false
	if !e.lying {
		e.hold(e.residue, e.leak)
	}
}

// wake takes memory for what the tags name; none is all. The engine is locked.
func (e *engine) wake(tags []string) {
	if len(tags) == 0 || slices.Contains(tags, "weights") {
		e.weights = true
		e.take(max(e.vram*3/4, e.residue))
	}
	if len(tags) == 0 || slices.Contains(tags, "kv_cache") {
		e.cache = true
	}
	if e.weights && e.cache {
		e.level = 0
		e.take(e.vram)
	}
}

// sane reports whether it answers sense: weights that were dropped and not loaded again are noise. The engine is locked.
func (e *engine) sane() bool { return e.level == 0 && (e.reloaded || !e.weights) }

// count is a router's memory: that of every model that it holds. The engine is locked.
func (e *engine) count() {
	var held uint
	for _, state := range e.loaded {
		if state == "loaded" || state == "loading" {
			held += e.vram
		}
	}
	e.take(held)
}
