package detect

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"regexp/syntax"
	"unicode/utf8"

	"durward.internal/services/platform/reference"
)

// Pattern is a type of an operator's own.
type Pattern struct {
	// Type is [A-Z][A-Z0-9_]*, and none of the built-in types.
	Type Type `yaml:"type"`
	// Expression is RE2's. It matches the value, or its first group does.
	Expression string `yaml:"expression"`
	// Examples are texts in each of which the pattern finds a value; at least one.
	Examples []string `yaml:"examples"`
	// Not are texts in which it finds none.
	Not []string `yaml:"not"`
	// Confidence is from 1 to 100; 0 is 80.
	Confidence int `yaml:"confidence"`
}

// Bounds of an operator's patterns.
const (
	maxPatterns, maxExpression = 64, 1000
	// step and overlap: a pattern is tried on so much of a text at a time, at least one on the beginning of which the next begins, so
	// that time is linear whatever it does. A value is at most overlap long.
	step, overlap = 8 << 10, 1 << 10
)

type compiled struct {
	kind       Type
	expression *regexp.Regexp
	confidence int
}

// compile checks patterns and what is said about each.
func compile(patterns []Pattern) ([]compiled, error) {
	if len(patterns) > maxPatterns {
		return nil, fmt.Errorf("there are %d patterns; at most %d are tried on every text", len(patterns), maxPatterns)
	}
	built := map[Type]bool{}
	for _, t := range Types() {
		built[t] = true
	}
	var out []compiled
	for _, p := range patterns {
		switch {
		case !reference.ValidType(string(p.Type)):
			return nil, fmt.Errorf("the pattern's type %q is to be capitals, digits and _, a capital first", p.Type)
		case built[p.Type]:
			return nil, fmt.Errorf("the type %s is built in; give the pattern another name", p.Type)
		case len(p.Expression) > maxExpression:
			return nil, fmt.Errorf("%s: the expression has %d characters; at most %d are allowed", p.Type, len(p.Expression), maxExpression)
		case p.Confidence < 0 || p.Confidence > 100:
			return nil, fmt.Errorf("%s: the confidence %d is to be from 1 to 100", p.Type, p.Confidence)
		case len(p.Examples) == 0:
			return nil, fmt.Errorf("%s: there is no example; give one text in which the pattern finds a value, so that a mistake is found when the file is read", p.Type)
		}
		if _, err := syntax.Parse(p.Expression, syntax.Perl); err != nil {
			return nil, fmt.Errorf("%s: the expression cannot be read: %w", p.Type, err)
		}
		re, err := regexp.Compile(p.Expression)
		if err != nil {
			return nil, fmt.Errorf("%s: the expression cannot be used: %w", p.Type, err)
		}
		if re.MatchString("") {
			return nil, fmt.Errorf("%s: the expression matches nothing at all, so it would be found everywhere", p.Type)
		}
		c := compiled{kind: p.Type, expression: re, confidence: p.Confidence}
		c.confidence = cmp.Or(c.confidence, 80)
		for _, list := range []struct {
			texts []string
			found bool
		}{{p.Examples, true}, {p.Not, false}} {
			for _, text := range list.texts {
				var spans []Span
				if err := c.find(context.Background(), text, &spans); err != nil {
					return nil, err
				}
				if (len(spans) > 0) != list.found {
					return nil, fmt.Errorf("%s: the pattern %s in the text %q, which is listed otherwise", p.Type, map[bool]string{true: "finds a value", false: "finds nothing"}[!list.found], text)
				}
			}
		}
		out = append(out, c)
	}
	return out, nil
}

func (c compiled) find(ctx context.Context, text string, spans *[]Span) error {
	for from := 0; from < len(text); from += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		for from > 0 && from < len(text) && !utf8.RuneStart(text[from]) {
			from++
		}
		part := text[from:min(from+step+overlap, len(text))]
		for _, m := range c.expression.FindAllStringSubmatchIndex(part, -1) {
			if m[0] >= step {
				break
			}
			value := [2]int{m[0], m[1]}
			if len(m) > 2 && m[2] >= 0 {
				value = [2]int{m[2], m[3]}
			}
			if value[0] < value[1] {
				*spans = append(*spans, Span{From: from + value[0], To: from + value[1], Type: c.kind, Confidence: c.confidence, Why: "the operator's pattern " + string(c.kind)})
			}
		}
	}
	return nil
}
