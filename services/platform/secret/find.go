// Package secret finds credentials in text that programs and strangers wrote, and trusts nothing in it. Find says where one is, in a
// log, where words that only look like one must stay; Suspect says whether a text may go into a proposal, and errs on the side
// of no.
//
// Find runs in time linear in the text. It goes through the text once for all shapes together, three bytes at a time, and tries an
// expression of RE2, on a few KiB at most, only where a match of it can begin.
package secret

import (
	"cmp"
	"context"
	"slices"
)

// Span is one value in a text, in bytes.
type Span struct {
	From, To int
	Kind     string
}

// Merge sorts spans and joins those that overlap; what is joined has the kind of the longest.
func Merge(spans []Span) []Span {
	slices.SortStableFunc(spans, func(a, b Span) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(b.To, a.To)) })
	var out []Span
	longest := 0
	for _, s := range spans {
		last := len(out) - 1
		if last < 0 || s.From >= out[last].To {
			out, longest = append(out, s), s.To-s.From
			continue
		}
		out[last].To = max(out[last].To, s.To)
		if n := s.To - s.From; n > longest {
			out[last].Kind, longest = s.Kind, n
		}
	}
	return out
}

// Find returns the places in a text that look like credentials, merged. It ends early, with ctx's error, when ctx does.
func Find(ctx context.Context, text string) ([]Span, error) {
	if len(text) < minValue {
		return nil, ctx.Err()
	}
	s := scan{text: text}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	found := Merge(append(keys(text), s.spans...))
	for i := range found {
		// A backslash before a quote is the quote's: without it a text in JSON would end there.
		for f := &found[i]; f.To-f.From > 1 && text[f.To-1] == '\\' && f.To < len(text) && (text[f.To] == '"' || text[f.To] == '\''); {
			f.To--
		}
	}
	return found, nil
}
