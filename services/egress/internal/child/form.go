package child

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/services/platform/clean"
)

// Bounds of what a server asks for at once.
const (
	maxForm    = 16 << 10
	maxFields  = 20
	maxChoices = 100
)

// form is what a server may ask during a call: a sentence, and a flat object of texts, numbers and choices. It is made anew from what is
// known here, so that no reference, pattern or condition of the server's is ever followed.
type form struct {
	Mode    string `json:"mode,omitempty"`
	Message string `json:"message"`
	Schema  struct {
		Type       string            `json:"type"`
		Properties map[string]*field `json:"properties"`
		Required   []string          `json:"required,omitempty"`
	} `json:"requestedSchema"`
}

type field struct {
	Type        string         `json:"type,omitempty"`
	Title       string         `json:"title,omitempty"`
	Description string         `json:"description,omitempty"`
	Format      string         `json:"format,omitempty"`
	Enum        []string       `json:"enum,omitempty"`
	EnumNames   []string       `json:"enumNames,omitempty"`
	OneOf       []choice       `json:"oneOf,omitempty"`
	AnyOf       []choice       `json:"anyOf,omitempty"`
	Items       *field         `json:"items,omitempty"`
	MinLength   *uint32        `json:"minLength,omitempty"`
	MaxLength   *uint32        `json:"maxLength,omitempty"`
	MinItems    *uint32        `json:"minItems,omitempty"`
	MaxItems    *uint32        `json:"maxItems,omitempty"`
	Minimum     *float64       `json:"minimum,omitempty"`
	Maximum     *float64       `json:"maximum,omitempty"`
	Default     jsontext.Value `json:"default,omitempty"`
}

// choice is one of those that people choose from, or a type where a field has one or none.
type choice struct {
	Const string `json:"const"`
	Title string `json:"title,omitempty"`
	Type  string `json:"type,omitempty"`
}

var errForm = errors.New("it asks in a form that is not passed on")

// formOf is what is passed on of the params of elicitation/create.
func formOf(params jsontext.Value) ([]byte, error) {
	var f form
	if json.Unmarshal(params, &f) != nil || f.Mode != "" && f.Mode != "form" || f.Schema.Type != "object" || len(f.Schema.Properties) > maxFields {
		return nil, errForm
	}
	f.Message = clean.Block(f.Message, clean.Whole)
	for name, p := range f.Schema.Properties {
		if p == nil || !plain(name) || !p.known() || (p.Type == "array") != (p.Items != nil) || p.Type == "" || p.Items != nil && (!p.Items.known() || p.Items.Type != "" && p.Items.Type != "string") {
			return nil, errForm
		}
	}
	for _, name := range f.Schema.Required {
		if f.Schema.Properties[name] == nil {
			return nil, errForm
		}
	}
	out, err := json.Marshal(f, json.Deterministic(true))
	if err != nil || len(out) > maxForm {
		return nil, errForm
	}
	return out, nil
}

// typed gives a field that may be null, as Python's SDK writes what may be left out, its type.
func (p *field) typed() {
	others := slices.DeleteFunc(slices.Clone(p.AnyOf), func(c choice) bool { return c.Type == "null" })
	if p.Type != "" || len(others) != 1 || others[0].Type == "" {
		return
	}
	p.Type, p.AnyOf = others[0].Type, nil
	if p.Default.Kind() == 'n' {
		p.Default = nil
	}
}

// known cleans what people read of a field, and reports whether the rest can be passed on as it is.
func (p *field) known() bool {
	p.typed()
	p.Title, p.Description = clean.Line(p.Title, maxName), clean.Line(p.Description, maxMessage)
	titled := p.Type == "" && len(p.AnyOf) > 0 // as MCP writes a choice of several
	if !titled && !slices.Contains([]string{"string", "number", "integer", "boolean", "array"}, p.Type) || p.Format != "" && !plain(p.Format) {
		return false
	}
	values := slices.Concat(p.Enum, p.EnumNames)
	for _, c := range slices.Concat(p.OneOf, p.AnyOf) {
		if c.Type != "" {
			return false
		}
		values = append(values, c.Const, c.Title)
	}
	switch p.Default.Kind() {
	case '"':
		var text string
		if json.Unmarshal(p.Default, &text) != nil {
			return false
		}
		values = append(values, text)
	case '[':
		var texts []string
		if json.Unmarshal(p.Default, &texts) != nil {
			return false
		}
		values = append(values, texts...)
	case '{':
		return false
	}
	return len(values) <= 2*maxChoices && !slices.ContainsFunc(values, func(value string) bool { return value != "" && !plain(value) })
}

// plain reports whether a text is short and shows what it is.
func plain(text string) bool { return text != "" && clean.Line(text, maxName) == text }

// forms is what is passed on of a result that may ask for input, as in the newest revision.
func forms(result []byte) ([]byte, error) {
	var in struct {
		Requests map[string]*struct {
			Method string         `json:"method"`
			Params jsontext.Value `json:"params,omitzero"`
		} `json:"inputRequests,omitzero"`
		Rest jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(result, &in); err != nil || len(in.Requests) > maxQuestions {
		return nil, errForm
	}
	for key, request := range in.Requests {
		if request == nil || !plain(key) {
			return nil, errForm
		}
		if request.Method != methodElicit {
			continue
		}
		var err error
		if request.Params, err = formOf(request.Params); err != nil {
			return nil, err
		}
	}
	if in.Requests == nil {
		return result, nil
	}
	out, err := json.Marshal(in, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errForm, err)
	}
	return out, nil
}
