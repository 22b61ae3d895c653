package child

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of a value that is passed on.
const (
	maxDepth  = 32
	maxNumber = 40 // characters of a number
)

var errMalformed = errors.New("what it sent is not well-formed JSON")

// shape says which members of an object are passed on, and how. Without members, a value is passed on whole. A list has the shape of its
// elements. In the place of a text that it does not take, where it is set what takes one, there is instead.
type shape struct {
	members map[string]*shape
	takes   func(text string) bool
	instead string
}

var (
	whole = &shape{}
	// encoded is base64: the SDK would refuse a whole result over a piece that is none.
	encoded = &shape{takes: func(text string) bool {
		_, err := base64.StdEncoding.DecodeString(text)
		return err == nil
	}}
)

// fields is the shape of an object whose named members are passed on whole.
func fields(names ...string) *shape {
	s := &shape{members: make(map[string]*shape, len(names))}
	for _, name := range names {
		s.members[name] = whole
	}
	return s
}

func (s *shape) with(name string, inner *shape) *shape {
	s.members[name] = inner
	return s
}

// or has instead stand for a text that is no member's name.
func (s *shape) or(instead string) *shape {
	s.takes, s.instead = func(text string) bool { return s.members[text] != nil }, instead
	return s
}

// results are what is passed on of an answer, by the method that was called. An answer to another method is empty.
var results = map[string]*shape{
	"initialize": fields("protocolVersion", "instructions").
		with("capabilities", capabilities).with("serverInfo", implementation),
	"server/discover": fields("supportedVersions", "instructions").
		with("capabilities", capabilities).
		with("_meta", fields().with("io.modelcontextprotocol/serverInfo", implementation)),
	"tools/list": fields("nextCursor").
		with("tools", fields("name", "title", "description", "inputSchema", "outputSchema", "annotations")),
	"tools/call": fields("structuredContent", "isError", "resultType", "requestState").
		with("content", pieces).
		with("inputRequests", whole),
	"prompts/list": fields("nextCursor").
		with("prompts", fields("name", "title", "description").with("arguments", fields("name", "description", "required"))),
	"prompts/get": fields("resultType", "requestState").
		with("messages", fields("role").with("content", pieces)).
		with("inputRequests", whole),
	"resources/list":           fields("nextCursor").with("resources", fields("uri", "name", "description")),
	"resources/templates/list": fields("nextCursor").with("resourceTemplates", fields("uriTemplate", "name", "description")),
	"resources/read": fields("resultType", "requestState").
		with("contents", resource).
		with("inputRequests", whole),
}

var (
	capabilities   = fields().with("tools", fields("listChanged")).with("prompts", fields("listChanged")).with("resources", noFields)
	resource       = fields("uri", "mimeType", "text").with("blob", encoded)
	pieces         = fields("text", "mimeType", "uri", "name", "title").with("type", kinds).with("data", encoded).with("resource", resource)
	kinds          = fields("text", "image", "audio", "resource_link", "resource").or("resource") // one that holds nothing: a note stands for it
	implementation = fields("name", "version")
	messageShape   = fields("level", "logger", "data")
	noFields       = fields()
)

// rebuild returns what the shape passes on of one JSON value, written anew and within the bounds.
func (s *shape) rebuild(raw jsontext.Value) ([]byte, error) {
	var out bytes.Buffer
	dec, enc := jsontext.NewDecoder(bytes.NewReader(raw), halves), jsontext.NewEncoder(&out, halves, jsontext.AllowDuplicateNames(true))
	if err := s.copy(dec, enc); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

func (s *shape) copy(dec *jsontext.Decoder, enc *jsontext.Encoder) error {
	token, err := dec.ReadToken()
	if err != nil {
		return errMalformed
	}
	kind := token.Kind()
	if kind == '0' {
		if err := number(token.String()); err != nil {
			return err
		}
	}
	if s.takes != nil && kind == '"' && !s.takes(token.String()) {
		token = jsontext.String(s.instead)
	}
	if err := enc.WriteToken(token); err != nil {
		return err
	}
	if kind != '{' && kind != '[' {
		return nil
	}
	if dec.StackDepth() > maxDepth {
		return fmt.Errorf("what it sent is nested more than %d deep", maxDepth)
	}
	for next := dec.PeekKind(); next != '}' && next != ']'; next = dec.PeekKind() {
		inner := s
		if kind == '{' && s.members != nil {
			name, err := dec.ReadToken()
			if err != nil {
				return errMalformed
			}
			known := false
			if inner, known = s.members[name.String()]; !known {
				if err := dec.SkipValue(); err != nil {
					return errMalformed
				}
				continue
			}
			if err := enc.WriteToken(name); err != nil {
				return err
			}
		}
		if err := inner.copy(dec, enc); err != nil {
			return err
		}
	}
	end, err := dec.ReadToken()
	if err != nil {
		return errMalformed
	}
	return enc.WriteToken(end)
}

// number refuses a number that is long, or larger than a float64 is: parsers differ over such.
func number(lexeme string) error {
	if len(lexeme) > maxNumber {
		return fmt.Errorf("what it sent has a number of more than %d characters", maxNumber)
	}
	if _, err := strconv.ParseFloat(lexeme, 64); err != nil {
		return fmt.Errorf("what it sent has the number %s, which is out of range", lexeme)
	}
	return nil
}
