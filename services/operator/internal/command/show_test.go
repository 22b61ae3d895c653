package command

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
)

const executorID = "spiffe://durward.local/executor/local"

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

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
		Plan:    []string{"the plan's only step"}, Epoch: 3, Audience: executorID,
	}, nil
}

// printing returns a run of the command, and what it writes.
func printing(asJSON bool) (a *app, out, errs *bytes.Buffer) {
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	getenv := func(string) string { return "" }
	a = &app{streams: Streams{In: strings.NewReader(""), Out: out, Err: errs, Getenv: getenv}, json: asJSON, now: func() time.Time { return testNow }}
	a.out = output.New(out, errs, asJSON, getenv)
	return a, out, errs
}

// TestEverySignatureIsShownFirst: with --json too a person sees what is signed, and standard output stays the program's.
func TestEverySignatureIsShownFirst(t *testing.T) {
	tool, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("no start_service")
	}
	op := &vaultv1.Operation{
		OperationId: "0123456789abcdef0123456789abcdef", State: vaultv1.OperationState_OPERATION_STATE_PENDING,
		Principal: "claude-code", Session: "s-abc", Channel: callv1.Channel_CHANNEL_CLI, Tool: tool.Ref(), Tier: tool.Tier,
		Arguments: []byte(`{"service_id":"demo-chat"}`), Audience: executorID, Epoch: 3,
		AskedAt: timestamppb.New(testNow), ExpiresAt: timestamppb.New(testNow.Add(time.Minute)),
	}
	s := &session{
		Peers: &peers.Peers{Vault: peers.Vault{Control: haltedVault{}, Standing: noStanding{}}, Executor: peers.Executor{ControlServiceClient: haltedExecutor{}},
			Audit: peers.Audit{HistoryServiceClient: emptyLog{}}},
		cfg: home.Config{Operator: "alice", Executor: config.Peer{Identity: executorID}, Vault: config.Peer{Identity: "spiffe://durward.local/vault/main"}},
	}
	call := []string{"start_service", `"service_id": "demo-chat"`, "the plan's only step", "/usr/bin/demo"}
	for _, c := range []struct {
		name string
		run  func(*app) error
		want []string
	}{
		{"approve", func(a *app) error {
			_, err := a.decide(t.Context(), s, op, "K7F3", nil, false)
			return err
		}, append(call, "K7F3", `"kind": "approve"`)},
		{"start", func(a *app) error { return a.command(t.Context(), s, "start_service", "demo-chat", false) }, append(call, `"kind": "command"`)},
		{"resume", func(a *app) error { return a.wake(t.Context(), s, false) }, []string{`"kind": "resume"`, `"epoch":`, executorID}},
	} {
		for _, asJSON := range []bool{false, true} {
			a, out, errs := printing(asJSON)
			var p *problem
			if err := c.run(a); !errors.As(err, &p) || p.code != exitDenied {
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

// noStanding is a vault that tells of no session.
type noStanding struct{ vaultv1.StandingServiceClient }

func (noStanding) ListSessions(context.Context, *vaultv1.ListSessionsRequest, ...grpc.CallOption) (*vaultv1.ListSessionsResponse, error) {
	return &vaultv1.ListSessionsResponse{}, nil
}

// emptyLog is a log without a record.
type emptyLog struct{ auditv1.HistoryServiceClient }

func (emptyLog) SearchRecords(context.Context, *auditv1.SearchRecordsRequest, ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	return &auditv1.SearchRecordsResponse{}, nil
}

// TestReportSaysBoth: the root that was proved, the statements that do not stand, and exit code 1.
func TestReportSaysBoth(t *testing.T) {
	report := history.Report{Records: 8, Root: "c0ffee", SignedBy: "log", BadStatements: 22,
		Bad: []history.BadStatement{{Index: 7, Writer: "spiffe://durward.local/vault/main", Problem: "signature"}}}
	for asJSON, want := range map[bool][]string{
		false: {"8 records, root c0ffee", "✗ record 7 of vault/main: signature", "and 21 more"},
		true:  {`"root": "c0ffee"`, `"bad_statements": 22`, `"index": 7`},
	} {
		a, out, _ := printing(asJSON)
		var p *problem
		if err := a.showReport(report, "kept"); !errors.As(err, &p) || p.code != exitFailed {
			t.Errorf("--json %v: %v", asJSON, err)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("--json %v: %q is not in\n%s", asJSON, w, out)
			}
		}
		report := report
		report.BadStatements, report.Bad = 0, nil
		if err := a.showReport(report, "kept"); err != nil {
			t.Errorf("--json %v: a good log: %v", asJSON, err)
		}
	}
}

func TestSignedEntries(t *testing.T) {
	entry := func(index uint64, writer string, kind auditv1.Kind) *auditv1.Entry {
		return &auditv1.Entry{Index: index, Writer: "spiffe://durward.local/" + writer, Record: &auditv1.Record{Kind: kind,
			Body: &auditv1.Body{Statement: &callv1.HumanStatement{Statement: []byte("{}")}}}}
	}
	bare := entry(4, "vault/main", auditv1.Kind_KIND_APPROVED)
	bare.Record.Body = nil
	var got []uint64
	for _, e := range signedEntries([]*auditv1.Entry{
		entry(0, "gateway/main", auditv1.Kind_KIND_REFUSED), entry(1, "gateway/main", auditv1.Kind_KIND_APPROVED),
		entry(2, "executor/local", auditv1.Kind_KIND_INTENT), entry(3, "executor/local", auditv1.Kind_KIND_OUTCOME), bare,
		entry(5, "vault/main", auditv1.Kind_KIND_APPROVED),
	}) {
		got = append(got, e.GetIndex())
	}
	if want := []uint64{5, 2}; !slices.Equal(got, want) {
		t.Errorf("signed: %v, want %v", got, want)
	}
}
