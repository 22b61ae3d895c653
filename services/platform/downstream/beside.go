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
	// AnswerQuestion answers what a server asked during a call. Agents call it as a tool; a tool of the server's own of that name is refused.
	AnswerQuestion = "answer_question"
)

// Answers reports whether a pinned name is that of answering the server's questions.
func (e Entry) Answers(pinned string) bool { return e.Elicitation && pinned == AnswerQuestion }

// Kind is what a server listed.
type Kind string

// The kinds. Of resources only that there are some is listed: what each of them is called is nothing that a human signs.
const (
	KindTool      Kind = ""
	KindPrompt    Kind = "prompt"
	KindResources Kind = "resources"
	KindAnswer    Kind = "answer"
)

// PinnedName is what the entry of the lock is called.
func (l Listed) PinnedName() string {
	switch l.Kind {
	case KindPrompt:
		return PromptPrefix + l.Name
	case KindResources:
		return ReadResource
	case KindAnswer:
		return AnswerQuestion
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

// answerer is how answering a server's questions is pinned. What the answer has to hold the question says, and egress checks.
func answerer() Tool {
	return Tool{
		Name: AnswerQuestion, Title: "Answer a question of the server",
		Description: "Answers what the server asked during a call, and returns what that call came to. Answer with what the user told you, or decline.",
		Input: json.RawMessage(`{"additionalProperties":false,"properties":{"action":{"enum":["accept","decline","cancel"],"type":"string"},` +
			`"content":{"additionalProperties":{"type":["string","number","boolean","array"]},"description":"With accept: what the form wants","type":"object"},` +
			`"question":{"description":"As the call named it","maxLength":16,"type":"string"}},"required":["action","question"],"type":"object"}`),
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
