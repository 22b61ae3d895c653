package downstream_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/validator"
	"durward.internal/services/platform/platformtest"
)

// doubled is a schema whose checks double with each of n levels.
func doubled(n int) string {
	var defs strings.Builder
	for i := range n {
		fmt.Fprintf(&defs, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	return fmt.Sprintf(`{"type":"object","$defs":{%s"d%d":{"type":"object"}},"$ref":"#/$defs/d0"}`, defs.String(), n)
}

// TestLintRefuses has the schemas under which validators loop, crash, or read files.
func TestLintRefuses(t *testing.T) {
	for name, c := range map[string]struct{ schema, want string }{
		"a reference to itself":     {`{"type":"object","$ref":"#"}`, "never end"},
		"a circle of two":           {`{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, "never end"},
		"anyOf of itself":           {`{"type":"object","anyOf":[{"$ref":"#"}]}`, "never end"},
		"a circle below":            {`{"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"not":{"$ref":"#/$defs/a"}}}}`, "never end"},
		"doubled 22 times":          {doubled(12), "more than 4000 times"},
		"doubled below":             {`{"type":"object","allOf":[{"additionalProperties":{"$ref":"#"}},{"additionalProperties":{"$ref":"#"}}]}`, "more than 4000 times"},
		"not, 9000 deep":            {`{"type":"object","not":` + strings.Repeat(`{"not":`, 9000) + "true" + strings.Repeat("}", 9001), "kB"},
		"not, 40 deep":              {`{"type":"object","not":` + strings.Repeat(`{"not":`, 40) + "true" + strings.Repeat("}", 41), "32 levels"},
		"a huge exponent":           {`{"type":"object","properties":{"n":{"multipleOf":1e99999999}}}`, "exponent"},
		"a long number":             {`{"type":"object","maximum":` + strings.Repeat("9", 200) + `}`, "characters"},
		"http":                      {`{"type":"object","$ref":"http://203.0.113.1/x"}`, "only references within"},
		"a file":                    {`{"type":"object","$ref":"file:///etc/passwd"}`, "only references within"},
		"a relative file":           {`{"type":"object","$ref":"etc/passwd"}`, "only references within"},
		"an anchor":                 {`{"type":"object","$ref":"#a","$defs":{"a":{"$anchor":"a"}}}`, "only references within"},
		"a reference to nothing":    {`{"type":"object","$ref":"#/$defs/x"}`, "no schema there"},
		"a dynamic reference":       {`{"type":"object","$dynamicRef":"#x"}`, "not accepted"},
		"another base":              {`{"type":"object","properties":{"x":{"$id":"http://x/"}}}`, "not accepted"},
		"a draft of its own":        {`{"type":"object","$schema":"http://example.com/draft"}`, "drafts"},
		"a large one":               {`{"type":"object","description":"` + strings.Repeat("x", 70000) + `"}`, "64 kB"},
		"many values":               {`{"type":"object","enum":[0` + strings.Repeat(",0", 5000) + `]}`, "4000 values"},
		"a long pattern":            {`{"type":"object","properties":{"x":{"pattern":"` + strings.Repeat("a?", 400) + `"}}}`, "pattern"},
		"a text":                    {`"object"`, "not of an object"},
		"true":                      {`true`, "not of an object"},
		"of a list":                 {`{"type":"array"}`, "not of an object"},
		"a name twice":              {`{"type":"object","type":"object"}`, "well-formed"},
		"two values":                {`{"type":"object"} {}`, "well-formed"},
		"nothing":                   {``, "well-formed"},
		"a reference into a list":   {`{"type":"object","allOf":[{}],"$ref":"#/allOf/00"}`, "no such place"},
		"a reference out of a list": {`{"type":"object","allOf":[{}],"$ref":"#/allOf/1"}`, "no such place"},
	} {
		var err, uncompiled error
		if took := platformtest.CPU(t, func() {
			err = downstream.LintSchema([]byte(c.schema))
			_, uncompiled = downstream.Compile([]byte(c.schema), validator.Compile)
		}); took > time.Second {
			t.Errorf("%s took %v", name, took)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if uncompiled == nil {
			t.Errorf("%s: it is compiled", name)
		}
	}
}

// mail is an address of mail as zod 4 writes it.
const mail = `{"type":"object","properties":{"to":{"type":"string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"}}}`

// TestUnmatched are expressions of JavaScript's: a schema with one is of use, and one that is no expression anywhere is not.
func TestUnmatched(t *testing.T) {
	for expression, want := range map[string]bool{
		`^(?!\\.)x`: true, `(?<=a)b`: true, `(a)\\1`: true, `^[\\u0020-\\u007e]*$`: true, `^.{1,2000}$`: true, `[\\w-.]`: true, `(a`: false, `[a`: false, `*`: false,
	} {
		_, err := downstream.Compile([]byte(`{"type":"object","properties":{"x":{"pattern":"`+expression+`"}}}`), validator.Compile)
		if (err == nil) != want {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

// TestSchemasThatAreUsual pass, and mean what they say.
func TestSchemasThatAreUsual(t *testing.T) {
	tree := `{"type":"object","properties":{"left":{"$ref":"#"},"right":{"$ref":"#"},"n":{"type":"integer"}}}`
	for name, c := range map[string]struct{ schema, arguments, want string }{
		"a tree":              {tree, `{"left":{"right":{"n":1}}}`, ""},
		"a tree, wrong":       {tree, `{"left":{"right":{"n":"x"}}}`, "/left/right/n: "},
		"draft 7":             {`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false}`, `{"path":"/x"}`, ""},
		"a name of its own":   {`{"$id":"https://x.example/x.json","type":"object","properties":{"x":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"number"}}}`, `{"x":"1"}`, "/x"},
		"draft 7, missing":    {`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","required":["path"]}`, `{}`, "path"},
		"one too many":        {`{"type":"object","properties":{},"additionalProperties":false}`, `{"x":1}`, "x"},
		"a property $ref":     {`{"type":"object","properties":{"$ref":{"type":"string"},"not":{"type":"string"}}}`, `{"$ref":"x","not":"y"}`, ""},
		"a list, wrong":       {`{"type":"object","properties":{"a/b":{"type":"array","items":{"enum":["x","y"]}}}}`, `{"a/b":["x","z"]}`, "/a~1b/1: "},
		"doubled 8 times":     {doubled(8), `{}`, ""},
		"looks ahead":         {mail, `{"to":"ada@example.org"}`, ""},
		"looks ahead, wrong":  {mail, `{"to":3}`, "/to: "},
		"a number out of it":  {`{"type":"object","properties":{"n":{"type":"number"}}}`, `{"n":1e99999999}`, "exponent"},
		"not an object":       {`{"type":"object"}`, `[]`, "object"},
		"a name twice":        {`{"type":"object"}`, `{"a":1,"a":1}`, "well-formed"},
		"escapes in the text": {`{"type":"object","additionalProperties":false}`, "{\"\\u001b[2Jx\":1}", "x"},
	} {
		s, err := downstream.Compile([]byte(c.schema), validator.Compile)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		err = s.Validate(t.Context(), []byte(c.arguments))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err != nil && strings.ContainsRune(err.Error(), 0x1b) {
			t.Errorf("%s: %q", name, err)
		}
	}
}

// TestDearArguments are refused before they are looked at, and a caller that goes is let go.
func TestDearArguments(t *testing.T) {
	s, err := downstream.Compile([]byte(doubled(8)), validator.Compile)
	must(t, err)
	before := runtime.NumGoroutine()
	long := `{"x":[0` + strings.Repeat(",0", 100_000) + `]}`
	if err := s.Validate(t.Context(), []byte(long)); !errors.Is(err, downstream.ErrTooDear) {
		t.Errorf("100,000 values against a dear schema: %v", err)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines are left", n-before)
	}
	cheap, err := downstream.Compile([]byte(`{"type":"object"}`), validator.Compile)
	must(t, err)
	if err := cheap.Validate(t.Context(), []byte(long)); err != nil {
		t.Errorf("the same against a cheap one: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	deep := `{"x":` + strings.Repeat(`[`, 40) + strings.Repeat(`]`, 40) + `}`
	if err := s.Validate(gone, []byte(deep)); err != nil && !errors.Is(err, downstream.ErrTooDear) {
		t.Errorf("a caller who has gone: %v", err)
	}
}

// FuzzSchema: whatever passes the lint is compiled and validates in time, or is refused; nothing panics.
func FuzzSchema(f *testing.F) {
	for _, seed := range []string{`{"type":"object","properties":{"x":{"$ref":"#"}}}`, doubled(5), `{"type":"object","patternProperties":{"^(a+)+$":{"not":{}}}}`,
		`{"type":"object","$schema":"http://json-schema.org/draft-07/schema#","items":[{"$ref":"#/items/0/x"}]}`, `{"type":"object","unevaluatedProperties":{"if":{"$ref":"#"}}}`} {
		f.Add([]byte(seed), []byte(`{"x":{"aaaaaaaaaaaaaaaaaaaaaa":1.5,"n":[[],{}]}}`))
	}
	f.Fuzz(func(t *testing.T, schema, arguments []byte) {
		s, err := downstream.Compile(schema, validator.Compile)
		if err != nil {
			if errors.Is(err, downstream.ErrTooDear) {
				t.Fatalf("it passed the lint, and takes too long: %s", schema)
			}
			return
		}
		if err := s.Validate(t.Context(), arguments); errors.Is(err, downstream.ErrTooDear) && len(arguments) < 1000 {
			t.Fatalf("%s\nagainst %s takes too long", arguments, schema)
		}
	})
}
