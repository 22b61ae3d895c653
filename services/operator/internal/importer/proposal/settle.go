package proposal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// ErrNothing means that nothing is left to propose.
var ErrNothing = errors.New("nothing in it can be brought into the catalogue")

// maxRounds bounds how often the catalog is asked: each time at least one entry goes, and mostly all that are wrong.
const maxRounds = MaxServices + MaxModes + 64

// maxSettled bounds the bytes that the catalog is asked about in all rounds together.
const maxSettled = 32 << 20

// proposalName stands for the proposal among the catalog's files, behind all others.
const proposalName = "~proposal.yaml"

// Settle returns the proposal's text once the catalog accepts it beside the present files. What the catalog refuses is left out,
// with what it says of it. The present files must be good by themselves; an error says what is wrong with them, or is ErrNothing.
func (p *Proposal) Settle(ctx context.Context, present []catalog.File, opts catalog.Options) ([]byte, error) {
	written := 0
	for range maxRounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for p.consistent(); !p.laidOut(); {
			p.consistent()
		}
		if len(p.Services())+len(p.Models())+len(p.Modes()) == 0 {
			return nil, ErrNothing
		}
		text := p.text()
		if written += len(text); written > maxSettled {
			break
		}
		files := append(slices.Clone(present), catalog.File{Name: proposalName, Data: text})
		_, err := catalog.ParseFiles(files, opts)
		if err == nil {
			return text, nil
		}
		problems := catalog.AsProblems(err)
		if len(problems) == 0 || !p.drop(problems) {
			return nil, fmt.Errorf("the proposal does not fit the catalogue: %s", clean.Line(err.Error(), 500))
		}
	}
	return nil, errors.New("the proposal does not fit the catalogue, however much of it is left out")
}

// drop leaves out the entries that the problems are of, and reports whether there were any.
func (p *Proposal) drop(problems catalog.Problems) bool {
	dropped := false
	for _, problem := range problems {
		if problem.File != proposalName {
			continue
		}
		for _, s := range p.sections() {
			for _, it := range s.items {
				if !it.out && problem.Line >= it.first && problem.Line <= it.last {
					it.out, dropped = true, true
					p.LeaveOut(s.noun+" "+it.id, "%s", problem.What)
				}
			}
		}
	}
	return dropped
}

type section struct {
	// name is its key, under the one that it stands under.
	under, name, noun string
	items             []*item
}

func (p *Proposal) sections() []section {
	return []section{
		{"", draft.GPUs, "GPU", p.gpus}, {"containers", "mounts", "mount of", p.mounts}, {"containers", "environment", "environment key", p.keys},
		{"", draft.Models, "model", p.models}, {"", draft.Services, "service", p.services}, {"", draft.Modes, "mode", p.modes},
	}
}

// known reports whether a service is in the proposal or in the catalog.
func (p *Proposal) known(id string) bool {
	return find(p.services, id) != nil || p.present != nil && has(p.present.Lookup(id))
}

// consistent follows what was left out: models of services, services of services, services of modes.
func (p *Proposal) consistent() {
	for changed := true; changed; {
		changed = false
		for _, s := range p.services {
			if s.out {
				continue
			}
			if s.model != "" && find(p.models, s.model) == nil && (p.present == nil || !has(p.present.Model(s.model))) {
				s.notes = note(s.notes, "Its model "+s.model+" was left out.")
				s.model, s.lines = "", nil
			}
			for _, id := range s.needs {
				if !p.known(id) && !s.out {
					s.out, changed = true, true
					p.LeaveOut("service "+s.id, "it depends on %s, which is not in the proposal", id)
				}
			}
		}
	}
	for _, m := range p.models {
		// A model stays where no service was ever to serve it.
		serves := func(s *item) bool { return s.model == m.id }
		if slices.ContainsFunc(p.services, serves) && !slices.ContainsFunc(p.services, func(s *item) bool { return serves(s) && !s.out }) {
			m.out = true
		}
	}
	for _, it := range slices.Concat(p.mounts, p.keys) {
		// What containers may be given is no wider than what is proposed.
		it.out = it.out || len(it.needs) > 0 && !slices.ContainsFunc(it.needs, func(id string) bool { return find(p.services, id) != nil })
	}
	for _, m := range p.modes {
		if m.out {
			continue
		}
		var members, lost []string
		for _, id := range m.members {
			if !p.known(id) {
				lost = append(lost, id)
			} else if !slices.Contains(members, id) {
				members = p.withNeeds(members, id, 0)
			}
		}
		if !slices.Equal(m.members, members) {
			m.members, m.lines = members, nil
		}
		// A mode is whole or not there: what is left of one would be another.
		if m.out = len(lost) > 0; m.out && (!m.quiet || len(members) > 0) {
			p.LeaveOut("mode "+m.id, "it would not be whole: not in the proposal is %s", strings.Join(lost, ", "))
		}
	}
}

// withNeeds adds a service behind those that it depends on: a mode has them in the order in which they start.
func (p *Proposal) withNeeds(members []string, id string, depth int) []string {
	if slices.Contains(members, id) || depth > MaxServices {
		return members
	}
	var needs []string
	if s := find(p.services, id); s != nil {
		needs = s.needs
	} else if p.present != nil {
		if s, ok := p.present.Lookup(id); ok {
			needs = s.DependsOn
		}
	}
	for _, need := range needs {
		if need != id {
			members = p.withNeeds(members, need, depth+1)
		}
	}
	if slices.Contains(members, id) {
		return members
	}
	return append(members, id)
}

// width is where comments are broken.
const width = 118

// page is text being written, line by line.
type page struct{ lines []string }

func (w *page) add(lines ...string) { w.lines = append(w.lines, lines...) }

// comment writes a remark over as many lines as it needs.
func (w *page) comment(indent, first, text string) {
	lead := indent + "# " + first
	line := lead
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width && line != lead {
			w.add(strings.TrimRight(line, " "))
			lead = indent + "# " + strings.Repeat(" ", len(first))
			line = lead
		}
		if line != lead {
			line += " "
		}
		line += word
	}
	w.add(strings.TrimRight(line, " "))
}

// laidOut lays out what is not yet, and reports whether all of it could be.
func (p *Proposal) laidOut() bool {
	all := true
	for _, s := range p.sections() {
		for _, it := range kept(s.items) {
			if err := it.lay(s); err != nil {
				it.out, all = true, false
				p.LeaveOut(s.noun+" "+it.id, "%s", err.Error())
			}
		}
	}
	return all
}

// text writes the whole file and notes where each entry stands.
func (p *Proposal) text() []byte {
	w := &page{}
	p.head(w)
	w.add("version: 1")
	above := ""
	for _, s := range p.sections() {
		items, indent := kept(s.items), ""
		if len(items) == 0 {
			continue
		}
		if s.under == "" || s.under != above {
			w.add("", cmp.Or(s.under, s.name)+":")
		}
		if above = s.under; above != "" {
			indent = "  "
			w.add(indent + s.name + ":")
		}
		for i, it := range items {
			if i > 0 && above == "" && s.name != draft.GPUs {
				w.add("")
			}
			for _, n := range it.notes {
				w.comment("  ", "", n)
			}
			it.first, it.last = len(w.lines)+1, len(w.lines)+len(it.lines)
			lead := "  - "
			for _, line := range it.lines {
				w.add(strings.TrimRight(indent+lead+line, " "))
				lead = "    "
			}
		}
	}
	return []byte(strings.Join(w.lines, "\n") + "\n")
}

// Heading is how every proposal begins.
const Heading = "# A proposal of durward catalog import "

func (p *Proposal) head(w *page) {
	w.comment("", "", strings.TrimPrefix(Heading, "# ")+p.kind+", made from "+strings.Join(p.from, ", ")+".")
	w.comment("", "", "Nothing was run and nothing has changed. Read it, change what is wrong, check it, and put it into the catalogue's "+
		"folder (or its entries into the catalogue's file): durward catalog check")
	for _, n := range p.notes {
		w.comment("", "- ", n)
	}
	if left := p.LeftOut(); len(left) > 0 {
		w.add("#")
		w.comment("", "", "Left out:")
		for _, l := range left {
			w.comment("", "- ", l.What+": "+l.Why)
		}
	}
}
