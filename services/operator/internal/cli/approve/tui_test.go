package approve

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/operator/internal/tui"
	"durward.internal/services/platform/fault"
)

// queue is a vault that has operations, the newest first, and counts the bytes that it says of them.
type queue struct {
	vaultv1.ApprovalServiceClient
	vaultv1.StandingServiceClient
	haltedVault
	ops  []*vaultv1.Operation
	said int
	err  error
}

func (q *queue) ListOperations(_ context.Context, r *vaultv1.ListOperationsRequest, _ ...grpc.CallOption) (*vaultv1.ListOperationsResponse, error) {
	out := &vaultv1.ListOperationsResponse{}
	for _, op := range q.ops {
		if slices.Contains(r.GetStates(), op.GetState()) && len(out.GetOperations()) < int(r.GetLimit()) {
			out.Operations = append(out.Operations, proto.CloneOf(op))
		}
	}
	q.said += proto.Size(out)
	return out, q.err
}

func (q *queue) ListStanding(context.Context, *vaultv1.ListStandingRequest, ...grpc.CallOption) (*vaultv1.ListStandingResponse, error) {
	return &vaultv1.ListStandingResponse{}, nil
}

// TestTheScreenReadsWhatChanged: each second the screen reads what goes on, and what ended only after something has.
func TestTheScreenReadsWhatChanged(t *testing.T) {
	const pending, running, done = vaultv1.OperationState_OPERATION_STATE_PENDING, vaultv1.OperationState_OPERATION_STATE_RUNNING, vaultv1.OperationState_OPERATION_STATE_DONE
	of := func(id string, state vaultv1.OperationState) *vaultv1.Operation {
		return &vaultv1.Operation{OperationId: id, State: state, Arguments: []byte(strings.Repeat("x", 1000))}
	}
	q := &queue{ops: []*vaultv1.Operation{of("waits", pending), of("runs", running)}}
	for i := range pastOperations {
		q.ops = append(q.ops, of(fmt.Sprintf("old-%d", i), done))
	}
	s := &cli.Session{Peers: &peers.Peers{Vault: peers.Vault{ApprovalServiceClient: q, Control: q.haltedVault, Standing: q}}}
	known := &asked{}
	read := func(most int) {
		t.Helper()
		q.said = 0
		said, err := known.vault(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []string
		for _, op := range q.ops {
			if op.GetState() == done && len(want) < pastOperations {
				want = append(want, op.GetOperationId())
			}
		}
		for _, op := range said.History {
			got = append(got, op.GetOperationId())
		}
		if !slices.Equal(got, want) {
			t.Errorf("what ended is %q, want %q", got, want)
		}
		if q.said > most {
			t.Errorf("the vault said %d bytes, want at most %d", q.said, most)
		}
	}
	const all, little = 60_000, 4_000
	read(all)
	read(little)
	q.ops[1].State = done // what went on ended, and is not the newest
	read(all)
	read(little)
	q.ops = append([]*vaultv1.Operation{of("quick", done)}, q.ops...) // it began and ended between two looks
	read(all)
	read(little)
	q.err = context.DeadlineExceeded
	if _, err := known.vault(t.Context(), s); err == nil {
		t.Error("a vault that is away")
	}
	q.err, q.ops = nil, q.ops[1:] // another state was put back
	read(all)
	read(little)
	q.ops = nil
	read(0)
	read(0)
}

// briefly is a vault each of whose watches tells of what waits and then ends after so long, the last one for good.
type briefly struct {
	queue
	now     time.Time
	lasts   []time.Duration
	watches int
}

type brieflyStream struct {
	grpc.ServerStreamingClient[vaultv1.WatchOperationsResponse]
	of   *briefly
	left []*vaultv1.Operation
}

func (b *briefly) WatchOperations(context.Context, *vaultv1.WatchOperationsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[vaultv1.WatchOperationsResponse], error) {
	b.watches++
	return &brieflyStream{of: b, left: b.ops[:min(b.watches, len(b.ops))]}, nil
}

func (s *brieflyStream) Recv() (*vaultv1.WatchOperationsResponse, error) {
	if len(s.left) == 0 {
		s.of.now = s.of.now.Add(s.of.lasts[s.of.watches-1])
		return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "the vault cannot be reached")
	}
	op := s.left[0]
	s.left = s.left[1:]
	return &vaultv1.WatchOperationsResponse{Operation: op}, nil
}

// TestAWatchOfApprovalsGoesOn where its connection ended after a while, and shows what waits once.
func TestAWatchOfApprovalsGoesOn(t *testing.T) {
	s, op := asking(t)
	second := proto.CloneOf(op)
	second.OperationId = strings.Repeat("ab", 16)
	vault := &briefly{queue: queue{ops: []*vaultv1.Operation{op, second}}, now: clitest.Now, lasts: []time.Duration{time.Hour, time.Hour, time.Second}}
	s.Vault.ApprovalServiceClient = vault
	core, out, _ := clitest.Printing(true)
	core.Now = func() time.Time { return vault.now }
	if err := (&app{core}).watchApprovals(t.Context(), s); !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || vault.watches != 3 {
		t.Errorf("%d watches, %v", vault.watches, err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 {
		t.Errorf("%d lines of two requests:\n%s", lines, out)
	}
}

// TestTheScreenIsGivenWhatTheStatementWasMadeOf: the screen shows the executor's answer that is signed, not an earlier one.
func TestTheScreenIsGivenWhatTheStatementWasMadeOf(t *testing.T) {
	s, op := asking(t)
	core, _, _ := clitest.Printing(false)
	d := &desk{a: &app{core}, s: s}
	for name, make := range map[string]func() (*tui.Proposal, error){
		"once": func() (*tui.Proposal, error) { return d.Approve(t.Context(), op, "K7F3") },
		"scope": func() (*tui.Proposal, error) {
			return d.Scope(t.Context(), op, "K7F3", approval.Within{For: time.Hour, Uses: 1})
		},
	} {
		p, err := make()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := p.Card.Preview.GetPlan(); !slices.Equal(got, []string{"the plan's only step"}) {
			t.Errorf("%s: the screen is given the plan %q", name, got)
		}
	}
}
