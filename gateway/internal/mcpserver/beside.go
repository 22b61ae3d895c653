package mcpserver

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// Resources and prompts of other people's MCP servers. Reading one, or getting one, is a call of the pinned tool that stands for it, through
// the one pipeline; here its answer is only put into another form.

// besideKey is where dispatch leaves what it served for the SDK's handlers, which know nothing of servers.
type besideKey struct{}

// mayBeside reports whether the client may have what a pinned tool stands for.
func mayBeside(call *httpfront.Call, t contract.Tool) bool {
	return slices.ContainsFunc(call.Session.Beside(), func(other contract.Tool) bool { return other.Name == t.Name })
}

// beside makes the call that a request for a resource or a prompt is judged as. An answer other than its result is an error.
func (s *Server) beside(ctx context.Context, req mcp.Request, call *httpfront.Call, t contract.Tool, arguments json.RawMessage) (answer, error) {
	session, _ := req.GetSession().(*mcp.ServerSession)
	as := &mcp.CallToolRequest{Session: session, Params: &mcp.CallToolParamsRaw{Name: t.Name, Arguments: arguments}, Extra: req.GetExtra()}
	out := s.final(call, s.answer(ctx, call, tool{Tool: t}, func(until bounds) (answer, error) {
		return s.limited(ctx, as, call, tool{Tool: t}, until)
	}))
	if out.Status == envelope.OK {
		return out, nil
	}
	raw, err := out.JSON()
	said := map[string]any{}
	if err != nil || json.Unmarshal(raw, &said) != nil {
		return out, internalError(call)
	}
	code := int64(-32000)
	if out.Error != nil {
		said["code"] = out.Error.Code
		if out.Error.Code == fault.CodeName(callv1.Code_CODE_INVALID_ARGUMENT) {
			code = jsonrpc.CodeInvalidParams
		}
	}
	maps.Copy(said, metaOf(call, out))
	summary, _ := said["summary"].(string)
	data, err := json.Marshal(said)
	if err != nil {
		return out, internalError(call)
	}
	return out, &refusalError{&jsonrpc.Error{Code: code, Message: summary, Data: data}}
}

// texts are the texts of a server's result, wrapped as they are.
func (out answer) texts() (texts []string) {
	var result struct {
		Content []struct{ Kind, Text string }
	}
	if json.Unmarshal(out.Result, &result) != nil {
		return nil
	}
	for _, part := range result.Content {
		texts = append(texts, part.Text)
	}
	return texts
}

// readServers reads a resource of a server's; false: the URI is none of a server's that this client may read.
func (s *Server) readServers(ctx context.Context, req mcp.Request, call *httpfront.Call, uri string) (*mcp.ReadResourceResult, bool, error) {
	t, arguments, is := contract.ResourceCall(uri)
	if !is || !mayBeside(call, t) {
		return nil, false, nil
	}
	out, err := s.beside(ctx, req, call, t, arguments)
	if err != nil {
		return nil, true, err
	}
	// Each part is under the URI that was asked for, whatever the server calls it.
	result := &mcp.ReadResourceResult{Meta: metaOf(call, out), Contents: []*mcp.ResourceContents{}}
	for _, text := range out.texts() {
		result.Contents = append(result.Contents, &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: text})
	}
	for _, c := range out.pictures {
		if p, ok := c.(*mcp.ImageContent); ok {
			result.Contents = append(result.Contents, &mcp.ResourceContents{URI: uri, MIMEType: p.MIMEType, Blob: p.Data})
		}
	}
	return result, true, nil
}

// getServers gets a prompt of a server's; false: there is none of that name that this client may get.
func (s *Server) getServers(ctx context.Context, req mcp.Request, call *httpfront.Call, params *mcp.GetPromptParams) (*mcp.GetPromptResult, bool, error) {
	t, arguments, is := contract.PromptCall(params.Name, params.Arguments)
	if !is || !mayBeside(call, t) {
		return nil, false, nil
	}
	out, err := s.beside(ctx, req, call, t, arguments)
	if err != nil {
		return nil, true, err
	}
	// The user says it, whoever the server says does: no server puts words into a model's mouth.
	result := &mcp.GetPromptResult{Meta: metaOf(call, out), Description: contract.Told(t), Messages: []*mcp.PromptMessage{}}
	for _, text := range out.texts() {
		result.Messages = append(result.Messages, &mcp.PromptMessage{Role: "user", Content: &mcp.TextContent{Text: text}})
	}
	for _, picture := range out.pictures {
		result.Messages = append(result.Messages, &mcp.PromptMessage{Role: "user", Content: picture})
	}
	return result, true, nil
}

// addServers puts what a client may read or get of servers into a list. Nothing in it is said by a server but what was pinned.
func addServers(call *httpfront.Call, result mcp.Result) {
	for _, t := range call.Session.Beside() {
		uri, name := t.ResourcesURI(), t.PromptName()
		switch list := result.(type) {
		case *mcp.ListResourcesResult:
			if uri != "" {
				list.Resources = append(list.Resources, &mcp.Resource{
					URI: uri, Name: t.Foreign.Server, Title: "Resources of " + t.Foreign.Server, Description: "Lists the resources of the server " + t.Foreign.Server + ".",
					MIMEType: "text/plain",
				})
			}
		case *mcp.ListResourceTemplatesResult:
			if uri != "" {
				list.ResourceTemplates = append(list.ResourceTemplates, &mcp.ResourceTemplate{
					URITemplate: uri + "{+uri}", Name: t.Foreign.Server, Title: "A resource of " + t.Foreign.Server, Description: "A resource of the server " + t.Foreign.Server + ", by the server's own URI as " + uri + " lists it.",
				})
			}
		case *mcp.ListPromptsResult:
			if name != "" {
				list.Prompts = append(list.Prompts, &mcp.Prompt{Name: name, Title: t.Title, Description: contract.Told(t), Arguments: promptArguments(t.InputSchema)})
			}
		}
	}
}

// promptArguments are a pinned prompt's, sorted by name.
func promptArguments(schema map[string]any) (out []*mcp.PromptArgument) {
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		property, _ := properties[name].(map[string]any)
		about, _ := property["description"].(string)
		out = append(out, &mcp.PromptArgument{Name: name, Description: about, Required: slices.Contains(required, any(name))})
	}
	return out
}
