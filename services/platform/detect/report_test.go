package detect

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unicode"
)

var (
	report  = flag.Bool("report", false, "print how much is found of a public corpus of personal data, in the folder that the variable CORPORA names")
	listing = flag.Bool("misses", false, "with -report: print each value that was missed and each that was none")
)

// mapped is what a label of the corpus is called here. Labels that are not listed are no type of ours: what is found there counts as
// false, but an address where a place is named, which is neither.
var mapped = map[string]Type{
	"PERSON": Person, "STREET_ADDRESS": Address, "ADDRESS": Address, "ZIP_CODE": Address, "CREDIT_CARD": CreditCard, "PHONE_NUMBER": Phone,
	"EMAIL_ADDRESS": Email, "IBAN_CODE": IBAN, "US_SSN": USSSN, "IP_ADDRESS": IPv4,
}

// structured are the types whose values have a form of their own.
var structured = map[Type]bool{CreditCard: true, Phone: true, Email: true, IBAN: true, USSSN: true, IPv4: true}

type sample struct {
	Text  string `json:"full_text"`
	Spans []struct {
		Type string `json:"entity_type"`
		From int    `json:"start_position"` // in characters
		To   int    `json:"end_position"`
	} `json:"spans"`
}

// score counts words of a type, and values.
type score struct {
	hit, missed, false int
	values, whole      int // values of the corpus, and those of them that were found, all of each
	found, right       int // values found, and those of them that are some of the corpus'
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 1
	}
	return float64(a) / float64(b)
}

func (s score) f2() float64 { return ratio(5*s.hit, 5*s.hit+4*s.missed+s.false) }

func (s *score) add(o score) {
	s.hit, s.missed, s.false = s.hit+o.hit, s.missed+o.missed, s.false+o.false
	s.values, s.whole, s.found, s.right = s.values+o.values, s.whole+o.whole, s.found+o.found, s.right+o.right
}

// TestDetection prints what is found of the corpus of presidio-research. No rule was written from what the corpus holds: it is measured,
// and nothing else. Without -report, or without the corpora, there is nothing to do.
func TestDetection(t *testing.T) {
	if !*report {
		return
	}
	folder := os.Getenv("CORPORA")
	if folder == "" {
		fmt.Println("not measured: CORPORA names no folder with corpora")
		return
	}
	raw, err := os.ReadFile(filepath.Join(folder, "microsoft__presidio-research", "data", "synth_dataset_v2.json"))
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Printf("not measured: the corpus of presidio-research is not in %s\n", folder)
		return
	}
	var samples []sample
	if err == nil {
		err = json.Unmarshal(raw, &samples)
	}
	must(t, err)
	d, err := New(Config{})
	must(t, err)
	places := map[bool]map[Type]score{false: {}, true: {}}
	for _, s := range samples {
		found, err := d.Find(t.Context(), s.Text)
		must(t, err)
		for withPlaces, scores := range places {
			compare(s, found, withPlaces, scores)
		}
	}
	fmt.Printf("%d texts of presidio-research, synth_dataset_v2.json.\n\n", len(samples))
	fmt.Println("| type | values | found whole | recall | precision | F2 of its words | words missed | words falsely found |\n|---|--:|--:|--:|--:|--:|--:|--:|")
	var all, forms score
	for _, typ := range Types() {
		s, ok := places[false][typ]
		if !ok || s.values == 0 && s.found == 0 {
			continue
		}
		all.add(s)
		if structured[typ] {
			forms.add(s)
		}
		line(string(typ), s)
	}
	line("types with a form", forms)
	line("all", all)
	var wide score
	for _, s := range places[true] {
		wide.add(s)
	}
	line("all, and names of places as addresses", wide)
}

func line(name string, s score) {
	fmt.Printf("| %s | %d | %d | %.3f | %.3f | %.3f | %d | %d |\n", name, s.values, s.whole, ratio(s.whole, s.values), ratio(s.right, s.found), s.f2(), s.missed, s.false)
}

// born: a date where birth is named, which the corpus labels as it labels all dates, is neither right nor false.
func born(label string) bool { return label == "DATE_TIME" }

// compare counts what was found in one text.
func compare(s sample, found []Span, withPlaces bool, scores map[Type]score) {
	offsets := make([]int, 0, len(s.Text)+1) // of characters
	for i := range s.Text {
		offsets = append(offsets, i)
	}
	offsets = append(offsets, len(s.Text))
	want := make([]Type, len(s.Text))
	place := make([]Type, len(s.Text)) // what is neither right nor false there
	have := make([]Type, len(s.Text))
	for _, f := range found {
		typ := f.Type
		if typ == IPv6 {
			typ = IPv4 // the corpus has one label for both
		}
		for i := f.From; i < f.To; i++ {
			have[i] = typ
		}
	}
	for _, g := range s.Spans {
		from, to := offsets[g.From], offsets[g.To]
		typ := mapped[g.Type]
		if g.Type == "GPE" || g.Type == "LOCATION" {
			if withPlaces {
				typ = Address
			}
			for i := from; i < to; i++ {
				place[i] = Address
			}
		}
		if born(g.Type) {
			for i := from; i < to; i++ {
				place[i] = DateOfBirth
			}
		}
		if typ == "" {
			continue
		}
		whole := true
		for i := from; i < to; i++ {
			want[i] = typ
			if unicode.IsLetter(rune(s.Text[i])) || unicode.IsDigit(rune(s.Text[i])) {
				whole = whole && have[i] == typ
			}
		}
		c := scores[typ]
		c.values++
		if whole {
			c.whole++
		} else if *listing && !withPlaces {
			fmt.Printf("missed %s: %q in %q\n", typ, s.Text[from:to], s.Text)
		}
		scores[typ] = c
	}
	for _, f := range found {
		typ := have[f.From]
		c, right, neither := scores[typ], false, false
		for i := f.From; i < f.To; i++ {
			right = right || want[i] == typ
			neither = neither || place[i] == typ
		}
		if right || !neither {
			c.found++
		}
		if right {
			c.right++
		} else if *listing && !withPlaces && !neither {
			fmt.Printf("false %s: %q in %q\n", typ, s.Text[f.From:f.To], s.Text)
		}
		scores[typ] = c
	}
	for _, w := range words(s.Text) {
		is, got := want[w[0]], have[w[0]]
		if is == got {
			if is != "" {
				c := scores[is]
				c.hit++
				scores[is] = c
			}
			continue
		}
		if is != "" {
			c := scores[is]
			c.missed++
			scores[is] = c
		}
		if got != "" && got != place[w[0]] {
			c := scores[got]
			c.false++
			scores[got] = c
		}
	}
}

// words are runs of letters and digits.
func words(text string) (out [][2]int) {
	from := -1
	for i, r := range text {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			if from < 0 {
				from = i
			}
			continue
		}
		if from >= 0 {
			out, from = append(out, [2]int{from, i}), -1
		}
	}
	if from >= 0 {
		out = append(out, [2]int{from, len(text)})
	}
	return out
}
