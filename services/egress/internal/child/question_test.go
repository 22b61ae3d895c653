package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/downstream"
)

// elicit has the server say elicitation/create with these params, and returns what the client says to it.
func (h *hostile) elicit(in interface{ ReadBytes(byte) ([]byte, error) }, params string) string {
	h.send(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":%s}`, h.calls, params)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return ""
		}
		var reply asked
		if err := json.Unmarshal(line, &reply); err != nil {
			panic(err)
		}
		switch reply.Method {
		case "":
			return string(reply.Result) + string(reply.Error)
		case "tools/call":
			h.later = line
		}
	}
}

// inquirer is a server in force that may ask during a call.
func inquirer(t *testing.T, id string) downstream.Pinned {
	t.Helper()
	p := pinned(id)
	p.Entry.Elicitation = true
	tools, findings := downstream.Clean(id, []downstream.Listed{{Kind: downstream.KindAnswer}})
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	p.Tools = append(p.Tools, tools...)
	return p
}

func reply(m *Manager, principal, server, question, rest string) (Result, error) {
	arguments := fmt.Sprintf(`{%s"question":%q}`, rest, question)
	return m.Call(context.Background(), principal, server, downstream.AnswerQuestion, []byte(arguments), sure)
}

const aForm = `{"message":"Which \u001b[31mcolour\u202e?","mode":"form","_meta":{"a":1},"requestedSchema":{"type":"object","required":["colour"],"$defs":{},` +
	`"properties":{"colour":{"type":"string","enum":["red","blue"],"pattern":"^[a-z]+$","title":"C\u200bolour"},"often":{"type":"integer","minimum":1,"default":2}}}}`

// TestQuestions: what a server asks during a call is its answer, made anew; the answer to it goes to the server, and the call on.
func TestQuestions(t *testing.T) {
	m := manager(t, inquirer(t, "inquires"))
	got, err := call(m, "inquires")
	must(t, err)
	const schema = `{"properties":{"colour":{"enum":["red","blue"],"title":"Colour","type":"string"},"often":{"default":2,"minimum":1,"type":"integer"}},"required":["colour"],"type":"object"}`
	if len(got.Question) != 10 || len(got.Content) != 2 || got.Content[0].Text != "Which colour?" || got.Content[1].Text != schema {
		t.Fatalf("it asks %+v", got)
	}
	if asked := m.Asked("inquires", got.Question); asked != "Which colour?" {
		t.Errorf("a human who decides sees %q", asked)
	}
	if _, err := call(m, "inquires"); err == nil || !strings.Contains(err.Error(), "it waits for an answer to its question "+got.Question) {
		t.Errorf("another call meanwhile: %v", err)
	}
	for rest, want := range map[string]string{
		`"action":"accept","content":{"colour":"green"},`:           "/colour: value must be one of 'red', 'blue'",
		`"action":"accept","content":{"colour":"red","often":0.5},`: "the content is not what it asks for",
		`"action":"accept",`: "the content is not what it asks for",
	} {
		if _, err := reply(m, "agent", "inquires", got.Question, rest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rest, err)
		}
	}
	if _, err := reply(m, "another", "inquires", got.Question, `"action":"decline",`); err == nil || !strings.Contains(err.Error(), "no question of that name") {
		t.Errorf("another principal answers: %v", err)
	}
	for _, other := range []string{"", strings.Repeat("b", 10)} {
		if _, err := reply(m, "agent", "inquires", other, `"action":"decline",`); err == nil || m.Asked("inquires", other) != "" {
			t.Errorf("a question that nobody asked is answered: %v", err)
		}
	}
	done, err := reply(m, "agent", "inquires", got.Question, `"action":"accept","content":{"colour":"blue"},`)
	if want := `{"action":"accept","content":{"colour":"blue","often":2}}`; err != nil || done.Question != "" || done.Content[0].Text != want {
		t.Errorf("the call came to %+v, %v, want %s", done, err, want)
	}
	if _, err := reply(m, "agent", "inquires", got.Question, `"action":"accept","content":{"colour":"blue"},`); err == nil {
		t.Error("a question is answered twice")
	}
	if got, err = call(m, "inquires"); err != nil {
		t.Fatal(err)
	}
	if done, err := reply(m, "agent", "inquires", got.Question, `"action":"decline",`); err != nil || done.Content[0].Text != `{"action":"decline"}` {
		t.Errorf("a decline: %+v, %v", done, err)
	}
}

// TestQuestionsEnd: a panic, the end of the server and a caller that leaves end what waits; and no server asks without end.
func TestQuestionsEnd(t *testing.T) {
	m := manager(t, inquirer(t, "inquires"), inquirer(t, "insists"), inquirer(t, "impatient"))
	end := func(what string, do func()) {
		t.Helper()
		got, err := call(m, "inquires")
		if err != nil || got.Question == "" {
			t.Fatal(got, err)
		}
		do()
		if _, err := reply(m, "agent", "inquires", got.Question, `"action":"accept","content":{"colour":"blue"},`); err == nil {
			t.Errorf("%s: the question is answered all the same", what)
		}
	}
	end("a panic", func() {
		must(t, m.Freeze())
		must(t, m.Thaw())
	})
	end("a restart", func() {
		must(t, m.Restart("inquires"))
	})
	// A server may end the call without an answer. Whether the question came first is chance.
	got, err := call(m, "impatient")
	if err == nil && got.Question != "" {
		got, err = reply(m, "agent", "impatient", got.Question, `"action":"decline",`)
	}
	if err != nil || got.Content[0].Text != "I went on" {
		t.Errorf("a call that ended before its question was answered: %+v, %v", got, err)
	}
	got, err = call(m, "insists")
	times := 0
	for ; err == nil && got.Question != ""; times++ {
		got, err = reply(m, "agent", "insists", got.Question, `"action":"cancel",`)
	}
	if err != nil || times != maxQuestions || !strings.Contains(got.Content[0].Text, "a call asks 8 times at most") {
		t.Errorf("it asked %d times, and came to %+v, %v", times, got, err)
	}
}

// TestQuestionsOutsideCalls: nobody is asked by a server that nobody calls, or by a tool of the server's own that has the name of ours.
func TestQuestionsOutsideCalls(t *testing.T) {
	m := manager(t, inquirer(t, "inquires-early"), inquirer(t, "inquires-namesake"))
	got, err := call(m, "inquires-early")
	if err != nil || !strings.Contains(got.Content[0].Text, `"nobody calls"`) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := call(m, "inquires-namesake"); err == nil || !strings.Contains(err.Error(), `it lists a tool that has the name of ours, answer_question`) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestForms: what is no flat form goes nowhere.
func TestForms(t *testing.T) {
	field := func(field string) string {
		return `{"message":"m","requestedSchema":{"type":"object","properties":{"a":` + field + `}}}`
	}
	for _, params := range []string{
		``, `null`, `[]`, `{}`, `{"message":"m"}`, `{"message":7,"requestedSchema":{"type":"object"}}`, `{"message":"m","mode":"url","url":"https://phish.example/"}`,
		`{"message":"m","requestedSchema":{"type":"array"}}`, `{"message":"m","requestedSchema":{"type":"object","required":["b"]}}`,
		`{"message":"m","requestedSchema":{"type":"object","properties":{"a\u200b":{"type":"string"}}}}`,
		`{"message":"` + strings.Repeat("m", maxForm) + `","requestedSchema":{"type":"object"}}`,
		field(`null`), field(`true`), field(`{}`), field(`{"type":"object"}`), field(`{"type":["string","null"]}`), field(`{"$ref":"#"}`),
		field(`{"type":"string","enum":["red\u202e"]}`), field(`{"type":"string","enum":[{}]}`), field(`{"type":"string","default":{"a":1}}`),
		field(`{"type":"string","default":"\u001b[0m"}`), field(`{"type":"array"}`), field(`{"type":"array","items":{"type":"array","items":{"type":"string"}}}`),
		field(`{"type":"string","items":{"type":"string"}}`), field(`{"type":"string","minLength":-1}`),
		field(`{"type":"string","enum":[` + strings.Repeat(`"a",`, 2*maxChoices) + `"a"]}`),
	} {
		if out, err := formOf([]byte(params)); err == nil {
			t.Errorf("%s passes as %s", params, out)
		}
	}
	for in, want := range map[string]string{
		`{"type":"array","items":{"anyOf":[{"const":"a","title":"A"},{"const":"b","title":"B"}]},"minItems":1}`: `{"type":"array","items":{"anyOf":[{"const":"a","title":"A"},{"const":"b","title":"B"}]},"minItems":1}`,
		`{"anyOf":[{"type":"integer"},{"type":"null"}],"default":null,"title":"Age"}`:                           `{"type":"integer","title":"Age"}`,
		`{"type":"string","oneOf":[{"const":"a","title":"A"}],"default":"a"}`:                                   `{"type":"string","oneOf":[{"const":"a","title":"A"}],"default":"a"}`,
		`{"type":"string","enum":["a"],"enumNames":["A"]}`:                                                      `{"type":"string","enum":["a"],"enumNames":["A"]}`,
		`{"anyOf":[{"type":"integer"},{"type":"string"}]}`:                                                      "",
		`{"anyOf":[{"const":"a"}]}`:                                                                             "",
		`{"type":"array","items":{"anyOf":[{"type":"integer"}]}}`:                                               "",
		`{"type":"array","items":{"anyOf":[{"type":"object"},{"const":"a"}]}}`:                                  "",
		`{"anyOf":[{"type":"object"},{"type":"null"}]}`:                                                         "",
	} {
		got, err := formOf([]byte(field(in)))
		if want != "" {
			want = field(want)
		}
		if same := sameJSON(t, string(got), want); !same || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		`{"content":[]}`: `{"content":[]}`,
		`{"inputRequests":{"a":{"Method":"x","method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","$ref":"#"}}}}}`: `{"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"properties":{},"type":"object"}}}}}`,
		`{"inputRequests":{"a":{"method":"roots/list","params":{}}},"requestState":"s"}`:                                                               `{"inputRequests":{"a":{"method":"roots/list","params":{}}},"requestState":"s"}`,
		`{"inputRequests":[]}`:         "",
		`{"inputRequests":{"a":null}}`: "",
		`{"inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"url","url":"https://phish.example/"}}}}`: "",
	} {
		got, err := forms([]byte(in))
		if same := sameJSON(t, string(got), want); !same || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	if a == "" || b == "" {
		return a == b
	}
	var x, y any
	must(t, errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)))
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// TestQuestionsElsewhere: a server of the newest revision asks by its answer, and is called again with what it wants; one of the revision
// before asks by a request.
func TestQuestionsElsewhere(t *testing.T) {
	for _, newest := range []bool{true, false} {
		t.Run(fmt.Sprint(newest), func(t *testing.T) { elsewhere(t, newest) })
	}
}

func elsewhere(t *testing.T, newest bool) {
	server := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "echo", Description: "says it again", InputSchema: map[string]any{"type": "object"}},
		func(_ context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if said, ok := request.Params.InputResponses["user"].(*mcp.ElicitResult); ok {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(said.Action, said.Content["colour"], request.Params.RequestState)}}}, nil
			}
			var params mcp.ElicitParams
			if err := json.Unmarshal([]byte(aForm), &params); err != nil {
				return nil, err
			}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"user": &params}, RequestState: "state"}, nil
		})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(_ *http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: newest}))
	t.Cleanup(web.Close)
	m := remoteManager(t, web.URL)
	p := inquirer(t, "far")
	p.Entry.Program, p.Entry.URL, p.Entry.Bearer = nil, web.URL, "token"
	m.Set([]downstream.Pinned{p})
	got, err := call(m, "far")
	if err != nil || got.Question == "" || got.Content[0].Text != "Which colour?" {
		t.Fatal(got, err)
	}
	if done, err := reply(m, "agent", "far", got.Question, `"action":"accept","content":{"colour":"red"},`); err != nil || done.Content[0].Text != "acceptredstate" {
		t.Errorf("%+v, %v", done, err)
	}
}

// TestQuestionsWithoutTheGuards is the control of TestQuestions: the SDK's own client passes the same question on as it is.
func TestQuestionsWithoutTheGuards(t *testing.T) {
	var asked *mcp.ElicitParams
	session := bare(t, "inquires", &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked = req.Params
		return &mcp.ElicitResult{Action: "decline"}, nil
	}})
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"}); err != nil {
		t.Fatal(err)
	}
	schema, err := json.Marshal(asked.RequestedSchema)
	if err != nil || !strings.Contains(asked.Message, "\x1b") || !strings.Contains(string(schema), `"pattern"`) {
		t.Errorf("the question is clean: %q %s, %v", asked.Message, schema, err)
	}
}
