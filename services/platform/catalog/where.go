package catalog

import (
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"durward.internal/services/platform/config"
)

// Written is a service's entry as a human wrote it: where it stands, and what of it says how its engine is run. Nothing is checked
// or filled in.
type Written struct {
	File string
	// Line is where the entry begins, 1 for the file's first.
	Line          int
	Argv, Command []string
	Unit          string

	raw  []byte
	path string
}

// Find finds a service's entry in the catalog at path, which need not be good. ok is false where it is in none of its files, or
// they cannot be read.
func Find(path, id string) (w Written, ok bool) {
	files, err := Read(path)
	if err != nil {
		return Written{}, false
	}
	for _, f := range files {
		d := &document{}
		if len(f.Data) > maxFileBytes || config.Parse(f.Name, f.Data, d) != nil {
			continue
		}
		for i := range d.Services {
			s := &d.Services[i]
			if s.ID != id {
				continue
			}
			w = Written{File: f.Name, Argv: s.Argv, Unit: s.Unit, raw: f.Data, path: fmt.Sprintf("$.services[%d]", i)}
			if s.Container != nil {
				w.Command = s.Container.Command
			}
			w.Line, _ = position(parsed(w.raw), w.path)
			return w, true
		}
	}
	return Written{}, false
}

// At is the line at which the entry says something: "gpus", "argv[2]", "extra_config.context_size". ok is false where it does not.
func (w Written) At(key string) (line int, ok bool) {
	p, err := yaml.PathString(w.path + "." + key)
	if err != nil {
		return 0, false
	}
	file, err := parser.ParseBytes(w.raw, 0)
	if err != nil {
		return 0, false
	}
	node, err := p.FilterFile(file)
	if err != nil || node == nil || node.GetToken() == nil {
		return 0, false
	}
	return node.GetToken().Position.Line, true
}
