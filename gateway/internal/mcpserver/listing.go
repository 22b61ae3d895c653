package mcpserver

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

// What tools/list says of a tool's arguments and results. A model reads the list whole, with every tool in it, so it says each thing
// once: what a service, a step or a state is stands where the READ tool that shows it is, and is called an object or a string
// elsewhere. The contract's own schemas, which approvals are bound to and arguments are checked against, are longer.

// listedInput is a tool's input schema without the dialect, which is MCP's own. The rest stays whole: what the list lets through, the
// contract takes.
func listedInput(schema map[string]any) map[string]any {
	out := maps.Clone(schema)
	delete(out, "$schema")
	return out
}

// listedResult is a tool's result schema without descriptions, in which every answer that fits the contract's own fits too. What has
// properties is an object, which need not be said.
func listedResult(t contract.Tool) map[string]any {
	if t.OpenResult {
		return t.ResultSchema
	}
	return listed(t, t.Method.Output(), t.ResultSchema)
}

func listed(t contract.Tool, d protoreflect.MessageDescriptor, schema map[string]any) map[string]any {
	properties, _ := schema["properties"].(map[string]any)
	out := map[string]any{}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if p, ok := properties[string(fd.Name())].(map[string]any); ok {
			out[string(fd.Name())] = listedField(t, fd, p)
		}
	}
	if len(out) == 0 {
		return map[string]any{"type": "object"}
	}
	return map[string]any{"properties": out}
}

func listedField(t contract.Tool, fd protoreflect.FieldDescriptor, schema map[string]any) map[string]any {
	if fd.IsMap() {
		return map[string]any{"type": "object"}
	}
	if fd.IsList() {
		items, _ := schema["items"].(map[string]any)
		return map[string]any{"type": "array", "items": listedValue(t, fd, items)}
	}
	return listedValue(t, fd, schema)
}

func listedValue(t contract.Tool, fd protoreflect.FieldDescriptor, schema map[string]any) map[string]any {
	switch {
	case fd.Message() != nil && homes()[fd.Message().FullName()] == t.Name:
		return listed(t, fd.Message(), schema)
	case fd.Message() != nil:
		return map[string]any{"type": "object"}
	case fd.Enum() != nil && homes()[fd.Enum().FullName()] != t.Name:
		return map[string]any{"type": "string"}
	case fd.Enum() != nil:
		return map[string]any{"enum": schema["enum"]}
	}
	return map[string]any{"type": schema["type"]}
}

// homes names, for each message and enum that results hold, the tool in whose schema it stands whole: of the READ tools, or else
// the others, the one with the smallest answer.
var homes = sync.OnceValue(func() map[protoreflect.FullName]string {
	tools := contract.Tools()
	slices.SortStableFunc(tools, func(a, b contract.Tool) int {
		look := func(t contract.Tool) int { return cmp.Compare(t.Tier, optionsv1.Tier_TIER_READ) }
		return cmp.Or(cmp.Compare(look(a), look(b)), cmp.Compare(a.Method.Output().Fields().Len(), b.Method.Output().Fields().Len()))
	})
	out := map[protoreflect.FullName]string{}
	for _, t := range tools {
		if !t.OpenResult {
			settle(out, t.Name, t.Method.Output())
		}
	}
	return out
})

func settle(out map[protoreflect.FullName]string, tool string, d protoreflect.MessageDescriptor) {
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		switch {
		case fd.IsMap():
		case fd.Enum() != nil && out[fd.Enum().FullName()] == "":
			out[fd.Enum().FullName()] = tool
		case fd.Message() != nil && out[fd.Message().FullName()] == "":
			out[fd.Message().FullName()] = tool
			settle(out, tool, fd.Message())
		}
	}
}
