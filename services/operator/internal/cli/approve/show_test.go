package approve

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
)

// servers is an egress that says what became of servers' tools.
type servers struct {
	egressv1.ControlServiceClient
	err error
}

func (s servers) ListServers(context.Context, *egressv1.ListServersRequest, ...grpc.CallOption) (*egressv1.ListServersResponse, error) {
	return &egressv1.ListServersResponse{Servers: []*egressv1.ServerStatus{
		{Id: "same"}, {Id: "gone", Absent: []string{"x"}}, {Id: "changed", Changed: []string{"x"}}, {Id: "changed", Changed: []string{"x"}},
	}}, s.err
}

// TestServersThatChanged: each is named once; nobody is kept from approving by an egress that is away.
func TestServersThatChanged(t *testing.T) {
	for _, c := range []struct {
		egress egressv1.ControlServiceClient
		want   []string
	}{{servers{}, []string{"changed", "gone"}}, {servers{err: errors.New("away")}, nil}, {nil, nil}} {
		if got := changedServers(t.Context(), &cli.Session{Peers: &peers.Peers{Egress: c.egress}}); !slices.Equal(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestWaitsNoMore: of a number whose operation waits no more it is said what became of it.
func TestWaitsNoMore(t *testing.T) {
	id := strings.Repeat("ab", 16)
	op := &vaultv1.Operation{OperationId: id, State: vaultv1.OperationState_OPERATION_STATE_DENIED, DecidedBy: "ada"}
	s := &cli.Session{Peers: &peers.Peers{Vault: peers.Vault{ApprovalServiceClient: &queue{ops: []*vaultv1.Operation{op}}}}}
	number := approval.Numbers([]string{id})[id]
	for named, want := range map[string]string{
		number: "durward: " + number + " waits no more: denied by ada\n  See: durward audit show " + id + "\n",
		"ZZZZ": "durward: no operation that waits has the number ZZZZ\n  See: durward approvals\n",
	} {
		_, _, err := findAmong(t.Context(), s, nil, named)
		core, _, errs := clitest.Printing(false)
		if code := core.Explain(err); code != cli.ExitUsage || errs.String() != want {
			t.Errorf("%s: exit code %d, %q", named, code, errs)
		}
	}
}

// haltedVault and haltedExecutor answer what a command asks before it signs; nothing else.
type haltedVault struct{ vaultv1.ControlServiceClient }

func (haltedVault) GetStatus(context.Context, *vaultv1.GetStatusRequest, ...grpc.CallOption) (*vaultv1.GetStatusResponse, error) {
	return &vaultv1.GetStatusResponse{Halted: true, Epoch: 3}, nil
}

type haltedExecutor struct {
	executorv1.ControlServiceClient
}

func (haltedExecutor) GetStatus(context.Context, *executorv1.GetStatusRequest, ...grpc.CallOption) (*executorv1.GetStatusResponse, error) {
	return &executorv1.GetStatusResponse{Halted: true, Epoch: 3}, nil
}

func (haltedExecutor) PreviewCall(context.Context, *executorv1.PreviewCallRequest, ...grpc.CallOption) (*executorv1.PreviewCallResponse, error) {
	return &executorv1.PreviewCallResponse{
		Subject: &callv1.Subject{Label: "service demo-chat", Entry: []byte(`{"argv":["/usr/bin/demo"],"id":"demo-chat"}`)},
		Plan:    []string{"the plan's only step"}, Epoch: 3, Audience: clitest.ExecutorID,
	}, nil
}

// asking is a session with processes in which one operation waits.
func asking(t *testing.T) (s *cli.Session, op *vaultv1.Operation) {
	t.Helper()
	tool, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("no start_service")
	}
	op = &vaultv1.Operation{
		OperationId: "0123456789abcdef0123456789abcdef", State: vaultv1.OperationState_OPERATION_STATE_PENDING,
		Principal: "claude-code", Session: "s-abc", Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true, Tool: tool.Ref(), Tier: tool.Tier,
		Arguments: []byte(`{"service_id":"demo-chat"}`), Audience: clitest.ExecutorID, Epoch: 3,
		AskedAt: timestamppb.New(clitest.Now), ExpiresAt: timestamppb.New(clitest.Now.Add(time.Minute)),
	}
	executorID, err := identity.Parse(clitest.ExecutorID)
	if err != nil {
		t.Fatal(err)
	}
	s = &cli.Session{
		Peers: &peers.Peers{Vault: peers.Vault{Control: haltedVault{}, Standing: noStanding{}}, Executor: peers.Executor{ControlServiceClient: haltedExecutor{}},
			Sinks: []peers.Sink{{SinkControl: haltedExecutor{}, Name: "executor", ID: executorID, Control: func(context.Context) (bool, uint64, error) { return true, 3, nil }}},
			Audit: peers.Audit{HistoryServiceClient: emptyLog{}}},
		Config: installdir.Config{Operator: "alice", Executor: config.Peer{Identity: clitest.ExecutorID}, Vault: config.Peer{Identity: "spiffe://durward.local/vault/main"}},
	}
	return s, op
}

// TestEverySignatureIsShownFirst: with --json too a person sees what is signed, and standard output stays the program's.
func TestEverySignatureIsShownFirst(t *testing.T) {
	s, op := asking(t)
	call := []string{"start_service", `"service_id": "demo-chat"`, "the plan's only step", "/usr/bin/demo"}
	for _, c := range []struct {
		name string
		run  func(*app) error
		want []string
	}{
		{"approve", func(a *app) error {
			call, err := approval.CallOf(op)
			if err != nil {
				return err
			}
			_, err = a.decide(t.Context(), s, []request{{op, "K7F3", call}}, nil, cli.Asking{})
			return err
		}, append(call, "K7F3", `"kind": "approve"`)},
		{"start", func(a *app) error { return a.ActOnService(t.Context(), s, "start_service", "demo-chat", cli.Asking{}) }, append(call, `"kind": "command"`)},
		{"resume", func(a *app) error { return a.wake(t.Context(), s, cli.Asking{}) }, []string{`"kind": "resume"`, `"epoch":`, `"audience": "spiffe://durward.local"`}},
	} {
		for _, asJSON := range []bool{false, true} {
			core, out, errs := clitest.Printing(asJSON)
			a := &app{core}
			var p *cli.Problem
			if err := c.run(a); !errors.As(err, &p) || p.Code != cli.ExitDenied {
				t.Errorf("%s: without a terminal: %v", c.name, err)
			}
			shown, other := out, errs
			if asJSON {
				shown, other = errs, out
			}
			for _, want := range c.want {
				if !strings.Contains(shown.String(), want) {
					t.Errorf("%s, --json %v: %q is not shown:\n%s", c.name, asJSON, want, shown)
				}
			}
			if other.Len() > 0 {
				t.Errorf("%s, --json %v: elsewhere it wrote\n%s", c.name, asJSON, other)
			}
		}
	}
}

// awake is a vault that nobody halted; it takes a halt.
type awake struct{ vaultv1.ControlServiceClient }

func (awake) GetStatus(context.Context, *vaultv1.GetStatusRequest, ...grpc.CallOption) (*vaultv1.GetStatusResponse, error) {
	return &vaultv1.GetStatusResponse{Epoch: 1_000_003}, nil
}

func (awake) Halt(context.Context, *vaultv1.HaltRequest, ...grpc.CallOption) (*vaultv1.HaltResponse, error) {
	return &vaultv1.HaltResponse{Epoch: 1_000_004}, nil
}

// takesHalts is a sink that takes one.
type takesHalts struct {
	executorv1.ControlServiceClient
}

func (takesHalts) Halt(context.Context, *executorv1.HaltRequest, ...grpc.CallOption) (*executorv1.HaltResponse, error) {
	return &executorv1.HaltResponse{Epoch: 1_000_001}, nil
}

// TestResumeTakesUpWhatIsFarBehind: nothing is halted, and yet there is something to sign where a sink is a restore behind, and it says
// why; a sink that the next grant brings up to date is no such thing.
func TestResumeTakesUpWhatIsFarBehind(t *testing.T) {
	for own, asks := range map[uint64]bool{1: true, 3: false, 1_000_003: false} {
		s := &cli.Session{
			Peers: &peers.Peers{Vault: peers.Vault{Control: awake{}}, Sinks: []peers.Sink{{
				SinkControl: takesHalts{}, Name: "egress", Control: func(context.Context) (bool, uint64, error) { return false, own, nil },
			}}},
			Config: installdir.Config{Operator: "alice", Vault: config.Peer{Identity: "spiffe://durward.local/vault/main"}},
		}
		core, out, _ := clitest.Printing(false)
		err := (&app{core}).wake(t.Context(), s, cli.Asking{})
		var p *cli.Problem
		switch said := out.String(); {
		case !asks && (err != nil || said != "Nothing is halted.\n"):
			t.Errorf("at epoch %d: %v\n%s", own, err, said)
		case asks && (!errors.As(err, &p) || p.Code != cli.ExitDenied || !strings.Contains(said, "the egress is at epoch 1, and the vault is at 1000003") || !strings.Contains(said, "epoch 1000005 begins")):
			t.Errorf("at epoch %d, without a terminal: %v\n%s", own, err, said)
		}
	}
}

// asleep is a vault that is halted already.
type asleep struct{ vaultv1.ControlServiceClient }

func (asleep) GetStatus(context.Context, *vaultv1.GetStatusRequest, ...grpc.CallOption) (*vaultv1.GetStatusResponse, error) {
	return &vaultv1.GetStatusResponse{Halted: true, Epoch: 9}, nil
}

// switched is a sink that halts as sinks do, and remembers it.
type switched struct {
	executorv1.ControlServiceClient
	halted bool
	epoch  uint64
}

func (s *switched) Halt(_ context.Context, r *executorv1.HaltRequest, _ ...grpc.CallOption) (*executorv1.HaltResponse, error) {
	s.halted, s.epoch = true, max(s.epoch+1, r.GetEpoch())
	return &executorv1.HaltResponse{Epoch: s.epoch}, nil
}

// TestResumeBeginsOneEpochInAll: before anything is signed every sink is halted one epoch below what is signed, so that a panic which comes
// before the signature is at or above it wherever it arrives.
func TestResumeBeginsOneEpochInAll(t *testing.T) {
	for name, c := range map[string]struct {
		executor, egress switched
		begins           string
		at               uint64
	}{
		"as the vault is":                {switched{halted: true, epoch: 9}, switched{halted: true, epoch: 9}, "epoch 10 begins", 9},
		"halted below it":                {switched{halted: true, epoch: 5}, switched{halted: true, epoch: 9}, "epoch 10 begins", 9},
		"not halted":                     {switched{epoch: 4}, switched{epoch: 8}, "epoch 10 begins", 9},
		"one halted, another above it":   {switched{halted: true, epoch: 9}, switched{halted: true, epoch: 12}, "epoch 13 begins", 12},
		"one halted, another that is to": {switched{halted: true, epoch: 9}, switched{epoch: 9}, "epoch 11 begins", 10},
	} {
		s := &cli.Session{
			Peers:  &peers.Peers{Vault: peers.Vault{Control: asleep{}}},
			Config: installdir.Config{Operator: "alice", Vault: config.Peer{Identity: "spiffe://durward.local/vault/main"}},
		}
		for i, sink := range []*switched{&c.executor, &c.egress} {
			s.Sinks = append(s.Sinks, peers.Sink{
				SinkControl: sink, Name: []string{"executor", "egress"}[i],
				Control: func(context.Context) (bool, uint64, error) { return sink.halted, sink.epoch, nil },
			})
		}
		core, out, _ := clitest.Printing(false)
		err := (&app{core}).wake(t.Context(), s, cli.Asking{})
		var p *cli.Problem
		if !errors.As(err, &p) || p.Code != cli.ExitDenied || !strings.Contains(out.String(), c.begins) {
			t.Errorf("%s: without a terminal: %v; want %q in\n%s", name, err, c.begins, out)
		}
		if want := (switched{halted: true, epoch: c.at}); c.executor != want || c.egress != want {
			t.Errorf("%s: the executor is %+v, egress %+v", name, c.executor, c.egress)
		}
	}
}

// noStanding is a vault that tells of no session, and where nothing stands.
type noStanding struct{ vaultv1.StandingServiceClient }

func (noStanding) ListSessions(context.Context, *vaultv1.ListSessionsRequest, ...grpc.CallOption) (*vaultv1.ListSessionsResponse, error) {
	return &vaultv1.ListSessionsResponse{}, nil
}

func (noStanding) ListStanding(context.Context, *vaultv1.ListStandingRequest, ...grpc.CallOption) (*vaultv1.ListStandingResponse, error) {
	return &vaultv1.ListStandingResponse{}, nil
}

// emptyLog is a log without a record.
type emptyLog struct{ auditv1.HistoryServiceClient }

func (emptyLog) SearchRecords(context.Context, *auditv1.SearchRecordsRequest, ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	return &auditv1.SearchRecordsResponse{}, nil
}

func TestWhatStandsWithoutALimitOfUsesHasNone(t *testing.T) {
	for uses, want := range map[uint32]bool{0: false, 5: true} {
		if title := standingTitle(&vaultv1.Standing{StandingId: "0a1b2c3d", Uses: uses, UsesLeft: uses, ExpiresAt: timestamppb.Now()}, time.Now()); strings.Contains(title, "uses left") != want {
			t.Errorf("%d uses: %s", uses, title)
		}
	}
}

// neverClaims is a vault whose approvals are used up.
type neverClaims struct{ vaultv1.ApprovalServiceClient }

func (neverClaims) ClaimOperation(context.Context, *vaultv1.ClaimOperationRequest, ...grpc.CallOption) (*vaultv1.ClaimOperationResponse, error) {
	return nil, errors.New("used already")
}

func TestOneThatFailsKeepsNoneOfTheOthersBack(t *testing.T) {
	s := &cli.Session{Peers: &peers.Peers{Vault: peers.Vault{ApprovalServiceClient: neverClaims{}}}}
	approved := []request{{op: &vaultv1.Operation{}, number: "K7F3"}, {op: &vaultv1.Operation{}, number: "2222"}}
	core, _, errs := clitest.Printing(false)
	err := (&app{core}).afterwards(t.Context(), s, approved, true, false, true, cli.Asking{})
	var p *cli.Problem
	if said := errs.String(); !errors.As(err, &p) || p.Code != cli.ExitFailed || !strings.Contains(said, "K7F3: used already") || !strings.Contains(said, "2222: used already") {
		t.Errorf("%v\n%s", err, said)
	}
	if err := (&app{core}).afterwards(t.Context(), s, approved[:1], false, false, true, cli.Asking{}); err == nil || err.Error() != "used already" {
		t.Errorf("of the only one: %v", err)
	}
	// A program reads one document, whatever becomes of how many.
	core, out, _ := clitest.Printing(true)
	approved[0].op.Waiters = 1
	err = (&app{core}).afterwards(t.Context(), s, append(approved, approved[1]), true, false, true, cli.Asking{})
	var document struct{ Operations, Results []any }
	if jerr := json.Unmarshal(out.Bytes(), &document); err == nil || jerr != nil || len(document.Operations) != 1 || document.Results == nil {
		t.Errorf("%v, %v:\n%s", err, jerr, out)
	}
}

// ends is a log of ends of standing authority.
type ends struct{ auditv1.HistoryServiceClient }

func (ends) SearchRecords(_ context.Context, r *auditv1.SearchRecordsRequest, _ ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	ended := func(id, why string) *auditv1.Entry {
		return &auditv1.Entry{Record: &auditv1.Record{Kind: r.GetKinds()[0], Body: &auditv1.Body{Reason: why, Details: map[string]string{"statement": id}}}}
	}
	return &auditv1.SearchRecordsResponse{Entries: []*auditv1.Entry{ended(strings.Repeat("ab", 16), "it was used up"), ended(strings.Repeat("cd", 16), "its time is over")}}, nil
}

// TestWhatIsOverSaysWhy: what was used up, and is therefore not listed any more, is not taken for a wrong id.
func TestWhatIsOverSaysWhy(t *testing.T) {
	s, _ := asking(t)
	s.Audit.HistoryServiceClient = ends{}
	for name, want := range map[string]string{
		"abababab": "nothing in force has the id abababab any more: it was used up", "CDCDCDCD": "nothing in force has the id cdcdcdcd any more: its time is over",
		"00000000": "nothing in force has the id 00000000",
	} {
		if _, err := findStanding(t.Context(), s, name); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
