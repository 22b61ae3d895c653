package resource

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/redaction"
)

// What a resource never shows (SEC-E2), even where a human wrote it into a name or a description of the catalog, and what
// stands in its place.
const (
	hiddenPath  = "(path)"
	hiddenValue = "(hidden)"
)

// value is what a setting is set to, as a shell or JSON takes it: quoted parts, closed or not, and bare ones, in a row. The scheme of
// an Authorization header may stand before it.
const value = `(?:(?i:bearer|basic)[ \t]+)?(?:"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|[^\s"',;])+`

var (
	// pem is a key or certificate, whole or cut.
	pem = pattern.New(`-----BEGIN [A-Z ]*-----[\s\S]*?(?:-----END [A-Z ]*-----|$)`)
	// credentials are secrets that are known by their look: tokens with a vendor's prefix, JSON web tokens, and what follows the
	// words bearer and basic. The id of a session or request (first, and kept) is none, though a vendor's prefix may begin it.
	credentials = pattern.New(`(\b` + redaction.OwnHandle + `\b)|\b(?:sk|pk|rk|ghp|gho|ghu|ghs|ghr|github_pat|glpat|xox[abeprs]|hf|nvapi|npm|pypi|AIza|ya29)[-_.]?[A-Za-z0-9_-]{16,}` +
		`|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)+|(?i:\bbearer\s+)[^\s,;]+|(?i:\bbasic\s+)[A-Za-z0-9+/]{4,}={1,2}`)
	// lines are settings whose value may have blanks: it ends with its line.
	lines = pattern.New(`(?i)\b((?:proxy-)?authorization|cookie|pass[ _-]?phrase)(["']?[ \t]*[:=][ \t]*)[^\n]+`)
	// named is a value with a name that says what it is, whatever joins them.
	named = pattern.New(`(?i)([\w.-]*(?:token|secret|passw(?:or)?d|passcode|pwd|credential|api[_-]?key|access[_-]?key|private[_-]?key)[\w.-]*["']?[ \t]*(?:=|:|\bis\b)[ \t]*` +
		`|\b(?:key|pass|auth|sig|signature)=)` + value)
	// environment is a setting as a shell takes it.
	environment = pattern.New(`\b([A-Z][A-Z0-9_]{2,}=)` + value)
	// userinfo is the name and password in a URL. A password may hold slashes that should have been escaped.
	userinfo = pattern.New(`(://)(?:[^/\s@]*:\S*|[^/\s]+)@`)
	// quotedPaths are absolute paths in quotes, which end where the quotes do.
	quotedPaths = pattern.New(`(?i)(")` + root + `[^"\n]*|(')` + root + `[^'\n]*|(\x60)` + root + `[^\x60\n]*`)
	// paths are absolute: of Unix, of a home folder, file URLs, drives and shares of Windows, also behind a word and a colon or
	// an option's letter. The path of a web URL is none. A name with blanks belongs to its path as far as a later word, of
	// the next few, holds a slash or ends like a file.
	paths = pattern.New(`(?i)\b(?:file:/|[a-z]:[\\/]+[^\s"',;/\\])` + rest + `|(:)/[^\s"',;)/]` + rest + `|((?:^|[^\w\pL\pN./:~?&%-])|(?:^|[\s"'(=,])--?\w*)` + root + rest)
	// words are what is looked at once more.
	words = pattern.New(`\S+`)
)

const (
	// root is how an absolute path begins.
	root = `(?:file:/|~[\w-]*/|/+[^\s"',;)/]|[a-z]:[\\/]+[^\s"',;/\\]|\\\\[\w\pL.-]+\\)`
	// rest is the rest of one.
	rest = `[^\s"',;)]*(?:(?: [^\s"',;()/\\]+){0,4} [^\s"',;()~/\\-][^\s"',;()]*(?:[/\\][^\s"',;)]*|\.[a-z]\w{0,7}\b))*`
)

// maxPasses bounds how often a text is looked at until nothing is left to hide.
const maxPasses = 4

// block is a text of elsewhere, cleaned and without what a resource never shows. What is still not quiet after a few passes is
// hidden as a whole, so that block(block(s)) == block(s).
func block(s string) string {
	s = clean.Block(s, clean.Whole) // first, so that nothing comes together later
	for range maxPasses {
		hidden := clean.Block(hide(s), clean.Whole)
		if hidden == s {
			return s
		}
		s = hidden
	}
	return hiddenValue
}

// hide looks at s once. Whatever the shapes here miss, no word stays that an error could not show (clean.ShowsPath).
func hide(s string) string {
	s = quotedPaths().ReplaceAllString(s, "${1}${2}${3}"+hiddenPath) // first: a value ends at a blank, a path may not
	s = paths().ReplaceAllString(s, "${1}${2}"+hiddenPath)
	s = pem().ReplaceAllString(s, hiddenValue) // before what ends with its line
	s = lines().ReplaceAllString(s, "${1}${2}"+hiddenValue)
	s = named().ReplaceAllString(s, "${1}"+hiddenValue)
	s = environment().ReplaceAllString(s, "${1}"+hiddenValue)
	// After what has a name, which bearer would take for the value.
	s = credentials().ReplaceAllStringFunc(s, func(found string) string {
		if found[1] == '-' { // an id: what else is found begins with letters
			return found
		}
		return hiddenValue
	})
	s = userinfo().ReplaceAllString(s, "${1}"+hiddenValue+"@")
	return words().ReplaceAllStringFunc(s, func(word string) string {
		if clean.ShowsPath(word) {
			return hiddenPath
		}
		return word
	})
}

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
