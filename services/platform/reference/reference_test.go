package reference

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	fixed  = ID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	inText = Reference{Class: PII, Type: "EMAIL", ID: fixed}
	secret = Reference{Class: Secret, Type: "HUGGINGFACE_ACCESS_TOKEN", ID: fixed}
	inJSON = Reference{Class: PII, Type: "US_SSN", ID: fixed, JSON: true}
)

func TestParseRefuses(t *testing.T) {
	ref := fixed.String()
	for _, text := range []string{
		"", "[[", "[[]]", "[[PII]]", "[[PII:EMAIL]]", "[[PII::" + ref + "]]", "[[PII:EMAIL:]]", "[[PII:EMAIL:tkn_]]",
		"[[pii:EMAIL:" + ref + "]]", "[[PII:email:" + ref + "]]", "[[PII:_A:" + ref + "]]", "[[PII:1A:" + ref + "]]", "[[PII:A-B:" + ref + "]]",
		"[[PII:ÀB:" + ref + "]]", "[[PII:" + strings.Repeat("A", MaxType+1) + ":" + ref + "]]", "[[PII :EMAIL:" + ref + "]]", "[[PII:EMAIL:" + ref + "]",
		"[PII:EMAIL:" + ref + "]]", "[[PII:EMAIL:" + ref + "]] ", " [[PII:EMAIL:" + ref + "]]", "[[PII:EMAIL:" + ref + "x]]", "[[PII:EMAIL:" + ref[:len(ref)-1] + "]]",
		"[[PII:EMAIL:" + strings.ToUpper(ref) + "]]", "[[PII:EMAIL:tkn_" + strings.Repeat("1", 26) + "]]", "[[PII:EMAIL:tkn_" + strings.Repeat("a", 25) + "\n]]",
		"[[OTHER:EMAIL:" + ref + "]]", "[[PII:EMAIL:" + ref + "]][[PII:EMAIL:" + ref + "]]",
		// The last character has two bits to spare: one value, one spelling.
		"[[PII:EMAIL:tkn_" + strings.Repeat("a", 25) + "b]]",
		`{"$pii_ref":"` + ref + `"}`, `{"type":"EMAIL","$pii_ref":"` + ref + `"}`, `{ "$pii_ref":"` + ref + `","type":"EMAIL"}`, `{"$pii_ref":"` + ref + `","type":"EMAIL","x":1}`,
		`{"$pii_ref":"` + ref + `","type":""}`, `{"$pii_ref":"` + ref + `","type":"email"}`, `{"$secret_ref":"` + ref + `","type":"EMAIL"}`, `{"$pii_ref":"` + ref + `","type":"EMAIL"`,
	} {
		if r, err := Parse(text); err == nil {
			t.Errorf("%q is taken for %+v", text, r)
		}
	}
}

func TestParse(t *testing.T) {
	for _, want := range []Reference{
		inText, secret, inJSON, {Class: PII, Type: "A", ID: NewID()}, {Class: PII, Type: strings.Repeat("Z", MaxType), ID: NewID()},
		{Class: PII, Type: "A_9", ID: ID{}, JSON: true}, {Class: Secret, Type: "A__", ID: ID{15: 255}},
	} {
		got, err := Parse(want.Marshal())
		if err != nil || got != want {
			t.Errorf("%s is %+v, %v", want.Marshal(), got, err)
		}
		if !ValidType(want.Type) {
			t.Errorf("%s is no type", want.Type)
		}
	}
	if a, b := NewID(), NewID(); a == b {
		t.Error("two IDs are one")
	}
}

func TestScan(t *testing.T) {
	a, b, c := inText.Marshal(), secret.Marshal(), inJSON.Marshal()
	for _, test := range []struct {
		text       string
		want       []string
		lookalikes int
	}{
		{"", nil, 0},
		{"no reference in here: a[0][1], $HOME, {}, [[ -f x ]] && y", nil, 0},
		{a, []string{a}, 0},
		{"to " + a + ", with " + b + "; " + c + "!", []string{a, b, c}, 0},
		{a + a + c + c, []string{a, a, c, c}, 0},
		{"[[" + a + "]]", []string{a}, 0},
		{"[[[" + a, []string{a}, 0},
		{"[[PII:" + a, []string{a}, 1},
		{"[[PII:EMAIL:tkn_x]] [[ secret : K]] [[pii:", nil, 3},
		{`{"$PII_REF":"x"} {\"$pii_ref\":\"x\"} {"$pii_ref": "` + fixed.String() + `", "type": "EMAIL"}`, nil, 3},
		{`[{"a":` + c + `},` + c + `]`, []string{c, c}, 0},
		{"[[PIIX:EMAIL]] [[SECRETS:x]] $pii_re [ [PII:A", nil, 0},
	} {
		found, lookalikes := Scan(test.text, nil)
		var got []string
		for _, f := range found {
			got = append(got, test.text[f.From:f.To])
			if test.text[f.From:f.To] != f.Marshal() {
				t.Errorf("%q stands for %+v", test.text[f.From:f.To], f.Reference)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" || lookalikes != test.lookalikes {
			t.Errorf("%q: %d look alike, %s", test.text, lookalikes, diff)
		}
	}
	// What is well formed and not ours is text.
	found, lookalikes := Scan(a+" "+b, func(r Reference) bool { return r.Class == Secret })
	if len(found) != 1 || found[0].Reference != secret || lookalikes != 1 {
		t.Errorf("%+v, %d look alike", found, lookalikes)
	}
}

// A reference that was changed in one place is another one or none, and is never taken for the one that it was.
func TestEditedReferences(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		r := []Reference{inText, secret, inJSON}[random.IntN(3)]
		text := []byte(r.Marshal())
		at := random.IntN(len(text))
		was := text[at]
		if text[at] = byte(random.IntN(256)); text[at] == was {
			continue
		}
		got, err := Parse(string(text))
		if err == nil && (got == r || got.Marshal() != string(text)) {
			t.Fatalf("%q is taken for %+v", text, got)
		}
	}
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{inText.Marshal(), secret.Marshal(), inJSON.Marshal(), "[[PII:" + inText.Marshal(), "[[ pii : ", "$pii_ref", "[[[[{{{{$$$$", "[[PII:A:tkn_\n]]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := Parse(text); err == nil && r.Marshal() != text {
			t.Errorf("%q is spelled %q", text, r.Marshal())
		}
		found, lookalikes := Scan(text, nil)
		last := 0
		for _, one := range found {
			if one.From < last || one.To > len(text) || one.Marshal() != text[one.From:one.To] {
				t.Fatalf("%q: %+v", text, one)
			}
			last = one.To
			if parsed, err := Parse(text[one.From:one.To]); err != nil || parsed != one.Reference {
				t.Errorf("%q: Scan finds %+v, Parse %+v, %v", text, one.Reference, parsed, err)
			}
		}
		// Nothing is lost where ours knows none.
		if none, all := Scan(text, func(Reference) bool { return false }); len(none) != 0 || all != lookalikes+len(found) {
			t.Errorf("%q: %d found and %d look alike, but %d where none is known", text, len(found), lookalikes, all)
		}
	})
}

func TestEachReferenceIsAskedAboutOnce(t *testing.T) {
	asked := 0
	text := strings.Repeat(inText.Marshal(), 1000)
	if _, n := Scan(text, func(Reference) bool { asked++; return false }); asked != 1000 || n != 1000 {
		t.Errorf("%d asked about, %d look alike", asked, n)
	}
}

// BenchmarkScan: 10 MB of brackets take well below a second, whatever they are.
func BenchmarkScan(b *testing.B) {
	const size = 10 << 20
	for _, part := range []string{
		"[", "[[", "[[PII:", "[[ \t  pii", "[[PII:A", "{\"$pii_ref\":\"", "$", "[[PII:" + strings.Repeat("A", 64), "[[PII:EMAIL:tkn_aaaaaaaaaaaaaaaaaaaaaaaaa1]]",
		inText.Marshal(), inJSON.Marshal(), "the operator wrote nothing of interest today. ",
	} {
		name := part
		if len(name) > 20 {
			name = fmt.Sprintf("%s…%d", name[:16], len(part))
		}
		text := strings.Repeat(part, size/len(part))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				Scan(text, nil)
			}
		})
	}
}

// TestParseIDRefuses what is of another length, has other characters, or is not spelled as it was issued.
func TestParseIDRefuses(t *testing.T) {
	whole := fixed.String()
	if id, err := ParseID(whole); err != nil || id != fixed {
		t.Fatalf("%v, %v: nothing is proved", id, err)
	}
	for _, s := range []string{
		"", "tkn", "tkn_", whole[4:], whole[:len(whole)-1], whole + "a", whole + whole[4:], "TKN_" + whole[4:], "xxxx" + whole[4:],
		"tkn_" + strings.Repeat("\n", 26), whole[:10] + "\n" + whole[11:], whole[:10] + "\r\n" + whole[12:], whole[:10] + "1" + whole[11:],
		strings.ToUpper(whole), whole[:len(whole)-1] + "7",
	} {
		if id, err := ParseID(s); err == nil || id != (ID{}) {
			t.Errorf("%q is %v, %v", s, id, err)
		}
	}
}
