package validator_test

import (
	"strings"
	"testing"

	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/validator"
	"durward.internal/services/platform/reference"
)

// TestReferences: a text with a reference to personal data is held to no spelling, and to everything else. The value is, once it is in its place.
func TestReferences(t *testing.T) {
	mail := reference.Reference{Class: reference.PII, Type: "EMAIL", ID: reference.NewID()}.Marshal()
	key := reference.Reference{Class: reference.Secret, Type: "SETTING", ID: reference.NewID()}.Marshal()
	for name, c := range map[string]struct{ property, value, want string }{
		"a format":                    {`{"type":"string","format":"email"}`, mail, ""},
		"a pattern":                   {`{"type":"string","pattern":"^[^@ ]+@[^@ ]+$","maxLength":30}`, mail, ""},
		"a choice":                    {`{"enum":["ada@example.org"]}`, mail, ""},
		"one of two":                  {`{"anyOf":[{"type":"string","format":"email"},{"type":"null"}]}`, mail, ""},
		"by a reference":              {`{"$ref":"#/definitions/mail"}`, mail, ""},
		"a name beside it":            {`{"type":"string","pattern":"^[^@<]+ <[^@]+@[^@]+>$"}`, "Ada <" + mail + ">", ""},
		"another type":                {`{"type":"number"}`, mail, "want number"},
		"not":                         {`{"not":{"type":"string"}}`, mail, "not"},
		"one of two, both":            {`{"oneOf":[{"type":"string"},{"minLength":1}]}`, mail, "oneOf"},
		"a secret":                    {`{"type":"string","format":"email"}`, key, "email"},
		"what no reference is":        {`{"type":"string","format":"email"}`, "[[PII:EMAIL:tkn_x]]", "email"},
		"the value, once it is there": {`{"type":"string","format":"email"}`, "ada", "email"},
	} {
		schema := `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"mail":{"type":"string","format":"email"}},"properties":{"to":` + c.property + `}}`
		s, err := downstream.Compile([]byte(schema), validator.Compile)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Validate(t.Context(), []byte(`{"to":"`+c.value+`"}`))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := s.Validate(t.Context(), []byte(`{"to":"`+c.value+`","other":"x"}`)); (err == nil) != (c.want == "") {
			t.Errorf("%s, beside another: %v", name, err)
		}
	}
	s, err := downstream.Compile([]byte(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"to":{"type":"array","items":{"format":"email"}},"n":{"type":"number"}},"required":["n"]}`), validator.Compile)
	if err != nil {
		t.Fatal(err)
	}
	for arguments, fits := range map[string]bool{
		`{"n":1,"to":["` + mail + `","bob@example.org"]}`: true, `{"n":1,"to":["` + mail + `","bob"]}`: false, `{"to":["` + mail + `"]}`: false, `{"n":"","to":["` + mail + `"]}`: false,
	} {
		if err := s.Validate(t.Context(), []byte(arguments)); (err == nil) != fits {
			t.Errorf("%s: %v", arguments, err)
		}
	}
}
