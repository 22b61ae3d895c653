// Package canonical turns JSON into the one form that is digested, signed and shown: RFC 8785.
//
// It runs in every zone. It trusts nothing about its input: Strict is the first thing that touches JSON from outside,
// and Check refuses JSON that is not already its own canonical form, so that what is decided on and what is forwarded
// are the same bytes.
package canonical

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds for JSON from outside (SEC-P1).
const (
	MaxBytes = 1 << 20
	MaxDepth = 50
)

// Reasons why Strict refuses its input.
var (
	ErrTooLarge  = errors.New("JSON is larger than 1 MB")
	ErrTooDeep   = errors.New("JSON is nested more than 50 levels deep")
	ErrMalformed = errors.New("not well-formed JSON (UTF-8, unique keys, one value)")
	// ErrNotCanonical is Check's: the input is JSON, but not in its RFC 8785 form.
	ErrNotCanonical = errors.New("JSON is not in canonical form")
)

// Strict reports whether raw is exactly one JSON value in valid UTF-8, without duplicate keys, lone surrogates or
// trailing data, at most MaxBytes long and MaxDepth levels deep. It allocates nothing for input that passes.
func Strict(raw []byte) error {
	if len(raw) > MaxBytes {
		return ErrTooLarge
	}
	if depth(raw) > MaxDepth {
		return ErrTooDeep
	}
	if !jsontext.Value(raw).IsValid() {
		return ErrMalformed
	}
	return nil
}

// depth counts nesting without parsing; on malformed input its answer means nothing, and the parser refuses that next.
func depth(raw []byte) int {
	level, deepest := 0, 0
	inString := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString:
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if level++; level > deepest {
				deepest = level
			}
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest
}

// Transform returns the RFC 8785 form of strictly parsed JSON.
func Transform(raw []byte) ([]byte, error) {
	if err := Strict(raw); err != nil {
		return nil, err
	}
	out := jsontext.Value(bytes.Clone(raw))
	if err := out.Canonicalize(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return out, nil
}

// Check reports whether raw is its own RFC 8785 form, byte for byte.
func Check(raw []byte) error {
	out, err := Transform(raw)
	if err != nil {
		return err
	}
	if !bytes.Equal(out, raw) {
		return ErrNotCanonical
	}
	return nil
}

// Marshal returns the RFC 8785 form of v as encoding/json sees it.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return Transform(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
}

// AppendString appends the RFC 8785 form of a string, or returns an error if it is not UTF-8.
func AppendString(b []byte, s string) ([]byte, error) {
	if plain(s) {
		return append(append(append(b, '"'), s...), '"'), nil
	}
	b, err := jsontext.AppendQuote(b, s)
	if err != nil {
		return b, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return b, nil
}

// plain reports whether a string is ASCII without anything that JSON might escape, as nearly all that is recorded is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Unmarshal decodes canonical JSON into v, strictly: raw must be its own RFC 8785 form and hold no key that v does not
// name exactly. Together with Marshal it is not malleable: Marshal(Unmarshal(x)) == x, or an error.
func Unmarshal(raw []byte, v any) error {
	if err := Check(raw); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	// encoding/json folds the case of keys and forgives null: whatever it forgave comes out differently.
	again, err := Marshal(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(again, raw) {
		return ErrNotCanonical
	}
	return nil
}

// Digest is SHA-256.
func Digest(b []byte) [sha256.Size]byte { return sha256.Sum256(b) }

const digestPrefix = "sha256:"

// FormatDigest writes a digest as people and statements see it: "sha256:" and lower-case hex.
func FormatDigest(d []byte) string { return string(AppendDigest(nil, d)) }

// AppendDigest appends what FormatDigest writes.
func AppendDigest(b, d []byte) []byte { return hex.AppendEncode(append(b, digestPrefix...), d) }

// DigestText is the digest of b as FormatDigest writes it.
func DigestText(b []byte) string {
	sum := Digest(b)
	return FormatDigest(sum[:])
}

// ParseDigest reads what FormatDigest writes, and nothing else.
func ParseDigest(s string) ([]byte, error) {
	rest, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(rest) != 2*sha256.Size || strings.ToLower(rest) != rest {
		return nil, errors.New("not a digest of the form sha256:<64 hex digits>")
	}
	d, err := hex.DecodeString(rest)
	if err != nil {
		return nil, errors.New("not a digest of the form sha256:<64 hex digits>")
	}
	return d, nil
}

// Empty reports whether a JSON value says nothing: null, false, 0, "", an empty list, or an object of such. What is no JSON is not
// empty.
func Empty(raw []byte) bool {
	var v any
	return json.Unmarshal(raw, &v) == nil && empty(v)
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !empty(inner) {
				return false
			}
		}
		return true
	}
	return false
}
