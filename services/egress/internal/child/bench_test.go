package child

import (
	"encoding/json"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/downstream"
)

// BenchmarkCall is a call through a Manager beside the same call with the SDK's own client, to the same program.
func BenchmarkCall(b *testing.B) {
	arguments := json.RawMessage(`{"path":"/data/notes.txt","tail":100}`)
	b.Run("manager", func(b *testing.B) {
		m := New(Config{Start: execute, Env: environment})
		defer m.Close()
		m.Set([]downstream.Pinned{pinned("good")})
		for b.Loop() {
			if _, err := m.Call(b.Context(), "agent", "good", "echo", arguments, sure); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		session := bare(b, "good", nil)
		for b.Loop() {
			if _, err := session.CallTool(b.Context(), &mcp.CallToolParams{Name: "echo", Arguments: arguments}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
