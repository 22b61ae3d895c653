package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/fault"
)

// Tools that arrive at run time: those of other people's MCP servers, each by the definition that a human pinned. All of them are one RPC
// of egress', and each is a tool of its own to everything that decides, shows, signs and records.

// Foreign is what such a tool is beside what every tool is.
type Foreign struct {
	// Server is the id of the server's entry, and Name the tool's own name there.
	Server, Name string
	// Program is the digest of what is run.
	Program [32]byte
	// Reach is what the server can do where it runs, a line each.
	Reach []string
	// Check holds arguments, in their RFC 8785 form, to the pinned schema. Its error repeats nothing of them.
	Check func(arguments []byte) error
}

// Subject is what a call of the tool acts on.
func (f *Foreign) Subject() (*callv1.Subject, error) {
	entry, err := canonical.Marshal(map[string]any{"server": f.Server, "program": canonical.FormatDigest(f.Program[:])})
	return &callv1.Subject{Label: "MCP server " + f.Server, Entry: entry}, err
}

// Plan is what a person who decides ought to know of a call of the tool.
func (f *Foreign) Plan() []string {
	return append([]string{"call the tool " + f.Name + " of the MCP server " + f.Server + ", as it was accepted"}, f.Reach...)
}

// Separator stands between a server's id and its tool's name.
const Separator = "__"

// ServerTool is how a server's tool is called here.
func ServerTool(server, tool string) string { return server + Separator + tool }

// ServerSource is where a server's tools are from.
func ServerSource(server string) string { return serverSource + server }

// IsServerSource reports whether a source is another's MCP server.
func IsServerSource(source string) bool { return strings.HasPrefix(source, serverSource) }

const serverSource = "mcp:"

// What a server offers beside tools is pinned as a tool whose name has a dot, which no tool's own name has.
const (
	readResource = "resources.read"
	promptPrefix = "prompts."
)

// answerQuestion answers what a server asked during a call, where its entry lets it ask.
const answerQuestion = "answer_question"

// Answers reports whether a call of the tool answers a question: what was asked only its sink knows.
func (t Tool) Answers() bool { return t.Foreign != nil && t.Foreign.Name == answerQuestion }

// serversScheme begins the URIs of servers' resources: then come the server's id, a slash, and the server's own URI as it is.
const serversScheme = "durward://servers/"

// IsTool reports whether agents call it as a tool; what else a server offers they read as a resource, or get as a prompt.
func (t Tool) IsTool() bool { return t.Foreign == nil || !strings.Contains(t.Foreign.Name, ".") }

// ResourcesURI is under which a pinned tool serves a server's resources; "" for every other tool.
func (t Tool) ResourcesURI() string {
	if t.Foreign == nil || t.Foreign.Name != readResource {
		return ""
	}
	return serversScheme + t.Foreign.Server + "/"
}

// PromptName is how agents call the prompt that a pinned tool serves; "" for every other tool.
func (t Tool) PromptName() string {
	if t.Foreign == nil {
		return ""
	}
	own, is := strings.CutPrefix(t.Foreign.Name, promptPrefix)
	if !is {
		return ""
	}
	return ServerTool(t.Foreign.Server, own)
}

// ResourceCall is the call that reading a URI is judged as; false: the URI is none of a server's that is pinned with its resources.
func ResourceCall(uri string) (t Tool, arguments json.RawMessage, is bool) {
	id, own, _ := strings.Cut(strings.TrimPrefix(uri, serversScheme), "/")
	if t, is = Pinned(ServerTool(id, readResource)); !is || !strings.HasPrefix(uri, t.ResourcesURI()) {
		return t, nil, false
	}
	given := map[string]string{}
	if own != "" {
		given["uri"] = own
	}
	arguments, err := json.Marshal(given)
	return t, arguments, err == nil
}

// PromptCall is the call that getting a prompt is judged as; false: it is none of a server's that is pinned.
func PromptCall(name string, given map[string]string) (t Tool, arguments json.RawMessage, is bool) {
	server, own, _ := strings.Cut(name, Separator)
	if t, is = Pinned(ServerTool(server, promptPrefix+own)); !is {
		return t, nil, false
	}
	if given == nil {
		given = map[string]string{}
	}
	arguments, err := json.Marshal(given)
	return t, arguments, err == nil
}

// Definition is what a human pinned of a tool.
type Definition struct {
	Foreign
	Title, Description string
	Tier               optionsv1.Tier
	// Digest covers the whole of it.
	Digest [32]byte
	Input  map[string]any
	// URL names the argument that is a URL, if one is.
	URL string
	// Shell: it is a program of this host that remote clients may not use.
	Shell bool
}

// arrived are the pinned tools of this process, alone and with the contract's own, each sorted by name.
type arrived struct {
	pinned []Tool
	// all is put together once it is asked for: most commands of the operator's ask for no tool, and to derive the contract's takes
	// a sixth of what such a command takes.
	all func() []Tool
}

var current atomic.Pointer[arrived]

// ServersMethod is the RPC of every pinned tool.
var ServersMethod = egressv1.File_durward_egress_v1_tools_proto.Services().ByName("ServerService").Methods().ByName("CallServerTool")

// ServersSink is the role that answers it.
const ServersSink = optionsv1.Role_ROLE_EGRESS

// Pin makes these the pinned tools of this process, in the place of those before. Names must be the contract's no more than once.
func Pin(definitions []Definition) error {
	tools := make([]Tool, 0, len(definitions))
	for _, d := range definitions {
		t := d.tool()
		if _, own := Native(t.Name); own {
			return fmt.Errorf("%s is a tool of Durward's own", t.Name)
		}
		tools = append(tools, t)
	}
	slices.SortFunc(tools, byName)
	for i := 1; i < len(tools); i++ {
		if tools[i].Name == tools[i-1].Name {
			return fmt.Errorf("two tools are called %s", tools[i].Name)
		}
	}
	current.Store(&arrived{tools, sync.OnceValue(func() []Tool {
		all := append(Tools(), tools...)
		slices.SortFunc(all, byName)
		return all
	})})
	return nil
}

func byName(a, b Tool) int { return strings.Compare(a.Name, b.Name) }

// All returns the tools of the compiled contract and those that are pinned, sorted by name. The slice is the caller's.
func All() []Tool {
	if c := current.Load(); c != nil {
		return slices.Clone(c.all())
	}
	return Tools()
}

// Pinned finds one of the pinned tools.
func Pinned(name string) (Tool, bool) {
	if c := current.Load(); c != nil {
		return among(c.pinned, name)
	}
	return Tool{}, false
}

func (d Definition) tool() Tool {
	t := Tool{
		Name: ServerTool(d.Server, d.Name), Title: d.Title, Description: d.Description, Tier: d.Tier, Source: ServerSource(d.Server), OneCall: true,
		Leaves: true, // what a stranger's program does with it is out of our hands: its intent is recorded before, and a halt ends it
		Method: ServersMethod, FullMethod: fullMethod(ServersMethod), Sink: ServersSink, DefinitionDigest: d.Digest,
		InputSchema: d.Input, ResultSchema: map[string]any{"type": "object"}, OpenResult: true, Foreign: &d.Foreign,
	}
	if d.URL != "" {
		t.Resource, t.ResourceArgument = KindDomain, d.URL
	}
	if d.Shell {
		t.Tags = []string{"shell:" + d.Server}
	}
	return t
}

// OfServers finds the pinned tool that a request of that RPC calls, and holds its arguments to the tool. false: the request is another's.
func OfServers(request any) (Tool, bool, error) {
	call, is := request.(*egressv1.CallServerToolRequest)
	if !is {
		return Tool{}, false, nil
	}
	t, ok := Pinned(call.GetTool())
	if !ok {
		return Tool{}, true, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(errors.New("no such tool is pinned here")))
	}
	_, err := t.Decode([]byte(call.GetArgumentsJcs()))
	return t, true, err
}

// decodeForeign is Decode of a pinned tool's arguments: whatever their order and spacing, they leave here in their RFC 8785 form.
func (t Tool) decodeForeign(raw []byte) (proto.Message, error) {
	form, err := canonical.Transform(raw)
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the arguments are not well-formed JSON", fault.WithCause(err))
	}
	if _, err := CanonicalArguments(form); err != nil {
		return nil, invalid("", "the arguments must be a JSON object")
	}
	if len(form) > maxSigned {
		return nil, fault.New(callv1.Code_CODE_TOO_LARGE, fmt.Sprintf("the arguments are longer than the %d bytes that a human can sign", maxSigned))
	}
	if !numbersStay(raw) {
		return nil, invalid("", "a number among the arguments is too large to stay what it is; where the tool takes a text, send it as one")
	}
	if err := t.Foreign.Check(form); err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, err.Error())
	}
	name, arguments := t.Name, string(form)
	m := &egressv1.CallServerToolRequest{Tool: &name, ArgumentsJcs: &arguments}
	_, _, err = t.Destination(m)
	return m, err
}

// exact is up to where whole numbers are exact in RFC 8785's numbers, which are IEEE 754's.
const exact = 1 << 53

// numbersStay reports whether no number changes its value in the RFC 8785 form.
func numbersStay(raw []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		if n, is := token.(json.Number); is {
			f, err := n.Float64()
			if err != nil || math.Abs(f) >= exact && !strings.ContainsAny(n.String(), ".eE") {
				return false
			}
		}
	}
}

// Kept is what is worth keeping of a response, to answer the same call again: all but pictures, which take MiBs of a disk.
func Kept(response proto.Message) proto.Message {
	r, is := response.(*egressv1.CallServerToolResponse)
	if !is || !slices.ContainsFunc(r.GetContent(), func(c *egressv1.ServerContent) bool { return len(c.GetData()) > 0 }) {
		return response
	}
	r = proto.CloneOf(r)
	for _, c := range r.GetContent() {
		if len(c.GetData()) > 0 {
			c.Data = nil
			c.Text += ", which is not kept"
		}
	}
	return r
}

// HasArgument reports whether a tool's schema has an argument of that name.
func (t Tool) HasArgument(name string) bool {
	properties, _ := t.InputSchema["properties"].(map[string]any)
	_, has := properties[name]
	return has
}

// argument is a text among a pinned tool's arguments; false: it was not given. Anything but a text is refused: nobody could judge it.
func argument(request proto.Message, name string) (text string, given bool, err error) {
	call, _ := request.(*egressv1.CallServerToolRequest)
	var arguments map[string]json.RawMessage
	if json.Unmarshal([]byte(call.GetArgumentsJcs()), &arguments) != nil {
		return "", false, invalid("", "the arguments must be a JSON object")
	}
	raw, given := arguments[name]
	if given && json.Unmarshal(raw, &text) != nil {
		return "", true, invalid(name, "a URL is a text")
	}
	return text, given, nil
}

// freeTextForeign is FreeText of a pinned tool's arguments: every text in them, and no key.
func freeTextForeign(call *egressv1.CallServerToolRequest, replace func(texts []string) ([]string, error)) error {
	var tree any
	dec := json.NewDecoder(strings.NewReader(call.GetArgumentsJcs()))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return err
	}
	var texts []string
	tree = leaves(tree, func(text string) string { texts = append(texts, text); return text })
	if len(texts) == 0 {
		return nil
	}
	replaced, err := replace(texts)
	if err != nil || slices.Equal(replaced, texts) {
		return err
	}
	next := 0
	tree = leaves(tree, func(string) string { next++; return replaced[next-1] })
	form, err := canonical.Marshal(tree)
	if err != nil {
		return err
	}
	arguments := string(form)
	call.ArgumentsJcs = &arguments
	return nil
}

// leaves puts what f returns in the place of each text, in the order of the keys.
func leaves(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case []any:
		for i := range v {
			v[i] = leaves(v[i], f)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			v[key] = leaves(v[key], f)
		}
	}
	return v
}
