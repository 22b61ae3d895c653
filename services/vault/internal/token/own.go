package token

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
)

// minValue is the shortest value of a setting that is taken for a secret, in bytes.
const minValue = 3

const (
	// settingName is how the name of a setting that holds a secret ends.
	settingName = `(?:token|secret|passw(?:or)?d|pass(?:phrase|code)|pwd|credentials?|(?:api|access|private|secret|auth|signing|encryption|master)[_ .-]?key)`
	// settingValue is what a setting is set to, as a shell, Python or JSON writes it: quoted, closed or not, or bare, in a list or not.
	settingValue = `(?:[\[({][ \t]*)?(?:\\?"((?:[^"\\\n]|\\[^"\n])+)|\\?'((?:[^'\\\n]|\\[^'\n])+)|([^\s"',;\[\](){}<>]+))`
)

// own are the shapes that logs have and source code has not: settings with a telling name, URLs with a password, headers, and keys
// of which a window on a log shows one end.
func own() []rule {
	return []rule{
		{
			kind: "SETTING", keywords: []string{"token", "secret", "passw", "passphrase", "passcode", "pwd", "credential", "key"},
			expression: expression(`(?i)[\w.-]{0,64}` + settingName + `(?:\\?["']?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}|[ \t]{1,8}is[ \t]{1,8})` + settingValue),
			plausible:  plausibleSetting,
		},
		{
			kind: "SETTING", keywords: []string{"--"},
			expression: expression(`(?i)--[\w-]{0,64}` + settingName + `["',]{0,2}[ \t]{1,8}` + settingValue),
			plausible:  plausibleSetting,
		},
		{
			kind: "URL_PASSWORD", keywords: []string{"://"},
			expression: expression(`://[^\s/:@"']{0,256}:([^\s@"']{1,256})@`),
		},
		{
			kind: "AUTHORIZATION", keywords: []string{"authorization", "cookie"},
			expression: expression(`(?i)\b(?:authorization|cookie)\\?["']?[ \t]{0,8}[:=][ \t]{0,8}\\?["']?([^\n"']{4,})`), plausible: plausibleSetting,
		},
		{
			kind: "BEARER", keywords: []string{"bearer"},
			expression: expression(`(?i)\bbearer[ \t]+([A-Za-z0-9._~+/=-]{6,})`), plausible: odd,
		},
		{
			kind: "BASIC_AUTH", keywords: []string{"basic"},
			expression: expression(`(?i)\bbasic[ \t]+([A-Za-z0-9+/]{6,}={0,2})`), plausible: odd,
		},
		{
			kind: "API_KEY", keywords: []string{"sk-", "sk_", "rk-", "rk_", "nvapi", "hf_", "hf-", "xai", "tgp", "ghp", "gho", "ghu", "ghs", "ghr", "durward"},
			expression: expression(`\b((?:sk|rk|nvapi|hf|gsk|xai|tgp|gh[pousr]|durward)[-_][A-Za-z0-9_-]{16,})`), plausible: odd,
		},
		{
			kind: "PRIVATE_KEY", keywords: []string{"-----begin"},
			expression: expression(`-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY[A-Z ]{0,16}-----` +
				`(?:(?s:.*?)-----END [A-Z0-9 ]{0,64}PRIVATE KEY[A-Z ]{0,16}-----|(?:(?:\s|\\n){1,4}[A-Za-z0-9+/=]{1,80})*)`),
		},
		{
			// The end of a key whose beginning is in an earlier answer.
			kind: "PRIVATE_KEY", keywords: []string{"-----end"},
			expression: expression(`(?:[A-Za-z0-9+/=]{20,80}[ \t\r]*\n[ \t]*)*[A-Za-z0-9+/=]{1,80}[ \t\r]*\n[ \t]*-----END [A-Z0-9 ]{0,64}PRIVATE KEY[A-Z ]{0,16}-----`),
		},
	}
}

func expression(source string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(source) })
}

var (
	// notSecret are names that end like a secret's and are a model's or a program's vocabulary.
	notSecret = regexp.MustCompile(`(?i)(?:^|[_.-])(?:bos|eos|pad|unk|sep|cls|mask|image|audio|video|stop|end|begin|start|special|next|first|last|prompt|output|input|` +
		`per|max|min|num|add|new|n|think|tool|fim)[_ .-]*token$`)
	// nothing is what settings are set to that hold none, and quantities.
	nothing = regexp.MustCompile(`(?i)^(?:none|null|nil|true|false|yes|no|unset|empty|undefined|required|optional|missing|invalid|redacted|hidden|enabled|disabled|` +
		`set|not|is|was|has|str|string|int|bool|bytes|object|\*+|x+|\.+|-+|_+|\$\{?\w+\}?|%\w+%|<[^>]*>?|\[\[.*|[\d.,:+-]+[a-z%/]{0,12})$`)
)

// plausibleSetting reports whether a setting is set to a secret.
func plausibleSetting(text string, match, value [2]int) bool {
	secret := text[value[0]:value[1]]
	name := strings.TrimRight(text[match[0]:value[0]], " \t\"'\\=:>[({,")
	sentence := strings.HasSuffix(strings.ToLower(name), " is")
	return len(secret) >= minValue && !nothing.MatchString(secret) && !notSecret.MatchString(name) &&
		(!sentence || odd(text, match, value))
}

// odd reports whether a word is none of a language's: it has a digit, or capitals within.
func odd(text string, _, value [2]int) bool {
	for i, r := range text[value[0]:value[1]] {
		if unicode.IsDigit(r) || i > 0 && unicode.IsUpper(r) || strings.ContainsRune("=+/", r) {
			return true
		}
	}
	return false
}
