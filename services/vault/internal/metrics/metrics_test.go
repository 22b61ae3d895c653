package metrics

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/telemetry/telemetrytest"
	"durward.internal/services/vault/internal/operation"
)

type queue operation.Census

func (q queue) Census() operation.Census { return operation.Census(q) }

type sessions int

func (s sessions) Count() int { return int(s) }

type standing struct{ scopes, dangerous, muted int }

func (s standing) Count() (scopes, dangerous, muted int) { return s.scopes, s.dangerous, s.muted }

type tokens int64

func (n tokens) Lookalikes() int64 { return int64(n) }

type rules struct{}

func (rules) Current() *security.State {
	return &security.State{Files: []security.File{{Name: "a"}, {Name: "b", Problem: "broken"}, {Name: "policy/", Problem: "a link"}}}
}

func TestCounts(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m := New(registry, Sources{Queue: queue{
		States: map[vaultv1.OperationState]int{vaultv1.OperationState_OPERATION_STATE_PENDING: 3}, Oldest: 90 * time.Second, Waiters: 2, PendingCap: 50,
	}, Sessions: sessions(7), Standing: standing{2, 1, 3}, Tokens: tokens(4), Rules: rules{}})
	call := func(method string, response any, err error) {
		t.Helper()
		got, gotErr := m.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, any) (any, error) { return response, err })
		if got != response || !errors.Is(gotErr, err) {
			t.Errorf("%s: the answer is changed to %v, %v", method, got, gotErr)
		}
	}
	denied := fault.New(callv1.Code_CODE_DENIED, "alice may not")
	call(vaultv1.AuthorityService_Authorise_FullMethodName, &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_PENDING}, nil)
	call(vaultv1.AuthorityService_Authorise_FullMethodName, nil, denied)
	call(vaultv1.ApprovalService_ApproveOperation_FullMethodName, nil, nil)
	call(vaultv1.ApprovalService_DenyOperation_FullMethodName, nil, nil)
	call(vaultv1.ApprovalService_GrantCommand_FullMethodName, nil, denied)
	call(vaultv1.RedeemService_Redeem_FullMethodName, nil, nil)
	call(vaultv1.RedeemService_Redeem_FullMethodName, nil, denied)
	call(vaultv1.RedeemService_Redeem_FullMethodName, nil, errors.New("disk /home/alice is full"))
	call(vaultv1.SessionService_OpenSession_FullMethodName, nil, fault.New(callv1.Code_CODE_UNAUTHENTICATED, "no"))
	call(vaultv1.ControlService_GetStatus_FullMethodName, nil, nil)
	want := map[string]float64{
		`durward_vault_authorisations_total{decision="DENIED"}`:             1,
		`durward_vault_authorisations_total{decision="pending"}`:            1,
		`durward_vault_decisions_total{decision="approve",result="ok"}`:     1,
		`durward_vault_decisions_total{decision="command",result="DENIED"}`: 1,
		`durward_vault_decisions_total{decision="deny",result="ok"}`:        1,
		`durward_vault_lookalike_references_total`:                          4,
		`durward_vault_oldest_pending_age_seconds`:                          90,
		`durward_vault_pending_limit`:                                       50,
		`durward_vault_operations{state="pending"}`:                         3,
		`durward_vault_redemptions_total{result="ALREADY_SPENT"}`:           0,
		`durward_vault_redemptions_total{result="DENIED"}`:                  1,
		`durward_vault_redemptions_total{result="EXPIRED"}`:                 0,
		`durward_vault_redemptions_total{result="INTERNAL"}`:                1,
		`durward_vault_redemptions_total{result="ok"}`:                      1,
		`durward_vault_session_openings_total{result="UNAUTHENTICATED"}`:    1,
		`durward_vault_config_files{state="ok"}`:                            1,
		`durward_vault_config_files{state="refused"}`:                       2,
		`durward_vault_muted`:                                               3,
		`durward_vault_standing{kind="dangerous"}`:                          1,
		`durward_vault_standing{kind="scope"}`:                              2,
		`durward_vault_sessions`:                                            7,
		`durward_vault_waits_held`:                                          2,
	}
	if diff := cmp.Diff(want, telemetrytest.Samples(t, registry)); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
}

func TestGrantKey(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	ends := time.Unix(1_800_000_000, 0)
	GrantKey(registry, func() time.Time { return ends })
	want := func(value float64) {
		t.Helper()
		if diff := cmp.Diff(map[string]float64{"durward_vault_grant_key_expiry_timestamp_seconds": value}, telemetrytest.Samples(t, registry)); diff != "" {
			t.Error(diff)
		}
	}
	want(1.8e9)
	ends = time.Time{}
	want(0)
}
