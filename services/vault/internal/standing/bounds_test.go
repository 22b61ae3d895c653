package standing

import (
	"context"
	"testing"
	"testing/synctest"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/halt"
)

// No scope covers desktop control, nor a tool that has no tier.
func TestWhatNoScopeCovers(t *testing.T) {
	for name, c := range map[string]struct {
		tool  contract.Tool
		taken bool
	}{
		"an ordinary tool":     {contract.Tool{Name: "start_service", Tier: optionsv1.Tier_TIER_WRITE}, true},
		"control of a desktop": {contract.Tool{Name: "type_text", Tier: optionsv1.Tier_TIER_WRITE, Tags: []string{"desktop:keyboard"}}, false},
		"of any kind":          {contract.Tool{Name: "look", Tier: optionsv1.Tier_TIER_READ, Tags: []string{"desktop"}}, false},
		"no tier":              {contract.Tool{Name: "start_service"}, false},
	} {
		if err := scopable(c.tool); (err == nil) != c.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// So many watch at once, and no more; one that leaves makes room.
func TestWatchersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Approvals{Config: Config{Halt: &halt.Switch{}, Lists: func() <-chan struct{} { return nil }}, watchers: map[*watcher]struct{}{}}
		ctx, leave := context.WithCancel(t.Context())
		begun, quiet := func() error { return nil }, func(*vaultv1.WatchSessionsResponse) error { return nil }
		for range maxWatchers {
			go func() { _ = b.Watch(ctx, begun, quiet) }() // it ends with its ctx
		}
		synctest.Wait()
		if err := b.Watch(t.Context(), begun, quiet); !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
			t.Errorf("one too many: %v", err)
		}
		leave()
		synctest.Wait()
		late, end := context.WithCancel(t.Context())
		end()
		if err := b.Watch(late, begun, quiet); fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
			t.Errorf("once there is room: %v", err)
		}
	})
}
