package mcpserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/refusal"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Tools of other people's MCP servers. What they are a human pinned, and can change at any time: so they are not registered with the SDK,
// but listed and called beside what is.

// mostListed is the most that tools/list holds, in bytes of JSON: a model reads it whole. What does not fit find_tools finds.
const mostListed = 15_800 // what is around the list takes the rest of 16,000

// served is a tool that agents may call, pinned or not.
func (s *Server) served(name string) (tool, bool) {
	if t, ok := s.tools[name]; ok {
		return t, true
	}
	t, ok := s.conf.Relay.Pinned(name)
	return tool{Tool: t}, ok && t.IsTool()
}

// callPinned serves a tools/call of a tool that the SDK does not know.
func (s *Server) callPinned(ctx context.Context, req *mcp.CallToolRequest, call *httpfront.Call, t tool) (mcp.Result, error) {
	return taskOr(ctx, func(ctx context.Context, _ string, _ mcp.Request) (mcp.Result, error) {
		result, err := s.call(ctx, req, t)
		if err != nil || call.Era == httpfront.Stateful {
			return result, err
		}
		return completed{result}, nil
	}, "tools/call", req)
}

// finders find tools and describe them: they are listed where a list may leave some out. lesser are tools of ours that make room first.
var (
	finders = []string{"find_tools", "describe_tool"}
	lesser  = []string{"security_report", "tokenize"}
)

// list makes of the list of all tools of ours the one for a session: with the pinned tools that it may call, as many as fit, and then
// with what finds the others. A client with pages gets all of them, in pages.
func (s *Server) list(ctx context.Context, call *httpfront.Call, all *mcp.ListToolsResult, cursor string) (*mcp.ListToolsResult, error) {
	var pinned []tool
	about := call.Session.About()
	may := about.Tools
	for _, name := range may {
		if t, ok := s.served(name); ok && t.Foreign != nil {
			pinned = append(pinned, t)
		}
	}
	paged := len(pinned) > 0 && slices.Contains(s.conf.Pages, call.Session.Principal())
	if cursor != "" && !paged {
		return nil, s.noPage(ctx, call, "The list has one page: ask for it without a cursor.")
	}
	out := *all
	// A tier lowered since the vault said what the client may call counts at once. What a build for the conformance suite adds is not ours.
	out.Tools = slices.DeleteFunc(slices.Clone(all.Tools), func(t *mcp.Tool) bool {
		ours, ok := s.tools[t.Name]
		return ok && (ours.Tier > about.Ceiling || !slices.Contains(may, t.Name))
	})
	if len(pinned) == 0 {
		without(&out, finders...)
		return &out, nil
	}
	// Most clients let a model call what is listed alone: the shape of results, which durward://results tells, makes room for them.
	for i, t := range out.Tools {
		short := *t
		short.OutputSchema = nil
		out.Tools[i] = &short
	}
	if paged {
		for _, t := range pinned {
			out.Tools = append(out.Tools, s.listed(t))
		}
		return s.page(ctx, call, out, cursor)
	}
	size, err := sizeOf(out)
	for _, name := range lesser {
		if err == nil && size > mostListed {
			without(&out, name)
			size, err = sizeOf(out)
		}
	}
	for _, t := range pinned {
		if err != nil {
			return nil, err
		}
		n, listed := 0, s.listed(t)
		if n, err = sizeOf(listed); size+n+1 <= mostListed {
			out.Tools, size = append(out.Tools, listed), size+n+1
		}
	}
	return &out, err
}

// page is the page of a list that begins at a cursor. Nothing is kept of cursors: one is made of the place and of the whole list, so that
// one of a list that has changed since is none.
func (s *Server) page(ctx context.Context, call *httpfront.Call, list mcp.ListToolsResult, cursor string) (*mcp.ListToolsResult, error) {
	whole, err := json.Marshal(list.Tools)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(whole)
	place := func(i int) string {
		sum := sha256.Sum256(fmt.Append(digest[:], i))
		return hex.EncodeToString(sum[:16])
	}
	from := 0
	for cursor != "" && place(from) != cursor {
		if from++; from == len(list.Tools) {
			return nil, s.noPage(ctx, call, "There is no page at this cursor, or the list has changed: begin again without one.")
		}
	}
	out := list
	out.Tools, out.NextCursor = nil, place(0)
	size, err := sizeOf(out)
	out.NextCursor = ""
	for i, t := range list.Tools[from:] {
		n, wrong := sizeOf(t)
		if err = errors.Join(err, wrong); err != nil {
			return nil, err
		}
		switch {
		case size+n+1 <= mostListed:
			out.Tools, size = append(out.Tools, t), size+n+1
		case len(out.Tools) > 0:
			out.NextCursor = place(from + i)
			return &out, nil
		} // what no page holds find_tools finds
	}
	return &out, nil
}

// noPage refuses a cursor.
func (s *Server) noPage(ctx context.Context, call *httpfront.Call, sentence string) error {
	s.conf.Refusals.Record(ctx, refusal.Event{
		RequestID: call.RequestID, Code: callv1.Code_CODE_INVALID_ARGUMENT, Reason: "cursor", Principal: call.Session.Principal(), Session: call.Session.Ref(),
	})
	return refuse(call, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, sentence, fault.WithField("cursor")))
}

func without(list *mcp.ListToolsResult, names ...string) {
	list.Tools = slices.DeleteFunc(list.Tools, func(t *mcp.Tool) bool { return slices.Contains(names, t.Name) })
}

func sizeOf(v any) (int, error) {
	raw, err := json.Marshal(v)
	return len(raw), err
}
