package server

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// What a gateway tells of itself operators see under the name on its certificate, with the time; nothing of it stays of too many.
func TestGatewaysTellOfThemselves(t *testing.T) {
	v := newVault(t)
	tell := func(instance string, health *vaultv1.GatewayHealth) {
		t.Helper()
		_, err := vaultv1.NewSessionServiceClient(v.as(gateway, instance)).TellHealth(t.Context(), &vaultv1.TellHealthRequest{Health: health})
		v.must(err)
	}
	listed := func() []*vaultv1.Gateway {
		t.Helper()
		out, err := v.control().GetStatus(t.Context(), &vaultv1.GetStatusRequest{})
		v.must(err)
		return out.GetGateways()
	}
	tell("main", &vaultv1.GatewayHealth{ExecutorReachable: true})
	v.clock.advance(time.Minute)
	tell("second", &vaultv1.GatewayHealth{})
	well := &vaultv1.GatewayHealth{ExecutorReachable: true, AuditReachable: true, OpenSessions: 3}
	tell("main", well)
	got := listed()
	if len(got) != 2 || got[0].GetIdentity() != v.ID(gateway, "main").String() || !proto.Equal(got[0].GetHealth(), well) || !got[0].GetToldAt().AsTime().Equal(v.clock.Now()) {
		t.Errorf("%v", got)
	}
	for i := range maxGateways {
		v.server.gateways.hear(fmt.Sprint(i), well, v.clock.Now())
	}
	tell("second", well)
	if got := listed(); len(got) != maxGateways || got[len(got)-1].GetIdentity() != v.ID(gateway, "second").String() {
		t.Errorf("%d: %v", len(got), got)
	}
}
