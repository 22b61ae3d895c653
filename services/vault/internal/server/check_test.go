package server

import (
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

func (v *vault) check(g *callv1.SignedGrant) error {
	client := vaultv1.NewCheckServiceClient(v.as(executor, "local"))
	_, err := client.CheckGrant(v.t.Context(), &vaultv1.CheckGrantRequest{Grant: g})
	return err
}

// What a redeemed call rests on can end while the call waits for its turn: the sink that asks is told so.
func TestCheckGrant(t *testing.T) {
	const stopUnasked = `@id("unasked") permit (principal, action == Action::"callWithoutApproval:start_service", resource);`
	dangerous := func(v *vault) (*vaultv1.OpenSessionResponse, *callv1.SignedGrant) {
		opened := v.openBound(1)
		v.dangerous(opened.GetSession())
		return opened, v.call(opened, 1, "start_service", "a").GetGrant()
	}
	scope := func(v *vault) (*vaultv1.OpenSessionResponse, *callv1.SignedGrant) {
		opened := v.openBound(1)
		_, err := v.standing().GrantScope(v.t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bound, 1))})
		v.must(err)
		return opened, v.call(opened, 1, "start_service", "a").GetGrant()
	}
	unattended := func(v *vault) (*vaultv1.OpenSessionResponse, *callv1.SignedGrant) {
		v.rule("policy/unasked.cedar", stopUnasked)
		opened := v.openBound(1)
		return opened, v.call(opened, 1, "start_service", "a").GetGrant()
	}
	approved := func(v *vault) (*vaultv1.OpenSessionResponse, *callv1.SignedGrant) {
		opened, _, g := v.granted(bearer, "a")
		return opened, g
	}
	read := func(v *vault) (*vaultv1.OpenSessionResponse, *callv1.SignedGrant) {
		opened := v.open(bearer)
		resp, err := v.authority().Authorise(v.t.Context(), request(opened.GetSessionId(), "service_info", "a"))
		v.must(err)
		return opened, resp.GetGrant()
	}
	nothing := func(*vault, *vaultv1.OpenSessionResponse) {}
	revoked := func(v *vault, opened *vaultv1.OpenSessionResponse) {
		_, err := v.standing().RevokeStanding(v.t.Context(), &vaultv1.RevokeStandingRequest{Session: opened.GetSession()})
		v.must(err)
	}
	closed := func(v *vault, opened *vaultv1.OpenSessionResponse) {
		_, err := v.sessions().CloseSession(v.t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
		v.must(err)
	}
	gone := func(client string) func(*vault, *vaultv1.OpenSessionResponse) {
		return func(v *vault, _ *vaultv1.OpenSessionResponse) { v.revoke(client) }
	}
	halted := func(v *vault, _ *vaultv1.OpenSessionResponse) {
		_, err := v.control().Halt(v.t.Context(), &vaultv1.HaltRequest{})
		v.must(err)
	}
	muted := func(v *vault, _ *vaultv1.OpenSessionResponse) {
		_, err := v.standing().MutePrincipal(v.t.Context(), &vaultv1.MutePrincipalRequest{Principal: bound, ForS: 60})
		v.must(err)
	}
	denied := func(v *vault, _ *vaultv1.OpenSessionResponse) {
		v.rule("tools.yaml", "tools:\n  start_service: {tier: DENIED}\n")
	}
	asks := func(v *vault, _ *vaultv1.OpenSessionResponse) { v.rule("policy/unasked.cedar", "// nothing") }
	later := func(v *vault, _ *vaultv1.OpenSessionResponse) { v.clock.advance(5 * time.Minute) }
	const ok, expired, halts = callv1.Code_CODE_UNSPECIFIED, callv1.Code_CODE_EXPIRED, callv1.Code_CODE_HALTED
	for _, c := range []struct {
		name  string
		begin func(*vault) (*vaultv1.OpenSessionResponse, *callv1.SignedGrant)
		then  func(*vault, *vaultv1.OpenSessionResponse)
		want  callv1.Code
	}{
		{"dangerous mode, revoked", dangerous, revoked, expired},
		{"dangerous mode, its session closed", dangerous, closed, expired},
		{"dangerous mode, its client gone", dangerous, gone(bound), expired},
		{"dangerous mode, its client muted", dangerous, muted, expired},
		{"dangerous mode, halted", dangerous, halted, halts},
		{"dangerous mode, the tool denied", dangerous, denied, expired},
		{"a scope, revoked", scope, revoked, expired},
		{"a scope, its session closed", scope, closed, expired},
		{"unattended, its session closed", unattended, closed, expired},
		{"unattended, the file changed", unattended, asks, expired},
		{"unattended, the tool denied", unattended, denied, expired},
		{"approved, its client gone", approved, gone(bearer), expired},
		{"approved, halted", approved, halted, halts},
		{"read, its session closed", read, closed, expired},
		{"dangerous mode", dangerous, nothing, ok},
		{"dangerous mode, long after the grant", dangerous, later, ok},
		{"a scope that is used up", scope, nothing, ok},
		{"unattended", unattended, nothing, ok},
		{"approved, its session closed", approved, closed, ok},
		{"read", read, nothing, ok},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVault(t)
			opened, g := c.begin(v)
			v.must(v.redeem(g))
			c.then(v, opened)
			for range 2 { // it spends nothing
				wantCode(t, v.check(g), c.want)
			}
		})
	}
}

// Nobody is told of a grant that is not theirs, or that they did not redeem.
func TestCheckGrantRefuses(t *testing.T) {
	v := newVault(t)
	_, _, g := v.granted(bearer, "a")
	wantCode(t, v.check(g), callv1.Code_CODE_DENIED) // not redeemed
	v.must(v.redeem(g))
	for name, client := range map[string]vaultv1.CheckServiceClient{
		"another executor": vaultv1.NewCheckServiceClient(v.as(executor, "other")),
		"the egress":       vaultv1.NewCheckServiceClient(v.as(egress, "main")),
		"the gateway":      vaultv1.NewCheckServiceClient(v.as(gateway, "main")),
	} {
		_, err := client.CheckGrant(t.Context(), &vaultv1.CheckGrantRequest{Grant: g})
		t.Log(name)
		wantCode(t, err, callv1.Code_CODE_DENIED)
	}
	forged := &callv1.SignedGrant{Payload: g.GetPayload(), Kid: g.GetKid(), Signature: append([]byte{^g.GetSignature()[0]}, g.GetSignature()[1:]...)}
	wantCode(t, v.check(forged), callv1.Code_CODE_DENIED)
	v.must(v.check(g))
}
