package unit

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// command is the value of ExecStart= that runs exactly this argument vector. The prefix ":" has systemd replace no variables, so
// that "$" means itself, in the program's path as in its arguments (systemd.service(5), "Command lines").
func command(argv []string) (string, error) {
	// systemd takes no program whose name holds these; in an argument they are quoted.
	if !plain(argv[0]) || strings.ContainsAny(argv[0], `"'\`) {
		return "", errors.New("the program has a name that a unit cannot hold")
	}
	words := make([]string, len(argv))
	for i, argument := range argv {
		word, err := quote(argument)
		if err != nil {
			return "", fmt.Errorf("argument %d: %w", i, err)
		}
		words[i] = word
	}
	return ":" + strings.Join(words, " "), nil
}

// quote returns text as one word of a unit file: in double quotes, with C's escapes and "%" doubled, so that no quote, backslash,
// space, semicolon, newline or specifier in it has a meaning (systemd.syntax(7), "Quoting"; systemd.unit(5), "Specifiers").
func quote(text string) (string, error) {
	if !utf8.ValidString(text) {
		return "", errors.New("it is not UTF-8, which a unit file must be")
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == 0:
			return "", errors.New("it holds a zero byte")
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '%':
			b.WriteString("%%")
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r > 0x7f && !unicode.IsGraphic(r):
			return "", errors.New("it holds a character that a reviewer would not see")
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String(), nil
}

// hasControl reports whether text is not UTF-8 or holds a character that cannot be seen (a control, or one that turns the
// direction of what is shown) other than those.
func hasControl(text, except string) bool {
	return !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsGraphic(r) && !strings.ContainsRune(except, r)
	})
}
