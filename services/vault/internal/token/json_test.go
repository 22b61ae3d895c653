package token

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"durward.internal/services/platform/detect"
)

// JSON stays JSON, with as many members and elements as it had, and what is no value stays as it was.
func TestJSONStaysJSON(t *testing.T) {
	d, err := detect.New(detect.Config{})
	must(t, err)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 3000 {
		doc := document(r, 3)
		text, err := json.Marshal(doc)
		if i%3 == 0 {
			text, err = json.MarshalIndent(doc, "", "  ")
		}
		must(t, err)
		if i%5 == 0 { // in a text of another
			doc = map[string]any{"text": string(text)}
			text, err = json.Marshal(doc)
			must(t, err)
		}
		got := tokenise(t, New(Config{Detector: d}), "s", string(text))[0]
		if err := same(parsed(t, string(text)), parsed(t, got)); err != "" {
			t.Fatalf("%s: %s\nbecame %s", err, text, got)
		}
	}
}

// document is an object as services and tools answer with, with what is hard about such.
func document(r *rand.Rand, depth int) map[string]any {
	keys := strings.Fields("name password token api_key phone card tokens auth authorization x-api-key secret cookie url Set-Cookie access_token value Authorization credentials")
	texts := []string{
		"hunter2xyz", "a\nb", "Basic dXNlcjpwYXNzdzByZA==", "Bearer abc123def456", "ada@example.org", "4111 1111 1111 1111", "+49 30 901820", "https://u:p4ss@h/x?key=abcdef123",
		`he said "password: x1y2z3"`, `C:\x\password=abc`, `\`, `"`, "password=", "token", "k=v; session=abc123; y", `{"password":"in\"ner"}`, "a=b&token=xyz123%22", "<password>abc</password>",
		"-----BEGIN PRIVATE " + "KEY-----\n" + strings.Repeat("Zm9vYmFy", 9) + "\n-----END PRIVATE KEY-----", "cookie: a=b",
	}
	numbers := []json.Number{"4111111111111111", "5552345678", "-1", "1e5", "123456789", "0.5", "5552345678.0", "-5552345678", "12345678901234567890"}
	var value func(depth int) any
	value = func(depth int) any {
		switch n := r.IntN(10); {
		case n < 2 && depth > 0:
			return document(r, depth-1)
		case n < 4 && depth > 0:
			list := []any{}
			for range r.IntN(4) {
				list = append(list, value(depth-1))
			}
			return list
		case n < 5:
			return []any{true, false, nil}[r.IntN(3)]
		case n < 7:
			return numbers[r.IntN(len(numbers))]
		}
		return texts[r.IntN(len(texts))]
	}
	out := map[string]any{}
	for range 1 + r.IntN(4) {
		out[keys[r.IntN(len(keys))]] = value(depth)
	}
	return out
}

// parsed is a text as JSON; nil where it is none.
func parsed(t *testing.T, text string) (v any) {
	t.Helper()
	in := json.NewDecoder(strings.NewReader(text))
	in.UseNumber()
	if err := in.Decode(&v); err != nil {
		return nil
	}
	return v
}

// same says what is not in b as it was in a, but for values that became references.
func same(a, b any) string {
	text, _ := b.(string)
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return "an object is another"
		}
		for key, v := range a {
			if w, stays := b[key]; stays {
				if err := same(v, w); err != "" {
					return key + ": " + err
				}
			}
		}
	case []any:
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				if err := same(a[i], b[i]); err != "" {
					return err
				}
			}
			return ""
		}
		return "a list is another"
	case json.Number:
		if ref, ok := b.(map[string]any); a != b && (!ok || ref["$pii_ref"] == nil) && !strings.HasPrefix(text, "[[SECRET:") {
			return fmt.Sprintf("%s became %v", a, b)
		}
	case string:
		if a != text && !slices.ContainsFunc([]string{"[[SECRET:", "[[PII:"}, func(part string) bool { return strings.Contains(text, part) }) {
			return fmt.Sprintf("%q became %v", a, b)
		}
	default:
		if a != b {
			return fmt.Sprintf("%v became %v", a, b)
		}
	}
	return ""
}
