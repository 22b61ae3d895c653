package security

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/security/ownership"
)

// Options say what to read.
type Options struct {
	// Dir is the folder; "": there is none, and what is built in binds.
	Dir string
	// Also are further files to judge and watch, by the name under which changes are told: "clients.yaml". What is in them is for
	// others to read.
	Also map[string]string
	// Foreign may neither own nor write any of it, nor a folder above it; nil: nobody is looked at (development).
	Foreign *Foreign
	// OnChange is told of each file that is not what it was: at Open of all that there are, then of changes and of what was
	// refused. It is called by one goroutine at a time, after Current has it, and must not call Reload or Close. May be nil.
	OnChange func(Change)
	// Adopt is given each change of a file of Also before it is told, and returns it, with a Problem that it found: who reads the file reads
	// it then, so that nobody hears that a file is in force which its reader has not read. One with a Problem is refused like any other.
	// May be nil.
	Adopt func(Change) Change
	// Logger may be nil.
	Logger *slog.Logger
}

// Live is the configuration as it was last good, file by file. It is safe for concurrent use.
type Live struct {
	opts    Options
	current atomic.Pointer[State]

	// adopted is what is in force of each file; refused what was refused of it last, so that it is told once.
	adopted map[string][]byte
	refused map[string]string

	watch *filewatch.Watcher
}

// Open reads the configuration and watches it until Close. A file that is not good is an error here, and nothing is in force:
// what it would have forbidden is not known.
func Open(opts Options) (*Live, error) {
	l := newLive(opts)
	if err := l.watch.Reload(); err != nil {
		return nil, err
	}
	l.watch.Start()
	return l, nil
}

// newLive has read nothing yet.
func newLive(opts Options) *Live {
	l := &Live{opts: opts, adopted: map[string][]byte{}, refused: map[string]string{}}
	l.opts.Logger = cmp.Or(l.opts.Logger, slog.New(slog.DiscardHandler))
	l.watch = filewatch.New(func() filewatch.Stamps { return l.opts.list().stamps }, func() error { return l.load(nil, l.Current() == nil) })
	return l
}

// Try reads the configuration once, as it would be with some files changed: by their names, to these contents, or nil for a file
// that is taken away. It returns what would be in force, or everything that would be refused.
func Try(opts Options, changed map[string][]byte) (*State, error) {
	opts.Adopt, opts.OnChange, opts.Logger = nil, nil, nil
	l := newLive(opts)
	if err := l.load(changed, true); err != nil {
		return nil, err
	}
	return l.current.Load(), nil
}

// Look is Try for looking at files as they are: a file that is not good is left out, and told of among the files with its Problem.
// The state is nil where nothing can be made of the rest.
func Look(opts Options, changed map[string][]byte) (*State, []File) {
	opts.Adopt, opts.OnChange, opts.Logger = nil, nil, nil
	l := newLive(opts)
	p := l.read(l.opts.list(), changed)
	state, err := l.build(p)
	if err != nil {
		p.problems["/"] = clean.Line(err.Error(), 500)
	}
	files := l.files(p)
	if state != nil {
		state.Files = files
	}
	return state, files
}

// Current is what is in force.
func (l *Live) Current() *State { return l.current.Load() }

// Err says what of the files as they are now is not in force, or nil.
func (l *Live) Err() error { return l.watch.Err() }

// Reload reads the files now, instead of within a second.
func (l *Live) Reload() { _ = l.watch.Reload() } // Err keeps it

// Close ends the watch.
func (l *Live) Close() { l.watch.Close() }

// proposal is a configuration that is about to be tried.
type proposal struct {
	data     map[string][]byte
	layer    map[string]string
	problems map[string]string
	// unread is what was refused, where it could be read: to tell one refusal from the next.
	unread map[string][]byte
}

// refuse puts a file back to what is in force of it.
func (p *proposal) refuse(name, why string, adopted map[string][]byte) {
	if _, told := p.problems[name]; !told {
		p.problems[name] = clean.Line(why, 500)
		p.unread[name] = p.data[name]
	}
	if before, ok := adopted[name]; ok {
		p.data[name] = before
	} else {
		delete(p.data, name)
	}
}

// load tries the files as they are, adopts what is good, file by file, and tells what changed. With strict set, anything that
// is not good is an error and nothing is adopted.
func (l *Live) load(overlay map[string][]byte, strict bool) error {
	p := l.read(l.opts.list(), overlay)
	state, err := l.build(p)
	if err != nil {
		p.problems["/"] = clean.Line(err.Error(), 500)
	}
	if failure := joined(p.problems); failure != nil && (strict || state == nil) {
		// Where state is nil not even what was in force can be made again: it stays as it is.
		return failure
	}
	changes := l.changes(p)
	failure := joined(p.problems) // with what Adopt found
	if strict && failure != nil {
		return failure
	}
	state.Files = l.files(p)
	l.adopted = p.data
	l.current.Store(state)
	for _, c := range changes {
		l.tell(c)
	}
	return failure
}

func (l *Live) tell(c Change) {
	if c.Problem != "" {
		l.opts.Logger.Error("a file of the security configuration is refused; what was good before stays in force",
			"file", c.File, "problem", c.Problem)
	} else {
		l.opts.Logger.Info("a file of the security configuration is in force", "file", c.File, "before", c.Before, "after", c.After)
	}
	if l.opts.OnChange != nil {
		l.opts.OnChange(c)
	}
}

// read takes in every file, and keeps what is in force where that fails.
func (l *Live) read(list listing, overlay map[string][]byte) *proposal {
	p := &proposal{data: map[string][]byte{}, layer: map[string]string{}, problems: maps.Clone(list.problems), unread: map[string][]byte{}}
	for _, f := range list.files {
		p.layer[f.name] = f.layer
		if _, ok := overlay[f.name]; ok {
			continue
		}
		data, err := ownership.ReadFile(f.path, f.limit, l.opts.Foreign)
		if err != nil {
			p.refuse(f.name, reason(err), l.adopted)
			continue
		}
		p.data[f.name] = data
	}
	for name, data := range overlay {
		p.layer[name] = layerOf(name)
		if data != nil {
			p.data[name] = data
		}
	}
	// What lies in a folder that cannot be listed stays.
	for folder := range list.problems {
		prefix, ok := strings.CutSuffix(folder, "/")
		if !ok {
			continue
		}
		for name, data := range l.adopted {
			_, also := l.opts.Also[name]
			if _, there := p.data[name]; !there && !also && (prefix == "" || strings.HasPrefix(name, folder)) {
				p.data[name], p.layer[name] = data, layerOf(name)
			}
		}
	}
	return p
}

// changes compares a proposal with what is in force, and puts back what Adopt finds wrong.
func (l *Live) changes(p *proposal) []Change {
	var out []Change
	for _, name := range union(p.data, l.adopted) {
		before, after := digestOf(l.adopted, name), digestOf(p.data, name)
		if before == after {
			continue
		}
		c := Change{File: name, Layer: p.layerOf(name), Before: before, After: after}
		if _, also := l.opts.Also[name]; also && l.opts.Adopt != nil {
			c = l.opts.Adopt(c)
		}
		if c.Problem != "" {
			p.refuse(name, c.Problem, l.adopted)
			continue
		}
		out = append(out, c)
	}
	refused := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(p.problems)) {
		after := ""
		if data := p.unread[name]; data != nil {
			after = canonical.DigestText(data)
		}
		refused[name] = after + " " + p.problems[name]
		if l.refused[name] != refused[name] {
			out = append(out, Change{File: name, Layer: p.layerOf(name), Before: digestOf(l.adopted, name), After: after, Problem: p.problems[name]})
		}
	}
	l.refused = refused
	return out
}

func (p *proposal) layerOf(name string) string {
	if layer := p.layer[name]; layer != "" {
		return layer
	}
	return layerOf(name)
}

func (l *Live) files(p *proposal) []File {
	out := []File{}
	for _, name := range union(p.data, p.problems) {
		out = append(out, File{Name: name, Layer: p.layerOf(name), Digest: digestOf(p.data, name), Problem: p.problems[name]})
	}
	return out
}

func digestOf(files map[string][]byte, name string) string {
	data, ok := files[name]
	if !ok {
		return ""
	}
	return canonical.DigestText(data)
}

func joined(problems map[string]string) error {
	var out []error
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		out = append(out, errors.New(File{Name: name, Problem: problems[name]}.String()))
	}
	return errors.Join(out...)
}
