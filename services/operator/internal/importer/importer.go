// Package importer turns what people run already into a proposal for the catalog: gpumod's presets and modes, llama-swap's
// configuration, the GPU services of Compose files.
//
// It runs in the operator's process, on files that strangers may have written, and trusts none of them: every file is bounded
// before and while it is decoded, macros and aliases cannot grow, nothing is run, no variable of the environment is read, and no
// secret is copied. What cannot be brought safely is left out by name, with the reason. The proposal is a whole catalog file
// which stands beside the present one; it decides nothing, a human reads it and puts it in its place, and package catalog judges
// every entry of it as it will judge it there.
//
// Each import takes the same way:
//
//	scan      a file is decoded within its bounds (boundedyaml); units and containers of this host are looked at (discover)
//	describe  each source says what it runs: a program, whose entry it fills in, or a container in the shape of a Compose file's service
//	          (LlamaSwap, Compose, Gpumod, Contain)
//	judge     a command that needs a shell, a secret, what would make a container as powerful as the host is left out, by name; the rest
//	          becomes narrower (builder.program, box.describe)
//	draft     what is left becomes an entry (propose), and the catalog has the last word (proposal.Settle)
package importer

import (
	"cmp"
	"fmt"
	"slices"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/secret"
)

// Given is what a human says beside the files.
type Given struct {
	// RunAs is the user that programs run as, "" for none.
	RunAs string
	// ContainerUser is whom containers run as that name nobody or root, UID or UID:GID.
	ContainerUser string
	// Variables stand for what files name and do not hold: ${env.X}, $X, ${X}. The environment is never read.
	Variables map[string]string
	// Find looks for a program of this host by its bare name; nil: none is looked for.
	Find func(name string) error
}

// builder makes services for a proposal.
type builder struct {
	*proposal.Proposal
	given Given
	// ids are those that are taken by what was built; origins tells which service was made of which name.
	ids     map[string]bool
	origins map[string]string
	// read are the bytes of the texts that were read, tried the entries.
	read, tried int
}

func newBuilder(p *proposal.Proposal, given Given) *builder {
	given.ContainerUser = cmp.Or(given.ContainerUser, "1000:1000")
	return &builder{Proposal: p, given: given, ids: map[string]bool{}, origins: map[string]string{}}
}

// program is a service in the making: its entry, as far as somebody's tool says it, and what that tool says besides.
type program struct {
	draft.Service
	// what it is called where it is left out; from says where it stands; base is the folder that it stands in.
	what, from, base string
	// environment is what it is given, before it is judged.
	environment []boundedyaml.Pair
	// inside is a container's own port, where that is told.
	inside uint32
	// served is what requests call its model, modelName what the tool does.
	served, modelName string
	notes             []string
	// elsewhere is a host that it answers at, which may be its container's name.
	elsewhere string
}

func (s *program) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); len(s.notes) < proposal.MaxNotes && !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
	}
}

// propose puts a service into the proposal, within the catalog's bounds.
func (b *builder) propose(id, driver string, s *program) bool {
	e := s.Service
	e.Driver = driver
	for _, one := range []struct {
		key  string
		text *string
		most int
	}{{"name", &e.Name, 64}, {"description", &e.Description, 300}} {
		// The whole text is looked at: what is cut short has not the shape of what it was.
		text := *one.text
		if *one.text = clean.Line(text, one.most); secret.Suspect(text) || secret.Suspect(*one.text) {
			s.note("Its %s was left out: it looks like a secret.", one.key)
			*one.text = ""
		}
	}
	if e.Idle.AfterS > 0 && e.Port == 0 {
		s.note("It was to stop after %d s of idleness, which a service without a port does not show.", e.Idle.AfterS)
		e.Idle.AfterS = 0
	}
	if e.Idle.AfterS > 0 {
		e.Idle.Action = "stop"
	}
	if e.Port == 0 || e.Health.Path == "/health" {
		e.Health.Path = ""
	}
	e.StartTimeoutS, e.StopTimeoutS = min(e.StartTimeoutS, 3600), min(e.StopTimeoutS, 600)
	e.Model, e.DependsOn = "", nil // the proposal has them, as long as both are in it
	return b.Service(id, draft.Of(e), s.Model, s.DependsOn, s.notes...)
}
