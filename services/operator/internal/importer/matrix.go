package importer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/clean"
)

// Bounds of the matrix.
const (
	maxTokens       = 2048
	maxCombinations = 64
	maxSetDepth     = 16
	// maxCombined bounds what all sets of a file cost together: the bytes of their texts, and the models that are put together.
	maxCombined = 1 << 20
)

var errMatrix = errors.New("the sets of the matrix stand for too much together")

// matrixModes make modes of what the sets of the matrix stand for.
func (l *swap) matrixModes() {
	sets := l.matrix.Get("sets")
	if costs := scalars(l.matrix.Get("evict_costs")); len(costs) > 0 {
		var words []string
		for _, key := range l.matrix.Get("evict_costs").Keys[:min(len(costs), maxList)] {
			words = append(words, clean.Line(clean.Visible(key), 64)+" "+clean.Line(clean.Visible(costs[key]), 16))
		}
		l.Note("evict_costs (%s) have no place in a catalogue: what a stop costs is measured, and pin or min_residence_s keeps a service.", clean.Line(strings.Join(words, ", "), 250))
	}
	vars := scalars(l.matrix.Get("vars"))
	for _, name := range sets.Keys {
		shown := clean.Line(clean.Visible(name), 64)
		e := &expression{sets: sets, vars: vars, models: l.root.Get("models"), combined: &l.combined}
		all, err := e.set(name, nil)
		if err != nil {
			l.LeaveOut("matrix set "+shown, "%s", err.Error())
			continue
		}
		for i, members := range all {
			id := name
			if len(all) > 1 {
				id = fmt.Sprintf("%s-%d", name, i+1)
			}
			l.mode(id, "", members, "Of the matrix set "+shown+".")
		}
	}
}

// expression expands the sets' language: a & b, a | b, (…), +set.
type expression struct {
	sets   *boundedyaml.Value
	vars   map[string]string
	models *boundedyaml.Value
	tokens []string
	spent  int
	// combined is shared by all sets of a file.
	combined *int
}

func (e *expression) cost(n int) error {
	if *e.combined += n; *e.combined > maxCombined {
		return errMatrix
	}
	return nil
}

// set returns every combination that a set stands for.
func (e *expression) set(name string, path []string) ([][]string, error) {
	shown := clean.Line(clean.Visible(name), 64)
	switch {
	case slices.Contains(path, name):
		return nil, fmt.Errorf("its sets go in a circle at %s", shown)
	case len(path) >= maxSetDepth:
		return nil, fmt.Errorf("its sets nest deeper than %d", maxSetDepth)
	case !e.sets.Get(name).IsText():
		return nil, fmt.Errorf("there is no set %s", shown)
	}
	if err := e.cost(len(e.sets.Get(name).Str()) + 16); err != nil {
		return nil, err
	}
	outer := e.tokens
	e.tokens = tokens(e.sets.Get(name).Str())
	if e.spent += len(e.tokens); e.spent > maxTokens {
		return nil, fmt.Errorf("it is longer than %d words", maxTokens)
	}
	out, err := e.any(append(slices.Clip(path), name), 0)
	if err == nil && len(e.tokens) > 0 {
		err = fmt.Errorf("%s is not expected there", clean.Line(clean.Visible(e.tokens[0]), 64))
	}
	e.tokens = outer
	return out, err
}

// tokens parts a text at spaces and operators.
func tokens(text string) []string {
	for _, op := range []string{"&", "|", "(", ")"} {
		text = strings.ReplaceAll(text, op, " "+op+" ")
	}
	return strings.Fields(text)
}

func (e *expression) take(token string) bool {
	if len(e.tokens) == 0 || e.tokens[0] != token {
		return false
	}
	e.tokens = e.tokens[1:]
	return true
}

func (e *expression) any(path []string, depth int) ([][]string, error) {
	out, err := e.all(path, depth)
	for err == nil && e.take("|") {
		var more [][]string
		if more, err = e.all(path, depth); err == nil {
			out, err = combinations(append(out, more...))
		}
	}
	return out, err
}

func (e *expression) all(path []string, depth int) ([][]string, error) {
	out, err := e.one(path, depth)
	for err == nil && e.take("&") {
		var right [][]string
		if right, err = e.one(path, depth); err != nil {
			break
		}
		if len(out)*len(right) > maxCombinations {
			return combinations(make([][]string, maxCombinations+1))
		}
		var product [][]string
		for _, a := range out {
			for _, b := range right {
				if err := e.cost(len(a) + len(b) + len(a)*len(b)/8); err != nil {
					return nil, err
				}
				if product = append(product, union(a, b)); len(product[len(product)-1]) > proposal.MaxServices {
					return nil, fmt.Errorf("it names more than %d models together", proposal.MaxServices)
				}
			}
		}
		out = product
	}
	return out, err
}

func combinations(sets [][]string) ([][]string, error) {
	if len(sets) > maxCombinations {
		return nil, fmt.Errorf("it stands for more than %d combinations", maxCombinations)
	}
	return sets, nil
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func (e *expression) one(path []string, depth int) ([][]string, error) {
	if depth > maxSetDepth {
		return nil, fmt.Errorf("its brackets nest deeper than %d", maxSetDepth)
	}
	if e.take("(") {
		out, err := e.any(path, depth+1)
		if err == nil && !e.take(")") {
			err = errors.New("a bracket is never closed")
		}
		return out, err
	}
	if len(e.tokens) == 0 {
		return nil, errors.New("it ends where a model is expected")
	}
	name := e.tokens[0]
	e.tokens = e.tokens[1:]
	if set, ok := strings.CutPrefix(name, "+"); ok {
		return e.set(set, path)
	}
	if model, ok := e.vars[name]; ok {
		name = model
	}
	if !e.models.Get(name).IsSet() {
		return nil, fmt.Errorf("it names a model that there is not: %s", clean.Line(clean.Visible(name), 64))
	}
	return [][]string{{name}}, nil
}
