package hostile

import (
	"maps"
	"net/http"
	"slices"
	"testing"
)

// The controls of the detectors: answers that show one thing each, and must be found out.
func TestPlantedAnswersAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want finding
	}{
		"ESC as a byte":            {"{\"a\":\"\x1b[31m\"}", escapes},
		"ESC in JSON":              {`{"error":{"message":"\u001b[31mred"}}`, escapes},
		"ESC in an event":          {"event: message\ndata: {\"result\":{\"content\":[{\"text\":\"\\u001b]0;x\\u0007\"}]}}\n\n", escapes},
		"ESC in JSON within JSON":  {`{"content":[{"text":"{\"summary\":\"\\u001b[2J\"}"}]}`, escapes},
		"C1":                       {`{"a":"\u009b31m"}`, escapes},
		"not UTF-8":                {"{\"a\":\"\xff\"}", escapes},
		"NUL in a key":             {`{"a\u0000":1}`, escapes},
		"bidi override":            {`{"a":"x\u202ey"}`, hidden},
		"zero width":               {`{"a":"x\u200by"}`, hidden},
		"tag characters":           {"{\"a\":\"\U000e0041\"}", hidden},
		"a home folder":            {`{"error":{"message":"open /home/ada/.durward/x: no such file"}}`, paths},
		"a state folder":           {`{"a":"at \"/var/lib/durward/vault.db\""}`, paths},
		"a path in plain text":     {"404 not found: /etc/durward", paths},
		"a drive":                  {`{"a":"C:\\Users\\ada"}`, paths},
		"a file URL":               {`{"a":"file:///x"}`, paths},
		"traversal":                {`{"a":"../../x"}`, paths},
		"a path in JSON in JSON":   {`{"text":"{\"m\":\"see /root/.ssh\"}"}`, paths},
		"a stack":                  {`{"a":"goroutine 12 [running]"}`, stacks},
		"a line of Go":             {`{"a":"server.go:204"}`, stacks},
		"a Go type":                {`{"a":"cannot use *net.OpError"}`, stacks},
		"a package":                {`{"a":"durward.internal/services/vault"}`, stacks},
		"SQL":                      {`{"a":"select x from y where z"}`, stacks},
		"gRPC's words":             {`{"a":"rpc error: code = Internal"}`, stacks},
		"what was sent comes back": {`{"a":"there is no planted-string"}`, echoes},
	} {
		t.Run(name, func(t *testing.T) {
			remembers := &inspector{}
			for range 2 {
				found := slices.Collect(maps.Keys(remembers.inspect(nil, []byte(tc.body), "planted-string")))
				if !slices.Contains(found, tc.want) {
					t.Errorf("found %v in %q, want %s", found, tc.body, tc.want)
				}
			}
		})
	}
	if found := inspect(http.Header{"X-A": {"a\x1b[31m"}}, nil, ""); found[escapes] == "" {
		t.Error("an escape in a header is not found")
	}
}

// What the product says in the ordinary course is no finding.
func TestOrdinaryAnswersPass(t *testing.T) {
	for _, body := range []string{
		"", `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"MCP is served at /mcp."}}`,
		`{"message":"The client must accept application/json and text/event-stream."}`,
		"event: message\ndata: {\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"{\\\"summary\\\":\\\"ok\\\\nthen\\\"}\"}]}}\n\n",
		`{"base_url":"http://127.0.0.1:8000/v1","uri":"durward://services/demo-chat","schema":"https://json-schema.org/draft/2020-12/schema"}`,
		`{"pattern":"^[a-zA-Z0-9][a-zA-Z0-9_\\-]{0,63}$","text":"Ask the operator to run: durward approvals"}`,
	} {
		if found := inspect(nil, []byte(body), ""); len(found) > 0 {
			t.Errorf("%v in %s", found, body)
		}
	}
}

// An answer that is like a good one but for its request id is not looked at again; any other is.
func TestInspectorRemembers(t *testing.T) {
	i := &inspector{}
	const id, other = "r-aaaaaaaaaaaaaaaaaaaaaaaaaa", "r-abcdefghijklmnopqrstuvwxyz"
	good, again := `{"request_id":"`+id+`","message":"no"}`, `{"request_id":"`+other+`","message":"no"}`
	for _, body := range []string{good, again} {
		if found := i.inspect(nil, []byte(body), "something-sent"); len(found) > 0 || len(i.good) != 1 {
			t.Errorf("%v, %d remembered", found, len(i.good))
		}
	}
	for body, want := range map[string]finding{
		`{"request_id":"` + id + `","message":"no /etc/passwd"}`: paths, `{"request_id":"r-/home/ada/aaaaaaaaaaaaaaaaa","message":"no"}`: paths,
		`{"request_id":"` + id + `","message":"something-sent"}`: echoes,
	} {
		if found := i.inspect(nil, []byte(body), "something-sent"); found[want] == "" {
			t.Errorf("%v in %s", found, body)
		}
	}
	if found := i.inspect(nil, []byte(good), "\"message\""); found[echoes] == "" {
		t.Error("an echo in a remembered answer is not found")
	}
}
