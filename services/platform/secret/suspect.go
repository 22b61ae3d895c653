package secret

import (
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
)

var (
	// Shapes that well-known issuers give to keys, and what a URL says of its user.
	secretShape = pattern.New(`(\A|[^A-Za-z0-9])(sk-[A-Za-z0-9_\-]{6,}|hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_\-]{16,}|` +
		`xox[abposr]-[A-Za-z0-9\-]{8,}|AKIA[0-9A-Z]{12,}|AIza[A-Za-z0-9_\-]{20,}|nvapi-[A-Za-z0-9_\-]{16,}|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]+)|` +
		`-----BEGIN|[a-zA-Z][a-zA-Z0-9+.\-]*://[^/\s@]+@|(?i:\bbearer\s+\S{8,})`)
	optionName = pattern.New(`\A--[a-z]+(?:[_-][a-z]+)*(?:=|\z)`)
	// What a signed address ends with.
	query = pattern.New(`(://[^\s?]*\?)([^\s"']+)`)
	basic = pattern.New(`(?i:\bbasic\s+)([A-Za-z0-9+/]{6,}={0,2})`)
	// A run of letters and digits without a word's shape.
	longRun = pattern.New(`[A-Za-z0-9+]{24,}`)
)

// maxLooked bounds what is looked at: an entry's longest text has half of it.
const maxLooked = 8 << 10

// Name reports whether what a variable, an option or a key of this name holds is a secret. It errs on the side of saying yes; what
// names the file of one holds none.
func Name(key string) bool {
	words := wordsOf(key[:min(len(key), 512)])
	if n := len(words); n == 0 || slices.ContainsFunc([]string{"file", "files", "path", "dir"}, func(end string) bool { return strings.HasSuffix(words[n-1], end) }) {
		return false
	}
	for i, w := range words {
		before, after := "", ""
		if i > 0 {
			before = words[i-1]
		}
		if i+1 < len(words) {
			after = words[i+1]
		}
		if secretWord(strings.TrimRight(w, "0123456789"), before, after) {
			return true
		}
	}
	return false
}

// Field reports whether a field of this name in arguments, or in what is recorded, holds a secret. It is Name without the words that
// programs use for things that are none: authority and authorised_by, public_key, sort_key, signature.
func Field(name string) bool {
	if !Name(name) {
		return false
	}
	words := wordsOf(name[:min(len(name), 512)])
	for i, w := range words {
		w = strings.TrimRight(w, "0123456789")
		before, after := "", ""
		if i > 0 {
			before = words[i-1]
		}
		if i+1 < len(words) {
			after = words[i+1]
		}
		switch rest := strings.TrimSuffix(w, "s"); {
		case !secretWord(w, before, after), strings.Contains(w, "signature"):
		case strings.Contains(rest, "auth") && !slices.ContainsFunc(authWords, func(end string) bool { return strings.HasSuffix(rest, end) }):
			// authority, authorised, authenticated
		case strings.HasSuffix(rest, "key") && !isKey(strings.Join(append(words[:i:i], rest[:len(rest)-len("key")]), " ")):
			// sort_key, public_key, key
		default:
			return true
		}
	}
	return false
}

// authWords are how words of authentication end that stand for a credential.
var authWords = []string{"auth", "authorization", "authorisation", "authtoken", "authkey", "authsecret", "authpass", "authpassword", "authcode", "authcookie"}

// wordsOf parts a name where its words meet: x-api-key, API_KEY, apiKey.
func wordsOf(key string) []string {
	var spaced strings.Builder
	last := ' '
	for _, r := range key {
		if unicode.IsUpper(r) && unicode.IsLower(last) {
			spaced.WriteByte(' ')
		}
		spaced.WriteRune(r)
		last = r
	}
	return strings.FieldsFunc(strings.ToLower(spaced.String()), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

var (
	// Words that are secrets wherever they stand in another, and those that are by themselves.
	secretParts = strings.Fields("secret passw passphrase passcode passkey pwd credential jwt bearer cookie webhook signature")
	secretWords = strings.Fields("cred creds dsn hft otp pat sig totp")
	// Words that only look like it.
	plainWords = strings.Fields("bypass compass encompass surpass trespass author authors authored authoring " +
		"donkey hockey hotkey hotkeys jockey keyboard keyboards keyed keyframe keyframes keynote keypoint keypoints keyword keywords monkey turkey whiskey")
	// Tokens and keys of models: how many there are, and what of them is meant.
	ofTokens = strings.Fields("add audio batch batched bos chunked completion context decode decoder draft encoder eos extra image input long max min mm n new num " +
		"output pad per prefill prompt reasoning return skip special speculative stop think thinking total video")
	tokensOf = strings.Fields("bias block budget count embedding embeddings id ids len length level limit per size threshold")
	keysOf   = strings.Fields("bits cache dim dims dtype head heads len length norm proj scale size state states type value values")
)

func secretWord(w, before, after string) bool {
	holds := func(part string) bool { return strings.Contains(w, part) }
	switch {
	case slices.Contains(plainWords, w):
		return false
	case slices.Contains(secretWords, w), slices.ContainsFunc(secretParts, holds), strings.HasSuffix(w, "pass"), strings.HasSuffix(w, "pw"),
		strings.HasSuffix(w, "creds"), holds("auth"):
		return true
	case w == "token" || w == "tokens":
		return !slices.Contains(ofTokens, before) && !slices.Contains(tokensOf, after)
	case holds("token") && !holds("tokeni"):
		return true
	case w == "key" || w == "keys":
		return !slices.Contains(keysOf, after)
	}
	return holds("key")
}

// Suspect reports whether a text looks like a secret, or holds one, whatever it is called: the shapes of known issuers' keys, a user
// in a URL or what follows its question mark, a private key, the value of a key that is a secret's, or a long run of letters and digits
// that no word looks like. It errs on the side of saying yes; of a text longer than 8 kB, which no entry takes, it always says so.
func Suspect(value string) bool {
	// An option's own name may begin as a key does: --hf_overrides.
	if name := optionName().FindString(value); name != "" && !Name(strings.Trim(name, "-=")) {
		value = value[len(name):]
	}
	if len(value) > maxLooked {
		return true
	}
	found, err := suspects(value, false)
	return err != nil || len(found) > 0
}

// Redact takes out of a remark what looks like a secret.
func Redact(text string) string {
	text = text[:min(len(text), maxLooked)] // of which a few hundred are shown
	found, err := suspects(text, true)
	if err != nil {
		return "…"
	}
	for _, s := range slices.Backward(found) {
		text = text[:s.From] + "…" + text[s.To:]
	}
	return text
}

// suspects are the places in a text that look like secrets. A remark is a sentence, in which a colon stands behind any word.
func suspects(text string, remark bool) ([]Span, error) {
	shapes := scan{text: text, noSettings: remark}
	if err := shapes.run(context.Background()); err != nil {
		return nil, err
	}
	spans := append(keys(text), shapes.spans...)
	add := func(from, to int) { spans = append(spans, Span{From: from, To: to}) }
	for _, m := range secretShape().FindAllStringIndex(text, -1) {
		add(m[0], m[1])
	}
	for _, m := range query().FindAllStringSubmatchIndex(text, -1) {
		if !plainQuery(text[m[4]:m[5]]) {
			add(m[4], m[5])
		}
	}
	for _, m := range basic().FindAllStringSubmatchIndex(text, -1) {
		decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text[m[2]:m[3]], "="))
		if err == nil && strings.Contains(string(decoded), ":") {
			add(m[2], m[3])
		}
	}
	for _, m := range longRun().FindAllStringIndex(text, -1) {
		if run := text[m[0]:m[1]]; random(run) && !digest(text, run) {
			add(m[0], m[1])
		}
	}
	// A key of a secret with a value: KEY=VALUE, KEY: VALUE, "KEY": VALUE, wherever they stand.
	for i := 0; i < len(text); i++ {
		p, ok := pairAt(text, i)
		if !ok || remark && !p.sure || !p.secret(text) {
			continue
		}
		// What is longer than is looked at belongs to it too.
		for p.to < len(text) && strings.IndexByte(endsValue, text[p.to]) < 0 {
			p.to++
		}
		add(p.from, p.to)
		i = p.to - 1
	}
	return Merge(spans), nil
}

// endsValue are the bytes that end the value of a key.
const endsValue = " \t\r\n\"'\\,;&})]"

// plainQuery is how model hubs are asked for a file itself.
func plainQuery(text string) bool { return text == "download=true" }

// keyed is a key with a value in a text. sure: nobody writes it so in a sentence.
type keyed struct {
	key      string
	from, to int
	sure     bool
}

func (p keyed) secret(text string) bool {
	return Name(p.key) && !plainValue(text[p.from:p.to])
}

// pairAt reads what stands before and behind an = or a colon.
func pairAt(text string, at int) (p keyed, ok bool) {
	if text[at] != '=' && text[at] != ':' {
		return p, false
	}
	end := at
	for end > 0 && at-end < 8 && strings.IndexByte(" \t\"'\\", text[end-1]) >= 0 {
		end--
		p.sure = p.sure || text[end] == '"' || text[end] == '\''
	}
	begin := end
	for begin > 0 && end-begin < 128 && nameByte(text[begin-1]) {
		begin--
	}
	p.key = strings.TrimLeft(text[begin:end], "-._")
	p.sure = p.sure || text[at] == '='
	p.from = at + 1
	for p.from < len(text) && p.from-at < 8 && strings.IndexByte(" \t\"'\\", text[p.from]) >= 0 {
		p.from++
	}
	p.to = p.from
	for p.to < len(text) && strings.IndexByte(endsValue, text[p.to]) < 0 && p.to-p.from < 128 {
		p.to++
	}
	return p, p.key != "" && p.to > p.from
}

// Placeholder begins what stands for a value that was never there; it is for private use in Unicode.
const Placeholder = '\ue000'

// plainValue reports whether a value says too little for a secret, or only where one was.
func plainValue(value string) bool {
	if n, err := strconv.ParseFloat(value, 64); err == nil && len(value) <= 4 && n >= -1 {
		return true
	}
	return slices.Contains([]string{"true", "false", "null", "none", "on", "off", "yes", "no"}, strings.ToLower(value)) ||
		strings.HasPrefix(value, "…") || strings.HasPrefix(value, string(Placeholder))
}

// digest reports whether a run is a commit's or a file's digest that a path or an image's name holds.
func digest(value, run string) bool {
	return (len(run) == 40 || len(run) == 64) && strings.Trim(run, "0123456789abcdef") == "" && (strings.Contains(value, "/") || strings.Contains(value, "sha256:"))
}

// random reports whether a run has digits among its letters everywhere and says a lot for its length.
func random(run string) bool {
	digits, letters, turns := 0, 0, 0
	for i := range len(run) {
		digit := run[i] >= '0' && run[i] <= '9'
		if digit {
			digits++
		} else {
			letters++
		}
		if i > 0 && digit != (run[i-1] >= '0' && run[i-1] <= '9') {
			turns++
		}
	}
	return digits >= 3 && letters >= 4 && turns >= 6 && entropy(run) > 3
}

// switches begin the names of options that turn something on or off, and take no value.
var switches = strings.Fields("allow disable enable log no require return skip")

// secretOption reports whether an option's value is a secret, or a header, which often holds one.
func secretOption(name, next string) bool {
	bare := strings.TrimLeft(name, "-")
	words := wordsOf(bare)
	switch {
	case !strings.HasPrefix(name, "-") || len(words) == 0 || slices.Contains(switches, words[0]):
		return false
	case name == "-k":
		// A key in some programs, a number in others.
		_, err := strconv.ParseFloat(next, 64)
		return next != "" && err != nil && next[0] != '-' && next[0] != '/'
	case name == "-H" || slices.Contains(words, "header") || slices.Contains(words, "headers"):
		return true
	}
	return Name(bare)
}

// InArguments reports whether an argument vector holds a secret.
func InArguments(argv []string) bool {
	_, named, ok := WithoutArguments(append([]string{""}, argv...))
	return !ok || len(named) > 0
}

// WithoutArguments takes options that hold secrets out of an argument vector, with all of their values, and names them. ok is false where
// another argument looks like a secret, or where it cannot be told what an option's value is.
func WithoutArguments(argv []string) (kept, named []string, ok bool) {
	for i := 0; i < len(argv); i++ {
		name, _, joined := strings.Cut(argv[i], "=")
		next := ""
		if i+1 < len(argv) {
			next = argv[i+1]
		}
		if i == 0 || !secretOption(name, next) {
			if Suspect(argv[i]) {
				return nil, named, false
			}
			kept = append(kept, argv[i])
			continue
		}
		named = append(named, clean.Line(name, 64))
		switch {
		case joined:
		case strings.HasPrefix(next, "-"):
			// A secret may begin with a dash.
			return nil, named, false
		default:
			// An option may take several: vLLM's --api-key does.
			for i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "-") {
				i++
			}
		}
	}
	return kept, named, true
}
