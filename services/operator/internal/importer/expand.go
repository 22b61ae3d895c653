package importer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/secret"
)

// What stands for a variable without a value: its name between two characters that no text may hold, so that it can get nowhere.
const (
	opening = secret.Placeholder
	closing = '\ue001'
)

func placeholder(name string) string {
	return string(opening) + clean.Line(clean.Visible(name), 64) + string(closing)
}

// unnamed stands for what is no variable: ${}, ${1}, one in another.
var unnamed = placeholder("${…}")

var placeholders = pattern.New(string(opening) + `([^` + string(opening) + string(closing) + `]*)` + string(closing))

// missing are the variables without a value in a text.
func missing(text string) []string {
	var out []string
	for _, m := range placeholders().FindAllStringSubmatch(text, 16) {
		if name := clean.Line(m[1], 64); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// settable is what a human can give a value by --set.
var settable = pattern.New(`\A[A-Za-z_][A-Za-z0-9_.\-]*\z`)

// want tells which variables texts lack that a human can give a value.
func (b *builder) want(texts ...string) {
	for _, text := range texts {
		for _, name := range missing(text) {
			if settable().MatchString(name) && !secret.Name(name) {
				b.Want(name)
			}
		}
	}
}

// unusable is why texts cannot stand in an entry, as what follows "it", or "".
func unusable(texts ...string) string {
	for _, text := range texts {
		if names := missing(text); len(names) > 0 {
			for _, name := range names {
				if settable().MatchString(name) && !secret.Name(name) {
					return fmt.Sprintf("names %s, and no variable of the environment is read (--set %s=… gives a value)", strings.Join(names, ", "), name)
				}
			}
			return fmt.Sprintf("names %s, and no variable of the environment is read", strings.Join(names, ", "))
		}
	}
	for _, text := range texts {
		if !proposal.Shown(text) {
			return "holds characters that cannot be shown"
		}
	}
	return ""
}

// variable is how shells and Compose files name one, at the front of a text: $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}; $$ is a dollar.
var variable = pattern.New(`\A\$(\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*(:?[-?+][^{}$]*)?\})`)

// expand puts in what a human gave for variables, and defaults that stand in the text; a placeholder for what is left. The
// environment is never read, and what is put in is not looked at again.
func expand(text string, given map[string]string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		i := strings.IndexByte(text, '$')
		if i < 0 {
			break
		}
		out.WriteString(text[:i])
		text = text[i:]
		found := variable().FindString(text)
		if found == "" {
			out.WriteString(unnamed)
			text = text[1:]
			continue
		}
		text = text[len(found):]
		name := strings.Trim(found[1:], "{}")
		if name == "$" {
			out.WriteByte('$')
			continue
		}
		rest := ""
		if i := strings.IndexAny(name, ":-?+"); i >= 0 {
			name, rest = name[:i], strings.TrimPrefix(name[i:], ":")
		}
		value, ok := given[name]
		switch {
		case ok:
			out.WriteString(value)
		case strings.HasPrefix(rest, "-"):
			out.WriteString(rest[1:])
		default:
			out.WriteString(placeholder(name))
		}
	}
	return out.String() + text
}

// Bounds of llama-swap's macros.
const (
	maxMacroDepth = 16
	maxExpanded   = 64 << 10
	// maxExpansion is for all texts of a file together.
	maxExpansion = 4 << 20
)

// maxMacroName is how long a macro's name may be.
const maxMacroName = 80

// nextMacro finds the first ${NAME} of a text, in one pass over it. end is -1 where there is none.
func nextMacro(text string) (start, end int, name string) {
	for from := 0; ; from = start + 2 {
		i := strings.Index(text[from:], "${")
		if i < 0 {
			return 0, -1, ""
		}
		start = from + i
		stop := start + 2
		for stop < len(text) && stop-start-2 < maxMacroName && macroByte(text[stop]) {
			stop++
		}
		if stop > start+2 && stop < len(text) && text[stop] == '}' {
			return start, stop + 1, text[start+2 : stop]
		}
	}
}

func macroByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
}

// macros expand ${NAME}: a model's own macros, the file's, PORT and MODEL_ID; ${env.NAME} from what a human gave. Two macros that
// name each other are refused, and so is what grows too large.
type macros struct {
	layers []map[string]string
	given  map[string]string
	// spent is shared by all of a file.
	spent *int
}

var (
	errMacroSize  = errors.New("its macros expand to more than 64 kB")
	errMacroTotal = errors.New("the macros of the file expand to more than 4 MB together")
)

func (m *macros) expand(text string) (string, error) {
	// An alias can put the same long text into every model.
	if *m.spent += len(text); *m.spent > maxExpansion {
		return "", errMacroTotal
	}
	return m.within(text, nil)
}

func (m *macros) within(text string, path []string) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	var out strings.Builder
	for {
		start, end, name := nextMacro(text)
		if end < 0 {
			break
		}
		out.WriteString(text[:start])
		text = text[end:]
		value, err := m.value(name, path)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
		if out.Len()+len(text) > maxExpanded {
			return "", errMacroSize
		}
	}
	out.WriteString(text)
	return out.String(), nil
}

func (m *macros) value(name string, path []string) (string, error) {
	if variable, ok := strings.CutPrefix(name, "env."); ok {
		if value, ok := m.given[variable]; ok {
			return value, nil
		}
		return placeholder(variable), nil
	}
	for _, layer := range m.layers {
		value, ok := layer[name]
		if !ok {
			continue
		}
		// Each step counts, so that macros which expand to nothing cannot go on for ever.
		if *m.spent += len(value) + 64; *m.spent > maxExpansion {
			return "", errMacroTotal
		}
		if slices.Contains(path, name) {
			return "", fmt.Errorf("its macros go in a circle: %s", strings.Join(append(path, name), " → "))
		}
		if len(path) >= maxMacroDepth {
			return "", fmt.Errorf("its macros nest deeper than %d", maxMacroDepth)
		}
		return m.within(value, append(slices.Clip(path), name))
	}
	if value, ok := m.given[name]; ok {
		return value, nil
	}
	return placeholder(name), nil
}
