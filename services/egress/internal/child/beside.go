package child

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/egress/internal/toollist"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// maxShown is how many resources a list shows.
const maxShown = 1000

// prompt gets a prompt. Whom its messages claim to be by is not passed on.
func (r *run) prompt(ctx context.Context, name string, arguments []byte) (*mcp.CallToolResult, error) {
	params := &mcp.GetPromptParams{Name: name}
	if err := json.Unmarshal(arguments, &params.Arguments); err != nil {
		return nil, err
	}
	got, err := r.session.GetPrompt(ctx, params)
	if err != nil {
		return nil, err
	}
	out := &mcp.CallToolResult{InputRequests: got.InputRequests}
	for _, m := range got.Messages {
		if m != nil {
			out.Content = append(out.Content, m.Content)
		}
	}
	return out, nil
}

// resource reads a resource, or lists them where no URI is given. What the answer says that its URI is counts for nothing.
func (r *run) resource(ctx context.Context, arguments []byte) (*mcp.CallToolResult, error) {
	var params mcp.ReadResourceParams
	if err := json.Unmarshal(arguments, &params); err != nil {
		return nil, err
	}
	if params.URI == "" {
		text, err := r.resources(ctx)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, err
	}
	got, err := r.session.ReadResource(ctx, &params)
	if err != nil {
		return nil, err
	}
	out := &mcp.CallToolResult{InputRequests: got.InputRequests}
	for _, c := range got.Contents {
		if c != nil {
			c.URI = ""
		}
		out.Content = append(out.Content, &mcp.EmbeddedResource{Resource: c})
	}
	return out, nil
}

// resources lists what can be read, a line each: what a server has, and how URIs of it are made.
func (r *run) resources(ctx context.Context) (string, error) {
	var lines []string
	add := func(uri, name, description string) error {
		if len(lines) < maxShown {
			lines = append(lines, clean.Line(uri, maxURI)+"  "+clean.Line(name+": "+description, maxMessage))
		}
		return nil
	}
	err := pages("resources", func(cursor string) ([]*mcp.Resource, string, error) {
		page, err := r.session.ListResources(ctx, &mcp.ListResourcesParams{Cursor: cursor})
		if err != nil {
			return nil, "", err
		}
		return page.Resources, page.NextCursor, nil
	}, func(one *mcp.Resource) error { return add(one.URI, one.Name, one.Description) })
	// Many servers have no templates, and say so by an error.
	_ = pages("templates of resources", func(cursor string) ([]*mcp.ResourceTemplate, string, error) {
		page, err := r.session.ListResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{Cursor: cursor})
		if err != nil {
			return nil, "", err
		}
		return page.ResourceTemplates, page.NextCursor, nil
	}, func(one *mcp.ResourceTemplate) error { return add(one.URITemplate, one.Name, one.Description) })
	if err = cmp.Or(ctx.Err(), err); err != nil && len(lines) == 0 || ctx.Err() != nil {
		return "", err
	}
	if len(lines) == maxShown {
		lines = append(lines, fmt.Sprintf("[no more than %d are shown]", maxShown))
	}
	return strings.Join(lines, "\n"), nil
}

// pages reads every page of what a server lists.
func pages[T any](what string, page func(cursor string) (items []*T, next string, err error), take func(*T) error) error {
	cursor := ""
	for range maxPages {
		items, next, err := page(cursor)
		if err != nil {
			return err
		}
		for _, item := range items {
			if item == nil {
				continue
			}
			if err := take(item); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		cursor = next
	}
	return fmt.Errorf("it lists its %s on more than %d pages", what, maxPages)
}

// prompted is a prompt as it is pinned.
func prompted(p *mcp.Prompt) (downstream.Listed, error) {
	var arguments []downstream.PromptArgument
	for _, a := range p.Arguments {
		if a != nil {
			arguments = append(arguments, downstream.PromptArgument{Name: a.Name, Description: a.Description, Required: a.Required})
		}
	}
	input, err := downstream.PromptInput(arguments)
	return downstream.Listed{Kind: downstream.KindPrompt, Problem: toollist.Wrong(p.Meta), Name: p.Name, Title: p.Title, Description: p.Description, Input: input}, err
}
