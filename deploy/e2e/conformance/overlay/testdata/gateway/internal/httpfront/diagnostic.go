package httpfront

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// diagnosticMethods adds to the table what the conformance suite sends and no shipped build takes.
func diagnosticMethods(table map[string]method) {
	table["logging/setLevel"] = method{eras: onlyStateful, decode: decodeLevel, forward: true}
	for _, name := range []string{methodCallTool, "prompts/get", "tasks/update"} {
		changed := table[name]
		changed.decode = answered(changed.decode)
		table[name] = changed
	}
	initialize := table[methodInitialize]
	initialize.decode = declared(initialize.decode)
	table[methodInitialize] = initialize
}

// decode is how a method's params are read.
type decode func(f *Frame, params jsontext.Value) ([]byte, *frameError)

// answered forwards, in the stateless era, the input that a server asked for and the state that it gave out.
func answered(read decode) decode {
	return func(f *Frame, params jsontext.Value) ([]byte, *frameError) {
		if f.Era != Stateless {
			return read(f, params)
		}
		var p struct {
			Responses jsontext.Value `json:"inputResponses"`
			State     *string        `json:"requestState"`
			Rest      jsontext.Value `json:",embed"`
		}
		if json.Unmarshal(params, &p) != nil || p.Responses != nil && p.Responses.Kind() != jsontext.KindBeginObject {
			return nil, invalidParams("The inputResponses must be a JSON object, and the requestState a text.")
		}
		if p.Rest == nil {
			p.Rest = jsontext.Value("{}")
		}
		members, err := read(f, p.Rest)
		if err != nil {
			return nil, err
		}
		if p.Responses != nil {
			members = append(append(members, `,"inputResponses":`...), p.Responses...)
		}
		if p.State != nil {
			members = member(append(members, ','), "requestState", *p.State)
		}
		return members, nil
	}
}

// declared forwards what a client of the stateful era can do: the suite has the server ask for it.
func declared(read decode) decode {
	return func(f *Frame, params jsontext.Value) ([]byte, *frameError) {
		members, err := read(f, params)
		if err != nil {
			return nil, err
		}
		var p struct {
			Capabilities jsontext.Value `json:"capabilities"`
			More         jsontext.Value `json:",embed"`
		}
		if json.Unmarshal(params, &p) != nil || p.Capabilities.Kind() != jsontext.KindBeginObject {
			return members, nil
		}
		return bytes.Replace(members, []byte(`"capabilities":{}`), append([]byte(`"capabilities":`), p.Capabilities...), 1), nil
	}
}

func decodeLevel(_ *Frame, params jsontext.Value) ([]byte, *frameError) {
	var p struct {
		Level string         `json:"level"`
		Meta  jsontext.Value `json:"_meta"`
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || !bounded(p.Level, maxName) {
		return nil, invalidParams("A logging/setLevel request takes a level, and nothing else.")
	}
	return member(nil, "level", p.Level), nil
}

// diagnosticMeta returns the members of _meta that the suite's tools decide by: what the client can do, and what it wants
// to hear of the log.
func diagnosticMeta(about jsontext.Value) []byte {
	var m struct {
		Capabilities jsontext.Value `json:"io.modelcontextprotocol/clientCapabilities"`
		LogLevel     jsontext.Value `json:"io.modelcontextprotocol/logLevel"`
		More         jsontext.Value `json:",embed"`
	}
	if json.Unmarshal(about, &m) != nil || m.Capabilities == nil {
		return nil
	}
	out := append([]byte(`"`+metaCapabilities+`":`), m.Capabilities...)
	if m.LogLevel != nil {
		out = append(append(out, `,"io.modelcontextprotocol/logLevel":`...), m.LogLevel...)
	}
	return out
}

// prefixParam begins the headers that repeat single arguments. No tool of the contract asks for one; one of the suite's does,
// and the SDK compares them with the body.
const prefixParam = "Mcp-Param-"

// diagnosticHeaders forwards the headers that repeat arguments.
func diagnosticHeaders(out, sent http.Header) {
	for name, values := range sent {
		if strings.HasPrefix(name, prefixParam) {
			out[name] = values
		}
	}
}

// diagnosticAnswer forwards a client's answer to a request of the server's own, which the suite's tools send in the stateful
// era. Nil: it is no answer.
func diagnosticAnswer(id, result, problem jsontext.Value) *Frame {
	if id == nil {
		return nil
	}
	body := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	if result != nil {
		body = append(append(body, `,"result":`...), result...)
	} else {
		body = append(append(body, `,"error":`...), problem...)
	}
	return &Frame{Era: Stateful, Body: append(body, '}')}
}
