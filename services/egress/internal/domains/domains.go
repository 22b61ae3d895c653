// Package domains is egress' own reading of where agents may reach: the lists of the security configuration's layers, and what the projects
// that a human trusted block. The vault reads them too, and a human owns them. No RPC changes them. Each file is taken over by itself: one that is broken, or that the gateway's
// user could have written, leaves what was good of it in force and the others alone.
package domains

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/security/trusted"
	"durward.internal/services/platform/sink/wiring"
)

// Bounds of what is read, as the vault's.
const (
	maxFile  = 256 << 10
	maxUsers = 64
)

// Config says what to read.
type Config struct {
	// Path is the system's list. Users' are beside it, in users/USER, and so is projects.yaml with the copies that it names.
	Path string
	// Foreign could not have written any; nil: not checked.
	Foreign *ownership.Foreign
	Log     process.Log
	Logger  *slog.Logger
}

// Domains are the lists, read again when they change. It is safe for concurrent use.
type Domains struct {
	cfg      Config
	current  atomic.Pointer[destination.List]
	watching *filewatch.Watcher

	mu    sync.Mutex
	lists map[destination.Source]*destination.List
	files map[destination.Source]*wiring.Live[*destination.List]
}

// Open reads the lists for the first time; each that is there has to be good.
func Open(cfg Config) (*Domains, error) {
	d := &Domains{cfg: cfg, lists: map[destination.Source]*destination.List{}, files: map[destination.Source]*wiring.Live[*destination.List]{}}
	sources, err := d.sources()
	for _, from := range sources {
		if err == nil {
			err = d.open(from, false)
		}
	}
	return d, err
}

// Current is what is in force.
func (d *Domains) Current() *destination.List { return d.current.Load() }

// Refused says why a file that is there now is not in force; "" where all are.
func (d *Domains) Refused() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, from := range slices.SortedFunc(maps.Keys(d.files), byFile) {
		if why := d.files[from].Refused(); why != "" {
			return why
		}
	}
	if d.watching == nil || d.watching.Err() == nil {
		return ""
	}
	return clean.Line(d.watching.Err().Error(), 500)
}

// Watch takes over what changes until ctx ends.
func (d *Domains) Watch(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	watched := map[destination.Source]bool{}
	watch := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for from, file := range d.files {
			if !watched[from] {
				watched[from] = true
				running.Go(func() { file.Watch(ctx) })
			}
		}
	}
	watch()
	watching := filewatch.New(filewatch.Paths(d.users()), func() error {
		sources, err := d.sources()
		for _, from := range sources {
			err = errors.Join(err, d.open(from, true))
		}
		watch()
		return err
	})
	d.mu.Lock()
	d.watching = watching
	d.mu.Unlock()
	watching.Run(ctx)
}

func (d *Domains) folder() string { return filepath.Dir(d.cfg.Path) }
func (d *Domains) users() string  { return filepath.Join(d.folder(), "users") }

// sources are the files that there may be: the system's, that of the projects, and one for each user who has a folder.
func (d *Domains) sources() ([]destination.Source, error) {
	all := []destination.Source{{Layer: "system", File: destination.File}, {Layer: trusted.Layer, File: trusted.File}}
	users, err := ownership.Names(d.users(), maxUsers, d.cfg.Foreign)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return all, fmt.Errorf("users: %w", err)
	}
	for _, user := range users {
		if user.IsDir() {
			all = append(all, destination.Source{Layer: "user", File: path.Join("users", user.Name(), destination.File), User: user.Name()})
		}
	}
	return all, nil
}

// open begins to read a file. One that comes late is taken over by its watch, as a change.
func (d *Domains) open(from destination.Source, late bool) error {
	d.mu.Lock()
	_, known := d.files[from]
	d.mu.Unlock()
	if known {
		return nil
	}
	at := filepath.Join(d.folder(), from.File)
	parse := func(raw []byte) (*destination.List, error) { return destination.ParseList(from, raw) }
	switch {
	case from.Layer == trusted.Layer:
		parse = d.projects
	case from.User == "":
		at = d.cfg.Path
	}
	file, err := wiring.OpenLive(wiring.LiveConfig[*destination.List]{
		Name: from.File, Path: at, Max: maxFile, Optional: true, Late: late,
		Foreign: d.cfg.Foreign, Log: d.cfg.Log, Logger: d.cfg.Logger,
		Parse: parse,
		Tell: func(before, now *destination.List) string {
			if from.Layer == trusted.Layer && len(before.Block)+len(now.Block) == 0 {
				return ""
			}
			return fmt.Sprintf("%s allowed, %d blocked", clean.Count(len(now.Allow), "domain"), len(now.Block))
		},
		Set: func(list *destination.List) error { d.set(from, list); return nil },
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[from] = file
	return nil
}

// projects are the domains that trusted projects block. A copy is read with the entry that names it by its digest; it cannot change.
func (d *Domains) projects(raw []byte) (*destination.List, error) {
	entries, err := trusted.Parse(trusted.File, raw)
	if err != nil {
		return nil, err
	}
	var all []*destination.List
	for _, entry := range entries {
		name := entry.Copy()
		text, err := ownership.ReadFile(filepath.Join(d.folder(), name), maxFile, d.cfg.Foreign)
		if err == nil {
			err = entry.Check(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list, err := destination.ParseProject(destination.Source{Layer: trusted.Layer, File: name}, entry.Clients, text)
		if err != nil {
			return nil, err
		}
		all = append(all, list)
	}
	return destination.Join(all...), nil
}

// set puts a file's list into force, beside the others.
func (d *Domains) set(from destination.Source, list *destination.List) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists[from] = list
	all := []*destination.List{destination.BuiltIn()}
	for _, from := range slices.SortedFunc(maps.Keys(d.lists), byFile) {
		all = append(all, d.lists[from])
	}
	d.current.Store(destination.Join(all...))
}

func byFile(a, b destination.Source) int { return cmp.Compare(a.File, b.File) }
