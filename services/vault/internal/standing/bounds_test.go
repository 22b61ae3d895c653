package standing

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
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
