package resource

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/contract"
)

// results describes what every tool answers, as the contract has it: a table of each result's members, and then one of each thing that
// they are made of. Its JSON is the schema of each tool's result.
func results() page {
	schemas := map[string]any{}
	for _, t := range contract.Tools() {
		schemas[t.Name] = t.ResultSchema
	}
	return page{schemas, func(d *document) {
		d.title("What tools answer")
		d.line("Every answer has status, summary and request_id; result is the tool's own. Text of strangers is wrapped.")
		var parts []protoreflect.MessageDescriptor
		seen := map[protoreflect.FullName]bool{}
		members := func(name string, m protoreflect.MessageDescriptor, schema map[string]any) {
			properties, _ := schema["properties"].(map[string]any)
			rows := [][]string{{"member", "type", "meaning"}}
			for i := range m.Fields().Len() {
				fd := m.Fields().Get(i)
				of := fd
				if fd.IsMap() {
					of = fd.MapValue()
				}
				if part := of.Message(); part != nil && !seen[part.FullName()] {
					seen[part.FullName()] = true
					parts = append(parts, part)
				}
				property, _ := properties[string(fd.Name())].(map[string]any)
				about, _ := property["description"].(string)
				rows = append(rows, []string{string(fd.Name()), typeName(fd), about})
			}
			d.heading(name)
			if len(rows) > 1 {
				d.table(rows)
			}
		}
		for _, t := range contract.Tools() {
			if t.OpenResult {
				d.heading(t.Name)
				d.line("The result of the tool that was asked for.")
				continue
			}
			members(t.Name, t.Method.Output(), t.ResultSchema)
		}
		for i := 0; i < len(parts); i++ { // what a part is made of joins them
			members(string(parts[i].Name()), parts[i], contract.Schema(parts[i]))
		}
	}}
}

// typeName is a member's type in words: "whole number", "list of Gpu", "stopped, starting or running".
func typeName(fd protoreflect.FieldDescriptor) string {
	of, prefix := fd, ""
	switch {
	case fd.IsMap():
		of, prefix = fd.MapValue(), "object of "
	case fd.IsList():
		prefix = "list of "
	}
	switch of.Kind() {
	case protoreflect.StringKind:
		return prefix + "text"
	case protoreflect.BoolKind:
		return prefix + "true or false"
	case protoreflect.MessageKind:
		return prefix + string(of.Message().Name())
	case protoreflect.EnumKind:
		var words []string
		for i := range of.Enum().Values().Len() {
			if v := of.Enum().Values().Get(i); v.Number() != 0 {
				words = append(words, contract.Word(v))
			}
		}
		return prefix + strings.Join(words, ", ")
	default:
		return prefix + "whole number"
	}
}
