package security

import (
	"bytes"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security/trusted"
)

// build makes a state of a proposal, and puts the files that are not good back to what is in force of them. The error is for
// what remains bad then; the state is nil with it.
func (l *Live) build(p *proposal) (*State, error) {
	for range maxFiles + 2 {
		s, bad := l.parse(p)
		if len(bad) == 0 {
			set, err := policy.Compile(s.sources)
			if err == nil {
				s.Policies = set
				return s, nil
			}
			problems, ok := errors.AsType[policy.Problems](err)
			if !ok {
				return nil, err
			}
			for _, problem := range problems {
				if _, told := bad[problem.File]; !told {
					bad[problem.File] = problem.String()
				}
			}
		}
		moved := false
		for name, why := range bad {
			moved = moved || l.differs(p, name)
			p.refuse(name, why, l.adopted)
		}
		if moved {
			continue
		}
		// Files that were good stand in each other's way now, or a problem is of none: all rules go back together.
		for _, name := range union(p.data, l.adopted) {
			if _, also := l.opts.Also[name]; !also && l.differs(p, name) {
				moved = true
				p.refuse(name, "it does not go together with the other files", l.adopted)
			}
		}
		if !moved {
			return nil, errors.New("the files in force cannot be read again")
		}
	}
	return nil, errors.New("no files go together")
}

// differs reports whether what is proposed of a file is not what is in force of it.
func (l *Live) differs(p *proposal, name string) bool {
	before, was := l.adopted[name]
	after, is := p.data[name]
	return was != is || !bytes.Equal(before, after)
}

// union is the names of both, sorted.
func union[A, B any](a map[string]A, b map[string]B) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	return slices.Compact(names)
}

// parse reads everything but the policies, and returns what is wrong by file.
func (l *Live) parse(p *proposal) (*State, map[string]string) {
	s := &State{users: map[string][]given{}}
	domains := []*destination.List{destination.BuiltIn()}
	bad := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(p.data)) {
		if _, also := l.opts.Also[name]; also {
			continue
		}
		data, layer := p.data[name], p.layerOf(name)
		switch base := path.Base(name); {
		case layer == trusted.Layer || base == FileProjects:
			// Below, by what a human trusts.
		case base == FileDomains:
			from := destination.Source{Layer: layer, File: name}
			if layer == LayerUser {
				from.User = userOf(name)
			}
			list, err := destination.ParseList(from, data)
			if err != nil {
				bad[name] = err.Error()
				continue
			}
			domains = append(domains, list)
		case base == FileSettings:
			list, err := parseSettings(name, data)
			switch {
			case err != nil:
				bad[name] = err.Error()
			case layer == LayerUser:
				s.users[userOf(name)] = list
			default:
				s.system = list
			}
		default:
			source := policy.Source{Layer: policy.Layer(layer), Name: name, Text: data}
			if layer == LayerUser {
				source.User = userOf(name)
			}
			if !config.Blank(data) {
				s.sources = append(s.sources, source)
			}
		}
	}
	s.Domains = destination.Join(domains...)
	l.parseProjects(p, s, bad)
	return s, bad
}

func (l *Live) parseProjects(p *proposal, s *State, bad map[string]string) {
	list, err := trusted.Parse(FileProjects, p.data[FileProjects])
	if err != nil {
		bad[FileProjects] = err.Error()
		return
	}
	for _, entry := range list {
		name := entry.Copy()
		text, there := p.data[name]
		switch err := entry.Check(text); {
		case !there && l.adopted[name] != nil:
			// It binds until a human says that it does not.
			p.data[name] = l.adopted[name]
			text = l.adopted[name]
			p.problems[name] = "it is not there, and projects.yaml names it"
		case !there:
			bad[FileProjects] = FileProjects + ": the trusted copy " + name + " is not there"
			continue
		case err != nil:
			bad[name] = err.Error()
			continue
		}
		settings, tools, err := parseProject(name, text)
		var domains *destination.List
		if err == nil {
			domains, err = destination.ParseProject(destination.Source{Layer: trusted.Layer, File: name}, entry.Clients, text)
		}
		if err != nil {
			bad[name] = err.Error()
			continue
		}
		s.projects = append(s.projects, project{entry.Clients, settings})
		s.Domains = destination.Join(s.Domains, domains)
		if tools {
			s.sources = append(s.sources, policy.Source{Layer: trusted.Layer, Clients: entry.Clients, Name: name, Text: text})
		}
	}
	// Copies that no entry names count for nothing.
	for name := range p.data {
		if strings.HasPrefix(name, FolderProjects+"/") && !slices.ContainsFunc(list, func(e trusted.Project) bool { return e.Copy() == name }) {
			delete(p.data, name)
		}
	}
}
