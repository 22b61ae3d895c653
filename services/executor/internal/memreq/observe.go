package memreq

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"time"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

const (
	// lookPatience is how long a driver may take to say what an entry runs.
	lookPatience = 5 * time.Second
	// again is how long it takes until a file that could not be read, and did not change, is read again.
	again = 10 * time.Minute
	// maxFiles and maxWanted bound what is remembered of files, and how many services wait to be looked at. A catalogue names at most
	// 1024 models, and all of them are remembered; where they are not, each that is read displaces others that are wanted.
	maxFiles  = 2048
	maxWanted = 1024
)

// definition is the configuration of a service when it was last looked at.
type definition struct {
	// entry is what it was read for, by entrySum.
	entry [32]byte
	// digest is of the entry with what it names; "" where that could not be read.
	digest string
	at     time.Time
}

// file is what was read of a model's files.
type file struct {
	stamp stamp
	card  *model.Card
	// exact is by the run that it was asked for.
	exact map[exactRun][]uint32
	err   error
	// at is when it was looked at, read when it was read, refused when llama.cpp's program last gave no answer.
	at, read, refused time.Time
}

// stamp changes when a file does.
type stamp struct {
	size, inode, changed int64
	// config is of a folder's config.json.
	config int64
}

// exactRun is what of a run decides about llama.cpp's own answer, and how many layers are on GPUs, which a Run says by a place in memory.
type exactRun struct {
	vram.Run
	layers uint32
}

func exactOf(r vram.Run) exactRun {
	layers := uint32(1 << 31)
	if r.GPULayers != nil {
		layers = *r.GPULayers
	}
	r.GPULayers, r.Fit, r.FitTargetMiB, r.Sleep = nil, false, 0, ""
	return exactRun{r, layers}
}

// plain is the entry without what a human calls it: that changes nothing of how it runs.
func plain(s *catalog.Service) *catalog.Service {
	out := *s
	out.Name, out.Description = "", ""
	return &out
}

// entrySum tells entries apart by how they run.
func entrySum(s *catalog.Service) [32]byte {
	entry, err := plain(s).Subject("")
	if err != nil {
		return [32]byte{}
	}
	return sha256.Sum256(entry)
}

// digestOf is the configuration's digest: of the entry, without what a human calls it, and of what it names.
func digestOf(s *catalog.Service, definition string) (string, error) {
	entry, err := plain(s).Subject(definition)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(entry)
	return hex.EncodeToString(sum[:]), nil
}

// lookable reports whether there is something to look at again from time to time. The book is locked.
func (b *Tracker) lookable(s *catalog.Service) bool {
	return b.cfg.Definition != nil && len(b.peaks[s.ID]) > 0 || b.readable(s)
}

// readable reports whether the model's files are read for the service.
func (b *Tracker) readable(s *catalog.Service) bool {
	return s.Model != nil && s.Model.File != "" && (b.cfg.Inspector != nil && s.Model.Card == nil || b.cfg.Exact != nil)
}

// due reports whether it is time to look again. The book is locked.
func (b *Tracker) due(s *catalog.Service) bool {
	now := time.Now()
	if b.cfg.Definition != nil && len(b.peaks[s.ID]) > 0 && now.Sub(b.definitions[s.ID].at) > stale {
		return true
	}
	if !b.readable(s) {
		return false
	}
	f, ok := b.files[s.Model.File]
	return !ok || now.Sub(f.at) > stale
}

// want asks Run to look at a service; first: somebody waits for it.
func (b *Tracker) want(s *catalog.Service, first bool) {
	b.mu.Lock()
	wanted := b.looked != s.ID && (first || len(b.wanted) < maxWanted)
	if wanted {
		b.wanted[s.ID] = first || b.wanted[s.ID]
	}
	b.mu.Unlock()
	if !wanted {
		return
	}
	select {
	case b.ask <- struct{}{}:
	default:
	}
}

// card is the catalog's, else what was read of the model's file, else nil. The book is locked.
func (b *Tracker) card(s *catalog.Service) *model.Card {
	switch {
	case s.Model == nil:
		return nil
	case s.Model.Card != nil:
		return s.Model.Card
	}
	if f, ok := b.files[s.Model.File]; ok {
		return f.card
	}
	return nil
}

// exact is what llama.cpp itself said of the service, in the order of its GPUs, or nil. The book is locked.
func (b *Tracker) exact(s *catalog.Service) []uint32 {
	if b.cfg.Exact == nil || s.Model == nil {
		return nil
	}
	f, ok := b.files[s.Model.File]
	if !ok || len(f.exact) == 0 {
		return nil
	}
	run, err := vram.RunOf(s)
	if err != nil || run.Visible != "" {
		return nil // that program saw all GPUs
	}
	found := f.exact[exactOf(run)]
	if len(found) != len(s.GPUs) {
		return nil // it divided the model among more or fewer GPUs than the service will
	}
	// It counts GPUs as the driver does, from the lowest index on.
	order := slices.Sorted(slices.Values(s.GPUs))
	out := make([]uint32, len(found))
	for i, index := range s.GPUs {
		out[i] = found[slices.Index(order, index)]
	}
	return out
}

// seen is what was measured of the service as it would run now, by state. The book is locked.
func (b *Tracker) seen(s *catalog.Service, models *gpu.Models) map[string]store.Peak {
	all := b.peaks[s.ID]
	if len(all) == 0 {
		return nil
	}
	known, ok := b.definitions[s.ID]
	if !ok || known.digest == "" || known.entry != entrySum(s) {
		return nil
	}
	one := all[configuration{known.digest, hardware(models, s)}]
	if one == nil {
		return nil
	}
	out := make(map[string]store.Peak, len(one.states))
	for state, r := range one.states {
		if len(r.MiB) == len(s.GPUs) {
			out[state] = r.Peak
		}
	}
	return out
}

// Observe finds out what the service is now, so far as what is known of its memory depends on it. It waits for the service's driver, and
// for its model's files if nothing was read of them yet, a few seconds at most: what is to be started is looked at before it is decided
// whether it fits.
func (b *Tracker) Observe(ctx context.Context, s *catalog.Service) {
	b.recognise(ctx, s)
	b.Await(ctx, s)
}

// Await waits for the files of the services' models that nothing was read of yet, a few seconds at most for all of them, while Run
// reads them.
func (b *Tracker) Await(ctx context.Context, services ...*catalog.Service) {
	if unread, _ := b.unread(services); len(unread) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	for {
		unread, arrived := b.unread(services)
		if len(unread) == 0 {
			return
		}
		for _, s := range unread {
			b.want(s, true)
		}
		select {
		case <-ctx.Done():
			return
		case <-arrived:
		}
	}
}

// unread are the services whose models' files were not read yet, and what is closed when one more was.
func (b *Tracker) unread(services []*catalog.Service) ([]*catalog.Service, <-chan struct{}) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var out []*catalog.Service
	for _, s := range services {
		if b.readable(s) && b.files[s.Model.File] == nil {
			out = append(out, s)
		}
	}
	return out, b.arrived.Wait()
}

// recognise finds out how the service would run now, if anything that was measured depends on it.
func (b *Tracker) recognise(ctx context.Context, s *catalog.Service) {
	b.mu.RLock()
	measured := len(b.peaks[s.ID]) > 0
	b.mu.RUnlock()
	if measured {
		b.define(ctx, s)
	}
}

// define notes the digest of the service's configuration, and returns it; "" where it cannot be read.
func (b *Tracker) define(ctx context.Context, s *catalog.Service) string {
	if b.cfg.Definition == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	now := definition{entry: entrySum(s), at: time.Now()}
	what, err := b.cfg.Definition(ctx, s)
	if err == nil {
		now.digest, err = digestOf(s, what)
	}
	if err != nil {
		b.cfg.Logger.DebugContext(ctx, "what was measured of a service is not used: what it runs has no digest", "service_id", s.ID, "error", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.definitions[s.ID]
	b.definitions[s.ID] = now
	if before.digest != now.digest || before.entry != now.entry {
		b.changed()
	}
	return now.digest
}

// serve looks at what was asked for until ctx ends.
func (b *Tracker) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.ask:
		}
		for id := b.next(); id != "" && ctx.Err() == nil; id = b.next() {
			if s, ok := b.cfg.Catalog().Lookup(id); ok {
				b.renew(ctx, s)
			}
		}
	}
}

// next is the service to be looked at now, one that somebody waits for before others; "" if there is none.
func (b *Tracker) next() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looked = ""
	for id, first := range b.wanted {
		if b.looked == "" || first && !b.wanted[b.looked] {
			b.looked = id
		}
	}
	delete(b.wanted, b.looked)
	return b.looked
}

// renew looks at a service and at its model's files.
func (b *Tracker) renew(ctx context.Context, s *catalog.Service) {
	b.recognise(ctx, s)
	b.mu.RLock()
	readable := b.readable(s)
	b.mu.RUnlock()
	if readable {
		b.read(ctx, s)
	}
}

// read reads the model's files. The inspector remembers what it has read, so this is cheap while they are as they were; what could not
// be read is left alone for a while unless it changes.
func (b *Tracker) read(ctx context.Context, s *catalog.Service) {
	path, now := s.Model.File, time.Now()
	b.mu.RLock()
	before := b.files[path]
	b.mu.RUnlock()
	next := &file{at: now, read: now}
	if next.stamp, next.err = stampOf(path); next.err == nil {
		same := before != nil && before.stamp == next.stamp
		switch {
		case same && before.err != nil && now.Sub(before.read) < again:
			next.err, next.read = before.err, before.read
		default:
			if same {
				next.exact, next.refused = before.exact, before.refused
			}
			next.err = b.inspect(ctx, s, next)
		}
	}
	if ctx.Err() != nil {
		return
	}
	if next.err != nil && (before == nil || before.err == nil) {
		b.cfg.Logger.WarnContext(ctx, "a model's memory cannot be estimated from its file", "service_id", s.ID, "error", next.err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if before == nil && len(b.files) >= maxFiles {
		b.files = map[string]*file{}
	}
	b.files[path] = next
	b.arrived.Raise()
	if before == nil || !reflect.DeepEqual(before.card, next.card) || !reflect.DeepEqual(before.exact, next.exact) {
		b.changed()
	}
}

// inspect fills in a file's card and, for llama.cpp, what that says itself.
func (b *Tracker) inspect(ctx context.Context, s *catalog.Service, f *file) error {
	if s.Model.Card == nil && b.cfg.Inspector != nil {
		card, err := b.cfg.Inspector.Card(ctx, s.Model.File)
		if err != nil {
			return err
		}
		f.card = &card
	}
	if b.cfg.Exact == nil {
		return nil
	}
	run, err := vram.RunOf(s)
	if err != nil || run.Engine != enginecmd.LlamaCPP {
		return nil
	}
	key := exactOf(run)
	if _, asked := f.exact[key]; asked || f.at.Sub(f.refused) < again {
		return nil
	}
	b.mu.RLock()
	starts := b.starts
	b.mu.RUnlock()
	if starts != nil && starts() {
		return nil // it opens every GPU for a moment: an engine that measures what is free meanwhile is misled
	}
	// What it would take if it were not made to fit: that depends on what happens to be free now.
	run.Fit = false
	sizes, err := b.cfg.Exact(ctx, s.Model.File, run)
	if err != nil {
		b.cfg.Logger.WarnContext(ctx, "llama-fit-params does not say what a model takes", "service_id", s.ID, "error", err)
		f.refused = f.at
		return nil
	}
	exact := map[exactRun][]uint32{key: sizes}
	for k, v := range f.exact {
		if len(exact) < maxFiles {
			exact[k] = v
		}
	}
	f.exact = exact
	return nil
}

// stampOf looks at a model's file, or at a model's folder.
func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	out := stamp{size: info.Size(), changed: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		out.inode = int64(sys.Ino)
	}
	if info.IsDir() {
		if config, err := os.Stat(filepath.Join(path, "config.json")); err == nil {
			out.config = config.ModTime().UnixNano()
		}
	}
	return out, nil
}
