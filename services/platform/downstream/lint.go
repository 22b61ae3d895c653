package downstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
)

// Bounds of a stranger's schema. Real servers' schemas have a few hundred values, 10 levels, and a cost below 200.
const (
	maxSchema = 64 << 10
	maxDepth  = 32
	maxValues = 4000
	maxNumber = 24
	// maxCost is how often one value of the arguments may be looked at.
	maxCost = 4000
	// maxPattern bounds a regular expression, in bytes.
	maxPattern = 512
)

// drafts are the dialects that are validated.
var drafts = []string{
	"https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema",
	"http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-07/schema#",
}

// LintSchema reports why a stranger's JSON Schema cannot be pinned. What passes can be compiled and validated in bounded time: it is
// small, refers only to itself, and no value of the arguments is looked at more often than maxCost.
func LintSchema(raw json.RawMessage) error {
	_, err := lint(raw)
	return err
}

// lint returns what looking at one value of an instance costs at most.
func lint(raw json.RawMessage) (cost int, err error) {
	if len(raw) > maxSchema {
		return 0, fmt.Errorf("the schema is larger than %d kB", maxSchema>>10)
	}
	if err := canonical.Strict(raw); err != nil {
		return 0, fmt.Errorf("the schema is not to be read: %w", err)
	}
	root, err := decode(raw)
	if err != nil {
		return 0, err
	}
	if object, ok := root.(map[string]any); !ok || object["type"] != "object" {
		return 0, errors.New(`the schema is not of an object: "type" must be "object"`)
	}
	l := &linter{root: root, costs: map[costKey]int{}}
	if err := l.walk(root, "", 0); err != nil {
		return 0, err
	}
	for depth := range canonical.MaxDepth + 1 {
		n, err := l.cost(root, depth)
		if err != nil {
			return 0, err
		}
		cost = max(cost, n)
	}
	if cost > maxCost {
		return 0, fmt.Errorf("the schema looks at one value more than %d times", maxCost)
	}
	return cost, nil
}

// decode reads JSON that Strict has passed.
func decode(raw []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return v, dec.Decode(&v)
}

type linter struct {
	root   any
	values int
	costs  map[costKey]int
}

// costKey is a schema, by the map that it is, looked at for values so many levels below it.
type costKey struct {
	schema uintptr
	depth  int
}

// walk bounds all values, and refuses keywords that lead out of the schema. It takes every object for a schema: what is no keyword in a
// place, such as a property of that name, has another type there.
func (l *linter) walk(v any, at string, depth int) error {
	refuse := func(format string, args ...any) error {
		where := cmp.Or(clean.Line(at, 200), "/")
		return fmt.Errorf("the schema at %s: %s", where, fmt.Sprintf(format, args...))
	}
	if l.values++; l.values > maxValues {
		return fmt.Errorf("the schema holds more than %d values", maxValues)
	}
	if depth > maxDepth {
		return fmt.Errorf("the schema is nested more than %d levels deep", maxDepth)
	}
	switch v := v.(type) {
	case json.Number:
		if !shortNumber(v.String()) {
			return refuse("a number of more than %d characters, or with a large exponent", maxNumber)
		}
	case []any:
		for i, item := range v {
			if err := l.walk(item, fmt.Sprintf("%s/%d", at, i), depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			text, isText := v[key].(string)
			switch {
			case !isText:
			case key == "$ref":
				if _, err := l.target(text); err != nil {
					return refuse("%v", err)
				}
			case key == "$dynamicRef", key == "$recursiveRef", key == "$id" && at != "":
				return refuse("%s is not accepted", key)
			case key == "$schema" && (at != "" || !slices.Contains(drafts, text)):
				return refuse("$schema is none of the drafts 7, 2019-09 and 2020-12, or not at the top")
			case key == "pattern" && len(text) > maxPattern:
				return refuse("a pattern of more than %d characters", maxPattern)
			}
			if len(key) > maxPattern {
				return refuse("a name of more than %d characters", maxPattern)
			}
			if err := l.walk(v[key], member(at, key), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// shortNumber reports whether a number's spelling is one that no arithmetic can grow out of.
func shortNumber(lexeme string) bool {
	_, exponent, _ := strings.Cut(strings.ToLower(lexeme), "e")
	return len(lexeme) <= maxNumber && len(strings.TrimLeft(exponent, "+-0")) <= 3
}

// Unmatched reports whether a text is a regular expression of JavaScript's that Go does not have: one that looks ahead or behind, refers back or
// repeats more than a thousand times. Schemas that zod writes have such. Nothing here matches one, so that only the server holds a value to it.
func Unmatched(expression string) bool {
	_, err := syntax.Parse(expression, syntax.Perl)
	wrong, is := errors.AsType[*syntax.Error](err)
	return is && slices.Contains([]syntax.ErrorCode{
		syntax.ErrInvalidPerlOp, syntax.ErrInvalidNamedCapture, syntax.ErrInvalidEscape, syntax.ErrInvalidRepeatSize, syntax.ErrInvalidCharRange, syntax.ErrLarge,
	}, wrong.Code)
}

// member is the place of one of an object's members, by its pointer (RFC 6901).
func member(at, key string) string { return string(jsontext.Pointer(at).AppendToken(key)) }

// target is the schema that a reference of this document means.
func (l *linter) target(ref string) (any, error) {
	rest, local := strings.CutPrefix(ref, "#")
	if !local || rest != "" && rest[0] != '/' || strings.Contains(rest, "%") {
		return nil, fmt.Errorf("$ref %q: only references within the schema, #/…, are followed", clean.Line(ref, 100))
	}
	at := l.root
	for key := range jsontext.Pointer(rest).Tokens() {
		switch v := at.(type) {
		case map[string]any:
			at = v[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(v) || strconv.Itoa(i) != key {
				return nil, fmt.Errorf("$ref %q: there is no such place", clean.Line(ref, 100))
			}
			at = v[i]
		default:
			at = nil
		}
	}
	switch at.(type) {
	case map[string]any, bool:
		return at, nil
	}
	return nil, fmt.Errorf("$ref %q: there is no schema there", clean.Line(ref, 100))
}

// Keywords by where their schemas look. Those of same look at the value itself; of below, at what is in it: of each of oneOfBelow only one
// schema looks at any one of these.
var (
	same       = []string{"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
	below      = []string{"patternProperties", "additionalProperties", "unevaluatedProperties", "items", "additionalItems", "unevaluatedItems", "contains", "propertyNames"}
	oneOfBelow = []string{"properties", "prefixItems"}
)

var errCycle = errors.New("the schema refers to itself without going into the value: it would never end")

// cost is how often a schema looks at one value that is depth levels below the one that it is for.
func (l *linter) cost(schema any, depth int) (int, error) {
	object, ok := schema.(map[string]any)
	if !ok {
		return 1, nil
	}
	key := costKey{reflect.ValueOf(object).Pointer(), depth}
	if n, known := l.costs[key]; known {
		if n < 0 {
			return 0, errCycle
		}
		return n, nil
	}
	l.costs[key] = -1 // what comes here again before it is known runs in a circle
	total := 0
	if depth == 0 {
		total = ownCost(object)
	}
	add := func(schema any, depth int) error {
		n, err := l.cost(schema, depth)
		total = min(total+n, maxCost+1)
		return err
	}
	if ref, isRef := object["$ref"].(string); isRef {
		to, err := l.target(ref)
		if err == nil {
			err = add(to, depth)
		}
		if err != nil {
			return 0, err
		}
	}
	for _, keyword := range same {
		for _, s := range schemas(object, keyword) {
			if err := add(s, depth); err != nil {
				return 0, err
			}
		}
	}
	if depth > 0 {
		for _, keyword := range below {
			for _, s := range schemas(object, keyword) {
				if err := add(s, depth-1); err != nil {
					return 0, err
				}
			}
		}
		for _, keyword := range oneOfBelow {
			most := 0
			for _, s := range schemas(object, keyword) {
				n, err := l.cost(s, depth-1)
				if err != nil {
					return 0, err
				}
				most = max(most, n)
			}
			total = min(total+most, maxCost+1)
		}
	}
	l.costs[key] = total
	return total, nil
}

// ownCost is what a schema compares a value with by itself.
func ownCost(object map[string]any) int {
	n := 1
	for _, keyword := range []string{"enum", "required", "patternProperties", "dependentRequired"} {
		switch v := object[keyword].(type) {
		case []any:
			n += len(v) / 8
		case map[string]any:
			n += len(v)
		}
	}
	return n
}

// named are the keywords whose schemas stand by name.
var named = []string{"dependentSchemas", "dependencies", "patternProperties", "properties"}

// schemas are those that a keyword of a schema holds: one, a list, or one for each name.
func schemas(object map[string]any, keyword string) []any {
	switch v := object[keyword].(type) {
	case []any:
		return v
	case map[string]any:
		if slices.Contains(named, keyword) {
			return slices.Collect(maps.Values(v))
		}
		return []any{v}
	}
	return nil
}
