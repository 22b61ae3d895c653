package catalog

import (
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"durward.internal/services/platform/filewatch"
)

// Source watches a catalog, a file or a folder, and keeps the last good reading. It is safe for concurrent use.
type Source struct {
	file    string
	opts    Options
	log     *slog.Logger
	current atomic.Pointer[Catalog]
	veto    atomic.Pointer[func(*Catalog) error]
	watch   *filewatch.Watcher
	// complaint is what was last said to be wrong.
	complaint atomic.Pointer[string]
}

// Open reads the catalog, which must be good, and watches it until Close.
func Open(file string, opts Options, log *slog.Logger) (*Source, error) {
	s := &Source{file: file, opts: opts, log: log}
	var err error
	if s.watch, err = filewatch.Open(s.look, s.load); err != nil {
		return nil, err
	}
	return s, nil
}

// Current returns the newest good catalog.
func (s *Source) Current() *Catalog { return s.current.Load() }

// Veto sets a function that may refuse a new catalog, which is then tried again every second.
func (s *Source) Veto(f func(*Catalog) error) { s.veto.Store(&f) }

// Close stops watching. The last catalog stays readable.
func (s *Source) Close() { s.watch.Close() }

// Reload reads the file now instead of within a second. On an error the last good catalog stays in force.
func (s *Source) Reload() error { return s.watch.Reload() }

func (s *Source) load() error {
	err := s.adopt()
	complaint := ""
	if err != nil {
		complaint = err.Error()
	}
	if before := s.complaint.Swap(&complaint); err != nil && s.Current() != nil && (before == nil || *before != complaint) {
		s.log.Error("the catalogue was changed and is not accepted; the last good one stays in force", "error", complaint)
	}
	return err
}

// Refused says why the catalog that is there now is not in force; "" where it is.
func (s *Source) Refused() string {
	if complaint := s.complaint.Load(); complaint != nil {
		return *complaint
	}
	return ""
}

// take puts a catalog in force, and says which of its entries are not.
func (s *Source) take(next *Catalog) {
	s.current.Store(next)
	for _, d := range next.Disabled {
		s.log.Error("an entry of the catalogue is wrong and disabled", "kind", d.Kind, "id", d.ID, "problem", d.Problem.Error())
	}
}

func (s *Source) adopt() error {
	next, err := Load(s.file, s.opts)
	if err != nil {
		return err
	}
	before := s.Current()
	if before == nil {
		s.take(next)
		return nil
	}
	if next.Digest == before.Digest && !next.mends(before) {
		return nil
	}
	if veto := s.veto.Load(); veto != nil {
		if err := (*veto)(next); err != nil {
			return fmt.Errorf("catalogue: %w", err)
		}
	}
	s.take(next)
	s.log.Info("the catalogue was read again", "digest", next.Digest, "before", before.Digest, "services", len(next.Services))
	return nil
}

// mends reports whether an entry that was disabled before is disabled no more, or for another reason: a user or a program that it names
// can come to this host without a change of the file.
func (c *Catalog) mends(before *Catalog) bool {
	return slices.ContainsFunc(before.Disabled, func(d Disabled) bool { return !slices.Contains(c.Disabled, d) })
}

// look looks at the catalog's files.
func (s *Source) look() filewatch.Stamps {
	names, err := list(s.file)
	if err != nil {
		return nil
	}
	return filewatch.Paths(names...)()
}
