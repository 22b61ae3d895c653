package bring

import (
	"math"
	"regexp"
	"strings"

	"durward.internal/services/platform/clean"
)

var (
	secretKey = regexp.MustCompile(`(?i)(\A|[_.\-])(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIALS?|AUTH|BEARER|PAT|COOKIE|DSN|(API|ACCESS|PRIVATE|SECRET|MASTER|SIGNING|ENCRYPTION|ADMIN|HF|LICENSE)[_\-]?KEYS?|KEY)\z`)
	// Options whose values are secrets; those that name a file of them are not.
	secretOption = regexp.MustCompile(`(?i)\A--?([a-z0-9_\-]*[_\-])?(api[_\-]?keys?|hft|(hf|auth|access|bearer|refresh)?[_\-]?token|secret|password|passwd|passphrase)\z`)
	// Shapes that well-known issuers give to keys, and what follows a user's name in a URL.
	secretShape = regexp.MustCompile(`(\A|[^A-Za-z0-9])(sk-[A-Za-z0-9_\-]{6,}|hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_\-]{16,}|` +
		`xox[abposr]-[A-Za-z0-9\-]{8,}|AKIA[0-9A-Z]{12,}|AIza[A-Za-z0-9_\-]{20,}|nvapi-[A-Za-z0-9_\-]{16,}|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]+)|` +
		`-----BEGIN|[a-zA-Z][a-zA-Z0-9+.\-]*://[^/\s:@]*:[^/\s@]+@|(?i:\bbearer\s+\S{8,})`)
	// A run of letters and digits without a word's shape.
	longRun = regexp.MustCompile(`[A-Za-z0-9+]{24,}`)
)

// SecretKey reports whether a variable of this name holds a secret.
func SecretKey(key string) bool { return secretKey.MatchString(key) }

// SecretValue reports whether a text looks like a secret, whatever it is called: the shapes of known issuers' keys, a password in a
// URL, a private key, or a long run of letters and digits that no word looks like. It errs on the side of saying yes.
func SecretValue(value string) bool {
	if secretShape.MatchString(value) {
		return true
	}
	for _, run := range longRun.FindAllString(value, 64) {
		if random(run) && !digest(value, run) {
			return true
		}
	}
	return false
}

// redact takes out of a remark what looks like a secret.
func redact(text string) string {
	text = secretShape.ReplaceAllString(text, "…")
	return longRun.ReplaceAllStringFunc(text, func(run string) string {
		if random(run) && !digest(text, run) {
			return "…"
		}
		return run
	})
}

// digest reports whether a run is a commit's or a file's digest that a path or an image's name holds.
func digest(value, run string) bool {
	return (len(run) == 40 || len(run) == 64) && strings.Trim(run, "0123456789abcdef") == "" && (strings.Contains(value, "/") || strings.Contains(value, "sha256:"))
}

// random reports whether a run has digits among its letters everywhere and says a lot for its length.
func random(run string) bool {
	var seen [256]int
	digits, letters, turns := 0, 0, 0
	for i := range len(run) {
		seen[run[i]]++
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
	entropy := 0.0
	for _, n := range seen {
		if n > 0 {
			p := float64(n) / float64(len(run))
			entropy -= p * math.Log2(p)
		}
	}
	return digits >= 3 && letters >= 4 && turns >= 6 && entropy > 3
}

// withoutSecrets takes options that hold secrets out of an argument vector and names them. ok is false where another argument looks
// like a secret.
func withoutSecrets(argv []string) (kept, named []string, ok bool) {
	for i := 0; i < len(argv); i++ {
		name, value, joined := strings.Cut(argv[i], "=")
		switch {
		case i == 0 || !strings.HasPrefix(name, "-") || !secretOption.MatchString(name):
			if SecretValue(argv[i]) || joined && SecretKey(name) && value != "" {
				return nil, named, false
			}
			kept = append(kept, argv[i])
		default:
			named = append(named, clean.Line(name, 64))
			if !joined && i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "-") {
				i++
			}
		}
	}
	return kept, named, true
}
