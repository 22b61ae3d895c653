package secret

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// rule is one shape of credential.
type rule struct {
	kind string
	// keywords are words of which what stands near must hold one, in lower case.
	keywords []string
	// source is an expression of RE2.
	source string
	// reach is how far around its keyword a match is looked for where no three bytes tell that one begins.
	reach int
	// needs is a byte that every match has, and few texts have so near; 0: none.
	needs byte
	// group is the part of the match that is the secret; 0: the first that is there, or all of it.
	group   int
	entropy float64
	// before: the beginning of the word that the match begins in belongs to it.
	before bool
	// plausible reports whether what was found is a value and not a word; nil: it always is.
	plausible func(text string, match, value [2]int) bool
	// expression is the source's, for a text that begins where the match does.
	expression func() *regexp.Regexp
}

//go:embed gitleaks.json
var gitleaks []byte

// listed is the file of public shapes: see gitleaks.LICENCE.
type listed struct {
	Allow []string `json:"allow"`
	Rules []struct {
		ID       string   `json:"id"`
		Keywords []string `json:"keywords"`
		Regex    string   `json:"regex"`
		Entropy  float64  `json:"entropy"`
		Group    int      `json:"group"`
		Allow    *struct {
			Value []string `json:"value"`
			Match []string `json:"match"`
			Line  []string `json:"line"`
			Words []string `json:"words"`
		} `json:"allow"`
	} `json:"rules"`
}

// inLogs are the keywords of rules whose own are words that stand near the credential in source code alone.
var inLogs = map[string][]string{"airtable-personnal-access-token": {"pat"}, "facebook-access-token": {"|", "%"}}

// reaches is how far before its keyword a match begins at most, where that is near.
var reaches = map[string]int{"facebook-access-token": 17}

// Many public shapes take some of what stands before them in the word with them, which costs more than all else and is only
// looked at to tell what is none. It is found by going back.
const wordBefore, maxWordBefore = `(?i)[\w.-]{0,50}?`, 50

// wordBefores is another spelling of the same.
const wordBefores = `[\w.-]{0,50}?(?i:[\w.-]{0,50}?`

// Source code ends a secret in few ways; a log ends one in many.
const (
	endInSource = "(?:[\\x60'\"\\s;]|\\\\[nr]|$)"
	endInLog    = `(?:[^\w-]|$)`
)

// rules are read once from what is linked in, which never changes.
var rules = sync.OnceValue(func() []rule {
	var list listed
	if err := json.Unmarshal(gitleaks, &list); err != nil {
		panic(fmt.Sprintf("secret: the rules that are linked in cannot be read: %v", err))
	}
	placeholder := anyOf(list.Allow)
	out := own()
	for _, r := range list.Rules {
		if r.ID == "private-key" {
			continue // keys finds those, and that one goes on behind a short key to the next
		}
		source, before := strings.ReplaceAll(r.Regex, endInSource, endInLog), false
		if rest, ok := strings.CutPrefix(source, wordBefore); ok {
			source, before = `(?i)`+rest, true
		} else if rest, ok := strings.CutPrefix(source, wordBefores); ok {
			source, before = `(?i:`+rest, true
		}
		made := rule{
			kind: strings.ToUpper(strings.ReplaceAll(r.ID, "-", "_")), keywords: r.Keywords, group: r.Group, entropy: r.Entropy, before: before, source: source,
			plausible: func(text string, _, value [2]int) bool { return !placeholder().MatchString(text[value[0]:value[1]]) },
		}
		made.reach = reaches[r.ID]
		if words, ok := inLogs[r.ID]; ok {
			made.keywords = words
		}
		if a := r.Allow; a != nil {
			values, matches, lines, words := anyOf(a.Value), anyOf(a.Match), anyOf(a.Line), a.Words
			made.plausible = func(text string, match, value [2]int) bool {
				secret := text[value[0]:value[1]]
				lower := strings.ToLower(secret)
				return !placeholder().MatchString(secret) && !values().MatchString(secret) && !matches().MatchString(text[match[0]:match[1]]) &&
					!lines().MatchString(lineOf(text, match)) &&
					!slices.ContainsFunc(words, func(w string) bool { return strings.Contains(lower, w) })
			}
		}
		out = append(out, made)
	}
	for i := range out {
		out[i].expression = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(?:` + out[i].source + `)`) })
	}
	return out
})

// anyOf is the expression that matches where one of them does.
func anyOf(expressions []string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp {
		if len(expressions) == 0 {
			return regexp.MustCompile(`\z.`) // nothing
		}
		return regexp.MustCompile("(?:" + strings.Join(expressions, ")|(?:") + ")")
	})
}

func lineOf(text string, at [2]int) string {
	from := strings.LastIndexByte(text[:at[0]], '\n') + 1
	if to := strings.IndexByte(text[at[1]:], '\n'); to >= 0 {
		return text[from : at[1]+to]
	}
	return text[from:]
}

// secretOf returns where the secret of a match is.
func secretOf(m []int, group int) [2]int {
	if group > 0 && 2*group+1 < len(m) && m[2*group] >= 0 {
		return [2]int{m[2*group], m[2*group+1]}
	}
	for i := 2; i+1 < len(m); i += 2 {
		if m[i] >= 0 && m[i+1] > m[i] {
			return [2]int{m[i], m[i+1]}
		}
	}
	return [2]int{m[0], m[1]}
}

// entropy is Shannon's, in bits a character.
func entropy(s string) float64 {
	counts := map[rune]int{}
	for _, r := range s {
		counts[r]++
	}
	n, e := float64(utf8.RuneCountInString(s)), 0.0
	for _, c := range counts {
		p := float64(c) / n
		e -= p * math.Log2(p)
	}
	return e
}

// header is the value of a header, which ends before the escape of a line's end or of a quote.
const header = `((?:[^\n"'\\]|\\[^\n"'\\nr]){4,})`

// own are the shapes, found by expressions, that logs have and source code has not: URLs with a password, headers, and credentials
// of which a log shows only the beginning.
func own() []rule {
	return []rule{
		{
			kind: "SETTING", keywords: []string{"</"},
			source: `(?i)<[\w:.-]{0,64}(?:token|secret|passw(?:or)?d|pass(?:phrase|code)?|pwd|credential|key)s?(?:[ \t][^<>\n]{0,100})?>` +
				`[ \t]{0,8}([^<\s][^<\n]{0,1000})`,
			plausible: func(text string, _, value [2]int) bool { return !nothing(text[value[0]:value[1]]) },
		},
		{
			kind: "QUERY", keywords: []string{"?", "&"},
			source: `(?i)[?&](?:amp;)?(?:(?:x-(?:amz|goog)-)?(?:sig|signature|credential|security-token)|key|auth|pw|code)=([^&\s"'<>]{6,1000})`,
		},
		{
			// The password goes to the last @: it may hold one itself. A port with a path behind it is none.
			kind: "URL_PASSWORD", keywords: []string{"://"},
			source: `://[^\s/:@"']{0,256}:([0-9]{0,5}[^0-9/\s"'][^\s"']{0,506}|/[^\s"']{0,511}|[0-9]{1,5}|[0-9]{6}[^\s"']{0,506})@`, needs: '@',
		},
		{
			// A header goes to the end of its line; in JSON a text goes to its quote, and what has no quotes is one word.
			kind: "AUTHORIZATION", keywords: []string{"authorization", "cookie"},
			source: `(?i)\b(?:authorization|cookie)(?:[ \t]{0,8}[:=][ \t]{0,8}(?:\\{0,7}["'])?` + header +
				`|\\{0,7}["'][ \t]{0,8}[:=][ \t]{0,8}(?:(?:\[\s{0,40})?\\{0,7}["']` + header + `|([^\s"'\\,\[\]{}]{4,})))`,
			plausible: func(text string, _, value [2]int) bool { return !nothing(text[value[0]:value[1]]) },
		},
		{
			kind: "BEARER", keywords: []string{"bearer"},
			source: `(?i)\bbearer[ \t]{1,8}([A-Za-z0-9._~+/=-]{6,})`, plausible: oddValue,
		},
		{
			kind: "BASIC_AUTH", keywords: []string{"basic"},
			source: `(?i)\bbasic[ \t]{1,8}([A-Za-z0-9+/]{6,}={0,2})`, plausible: oddValue,
		},
		{
			kind: "API_KEY", keywords: []string{
				"sk-", "sk_", "rk-", "rk_", "nvapi", "hf_", "hf-", "gsk", "xai", "tgp", "ghp", "gho", "ghu", "ghs", "ghr", "durward",
				"dckr", "figd", "lsv2", "pcsk", "syt", "tskey", "tvly", "wandb", "sb_",
			},
			source:    `\b((?:sk|rk|nvapi|hf|gsk|xai|tgp|gh[pousr]|durward|dckr_[po]at|figd|lsv2_(?:pt|sk)|pcsk|sb_secret|syt|tskey|tvly|wandb_v1)[-_][A-Za-z0-9_-]{16,})`,
			plausible: oddValue,
		},
		{
			// Prefixes that begin other words as well: so long a run of letters and digits is none.
			kind: "API_KEY", keywords: []string{
				"csk-", "cfut_", "e2b_", "fw_", "jina_", "napi_", "nfp_", "nrak-", "phx_", "r8_", "rnd_", "rpa_", "sbp_", "secret_", "vck_", "vcp_", "whsec_",
			},
			source:    `\b((?:csk|cfut|e2b|fw|jina|napi|nfp|NRAK|phx|r8|rnd|rpa|sbp|secret|vc[kp]|whsec)[-_][A-Za-z0-9]{20,}[A-Za-z0-9_-]*)`,
			plausible: oddValue,
		},
		{
			// Google's: an OAuth client's secret, an access and a refresh token, a key of Gemini.
			kind: "API_KEY", keywords: []string{"gocspx-", "ya29.", "1//0", "aq."},
			source: `\b((?:GOCSPX-|ya29\.|1//0|AQ\.)[A-Za-z0-9_-]{20,}(?:\.[A-Za-z0-9_-]+)*)`, plausible: oddValue,
		},
		{
			kind: "TELEGRAM_BOT_TOKEN", keywords: []string{":aa"}, reach: 16,
			source: `\b([0-9]{8,10}:AA[A-Za-z0-9_-]{32,})`,
		},
		{
			kind: "TELEGRAM_BOT_TOKEN", keywords: []string{"/bot"},
			source: `/bot([0-9]{8,10}:AA[A-Za-z0-9_-]{32,})`,
		},
		{
			kind: "DISCORD_WEBHOOK", keywords: []string{"/webhooks/"},
			source: `/webhooks/[0-9]{17,20}/([A-Za-z0-9_-]{60,})`,
		},
		{
			// A password's hash of crypt, bcrypt, yescrypt or Argon2 is tried against words by who has it.
			kind: "PASSWORD_HASH", keywords: []string{"$1$", "$2a$", "$2b$", "$2x$", "$2y$", "$5$", "$6$", "$y$", "$apr1$", "$argon2"},
			source: `(\$(?:[156y]|2[abxy]|apr1|argon2(?:id|i|d))\$[A-Za-z0-9./+,=$-]{28,})`,
		},
		{
			// The whole of an Ed25519 or X25519 key is one line, of which nothing beside says what it is.
			kind: "PRIVATE_KEY", keywords: []string{"mc4caqawbqydk2v"},
			source: `\b(MC4CAQAwBQYDK2V[uw]BCIEI[A-Za-z0-9+/]{40,})`,
		},
		{
			kind: "SETTING", keywords: []string{"identified", "requirepass", "masterauth", "sshpass"},
			source:    `\b(?:(?i:identified (?:with [\w'"]{1,40} )?by) {1,4}'|(?:requirepass|masterauth)[ \t]{1,4}"?|sshpass[ \t]{1,4}-p[ \t]{0,4}'?)([^\s'"]{4,200})`,
			plausible: func(text string, _, value [2]int) bool { return !nothing(text[value[0]:value[1]]) },
		},
		{
			kind: "API_KEY", keywords: []string{"aiza"},
			source: `\b(AIza[A-Za-z0-9_-]{8,})`, plausible: oddValue,
		},
	}
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

// asciiLower keeps every byte where it is, which strings.ToLower does not.
func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
