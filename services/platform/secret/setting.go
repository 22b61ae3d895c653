package secret

import (
	"slices"
	"strings"

	"durward.internal/services/platform/pattern"
)

const (
	// minValue is the shortest value of a setting that is taken for a secret, in bytes.
	minValue = 3
	// maxName is how much of a setting's name is looked at, and maxSpace how many spaces may stand between its parts.
	maxName, maxSpace = 64, 8
	// maxBeside is how far behind a setting's name its value may begin.
	maxBeside = 112
)

// settingNames are how the name of a setting that holds a secret ends, in lower case, the longer ones before those that they
// begin with.
var settingNames = []string{"token", "secret", "password", "passwd", "passphrase", "passcode", "pass", "pwd", "credential", "key"}

// passwords are those after which people write the value without a sign.
var passwords = []string{"password", "passwd", "passphrase", "passcode", "pwd"}

// keyOf are what the keys are called that are secrets.
var keyOf = []string{
	"api", "access", "private", "secret", "auth", "signing", "encryption", "master", "account", "shared", "storage", "session",
}

// behind is what stands in JSON behind a text that ends with a setting's sign: the quote that ends it looks like one that begins a value.
const behind = `[,\]}](?:(?:[\s,:\[\]{}]|\d+|[.eE+-]|true|false|null)*[\s,:\[\]{}])?`

var (
	// notSecret are names that end like a secret's and are a model's or a program's vocabulary.
	notSecret = pattern.New(`(?i)(?:(?:^|[_.-])(?:bos|eos|pad|unk|sep|cls|mask|image|audio|video|stop|end|begin|start|special|next|first|last|prompt|output|` +
		`input|per|max|min|num|add|new|n|think|tool|fim|total|generated|cached|batched)[_ .-]*tokens?|` +
		`(?:first|second|forward|backward|single|one|two|multi|prefill|decode)[_.-]pass)$`)
	// none is what settings are set to that hold no secret.
	none = pattern.New(`(?i)^(?:none|null|nil|true|false|yes|no|unset|empty|undefined|required|optional|missing|invalid|redacted|hidden|enabled|disabled|` +
		`set|not|is|was|has|str|string|int|bool|bytes|object|\*+|x+|\.+|-+|_+|\$\{?\w+\}?|%\w+%|<[^>]*>?|` + behind + `)$`)
	// lineEnd is where a line ends behind a setting's sign; a block of YAML begins there.
	lineEnd = pattern.New(`^(?:[|>][+-]?)?\r?\n`)
	// beside is what stands between a setting's name and its value where each is a member of its own: {"name":"DB_PASSWORD","value":"…"}.
	beside = pattern.New(`(?i)^(?:\\{0,7}["'][,\s]{0,40}|[ \t]{0,8}\r?\n\s{0,40})(?:\\{0,7}["'])?value(?:\\{0,7}["'])?[ \t]{0,8}[:=][ \t]{0,8}`)
	// firstMember is the key of an object's first member.
	firstMember = pattern.New(`^(?:\\{0,7}"[\w.-]{1,64}\\{0,7}"|'[\w.-]{1,64}')[ \t]{0,8}:[ \t]{0,8}`)
	// quantity is how many tokens, or how long one took.
	quantity = pattern.New(`(?i)^[+-]?(?:[0-9][.,]?){1,6}(?:%|x|[kmgt]i?b?|b|/s|[nuµm]?s|min|h|tok(?:en)?s?(?:/s)?|t/s)?$`)
	count    = pattern.New(`^[0-9]{1,12}$`)
)

// nothing reports whether a value holds no secret.
func nothing(value string) bool {
	return len(value) < minValue || len(value) <= 128 && none().MatchString(value)
}

// hasPrefix and hasSuffix are those of strings for a word in lower case, whatever the case of a text's letters.
func hasPrefix(text, lower string) bool {
	return len(text) >= len(lower) && strings.EqualFold(text[:len(lower)], lower)
}

func hasSuffix(text, lower string) bool {
	return len(text) >= len(lower) && strings.EqualFold(text[len(text)-len(lower):], lower)
}

// setting reads the setting whose name's last word begins at a place; word is that word in lower case.
func setting(text string, from int, word string) (Span, bool) {
	begin, to := from, from+len(word)
	for begin > max(from-maxName, 0) && nameByte(text[begin-1]) {
		begin--
	}
	plural := to < len(text) && lowerByte(text[to]) == 's'
	if plural {
		to++
	}
	name := text[begin:to]
	switch {
	case word == "key" && !isKey(text[max(from-maxName, 0):from]):
		return Span{}, false
	case word == "pass" && from > 0 && isLetter(lowerByte(text[from-1])) && (text[from] != 'P' || text[from-1] < 'a'):
		return Span{}, false
	}
	at, how := separator(text, to, word, strings.HasPrefix(name, "--"))
	if how == notSet || notSecret().MatchString(name) {
		return Span{}, false
	}
	s, alone := settingValue(text, at)
	value := text[s.From:s.To]
	ok := !nothing(value)
	switch {
	case strings.HasPrefix(value, "/") && (name == "PWD" || name == "OLDPWD"):
		return Span{}, false // a shell's folders, which each print of an environment has
	case word != "token" && word != "key":
	case quantity().MatchString(clip(value)), plural && count().MatchString(clip(value)):
		ok = false
	case plural: // "special tokens: …"
		ok = ok && hasDigit(value)
	}
	switch how {
	case saidIs:
		ok = ok && odd(value)
	case saidBare:
		ok = ok && hasDigit(value) && !quantity().MatchString(clip(value))
	case nextLine:
		ok = ok && alone
	}
	return s, ok
}

func hasDigit(value string) bool { return strings.ContainsAny(value, "0123456789") }

func clip(value string) string { return value[:min(len(value), 64)] }

// isKey reports whether what stands before "key" makes it a secret's name.
func isKey(before string) bool {
	for _, kind := range keyOf {
		if hasSuffix(before, kind) {
			return true
		}
		if n := len(before) - 1; n > 0 && strings.IndexByte("_ .-", before[n]) >= 0 && hasSuffix(before[:n], kind) {
			return true
		}
	}
	return false
}

// how says how a setting's name and value are joined.
type how int

const (
	notSet how = iota
	// assigned: by a sign or as a program's option.
	assigned
	// nextLine: by a sign, and the value is on the next line.
	nextLine
	// saidIs: "the password is …", saidBare: "password …".
	saidIs
	saidBare
)

// separator returns where the value of a setting may begin whose name ends at a place.
func separator(text string, at int, word string, option bool) (int, how) {
	end := at
	for _, one := range []string{`\`, `"'`, `]`} {
		if at < len(text) && strings.IndexByte(one, text[at]) >= 0 {
			at++
		}
	}
	closed := at
	at = spaces(text, at)
	for _, sign := range []string{"=>", "->", ":=", "==", "=", ":", "%3d", "%3a"} {
		if !hasPrefix(text[at:], sign) {
			continue
		}
		at = spaces(text, at+len(sign))
		if n := len(lineEnd().FindString(text[at:min(at+8, len(text))])); n > 0 {
			return spaces(text, at+n), nextLine
		}
		return at, assigned
	}
	if value := beside().FindString(text[end:min(end+maxBeside, len(text))]); value != "" {
		return end + len(value), assigned
	}
	if option {
		after := closed
		if after < len(text) && text[after] == ',' {
			after++
		}
		if value := spaces(text, after); value > after {
			return value, assigned
		}
	}
	if at == end {
		return 0, notSet
	}
	if hasPrefix(text[at:], "is ") && closed == end {
		return spaces(text, at+3), saidIs
	}
	if closed == end && slices.Contains(passwords, word) {
		return at, saidBare
	}
	return 0, notSet
}

// settingValue returns where the value that begins at a place is, without its quotes and what is wrapped around it, and whether it
// is alone on its line.
func settingValue(text string, at int) (Span, bool) {
	s := Span{Kind: "SETTING"}
	for range 4 { // a list, an object's first member, a call: one in the other
		switch {
		case at < len(text) && strings.IndexByte("[({", text[at]) >= 0:
			at = spaces(text, at+1)
			at += len(firstMember().FindString(text[at:min(at+2*maxName, len(text))]))
			continue
		case call(text, at) > at:
			at = spaces(text, call(text, at))
			continue
		}
		break
	}
	quote := at
	for quote < min(at+3, len(text)) && strings.IndexByte("uUbBrRfF", text[quote]) >= 0 {
		quote++
	}
	escaped := quote < len(text) && text[quote] == '\\'
	if escaped {
		quote++
	}
	if quote < len(text) && (text[quote] == '"' || text[quote] == '\'') {
		s.From = quote + 1
		s.To = closing(text, s.From, text[quote], escaped)
		return s, false
	}
	s.From, s.To = at, at
	for s.To < len(text) && strings.IndexByte(" \t\r\n\v\f\"',;[](){}<>", text[s.To]) < 0 {
		s.To++
	}
	rest := spaces(text, s.To)
	return s, rest == len(text) || text[rest] == '\n' || text[rest] == '\r'
}

// closing returns where a quoted text ends: at its quote; where the line has none, at a quote of the other kind, which ends what
// the line quotes, or at the end of the line.
func closing(text string, at int, quote byte, escaped bool) int {
	other := -1
	for ; at < len(text) && text[at] != '\n' && text[at] != quote; at++ {
		if other < 0 && (text[at] == '"' || text[at] == '\'') {
			other = at
		}
		if text[at] != '\\' || at+1 == len(text) || text[at+1] == '\n' {
			continue
		}
		if escaped && text[at+1] == quote {
			return at
		}
		at++
	}
	if (at >= len(text) || text[at] == '\n') && other >= 0 {
		return other
	}
	return min(at, len(text))
}

// call returns where the first argument begins of a call that begins at a place, or the place.
func call(text string, at int) int {
	end := at
	for end < min(at+maxName, len(text)) && nameByte(text[end]) {
		end++
	}
	if end > at && end < len(text) && text[end] == '(' {
		return end + 1
	}
	return at
}

// spaces skips a few.
func spaces(text string, at int) int {
	for end := min(at+maxSpace, len(text)); at < end && (text[at] == ' ' || text[at] == '\t'); at++ {
	}
	return at
}

func nameByte(c byte) bool {
	return isLetter(lowerByte(c)) || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-'
}

func isLetter(lower byte) bool { return 'a' <= lower && lower <= 'z' }

func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
