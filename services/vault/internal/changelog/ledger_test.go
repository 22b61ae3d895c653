package changelog

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/journal"
)

// TestAnnouncementsAreBounded: what is announced and never done takes a bounded room, and gives it back with time.
func TestAnnouncementsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(t.Context(), Config{
			Store: nothingInForce{}, Journal: journal.New(heard{}, time.Now, platformtest.Logger()), Now: time.Now, Logger: platformtest.Logger(),
		})
		if err != nil {
			t.Fatal(err)
		}
		announce := func(n int) error {
			v := &statement.Verified{Statement: &statement.Statement{Change: &statement.Change{File: "security.yaml"}}, Digest: [32]byte{byte(n), byte(n >> 8)}}
			return l.Announce(t.Context(), &callv1.HumanStatement{}, v, "")
		}
		for n := range most {
			if err := announce(n); err != nil {
				t.Fatalf("announcement %d: %v", n, err)
			}
		}
		if err := announce(most); !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
			t.Errorf("one more: %v", err)
		}
		if err := announce(0); !fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) {
			t.Errorf("one of them again: %v", err)
		}
		time.Sleep(Patience + 2*statement.Skew + time.Second) // the bubble's clock
		if err := announce(most); err != nil {
			t.Errorf("once they are over: %v", err)
		}
	})
}

// nothingInForce remembers no file.
type nothingInForce struct{ Store }

func (nothingInForce) InForce(context.Context) (map[string]string, error) {
	return map[string]string{}, nil
}
