package child

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/egress/internal/toollist"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/validator"
)

// Bounds of what a server lists.
const (
	maxPages   = 100
	maxTools   = 1000
	maxListing = 4 << 20
)

// allows reports why a tool is not called: only what was pinned and is listed as it was pinned, is.
func (r *run) allows(ctx context.Context, tool string) error {
	m := r.manager
	for {
		m.mu.Lock()
		// A server need not say that its tools changed. One that is busy with another call may not answer in time, and would be ended.
		if r.comparing == nil && r.calls == 1 && time.Since(r.listed) >= relist {
			r.compareAgain(0)
		}
		comparing, presence := r.comparing, r.instance.tools[tool]
		m.mu.Unlock()
		if comparing == nil {
			return presence.refusal(r.server.Entry.ID, tool)
		}
		select {
		case <-comparing:
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p Presence) refusal(server, tool string) error {
	switch p {
	case Present:
		return nil
	case Absent:
		return fmt.Errorf("it no longer has the tool %q", tool)
	case Changed:
		return fmt.Errorf("its tool %q is not what was accepted: `durward server diff %s` shows how", tool, server)
	default:
		return fmt.Errorf("nobody accepted a tool %q", tool)
	}
}

// toolsChanged has the tools compared anew, and calls wait for it.
func (r *run) toolsChanged() {
	r.manager.mu.Lock()
	defer r.manager.mu.Unlock()
	if r.comparing != nil {
		r.again = true
		return
	}
	r.compareAgain(between)
}

// compareAgain has the tools compared after a while, and calls wait for it. The caller holds the manager's mu.
func (r *run) compareAgain(after time.Duration) {
	r.comparing = make(chan struct{})
	go func() {
		select {
		case <-r.ctx.Done():
			return
		case <-time.After(after):
		}
		if err := r.compare(); err != nil {
			r.end(err)
		}
	}()
}

// compare lists the server's tools and compares them with what was pinned, until they stay as they are. comparing is set.
func (r *run) compare() error {
	m := r.manager
	for {
		ctx, cancel := context.WithTimeoutCause(r.ctx, r.timeouts.Ready, fmt.Errorf("it did not list its tools within %s", r.timeouts.Ready))
		tools, err := r.compared(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel()
		if err != nil {
			return err
		}
		m.mu.Lock()
		again := r.again
		r.again, r.instance.tools, r.listed = false, tools, time.Now()
		if !again {
			close(r.comparing)
			r.comparing = nil
		}
		m.mu.Unlock()
		if !again {
			return nil
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(between):
		}
	}
}

// compared says what became of each pinned tool. What a human gave it, a tier and roles, is nothing that a server lists.
func (r *run) compared(ctx context.Context) (map[string]Presence, error) {
	if len(r.server.Tools) == 0 {
		return map[string]Presence{}, nil
	}
	listed, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	id := r.server.Entry.ID
	tools := make(map[string]Presence, len(r.server.Tools))
	digests := make(map[string]downstream.Tool, len(r.server.Tools))
	var known []downstream.Listed
	for _, pinned := range r.server.Tools {
		tools[pinned.Name], digests[pinned.Name] = Absent, pinned
	}
	for _, tool := range listed {
		if name := tool.PinnedName(); tools[name] != "" { // two of one name are both known, so that Pin leaves both out
			tools[name] = Changed
			known = append(known, tool)
		}
	}
	now, _ := downstream.Pin(id, r.session.InitializeResult().Instructions, known)
	for _, tool := range now.Tools {
		pinned := digests[tool.Name]
		tool.Tier, tool.Roles = pinned.Tier, pinned.Roles
		if tool.Digest(id) == pinned.Digest(id) {
			tools[tool.Name] = Present
		}
	}
	return tools, nil
}

// list reads every page of what a server lists, within the bounds: its tools, and what its entry offers beside them.
func (r *run) list(ctx context.Context) ([]downstream.Listed, error) {
	listed := []downstream.Listed{}
	c := r.session.InitializeResult().Capabilities
	if c == nil {
		return listed, nil
	}
	size, number := 0, map[downstream.Kind]int{}
	add := func(one downstream.Listed) error {
		if number[one.Kind]++; one.Problem != "" && one.Name == "" {
			one.Name = fmt.Sprintf("number %d", number[one.Kind])
		}
		size += len(one.Name) + len(one.Title) + len(one.Description) + len(one.Input) + len(one.Output) + len(one.Annotations)
		if size > maxListing || len(listed) == maxTools {
			return fmt.Errorf("it lists more than %d tools, or %d MiB of them", maxTools, maxListing>>20)
		}
		listed = append(listed, one)
		return nil
	}
	if c.Tools != nil {
		err := pages("tools", func(cursor string) ([]*mcp.Tool, string, error) {
			page, err := r.session.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
			if err != nil {
				return nil, "", r.reason(err)
			}
			return page.Tools, page.NextCursor, nil
		}, func(tool *mcp.Tool) error {
			return add(downstream.Listed{
				Problem: toollist.Wrong(tool.Meta), Name: tool.Name, Title: tool.Title, Description: tool.Description,
				Input: written(tool.InputSchema), Output: written(tool.OutputSchema), Annotations: written(tool.Annotations),
			})
		})
		if err != nil {
			return nil, err
		}
	}
	if r.server.Entry.Prompts && c.Prompts != nil {
		err := pages("prompts", func(cursor string) ([]*mcp.Prompt, string, error) {
			page, err := r.session.ListPrompts(ctx, &mcp.ListPromptsParams{Cursor: cursor})
			if err != nil {
				return nil, "", r.reason(err)
			}
			return page.Prompts, page.NextCursor, nil
		}, func(p *mcp.Prompt) error {
			one, err := prompted(p)
			if err != nil {
				return err
			}
			return add(one)
		})
		if err != nil {
			return nil, err
		}
	}
	if r.server.Entry.Elicitation {
		if slices.ContainsFunc(listed, func(one downstream.Listed) bool { return one.PinnedName() == downstream.AnswerQuestion }) {
			return nil, fmt.Errorf("it lists a tool that has the name of ours, %s, and no question of its could be answered", downstream.AnswerQuestion)
		}
		if err := add(downstream.Listed{Kind: downstream.KindAnswer}); err != nil {
			return nil, err
		}
	}
	if r.server.Entry.Resources && c.Resources != nil {
		if err := add(downstream.Listed{Kind: downstream.KindResources}); err != nil {
			return nil, err
		}
	}
	return listed, nil
}

// written is what the SDK read of a member, as JSON; nothing for one that is not there.
func written(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil || string(raw) == "null" {
		return nil
	}
	return raw
}

// ListTools asks a server in force on another host for what it lists, with what its calls have, for a human who decides on it.
func (m *Manager) ListTools(ctx context.Context, server string) (*downstream.Listing, error) {
	m.mu.Lock()
	pinned, frozen := m.servers[server], m.frozen
	m.mu.Unlock()
	switch {
	case frozen:
		return nil, &Error{Server: server, Text: errFrozen.Error()}
	case pinned == nil || pinned.Entry.URL == "":
		return nil, &Error{Server: server, Text: "none of that name that is in force is on another host"}
	}
	return List(ctx, Config{Remote: m.Remote, Bearer: m.Bearer}, *pinned)
}

// List starts a server for nobody, and returns what it says of itself: hostile.
func List(ctx context.Context, config Config, server downstream.Pinned) (*downstream.Listing, error) {
	m := New(config)
	defer m.Close()
	server.Tools = nil
	m.Set([]downstream.Pinned{server})
	id := server.Entry.ID
	said := func(err error) error {
		for _, log := range m.Logs(id) {
			if text := clean.Line(log.Text[max(0, len(log.Text)-maxMessage):], maxMessage); text != "" {
				err = fmt.Errorf("%w; it wrote: %s", err, text)
			}
		}
		return wrap(ctx, id, err, false)
	}
	r, err := m.enter(ctx, "", id)
	if err != nil {
		return nil, said(err)
	}
	defer m.leave(r)
	tools, err := r.list(ctx)
	if err != nil {
		return nil, said(err)
	}
	for i := range tools {
		tools[i].Problem = cmp.Or(tools[i].Problem, problem(tools[i]))
	}
	hello := r.session.InitializeResult()
	out := &downstream.Listing{Instructions: hello.Instructions, Tools: tools}
	if hello.ServerInfo != nil {
		out.Name, out.Version = clean.Line(hello.ServerInfo.Name, maxName), clean.Line(hello.ServerInfo.Version, maxName)
	}
	return out, nil
}

// problem is why a tool's schemas cannot be compiled, or "". It is told here, since the program that opens a signing key compiles none.
func problem(l downstream.Listed) string {
	if _, err := downstream.Compile(l.Input, validator.Compile); err != nil && len(l.Input) > 0 {
		return err.Error()
	}
	if _, err := downstream.Compile(l.Output, validator.Compile); err != nil && len(l.Output) > 0 {
		return "its results: " + err.Error()
	}
	return ""
}
