package secret

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
)

// own are the shapes, found by expressions, that logs have and source code has not: URLs with a password, headers, and credentials
// of which a log shows only the beginning.
func own() []rule {
	return []rule{
		{
			kind: "SETTING", keywords: []string{"</"},
			expression: expression(`(?i)<[\w:.-]{0,64}(?:token|secret|passw(?:or)?d|pass(?:phrase|code)?|pwd|credential|key)s?(?:[ \t][^<>\n]{0,100})?>` +
				`[ \t]{0,8}([^<\s][^<\n]{0,1000})`),
			plausible: func(text string, _, value [2]int) bool { return !nothing(text[value[0]:value[1]]) },
		},
		{
			kind: "QUERY", keywords: []string{"?", "&"},
			expression: expression(`(?i)[?&](?:amp;)?(?:(?:x-(?:amz|goog)-)?(?:sig|signature|credential|security-token)|key|auth|pw|code)=([^&\s"'<>]{6,1000})`),
		},
		{
			// The password goes to the last @: it may hold one itself.
			kind: "URL_PASSWORD", keywords: []string{"://"},
			expression: expression(`://[^\s/:@"']{0,256}:([^\s"']{1,512})@`),
		},
		{
			kind: "AUTHORIZATION", keywords: []string{"authorization", "cookie"},
			expression: expression(`(?i)\b(?:authorization|cookie)\\?["']?[ \t]{0,8}[:=][ \t]{0,8}\\?["']?([^\n"']{4,})`),
			plausible:  func(text string, _, value [2]int) bool { return !nothing(text[value[0]:value[1]]) },
		},
		{
			kind: "BEARER", keywords: []string{"bearer"},
			expression: expression(`(?i)\bbearer[ \t]{1,8}([A-Za-z0-9._~+/=-]{6,})`), plausible: oddValue,
		},
		{
			kind: "BASIC_AUTH", keywords: []string{"basic"},
			expression: expression(`(?i)\bbasic[ \t]{1,8}([A-Za-z0-9+/]{6,}={0,2})`), plausible: oddValue,
		},
		{
			kind: "API_KEY", keywords: []string{"sk-", "sk_", "rk-", "rk_", "nvapi", "hf_", "hf-", "xai", "tgp", "ghp", "gho", "ghu", "ghs", "ghr", "durward"},
			expression: expression(`\b((?:sk|rk|nvapi|hf|gsk|xai|tgp|gh[pousr]|durward)[-_][A-Za-z0-9_-]{16,})`), plausible: oddValue,
		},
		{
			kind: "API_KEY", keywords: []string{"aiza"},
			expression: expression(`\b(AIza[A-Za-z0-9_-]{8,})`), plausible: oddValue,
		},
	}
}

func expression(source string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(source) })
}

func oddValue(text string, _, value [2]int) bool { return odd(text[value[0]:value[1]]) }

// odd reports whether a word is none of a language's: it has a digit, or capitals within.
func odd(word string) bool {
	for i, r := range word {
		if unicode.IsDigit(r) || i > 0 && unicode.IsUpper(r) || strings.ContainsRune("=+/", r) {
			return true
		}
	}
	return false
}
