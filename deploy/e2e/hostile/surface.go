//go:build hostile

package hostile

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"durward.internal/deploy/e2e/harness"
)

// era is one of the two protocols that the gateway speaks.
type era int

const (
	sessions era = iota
	stateless
)

func (e era) String() string { return [...]string{"sessions", "stateless"}[e] }

// client is what a worker sends with: a token, and a session of it.
type client struct{ token, session string }

// message is one HTTP request to the gateway, before it is bytes. Nothing in it is checked or escaped.
type message struct {
	method, target, host string
	header               [][2]string
	body                 string
}

func (m *message) set(name, value string) {
	for i := range m.header {
		if m.header[i][0] == name {
			m.header[i][1] = value
			return
		}
	}
	m.header = append(m.header, [2]string{name, value})
}

// bytes writes the message. last asks the server to close the connection behind it.
func (m *message) bytes(last bool) []byte {
	b := make([]byte, 0, 512+len(m.body))
	b = append(b, m.method...)
	b = append(b, ' ')
	b = append(b, m.target...)
	b = append(b, " HTTP/1.1\r\n"...)
	if last {
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, "Host: "...)
	b = append(b, m.host...)
	for _, h := range m.header {
		b = append(b, "\r\n"...)
		b = append(b, h[0]...)
		b = append(b, ": "...)
		b = append(b, h[1]...)
	}
	b = fmt.Appendf(b, "\r\nContent-Length: %d\r\n\r\n", len(m.body))
	return append(b, m.body...)
}

// surface is one place that takes a string.
type surface struct {
	name string
	// eras are those that have it.
	eras []era
	// returned: the protocol wants the string back.
	returned bool
	// main: every string of the corpora goes through it. The others take turns.
	main bool
	// guest: it opens sessions, with a client of its own.
	guest bool
	// streams: the answer may be a stream that does not end by itself.
	streams bool
	build   func(e era, c client, s string) *message
}

// gateway knows how requests to it look.
type gateway struct{ address string }

// quote writes a JSON string that holds the bytes of s as they are, but for what JSON wants escaped: what is not UTF-8 stays so.
func quote(s string) string {
	b := make([]byte, 0, len(s)+2)
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// encoded is a header value that may hold anything, as clients of the stateless era write it.
func encoded(s string) string {
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

// part is what a request says beyond its method: members of params, members of _meta, and the name that its header repeats.
type part struct{ params, meta, name string }

// request is a request as a well-behaved client writes it, but for what is put into it.
func (g gateway) request(e era, c client, method string, p part) *message {
	m := &message{method: "POST", target: "/mcp", host: g.address, header: [][2]string{
		{"Authorization", "Bearer " + c.token}, {"Content-Type", "application/json"}, {"Accept", "application/json, text/event-stream"},
	}}
	meta := p.meta
	if e == stateless {
		meta = join(`"io.modelcontextprotocol/protocolVersion":"`+harness.StatelessRevision+`","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, meta)
		m.set("Mcp-Protocol-Version", harness.StatelessRevision)
		m.set("Mcp-Method", method)
		if p.name != "" {
			m.set("Mcp-Name", encoded(p.name))
		}
	} else if c.session != "" {
		m.set("Mcp-Session-Id", c.session)
		m.set("Mcp-Protocol-Version", harness.SessionRevision)
	}
	params := p.params
	if meta != "" {
		params = join(params, `"_meta":{`+meta+`}`)
	}
	m.body = `{"jsonrpc":"2.0","id":7,"method":` + quote(method) + `,"params":{` + params + `}}`
	return m
}

func join(members ...string) string {
	return strings.Join(slices.DeleteFunc(members, func(s string) bool { return s == "" }), ",")
}

// call is a tools/call.
func (g gateway) call(e era, c client, tool, arguments string) *message {
	return g.request(e, c, "tools/call", part{params: `"name":` + quote(tool) + `,"arguments":` + arguments, name: tool})
}

// fillers are legal values of parameters that name nothing that is there.
var fillers = map[string]string{
	"service_id": "no-such-service", "mode_id": "no-such-mode", "model_id": "no-such/model", "plan_digest": strings.Repeat("0", 64),
	"operation_id": strings.Repeat("0", 32), "reason": "because", "text": "a line", "words": "services", "tool": "list_services",
}

// within puts a string into an argument, by the argument's type: as it is, into a list beside a legal one, or as the key of a map.
var within = map[string]func(s string) string{
	"string":  quote,
	"integer": quote, // a string in a number's place is one more hostile thing
	"array":   func(s string) string { return `[` + quote(s) + `,"no-such-service"]` },
	"object":  func(s string) string { return `{` + quote(s) + `:8192}` },
}

// toolSurfaces are the parameters of every tool, as tools/list says: all of a tool's strings at once, and each parameter among legal
// ones.
func (g gateway) toolSurfaces(list json.RawMessage) ([]surface, error) {
	var tools struct {
		Tools []struct {
			Name        string `json:"name"`
			InputSchema struct {
				Properties map[string]struct {
					Type string `json:"type"`
				} `json:"properties"`
				Required []string `json:"required"`
			} `json:"inputSchema"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(list, &tools); err != nil {
		return nil, err
	}
	var out []surface
	for _, tool := range tools.Tools {
		names := slices.Sorted(maps.Keys(tool.InputSchema.Properties))
		texts := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return tool.InputSchema.Properties[name].Type != "string" })
		if len(texts) == 0 {
			continue
		}
		// tokenize gives its text back.
		out = append(out, surface{name: tool.Name + ": " + strings.Join(texts, ", "), eras: both, main: true, returned: tool.Name == "tokenize", build: func(e era, c client, s string) *message {
			var members []string
			for _, name := range texts {
				members = append(members, quote(name)+":"+quote(s))
			}
			return g.call(e, c, tool.Name, `{`+strings.Join(members, ",")+`}`)
		}})
		for _, name := range names {
			property := tool.InputSchema.Properties[name]
			value, known := within[property.Type]
			if !known {
				return nil, fmt.Errorf("%s.%s is a %s: this suite does not know how to put a string into one", tool.Name, name, property.Type)
			}
			others := ""
			for _, required := range tool.InputSchema.Required {
				filler, known := fillers[required]
				if !known {
					return nil, fmt.Errorf("%s.%s: this suite has no legal value for it", tool.Name, required)
				}
				if required != name {
					others = join(others, quote(required)+":"+quote(filler))
				}
			}
			if len(names) == 1 {
				continue // it is the one above
			}
			out = append(out, surface{name: tool.Name + "." + name, eras: both, build: func(e era, c client, s string) *message {
				return g.call(e, c, tool.Name, `{`+join(others, quote(name)+`:`+value(s))+`}`)
			}})
		}
	}
	return out, nil
}

var both = []era{sessions, stateless}

// otherSurfaces are everything else that takes a string.
func (g gateway) otherSurfaces() []surface {
	read := func(prefix string) func(era, client, string) *message {
		return func(e era, c client, s string) *message {
			return g.request(e, c, "resources/read", part{params: `"uri":` + quote(prefix+s), name: prefix + s})
		}
	}
	meta := func(format string) func(era, client, string) *message {
		return func(e era, c client, s string) *message {
			return g.request(e, c, "tools/call", part{params: `"name":"gpu_status","arguments":{}`, meta: fmt.Sprintf(format, quote(s)), name: "gpu_status"})
		}
	}
	// What passes is refused for its arguments: no other process hears of it.
	idle := func(e era, c client) *message { return g.call(e, c, "service_info", `{"service_id":"-"}`) }
	header := func(name string) func(era, client, string) *message {
		return func(e era, c client, s string) *message {
			m := idle(e, c)
			m.set(name, s)
			return m
		}
	}
	ignored := []string{"Traceparent", "Tracestate", "Baggage", "User-Agent", "Referer", "Cookie", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host",
		"X-Http-Method-Override", "Accept-Language", "Last-Event-ID", "Mcp-Param-Service-Id"}
	return []surface{
		{name: "tool name", eras: both, main: true, build: func(e era, c client, s string) *message { return g.call(e, c, s, `{}`) }},
		{name: "resource URI", eras: both, main: true, build: read("")},
		{name: "URI of a service", eras: both, main: true, build: read("durward://services/")},
		{name: "URI of a mode", eras: both, build: read("durward://modes/")},
		{name: "URI of a model", eras: both, build: read("durward://models/")},
		{name: "URI of an operation", eras: both, build: read("durward://operations/")},
		{name: "completion value", eras: both, build: func(e era, c client, s string) *message {
			return g.request(e, c, "completion/complete", part{params: `"ref":{"type":"ref/resource","uri":"durward://services/{service_id}"},"argument":{"name":"service_id","value":` + quote(s) + `}`})
		}},
		{name: "completion value of a model", eras: both, build: func(e era, c client, s string) *message {
			return g.request(e, c, "completion/complete", part{params: `"ref":{"type":"ref/resource","uri":"durward://models/{+model_id}{?format}"},"argument":{"name":"model_id","value":` + quote(s) + `}`})
		}},
		{name: "completion reference", eras: both, build: func(e era, c client, s string) *message {
			return g.request(e, c, "completion/complete", part{params: `"ref":{"type":"ref/resource","uri":` + quote(s) + `},"argument":{"name":` + quote(s) + `,"value":"d"}`})
		}},
		{name: "header Mcp-Session-Id", eras: both, main: true, build: header("Mcp-Session-Id")},
		{name: "header Authorization", eras: both, main: true, build: func(e era, c client, s string) *message {
			m := idle(e, c)
			m.set("Authorization", "Bearer "+s)
			return m
		}},
		{name: "header Host", eras: both, main: true, build: func(e era, c client, s string) *message {
			m := idle(e, c)
			m.host = s
			return m
		}},
		{name: "header Origin", eras: both, main: true, build: header("Origin")},
		{name: "header Mcp-Protocol-Version", eras: both, main: true, build: header("Mcp-Protocol-Version")},
		{name: "header Mcp-Method", eras: []era{stateless}, main: true, build: header("Mcp-Method")},
		{name: "header Mcp-Name", eras: []era{stateless}, main: true, build: header("Mcp-Name")},
		{name: "headers that decide nothing", eras: both, main: true, build: func(e era, c client, s string) *message {
			m := g.request(e, c, "no/such", part{})
			for _, name := range ignored {
				m.set(name, s)
			}
			if e == sessions {
				m.set("Mcp-Method", s)
				m.set("Mcp-Name", s)
			}
			return m
		}},
		{name: "the same of a read", eras: both, build: func(e era, c client, s string) *message {
			m := g.call(e, c, "gpu_status", `{}`) // a trace crosses every process
			for _, name := range ignored {
				m.set(name, s)
			}
			return m
		}},
		{name: "header Content-Type", eras: both, build: header("Content-Type")},
		{name: "header Accept", eras: both, build: header("Accept")},
		{name: "method", eras: both, build: func(e era, c client, s string) *message { return g.request(e, c, s, part{}) }},
		{name: "name of an argument", eras: both, build: func(e era, c client, s string) *message {
			return g.call(e, c, "service_info", `{"service_id":"demo-chat",`+quote(s)+`:1}`)
		}},
		{name: "member of params", eras: both, build: func(e era, c client, s string) *message {
			return g.request(e, c, "tools/call", part{params: `"name":"gpu_status","arguments":{},` + quote(s) + `:` + quote(s), name: "gpu_status"})
		}},
		{name: "request id", eras: both, returned: true, build: func(e era, c client, s string) *message {
			m := g.call(e, c, "gpu_status", `{}`)
			m.body = strings.Replace(m.body, `"id":7`, `"id":`+quote(s), 1)
			return m
		}},
		{name: "progress token", eras: both, returned: true, build: meta(`"progressToken":%s`)},
		{name: "trace in _meta", eras: both, build: meta(`"traceparent":%[1]s,"tracestate":%[1]s,"baggage":%[1]s`)},
		{name: "instance in _meta", eras: both, build: meta(`"durward/instance":%s`)},
		{name: "proof in _meta", eras: both, build: meta(`"durward/proof":{"signature":%s}`)},
		{name: "requestState", eras: both, build: func(e era, c client, s string) *message {
			return g.request(e, c, "tools/call", part{params: `"name":"gpu_status","arguments":{},"requestState":` + quote(s) + `,"inputResponses":{` + quote(s) + `:{"action":"accept"}}`, name: "gpu_status"})
		}},
		{name: "cursor", eras: both, build: func(e era, c client, s string) *message {
			return g.request(e, c, "tools/list", part{params: `"cursor":` + quote(s)})
		}},
		{name: "client's name", eras: []era{stateless}, build: meta(`"io.modelcontextprotocol/clientInfo":{"name":%[1]s,"version":%[1]s}`)},
		{name: "client's name at a handshake", eras: []era{sessions}, guest: true, build: func(e era, c client, s string) *message {
			c.session = ""
			return g.request(e, c, "initialize", part{params: `"protocolVersion":"` + harness.SessionRevision + `","capabilities":{},"clientInfo":{"name":` + quote(s) + `,"version":` + quote(s) + `}`})
		}},
		{name: "revision at a handshake", eras: []era{sessions}, guest: true, build: func(e era, c client, s string) *message {
			c.session = ""
			return g.request(e, c, "initialize", part{params: `"protocolVersion":` + quote(s) + `,"capabilities":{},"clientInfo":{"name":"x","version":"1"}`})
		}},
		{name: "subscribed URI", eras: []era{sessions}, build: func(e era, c client, s string) *message {
			return g.request(e, c, "resources/subscribe", part{params: `"uri":` + quote("durward://services/"+s)})
		}},
		{name: "listened URI", eras: []era{stateless}, streams: true, build: func(e era, c client, s string) *message {
			return g.request(e, c, "subscriptions/listen", part{params: `"notifications":{"resourceSubscriptions":[` + quote("durward://services/"+s) + `]}`})
		}},
		{name: "task id", eras: []era{stateless}, build: func(e era, c client, s string) *message {
			return g.request(e, c, "tasks/get", part{params: `"taskId":` + quote(s), name: s})
		}},
		{name: "cancelled id", eras: []era{sessions}, build: func(e era, c client, s string) *message {
			m := g.request(e, c, "notifications/cancelled", part{params: `"requestId":` + quote(s) + `,"reason":` + quote(s)})
			m.body = strings.Replace(m.body, `"id":7,`, "", 1)
			return m
		}},
		{name: "path and query", eras: both, build: func(e era, c client, s string) *message {
			m := g.call(e, c, "gpu_status", `{}`)
			m.target = "/mcp?token=" + url.QueryEscape(s)
			if len(s)%2 == 0 {
				m.target = "/" + url.PathEscape(s)
			}
			return m
		}},
		{name: "the whole body", eras: both, build: func(e era, c client, s string) *message {
			m := g.call(e, c, "gpu_status", `{}`)
			m.body = s
			return m
		}},
	}
}
