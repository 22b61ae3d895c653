package server

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// maxGateways is how many gateways are remembered.
const maxGateways = 16

// gateways are what gateways said of themselves last. Its zero value is ready; it is safe for concurrent use.
type gateways struct {
	mu sync.Mutex
	of []*vaultv1.Gateway // the last to tell is the last
}

// hear takes what one says in place of what it said before; of too many the one that told longest ago is forgotten.
func (g *gateways) hear(identity string, health *vaultv1.GatewayHealth, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(g.of), func(other *vaultv1.Gateway) bool { return other.GetIdentity() == identity })
	g.of = append(rest[max(0, len(rest)+1-maxGateways):], &vaultv1.Gateway{Identity: identity, ToldAt: timestamppb.New(now), Health: health})
}

// list returns them by identity.
func (g *gateways) list() []*vaultv1.Gateway {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(slices.Values(g.of), func(a, b *vaultv1.Gateway) int { return cmp.Compare(a.GetIdentity(), b.GetIdentity()) })
}
