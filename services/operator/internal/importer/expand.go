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

// variable is how shells and Compose files name one: $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}, ${NAME:+instead}; $$ is a dollar,
// and any other $ begins none.
var variable = pattern.New(`\$(\$|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?)([-?+])([^{}$]*))?\})?`)

// expand puts in what a human gave for variables, and defaults that stand in the text; a placeholder for what is left. The
// environment is never read, and what is put in is not looked at again.
func expand(text string, given map[string]string) string {
	return variable().ReplaceAllStringFunc(text, func(found string) string {
		m := variable().FindStringSubmatch(found)
		name := m[2] + m[3]
		value, ok := given[name]
		empty := value == "" && m[4] == ":" // with a colon, what is empty is as if it were not given
		switch {
		case m[1] == "$":
			return "$"
		case name == "":
			return unnamed
		case ok && m[5] == "+" && !empty:
			return m[6]
		case m[5] == "-" && (!ok || empty):
			return m[6]
		case ok:
			return value
		}
		return placeholder(name)
	})
}

// Bounds of llama-swap's macros.
const (
	maxMacroDepth = 16
	maxExpanded   = 64 << 10
	// maxExpansion is for all texts of a file together.
	maxExpansion = 4 << 20
)

var macro = pattern.New(`\$\{([A-Za-z0-9_.\-]+)\}`)

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
	var out strings.Builder
	for {
		at := macro().FindStringSubmatchIndex(text)
		if at == nil {
			break
		}
		value, err := m.value(text[at[2]:at[3]], path)
		if err != nil {
			return "", err
		}
		out.WriteString(text[:at[0]] + value)
		if text = text[at[1]:]; out.Len()+len(text) > maxExpanded {
			return "", errMacroSize
		}
	}
	return out.String() + text, nil
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
