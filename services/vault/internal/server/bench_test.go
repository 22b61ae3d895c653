package server

import (
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/usage"
)

// BenchmarkDecide is the decision of one call with the settings that bind it, storage excluded: what Authorise adds to policy's own
// BenchmarkDecide.
func BenchmarkDecide(b *testing.B) {
	rules, err := security.Open(security.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(rules.Close)
	v := &Server{Config: Config{Security: rules, Now: time.Now}}
	client := &clients.Client{ID: bearer, Channel: callv1.Channel_CHANNEL_CLI, Ceiling: optionsv1.Tier_TIER_WRITE}
	tool, _ := contract.Lookup("start_service")
	b.ReportAllocs()
	for b.Loop() {
		v.judgeClient(client).Decide(tool, []byte(`{"service_id":"a"}`), usage.Counts{})
	}
}
