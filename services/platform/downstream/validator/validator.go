// Package validator validates what the vault, the gateway and egress are asked to do with other people's tools. The processes that check
// nothing link none of it: the library compiles the schemas of every draft when a program starts, which takes 12 ms, and it reads hostile
// schemas, which the program that opens a signing key need not.
//
// It trusts that a schema was linted: package downstream bounds what is compiled and validated, and how long that takes, and catches panics.
//
// The library is one that keeps every number exact, refuses schemas that break their draft's own, and knows drafts 7, 2019-09 and 2020-12.
// github.com/google/jsonschema-go, which the MCP SDK brings, takes numbers as float64, does not check a schema, ignores format in draft 7, and
// writes the whole value into the error of each branch that it tries.
package validator

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/reference"
)

// nothing loads nothing: a schema refers to itself alone.
type nothing struct{}

func (nothing) Load(string) (any, error) {
	return nil, errors.New("a schema refers to nothing outside itself")
}

// Compile is the downstream.Compiler of processes that check arguments.
func Compile(schema any) (validate func(instance any) error, err error) {
	const name = "urn:durward:schema"
	c := jsonschema.NewCompiler()
	c.UseLoader(nothing{})
	c.UseRegexpEngine(expression)
	if err := c.AddResource(name, schema); err != nil {
		return nil, err
	}
	compiled, err := c.Compile(name)
	if err != nil {
		return nil, said(err)
	}
	return func(instance any) error {
		err := compiled.Validate(instance)
		if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok && excused(invalid, instance) {
			return nil
		}
		return said(err)
	}, nil
}

// excused reports whether all that is wrong is how texts are spelled that hold references to personal data: no reference looks like an address of
// mail. The sink validates again, with the values in their places.
func excused(err *jsonschema.ValidationError, instance any) bool {
	wrong := func(cause *jsonschema.ValidationError) bool { return !excused(cause, instance) }
	switch k := err.ErrorKind.(type) {
	case *kind.Pattern, *kind.Format, *kind.MinLength, *kind.MaxLength, *kind.Enum, *kind.Const:
		return refers(instance, err.InstanceLocation)
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		return len(err.Causes) > 0 && !slices.ContainsFunc(err.Causes, wrong)
	case *kind.AnyOf:
		return slices.ContainsFunc(err.Causes, func(cause *jsonschema.ValidationError) bool { return !wrong(cause) })
	case *kind.OneOf:
		return k.Subschemas == nil && slices.ContainsFunc(err.Causes, func(cause *jsonschema.ValidationError) bool { return !wrong(cause) })
	}
	return false
}

// refers reports whether the value at a place is a text with a reference to personal data.
func refers(v any, at []string) bool {
	for _, key := range at {
		switch in := v.(type) {
		case map[string]any:
			v = in[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(in) {
				return false
			}
			v = in[i]
		}
	}
	text, isText := v.(string)
	found, _ := reference.Scan(text, func(r reference.Reference) bool { return r.Class == reference.PII })
	return isText && len(found) > 0
}

// expression compiles a regular expression. Every text fits one that Go does not have: the tool is of use without, and its server checks it.
func expression(text string) (jsonschema.Regexp, error) {
	if downstream.Unmatched(text) {
		return anything(text), nil
	}
	return regexp.Compile(text)
}

type anything string

func (anything) MatchString(string) bool { return true }
func (a anything) String() string        { return string(a) }

// said is the first thing that is wrong, in a sentence.
func said(err error) error {
	var invalid *jsonschema.ValidationError
	if schema, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		err = schema.Err
	}
	if !errors.As(err, &invalid) {
		return err
	}
	for len(invalid.Causes) > 0 {
		invalid = invalid.Causes[0]
	}
	var where jsontext.Pointer
	for _, key := range invalid.InstanceLocation {
		where = where.AppendToken(key)
	}
	text := invalid.ErrorKind.LocalizedString(message.NewPrinter(language.English))
	return errors.New(strings.TrimPrefix(string(where)+": "+text, ": "))
}
