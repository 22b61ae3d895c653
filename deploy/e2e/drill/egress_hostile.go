package drill

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/handover"
	"durward.internal/services/platform/rpc"
)

// hostileEgressLines are the attacks of somebody who has egress: its certificate and key, and what it is told.
func hostileEgressLines() []Line {
	return []Line{
		{"egress-starts", map[string]string{harness.Executor: "callers,required"}, hostileStarts},
		{"egress-own-approval", map[string]string{harness.Vault: "callers,approval"}, hostileApproval},
		{"egress-forged-outcomes", map[string]string{harness.Vault: "sink"}, forgedOutcomes},
		{"egress-reads-values", map[string]string{harness.Vault: "asked"}, readsValues},
	}
}

// asEgress is a connection with the certificate and key of egress.
func (w *world) asEgress(role string) *grpc.ClientConn {
	return w.dial(w.source(harness.Egress), role, w.h.Identity(role))
}

// hostileEgress calls, with the certificate and key of egress, every method that is not egress'.
func hostileEgress(w *world) (trials, effects int) {
	return w.everyRPC(optionsv1.Role_ROLE_EGRESS, w.asEgress(harness.Vault), w.asEgress(harness.Executor), w.asEgress(harness.Audit))
}

// hostileStarts changes something on the host: with nothing, with permits, and with grants that are genuine and of egress' own calls.
func hostileStarts(w *world) (trials, effects int) {
	m := w.arrange()
	s, executor := w.open(), w.asEgress(harness.Executor)
	return w.demand(executor, m, [][]string{
		nil, {rpc.MetadataGrant, marshal(w.fetchGrant(s, w.out.at("/")))}, {rpc.MetadataGrant, marshal(w.readGrant(s))},
		{rpc.MetadataPermit, s.permits["executor"]}, {rpc.MetadataPermit, s.permits["egress"]}, {"durward-caller", w.h.OperatorIdentity().String()},
		{rpc.MetadataGrant, marshal(w.approved(s, "start_service", idle))}, // which the gateway alone may bring
	})
}

// hostileApproval decides in the human's place.
func hostileApproval(w *world) (trials, effects int) {
	return w.decide(w.asEgress(harness.Vault), w.asEgress(harness.Executor), true)
}

// forgedOutcomes says of calls of the executor's that they are spent, that they ended, and how. Its effects are operations that the
// vault takes for another than they are.
func forgedOutcomes(w *world) (trials, effects int) {
	vault, executors := w.asEgress(harness.Vault), w.dial(w.source(harness.Executor), harness.Vault, w.h.Identity(harness.Vault))
	redeem := func(conn *grpc.ClientConn, g *callv1.SignedGrant) error {
		_, err := unary(w, vaultv1.NewRedeemServiceClient(conn).Redeem, &vaultv1.RedeemRequest{Grant: g})
		return err
	}
	for range w.size(20, 3) {
		s := w.open()
		g := w.approved(s, "start_service", idle)
		id := operationOf(w, g)
		wrong := func(want vaultv1.OperationState) {
			trials += 3
			_ = redeem(vault, g)
			for _, ok := range []bool{true, false} {
				ctx, cancel := w.ctx(callTime)
				_, _ = vaultv1.NewRedeemServiceClient(vault).Settle(ctx, &vaultv1.SettleRequest{OperationId: id, Use: 1, Ok: ok})
				cancel()
			}
			effects += w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND state != ?`, id, int(want))
		}
		wrong(vaultv1.OperationState_OPERATION_STATE_APPROVED)
		if w.caught(effects) {
			break
		}
		w.must(redeem(executors, g)) // so it was good, and would have been spent
		wrong(vaultv1.OperationState_OPERATION_STATE_RUNNING)
		_, err := unary(w, vaultv1.NewRedeemServiceClient(executors).Settle, &vaultv1.SettleRequest{OperationId: id, Use: 1, Ok: true})
		w.must(err)
	}
	return trials, effects
}

// egressForgesRecords writes into the history what no sink may write, and a human's consent.
func egressForgesRecords(w *world) (trials, effects int) {
	return w.forgeRecords(w.asEgress(harness.Audit), harness.Egress, func(kind auditv1.Kind, _ int) bool {
		return slices.Contains([]auditv1.Kind{
			auditv1.Kind_KIND_STARTED, auditv1.Kind_KIND_STOPPED, auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_READ,
			auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_RECOVERED, auditv1.Kind_KIND_RULE, auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED,
			auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_CONFIG_FOUND, auditv1.Kind_KIND_CONFIG_REFUSED, auditv1.Kind_KIND_STATE,
		}, kind)
	})
}

// Credentials of readsValues: two that a human granted to egress for the listed server, one of which the call names.
const namedCredential, otherCredential = "drill-named", "drill-other"

// credentialClient is the one whose line in clients.yaml names the first.
const credentialClient = clientCount - 1

// readsValues asks the vault, in the name of a call that egress runs, and of others, for what the call does not send. Its effects are values.
func readsValues(w *world) (trials, effects int) {
	for _, name := range []string{namedCredential, otherCredential} {
		if out := w.h.Run("value-of-"+name, "credential", "add", name, "--variable", "T", "--stdin", "--yes"); out.Code != 0 && !strings.Contains(out.Stderr, "is there already") {
			w.t.Fatalf("add %s: %+v", name, out)
		}
		w.h.Durward("credential", "grant", name, "--origin", w.out.listed.URL, "--agent", fmt.Sprintf("agent-%d", credentialClient), "--yes")
	}
	vault, s := w.asEgress(harness.Vault), w.openAs(credentialClient, "")
	arguments := fmt.Appendf(nil, `{"credentials":{"authorization":{"$credential":%q}},"method":"POST","url":%q}`, namedCredential, w.out.at("/valued"))
	ask := func(g *callv1.SignedGrant, name, origin, place string) int {
		trials++
		key, err := handover.NewKey()
		w.must(err)
		out, err := unary(w, vaultv1.NewReleaseServiceClient(vault).ReleaseForRequest, &vaultv1.ReleaseForRequestRequest{
			Grant: g, Name: name, Origin: origin, Place: place, PublicKey: key.Public(),
		})
		if err != nil {
			return 0
		}
		values, err := key.Open(out.GetSealed(), handover.ForRequest(origin, place))
		if err != nil {
			return 0
		}
		return len(values)
	}
	const place = "Authorization"
	origin := w.out.listed.URL
	elsewhere := "https://elsewhere.example"
	all := func(g *callv1.SignedGrant, running bool) (values int) {
		for _, name := range []string{namedCredential, otherCredential, "drill-none"} {
			for _, to := range []string{origin, elsewhere} {
				for _, at := range []string{place, "X-Api-Key", "?authorization", "/authorization"} {
					if running && name == namedCredential && to == origin && at == place {
						continue // what it is sent
					}
					values += ask(g, name, to, at)
				}
			}
		}
		return values
	}
	g := w.requestApproved(s, arguments)
	before := all(g, false) // approved, and not redeemed
	other := w.fetchGrant(s, w.out.at("/"))
	before += all(other, false) + all(w.approved(w.open(), "start_service", idle), false) + all(&callv1.SignedGrant{Payload: g.GetPayload(), Kid: g.GetKid(), Signature: make([]byte, 64)}, false)
	for _, redeemed := range []*callv1.SignedGrant{g, other} {
		_, err := unary(w, vaultv1.NewRedeemServiceClient(vault).Redeem, &vaultv1.RedeemRequest{Grant: redeemed})
		w.must(err)
	}
	effects = before + all(g, true) + all(other, false)
	if ask(g, namedCredential, origin, place) != 1 {
		w.t.Fatal("what the call sends is not given either, so that the rest shows nothing")
	}
	effects += w.discloses(vault, g) + w.discloses(vault, w.approved(w.open(), "start_service", idle))
	_, err := unary(w, vaultv1.NewRedeemServiceClient(vault).Settle, &vaultv1.SettleRequest{OperationId: operationOf(w, g), Use: 1, Ok: true})
	w.must(err)
	return trials, effects + all(g, false) + ask(g, namedCredential, origin, place) // it is over
}

// discloses asks for personal data by capabilities that nobody gave.
func (w *world) discloses(vault *grpc.ClientConn, g *callv1.SignedGrant) (values int) {
	for range 20 {
		out, err := unary(w, vaultv1.NewDisclosureServiceClient(vault).Resolve, &vaultv1.ResolveRequest{
			Grant: g, Capabilities: []*vaultv1.Capability{{Pointer: "/body", Token: []byte(rand.Text() + rand.Text())[:32]}},
		})
		if err == nil {
			values += len(out.GetValues())
		}
	}
	return values
}

// requestApproved lets an agent ask for a request, the operator approve it, and returns the grant.
func (w *world) requestApproved(s *agentSession, arguments []byte) *callv1.SignedGrant {
	w.t.Helper()
	asked, err := w.authorise(s.handle, "http_request", arguments)
	w.must(err)
	return w.grantApproved(s, asked.GetOperationId())
}

// grantApproved is the grant of an operation that waits, once the operator has approved it.
func (w *world) grantApproved(s *agentSession, operation string) *callv1.SignedGrant {
	w.t.Helper()
	w.h.Approve(operation)
	out, err := w.waitFor(callTime, s.permits["vault"], operation)
	w.must(err)
	if out.GetGrant() == nil {
		w.t.Fatalf("an approved request has no grant: %v", out.GetState())
	}
	return out.GetGrant()
}
