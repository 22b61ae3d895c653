package mcpserver

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"durward.internal/services/platform/canonical"
)

func TestSplitReason(t *testing.T) {
	for _, c := range []struct{ in, rest, reason string }{
		{`{"service_id":"a","reason":"why"}`, `{"service_id":"a"}`, "why"},
		{`{"reason":"why","service_id":"a"}`, `{"service_id":"a"}`, "why"},
		{`{ "reason" : "a\u202eb\nc" }`, `{}`, "a\u202eb\nc"},
		{`{"service_id":"a","r\u0065ason":"why"}`, `{"service_id":"a"}`, "why"},
		{`{"service_id":"reason"}`, `{"service_id":"reason"}`, ""},
		{`{"a":{"reason":"inner"}}`, `{"a":{"reason":"inner"}}`, ""},
		{`["reason"]`, `["reason"]`, ""},
	} {
		rest, reason, err := splitReason(json.RawMessage(c.in))
		if err != nil || string(rest) != c.rest || reason != c.reason {
			t.Errorf("%s: %s, %q, %v", c.in, rest, reason, err)
		}
	}
}

// Whatever strict JSON comes in, nothing but the member reason leaves it.
func FuzzSplitReason(f *testing.F) {
	for _, seed := range []string{
		`{"service_id":"a","reason":"why"}`, `{"reason":3}`, `{"r\u0065ason":"x"}`, `[]`, `{}`, `{"a":{"reason":[1,{"b":null}]},"reason":""}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if canonical.Strict(in) != nil || !bytes.HasPrefix(in, []byte("{")) {
			return // the front lets nothing else through, and the contract refuses what is no object
		}
		rest, _, err := splitReason(in)
		if err != nil {
			return
		}
		if err := canonical.Strict(rest); err != nil {
			t.Fatalf("%q became %q: %v", in, rest, err)
		}
		var before, after map[string]any
		if json.Unmarshal(in, &before) != nil || json.Unmarshal(rest, &after) != nil {
			t.Fatalf("%q became %q", in, rest)
		}
		delete(before, "reason")
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%q became %q", in, rest)
		}
	})
}
