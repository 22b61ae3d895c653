package mcpserver

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

// What tools/list says of a tool's arguments and results. A model reads the list whole, with every tool in it, so it says each thing
// once: what a service or a step is made of stands where the READ tool that shows it is, and is called an object elsewhere. The contract's own schemas, which approvals are bound to and arguments are checked against, are longer.

// listedInput is a tool's input schema without the dialect, which is MCP's own. The rest stays whole: what the list lets through, the
// contract takes.
func listedInput(schema map[string]any) map[string]any {
	out := maps.Clone(schema)
	delete(out, "$schema")
	return out
}

// listedResult is a tool's result schema without descriptions, in which every answer that fits the contract's own fits too. What has
// properties is an object, which need not be said. Its own members are there with their types; what a member is made of is named,
// and no more: {"description":"index, uuid, name"}.
func listedResult(t contract.Tool) map[string]any {
	if t.OpenResult {
		return t.ResultSchema
	}
	d := t.Method.Output()
	properties, _ := t.ResultSchema["properties"].(map[string]any)
	out := map[string]any{}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if p, ok := properties[string(fd.Name())].(map[string]any); ok {
			out[string(fd.Name())] = listedField(t.Name, fd, p)
		}
	}
	if len(out) == 0 {
		return map[string]any{"type": "object"}
	}
	return map[string]any{"properties": out}
}

func listedField(tool string, fd protoreflect.FieldDescriptor, schema map[string]any) map[string]any {
	value := func(schema map[string]any) map[string]any {
		if fd.Message() == nil {
			return map[string]any{"type": schema["type"]}
		}
		if homes()[fd.Message().FullName()] == fd.FullName() {
			return map[string]any{"description": named(fd.Message())}
		}
		return map[string]any{"type": "object"}
	}
	switch {
	case fd.IsMap():
		return map[string]any{"type": "object"}
	case fd.IsList():
		items, _ := schema["items"].(map[string]any)
		return map[string]any{"type": "array", "items": value(items)}
	}
	return value(schema)
}

// named names a message's members, and in brackets those of a member that stand whole here: "kind, change (from, to)".
func named(d protoreflect.MessageDescriptor) string {
	names := make([]string, 0, d.Fields().Len())
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		name := string(fd.Name())
		if !fd.IsMap() && fd.Message() != nil && homes()[fd.Message().FullName()] == fd.FullName() {
			name += " (" + named(fd.Message()) + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// homes names, for each message that results hold, the field at which its members are named: of the READ tools, or else the others,
// that of the tool with the smallest answer; in a tool, one of the answer's own fields before one of its parts'.
var homes = sync.OnceValue(func() map[protoreflect.FullName]protoreflect.FullName {
	tools := contract.Tools()
	slices.SortStableFunc(tools, func(a, b contract.Tool) int {
		look := func(t contract.Tool) int { return cmp.Compare(t.Tier, optionsv1.Tier_TIER_READ) }
		return cmp.Or(cmp.Compare(look(a), look(b)), cmp.Compare(a.Method.Output().Fields().Len(), b.Method.Output().Fields().Len()))
	})
	out := map[protoreflect.FullName]protoreflect.FullName{}
	for _, t := range tools {
		if !t.OpenResult {
			settle(out, t.Method.Output())
		}
	}
	return out
})

func settle(out map[protoreflect.FullName]protoreflect.FullName, d protoreflect.MessageDescriptor) {
	var fresh []protoreflect.MessageDescriptor
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if !fd.IsMap() && fd.Message() != nil && out[fd.Message().FullName()] == "" {
			out[fd.Message().FullName()] = fd.FullName()
			fresh = append(fresh, fd.Message())
		}
	}
	for _, sub := range fresh {
		settle(out, sub)
	}
}
