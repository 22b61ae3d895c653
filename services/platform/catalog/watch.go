package catalog

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// pollInterval is how soon a change of the file is seen.
const pollInterval = time.Second

// Source watches a catalog, a file or a folder, and keeps the last good reading. It is safe for concurrent use.
type Source struct {
	file    string
	opts    Options
	log     *slog.Logger
	current atomic.Pointer[Catalog]
	veto    atomic.Pointer[func(*Catalog) error]
	stop    chan struct{}
	stopped sync.WaitGroup
	once    sync.Once
}

// Open reads the catalog, which must be good, and watches it until Close.
func Open(file string, opts Options, log *slog.Logger) (*Source, error) {
	s := &Source{file: file, opts: opts, log: log, stop: make(chan struct{})}
	mark := stamp(file)
	first, err := Load(file, opts)
	if err != nil {
		return nil, err
	}
	s.current.Store(first)
	s.stopped.Add(1)
	go s.watch(mark)
	return s, nil
}

// Current returns the newest good catalog.
func (s *Source) Current() *Catalog { return s.current.Load() }

// Veto sets a function that may refuse a new catalog, which is then tried again every second.
func (s *Source) Veto(f func(*Catalog) error) { s.veto.Store(&f) }

// Close stops watching. The last catalog stays readable.
func (s *Source) Close() {
	s.once.Do(func() { close(s.stop) })
	s.stopped.Wait()
}

func (s *Source) watch(mark string) {
	defer s.stopped.Done()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var complaint string
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		// The stamp is taken before reading, so that a change during the reading is seen at the next tick.
		next := stamp(s.file)
		if next == mark && complaint == "" {
			continue
		}
		mark = next
		err := s.Reload()
		switch {
		case err == nil:
			complaint = ""
		case err.Error() != complaint:
			complaint = err.Error()
			s.log.Error("the catalogue was changed and is not accepted; the last good one stays in force", "error", complaint)
		}
	}
}

// Reload reads the file now instead of within a second. On an error the last good catalog stays in force.
func (s *Source) Reload() error {
	next, err := Load(s.file, s.opts)
	if err != nil {
		return err
	}
	before := s.Current()
	if next.Digest == before.Digest {
		return nil
	}
	if veto := s.veto.Load(); veto != nil {
		if err := (*veto)(next); err != nil {
			return fmt.Errorf("catalogue: %w", err)
		}
	}
	s.current.Store(next)
	s.log.Info("the catalogue was read again", "digest", next.Digest, "before", before.Digest, "services", len(next.Services))
	return nil
}

// stamp is a cheap fingerprint of the names, sizes and times of the catalog's files.
func stamp(path string) string {
	names, err := list(path)
	if err != nil {
		return "-"
	}
	var all strings.Builder
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return "-"
		}
		fmt.Fprintf(&all, "%s:%d:%d\n", name, info.Size(), info.ModTime().UnixNano())
	}
	return all.String()
}
