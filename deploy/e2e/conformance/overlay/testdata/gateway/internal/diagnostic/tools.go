package diagnostic

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tools whose names do not begin with test_, beside those that become tasks.
const (
	schemaTool = "json_schema_2020_12_tool"
	greetTool  = "greet"
)

// pause is between two notifications of one call.
const pause = 50 * time.Millisecond

// tool is one of the suite's tools.
type tool struct {
	*mcp.Tool
	handle mcp.ToolHandler
}

func tools() []tool {
	all := []tool{
		says("test_simple_text", "Answers with a text", text("This is a simple text response for testing.")),
		says("test_image_content", "Answers with a picture", picture()),
		says("test_audio_content", "Answers with a recording", &mcp.AudioContent{Data: silence(), MIMEType: "audio/wav"}),
		says("test_embedded_resource", "Answers with a resource", embedded(scheme+"embedded-resource", "This is an embedded resource content.")),
		says("test_multiple_content_types", "Answers with a text, a picture and a resource",
			text("Multiple content types test:"), picture(), embedded(scheme+"mixed-content-resource", "One of three.")),
		does("test_error_handling", "Fails", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			out := answer(text("This tool intentionally returns an error for testing"))
			out.IsError = true
			return out, nil
		}),
		does("test_tool_with_logging", "Logs three lines while it runs", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for _, line := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
				if err := log(ctx, req, line); err != nil {
					return nil, err
				}
				time.Sleep(pause)
			}
			return answer(text("Three lines were logged.")), nil
		}),
		does("test_logging_tool", "Logs one line, which only those hear who asked for it", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if err := log(ctx, req, "A line for those who asked"); err != nil {
				return nil, err
			}
			return answer(text("A line was logged.")), nil
		}),
		does("test_tool_with_progress", "Reports progress while it runs", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			token := req.Params.GetProgressToken()
			for _, percent := range []float64{0, 50, 100} {
				if token != nil {
					note := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: percent, Total: 100}
					if err := req.Session.NotifyProgress(ctx, note); err != nil {
						return nil, err
					}
				}
				time.Sleep(pause)
			}
			return answer(text(fmt.Sprint(token))), nil
		}),
		does(greetTool, "Greets at once, and never becomes a task", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return answer(text("Hello, " + argument(req, "name") + "!")), nil
		}),
		says("test_streaming_elicitation", "Answers without asking anybody", text("Nothing was asked.")),
		does("test_missing_capability", "Needs a client that can sample", needsSampling),
		does("test_reconnection", "Ends its stream before it answers", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if extra := req.GetExtra(); extra != nil && extra.CloseSSEStream != nil {
				extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: pause})
			}
			time.Sleep(2 * pause)
			return answer(text("The stream was closed and the call went on.")), nil
		}),
		takes(says(schemaTool, "Has a schema with every kind of keyword", text("The arguments were taken.")), schema),
		takes(says("test_x_mcp_header", "Has an argument that is repeated in a header", text("The region was taken.")), `{
			"type": "object",
			"properties": {
				"region": {"type": "string", "description": "Repeated in Mcp-Param-Region", "x-mcp-header": "Region"},
				"level": {"type": "integer", "description": "Repeated nowhere"}
			}
		}`),
	}
	return append(append(all, asking()...), jobTools()...)
}

// schema has what the 2020-12 scenario wants to see again, keyword for keyword.
const schema = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
	"properties": {
		"name": {"type": "string"},
		"address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]},
		"phone": {"type": "string"},
		"email": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
	"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
	"then": {"required": ["phone"]},
	"else": {"required": ["email"]},
	"additionalProperties": false
}`

// does makes a tool without arguments.
func does(name, description string, handle mcp.ToolHandler) tool {
	return takes(tool{&mcp.Tool{Name: name, Description: description}, handle}, `{"type": "object"}`)
}

// says makes a tool that always answers with the same contents.
func says(name, description string, contents ...mcp.Content) tool {
	return does(name, description, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return answer(contents...), nil
	})
}

func takes(t tool, schema string) tool {
	t.InputSchema = json.RawMessage(schema)
	return t
}

func answer(contents ...mcp.Content) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: contents}
}

func log(ctx context.Context, req *mcp.CallToolRequest, line string) error {
	return req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Logger: "diagnostic", Data: line})
}

// needsSampling refuses clients that did not declare what it would need.
func needsSampling(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if declared := req.ClientCapabilities(); declared != nil && declared.Sampling != nil {
		return answer(text("The client can sample.")), nil
	}
	return nil, lacks(&mcp.ClientCapabilities{Sampling: &mcp.SamplingCapabilities{}})
}

// lacks refuses a client that did not declare what a tool needs.
func lacks(needed *mcp.ClientCapabilities) error {
	return &jsonrpc.Error{
		Code: mcp.CodeMissingRequiredClientCapabilities, Message: "This tool needs what the client did not declare.",
		Data: encode(mcp.MissingRequiredClientCapabilityData{RequiredCapabilities: needed}),
	}
}

// addTriggers adds the tools after which the lists of tools and of prompts count as changed: what is added again replaces
// itself, and the lists stay as they were.
func addTriggers(server *mcp.Server) {
	trigger := func(name, description string, change func()) {
		t := does(name, description, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			change()
			return answer(text("The list was touched.")), nil
		})
		server.AddTool(t.Tool, t.handle)
	}
	trigger("test_trigger_tool_change", "Touches the list of tools", func() {
		t := tools()[0]
		server.AddTool(t.Tool, t.handle)
	})
	trigger("test_trigger_prompt_change", "Touches the list of prompts", func() { addPrompts(server) })
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a value of this package's own making
	}
	return b
}
