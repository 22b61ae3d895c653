package canonical

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
)

func TestStrictRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		raw  string
		want error
	}{
		"empty":                    {"", ErrMalformed},
		"trailing data":            {`{} {}`, ErrMalformed},
		"duplicate key":            {`{"a":1,"a":2}`, ErrMalformed},
		"duplicate key, escaped":   {`{"a":1,"\u0061":2}`, ErrMalformed},
		"nested duplicate":         {`{"x":{"a":1,"a":2}}`, ErrMalformed},
		"invalid UTF-8":            {"{\"a\":\"\xff\"}", ErrMalformed},
		"lone surrogate":           {`{"a":"\ud800"}`, ErrMalformed},
		"comment":                  {`{/**/}`, ErrMalformed},
		"single quotes":            {`{'a':1}`, ErrMalformed},
		"NaN":                      {`{"a":NaN}`, ErrMalformed},
		"leading zero":             {`{"a":01}`, ErrMalformed},
		"raw control in a string":  {"{\"a\":\"\n\"}", ErrMalformed},
		"unclosed":                 {`{"a":1`, ErrMalformed},
		"byte order mark":          {"\ufeff{}", ErrMalformed},
		"51 levels":                {strings.Repeat("[", 51) + strings.Repeat("]", 51), ErrTooDeep},
		"51 levels behind strings": {`["\"]",` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `]`, ErrTooDeep},
		"over 1 MB":                {`"` + strings.Repeat("a", MaxBytes) + `"`, ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Strict([]byte(tc.raw)); !errors.Is(err, tc.want) {
				t.Fatalf("Strict = %v, want %v", err, tc.want)
			}
		})
	}
	for _, raw := range []string{`{}`, `null`, `{"a":1,"A":2}`, ` {"a":"\u0000"} `, strings.Repeat("[", 50) + strings.Repeat("]", 50)} {
		if err := Strict([]byte(raw)); err != nil {
			t.Errorf("Strict(%q) = %v", raw, err)
		}
	}
}

// BenchmarkStrict shows that input which passes costs no allocation.
func BenchmarkStrict(b *testing.B) {
	raw := []byte(`{"service_id":"demo-chat","n":[1,2,3],"o":{"k":true}}`)
	b.ReportAllocs()
	for b.Loop() {
		if err := Strict(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTransformIsRFC8785(t *testing.T) {
	// The example of RFC 8785, section 3.2.2, narrowed to what fits one line.
	in := "{\"numbers\":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],\"string\":\"\\u20ac$\\u000F\\u000aA'\\u0042\\u0022\\u005c\\\\\\\"\\/\",\"literals\":[null,true,false]}"
	want := "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
	got, err := Transform([]byte(in))
	if err != nil || string(got) != want {
		t.Fatalf("Transform = %s, %v\nwant        %s", got, err, want)
	}
	if err := Check(got); err != nil {
		t.Errorf("Check of a canonical form: %v", err)
	}
}

func TestCheckRefuses(t *testing.T) {
	for _, raw := range []string{`{ }`, `{"b":1,"a":2}`, `{"a":1.0}`, `{"a":"\u0041"}`, `{"a":1}` + "\n", `{"a":1,"a":1}`} {
		if err := Check([]byte(raw)); err == nil {
			t.Errorf("Check(%q) = nil", raw)
		}
	}
}

func TestUnmarshalIsNotMalleable(t *testing.T) {
	type doc struct {
		Name string `json:"name"`
		N    int    `json:"n,omitempty"`
	}
	for _, raw := range []string{
		`{"Name":"a"}`, `{"name":null}`, `{"name":"a","x":1}`, `{"n":0,"name":"a"}`, `{"NAME":"b","name":"a"}`, `{"n":null,"name":"a"}`, `[]`,
	} {
		var d doc
		if err := Unmarshal([]byte(raw), &d); err == nil {
			t.Errorf("Unmarshal(%s) = nil, %+v", raw, d)
		}
	}
	var d doc
	if err := Unmarshal([]byte(`{"n":3,"name":"a"}`), &d); err != nil || d != (doc{"a", 3}) {
		t.Errorf("Unmarshal = %+v, %v", d, err)
	}
}

func TestDigestText(t *testing.T) {
	d := Digest([]byte("durward"))
	text := FormatDigest(d[:])
	back, err := ParseDigest(text)
	if err != nil || string(back) != string(d[:]) {
		t.Fatalf("ParseDigest(%q) = %x, %v", text, back, err)
	}
	for _, s := range []string{"", "sha256:", text[:70], strings.ToUpper(text), text + "0", "sha512:" + text[7:], text[:70] + "g"} {
		if _, err := ParseDigest(s); err == nil {
			t.Errorf("ParseDigest(%q) = nil error", s)
		}
	}
}

// FuzzCheck compares the transformation with the RFC's authors' own.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, `{"b":[true,null,"x"]}`, `{"a":1,"a":1}`, "\"\\u0041\"", `1e400`, `{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}`,
		`[-0,0.1,1e21,1e-7,123456789012345678901234567890,9007199254740993]`, ` [ "\u2028\b\f\/" ] `,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, err := Transform(raw)
		if err != nil {
			return
		}
		if err := Check(out); err != nil {
			t.Fatalf("Transform(%q) = %q, which is not canonical: %v", raw, out, err)
		}
		if want, err := jcs.Transform(raw); err == nil && !bytes.Equal(out, want) {
			t.Fatalf("Transform(%q) = %q, jcs says %q", raw, out, want)
		}
	})
}
