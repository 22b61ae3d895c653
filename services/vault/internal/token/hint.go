package token

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"unicode"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/reference"
)

// Hint is a value as an approver is shown it: enough to tell two apart, too little to use. A long one shows its first character and its
// last two.
func Hint(value string) string {
	const mask = "•••"
	shown := []rune(clean.Line(value, 200))
	if at := strings.LastIndexByte(value, '@'); at > 0 {
		return clean.Line(string(shown[0])+mask+value[at:], 60)
	}
	letters := 0
	for _, r := range shown {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			letters++
		}
	}
	if letters < 8 {
		return mask
	}
	return string(shown[0]) + mask + string(shown[len(shown)-2:])
}

// Redact returns a text with every reference to personal data replaced by words that stand for nothing, for a channel that others read too.
func Redact(text string) string {
	found, _ := reference.Scan(text, nil)
	var b strings.Builder
	at := 0
	for _, f := range found {
		if f.Class == reference.PII {
			b.WriteString(text[at:f.From])
			b.WriteString(inJSON(redactedPII, f.JSON))
			at = f.To
		}
	}
	b.WriteString(text[at:])
	return b.String()
}

// Salt is the key of a commitment to what a reference stands for in one place of one operation: who does not know it learns nothing of the
// value by the commitment.
func (v *Values) Salt(ctx context.Context, session, operation, pointer, ref string) []byte {
	h := v.holding(ctx, session)
	h.mu.Lock()
	defer h.mu.Unlock()
	mac := hmac.New(sha256.New, h.key[:])
	for _, part := range []string{"durward.disclosure.salt.v1", operation, pointer, ref} {
		_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = mac.Write([]byte(part))
	}
	return mac.Sum(nil)
}
