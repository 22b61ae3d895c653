package hostile

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// finding is a kind of thing that no answer may show.
type finding string

const (
	escapes finding = "escape codes"
	hidden  finding = "hidden characters"
	paths   finding = "paths"
	stacks  finding = "stack traces"
	echoes  finding = "echoes"
)

var (
	absolute = regexp.MustCompile(`(?i)(?:^|[^\w/.:~])~?/+(?:home|root|tmp|work|usr|var|proc|etc|opt|srv|mnt|run|dev|sys|bin|boot|lib\d*|users|private|data|state|logs?)(?:/|\b)|` +
		`(?:^|[^\w/.:~-])/[\w.@+-]+/[\w.@+-]+/|(?:^|[^a-z0-9])[a-z]:[\\/]+\w|\bfile:/|\\\\[\w.-]+\\\w|\.\./\.\.`)
	internal = regexp.MustCompile(`goroutine \d|\.go:\d|\bpanic:|runtime error|nil pointer|\bdurward\.internal/|\b(?:github\.com|golang\.org|google\.golang\.org)/|` +
		`\*[a-z]\w*\.[A-Z]\w*|\bmap\[string\]|<nil>|%!\w\(|\brpc error:|(?i:\bselect\b[^"]{1,80}\bfrom\b[^"]{1,80}\bwhere\b|sqlite|sqlstate|\bsyntax error (?:at|near)\b)|` +
		`Traceback \(most recent|\(\S+\.(?:js|py|java):\d+`)
)

// inspect returns what an HTTP answer shows that it must not: in its bytes, and in every text of the JSON in it, as deep as
// JSON is within texts. sent is what was sent, or empty where the protocol wants it back.
func inspect(header http.Header, body []byte, sent string) map[finding]string {
	found := map[finding]string{}
	note := func(f finding, where string) {
		if _, known := found[f]; !known {
			found[f] = where
		}
	}
	for name, values := range header {
		for _, v := range values {
			inspectText(name+": "+v, false, note)
		}
	}
	if !utf8.Valid(body) {
		note(escapes, "not UTF-8")
	}
	for _, c := range body {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' || c == 0x7F {
			note(escapes, string(body))
		}
	}
	whole := true
	for _, message := range messages(body) {
		var v any
		if json.Unmarshal(message, &v) != nil {
			whole = false
			continue
		}
		inspectValue(v, 0, note)
	}
	if !whole || len(body) > 0 && len(messages(body)) == 0 {
		inspectText(string(body), true, note)
	}
	if at := echo(body, sent); at >= 0 {
		note(echoes, string(body[max(0, at-100):min(len(body), at+len(sent)+50)]))
	}
	return found
}

// minEcho is how long a string must be, in bytes, for its return not to be chance.
const minEcho = 8

func echo(body []byte, sent string) int {
	if len(sent) < minEcho {
		return -1
	}
	return bytes.Index(body, []byte(sent))
}

// inspector is inspect for many answers that differ in their request id alone. It is safe for concurrent use.
type inspector struct {
	mu   sync.Mutex
	good map[string]bool
}

// maxRemembered bounds how many kinds of answers are remembered.
const maxRemembered = 50_000

func (i *inspector) inspect(header http.Header, body []byte, sent string) map[finding]string {
	var kind strings.Builder
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if name != "Date" && name != "Content-Length" {
			kind.WriteString(name + ": " + strings.Join(header[name], ", ") + "\n")
		}
	}
	kind.Write(body)
	same := withoutIDs(kind.String())
	i.mu.Lock()
	good := i.good[same]
	i.mu.Unlock()
	if good && echo(body, sent) < 0 {
		return nil
	}
	found := inspect(header, body, sent)
	if len(found) == 0 {
		i.mu.Lock()
		if i.good == nil || len(i.good) >= maxRemembered {
			i.good = map[string]bool{}
		}
		i.good[same] = true
		i.mu.Unlock()
	}
	return found
}

// idLength is that of a request id: "r-" and 26 characters.
const idLength = 28

// withoutIDs replaces every request id by one.
func withoutIDs(s string) string {
	var b strings.Builder
	for {
		at := strings.Index(s, "r-")
		if at < 0 || at+idLength > len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:at])
		id := s[at : at+idLength]
		s = s[at+2:]
		if strings.Trim(id[2:], "abcdefghijklmnopqrstuvwxyz234567") == "" {
			id, s = "r-", s[idLength-2:]
		}
		b.WriteString(id[:2])
	}
}

// messages returns the JSON in a body: the data of its events, or all of it.
func messages(body []byte) [][]byte {
	trimmed := bytes.TrimSpace(body)
	if len(trimmed) == 0 {
		return nil
	}
	if trimmed[0] == '{' || trimmed[0] == '[' {
		return [][]byte{trimmed}
	}
	var out [][]byte
	for line := range bytes.Lines(body) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && len(bytes.TrimSpace(data)) > 0 {
			out = append(out, bytes.TrimSpace(data))
		}
	}
	return out
}

// maxWithin is how deep JSON within texts is followed.
const maxWithin = 4

func inspectValue(v any, within int, note func(finding, string)) {
	switch v := v.(type) {
	case string:
		inspectText(v, true, note)
		if within < maxWithin && (strings.HasPrefix(v, "{") || strings.HasPrefix(v, "[")) {
			var inner any
			if json.Unmarshal([]byte(v), &inner) == nil {
				inspectValue(inner, within+1, note)
			}
		}
	case []any:
		for _, item := range v {
			inspectValue(item, within, note)
		}
	case map[string]any:
		for key, item := range v {
			inspectText(key, false, note)
			inspectValue(item, within, note)
		}
	}
}

// inspectText looks at one text; lines says that it may have several.
func inspectText(s string, lines bool, note func(finding, string)) {
	for _, r := range s {
		switch {
		case lines && (r == '\n' || r == '\t' || r == '\r'):
		case unicode.Is(unicode.Cc, r), r == utf8.RuneError:
			note(escapes, s)
		case unicode.In(r, unicode.Cf, unicode.Co, unicode.Cs), r >= 0xE0000 && r <= 0xE0FFF, r >= 0xFE00 && r <= 0xFE0F, r == 0x2028, r == 0x2029:
			note(hidden, s)
		}
	}
	if absolute.MatchString(s) {
		note(paths, s)
	}
	if internal.MatchString(s) {
		note(stacks, s)
	}
}
