package resource

import (
	"regexp"

	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/clean"
)

// What a resource never shows (SEC-E2), even where a human wrote it into a name or a description of the catalogue, and what
// stands in its place.
const (
	hiddenPath  = "(path)"
	hiddenValue = "(hidden)"
)

var (
	// credentials are secrets that are known by their look: keys in PEM, tokens with a vendor's prefix, JSON web tokens, and
	// whatever follows the word bearer.
	credentials = regexp.MustCompile(`-----BEGIN [A-Z ]*-----[\s\S]*?(?:-----END [A-Z ]*-----|$)` +
		`|\b(?:sk|pk|rk|ghp|gho|ghu|ghs|ghr|github_pat|glpat|xox[abeprs]|hf|nvapi|npm|pypi|AIza|ya29)[-_.]?[A-Za-z0-9_-]{16,}` +
		`|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)+|(?i:\bbearer\s+)[^\s,;]+`)
	// named is a value with a name that says what it is, whatever joins them.
	named = regexp.MustCompile(`(?i)([\w.-]*(?:token|secret|passw(?:or)?d|credential|api[_-]?key|access[_-]?key|private[_-]?key)[\w.-]*["']?\s*(?:=|:|\bis\b)\s*)["']?[^\s"',;]+`)
	// environment is a setting as a shell takes it.
	environment = regexp.MustCompile(`\b([A-Z][A-Z0-9_]{2,}=)("[^"]*"|'[^']*'|[^\s,;]+)`)
	// userinfo is the name and password in a URL.
	userinfo = regexp.MustCompile(`(://)[^/\s@]+@`)
	// paths are absolute: of Unix, of a home folder, file URLs, drives and shares of Windows. The path of a web URL is none.
	paths = regexp.MustCompile(`(?i)\bfile:/[^\s"',;)]*|(^|[^\w./:~?&%-])(?:~[\w-]*/|/)[\w.@+~-][^\s"',;)]*|\b[a-z]:[\\/][^\s"',;)]+|\\\\[\w.-]+\\[^\s"',;)]*`)
)

// hide returns s without what a resource never shows. hide(hide(s)) == hide(s).
func hide(s string) string {
	s = credentials.ReplaceAllString(s, hiddenValue)
	s = named.ReplaceAllString(s, "${1}"+hiddenValue)
	s = environment.ReplaceAllString(s, "${1}"+hiddenValue)
	s = userinfo.ReplaceAllString(s, "${1}"+hiddenValue+"@")
	return paths.ReplaceAllString(s, "${1}"+hiddenPath)
}

// block is a text of elsewhere, cleaned and without what is hidden. It is cleaned first, so that nothing comes together when
// something is taken out.
func block(s string) string { return clean.Block(hide(clean.Block(s, clean.Whole)), clean.Whole) }

// hideIn does so with every string of a message, however deep. Maps are emptied: no resource shows one.
func hideIn(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			m.Clear(fd)
		case fd.Message() != nil && fd.IsList():
			for i := range v.List().Len() {
				hideIn(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			hideIn(v.Message())
		case fd.Kind() == protoreflect.StringKind && fd.IsList():
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfString(block(v.List().Get(i).String())))
			}
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString(block(v.String())))
		}
		return true
	})
}

// hideInValue does so with every string of a JSON value, keys among them.
func hideInValue(v any) any {
	switch v := v.(type) {
	case string:
		return block(v)
	case []any:
		for i := range v {
			v[i] = hideInValue(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[block(key)] = hideInValue(item)
		}
		return out
	}
	return v
}
