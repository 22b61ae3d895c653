package mcpserver

import (
	"context"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/resource"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// Methods of prompts.
const (
	methodListPrompts = "prompts/list"
	methodGetPrompt   = "prompts/get"
)

// prompt teaches a model one of the normal ways.
type prompt struct {
	name, title, description string
	// argument is the prompt's one argument, if it has any, and about what it is.
	argument, about string
	is              func(string) bool
	// tools are those that the text names; a client that may not call one of them does not have the prompt.
	tools []string
	// text is what the user says; %s is the argument.
	text string
}

// withdrawing is said to a client that may.
const withdrawing = "\n- If the user changes their mind while it waits, call withdraw_operation with the operation_id."

var prompts = []prompt{
	{
		name: "look", title: "Look at this host", description: "What runs, what memory is free, and what is wrong. Changes nothing.",
		tools: []string{"list_services", "gpu_status", "service_info"},
		text: `Look at this GPU host and tell me how it stands.

- Call list_services and gpu_status.
- For a service that is failed or unhealthy call service_info, and say its cause.
- Say what runs, how much memory is free on each GPU, and what is wrong. Say which numbers are simulated.
- Change nothing. If something should be changed, say what, and ask me.`,
	},
	{
		name: "switch", title: "Switch to a mode", description: "Looks at the plan first, asks a human, waits, and says how it went.",
		argument: "mode_id", about: "The mode, as list_modes shows it", is: resource.IsModeID,
		tools: []string{"simulate_mode", "switch_mode", envelope.WaitTool},
		text: `Bring this host into the mode %s.

- Call simulate_mode with that mode_id. It changes nothing.
- If it does not fit, tell me result.reason and the alternatives, and stop: I choose.
- Otherwise tell me what would stop, sleep and start, and make the call in result.next with a short, honest reason. A human decides on it.
- On pending_approval nothing has happened yet: tell me what tell_user says, then call wait_operation with the operation_id, again while it stays pending.
- If the answer is that the plan changed, call simulate_mode again, and tell me what is different.
- When it is denied, stop and tell me. When it is done, say what runs now.`,
	},
	{
		name: "wait_for_approval", title: "Wait for approval", description: "Waits for a request that a human must decide on, and takes up its result.",
		argument: "operation_id", about: "The operation_id of a pending_approval answer", is: resource.IsOperationID,
		tools: []string{envelope.WaitTool},
		text: `A request of yours waits for a human: the operation %s.

- Call wait_operation with that operation_id. Once a human approved, it runs by that call, and the answer is the original tool's.
- On pending_approval tell me what tell_user says, and call wait_operation again. Do not send the request again in another form.
- On running call wait_operation again.
- When it is denied or has expired, stop and tell me. Do not look for another way.`,
	},
}

// may reports whether the client may call every tool that the prompt names.
func (p prompt) may(call *httpfront.Call) bool {
	return !slices.ContainsFunc(p.tools, func(tool string) bool { return !call.Session.May(tool) })
}

// hasPrompt reports whether prompts/list shows the client a prompt of that name.
func hasPrompt(call *httpfront.Call, name string) bool {
	if t, _, is := contract.PromptCall(name, nil); is {
		return mayBeside(call, t)
	}
	return slices.ContainsFunc(prompts, func(p prompt) bool { return p.name == name && p.may(call) })
}

// registerPrompts puts the prompts on a server.
func registerPrompts(sdk *mcp.Server) {
	for _, p := range prompts {
		listed := &mcp.Prompt{Name: p.name, Title: p.title, Description: p.description}
		if p.argument != "" {
			listed.Arguments = []*mcp.PromptArgument{{Name: p.argument, Description: p.about, Required: true}}
		}
		sdk.AddPrompt(listed, func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			if served, ok := ctx.Value(besideKey{}).(*mcp.GetPromptResult); ok {
				return served, nil
			}
			return p.get(callOf(req), req.Params.Arguments)
		})
	}
}

func (p prompt) get(call *httpfront.Call, arguments map[string]string) (*mcp.GetPromptResult, error) {
	text, said := p.text, arguments[p.argument]
	for name := range arguments {
		if name != p.argument {
			return nil, refuse(call, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the prompt has no such argument", fault.WithField("arguments")))
		}
	}
	if p.argument != "" {
		if !p.is(said) {
			return nil, refuse(call, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, p.argument+" is required, and must be an id", fault.WithField(p.argument)))
		}
		text = strings.Replace(text, "%s", said, 1)
	}
	if slices.Contains(p.tools, envelope.WaitTool) && call.Session.May("withdraw_operation") {
		text += withdrawing
	}
	return &mcp.GetPromptResult{
		Description: p.description, Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}},
	}, nil
}

// prompt serves a message about prompts. One that names a tool which the client may not call is answered as one that is not there.
func (s *Server) prompt(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call) (mcp.Result, error) {
	has := func(name string) bool {
		return slices.ContainsFunc(prompts, func(p prompt) bool { return p.name == name && p.may(call) })
	}
	if params, ok := req.GetParams().(*mcp.GetPromptParams); ok && !has(params.Name) {
		if served, is, err := s.getServers(ctx, req, call, params); err != nil {
			return nil, err
		} else if is {
			params.Name, params.Arguments = prompts[0].name, nil // the SDK needs to find a handler
			return next(context.WithValue(ctx, besideKey{}, served), method, req)
		}
		return nil, refuse(call, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "there is no such prompt", fault.WithField("name")))
	}
	if method == methodListPrompts {
		s.conf.Relay.Refresh(ctx, call.Session, call.Caller)
	}
	result, err := next(ctx, method, req)
	if list, ok := result.(*mcp.ListPromptsResult); ok && err == nil {
		list.Prompts = slices.DeleteFunc(list.Prompts, func(p *mcp.Prompt) bool { return !has(p.Name) })
		addServers(call, list)
	}
	return result, err
}
