package standing

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/session"
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

// What is in force fits into one message, however long each statement is; what is used up counts no more.
func TestWhatStandsFitsIntoAMessage(t *testing.T) {
	one := func(ref string) *entry {
		s := &statement.Statement{ID: ref, Session: ref}
		return &entry{Verified: &statement.Verified{Statement: s}, session: &session.Session{}, human: &callv1.HumanStatement{Statement: make([]byte, 64<<10)}}
	}
	b := &Approvals{held: map[string]*entry{}}
	var refused error
	for refused == nil && len(b.held) < InAll {
		e := one(fmt.Sprint("s", len(b.held)))
		if refused = b.underCaps(e); refused == nil {
			b.held[e.ID] = e
		}
	}
	list := &vaultv1.ListStandingResponse{}
	for _, e := range b.held {
		list.Standing = append(list.Standing, shown(e))
	}
	if size := proto.Size(list); !fault.Is(refused, callv1.Code_CODE_RATE_LIMITED) || size > rpc.MaxMessageBytes || size < MaxBytes-128<<10 {
		t.Errorf("%d of them, %d bytes, then %v", len(b.held), size, refused)
	}
	b.held["s0"].spent = true
	if err := b.underCaps(one("another")); err != nil {
		t.Errorf("once one is used up: %v", err)
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
