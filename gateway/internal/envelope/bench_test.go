package envelope

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/proto"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

func services() *executorv1.ListServicesResponse {
	out := &executorv1.ListServicesResponse{}
	for i := range 24 {
		out.Services = append(out.Services, &executorv1.ServiceSummary{
			ServiceId: fmt.Sprintf("service-%02d", i), Name: "A service [of] a few words", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Model: "org/model-70b", VramMib: 46080,
		})
	}
	return out
}

// What cleaning a list of 24 services costs that are clean, as they nearly always are.
func BenchmarkClean(b *testing.B) {
	m := services()
	b.ReportAllocs()
	for b.Loop() {
		Clean(m)
	}
}

// The last line in front of the wire, over the same list.
func BenchmarkCleaned(b *testing.B) {
	raw, err := Result(proto.Clone(services()))
	if err != nil {
		b.Fatal(err)
	}
	result := &mcp.CallToolResult{
		Meta: mcp.Meta{"durward/request_id": "r-aaaaaaaaaaaaaaaaaaaaaaaaaa"}, Content: []mcp.Content{&mcp.TextContent{Text: string(raw)}}, StructuredContent: json.RawMessage(raw),
	}
	b.ReportAllocs()
	for b.Loop() {
		Cleaned(result)
	}
}
