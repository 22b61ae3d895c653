package install

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// documents installs completion files and manual pages. They are parts of the program: every version writes its own, and what it
// has no more is removed.
func (p *Plan) documents() error {
	if p.packaged {
		p.supersede()
		return nil
	}
	folders := map[string][]string{}
	for path := range p.opts.Documents {
		folders[filepath.Dir(path)] = append(folders[filepath.Dir(path)], path)
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if err := p.documentsIn(folder, folders[folder]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) documentsIn(folder string, paths []string) error {
	there, err := os.ReadDir(p.on(folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var stale, differ []string
	for _, entry := range there {
		path := filepath.Join(folder, entry.Name())
		if _, ours := p.opts.Documents[path]; !ours && entry.Type().IsRegular() && strings.HasPrefix(entry.Name(), "durward-") {
			stale = append(stale, path)
		}
	}
	missing := 0
	for _, path := range paths {
		current, err := os.ReadFile(p.on(path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing++
		case err != nil:
			return err
		case bytes.Equal(current, p.opts.Documents[path]):
			continue
		}
		differ = append(differ, path)
	}
	slices.Sort(differ)
	s := Step{Verb: Same, What: describe(filepath.Join(folder, "*durward*"), owner{}, 0o644)}
	if len(paths) == 1 {
		s.What = describe(paths[0], owner{}, 0o644)
	}
	switch {
	case missing == len(paths):
		s.Verb = Make
	case len(differ)+len(stale) > 0:
		s.Verb, s.Note = Change, "another version"
	}
	s.do = func(context.Context) (string, error) {
		for _, path := range differ {
			if err := p.put(path, p.opts.Documents[path], owner{}, 0o644); err != nil {
				return "", err
			}
		}
		for _, path := range stale {
			if err := os.Remove(p.on(path)); err != nil {
				return "", err
			}
		}
		return "", nil
	}
	p.add(s)
	return nil
}
