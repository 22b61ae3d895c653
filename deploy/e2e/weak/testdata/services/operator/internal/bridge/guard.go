package bridge

import "encoding/json"

// forClient, weakened: the client gets whatever the gateway says.
func forClient(m message) (line []byte, ok bool) {
	members := map[string]any{"jsonrpc": "2.0"}
	for key, value := range map[string]json.RawMessage{"id": m.ID, "params": m.Params, "result": m.Result, "error": m.Error} {
		if len(value) > 0 {
			members[key] = value
		}
	}
	if m.Method != "" {
		members["method"] = m.Method
	}
	line, err := json.Marshal(members)
	return line, err == nil
}
