// Command notes is another's MCP server, of drills: it writes a line into the file that NOTES_CALLS names for each call that reaches it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

const tools = `{"tools":[
	{"name":"add","description":"Adds a note.","inputSchema":{"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}},
	{"name":"read","description":"Reads all notes.","inputSchema":{"type":"object"}},
	{"name":"unpinned","description":"Nobody accepted it.","inputSchema":{"type":"object"}}]}`

func main() {
	calls, err := os.OpenFile(os.Getenv("NOTES_CALLS"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				ProtocolVersion string          `json:"protocolVersion"`
				Name            string          `json:"name"`
				Arguments       json.RawMessage `json:"arguments"`
			} `json:"params"`
		}
		if json.Unmarshal(lines.Bytes(), &m) != nil || len(m.ID) == 0 {
			continue
		}
		result := "{}"
		switch m.Method {
		case "initialize":
			result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"notes","version":"1"}}`, m.Params.ProtocolVersion)
		case "tools/list":
			result = tools
		case "tools/call":
			fmt.Fprintf(calls, "%s %s\n", m.Params.Name, m.Params.Arguments)
			result = `{"content":[{"type":"text","text":"done"}]}`
		}
		var line json.RawMessage = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
		if line, err = json.Marshal(line); err == nil { // on one line
			fmt.Printf("%s\n", line)
		}
	}
}
