// Package toollist has one tool that cannot be read cost no other. It runs in egress and in the program that lists a server's tools once,
// and what it reads is hostile.
package toollist

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/clean"
)

// wrong is the member of a tool's _meta that says why it cannot be read.
const wrong = "durward/wrong"

// Readable returns a result of tools/list in which a tool that the SDK would refuse the whole list over stands by its name alone, with
// what is wrong with it, for Wrong. A server's own _meta was taken out of the list before.
func Readable(list []byte) ([]byte, error) {
	halves := jsontext.AllowInvalidUTF8(true)
	var said struct {
		Tools []jsontext.Value `json:"tools"`
		Next  jsontext.Value   `json:"nextCursor,omitempty"`
	}
	if json.Unmarshal(list, &said, halves) != nil {
		return list, nil // the SDK refuses it
	}
	for i, raw := range said.Tools {
		err := json.Unmarshal(raw, new(mcp.Tool), halves)
		if err == nil && raw.Kind() == '{' {
			continue
		}
		why := "it is no object"
		if of, is := errors.AsType[*json.SemanticError](err); is && of.JSONPointer != "" {
			why = fmt.Sprintf("its %s is of the wrong type", clean.Line(string(of.JSONPointer[1:]), 200))
		}
		var named struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(raw, &named, halves) // one that has no name gets a number
		said.Tools[i], err = json.Marshal(map[string]any{
			"name": cmp.Or(named.Name, fmt.Sprintf("tool %d", i+1)), "_meta": map[string]string{wrong: why},
		}, halves)
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(said, halves)
}

// Wrong is what is wrong with a tool of a list that Readable returned, or "".
func Wrong(tool *mcp.Tool) string {
	why, _ := tool.Meta[wrong].(string)
	return why
}
