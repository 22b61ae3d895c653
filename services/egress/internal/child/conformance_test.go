package child

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"durward.internal/services/platform/downstream"
)

// conform is the client of the official conformance suite: it lists what a server has, accepts it as a human would, and calls each tool.
func conform(url string) error {
	ctx := context.Background()
	config := Config{Remote: &http.Transport{}}
	server := downstream.Pinned{Entry: downstream.Entry{ID: "suite", URL: url, Elicitation: true, Timeouts: downstream.Timeouts{Ready: 20 * time.Second, Call: 20 * time.Second}}}
	listed, err := List(ctx, config, server)
	if err != nil {
		return err
	}
	pin, findings := downstream.Pin("suite", listed.Instructions, listed.Tools)
	for _, finding := range findings {
		fmt.Fprintln(os.Stderr, finding.Tool, finding.Text)
	}
	server.Instructions, server.Tools = pin.Instructions, pin.Tools
	m := New(config)
	defer m.Close()
	m.Set([]downstream.Pinned{server})
	arguments := map[string]json.RawMessage{"add_numbers": []byte(`{"a":5,"b":3}`)}
	for _, tool := range server.Tools {
		if tool.Name == "json_schema_2020_12_tool" {
			arguments["json_schema_echo"] = []byte(`{"schema":` + string(tool.Input) + `}`)
		}
	}
	type toolCall struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	var given struct {
		Calls []toolCall `json:"toolCalls"`
	}
	if text := os.Getenv("MCP_CONFORMANCE_CONTEXT"); text != "" {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			return err
		}
	}
	if len(given.Calls) == 0 {
		for _, tool := range server.Tools {
			if server.Entry.Answers(tool.Name) {
				continue
			}
			one := toolCall{tool.Name, []byte(`{"region":"us-west1"}`)}
			if a := arguments[tool.Name]; a != nil {
				one.Arguments = a
			}
			given.Calls = append(given.Calls, one)
		}
	}
	for _, one := range given.Calls {
		result, err := m.Call(ctx, "suite", "suite", one.Name, one.Arguments, sure)
		for err == nil && result.Question != "" {
			fmt.Fprintln(os.Stderr, "it asks", result)
			answer := fmt.Appendf(nil, `{"question":%q,"action":"accept","content":{}}`, result.Question)
			result, err = m.Call(ctx, "suite", "suite", downstream.AnswerQuestion, answer, sure)
		}
		fmt.Fprintln(os.Stderr, one.Name, result, err)
	}
	return nil
}
