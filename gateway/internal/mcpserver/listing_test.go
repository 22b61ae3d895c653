package mcpserver_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/services/platform/contract"
)

// toolLists are what tools/list says in each era: name to tool.
func toolLists(t *testing.T) map[string]map[string]listedTool {
	t.Helper()
	e := newEdge(t, edgeOptions{})
	older := e.connect(t, tokenAgent)
	out := map[string]map[string]listedTool{}
	for era, raw := range map[string]json.RawMessage{
		"sessions":  e.send(t, request{session: older, body: `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}}`}).message.Result,
		"stateless": e.own(t, tokenAgent, "tools/list", "", "", "{}").message.Result,
	} {
		var list struct {
			Tools []listedTool `json:"tools"`
		}
		must(t, json.Unmarshal(raw, &list))
		out[era] = map[string]listedTool{}
		for _, tool := range list.Tools {
			out[era][tool.Name] = tool
		}
		if len(out[era]) != len(contract.Tools())-2 { // what finds others is listed where there are others
			t.Fatalf("%s: %d tools are listed, the contract has %d", era, len(out[era]), len(contract.Tools()))
		}
	}
	return out
}

type listedTool struct {
	Name         string          `json:"name"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema"`
}

// The list refuses what the contract refuses, lists and maps included: clients that check arguments find out before anybody is asked.
func TestListedInputs(t *testing.T) {
	many := func(n int, format string) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(format, i))
		}
		return strings.Join(out, ",")
	}
	arguments := map[string][]string{
		"simulate_mode": {
			`{}`, `{"start":["a","b"],"stop":["c"],"context_overrides":{"a":8192},"alternatives":0}`, `{"start":[` + many(32, `"s%d"`) + `]}`,
			`{"start":[` + many(33, `"s%d"`) + `]}`, `{"start":["a","a"]}`, `{"start":["-a"]}`, `{"start":[1]}`, `{"start":[null]}`, `{"start":"a"}`, `{"start":null}`,
			`{"context_overrides":{` + many(32, `"s%d":1`) + `}}`, `{"context_overrides":{` + many(33, `"s%d":1`) + `}}`, `{"context_overrides":{"a":0}}`,
			`{"context_overrides":{"a":131072}}`, `{"context_overrides":{"a":131073}}`, `{"context_overrides":{"a":-1}}`, `{"context_overrides":{"a":"8"}}`,
			`{"context_overrides":{"a b":8}}`, `{"context_overrides":{"":8}}`, `{"context_overrides":{"a":null}}`, `{"context_overrides":[]}`,
			`{"context_overrides":null}`, `{"alternatives":11}`, `{"alternatives":-1}`, `{"mode_id":""}`, `{"mode_id":"m\n"}`, `{"modeId":"m"}`,
		},
		"start_service": {`{}`, `{"service_id":"a"}`, `{"service_id":"a","reason":"because"}`, `{"service_id":["a"]}`, `{"service_id":"a","start":["a"]}`, `{"reason":"because"}`},
		"gpu_status":    {`{}`, `{"start":[]}`},
	}
	for era, tools := range toolLists(t) {
		for name, all := range arguments {
			schema := resolve(t, tools[name].InputSchema)
			tool, _ := contract.Lookup(name)
			agreed := map[bool]int{}
			for _, raw := range all {
				var value map[string]any
				must(t, json.Unmarshal([]byte(raw), &value))
				listed := schema.Validate(value) == nil
				delete(value, "reason") // the gateway's own
				rest, err := json.Marshal(value)
				must(t, err)
				_, err = tool.Decode(rest)
				if listed != (err == nil) {
					t.Errorf("%s: %s %.100s: the list says %t, the contract %v", era, name, raw, listed, err)
				}
				agreed[listed]++
			}
			if agreed[true] == 0 || agreed[false] == 0 {
				t.Errorf("%s: %s: %d accepted, %d refused: both are to be tried", era, name, agreed[true], agreed[false])
			}
		}
	}
}

// Whatever a sink answers fits the listed schema; every member that an answer can have is named in the list or
// in durward://results; and what has another
// type does not fit.
func TestListedResults(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	described := string(e.own(t, tokenAgent, "resources/read", "durward://results", `"uri":"durward://results"`, "{}").message.Result)
	for era, tools := range toolLists(t) {
		var text strings.Builder
		for _, tool := range tools {
			text.Write(tool.OutputSchema)
		}
		text.WriteString(described)
		said := map[string]bool{}
		for _, word := range regexp.MustCompile(`[a-z_0-9]+`).FindAllString(text.String(), -1) {
			said[word] = true
		}
		for _, tool := range contract.Tools() {
			if tools[tool.Name].Name == "" {
				continue // TestPinnedTools sees it
			}
			schema := resolve(t, tools[tool.Name].OutputSchema)
			for _, full := range []bool{false, true} {
				m := tool.NewResponse()
				if full {
					fill(m.ProtoReflect(), 0)
				}
				result, err := envelope.Result(proto.Clone(m))
				must(t, err)
				answer := fmt.Sprintf(`{"status":"ok","summary":"","request_id":"r","result":%s}`, result)
				var value map[string]any
				must(t, json.Unmarshal([]byte(answer), &value))
				if err := schema.Validate(value); err != nil {
					t.Errorf("%s: %s (filled: %t): %v\n%s", era, tool.Name, full, err, answer)
				}
				members, _ := value["result"].(map[string]any)
				if tool.OpenResult || !full {
					continue
				}
				for name, was := range members {
					members[name] = nil
					if schema.Validate(value) == nil && !message(tool, name) {
						t.Errorf("%s: %s: null fits for %s", era, tool.Name, name)
					}
					members[name] = was
				}
			}
			names(tool.Method.Output(), 0, func(path string) {
				if !tool.OpenResult && !said[path] {
					t.Errorf("%s: neither the list nor durward://results names %s of %s", era, path, tool.Name)
				}
			})
		}
	}
}

// message reports whether a member of a tool's answer is a message, whose type need not be said.
func message(tool contract.Tool, name string) bool {
	fd := tool.Method.Output().Fields().ByName(protoreflect.Name(name))
	return fd.Message() != nil && !fd.IsList() && !fd.IsMap()
}

// names visits the names of a message's members, however deep.
func names(d protoreflect.MessageDescriptor, depth int, visit func(string)) {
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		visit(string(fd.Name()))
		if fd.Message() != nil && !fd.IsMap() && depth < 5 {
			names(fd.Message(), depth+1, visit)
		}
	}
}

// fill gives every field a value.
func fill(m protoreflect.Message, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		switch {
		case depth > 5:
		case fd.IsMap():
			entries := m.Mutable(fd).Map()
			value := entries.NewValue()
			if fd.MapValue().Message() != nil {
				fill(value.Message(), depth+1)
			}
			entries.Set(protoreflect.ValueOfString("key").MapKey(), value)
		case fd.IsList():
			list := m.Mutable(fd).List()
			value := list.NewElement()
			if fd.Message() != nil {
				fill(value.Message(), depth+1)
			}
			list.Append(value)
		case fd.Message() != nil:
			fill(m.Mutable(fd).Message(), depth+1)
		case fd.Enum() != nil:
			m.Set(fd, protoreflect.ValueOfEnum(fd.Enum().Values().Get(fd.Enum().Values().Len()-1).Number()))
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString("text"))
		case fd.Kind() == protoreflect.BoolKind:
			m.Set(fd, protoreflect.ValueOfBool(true))
		case fd.Kind() == protoreflect.Uint32Kind:
			m.Set(fd, protoreflect.ValueOfUint32(7))
		}
	}
}
