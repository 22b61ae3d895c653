package store

import (
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/sink"
)

func spend(key string, statement *sink.Use) *sink.Spend {
	return &sink.Spend{
		Key: key, Operation: "op", Use: 1, Tool: "start_service", Arguments: []byte("{}"), ArgumentsDigest: make([]byte, 32), RequestID: "r-1",
		Principal: "p", Session: "s", Channel: callv1.Channel_CHANNEL_CLI, Dangerous: true, At: time.Unix(100, 0), Until: time.Unix(1000, 0), Statement: statement,
	}
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
