package secret

import "strings"

const (
	// maxLabel is how long what a key calls itself may be.
	maxLabel = 120
	// A key's lines are this long, but its last.
	minKeyLine, maxKeyLine = 60, 80
)

// arrow is what stands between the lines of one entry of systemd's journal.
const arrow = "⏎"

// keys finds private keys, of which a window on a log may show one end or the middle. It goes through the text once.
func keys(text string) []Span {
	var out []Span
	add := func(from, to int) { out = append(out, Span{From: from, To: to, Kind: "PRIVATE_KEY"}) }
	open, body := -1, 0 // where a key began, and where its label ended
	for at := 0; ; {
		i := strings.Index(text[at:], "-----")
		if i < 0 {
			break
		}
		at += i
		end, begins := label(text, at)
		if end < 0 {
			at++
			continue
		}
		switch {
		case begins && open >= 0: // that one never ended
			add(open, keyEnd(text, body))
			open, body = at, end
		case begins:
			open, body = at, end
		case open >= 0:
			add(open, end)
			open = -1
		default:
			add(keyBegin(text, at), end)
		}
		at = end
	}
	if open >= 0 {
		add(open, keyEnd(text, body))
	}
	return append(out, keyLines(text)...)
}

// label returns where the line ends that begins or ends a private key and begins at a place, or -1.
func label(text string, at int) (end int, begins bool) {
	rest := asciiLower(text[at+5 : min(at+5+maxLabel, len(text))])
	rest, begins = strings.CutPrefix(rest, "begin ")
	if !begins && !strings.HasPrefix(rest, "end ") {
		return -1, false
	}
	n := strings.Index(rest, "-----")
	if n < 0 || !strings.Contains(rest[:n], "private key") {
		return -1, false
	}
	return min(at+5+maxLabel, len(text)) - len(rest) + n + 5, begins
}

// keyEnd returns where the words of a key end that begin at a place.
func keyEnd(text string, at int) int {
	for {
		next := at
		for n := 1; n > 0; next += n {
			n = between(text[next:])
		}
		end := next
		for end < len(text) && isBase64(text[end]) {
			end++
		}
		if end == next {
			return at
		}
		at = end
	}
}

// keyBegin returns where the words of a key begin that end at a place: the last may be short.
func keyBegin(text string, at int) int {
	for shortest := 1; ; shortest = 20 {
		end := at
		for end > 0 {
			n := betweenBefore(text[:end])
			if n == 0 {
				break
			}
			end -= n
		}
		begin := end
		for begin > 0 && isBase64(text[begin-1]) {
			begin--
		}
		if end-begin < shortest {
			return at
		}
		at = begin
	}
}

// between is the length of what separates a key's lines at the beginning of a text, and betweenBefore at its end.
func between(text string) int {
	switch {
	case text == "":
		return 0
	case strings.IndexByte(" \t\r\n\"'", text[0]) >= 0:
		return 1
	case strings.HasPrefix(text, `\n`), strings.HasPrefix(text, `\r`):
		return 2
	case strings.HasPrefix(text, arrow):
		return len(arrow)
	}
	return 0
}

func betweenBefore(text string) int {
	switch {
	case strings.IndexByte(" \t\r\n\"'", text[len(text)-1]) >= 0:
		return 1
	case strings.HasSuffix(text, `\n`), strings.HasSuffix(text, `\r`):
		return 2
	case strings.HasSuffix(text, arrow):
		return len(arrow)
	}
	return 0
}

// keyLines finds two or more lines of a key after one another, and what follows the last of them; programs may have put a word
// before each.
func keyLines(text string) []Span {
	if !hasRun(text) {
		return nil
	}
	var out []Span
	run := 0
	for from, to := range Lines(text) {
		line := strings.TrimRight(text[from:to], " \t\r\"',")
		word := line[strings.LastIndexAny(line, " \t\"'")+1:]
		whole := isKeyLine(word)
		if whole || run > 1 && len(word) >= 4 && len(word) < minKeyLine && allBase64(word) {
			out = append(out, Span{From: from + len(line) - len(word), To: from + len(line), Kind: "PRIVATE_KEY"})
		}
		if run++; !whole {
			run = 0
		}
	}
	return pairs(out, text)
}

// hasRun reports whether a text has so many of base64's characters in a row as a key's line has, and no digest's alone.
func hasRun(text string) bool {
	for at := minKeyLine - 1; at < len(text); {
		if !isBase64(text[at]) {
			at += minKeyLine
			continue
		}
		from, to := at, at+1
		for from > 0 && at-from < maxKeyLine && isBase64(text[from-1]) {
			from--
		}
		for to < len(text) && to-from < 2*maxKeyLine && isBase64(text[to]) {
			to++
		}
		for i := from; to-from >= minKeyLine && i < to; i++ {
			if c := lowerByte(text[i]); c >= 'g' && c <= 'z' {
				return true
			}
		}
		at = to + minKeyLine - 1
	}
	return false
}

// pairs leaves out lines that stand alone: what looks like one line of a key may be anything.
func pairs(spans []Span, text string) []Span {
	var out []Span
	for i, s := range spans {
		before := i > 0 && near(text[spans[i-1].To:s.From])
		after := i+1 < len(spans) && near(text[s.To:spans[i+1].From])
		if before || after {
			out = append(out, s)
		}
	}
	return out
}

// near reports whether there is one end of a line in what lies between two words.
func near(gap string) bool {
	return len(gap) <= 256 && strings.Count(gap, "\n")+strings.Count(gap, `\n`)+strings.Count(gap, arrow) == 1
}

// Lines goes through the lines of a text, as a log, a string of a program and systemd's journal divide them.
func Lines(text string) func(yield func(from, to int) bool) {
	return func(yield func(from, to int) bool) {
		from := 0
		for i := 0; i <= len(text); {
			n := 0
			switch {
			case i == len(text):
				n = 1
			case text[i] == '\n':
				n = 1
			case text[i] == '\\' && (strings.HasPrefix(text[i:], `\n`) || strings.HasPrefix(text[i:], `\r`)):
				n = 2
			case text[i] == arrow[0] && strings.HasPrefix(text[i:], arrow):
				n = len(arrow)
			}
			if n == 0 {
				for i++; i < len(text) && !endsLine[text[i]]; i++ {
				}
				continue
			}
			if !yield(from, i) {
				return
			}
			i += n
			from = i
		}
	}
}

// endsLine are the bytes that the end of a line may begin with.
var endsLine = [256]bool{'\n': true, '\\': true, 0xe2: true} // 0xe2: the arrow's first

// isKeyLine reports whether a word is a line of a key, and no digest.
func isKeyLine(word string) bool {
	return len(word) >= minKeyLine && len(word) <= maxKeyLine && allBase64(word) &&
		strings.ContainsAny(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") && strings.ContainsAny(word, "ghijklmnopqrstuvwxyz") &&
		strings.ContainsAny(word, "0123456789+/")
}

func allBase64(word string) bool {
	for i := range len(word) {
		if !isBase64(word[i]) {
			return false
		}
	}
	return true
}

// base64s are the bytes of base64.
var base64s = func() (t [256]bool) {
	for c := range t {
		b := byte(c)
		t[c] = isLetter(lowerByte(b)) || '0' <= b && b <= '9' || b == '+' || b == '/' || b == '='
	}
	return t
}()

func isBase64(c byte) bool { return base64s[c] }
