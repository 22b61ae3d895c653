// Package detect finds personal data and credentials in a text: where they are, of which type, how sure it is, and why.
//
// It runs in the vault, and in the operator's program where a human tries it, on text that agents, programs and strangers wrote. It trusts nothing
// in the text and knows no session. A Detector's time is linear in the text and its memory in what it finds: the text is gone through once
// by hand, a candidate is looked at over a bounded number of bytes, and the expressions that an operator adds are RE2's, tried on a
// few KiB at a time. No code is generated and nothing is started.
//
// A candidate counts only when it is valid: a card's number has its check digit, an IBAN its remainder, an address of a network is one.
// What the validity of a number cannot tell (ten digits are a time as often as a telephone) the words around it must say.
package detect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/platform/detect/lexicon"
	"durward.internal/services/platform/detect/script"
	"durward.internal/services/platform/secret"
)

// Type is a type of personal data, as references name it.
type Type string

// The types. An operator's own patterns add others.
const (
	Email         Type = "EMAIL"
	Phone         Type = "PHONE"
	CreditCard    Type = "CREDIT_CARD"
	IBAN          Type = "IBAN"
	USSSN         Type = "US_SSN"
	IPv4          Type = "IPV4"
	IPv6          Type = "IPV6"
	MAC           Type = "MAC"
	Crypto        Type = "CRYPTO"
	URLCredential Type = "URL_CREDENTIAL" //nolint:gosec // the name of a type, no credential
	APIKey        Type = "API_KEY"
	DateOfBirth   Type = "DATE_OF_BIRTH"
	Person        Type = "PERSON"
	Address       Type = "ADDRESS"
)

// Types are the types that are built in, in the order of the documents.
func Types() []Type {
	return []Type{Email, Phone, CreditCard, IBAN, USSSN, IPv4, IPv6, MAC, Crypto, URLCredential, APIKey, DateOfBirth, Person, Address}
}

// Span is one value in a text, in bytes.
type Span struct {
	From, To int
	Type     Type
	// Confidence is from 1 to 100. It orders spans that overlap; it is no probability.
	Confidence int
	// Why says which rule found the value. It holds nothing of the text.
	Why string
}

// Config says what a Detector looks for, as a human's file does. The zero value looks for each built-in type.
type Config struct {
	// Types are the built-in types that are looked for. Empty: all of them.
	Types []Type `yaml:"types"`
	// Patterns are the operator's own types, which are looked for beside them.
	Patterns []Pattern `yaml:"patterns"`
}

// Detector finds values. It is safe for concurrent use.
type Detector struct {
	custom []compiled
	off    map[Type]bool
}

// New returns a Detector, or says what is wrong with its configuration. It tries each pattern on the pattern's own examples.
func New(c Config) (*Detector, error) {
	d := &Detector{off: map[Type]bool{}}
	built := Types()
	for _, t := range c.Types {
		if !slices.Contains(built, t) {
			return nil, fmt.Errorf("there is no built-in type %q; there are %s", t, strings.Trim(fmt.Sprint(built), "[]"))
		}
	}
	for _, t := range built {
		if len(c.Types) > 0 && !slices.Contains(c.Types, t) {
			d.off[t] = true
		}
	}
	var err error
	if d.custom, err = compile(c.Patterns); err != nil {
		return nil, err
	}
	return d, nil
}

// Find returns the values in a text in order; none overlaps another. Where candidates overlap, the surest gives its type, the longest of
// equals, and all that they cover together is the value. Find ends early, with ctx's error, when ctx does.
func (d *Detector) Find(ctx context.Context, text string) ([]Span, error) {
	s, err := d.personal(ctx, text)
	if err != nil {
		return nil, err
	}
	secrets, err := secret.Find(ctx, text)
	if err != nil {
		return nil, err
	}
	for _, one := range secrets {
		span := Span{From: one.From, To: one.To, Type: APIKey, Confidence: 95, Why: "credential: " + one.Kind}
		if one.Kind == "URL_PASSWORD" {
			span.Type = URLCredential
		}
		s = append(s, span)
	}
	return d.wanted(s), nil
}

// Personal is Find without credentials, for a caller that looks for those by itself.
func (d *Detector) Personal(ctx context.Context, text string) ([]Span, error) {
	s, err := d.personal(ctx, text)
	return d.wanted(s), err
}

func (d *Detector) personal(ctx context.Context, text string) ([]Span, error) {
	s := scan{text: script.Apart(text), words: lexicon.Words()}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	if !d.off[Person] {
		s.letterheads()
		s.smallLetters()
	}
	for _, c := range d.custom {
		if err := c.find(ctx, text, &s.spans); err != nil {
			return nil, err
		}
	}
	return s.spans, nil
}

// wanted settles the spans of the types that are looked for.
func (d *Detector) wanted(spans []Span) []Span {
	if len(d.off) > 0 {
		spans = slices.DeleteFunc(spans, func(s Span) bool { return d.off[s.Type] })
	}
	return settle(spans)
}

// settle sorts spans and joins those that overlap.
func settle(spans []Span) []Span {
	slices.SortFunc(spans, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(b.Confidence, a.Confidence), cmp.Compare(b.To, a.To), cmp.Compare(a.Type, b.Type))
	})
	out := spans[:0]
	length := 0 // of the span that gave the last one its type
	for _, s := range spans {
		last := len(out) - 1
		if last < 0 || s.From >= out[last].To {
			out, length = append(out, s), s.To-s.From
			continue
		}
		o := &out[last]
		if n := s.To - s.From; s.Confidence > o.Confidence || s.Confidence == o.Confidence && n > length {
			o.Type, o.Confidence, o.Why, length = s.Type, s.Confidence, s.Why, n
		}
		o.To = max(o.To, s.To)
	}
	return out
}
