package redaction

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
)

// arguments returns a call's arguments without credentials, in their RFC 8785 form: the text itself where they hold none. Without a
// Redactor it only says whether they do. What is no JSON is looked at as text.
func (f field) arguments(r *Redactor) string {
	values := json.NewDecoder(strings.NewReader(f.text))
	values.UseNumber() // a number keeps its digits
	var tree any
	err := values.Decode(&tree)
	if err == nil {
		if _, err = values.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		return r.text(f.text)
	}
	w := walk{redactor: r}
	var d protoreflect.MessageDescriptor
	if tool, known := contract.Native(f.tool); known {
		d = tool.Method.Input()
	}
	tree = w.value(tree, "", d, false)
	if !w.changed {
		return f.text
	}
	if r == nil {
		return "" // not what it was
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	if err := out.Encode(tree); err == nil {
		if form, err := canonical.Transform(text.Bytes()); err == nil {
			return string(form)
		}
	}
	return `{"redacted":"` + r.mark(f.text) + `"}`
}

// Holds reports whether a tool's arguments, as JSON, hold what looks like a credential.
func Holds(tool, arguments string) bool {
	return field{text: arguments, tool: tool}.arguments(nil) != arguments
}

// walk goes through arguments.
type walk struct {
	redactor *Redactor
	changed  bool
}

// value returns a value without credentials. name is what the nearest member is called that the value belongs to; all of what a
// secret's name holds is one. d is the message that the value is, where the contract knows it.
func (w *walk) value(v any, name string, d protoreflect.MessageDescriptor, hidden bool) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := contract.IsReference(v); ok && len(spans(name)) == 0 {
			return v // it stands for a credential, so that none is here
		}
		out := make(map[string]any, len(v))
		for key, item := range v {
			var sub protoreflect.MessageDescriptor
			sensitive := hidden
			if d != nil {
				if fd := d.Fields().ByName(protoreflect.Name(key)); fd != nil {
					sensitive = sensitive || contract.Sensitive(fd)
					if sub = fd.Message(); fd.IsMap() {
						sub = nil // its keys are no fields
					}
				}
			}
			clean := key
			if len(spans(key)) > 0 {
				w.changed = true
				clean = w.redactor.text(key)
			}
			inner := key
			if secretNamed(name) {
				inner = name
			}
			out[clean] = w.value(item, inner, sub, sensitive)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = w.value(item, name, d, hidden)
		}
		return out
	case string:
		switch {
		case (hidden || secretNamed(name)) && !harmless(name, v):
			w.changed = true
			return w.redactor.mark(v)
		case len(spans(v)) > 0:
			w.changed = true
			return w.redactor.text(v)
		}
	case json.Number:
		if hidden || secretNamed(name) && !countName(name) {
			w.changed = true
			return w.redactor.mark(v.String())
		}
	}
	return v
}

// harmless reports whether what a secret's field holds says nothing.
func harmless(name, value string) bool {
	switch strings.ToLower(value) {
	case "", "true", "false", "null", "none", "yes", "no", "on", "off":
		return true
	}
	if at := mark().FindStringIndex(value); at != nil && at[0] == 0 && at[1] == len(value) {
		return true
	}
	return countName(name) && len(value) <= 12 && strings.Trim(value, "0123456789") == ""
}

// countName reports whether a number under that name is how many tokens there are.
func countName(name string) bool { return strings.HasSuffix(strings.ToLower(name), "tokens") }
