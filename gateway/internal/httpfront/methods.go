package httpfront

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/gateway/internal/subscription"
)

// Methods that are decided on by name somewhere.
const (
	methodInitialize = "initialize"
	methodCallTool   = "tools/call"
)

// method says how one method's messages are read. The table of them is closed: everything else is answered with "method not
// found", whatever the SDK could do.
type method struct {
	eras eras
	// decode reads the params into the frame and returns the members to forward, without _meta.
	decode func(f *Frame, params jsontext.Value) ([]byte, *frameError)
	// forward: the SDK gets the message. What it does not get is answered as taken.
	forward bool
	// named: the Mcp-Name header repeats the frame's name.
	named bool
	// tasks: the client must have declared the tasks extension with the request.
	tasks bool
}

// eras is a set of eras.
type eras uint8

func (e Era) bit() eras { return 1 << e }

const (
	onlyStateful  eras = 1 << Stateful
	onlyStateless eras = 1 << Stateless
	bothEras           = onlyStateful | onlyStateless
)

// methods returns the table of the product.
func methods() map[string]method {
	return map[string]method{
		methodInitialize:                   {eras: onlyStateful, decode: decodeInitialize, forward: true},
		"ping":                             {eras: onlyStateful, decode: decodeNothing, forward: true},
		"notifications/initialized":        {eras: onlyStateful, decode: decodeNothing, forward: true},
		"notifications/cancelled":          {eras: onlyStateful, decode: decodeCancelled, forward: true},
		"notifications/progress":           {eras: onlyStateful, decode: decodeNothing},
		"notifications/roots/list_changed": {eras: onlyStateful, decode: decodeNothing},
		"server/discover":                  {eras: onlyStateless, decode: decodeNothing, forward: true},
		"tools/list":                       {eras: bothEras, decode: decodeTools, forward: true},
		methodCallTool:                     {eras: bothEras, decode: decodeCall, forward: true, named: true},
		"prompts/list":                     {eras: bothEras, decode: decodeList, forward: true},
		"prompts/get":                      {eras: bothEras, decode: decodePrompt, forward: true, named: true},
		"resources/list":                   {eras: bothEras, decode: decodeList, forward: true},
		"resources/templates/list":         {eras: bothEras, decode: decodeList, forward: true},
		"resources/read":                   {eras: bothEras, decode: decodeResource, forward: true, named: true},
		"resources/subscribe":              {eras: onlyStateful, decode: decodeResource, forward: true},
		"resources/unsubscribe":            {eras: onlyStateful, decode: decodeResource, forward: true},
		"subscriptions/listen":             {eras: onlyStateless, decode: decodeListen, forward: true},
		"completion/complete":              {eras: bothEras, decode: decodeComplete, forward: true},
		"tasks/get":                        {eras: onlyStateless, decode: decodeTask, forward: true, named: true, tasks: true},
		"tasks/update":                     {eras: onlyStateless, decode: decodeTask, forward: true, named: true, tasks: true},
		"tasks/cancel":                     {eras: onlyStateless, decode: decodeTask, forward: true, named: true, tasks: true},
	}
}

// Methods returns the names of the product's methods.
func Methods() []string { return slices.Sorted(maps.Keys(methods())) }

// decodeNothing reads methods whose params say nothing to us.
func decodeNothing(_ *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		Meta jsontext.Value `json:"_meta"`
		More jsontext.Value `json:",embed"`
	}
	if json.Unmarshal(params, &p) != nil || lookalike(p.More, "_meta") {
		return nil, invalidParams(sentenceLookalike)
	}
	return nil, nil
}

// decodeInitialize forwards a handshake without the client's capabilities: nothing here depends on them, and the SDK's
// errors about them would name its types.
func decodeInitialize(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		Protocol string `json:"protocolVersion"`
		Client   struct {
			Name    string         `json:"name"`
			Version string         `json:"version"`
			More    jsontext.Value `json:",embed"`
		} `json:"clientInfo"`
		Capabilities jsontext.Value `json:"capabilities"`
		Meta         jsontext.Value `json:"_meta"`
		More         jsontext.Value `json:",embed"`
	}
	if json.Unmarshal(params, &p) != nil || p.Protocol == "" || len(p.Protocol) > maxLabel {
		return nil, invalidParams("The initialize request is not what the protocol describes.")
	}
	if lookalike(p.More, "protocolVersion", "clientInfo", "capabilities", "_meta") || lookalike(p.Client.More, "name", "version") {
		return nil, invalidParams(sentenceLookalike)
	}
	f.ClientName, f.ClientVersion = p.Client.Name, p.Client.Version
	version := p.Protocol
	if !SupportedProtocol(version) {
		// The SDK keeps the claim and would decide by it; an unsupported one is answered with the newest all the same.
		version = protocols[0]
	}
	return []byte(`"protocolVersion":"` + version + `","capabilities":{},"clientInfo":{"name":"client","version":"0"}`), nil
}

func decodeCall(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		Name      *string        `json:"name"`
		Arguments jsontext.Value `json:"arguments"`
		Meta      jsontext.Value `json:"_meta"`
		// Task asks an older server for a task. One that offers none serves the call as if it were not there.
		Task map[string]jsontext.Value `json:"task"`
		again
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || p.Name == nil {
		return nil, invalidParams("A tools/call request takes a name and arguments, and nothing else.")
	}
	if err := p.check(f); err != nil {
		return nil, err
	}
	if *p.Name == "" || len(*p.Name) > maxName {
		return nil, invalidParams("The tool's name must have 1 to 128 characters.")
	}
	f.Name, f.Tool = *p.Name, *p.Name
	if p.Arguments == nil {
		p.Arguments = jsontext.Value("{}")
	}
	f.Arguments = p.Arguments
	b := member(make([]byte, 0, len(p.Arguments)+len(f.Name)+32), "name", f.Name)
	return append(append(b, `,"arguments":`...), p.Arguments...), nil
}

// decodePrompt reads a request for a prompt. What the arguments mean is decided where prompts are served.
func decodePrompt(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	const sentence = "A prompts/get request takes a name and arguments that are texts, and nothing else."
	var p struct {
		Name      string            `json:"name"`
		Arguments map[string]string `json:"arguments"`
		Meta      jsontext.Value    `json:"_meta"`
		again
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || !bounded(p.Name, maxName) || len(p.Arguments) > maxCompletionArguments {
		return nil, invalidParams(sentence)
	}
	if err := p.check(f); err != nil {
		return nil, err
	}
	f.Name = p.Name
	b, ok := texts(append(member(nil, "name", p.Name), `,"arguments":`...), p.Arguments)
	if !ok {
		return nil, invalidParams(sentence)
	}
	return b, nil
}

// texts appends an object of names and texts; false where one is too long.
func texts(b []byte, all map[string]string) ([]byte, bool) {
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if !bounded(name, maxName) || utf8.RuneCountInString(all[name]) > maxURI {
			return nil, false
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = member(b, name, all[name])
	}
	return append(b, '}'), true
}

// again are the members with which a client of the stateless era comes back after a server asked it for input. This server
// never asks, so that answers to it count for nothing, and a state that it did not make is refused.
type again struct {
	Responses map[string]jsontext.Value `json:"inputResponses"`
	State     *string                   `json:"requestState"`
}

func (a again) check(f *Frame) *frameError {
	switch {
	case f.Era == Stateful && (a.Responses != nil || a.State != nil):
		return invalidParams("This revision of the protocol has no inputResponses and no requestState.")
	case a.State != nil:
		return invalidParams("The requestState was not made by this server.")
	}
	return nil
}

func decodeList(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	raw, err := decodeTools(f, params)
	if err == nil && raw != nil {
		err = invalidParams(sentencePage)
	}
	return nil, err
}

const sentencePage = "The list has one page: ask for it without a cursor."

// decodeTools reads a request for the one list that has pages, for some clients.
func decodeTools(_ *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		Cursor *string        `json:"cursor"`
		Meta   jsontext.Value `json:"_meta"`
	}
	switch {
	case json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || p.Cursor != nil && !bounded(*p.Cursor, maxName):
		return nil, invalidParams(sentencePage)
	case p.Cursor == nil:
		return nil, nil
	}
	return member(nil, "cursor", *p.Cursor), nil
}

func decodeCancelled(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		RequestID jsontext.Value `json:"requestId"`
		Reason    *string        `json:"reason"`
		Meta      jsontext.Value `json:"_meta"`
		More      jsontext.Value `json:",embed"`
	}
	if json.Unmarshal(params, &p) != nil || !validID(p.RequestID) {
		return nil, invalidParams("A cancellation needs the id of the request.")
	}
	if lookalike(p.More, "requestId", "reason", "_meta") {
		return nil, invalidParams(sentenceLookalike)
	}
	f.Cancels = requestKey(p.RequestID)
	return append([]byte(`"requestId":`), p.RequestID...), nil
}

// decodeResource reads a message about one resource. What the URI means is decided where resources are served.
func decodeResource(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		URI  string         `json:"uri"`
		Meta jsontext.Value `json:"_meta"`
		again
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || !bounded(p.URI, maxURI) {
		return nil, invalidParams("The request takes the URI of a resource, of at most 2048 characters, and nothing else.")
	}
	if err := p.check(f); err != nil {
		return nil, err
	}
	f.Name = p.URI
	return member(nil, "uri", p.URI), nil
}

// sentenceListen is what is wrong with a subscriptions/listen request that cannot be read.
var sentenceListen = fmt.Sprintf("A subscriptions/listen request takes the notifications that it wants, at most %d resources among them, each once.",
	subscription.MaxURIs)

// decodeListen reads a request for a stream of notifications. Each resource has one spelling, so that none is there twice.
func decodeListen(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		Notifications *struct {
			Tools         bool     `json:"toolsListChanged"`
			Prompts       bool     `json:"promptsListChanged"`
			Resources     bool     `json:"resourcesListChanged"`
			Subscriptions []string `json:"resourceSubscriptions"`
			// TaskIDs may be asked for by who takes tasks. They are polled here: the answer agrees to none.
			TaskIDs []string `json:"taskIds"`
		} `json:"notifications"`
		Meta jsontext.Value `json:"_meta"`
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || p.Notifications == nil ||
		len(p.Notifications.Subscriptions) > subscription.MaxURIs {
		return nil, invalidParams(sentenceListen)
	}
	if p.Notifications.TaskIDs != nil && !f.Capabilities.Tasks {
		return nil, missingTasks()
	}
	b := []byte(`"notifications":{"resourceSubscriptions":[`)
	for i, uri := range p.Notifications.Subscriptions {
		if !bounded(uri, maxURI) || slices.Contains(p.Notifications.Subscriptions[:i], uri) {
			return nil, invalidParams(sentenceListen)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = quote(b, uri)
	}
	f.Resources = len(p.Notifications.Subscriptions)
	b = append(b, ']')
	for _, want := range []struct {
		name string
		set  bool
	}{{"toolsListChanged", p.Notifications.Tools}, {"promptsListChanged", p.Notifications.Prompts}, {"resourcesListChanged", p.Notifications.Resources}} {
		b = append(b, `,"`+want.name+`":`+strconv.FormatBool(want.set)...)
	}
	return append(b, '}'), nil
}

// maxCompletionArguments is how many arguments a completion may be told that are known already.
const maxCompletionArguments = 16

func decodeComplete(_ *Frame, params jsontext.Value) ([]byte, *frameError) {
	const sentence = "A completion/complete request takes a reference and an argument of at most 2048 characters."
	var p struct {
		Ref struct {
			Type  string  `json:"type"`
			URI   string  `json:"uri"`
			Name  string  `json:"name"`
			Title *string `json:"title"`
		} `json:"ref"`
		Argument struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"argument"`
		Context struct {
			Arguments map[string]string `json:"arguments"`
		} `json:"context"`
		Meta jsontext.Value `json:"_meta"`
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil ||
		!bounded(p.Argument.Name, maxName) || utf8.RuneCountInString(p.Argument.Value) > maxURI || len(p.Context.Arguments) > maxCompletionArguments {
		return nil, invalidParams(sentence)
	}
	var b []byte
	switch {
	case p.Ref.Type == "ref/resource" && bounded(p.Ref.URI, maxURI) && p.Ref.Name == "":
		b = append(member([]byte(`"ref":{"type":"ref/resource",`), "uri", p.Ref.URI), '}')
	case p.Ref.Type == "ref/prompt" && bounded(p.Ref.Name, maxName) && p.Ref.URI == "":
		b = append(member([]byte(`"ref":{"type":"ref/prompt",`), "name", p.Ref.Name), '}')
	default:
		return nil, invalidParams(sentence)
	}
	b = member(append(b, `,"argument":{`...), "name", p.Argument.Name)
	b = append(member(append(b, ','), "value", p.Argument.Value), '}')
	if len(p.Context.Arguments) > 0 {
		var ok bool
		if b, ok = texts(append(b, `,"context":{"arguments":`...), p.Context.Arguments); !ok {
			return nil, invalidParams(sentence)
		}
		b = append(b, '}')
	}
	return b, nil
}

// decodeTask reads a message about a task, by its id. What a client sends as input counts for nothing: no task asks for any.
func decodeTask(f *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		ID        string                    `json:"taskId"`
		Responses map[string]jsontext.Value `json:"inputResponses"`
		Meta      jsontext.Value            `json:"_meta"`
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || !bounded(p.ID, maxID) {
		return nil, invalidParams("The request takes the id of a task, and nothing else.")
	}
	f.Name = p.ID
	return member(nil, "taskId", p.ID), nil
}

// bounded reports whether a text has 1 to most characters.
func bounded(s string, most int) bool { return s != "" && utf8.RuneCountInString(s) <= most }

// member appends "name":"value".
func member(b []byte, name, value string) []byte {
	return quote(append(quote(b, name), ':'), value)
}

// quote appends a text as JSON. Texts come from strict JSON, so that they are valid UTF-8.
func quote(b []byte, s string) []byte {
	b, err := jsontext.AppendQuote(b, s)
	if err != nil {
		panic("front: a decoded text is not UTF-8")
	}
	return b
}
