// Package reference is the grammar of what stands for a value that an agent may not see:
//
//	[[PII:TYPE:REF]]                       personal data in a text
//	[[SECRET:KIND:REF]]                    a secret in a text
//	{"$pii_ref":"REF","type":"TYPE"}       personal data as a JSON value
//
// TYPE and KIND are [A-Z][A-Z0-9_]*, at most 64 characters. REF is tkn_ and 128 bits in 26 characters of base32, of which there is one
// spelling. Each reference has one spelling in each form: what Parse takes, Marshal gives back byte for byte.
//
// The package runs in the vault and in sinks, on text that agents, programs and strangers wrote. It knows no values and decides nothing:
// a well-formed reference may still be another session's, or nobody's. Scan takes time linear in the text, whatever the text is.
package reference

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
)

// Class says what a reference stands for.
type Class string

// The classes.
const (
	PII    Class = "PII"
	Secret Class = "SECRET"
)

// MaxType is how long a TYPE or KIND is at most, in bytes.
const MaxType = 64

// ID is the part of a reference that no one can guess.
type ID [16]byte

// NewID returns a random ID.
func NewID() ID {
	var id ID
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return id
}

const (
	idPrefix = "tkn_"
	idLength = len(idPrefix) + 26
)

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func (id ID) String() string { return idPrefix + idText.EncodeToString(id[:]) }

// ParseID reads what String wrote, and nothing else.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != idLength || s[:len(idPrefix)] != idPrefix {
		return ID{}, errors.New("a reference is tkn_ and 26 characters")
	}
	if _, err := idText.Decode(id[:], []byte(s[len(idPrefix):])); err != nil {
		return ID{}, fmt.Errorf("the reference cannot be read: %w", err)
	}
	// The last character holds two bits that are no part of the ID, and Decode skips line ends.
	if id.String() != s {
		return ID{}, errors.New("the reference is not spelled as it was issued")
	}
	return id, nil
}

// Reference is one reference. The zero Reference is none.
type Reference struct {
	Class Class
	// Type is the type of personal data, or the kind of secret.
	Type string
	ID   ID
	// JSON: it is spelled as a JSON value. Secrets have no such form.
	JSON bool
}

const (
	open, closing = "[[", "]]"
	jsonOpen      = `{"$pii_ref":"`
	jsonType      = `","type":"`
	jsonClosing   = `"}`
)

// Marshal is the reference's one spelling in its form.
func (r Reference) Marshal() string {
	if r.JSON {
		return jsonOpen + r.ID.String() + jsonType + r.Type + jsonClosing
	}
	return open + string(r.Class) + ":" + r.Type + ":" + r.ID.String() + closing
}

// Parse reads a text that is one reference and nothing else.
func Parse(text string) (Reference, error) {
	r, n, ok := at(text)
	if !ok || n != len(text) {
		return Reference{}, errors.New("the text is no reference: it is to be [[PII:TYPE:REF]], [[SECRET:KIND:REF]] or " +
			`{"$pii_ref":"REF","type":"TYPE"}, without spaces`)
	}
	return r, nil
}

// ValidType reports whether a text can be a TYPE or a KIND.
func ValidType(s string) bool { return s != "" && len(s) <= MaxType && typeLength(s) == len(s) }

// at reads the reference that a text begins with, and how long it is. It looks at no more than the longest reference.
func at(text string) (Reference, int, bool) {
	if strings.HasPrefix(text, jsonOpen) {
		return jsonAt(text)
	}
	rest, ok := strings.CutPrefix(text, open)
	if !ok {
		return Reference{}, 0, false
	}
	r := Reference{Class: PII}
	if rest, ok = strings.CutPrefix(rest, string(PII)+":"); !ok {
		r.Class = Secret
		if rest, ok = strings.CutPrefix(rest, string(Secret)+":"); !ok {
			return Reference{}, 0, false
		}
	}
	n := typeLength(rest)
	if n == 0 || len(rest) < n+1+idLength+len(closing) || rest[n] != ':' {
		return Reference{}, 0, false
	}
	r.Type = rest[:n]
	rest = rest[n+1:]
	id, err := ParseID(rest[:idLength])
	if err != nil || !strings.HasPrefix(rest[idLength:], closing) {
		return Reference{}, 0, false
	}
	r.ID = id
	return r, len(text) - len(rest) + idLength + len(closing), true
}

func jsonAt(text string) (Reference, int, bool) {
	rest := text[len(jsonOpen):]
	if len(rest) < idLength {
		return Reference{}, 0, false
	}
	id, err := ParseID(rest[:idLength])
	if err != nil {
		return Reference{}, 0, false
	}
	rest, ok := strings.CutPrefix(rest[idLength:], jsonType)
	n := 0
	if ok {
		n = typeLength(rest)
	}
	if n == 0 || !strings.HasPrefix(rest[n:], jsonClosing) {
		return Reference{}, 0, false
	}
	return Reference{Class: PII, Type: rest[:n], ID: id, JSON: true}, len(text) - len(rest) + n + len(jsonClosing), true
}

// typeLength is how much of a text's beginning is a TYPE; 0 where that is none, or too long for one.
func typeLength(s string) int {
	n := 0
	for n < len(s) && (s[n] >= 'A' && s[n] <= 'Z' || n > 0 && (s[n] >= '0' && s[n] <= '9' || s[n] == '_')) {
		if n++; n > MaxType {
			return 0
		}
	}
	return n
}
