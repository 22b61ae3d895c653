package canonical

import "encoding/json"

// Empty reports whether a JSON value says nothing: null, false, 0, "", an empty list, or an object of such. What is no JSON is not
// empty.
func Empty(raw []byte) bool {
	var v any
	return json.Unmarshal(raw, &v) == nil && empty(v)
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !empty(inner) {
				return false
			}
		}
		return true
	}
	return false
}
