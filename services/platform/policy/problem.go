package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong, and where. Line 0 means the whole file. A Warning is a rule that counts and does nothing.
type Problem struct {
	File         string
	Line, Column int
	Text         string
	Warning      bool
}

// problem tells of the rule by its id, and of what is wrong with it in the words that follow.
func (r *rule) problem(what string, warning bool) Problem {
	return Problem{File: r.File, Line: r.Line, Column: r.column, Text: r.ID + what, Warning: warning}
}

// String is one line, "FILE:LINE:COLUMN: what is wrong".
func (p Problem) String() string {
	text := p.Text
	if p.Warning {
		text = "warning: " + text
	}
	if p.Line == 0 {
		return p.File + ": " + text
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, text)
}

// Problems is everything that is wrong, in the order of the sources, then of lines.
type Problems []Problem

// Error is a line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// grave returns the problems that are no warnings.
func (p Problems) grave() Problems {
	return slices.DeleteFunc(slices.Clone(p), func(one Problem) bool { return one.Warning })
}

// sorted puts the problems of each file together, in the order in which the files were given.
func (p Problems) sorted(sources []Source) Problems {
	order := map[string]int{}
	for i, s := range sources {
		if _, ok := order[s.Name]; !ok {
			order[s.Name] = i
		}
	}
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.Compact(p)
}
