package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"unicode/utf8"

	"durward.internal/services/platform/clean"
)

// Cleaned returns v with every string in it cleaned, however deep: exported fields, elements, map keys and values, what
// interfaces hold, and the strings of raw JSON. It changes nothing that v refers to, and returns v itself when all is clean,
// as it should be: whoever made the message has cleaned it, and this is the last line, in front of the wire.
func Cleaned[T any](v T) T {
	out, changed := cleaned(reflect.ValueOf(&v).Elem(), 0)
	if !changed {
		return v
	}
	return out.Interface().(T)
}

// maxNesting bounds the depth of values; the messages of the protocol are a few levels deep, and arguments at most 50.
const maxNesting = 100

var rawJSON = reflect.TypeFor[json.RawMessage]()

// cleaned returns v cleaned, and whether that differs from v.
func cleaned(v reflect.Value, depth int) (reflect.Value, bool) {
	if depth > maxNesting {
		return reflect.Zero(v.Type()), true
	}
	switch v.Kind() {
	case reflect.String:
		s := v.String()
		c := clean.Block(s, clean.Whole)
		if c == s {
			return v, false
		}
		return reflect.ValueOf(c).Convert(v.Type()), true
	case reflect.Pointer:
		if v.IsNil() {
			return v, false
		}
		elem, changed := cleaned(v.Elem(), depth+1)
		if !changed {
			return v, false
		}
		out := reflect.New(v.Type().Elem())
		out.Elem().Set(elem)
		return out, true
	case reflect.Interface:
		if v.IsNil() {
			return v, false
		}
		elem, changed := cleaned(v.Elem(), depth+1)
		if !changed {
			return v, false
		}
		out := reflect.New(v.Type()).Elem()
		out.Set(elem)
		return out, true
	case reflect.Struct:
		return cleanedStruct(v, depth)
	case reflect.Map:
		return cleanedMap(v, depth)
	case reflect.Slice:
		if v.Type() == rawJSON {
			raw, changed := cleanedJSON(v.Bytes())
			return reflect.ValueOf(json.RawMessage(raw)), changed
		}
		return cleanedSlice(v, depth)
	default:
		return v, false
	}
}

func cleanedStruct(v reflect.Value, depth int) (reflect.Value, bool) {
	var out reflect.Value
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		field, changed := cleaned(v.Field(i), depth+1)
		if !changed {
			continue
		}
		if !out.IsValid() {
			out = reflect.New(v.Type()).Elem()
			out.Set(v)
		}
		out.Field(i).Set(field)
	}
	if !out.IsValid() {
		return v, false
	}
	return out, true
}

func cleanedMap(v reflect.Value, depth int) (reflect.Value, bool) {
	changed := false
	for entries := v.MapRange(); entries.Next() && !changed; {
		_, key := cleaned(entries.Key(), depth+1)
		_, value := cleaned(entries.Value(), depth+1)
		changed = key || value
	}
	if !changed {
		return v, false
	}
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	for entries := v.MapRange(); entries.Next(); {
		key, _ := cleaned(entries.Key(), depth+1)
		value, _ := cleaned(entries.Value(), depth+1)
		out.SetMapIndex(key, value)
	}
	return out, true
}

func cleanedSlice(v reflect.Value, depth int) (reflect.Value, bool) {
	switch v.Type().Elem().Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Map, reflect.Slice:
	default:
		return v, false // bytes and numbers
	}
	var out reflect.Value
	for i := range v.Len() {
		item, changed := cleaned(v.Index(i), depth+1)
		if !changed {
			continue
		}
		if !out.IsValid() {
			out = reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(out, v)
		}
		out.Index(i).Set(item)
	}
	if !out.IsValid() {
		return v, false
	}
	return out, true
}

// cleanedJSON cleans the strings and keys of one JSON value. What is not clean and no JSON either becomes null; what is clean
// stays, and whoever encodes it finds out.
func cleanedJSON(raw []byte) ([]byte, bool) {
	if bytes.IndexByte(raw, '\\') < 0 {
		if s := string(raw); clean.Block(s, clean.Whole) == s {
			return raw, false // no escapes, and nothing hostile as it stands
		}
	}
	if len(raw) == 0 {
		return raw, false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return []byte("null"), true
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return []byte("null"), true
	}
	out, changed := cleaned(reflect.ValueOf(&v).Elem(), 0)
	if !changed && utf8.Valid(raw) {
		return raw, false
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out.Interface()); err != nil {
		return []byte("null"), true
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), true
}
