// Package toollist has one tool or prompt that cannot be read cost no other. It runs in egress and in the program that lists a server's tools once,
// and what it reads is hostile.
package toollist

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/clean"
)

// wrong is the member of a _meta that says why what it is of cannot be read.
const wrong = "durward/wrong"

// Readable returns a result of tools/list or prompts/list, whose member is "tools" or "prompts", in which one that the SDK would refuse
// the whole list over stands by its name alone, with what is wrong with it, for Wrong. A server's own _meta was taken out of the list before.
func Readable[T mcp.Tool | mcp.Prompt](list []byte, member string) ([]byte, error) {
	halves := jsontext.AllowInvalidUTF8(true)
	var said map[string]jsontext.Value
	var all []jsontext.Value
	if json.Unmarshal(list, &said, halves) != nil || json.Unmarshal(said[member], &all, halves) != nil {
		return list, nil // the SDK refuses it
	}
	sound := true
	for i, raw := range all {
		err := json.Unmarshal(raw, new(T), halves)
		if err == nil && raw.Kind() == '{' {
			continue
		}
		sound = false
		why := "it is no object"
		if of, is := errors.AsType[*json.SemanticError](err); is && of.JSONPointer != "" {
			why = fmt.Sprintf("its %s is of the wrong type", clean.Line(string(of.JSONPointer[1:]), 200))
		}
		var named struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(raw, &named, halves) // one that has no name is told by its number
		if all[i], err = json.Marshal(map[string]any{"name": named.Name, "_meta": map[string]string{wrong: why}}, halves); err != nil {
			return nil, err
		}
	}
	if sound {
		return list, nil
	}
	written, err := json.Marshal(all, halves)
	if err != nil {
		return nil, err
	}
	said[member] = written
	return json.Marshal(said, halves)
}

// Wrong is what is wrong with a tool or prompt of a list that Readable returned, by its _meta, or "".
func Wrong(meta mcp.Meta) string {
	why, _ := meta[wrong].(string)
	return why
}
