package clean

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"durward.internal/services/platform/pattern"
)

// Internal is the sentence that stands for every error text that cannot be shown.
const Internal = "internal error"

// Sentence is Line for the public text of an error (SEC-E1): a text that shows what is inside, as Leaks finds it, becomes
// Internal. Sentence(Sentence(s)) == Sentence(s).
func Sentence(s string, max int) string {
	if short, ok := shown(s, max); ok {
		return short
	}
	return cut(Internal, max)
}

// Name is Line for what an error calls by name, an argument or a suggestion: a name that Leaks becomes empty.
func Name(s string, max int) string {
	if short, ok := shown(s, max); ok {
		return short
	}
	return ""
}

// Count writes how many there are: "1 file", "2 files". many is what else than a final s more than one has: "record waits", "records wait".
func Count[N int | int64 | uint32 | uint64](n N, one string, many ...string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n) + " " + cmp.Or(strings.Join(many, ""), one+"s")
}

// maxLooked is how much of a text is looked at, in characters, even if less of it is shown.
const maxLooked = 4096

// shown returns Line of s, and whether neither that nor what was cut off leaks: a cut can make a word of a part of one.
func shown(s string, limit int) (string, bool) {
	s = Line(s, max(limit, maxLooked))
	short := cut(s, limit)
	return short, !Leaks(s) && (len(short) == len(s) || !Leaks(short))
}

// Leaks reports whether a text looks as if it showed what is inside a program: an absolute path or file URL, a stack frame,
// a line number, SQL, a Go type, a package's path, or the words of a runtime. It is for the texts of errors, which are few
// and ours; ordinary text speaks of such things all the time. It errs on the side of saying yes.
func Leaks(s string) bool {
	if !strings.ContainsAny(s, signs) {
		return worded().MatchString(s)
	}
	return shaped().MatchString(s) || worded().MatchString(s)
}

// signs are the characters of which shaped needs one.
const signs = `/\.:*[]{}<>%+`

// shaped are leaks that punctuation gives away.
var shaped = oneOf(append([]string{
	// Files of source, with or without a line.
	`[\w/-]+\.(?:go|py|js|ts|c|cc|cpp|rs|java|rb|php|cs)(?::\d+|\b.{0,3}\bline \d+|\(\d+\))`,
	`(?:^|[\s"'(/])[\w-]+\.go\b`,
	// Stacks.
	`\+0x[0-9a-f]+\b`, `(?m)^\s*at \S+\(.*:\d+`,
	// Go's types, values and formatting.
	`\*[a-z]\w*\.[A-Z]\w*`, `(?:^|[\s"'(&\[{])[a-z]\w*\.[A-Z]\w+`, `\bmap\[\w+\]`, `\[\]\*?[a-z]\w*`, `\b(?:interface|struct) ?\{`, `<nil>`, `%!\w\(`,
	// Where packages live.
	`durward\.internal/`, `\b(?:github\.com|gitlab\.com|golang\.org|google\.golang\.org|gopkg\.in|modernc\.org)/`,
	// What libraries say.
	`\brpc error:`, `\bruntime error:`, `\bpq: `, `\b(?:json|proto|x509|tls|sql|yaml|http2?): `,
}, pathShapes...)...)

// worded are leaks in plain words.
var worded = oneOf(
	`\bgoroutine \d+`, `\bTraceback \(most recent`, `\b(?:dial|read|write) (?:tcp|unix|udp)\b`, `\bpanic\b.*\b(?:recovered|goroutine|runtime)`, `nil pointer`, `index out of range`, `segmentation (?:fault|violation)`, `\bSIG[A-Z]{3,}\b`,
	`(?i)\bline \d+\b`, `\bcreated by \w`, `\b0x[0-9a-f]{8,16}\b`, `context (?:deadline exceeded|canceled)`, `connection refused`, `no such file or directory`, `permission denied`,
	`(?i)\b(?:sqlite|sqlstate|postgres(?:ql)?|pgx)\b`, `(?i)\b(?:unique|foreign key|check|not null) constraint\b`, `(?i)\bno such (?:table|column)\b`, `database is locked`,
	`\bSELECT\b.*\bFROM\b`, `(?i)\bselect\b.+\bfrom\b.+\b(?:where|limit|order by|group by|union|join)\b`, `(?i)\bselect \*`, `(?i)\binsert into \w`, `(?i)\bdelete from \w+ where\b`, `\bDELETE FROM\b`,
	`(?i)\bupdate \w+ set\b`, `(?i)\b(?:create|drop|alter) (?:table|index|database)\b`, `(?i)\bunion (?:all )?select\b`, `(?i)\bpragma \w+`,
)

// oneOf matches what one of the patterns does.
func oneOf(patterns ...string) func() *regexp.Regexp {
	return pattern.New(`(?:` + strings.Join(patterns, `)|(?:`) + `)`)
}
