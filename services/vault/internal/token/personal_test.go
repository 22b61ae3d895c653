package token

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/detect"
	"durward.internal/services/platform/reference"
)

// personal is a Values that finds personal data of every type.
func personal(t testing.TB, change ...func(*Config)) *Values {
	t.Helper()
	d, err := detect.New(detect.Config{})
	must(t, err)
	c := Config{Detector: d}
	for _, f := range change {
		f(&c)
	}
	return New(c)
}

const mail, card = "maria.gonzalez@example.org", "4111 1111 1111 1111"

func TestPersonalDataBecomesReferences(t *testing.T) {
	v := personal(t)
	for text, want := range map[string]string{
		"mail to " + mail + " now":           "EMAIL",
		"paid with " + card + ".":            "CREDIT_CARD",
		"IBAN DE89 3704 0044 0532 0130 00":   "IBAN",
		"client 203.0.113.77 connected":      "IPV4",
		"tel. +49 30 901820":                 "PHONE",
		"Dear Dr. Okonkwo,":                  "PERSON",
		"born on 12 March 1984 in Leeds":     "DATE_OF_BIRTH",
		`{"to":"` + mail + `","n":1}`:        "EMAIL",
		"password=hunter2 for " + mail + "!": "EMAIL",
	} {
		got := tokenise(t, v, "s", text)[0]
		ref := references.FindString(got[strings.Index(got, "[[PII")+len("[[PII")-5:])
		if !strings.Contains(got, "[[PII:"+want+":tkn_") || !strings.HasPrefix(ref, "[[PII:") {
			t.Errorf("%q became %q", text, got)
		}
		r, err := reference.Parse(ref)
		must(t, err)
		held, ok := v.Value(t.Context(), "s", r.ID)
		if !ok || held.Text == "" || !strings.Contains(text, held.Text) || held.Origin != OriginSink {
			t.Errorf("%s stands for %+v, %t", ref, held, ok)
		}
		if _, ok := v.Value(t.Context(), "other", r.ID); ok {
			t.Errorf("%s stands for something in another session", ref)
		}
		if again := tokenise(t, v, "s", got)[0]; again != got {
			t.Errorf("%q became %q", got, again)
		}
		if other := tokenise(t, v, "other", ref)[0]; references.MatchString(other) {
			t.Errorf("another session is shown %q", other)
		}
	}
	// The JSON form of its own reference stays too.
	ref := references.FindString(tokenise(t, v, "s", mail)[0])
	r, err := reference.Parse(ref)
	must(t, err)
	r.JSON = true
	if got := tokenise(t, v, "s", `{"to":`+r.Marshal()+`}`)[0]; got != `{"to":`+r.Marshal()+`}` {
		t.Errorf("the JSON form became %q", got)
	}
}

// What an agent submits says nothing of what a sink holds, and is held for the call that it was sent in.
func TestOrigins(t *testing.T) {
	v := personal(t)
	sink := tokenise(t, v, "s", mail)[0]
	said, err := v.Tokenise(t.Context(), "s", OriginAgent, []string{mail})
	if err != nil || said.Texts[0] == sink || said.New["EMAIL"] != 1 {
		t.Fatalf("%+v, %v", said, err)
	}
	r, err := reference.Parse(said.Texts[0])
	must(t, err)
	if held, ok := v.Value(t.Context(), "s", r.ID); !ok || held.Origin != OriginAgent || held.Text != mail {
		t.Errorf("the agent's own is %+v, %t", held, ok)
	}
	secret, err := v.Tokenise(t.Context(), "s", OriginAgent, []string{"password=hunter2"})
	must(t, err)
	if r, err = reference.Parse(strings.TrimPrefix(secret.Texts[0], "password=")); err != nil {
		t.Fatal(err)
	}
	if held, ok := v.Value(t.Context(), "s", r.ID); !ok || held.Text != "" {
		t.Errorf("an agent's secret is kept: %+v, %t", held, ok)
	}
}

func TestNestedEncodings(t *testing.T) {
	unicode := func(s string) string {
		var b strings.Builder
		for _, r := range s {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		return b.String()
	}
	held := "s3cr3t-value of the service"
	for name, encode := range map[string]func(string) string{
		"JSON in a string": func(s string) string { return strconv.Quote(`{"to":"` + s + `"}`) },
		"escapes of JSON":  func(s string) string { return `{"to":"` + unicode(s) + `"}` },
		"hexadecimal":      func(s string) string { return strings.ReplaceAll(s, "@", `\x40`) },
		"a URL's query":    func(s string) string { return "GET /?to=" + url.QueryEscape(s) + "&x=1" },
		"a URL's path":     func(s string) string { return "GET /" + strings.ReplaceAll(url.PathEscape(s), "@", "%40") + "/x" },
		"base64":           func(s string) string { return "body: " + base64.StdEncoding.EncodeToString([]byte("to: "+s+"\n")) },
		"base64, raw":      func(s string) string { return "body: " + base64.RawStdEncoding.EncodeToString([]byte("to: "+s)) + "," },
		"base64, URL":      func(s string) string { return "?b=" + base64.URLEncoding.EncodeToString([]byte("~~~>> to: "+s)) },
	} {
		v := personal(t)
		tokenise(t, v, "s", "client_secret='"+held+"'")
		for _, value := range []string{mail, held} {
			text := encode(value)
			if strings.Contains(text, value) && name != "JSON in a string" && value == mail {
				t.Fatalf("%s hides nothing: %q", name, text)
			}
			got := tokenise(t, v, "s", "before "+text+" after")[0]
			left := references.ReplaceAllString(got, "")
			if !references.MatchString(got) || strings.Contains(left, "gonzalez") || strings.Contains(left, "Z29uemFsZX") || strings.Contains(left, "value") ||
				!strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
				t.Errorf("%s: %q became %q", name, text, got)
			}
		}
	}
	// What is no encoding of anything stays.
	v := personal(t)
	for _, text := range []string{"100%", `C:\users\x`, "path /usr/lib/python3/dist-packages/torch", "sha256:" + strings.Repeat("0123456789abcdef", 4),
		base64.StdEncoding.EncodeToString([]byte("nothing to see here, move along")), `\u00zz %zz`, `tail \`} {
		if got := tokenise(t, v, "s", text)[0]; got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// What an escape stands for before a value is no part of the value: its reference is that of the value alone.
func TestEscapesBeforeAValue(t *testing.T) {
	v := personal(t)
	bare := tokenise(t, v, "s", mail)[0]
	for _, before := range []string{`a\n`, `a\r\n`, `\t`, `\u000a`, `\u00e9`, `\x0a`, `\\\n`, `?to=%20`, `?to=%0A%20`, `?to=%3C`, `\\`} {
		text := `{"m":"` + before + mail + `\nb"}`
		got := tokenise(t, v, "s", text)[0]
		if want := `{"m":"` + before + bare + `\nb"}`; got != want {
			t.Errorf("%s became %s", text, got)
		}
	}
	got := tokenise(t, v, "s", `{"m":"CORP\\nadine@example.org"}`)[0]
	r, err := reference.Parse(references.FindString(got))
	if err != nil {
		t.Fatalf("%s, %v", got, err)
	}
	if held, _ := v.Value(t.Context(), "s", r.ID); held.Text != "nadine@example.org" {
		t.Errorf("behind a backslash stands %q", held.Text)
	}
}

// Keys and numbers of JSON are values as texts are, one level deep, and JSON stays what it is.
func TestKeysAndNumbers(t *testing.T) {
	v := personal(t)
	for text, raw := range map[string]string{
		`{"phone":12025550123,"n":1}`:                        "12025550123",
		`{"user":{"phone": 12025550123}}`:                    "12025550123",
		`{"cards":[4111111111111111, 5500005555555559]}`:     "4111111111111111",
		`{"cards":[4111111111111111,5500005555555559]}`:      "4111111111111111",
		`[4111111111111111]`:                                 "4111111111111111",
		` [ 1, -4111111111111111 ] `:                         "4111111111111111",
		`[[4111111111111111], {"n":1}]`:                      "4111111111111111",
		`["x", 4111111111111111, {"n":1}, 5500005555555559]`: "4111111111111111",
		`{"cards":["x", 4111111111111111]}`:                  "4111111111111111",
		`{"s":"in, 4111111111111111, a text"}`:               "4111111111111111",
		`["` + mail + `", 4111111111111111]`:                 "4111111111111111",
		`{"card":4111111111111111}`:                          "4111111111111111",
		`{"card" : 4111111111111111}`:                        "4111111111111111",
		`{"cards" :[ 4111111111111111 ]}`:                    "4111111111111111",
		`{"card":-4111111111111111}`:                         "4111111111111111",
		`{"cards":[1,-4111111111111111]}`:                    "4111111111111111",
		`{"password":48213907}`:                              "48213907",
		`{"password":"hunter48213\\","n":"x"}`:               "hunter48213",
		`{"password":"hunter48213\\"}`:                       "hunter48213",
		`{"body":"{\"password\":\"hunter\\\"48213\"}"}`:      "48213",
		`{"body":"{\"password\":\"hunter48213\\\\\"}"}`:      "hunter48213",
		`["hunter48213\\",{"password":"hunter48213\\"}]`:     "hunter48213",
		`{"passwords":{"password" : -48213907 , "n":1}}`:     "48213907",
		`{"` + mail + `":{"n":1}}`:                           mail,
		`{"body":"{\"phone\":12025550123}"}`:                 "12025550123",
		`{"body":"{\"maria.gonzalez\u0040example.org\":1}"}`: "gonzalez",
	} {
		got := tokenise(t, v, "s", text)[0]
		if strings.Contains(got, raw) || strings.Contains(got, "5500005555555559") || !json.Valid([]byte(got)) || !strings.Contains(got, "tkn_") {
			t.Errorf("%s became %s", text, got)
		}
		if again := tokenise(t, v, "s", got)[0]; again != got {
			t.Errorf("%s became %s", got, again)
		}
		if there := Redact(got); !json.Valid([]byte(there)) {
			t.Errorf("%s became %s where others read along", text, there)
		}
	}
}

// Beyond its cap a session's values are replaced, and not kept.
func TestCap(t *testing.T) {
	v := personal(t)
	for i := range MaxValues + 50 {
		got := tokenise(t, v, "s", fmt.Sprintf("mail user%04d@example.org", i))[0]
		if strings.Contains(got, "@") || (got == "mail "+redactedPII) != (i >= MaxValues) {
			t.Fatalf("%d: %q", i, got)
		}
	}
	if got := tokenise(t, v, "s", `{"card":4111111111111111}`)[0]; !json.Valid([]byte(got)) || strings.Contains(got, "4111") {
		t.Errorf("a number became %s", got)
	}
	if n := len(v.sessions["s"].byID); n != MaxValues {
		t.Errorf("%d values are held", n)
	}
	if got := tokenise(t, v, "s", "mail user0001@example.org")[0]; !references.MatchString(got) {
		t.Errorf("one that is held became %q", got)
	}
}

func TestAMillionGuesses(t *testing.T) {
	v := personal(t)
	ref := references.FindString(tokenise(t, v, "s", mail)[0])
	r, err := reference.Parse(ref)
	must(t, err)
	resolved := 0
	for bit := range 128 {
		id := r.ID
		id[bit/8] ^= 1 << (bit % 8)
		if _, ok := v.Value(t.Context(), "s", id); ok {
			resolved++
		}
	}
	for range 1_000_000 {
		if _, ok := v.Value(t.Context(), "s", reference.NewID()); ok {
			resolved++
		}
	}
	if resolved != 0 {
		t.Errorf("%d of a million guesses stand for something", resolved)
	}
	// As any part of a text, an edited one is no reference either.
	for i := range ref {
		edited := ref[:i] + string(ref[i]^1) + ref[i+1:]
		if found, _ := reference.Scan(tokenise(t, v, "s", edited)[0], nil); len(found) > 0 {
			t.Errorf("%q is taken for a reference", edited)
		}
	}
	if _, ok := v.Value(t.Context(), "s", r.ID); !ok {
		t.Error("the reference itself stands for nothing: this test proves nothing")
	}
}

// brackets are texts that a scan could look at again for each beginning that they hold.
var brackets = []string{"[[", "[[PII:", "[[PII:EMAIL:tkn_", `{"$pii_ref":"tkn_`, "[[SECRET:A:", "[[ pii : "}

// TestBracketsAreLinear: 10 MB of beginnings are read to their end; a scan that looks back from each would take days. BenchmarkBrackets
// says how fast.
func TestBracketsAreLinear(t *testing.T) {
	v := personal(t)
	for _, unit := range brackets {
		_, n := reference.Scan(strings.Repeat(unit, 10<<20/len(unit)), func(reference.Reference) bool { return true })
		if len(unit) > 2 && n == 0 {
			t.Errorf("%q: nothing looks like a reference", unit)
		}
	}
	if _, err := v.Tokenise(t.Context(), "s", OriginSink, []string{strings.Repeat("[[PII:", 40<<10)}); err != nil {
		t.Error(err)
	}
}

func BenchmarkBrackets(b *testing.B) {
	for _, unit := range brackets {
		b.Run(unit, func(b *testing.B) {
			text := strings.Repeat(unit, 10<<20/len(unit))
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				reference.Scan(text, func(reference.Reference) bool { return true })
			}
		})
	}
}

func BenchmarkPersonal(b *testing.B) {
	line := "INFO 11-22 01:00:00 [serve.py:12] request from maria.gonzalez@example.org took 12.34 seconds, token throughput 3.4\n"
	v := personal(b)
	text := strings.Repeat(line, 2048/len(line))
	tokenise(b, v, "s", text) // what is made once
	b.SetBytes(int64(len(text)))
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := v.Tokenise(b.Context(), "s", OriginSink, []string{text}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
}

// BenchmarkHeld says what the values of 10,000 sessions take in memory, 100 each.
func BenchmarkHeld(b *testing.B) {
	const sessions, values = 10_000, 100
	for b.Loop() {
		v := personal(b)
		before := heap()
		for s := range sessions {
			h := v.holding(b.Context(), strconv.Itoa(s))
			for i := range values {
				text := fmt.Sprintf("user%d.%d@example.org", s, i)
				r := reference.Reference{Class: reference.PII, Type: "EMAIL", ID: h.id(OriginSink, reference.PII, text)}
				if !v.hold(h, &Value{Reference: r, Origin: OriginSink, Text: text}) {
					b.Fatal("there is no room")
				}
			}
		}
		held := float64(heap() - before)
		b.ReportMetric(held/(sessions*values), "B/value")
		b.ReportMetric(held/1e6, "MB")
		runtime.KeepAlive(v)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestArgumentsComeBack: what an agent sent is, with the values in the places of its references, what it was, and nothing of it is lost
// unnoticed.
func TestArgumentsComeBack(t *testing.T) {
	long := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("nothing to see here, ", 200) + mail))
	for name, c := range map[string]struct {
		text            string
		unkept, secrets bool
	}{
		"as it stands":      {text: "to " + mail + ", and again " + mail},
		"JSON with numbers": {text: `{"to":"` + mail + `","phone": 12025550123, "n":1}`},
		"escapes of JSON":   {text: `{"to":"maria.gonzalez\u0040example.org","x":"\\"}`},
		"a form":            {text: "to=" + url.QueryEscape(mail) + "&x=%5B"},
		"base64":            {text: "body: " + base64.StdEncoding.EncodeToString([]byte("to: "+mail+"\n"))},
		"look-alikes":       {text: "[[PII:EMAIL:x]] [[ secret : {\"$pii_ref\":1} $PII_REF to " + mail},
		"nothing":           {text: "{\"n\": 1}\n"},
		"too long to keep":  {text: long, unkept: true},
		"a credential":      {text: "password=hunter2-hunter2 of " + mail, secrets: true},
		"one in base64":     {text: base64.StdEncoding.EncodeToString([]byte("password=hunter2-hunter2")), secrets: true},
	} {
		v := personal(t)
		got, err := v.Arguments(t.Context(), "s", []string{c.text})
		must(t, err)
		if (got.Unkept > 0) != c.unkept || (got.Secrets > 0) != c.secrets {
			t.Errorf("%s: %d are not kept, %d are credentials", name, got.Unkept, got.Secrets)
		}
		again, err := v.Arguments(t.Context(), "s", []string{c.text})
		if err != nil || again.Texts[0] != got.Texts[0] || again.Unkept != got.Unkept || again.Secrets != got.Secrets {
			t.Errorf("%s: again %+v, %v", name, again, err)
		}
		if strings.Contains(got.Texts[0], mail) || strings.Contains(got.Texts[0], "12025550123") {
			t.Errorf("%s: %q", name, got.Texts[0])
		}
		if c.unkept || c.secrets {
			continue
		}
		var back strings.Builder
		at := 0
		found, _ := reference.Scan(got.Texts[0], nil)
		for _, f := range found {
			held, ok := v.Value(t.Context(), "s", f.ID)
			if !ok || held.Origin != OriginAgent {
				t.Errorf("%s: %s stands for %+v", name, f.Marshal(), held)
			}
			back.WriteString(got.Texts[0][at:f.From] + held.Text)
			at = f.To
		}
		if back.WriteString(got.Texts[0][at:]); back.String() != c.text {
			t.Errorf("%s: %q became %q", name, c.text, back.String())
		}
	}
	v := personal(t)
	for i := range MaxValues {
		tokenise(t, v, "s", mail)
		if _, err := v.Arguments(t.Context(), "s", []string{fmt.Sprintf("p%d@example.org", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := v.Arguments(t.Context(), "s", []string{mail}); err != nil || got.Unkept != 1 {
		t.Errorf("beyond the bound: %+v, %v", got, err)
	}
}
