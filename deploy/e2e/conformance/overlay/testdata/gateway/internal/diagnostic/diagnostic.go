// Package diagnostic holds what the official MCP conformance suite looks for on a server that it tests and no product has a
// use for: tools that answer with a picture, prompts, a resource with a fixed text. No shipped program has
// it; everything around it in a build for the suite is the product.
//
// It trusts its caller, the suite, with nothing: it touches neither the vault nor the executor, and keeps no state but the
// key of its request states and the calls that became tasks. What each fixture is called and answers is said by the
// descriptions of the suite's scenarios (@modelcontextprotocol/conformance 0.2.0-alpha.12 and 0.1.16, and the
// everything-server in the conformance folder of the official Go SDK v1.8.0, MIT).
package diagnostic

import (
	"context"
	"encoding/base64"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Prepare changes the options of a server so that it says what Register adds to it.
func Prepare(options *mcp.ServerOptions) {
	if options.Capabilities == nil {
		options.Capabilities = &mcp.ServerCapabilities{}
	}
	c := options.Capabilities
	c.Logging = &mcp.LoggingCapabilities{}
	c.Tools = &mcp.ToolCapabilities{ListChanged: true}
	c.Prompts = &mcp.PromptCapabilities{ListChanged: true}
}

// Register puts every tool, prompt and resource of the suite on a server that was made with prepared options.
func Register(server *mcp.Server) {
	for _, t := range tools() {
		server.AddTool(t.Tool, t.handle)
	}
	addTriggers(server)
	addPrompts(server)
	addResources(server)
}

// Serves reports whether a message is for this package: the product's own handling of it, which knows no such tool, prompt
// or resource, must then be left out.
func Serves(method string, req mcp.Request) bool {
	switch method {
	case "prompts/list", "prompts/get", "logging/setLevel":
		return true
	}
	switch params := req.GetParams().(type) {
	case *mcp.CallToolParamsRaw:
		return strings.HasPrefix(params.Name, "test_") || params.Name == schemaTool || params.Name == greetTool || works()[params.Name] != nil
	case *mcp.ReadResourceParams:
		return isFixture(params.URI)
	case *mcp.SubscribeParams:
		return isFixture(params.URI)
	case *mcp.UnsubscribeParams:
		return isFixture(params.URI)
	}
	return false
}

// Complete answers a completion/complete for one of this package's prompts; false: it is for somebody else.
func Complete(params *mcp.CompleteParams) (*mcp.CompleteResult, bool) {
	if params.Ref == nil || params.Ref.Type != "ref/prompt" {
		return nil, false
	}
	values := []string{}
	for _, known := range []string{"test", "text", "tool"} {
		if strings.HasPrefix(known, params.Argument.Value) {
			values = append(values, known)
		}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: values, Total: len(values)}}, true
}

// scheme is of the URIs of this package's resources.
const scheme = "test://"

// missing is the URI that the suite reads to see it refused: by the product.
const missing = scheme + "nonexistent-resource-for-conformance-testing"

func isFixture(uri string) bool { return strings.HasPrefix(uri, scheme) && uri != missing }

func addResources(server *mcp.Server) {
	read := func(contents func(uri string) *mcp.ResourceContents) mcp.ResourceHandler {
		return func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents(req.Params.URI)}}, nil
		}
	}
	for _, r := range []struct {
		name, description, media string
		contents                 func(uri string) *mcp.ResourceContents
	}{
		{"static-text", "A text that never changes", "text/plain", func(uri string) *mcp.ResourceContents {
			return &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "This is the content of the static text resource."}
		}},
		{"static-binary", "A picture of one pixel", "image/png", func(uri string) *mcp.ResourceContents {
			return &mcp.ResourceContents{URI: uri, MIMEType: "image/png", Blob: pixel()}
		}},
		{"watched-resource", "A text to subscribe to", "text/plain", func(uri string) *mcp.ResourceContents {
			return &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "Nothing has happened."}
		}},
	} {
		server.AddResource(&mcp.Resource{URI: scheme + r.name, Name: r.name, Description: r.description, MIMEType: r.media}, read(r.contents))
	}
	server.AddResourceTemplate(
		&mcp.ResourceTemplate{Name: "template", Description: "Repeats an id", MIMEType: "application/json", URITemplate: scheme + "template/{id}/data"},
		read(func(uri string) *mcp.ResourceContents {
			id := strings.TrimSuffix(strings.TrimPrefix(uri, scheme+"template/"), "/data")
			return &mcp.ResourceContents{URI: uri, MIMEType: "application/json",
				Text: string(encode(map[string]any{"id": id, "templateTest": true, "data": "Data for ID: " + id}))}
		}))
}

func addPrompts(server *mcp.Server) {
	argument := func(name, description string) *mcp.PromptArgument {
		return &mcp.PromptArgument{Name: name, Description: description, Required: true}
	}
	for _, p := range []struct {
		mcp.Prompt
		contents func(arguments map[string]string) []mcp.Content
	}{
		{simplePrompt(), func(map[string]string) []mcp.Content {
			return []mcp.Content{text("This is a simple prompt for testing.")}
		}},
		{mcp.Prompt{Name: "test_prompt_with_arguments", Description: "Repeats two arguments",
			Arguments: []*mcp.PromptArgument{argument("arg1", "The first"), argument("arg2", "The second")}},
			func(a map[string]string) []mcp.Content {
				return []mcp.Content{text("Prompt with arguments: arg1='" + a["arg1"] + "', arg2='" + a["arg2"] + "'")}
			}},
		{mcp.Prompt{Name: "test_prompt_with_embedded_resource", Description: "Has a resource in it",
			Arguments: []*mcp.PromptArgument{argument("resourceUri", "What the resource is called")}},
			func(a map[string]string) []mcp.Content {
				return []mcp.Content{
					embedded(a["resourceUri"], "Embedded resource content for testing."),
					text("Please process the embedded resource above."),
				}
			}},
		{mcp.Prompt{Name: "test_prompt_with_image", Description: "Has a picture in it"}, func(map[string]string) []mcp.Content {
			return []mcp.Content{picture(), text("Please analyze the image above.")}
		}},
	} {
		server.AddPrompt(&p.Prompt, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return prompt(p.contents(req.Params.Arguments)...), nil
		})
	}
	server.AddPrompt(&mcp.Prompt{Name: "test_input_required_result_prompt", Description: "Asks for its context first"},
		func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			if given, ok := accepted(req.Params.InputResponses, "user_context"); ok {
				return prompt(text("Context: " + word(given["context"]))), nil
			}
			return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{
				"user_context": form("What context should the prompt use?", "context", "string"),
			}}, nil
		})
}

func simplePrompt() mcp.Prompt {
	return mcp.Prompt{Name: "test_simple_prompt", Description: "Has no arguments"}
}

func prompt(contents ...mcp.Content) *mcp.GetPromptResult {
	out := new(mcp.GetPromptResult)
	for _, c := range contents {
		out.Messages = append(out.Messages, &mcp.PromptMessage{Role: "user", Content: c})
	}
	return out
}

func text(s string) *mcp.TextContent { return &mcp.TextContent{Text: s} }

func picture() *mcp.ImageContent { return &mcp.ImageContent{Data: pixel(), MIMEType: "image/png"} }

func embedded(uri, s string) *mcp.EmbeddedResource {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: s}}
}

// pixel is a PNG picture of one red pixel.
func pixel() []byte {
	return decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
}

// silence is a WAV recording of nothing.
func silence() []byte {
	return decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=")
}

func decode(s string) []byte {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		panic(err) // a constant of this file
	}
	return b
}
