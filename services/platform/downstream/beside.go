package downstream

import (
	"encoding/json"
	"strings"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// What a server offers beside tools is pinned among its tools, and judged, recorded and wrapped as they are: reading its resources is one
// entry, in our own words, and each of its prompts is one. Their names have a dot, which no tool's name has.
const (
	// ReadResource reads a resource by its URI, or lists the resources.
	ReadResource = "resources.read"
	// PromptPrefix stands before a prompt's own name.
	PromptPrefix = "prompts."
)

// Kind is what a server listed.
type Kind string

// The kinds. Of resources only that there are some is listed: what each of them is called is nothing that a human signs.
const (
	KindTool      Kind = ""
	KindPrompt    Kind = "prompt"
	KindResources Kind = "resources"
)

// PinnedName is what the entry of the lock is called.
func (l Listed) PinnedName() string {
	switch l.Kind {
	case KindPrompt:
		return PromptPrefix + l.Name
	case KindResources:
		return ReadResource
	default:
		return l.Name
	}
}

// isTool reports whether a pinned name is a tool's.
func isTool(pinned string) bool { return !strings.Contains(pinned, ".") }

// checkPinned is CheckTool for a name of the lock.
func checkPinned(server, pinned string) error {
	if pinned == ReadResource {
		return nil
	}
	return checkName(server, strings.TrimPrefix(pinned, PromptPrefix), pinned)
}

// reader is how reading resources is pinned. A URI of the web is judged as a tool's URL is; all others mean what the server makes of them.
func reader() Tool {
	return Tool{
		Name: ReadResource, Title: "Read a resource", Description: "Reads a resource of the server by its URI; without a URI, lists the resources.",
		Input: json.RawMessage(`{"additionalProperties":false,"properties":{"uri":{"maxLength":2000,"pattern":"^[a-z][a-z0-9+.-]*:[!-~]*$","type":"string"}},"type":"object"}`),
		Tier:  optionsv1.Tier_TIER_READ, Roles: map[string]Role{"/uri": RoleURL},
	}
}

// PromptInput is the schema of a prompt's arguments, which are texts.
func PromptInput(arguments []PromptArgument) (json.RawMessage, error) {
	properties, required := map[string]any{}, []string{}
	for _, a := range arguments {
		property := map[string]any{"type": "string"}
		if a.Description != "" {
			property["description"] = a.Description
		}
		properties[a.Name] = property
		if a.Required {
			required = append(required, a.Name)
		}
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		schema["required"] = required
	}
	return json.Marshal(schema)
}

// PromptArgument is one argument of a prompt as a server listed it: hostile.
type PromptArgument struct {
	Name, Description string
	Required          bool
}
