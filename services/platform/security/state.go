package security

import (
	"slices"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security/trusted"
)

// State is the configuration as it was at one moment. It is immutable and safe for concurrent use.
type State struct {
	Policies *policy.Set
	// Domains are those that agents may reach, and those that they may not.
	Domains *destination.List
	Files   []File

	sources  []policy.Source
	system   []given
	users    map[string][]given
	projects []project
}

// project is what one trusted project tightens.
type project struct {
	clients  []string
	settings []given
}

// binds reports whether the project counts for a client; one that names no clients counts for all of them.
func (p project) binds(client string) bool {
	return client != "" && (len(p.clients) == 0 || slices.Contains(p.clients, client))
}

// Sources are the texts that the policies were made of, for checking them and trying them out.
func (s *State) Sources() []policy.Source { return slices.Clone(s.sources) }

// Values are the settings that bind the sessions of a client with a user ("" for either: none in particular). They do not hold
// what a session lowered for itself.
func (s *State) Values(client, user string) Values {
	var v Values
	s.each(client, user, func(setting Setting, value uint32, _ string, _ given) { setting.put(&v, value) })
	return v
}

// Settings are the same, one by one, in the order of the file, each with where it comes from.
func (s *State) Settings(client, user string) []Effective {
	var out []Effective
	s.each(client, user, func(setting Setting, value uint32, layer string, from given) {
		out = append(out, Effective{Name: setting.Name, Value: setting.text(value), Layer: layer, File: from.file, Line: from.line})
	})
	return out
}

// each calls found once a setting: a user's word goes over the system's, and a project's counts only where it is tighter.
func (s *State) each(client, user string, found func(setting Setting, value uint32, layer string, from given)) {
	for _, setting := range Settings() {
		value, err := setting.parse(setting.Default)
		if err != nil {
			continue // a test holds every default to its bounds
		}
		layer, from := LayerBuiltIn, given{}
		over := func(list []given, name string, counts func(uint32) bool) {
			for _, g := range list {
				if g.Name == setting.Name && counts(g.value) {
					value, layer, from = g.value, name, g
				}
			}
		}
		always := func(uint32) bool { return true }
		over(s.system, LayerSystem, always)
		if user != "" {
			over(s.users[user], LayerUser, always)
		}
		for _, p := range s.projects {
			if p.binds(client) {
				over(p.settings, trusted.Layer, func(n uint32) bool { return setting.tighter(n, value) })
			}
		}
		found(setting, value, layer, from)
	}
}
