package diagnostic

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// asking are the tools that need something of the client first. They say what in their answer, as in 2026-07-28; clients of
// older revisions are asked by the SDK, with requests of the server's own.
func asking() []tool {
	seal := newSeal()
	sample := func(prompt string) *mcp.CreateMessageParams {
		return &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{{Role: "user", Content: text(prompt)}}}
	}
	name := func() *mcp.ElicitParams { return form("What is your name?", "name", "string") }
	confirmed := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if req.Params.RequestState == "" {
			return seal.ask("confirm", "confirm", form("Please confirm", "ok", "boolean")), nil
		}
		if !seal.genuine(req.Params.RequestState) {
			return nil, foreignState()
		}
		if _, ok := accepted(req.Params.InputResponses, "confirm"); !ok {
			return seal.ask("confirm", "confirm", form("Please confirm", "ok", "boolean")), nil
		}
		return answer(text("state-ok: confirmed")), nil
	}
	return []tool{
		takes(does("test_sampling", "Has the client's model answer a prompt", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if said, ok := sampled(req.Params.InputResponses, "answer"); ok {
				return answer(text("LLM response: " + said)), nil
			}
			return ask("answer", sample(argument(req, "prompt"))), nil
		}), `{"type": "object", "properties": {"prompt": {"type": "string", "description": "What to ask"}}, "required": ["prompt"]}`),
		takes(does("test_elicitation", "Asks the user", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if said := elicited(req.Params.InputResponses, "user"); said != nil {
				return answer(text("User response: " + describe(said))), nil
			}
			return ask("user", &mcp.ElicitParams{Message: argument(req, "message"), RequestedSchema: &jsonschema.Schema{
				Type: "object", Required: []string{"username", "email"}, Properties: map[string]*jsonschema.Schema{
					"username": {Type: "string", Description: "The user's name"},
					"email":    {Type: "string", Description: "The user's address"},
				},
			}}), nil
		}), `{"type": "object", "properties": {"message": {"type": "string", "description": "What to show"}}, "required": ["message"]}`),
		elicits("test_elicitation_sep1034_defaults", "Asks with a default for every kind of value", `{"type": "object", "properties": {
			"name": {"type": "string", "description": "A name", "default": "John Doe"},
			"age": {"type": "integer", "description": "An age", "default": 30},
			"score": {"type": "number", "description": "A score", "default": 95.5},
			"status": {"type": "string", "description": "A state", "enum": ["active", "inactive", "pending"], "default": "active"},
			"verified": {"type": "boolean", "description": "Whether it was checked", "default": true}
		}}`),
		elicits("test_elicitation_sep1330_enums", "Asks with every kind of choice", `{"type": "object", "properties": {
			"untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
			"titledSingle": {"type": "string", "oneOf": [
				{"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}, {"const": "value3", "title": "Third Option"}]},
			"legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
			"untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
			"titledMulti": {"type": "array", "items": {"anyOf": [
				{"const": "value1", "title": "First Choice"}, {"const": "value2", "title": "Second Choice"}, {"const": "value3", "title": "Third Choice"}]}}
		}}`),
		does("test_input_required_result_elicitation", "Asks for a name", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if said, ok := accepted(req.Params.InputResponses, "user_name"); ok && word(said["name"]) != "" {
				return answer(text("Hello, " + word(said["name"]) + "!")), nil
			}
			return ask("user_name", name()), nil
		}),
		does("test_input_required_result_sampling", "Asks the client's model", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if said, ok := sampled(req.Params.InputResponses, "capital_question"); ok {
				return answer(text("The model said: " + said)), nil
			}
			return ask("capital_question", sample("What is the capital of France?")), nil
		}),
		does("test_input_required_result_list_roots", "Asks for the client's roots", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if roots, ok := req.Params.InputResponses["client_roots"].(*mcp.ListRootsResult); ok {
				return answer(text(describeRoots(roots))), nil
			}
			return ask("client_roots", &mcp.ListRootsParams{}), nil
		}),
		does("test_input_required_result_request_state", "Asks, and wants its state back", confirmed),
		does("test_input_required_result_tampered_state", "Asks, and refuses a state that is not its own", confirmed),
		does("test_input_required_result_multiple_inputs", "Asks for three things at once", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			said, named := accepted(req.Params.InputResponses, "user_name")
			greeting, greeted := sampled(req.Params.InputResponses, "greeting")
			roots, rooted := req.Params.InputResponses["client_roots"].(*mcp.ListRootsResult)
			if named && greeted && rooted && seal.genuine(req.Params.RequestState) {
				return answer(text(greeting + " " + word(said["name"]) + ", " + describeRoots(roots))), nil
			}
			return &mcp.CallToolResult{RequestState: seal.close("three"), InputRequests: mcp.InputRequestMap{
				"user_name": name(), "greeting": sample("Generate a greeting"), "client_roots": &mcp.ListRootsParams{},
			}}, nil
		}),
		does("test_input_required_result_multi_round", "Asks twice", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			state, ok := seal.open(req.Params.RequestState)
			switch {
			case req.Params.RequestState == "":
				return seal.ask("step1", "step1", form("Step 1: What is your name?", "name", "string")), nil
			case !ok:
				return nil, foreignState()
			case state == "step1":
				said, _ := accepted(req.Params.InputResponses, "step1")
				return seal.ask("step2 "+word(said["name"]), "step2", form("Step 2: What is your favorite color?", "color", "string")), nil
			default:
				said, _ := accepted(req.Params.InputResponses, "step2")
				return answer(text(strings.TrimPrefix(state, "step2 ") + " likes " + word(said["color"]))), nil
			}
		}),
		does("test_input_required_result_capabilities", "Asks for what the client can give", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			requests := mcp.InputRequestMap{}
			if declared := req.ClientCapabilities(); declared != nil {
				if declared.Elicitation != nil {
					requests["user_name"] = name()
				}
				if declared.Sampling != nil {
					requests["greeting"] = sample("Generate a greeting")
				}
				if declared.RootsV2 != nil {
					requests["client_roots"] = &mcp.ListRootsParams{}
				}
			}
			if len(requests) == 0 || len(req.Params.InputResponses) > 0 {
				return answer(text("Nothing more is needed.")), nil
			}
			return &mcp.CallToolResult{InputRequests: requests}, nil
		}),
	}
}

// elicits makes a tool that shows the user a form and repeats what came back.
func elicits(name, description, schema string) tool {
	return does(name, description, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if said := elicited(req.Params.InputResponses, "form"); said != nil {
			return answer(text("Elicitation completed: " + describe(said))), nil
		}
		return ask("form", &mcp.ElicitParams{Message: description, RequestedSchema: json.RawMessage(schema)}), nil
	})
}

func ask(key string, request mcp.InputRequest) *mcp.CallToolResult {
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{key: request}}
}

// form asks the user for one value.
func form(message, field, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: &jsonschema.Schema{
		Type: "object", Properties: map[string]*jsonschema.Schema{field: {Type: kind}}, Required: []string{field},
	}}
}

func elicited(responses mcp.InputResponseMap, key string) *mcp.ElicitResult {
	said, _ := responses[key].(*mcp.ElicitResult)
	return said
}

// accepted returns what a user filled in, unless the form was refused.
func accepted(responses mcp.InputResponseMap, key string) (map[string]any, bool) {
	said := elicited(responses, key)
	if said == nil || said.Action != "accept" {
		return nil, false
	}
	return said.Content, true
}

// sampled returns the first text of what the client's model said.
func sampled(responses mcp.InputResponseMap, key string) (string, bool) {
	said, ok := responses[key].(*mcp.CreateMessageWithToolsResult)
	if !ok {
		return "", false
	}
	for _, c := range said.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			return t.Text, true
		}
	}
	return "", false
}

func describe(said *mcp.ElicitResult) string {
	return fmt.Sprintf("action=%s, content=%s", said.Action, encode(said.Content))
}

func describeRoots(roots *mcp.ListRootsResult) string {
	uris := make([]string, 0, len(roots.Roots))
	for _, r := range roots.Roots {
		uris = append(uris, r.URI)
	}
	return fmt.Sprintf("%d root(s): %s", len(uris), strings.Join(uris, ", "))
}

// argument returns a string among the arguments of a call.
func argument(req *mcp.CallToolRequest, name string) string {
	var arguments map[string]any
	if json.Unmarshal(req.Params.Arguments, &arguments) != nil {
		return ""
	}
	return word(arguments[name])
}

func word(v any) string {
	s, _ := v.(string)
	return s
}

// seal marks request states as this process's own.
type seal struct{ key []byte }

func newSeal() seal { return seal{key: []byte(rand.Text())} }

// ask asks for one input and gives out a state with it.
func (s seal) ask(state, key string, request mcp.InputRequest) *mcp.CallToolResult {
	out := ask(key, request)
	out.RequestState = s.close(state)
	return out
}

// foreignState refuses a state that this process did not give out, or that was changed since.
func foreignState() error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "The requestState is not this server's."}
}

func (s seal) close(state string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(state))
	return hex.EncodeToString(mac.Sum(nil)) + "." + state
}

func (s seal) open(sealed string) (string, bool) {
	_, state, _ := strings.Cut(sealed, ".")
	return state, hmac.Equal([]byte(sealed), []byte(s.close(state)))
}

func (s seal) genuine(sealed string) bool {
	_, ok := s.open(sealed)
	return ok
}
