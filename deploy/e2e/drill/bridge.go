package drill

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// bridgeLines are attacks of a gateway, or of a server that speaks through it, on the client behind `durward mcp`.
func bridgeLines() []Line {
	return []Line{{"bridge-server-requests", nil, serverRequests}}
}

const (
	bridgeClient = "relay"
	// ownID is the id of the request that is being answered, in what a hostile gateway says.
	ownID = "%ID"
)

// clientNotes are the notifications that a server may send a client.
var clientNotes = []string{
	"notifications/cancelled", "notifications/message", "notifications/progress", "notifications/tasks/status",
	"notifications/prompts/list_changed", "notifications/resources/list_changed", "notifications/tools/list_changed",
	"notifications/resources/updated", "notifications/subscriptions/acknowledged",
}

// unasked is what a client did not ask for: requests of a server's, notifications that no server sends, answers to nothing.
func unasked() (messages []string) {
	for _, method := range []string{
		"sampling/createMessage", "elicitation/create", "roots/list", "ping", "initialize", "tools/call", "made/up", "notifications/progress",
	} {
		for _, id := range []string{ownID, `"` + ownID + `"`, "7", `"a"`, "null", "0", "-1", "1.5", `""`, "[1]", "{}", "true"} {
			messages = append(messages,
				fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{"messages":[],"message":"your password?"}}`, id, method),
				fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"result":{}}`, id, method))
		}
	}
	for _, method := range []string{
		"sampling/createMessage", "elicitation/create", "roots/list", "exit", "notifications/made/up", "notifications/initialized",
		"notifications/roots/list_changed", "notifications/elicitation/complete", "Notifications/Progress", "notifications/progress ",
		"notifications/progress\x00", "notifications", "",
	} {
		name, err := json.Marshal(method)
		if err != nil {
			panic(err) // every text is JSON
		}
		messages = append(messages, fmt.Sprintf(`{"jsonrpc":"2.0","method":%s,"params":{}}`, name), fmt.Sprintf(`{"jsonrpc":"2.0","method":%s}`, name))
	}
	for _, id := range []string{`"` + ownID + `"`, ownID + ".0", ownID + "1", "99", `"a"`, "null", "[" + ownID + "]"} {
		messages = append(messages, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"not":"asked for"}}`, id),
			fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"not asked for"}}`, id))
	}
	return append(messages,
		`{"jsonrpc":"2.0","method":"sampling/createMessage","Method":"notifications/progress","ID":9}`,
		`{"jsonrpc":"2.0","METHOD":"roots/list","iD":9}`, `{"jsonrpc":"2.0","id":`+ownID+`}`, `{"jsonrpc":"2.0","result":{}}`,
		`[{"jsonrpc":"2.0","id":9,"method":"roots/list"}]`, `[{"jsonrpc":"2.0","id":`+ownID+`,"result":{}}]`, `"text"`, "1", "null", "{}")
}

// serverRequests stands in for the gateway behind a client's bridge, and says what the client did not ask for: before an answer and
// after it, in its place, and in the stream of the session, in both protocol eras. Its effects are what of it reaches the client.
func serverRequests(w *world) (trials, effects int) {
	w.h.Process(harness.Gateway).Kill()
	defer w.restart(harness.Gateway, w.guards(harness.Gateway)...)
	g := &fakeGateway{stream: make(chan string)}
	listener, err := net.Listen("tcp", w.h.Address(harness.Gateway))
	w.must(err)
	server := &http.Server{Handler: g, ReadHeaderTimeout: callTime}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		_ = server.Close()
		<-served
	}()
	c := w.startBridge()
	defer c.close()
	messages := unasked()
	// Each is a way of saying a message. It returns how many it said.
	ways := []func(message string, meta string) int{
		func(message, meta string) int { // around an answer
			g.says([]string{message}, []string{message, `{"jsonrpc":"2.0","id":` + ownID + `,"result":{"once":"more"}}`,
				`{"jsonrpc":"2.0","id":` + ownID + `,"error":{"code":-32000,"message":"once more"}}`, g.fence()}, "")
			c.ask(meta)
			c.until(g.fenced)
			return 4
		},
		func(message, meta string) int { // in the place of an answer
			g.says(nil, nil, message)
			id := c.ask(meta)
			c.until(func(line string) bool {
				return strings.Contains(line, `"id":`+id+`,`) || strings.HasSuffix(line, `"id":`+id+`}`)
			})
			return 1
		},
		func(message, _ string) int { // of its own accord
			for _, line := range []string{message, g.fence()} {
				select {
				case g.stream <- strings.ReplaceAll(line, ownID, "1"):
				case <-time.After(callTime):
					w.t.Fatal("the bridge does not listen to the session's stream")
				}
			}
			c.until(g.fenced)
			return 1
		},
	}
	for range w.size(20, 1) {
		for _, message := range messages {
			for _, say := range ways {
				for _, meta := range []string{"", `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`} {
					trials += say(message, meta)
					if w.caught(c.effects) {
						return trials, c.effects
					}
				}
			}
		}
	}
	return trials, c.effects
}

// bridged is a client's program behind its bridge.
type bridged struct {
	w     *world
	in    io.WriteCloser
	lines chan string
	ended chan error
	// asked are the ids of requests without an answer.
	asked   map[string]bool
	next    int
	effects int
}

// startBridge starts the bridge of a client, and opens a session.
func (w *world) startBridge() *bridged {
	w.t.Helper()
	w.must(os.MkdirAll(w.h.Path("clients", bridgeClient), 0o700))
	w.h.WriteFile("clients/"+bridgeClient+"/token", "drill-token-relay\n")
	cmd := w.h.Command(w.h.StdioCommand(bridgeClient)...)
	in, err := cmd.StdinPipe()
	w.must(err)
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	c := &bridged{w: w, in: in, lines: make(chan string, 1000), ended: make(chan error, 1), asked: map[string]bool{}}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			c.lines <- lines.Text()
		}
		close(c.lines)
		c.ended <- errors.Join(lines.Err(), cmd.Wait())
	}()
	c.request("initialize", `"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"drill","version":"1"}`)
	c.until(func(line string) bool { return strings.Contains(line, "serverInfo") })
	_, err = io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	w.must(err)
	return c
}

func (c *bridged) request(method, params string) (id string) {
	c.next++
	id = fmt.Sprint(c.next)
	c.asked[id] = true
	_, err := fmt.Fprintf(c.in, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`+"\n", id, method, params)
	c.w.must(err)
	return id
}

// ask asks for something that only looks, with the _meta of the stateless era or none.
func (c *bridged) ask(meta string) (id string) { return c.request("tools/list", `"_meta":{`+meta+`}`) }

// until takes what the bridge says up to the last that is expected, and counts what the client did not ask for.
func (c *bridged) until(last func(line string) bool) {
	c.w.t.Helper()
	end := time.After(harness.Patience)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.w.t.Fatal("the bridge ended")
			}
			if !c.mayGet(line) {
				c.w.t.Logf("the client got %s", line)
				c.effects++
			}
			if last(line) || c.w.caught(c.effects) {
				return
			}
		case <-end:
			c.w.t.Fatal("the bridge does not go on")
		}
	}
}

// mayGet reports whether a message is a notification that servers send, or the first answer to what was asked. It takes none whose
// members two readers could read differently.
func (c *bridged) mayGet(line string) bool {
	members, read := map[string]json.RawMessage{}, json.NewDecoder(strings.NewReader(line))
	if t, err := read.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for read.More() {
		t, err := read.Token()
		key, isKey := t.(string)
		var value json.RawMessage
		if err != nil || !isKey || read.Decode(&value) != nil || members[key] != nil {
			return false
		}
		members[key] = value
	}
	id, method, params, result, problem := members["id"], members["method"], members["params"], members["result"], members["error"]
	known := 0
	for _, member := range [][]byte{members["jsonrpc"], id, method, params, result, problem} {
		if member != nil {
			known++
		}
	}
	if known != len(members) || string(members["jsonrpc"]) != `"2.0"` {
		return false
	}
	if method != nil {
		var name string
		return json.Unmarshal(method, &name) == nil && slices.Contains(clientNotes, name) && id == nil && result == nil && problem == nil
	}
	asked := c.asked[string(id)]
	delete(c.asked, string(id))
	return asked && (result == nil) != (problem == nil) && params == nil
}

func (c *bridged) close() {
	_ = c.in.Close()
	for range c.lines { // so that it ends
	}
	if err := <-c.ended; err != nil {
		c.w.t.Errorf("the bridge: %v", err)
	}
}

// fakeGateway is a gateway that somebody else runs.
type fakeGateway struct {
	stream chan string
	mu     sync.Mutex
	// before and after are said around the next answers; instead, if it is not empty, in their place.
	before, after []string
	instead       string
	fences        int
}

func (g *fakeGateway) says(before, after []string, instead string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.after, g.instead = before, after, instead
}

// fence returns a notification that the client gets after everything that was said before.
func (g *fakeGateway) fence() string {
	g.fences++
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"fence-%d","progress":1}}`, g.fences)
}

func (g *fakeGateway) fenced(line string) bool {
	return strings.Contains(line, fmt.Sprintf(`"fence-%d"`, g.fences))
}

func (g *fakeGateway) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	event := func(line string) {
		_, _ = fmt.Fprintf(rw, "data: %s\n\n", line) // a bridge that has gone hears nothing
		_ = http.NewResponseController(rw).Flush()
	}
	if r.Method == http.MethodGet {
		rw.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(rw).Flush()
		for {
			select {
			case line := <-g.stream:
				event(line)
			case <-r.Context().Done():
				return
			}
		}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if err != nil || r.Method != http.MethodPost || json.Unmarshal(body, &m) != nil || len(m.ID) == 0 {
		rw.WriteHeader(http.StatusAccepted)
		return
	}
	own := func(line string) string { return strings.ReplaceAll(line, ownID, string(bytes.TrimSpace(m.ID))) }
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case m.Method == "initialize":
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Mcp-Session-Id", "drill")
		_, _ = fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"gateway","version":"1"}}}`, m.ID)
	case g.instead != "":
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, own(g.instead))
	default:
		rw.Header().Set("Content-Type", "text/event-stream")
		for _, line := range slices.Concat(g.before, []string{`{"jsonrpc":"2.0","id":` + ownID + `,"result":{"tools":[]}}`}, g.after) {
			event(own(line))
		}
	}
}
