package bridge

import (
	"encoding/json"
	"fmt"

	"durward.internal/services/platform/canonical"
)

// setMeta sets members of params._meta, and removes those that are nil. Everything else keeps its bytes, and a message that
// needs no change all of them. So does one that is not strict JSON, or has no room for _meta: written anew it would be
// another one than the client sent, and the gateway says what is wrong with it.
func setMeta(line []byte, members map[string]json.RawMessage) ([]byte, error) {
	message, ok := object(line)
	if !ok || canonical.Strict(line) != nil {
		return line, nil
	}
	params, ok := object(message["params"])
	if !ok {
		return line, nil
	}
	meta, ok := object(params["_meta"])
	if !ok {
		return line, nil
	}
	changed := false
	for key, value := range members {
		if value != nil {
			meta[key], changed = value, true
		} else if _, there := meta[key]; there {
			delete(meta, key)
			changed = true
		}
	}
	if !changed {
		return line, nil
	}
	var err error
	if params["_meta"], err = json.Marshal(meta); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	if message["params"], err = json.Marshal(params); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	return json.Marshal(message)
}

// object reads a JSON object's members; what is absent has none.
func object(raw json.RawMessage) (members map[string]json.RawMessage, ok bool) {
	if len(raw) == 0 {
		return map[string]json.RawMessage{}, true
	}
	return members, json.Unmarshal(raw, &members) == nil && members != nil
}
