package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/egress/internal/child"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink"
)

// Running speaks with other people's MCP servers; child.Manager does.
type Running interface {
	Call(ctx context.Context, principal, server, tool string, arguments []byte, confirm func() error) (child.Result, error)
	Status() []child.Status
	Logs(server string) []child.Log
	Restart(server string) error
	Asked(server, question string) string
	ListTools(ctx context.Context, server string) (*downstream.Listing, error)
	Freeze() error
	Thaw() error
}

// Pinned are the servers in force; inforce.Servers are.
type Pinned interface {
	Current() []downstream.Pinned
	Lookup(id string) (*downstream.Pinned, bool)
	Problems() []string
}

// Servers implements egressv1.ServerServiceServer: calls of tools that a human pinned.
type Servers struct {
	egressv1.UnimplementedServerServiceServer
	tools   *Tools
	running Running
	pinned  Pinned
}

// NewServers returns the service. tools judge where arguments lead that are URLs.
func NewServers(tools *Tools, running Running, pinned Pinned) *Servers {
	return &Servers{tools: tools, running: running, pinned: pinned}
}

// CallServerTool calls a tool by its pinned definition, which the sink's discipline has found and held the arguments to.
func (s *Servers) CallServerTool(ctx context.Context, r *egressv1.CallServerToolRequest) (*egressv1.CallServerToolResponse, error) {
	tool, known := contract.Lookup(r.GetTool())
	if !known || tool.Foreign == nil {
		return nil, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)
	}
	server, there := s.pinned.Lookup(tool.Foreign.Server)
	if !there {
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the server is not in force any more; ask again")
	}
	party := sink.For(ctx)
	if server.Entry.URL != "" && s.blocked(party, server.Entry.URL) {
		return nil, fault.New(callv1.Code_CODE_FAILED, "the server is at a domain that is blocked")
	}
	if err := s.leads(ctx, tool, server, r); err != nil {
		return nil, err
	}
	confirm := func() error { return nil }
	if tool.Tier != optionsv1.Tier_TIER_READ {
		// A server that has to start first, or is at another call, may be waited for for minutes.
		confirm = func() error { return sink.Confirm(ctx, func() {}) }
	}
	owner := party.Client
	if server.Entry.PerSession {
		owner += "/" + party.Session
	}
	result, err := s.running.Call(ctx, owner, server.Entry.ID, tool.Foreign.Name, []byte(r.GetArgumentsJcs()), confirm)
	if err != nil {
		return nil, serverFault(tool, err)
	}
	summary := "the server " + server.Entry.ID + " answered"
	if result.IsError {
		summary = "the server " + server.Entry.ID + " says that the call failed"
		if tool.Tier != optionsv1.Tier_TIER_READ {
			sink.Fail(ctx, summary)
		}
	}
	if result.Question != "" {
		sink.Detail(ctx, "question", fmt.Sprintf("%s, SHA-256 %x", result.Question, sha256.Sum256([]byte(result.Content[0].Text))))
		summary = fmt.Sprintf("the server %s asks something before it goes on: tell the user what, and answer with %s, question %s, within 10 minutes",
			server.Entry.ID, contract.ServerTool(server.Entry.ID, downstream.AnswerQuestion), result.Question)
	}
	sink.Summarise(ctx, summary)
	for i, c := range result.Content {
		if c.Kind == child.Image {
			sink.Detail(ctx, fmt.Sprintf("picture_%d", i), fmt.Sprintf("%s of %d bytes, SHA-256 %x", c.MIME, len(c.Data), sha256.Sum256(c.Data)))
		}
		if c.URI != "" && s.blocked(party, c.URI) {
			result.Content[i].URI = "[a link to a blocked domain was left out]"
		}
	}
	return response(result)
}

// blocked reports whether a human blocked where a link leads, or it cannot be told where that is (NETS-2).
func (s *Servers) blocked(party sink.Party, uri string) bool {
	_, to, err := destination.ParseURL(uri)
	if err != nil {
		return true
	}
	verdict, _ := s.tools.domains().Judge(destination.Party{Client: party.Client, Agent: party.Agent, User: party.User}, to)
	return verdict == destination.Blocked
}

// serverFault is what the caller hears of a call without a result.
func serverFault(tool contract.Tool, err error) error {
	var failed *child.Error
	if !errors.As(err, &failed) {
		return err
	}
	text := "the " + failed.Error()
	if !failed.Sent && clean.Leaks(text) { // what is wrong on this host, with its paths, is an operator's to see: for the caller it would be "internal error"
		text = "the server " + failed.Server + " cannot be called: `durward server status` says why"
	}
	if failed.Sent && tool.Tier != optionsv1.Tier_TIER_READ {
		text = "the call may have been carried out; " + text // what the server says may be long, and is cut
	}
	return fault.New(callv1.Code_CODE_FAILED, text, fault.WithCause(err))
}

// leads judges what the arguments lead to: a URL by the list of domains, and paths by the server's folders. What follows a path inside the
// sandbox stays in it.
func (s *Servers) leads(ctx context.Context, tool contract.Tool, server *downstream.Pinned, r *egressv1.CallServerToolRequest) error {
	to, leads, err := tool.Destination(r)
	if err != nil {
		return err
	}
	if leads {
		if sink.For(ctx).Approved {
			ctx = context.WithValue(ctx, approved{}, to.Host)
		}
		if err := s.tools.admit(ctx, to); err != nil {
			return explained(ctx, err)
		}
	}
	i := slices.IndexFunc(server.Tools, func(t downstream.Tool) bool { return t.Name == tool.Foreign.Name })
	if i < 0 {
		return fault.New(callv1.Code_CODE_CONFLICT, "the tool is not in force any more; ask again")
	}
	if len(server.Tools[i].Roles) == 0 {
		return nil
	}
	var arguments map[string]any
	if err := json.Unmarshal([]byte(r.GetArgumentsJcs()), &arguments); err != nil {
		return err
	}
	for _, pointer := range slices.Sorted(maps.Keys(server.Tools[i].Roles)) {
		if server.Tools[i].Roles[pointer] == downstream.RolePath && !inFolders(server.Entry.Sandbox, arguments[pointer[1:]]) {
			return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the path is in no folder of the server's", fault.WithField(pointer[1:]))
		}
	}
	return nil
}

// ownFolder is the server's own, as its processes see it.
const ownFolder = "/data"

// inFolders reports whether a path, or each of a list of paths, is in one of the server's folders. A relative one is below its own.
func inFolders(box downstream.Sandbox, value any) bool {
	switch value := value.(type) {
	case nil:
		return true // it was not given
	case string:
		if strings.ContainsRune(value, 0) {
			return false
		}
		if !path.IsAbs(value) {
			value = ownFolder + "/" + value
		}
		value = path.Clean(value)
		return slices.ContainsFunc(append(append([]string{ownFolder}, box.Read...), box.Write...), func(folder string) bool {
			return value == folder || strings.HasPrefix(value, strings.TrimSuffix(folder, "/")+"/")
		})
	case []any:
		return !slices.ContainsFunc(value, func(one any) bool { return !inFolders(box, one) })
	default:
		return false
	}
}

// response is a result as it leaves: texts by themselves, so that each is looked through for what the agent may not see.
func response(result child.Result) (*egressv1.CallServerToolResponse, error) {
	out := &egressv1.CallServerToolResponse{Failed: result.IsError}
	for _, c := range result.Content {
		part := &egressv1.ServerContent{Kind: string(c.Kind), Text: c.Text}
		switch c.Kind {
		case child.Text:
		case child.Resource, child.Link:
			part.Text = strings.TrimSpace(c.URI + "\n" + c.Text)
		case child.Image:
			part.Text = fmt.Sprintf("a picture of %d bytes", len(c.Data))
			part.MediaType, part.Data = c.MIME, c.Data // a type of our list's: any other may be a sentence
		}
		out.Content = append(out.Content, part)
	}
	if len(result.Structured) == 0 || told(result) {
		return out, nil // what is given as text too is not read twice
	}
	dec := json.NewDecoder(bytes.NewReader(result.Structured))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	shape, err := canonical.Marshal(shapeOf(tree, &out.Leaves))
	out.Shape = string(shape)
	return out, err
}

// told reports whether a result's texts hold its data: one is the same JSON, or, as libraries make an object of what is none, they are what
// stands under "result", a text for each element of a list.
func told(result child.Result) bool {
	var texts []string
	for _, c := range result.Content {
		if c.Kind == child.Text {
			texts = append(texts, c.Text)
		}
	}
	var object map[string]json.RawMessage
	var list []json.RawMessage
	forms := []json.RawMessage{result.Structured}
	if json.Unmarshal(result.Structured, &object) == nil && len(object) == 1 && object["result"] != nil {
		forms = append(forms, object["result"])
		if json.Unmarshal(object["result"], &list) == nil && len(list) > 0 && slices.EqualFunc(texts, list, says) {
			return true
		}
	}
	return slices.ContainsFunc(texts, func(text string) bool {
		return slices.ContainsFunc(forms, func(form json.RawMessage) bool { return says(text, form) })
	})
}

// says reports whether a text is a value, which is in RFC 8785 form, as JSON or as it stands.
func says(text string, value json.RawMessage) bool {
	asJSON, err := canonical.Transform([]byte(text))
	if err == nil && bytes.Equal(asJSON, value) {
		return true
	}
	quoted, err := canonical.Marshal(text)
	return err == nil && bytes.Equal(quoted, value)
}

// shapeOf replaces each text by its place among the leaves, a number, and each number and key by its place as a text.
func shapeOf(v any, leaves *[]string) any {
	place := func(text string) int {
		*leaves = append(*leaves, text)
		return len(*leaves) - 1
	}
	switch v := v.(type) {
	case string:
		return place(v)
	case json.Number:
		return strconv.Itoa(place(v.String()))
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = shapeOf(v[i], leaves)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[strconv.Itoa(place(key))] = shapeOf(v[key], leaves)
		}
		return out
	default:
		return v
	}
}

// ListServers implements the control side's.
func (c *Control) ListServers(context.Context, *egressv1.ListServersRequest) (*egressv1.ListServersResponse, error) {
	out := &egressv1.ListServersResponse{Problems: c.cfg.Pinned.Problems()}
	stands := map[string][]child.Status{}
	for _, one := range c.cfg.Running.Status() {
		stands[one.Server] = append(stands[one.Server], one)
	}
	for _, p := range c.cfg.Pinned.Current() {
		ones := stands[p.Entry.ID]
		if len(ones) == 0 {
			ones = []child.Status{{Server: p.Entry.ID, State: child.Idle}}
		}
		for _, one := range ones {
			out.Servers = append(out.Servers, shown(p, one))
		}
	}
	return out, nil
}

func shown(p downstream.Pinned, one child.Status) *egressv1.ServerStatus {
	out := &egressv1.ServerStatus{
		Id: p.Entry.ID, State: string(one.State), Why: one.Reason, Principal: one.Principal, Calls: uint32(max(one.Calls, 0)), Unconfined: p.Entry.Sandbox.None, // #nosec G115 -- bounded by the sink
	}
	if one.Frozen {
		out.State = "frozen"
	}
	if !one.Since.IsZero() {
		out.StartedAt = timestamppb.New(one.Since)
	}
	for _, name := range slices.Sorted(maps.Keys(one.Tools)) {
		switch one.Tools[name] {
		case child.Changed:
			out.Changed = append(out.Changed, name)
		case child.Absent:
			out.Absent = append(out.Absent, name)
		case child.Present:
		}
	}
	return out
}

// GetServerLogs implements the control side's.
func (c *Control) GetServerLogs(_ context.Context, r *egressv1.GetServerLogsRequest) (*egressv1.GetServerLogsResponse, error) {
	if err := c.known(r.GetId()); err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, log := range c.cfg.Running.Logs(r.GetId()) {
		if log.Principal != "" {
			text.WriteString("for " + log.Principal + ":\n")
		}
		text.WriteString(log.Text + "\n")
	}
	return &egressv1.GetServerLogsResponse{Text: text.String()}, nil
}

// RestartServer implements the control side's.
func (c *Control) RestartServer(_ context.Context, r *egressv1.RestartServerRequest) (*egressv1.RestartServerResponse, error) {
	if err := c.known(r.GetId()); err != nil {
		return nil, err
	}
	ended := uint32(0)
	for _, one := range c.cfg.Running.Status() {
		if one.Server == r.GetId() && (one.State == child.Running || one.State == child.Starting) {
			ended++
		}
	}
	return &egressv1.RestartServerResponse{Ended: ended}, c.cfg.Running.Restart(r.GetId())
}

// ListServerTools implements the control side's.
func (c *Control) ListServerTools(ctx context.Context, r *egressv1.ListServerToolsRequest) (*egressv1.ListServerToolsResponse, error) {
	if err := c.known(r.GetId()); err != nil {
		return nil, err
	}
	listing, err := c.cfg.Running.ListTools(ctx, r.GetId())
	if failed := (*child.Error)(nil); errors.As(err, &failed) {
		return nil, fault.New(callv1.Code_CODE_FAILED, "the "+failed.Error())
	} else if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(listing)
	return &egressv1.ListServerToolsResponse{Listing: raw}, err
}

func (c *Control) known(id string) error {
	if _, ok := c.cfg.Pinned.Lookup(id); !ok {
		return fault.New(callv1.Code_CODE_NOT_FOUND, "no such server is in force", fault.WithField("server"))
	}
	return nil
}
