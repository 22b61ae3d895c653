package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

// Format is how a result is written.
type Format string

// The formats. Text and Wide are for people, Wide with tables as wide as they are; the others for programs. Quiet is ids alone, one a
// line.
const (
	Text  Format = "text"
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
	Quiet Format = "quiet"
)

// Formats are those that -o takes.
func Formats() []string { return []string{string(Text), string(Wide), string(JSON), string(YAML)} }

// Machine reports whether a program reads the result: what is for people goes to standard error then.
func (f Format) Machine() bool { return f == JSON || f == YAML || f == Quiet }

// Write writes a result, a message or any other value, for a program. As one of a stream it is a line of JSON, or a document of YAML.
func (p *Printer) Write(f Format, value any, stream bool) error {
	raw, err := encode(value)
	if err != nil {
		return err
	}
	switch f {
	case Quiet:
		return p.ids(raw)
	case YAML:
		text, err := yamlOf(raw)
		if err != nil {
			return err
		}
		if stream {
			p.Printf("---\n")
		}
		p.Printf("%s", text)
		return nil
	default:
		if !stream {
			var indented bytes.Buffer
			if err := json.Indent(&indented, raw, "", "  "); err != nil {
				return fmt.Errorf("encode result: %w", err)
			}
			raw = indented.Bytes()
		}
		p.Printf("%s\n", seen(raw))
		return nil
	}
}

func encode(value any) (json.RawMessage, error) {
	if m, ok := value.(proto.Message); ok {
		return MessageJSON(m)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return raw, nil
}

// MessageJSON returns m as compact JSON with proto names, every field present, the words of enums, and numbers as numbers.
func MessageJSON(m proto.Message) (json.RawMessage, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err == nil {
		// protojson varies its white space on purpose; Plain leaves none.
		raw, err = contract.Plain(m.ProtoReflect().Descriptor(), raw)
	}
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return raw, nil
}

// idNames are the members that name what a result is about, the one that commands take first. Records of the log, holds and connections go by
// their index, whatever rule they name.
var idNames = []string{
	"plan_digest", "operation_id", "standing_id", "service_id", "mode_id", "model_id", "session", "request_id", "uuid", "id", "index", "name", "process",
	"operator", "rule", "domain",
}

// ids writes the id of the result, or of each thing that it lists.
func (p *Printer) ids(raw json.RawMessage) error {
	var value any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	for _, id := range idsOf(value) {
		p.Printf("%s\n", clean.Visible(id))
	}
	return nil
}

func idsOf(value any) (out []string) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			out = append(out, idsOf(item)...)
		}
	case map[string]any:
		for _, name := range idNames {
			switch id := v[name].(type) {
			case string:
				if id != "" {
					return []string{id}
				}
			case json.Number:
				return []string{id.String()}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out = append(out, idsOf(v[name])...)
		}
	}
	return out
}

// yamlOf writes JSON as YAML, members in their order. A string with characters that a terminal would obey or not show stands in double
// quotes, where they are escaped.
func yamlOf(raw json.RawMessage) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	node, err := nodeOf(dec)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return escaped(out.Bytes(), func(b []byte, r rune) []byte {
		if r > 0xffff {
			return fmt.Appendf(b, `\U%08x`, r)
		}
		return fmt.Appendf(b, `\u%04x`, r)
	}), nil
}

// nodeOf reads the next value of JSON.
func nodeOf(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, nil
	}
	switch v := token.(type) {
	case json.Delim:
		node := &yaml.Node{Kind: yaml.SequenceNode}
		if v == '{' {
			node.Kind = yaml.MappingNode
		}
		for dec.More() {
			// An object's tokens are name and value by turns.
			child, err := nodeOf(dec)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		if len(node.Content) == 0 {
			node.Style = yaml.FlowStyle
		}
		_, err := dec.Token() // its end
		return node, err
	case string:
		node, err := scalar("!!str", v)
		if strings.ContainsFunc(v, unseen) {
			node.Style = yaml.DoubleQuotedStyle
		}
		return node, err
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return scalar("!!float", v.String())
		}
		return scalar("!!int", v.String())
	case bool:
		return scalar("!!bool", strconv.FormatBool(v))
	default:
		return scalar("!!null", "null")
	}
}
