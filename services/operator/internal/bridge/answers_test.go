package bridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// A connection that breaks behind the answer took nothing away: the client hears no second answer, and nothing is sent again.
func TestBrokenBehindTheAnswer(t *testing.T) {
	g := newGateway(t, nil)
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", m.ID)
		_ = http.NewResponseController(w).Flush() // whom the bridge does not hear fails the test
		panic(http.ErrAbortHandler)
	}
	c := start(t, g, nil, nil)
	c.handshake()
	for id, name := range []string{"gpu_status", "start_service"} {
		line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, id, name)
		var m message
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		var got []string
		err := c.bridge.exchange(t.Context(), []byte(line), m, "", func(answer []byte) { got = append(got, string(answer)) })
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, id); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, %s", name, err, got)
		}
		if n := strings.Count(g.events(), fmt.Sprintf("tools/call %d", id)); n != 1 {
			t.Errorf("%s was sent %d times", name, n)
		}
	}
	c.close()
}
