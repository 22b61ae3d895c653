package root

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/statement"
)

const (
	boundSession  = "s-aaaabbbbccccddddeeeeffffgg"
	bearerSession = "s-zzzzbbbbccccddddeeeeffffgg"
	chatSession   = "s-yyyybbbbccccddddeeeeffffgg"
	standingID    = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
)

// fakeStanding is the vault's side of standing authority.
type fakeStanding struct {
	vaultv1.UnimplementedStandingServiceServer
	w *world
}

func (f fakeStanding) ListSessions(context.Context, *vaultv1.ListSessionsRequest) (*vaultv1.ListSessionsResponse, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return &vaultv1.ListSessionsResponse{Sessions: f.w.sessions}, nil
}

func (f fakeStanding) ListStanding(context.Context, *vaultv1.ListStandingRequest) (*vaultv1.ListStandingResponse, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return &vaultv1.ListStandingResponse{Standing: f.w.standing, Muted: f.w.muted}, nil
}

func (f fakeStanding) RevokeStanding(_ context.Context, r *vaultv1.RevokeStandingRequest) (*vaultv1.RevokeStandingResponse, error) {
	f.w.called(fmt.Sprintf("revoke %s %s", r.GetStandingId(), r.GetSession()))
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	response := &vaultv1.RevokeStandingResponse{}
	var left []*vaultv1.Standing
	for _, one := range f.w.standing {
		if (r.GetStandingId() == "" || one.GetStandingId() == r.GetStandingId()) && (r.GetSession() == "" || one.GetSession() == r.GetSession()) {
			response.Ended = append(response.Ended, one)
		} else {
			left = append(left, one)
		}
	}
	f.w.standing = left
	return response, nil
}

func (f fakeStanding) MutePrincipal(_ context.Context, r *vaultv1.MutePrincipalRequest) (*vaultv1.MutePrincipalResponse, error) {
	f.w.called(fmt.Sprintf("mute %s %d", r.GetPrincipal(), r.GetForS()))
	if r.GetForS() == 0 {
		return &vaultv1.MutePrincipalResponse{}, nil
	}
	return &vaultv1.MutePrincipalResponse{Denied: 2, Mute: &vaultv1.Mute{Principal: r.GetPrincipal(), Until: timestamppb.New(time.Now().Add(time.Hour))}}, nil
}

func (f fakeStanding) take(h *callv1.HumanStatement) (*statement.Statement, error) {
	st, err := statement.Parse(h.GetStatement())
	if err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.signed = append(f.w.signed, st)
	return st, nil
}

func (f fakeStanding) GrantScope(_ context.Context, r *vaultv1.GrantScopeRequest) (*vaultv1.GrantScopeResponse, error) {
	if _, err := f.take(r.GetStatement()); err != nil {
		return nil, err
	}
	return &vaultv1.GrantScopeResponse{Operation: &vaultv1.Operation{OperationId: r.GetOperationId(), Waiters: 1}}, nil
}

func (f fakeStanding) ProposeDangerous(_ context.Context, r *vaultv1.ProposeDangerousRequest) (*vaultv1.ProposeDangerousResponse, error) {
	if _, err := f.take(r.GetStatement()); err != nil {
		return nil, err
	}
	f.w.called("propose")
	return &vaultv1.ProposeDangerousResponse{StandingId: standingID, NotBefore: timestamppb.New(time.Now().Add(time.Second)),
		NotAfter: timestamppb.New(time.Now().Add(time.Minute))}, nil
}

func (f fakeStanding) ConfirmDangerous(_ context.Context, r *vaultv1.ConfirmDangerousRequest) (*vaultv1.ConfirmDangerousResponse, error) {
	second, err := f.take(r.GetStatement())
	if err != nil {
		return nil, err
	}
	f.w.called("confirm " + second.Confirms)
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	st := f.w.signed[len(f.w.signed)-2]
	one := &vaultv1.Standing{StandingId: st.ID, Kind: string(st.Kind), Principal: st.Principal, Session: st.Session, Operator: st.Operator,
		ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))}
	f.w.standing = append(f.w.standing, one)
	return &vaultv1.ConfirmDangerousResponse{Standing: one}, nil
}

func (f fakeApprovals) ApproveOperation(_ context.Context, r *vaultv1.ApproveOperationRequest) (*vaultv1.ApproveOperationResponse, error) {
	if _, err := (fakeStanding{w: f.w}).take(r.GetStatement()); err != nil {
		return nil, err
	}
	f.w.called("approve")
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if r.GetOperationId() == f.w.decided {
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "this operation was denied already")
	}
	var ended *vaultv1.Operation
	for _, op := range f.w.running {
		if op.GetOperationId() == r.GetOperationId() {
			op.State = vaultv1.OperationState_OPERATION_STATE_APPROVED
			ended = op
		}
	}
	return &vaultv1.ApproveOperationResponse{Operation: ended}, nil
}

func (f fakeApprovals) DenyOperation(_ context.Context, r *vaultv1.DenyOperationRequest) (*vaultv1.DenyOperationResponse, error) {
	f.w.mu.Lock()
	decided := f.w.decided == r.GetOperationId()
	f.w.mu.Unlock()
	if decided {
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "this operation is denied already")
	}
	f.w.called("deny " + r.GetReason())
	return &vaultv1.DenyOperationResponse{Operation: &vaultv1.Operation{OperationId: r.GetOperationId(), State: vaultv1.OperationState_OPERATION_STATE_DENIED}}, nil
}

func (f fakeVaultControl) Halt(ctx context.Context, r *vaultv1.HaltRequest) (*vaultv1.HaltResponse, error) {
	f.w.called("halt vault")
	if f.w.hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &vaultv1.HaltResponse{Epoch: 4}, nil
}

func (f fakeControl) EndStanding(_ context.Context, r *executorv1.EndStandingRequest) (*executorv1.EndStandingResponse, error) {
	if f.w.deaf {
		return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "the executor is away")
	}
	f.w.called(fmt.Sprintf("ended %d at the executor", len(r.GetStatements())))
	return &executorv1.EndStandingResponse{}, nil
}

func (f fakeControl) Halt(context.Context, *executorv1.HaltRequest) (*executorv1.HaltResponse, error) {
	f.w.called("halt executor")
	return &executorv1.HaltResponse{Epoch: 4}, nil
}

// withSessions opens three sessions: key-bound, bearer, messaging.
func (w *world) withSessions() {
	for _, s := range []*vaultv1.OpenSession{
		{Session: boundSession, Principal: "claude-code", Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true, ClientName: "nice\x1b[2J"},
		{Session: bearerSession, Principal: "cursor", Channel: callv1.Channel_CHANNEL_DESKTOP_UI},
		{Session: chatSession, Principal: "bot", Channel: callv1.Channel_CHANNEL_MESSAGING, KeyBound: true, Sender: &vaultv1.Sender{User: "eve\u202e", Room: "r"}},
	} {
		s.OpenedAt, s.ExpiresAt = timestamppb.New(time.Now().Add(-time.Minute)), timestamppb.New(time.Now().Add(time.Hour))
		w.sessions = append(w.sessions, s)
	}
}

// asks puts a request of the key-bound client into the queue.
func (w *world) asks(tool, arguments string) *vaultv1.Operation {
	found, _ := contract.Lookup(tool)
	op := &vaultv1.Operation{
		OperationId: "0123456789abcdef0123456789abcdef", State: vaultv1.OperationState_OPERATION_STATE_PENDING, Principal: "claude-code",
		Session: boundSession, Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true, Tool: found.Ref(), Tier: found.Tier, Arguments: []byte(arguments),
		Audience: clitest.ExecutorID, Epoch: 3, AskedAt: timestamppb.New(time.Now()), ExpiresAt: timestamppb.New(time.Now().Add(time.Minute)),
		AgentReason: "please",
	}
	w.running = append(w.running, op)
	return op
}

func (w *world) stands(kind statement.Kind, session string) {
	w.standing = append(w.standing, &vaultv1.Standing{StandingId: standingID[:30] + fmt.Sprintf("%02x", len(w.standing)), Kind: string(kind),
		Operator: "alice", Principal: "claude-code\x1b[2J", Session: session, Uses: 10, UsesLeft: 7, ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))})
}

func TestStandingRejects(t *testing.T) {
	w := newWorld(t)
	w.withSessions()
	w.stands(statement.KindScope, boundSession)
	w.stands(statement.KindScope, boundSession)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"standing", "revoke"}, cli.ExitUsage, "say one of"},
		{[]string{"standing", "revoke", "0a1b2c3d", "--all"}, cli.ExitUsage, "say one of"},
		{[]string{"standing", "revoke", "xyz"}, cli.ExitUsage, "durward standing"},
		{[]string{"standing", "revoke", "00000000"}, cli.ExitFailed, "nothing in force"},
		{[]string{"standing", "revoke", "0a1b2c3d"}, cli.ExitUsage, "fits 2"},
		{[]string{"standing", "revoke", "--session", "s-nobody"}, cli.ExitUsage, "durward sessions"},
		{[]string{"mute", "cursor", "--for", "25h"}, cli.ExitUsage, "24 hours"},
		{[]string{"mute", "cursor", "--for", "-1h"}, cli.ExitUsage, "24 hours"},
		{[]string{"mute", "cursor", "--off", "--for", "1h"}, cli.ExitUsage, "exclude"},
		{[]string{"mute", "Cursor;rm"}, cli.ExitUsage, "not a client's name"},
		{[]string{"dangerous", "enable"}, cli.ExitUsage, "--session"},
		{[]string{"dangerous", "enable", "--session", boundSession, "--yes"}, cli.ExitUsage, "unknown flag"},
		{[]string{"dangerous", "enable", "--session", boundSession}, cli.ExitDenied, "at a terminal alone"},
		{[]string{"tui"}, cli.ExitDenied, "no terminal"},
	} {
		got := w.run(c.args...)
		if got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%v: exit code %d, want %d, and %q in\n%s", c.args, got.code, c.code, c.want, got.err)
		}
	}
	if len(w.calls)+len(w.signed) > 0 {
		t.Errorf("something was done: %q, %v", w.calls, w.signed)
	}
}

func TestStandingAndSessions(t *testing.T) {
	w := newWorld(t)
	w.withSessions()
	w.stands(statement.KindScope, boundSession)
	w.muted = []*vaultv1.Mute{{Principal: "bob", Until: timestamppb.New(time.Now()), By: "spiffe://durward.local/operator/alice", Reason: "noise\x1b"}}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"sessions"}, []string{"claude-code", boundSession, "key-bound: one durward mcp", "bearer client: this one call", "messaging", `eve\\u{202E}`}},
		{[]string{"standing"}, []string{"0a1b2c3d  scope  claude-code\\u{1B}[2J", "7 of 10 uses left", ", by alice: noise", "no statement for it that can be read"}},
		{[]string{"standing", "ls"}, []string{"0a1b2c3d"}},
		{[]string{"dangerous", "status"}, []string{"No session is in dangerous mode"}},
		{[]string{"dangerous", "disable"}, []string{"Nothing of it was in force"}},
		{[]string{"mute", "cursor", "--for", "2h"}, []string{"cursor is muted until", "2 of its requests"}},
		{[]string{"mute", "cursor", "--off"}, []string{"may ask you again"}},
		{[]string{"standing", "revoke", "0A1B2C3D"}, []string{"✓ ended"}},
		{[]string{"standing", "revoke", "--session", "aaaa"}, []string{"Nothing of it"}},
	} {
		got := w.run(c.args...)
		for _, want := range c.want {
			if got.code != cli.ExitOK || !strings.Contains(got.out, want) {
				t.Errorf("%v: exit code %d, and %q not in\n%s%s", c.args, got.code, want, got.out, got.err)
			}
		}
		if strings.ContainsAny(got.out+got.err, "\x1b\u202e") {
			t.Errorf("%v: hostile characters came through: %q", c.args, got.out)
		}
	}
	want := "[ended 0 at the executor mute cursor 7200 mute cursor 0 revoke 0a1b2c3d4e5f60718293a4b5c6d7e800  ended 0 at the executor revoke  " +
		boundSession + " ended 0 at the executor]"
	if got := fmt.Sprint(w.calls); got != want {
		t.Errorf("called %s, want %s", got, want)
	}
}

// TestStandingShowsTheDefinitions: what a scope's digests stand for now, whole; and which of them nothing has any more.
func TestStandingShowsTheDefinitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withSessions()
	w.asks("start_service", `{"service_id":"chat"}`)
	for i, flags := range [][]string{{}, {"--free", "service_id"}} {
		got := w.run(append([]string{"approve", "01234567", "--scope", "--yes"}, flags...)...)
		if got.code != cli.ExitOK || len(w.signed) != i+1 {
			t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
		}
		st := w.signed[i]
		changed := canonical.Digest([]byte(`{"id":"chat","argv":["/bin/sh"]}`))
		st.SubjectDigests = append(st.SubjectDigests, canonical.FormatDigest(changed[:]))
		slices.Sort(st.SubjectDigests)
		raw, err := st.Marshal()
		must(t, err)
		w.standing = []*vaultv1.Standing{{StandingId: st.ID, Kind: string(st.Kind), Operator: st.Operator, Principal: st.Principal, Session: st.Session,
			Uses: 10, UsesLeft: 7, ExpiresAt: timestamppb.New(time.Now().Add(time.Hour)), Statement: &callv1.HumanStatement{Statement: raw}}}
		digest := canonical.Digest([]byte(`{"id":"chat"}`))
		got = w.run("standing")
		for _, want := range []string{"it may act on service chat (" + canonical.FormatDigest(digest[:]) + "):", `"id": "chat"`,
			"it may act on " + canonical.FormatDigest(changed[:]) + ": nothing that the executor's catalogue has"} {
			if got.code != cli.ExitOK || !strings.Contains(got.out, want) {
				t.Errorf("%v: exit code %d, and %q is not in\n%s%s", flags, got.code, want, got.out, got.err)
			}
		}
	}
}

func TestApproveWithinAScope(t *testing.T) {
	w := newWorld(t)
	w.withSessions()
	op := w.asks("start_service", `{"service_id":"chat"}`)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--uses", "3"}, cli.ExitUsage, "--uses is for a scope"},
		{[]string{"--scope", "--for", "9h"}, cli.ExitUsage, "8 hours"},
		{[]string{"--scope", "--uses", "0"}, cli.ExitUsage, "1 to 1000"},
		{[]string{"--scope", "--tool", "switch_mode"}, cli.ExitUsage, "does not take the arguments"},
		{[]string{"--scope", "--free", "force"}, cli.ExitUsage, "no tool of it takes"},
		{[]string{"--scope"}, cli.ExitDenied, "no terminal"},
	} {
		got := w.run(append([]string{"approve", "01234567"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%v: exit code %d\n%s", c.args, got.code, got.err)
		}
	}
	if len(w.signed) > 0 {
		t.Fatalf("signed %v", w.signed)
	}
	got := w.run("approve", "01234567", "--scope", "--for", "2h", "--uses", "20", "--tool", "stop_service", "--free", "service_id", "--yes")
	if got.code != cli.ExitOK || len(w.signed) != 1 {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	for _, want := range []string{"Without asking you again, claude-code's session " + boundSession, "start_service, stop_service", "with ANY service_id",
		"20 times at most", "It may act on service chat", "approved", "within the scope", "session 1, " + boundSession} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is not in\n%s", want, got.out)
		}
	}
	st := w.signed[0]
	digest := canonical.Digest([]byte(`{"id":"chat"}`))
	if st.Kind != statement.KindScope || st.Uses != 20 || len(st.Tools) != 2 || len(st.SubjectDigests) != 1 || st.SubjectDigests[0] != canonical.FormatDigest(digest[:]) {
		t.Errorf("%+v", st)
	}
	op.KeyBound = false
	if got := w.run("approve", "01234567", "--scope", "--yes"); got.code != cli.ExitDenied || !strings.Contains(got.err, "key-bound") || len(w.signed) != 1 {
		t.Errorf("a bearer client's scope: exit code %d\n%s", got.code, got.err)
	}
}

// Every command that talks to the vault says that a session is in dangerous mode: one line, on standard error.
func TestEveryCommandWarnsOfDanger(t *testing.T) {
	w := newWorld(t)
	w.stands(statement.KindScope, boundSession)
	if got := w.run("approvals"); strings.Contains(got.err, "DANGEROUS") {
		t.Errorf("nothing is dangerous: %s", got.err)
	}
	w.stands(statement.KindDangerous, boundSession)
	for _, args := range [][]string{{"approvals"}, {"approvals", "--json"}, {"standing"}, {"status"}, {"deny", "01234567"}, {"sleep", "chat", "--yes"}} {
		got := w.run(args...)
		if strings.Count(got.err, "DANGEROUS MODE: claude-code") != 1 || strings.Contains(got.err, "\x1b") || strings.Contains(got.out, "durward dangerous disable") {
			t.Errorf("%v: out %q, err %q", args, got.out, got.err)
		}
	}
	// What asks the vault nothing does not wait for it, and a shell's completion has no room for warnings.
	for _, args := range [][]string{{"version"}, {"gpu"}, {"__complete", "approve", ""}} {
		if got := w.run(args...); strings.Contains(got.err, "DANGEROUS") {
			t.Errorf("%v: %s", args, got.err)
		}
	}
	w.run("dangerous", "disable")
	if len(w.standing) != 1 || w.standing[0].GetKind() != "scope" {
		t.Errorf("disable left %v", w.standing)
	}
}

// TestAnEndThatTheExecutorDoesNotHear: it is named, the exit code is not 0, and what ended at the vault is shown all the same.
func TestAnEndThatTheExecutorDoesNotHear(t *testing.T) {
	w := newWorld(t)
	w.stands(statement.KindDangerous, boundSession)
	w.deaf = true
	for _, args := range [][]string{{"standing", "revoke", "--all"}, {"dangerous", "disable"}} {
		got := w.run(args...)
		if got.code != cli.ExitUnreachable || !strings.Contains(got.err, "the executor has not learnt") || !strings.Contains(got.err, "durward panic") {
			t.Errorf("%v: exit code %d\n%s", args, got.code, got.err)
		}
		if args[0] == "standing" && !strings.Contains(got.out, "✓ ended") {
			t.Errorf("%v: %s", args, got.out)
		}
	}
}

// TestAnApprovalIsTakenBack: at the vault, and at the executor whatever the vault says. What waits is told to the vault alone.
func TestAnApprovalIsTakenBack(t *testing.T) {
	w := newWorld(t)
	op := w.asks("start_service", `{"service_id":"chat"}`)
	for _, c := range []struct {
		approved, deaf bool
		code           int
		said, calls    string
	}{
		{false, true, cli.ExitOK, " denied.\n", "[deny no]"},
		{true, false, cli.ExitOK, " denied: its approval is taken back.\n", "[deny no ended 1 at the executor]"},
		{true, true, cli.ExitUnreachable, " denied: its approval is taken back.\n", "[deny no]"},
	} {
		if w.calls, w.deaf = nil, c.deaf; c.approved {
			op.State, op.Statement = vaultv1.OperationState_OPERATION_STATE_APPROVED, &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("x")}
		}
		got := w.run("deny", "01234567", "--reason", "no")
		if got.code != c.code || !strings.HasSuffix(got.out, c.said) || fmt.Sprint(w.calls) != c.calls || c.code == cli.ExitUnreachable && !strings.Contains(got.err, "durward panic") {
			t.Errorf("%+v: exit code %d, called %s\n%s%s", c, got.code, w.calls, got.out, got.err)
		}
	}
}

// TestSeveralNumbersAreCompleted: approve and deny take several numbers, so each is offered until it stands on the line.
func TestSeveralNumbersAreCompleted(t *testing.T) {
	w := newWorld(t)
	w.asks("start_service", `{"service_id":"chat"}`)
	w.asks("stop_service", `{"service_id":"chat"}`).OperationId = "1123456789abcdef0123456789abcdef"
	complete := func(line ...string) ran {
		line = append(append([]string{"__complete"}, line...), "")
		got := w.run(line...)
		for tries := 20; tries > 0 && !strings.Contains(got.out, "_service"); tries-- {
			got = w.run(line...) // a shell's line does not wait for a busy machine
		}
		return got
	}
	for _, command := range []string{"approve", "deny"} {
		first, _, _ := strings.Cut(complete(command).out, "\t")
		got := complete(command, first).out
		if first == "" || strings.Contains(got, first) || strings.Count(got, "_service service_id=") != 1 {
			t.Errorf("%s %s: %q", command, first, got)
		}
	}
}

// TestDenySeveral: all are found before one is denied, each is denied once, and one that is not keeps none of the others back.
func TestDenySeveral(t *testing.T) {
	w := newWorld(t)
	first := w.asks("start_service", `{"service_id":"chat"}`)
	second := w.asks("stop_service", `{"service_id":"chat"}`)
	second.OperationId = "1123456789abcdef0123456789abcdef"
	third := w.asks("start_service", `{"service_id":"coder"}`)
	third.OperationId = "2123456789abcdef0123456789abcdef"
	if got := w.run("deny", "01234567", "ZZZZ"); got.code != cli.ExitUsage || len(w.calls) > 0 {
		t.Errorf("one that is not there: exit code %d, called %v", got.code, w.calls)
	}
	got := w.run("deny", "01234567", "11234567", "0123456789", "--reason", "no")
	if got.code != cli.ExitOK || strings.Count(got.out, "denied.") != 2 || fmt.Sprint(w.calls) != "[deny no deny no]" {
		t.Errorf("exit code %d, called %v\n%s%s", got.code, w.calls, got.out, got.err)
	}
	w.decided = second.GetOperationId()
	got = w.run("deny", "11234567", "21234567", "--json")
	if got.code != cli.ExitFailed || !strings.Contains(got.err, "is denied already") || !strings.Contains(got.err, "not all of them") ||
		strings.Count(got.out, `"operation_id": "`) != 1 || !strings.Contains(got.out, third.GetOperationId()) {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if got := w.run("deny", "01234567", "--json"); got.code != cli.ExitOK || !strings.HasPrefix(got.out, "{\n  \"number\"") || !strings.Contains(got.out, first.GetOperationId()) {
		t.Errorf("one alone: exit code %d\n%s", got.code, got.out)
	}
}

// TestPanicWithAHungPeer: a vault that hangs keeps nobody from halting the executor, within about a second.
func TestPanicWithAHungPeer(t *testing.T) {
	w := newWorld(t)
	w.hung = true
	began := time.Now()
	got := w.run("panic")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	if got.code != cli.ExitUnreachable || !strings.Contains(got.out, "✓ executor halted") || !strings.Contains(got.out, "✗ vault") {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

// TestPanicWithAPeerThatAcceptsAndSaysNothing: a connection without an answer is as good as none.
func TestPanicWithAPeerThatAcceptsAndSaysNothing(t *testing.T) {
	w := newWorld(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	file := w.home.Config("operator")
	raw := testfile.Read(t, file)
	cfg, err := w.home.Load()
	must(t, err)
	testfile.Write(t, file, bytes.ReplaceAll(raw, []byte(cfg.Vault.Address), []byte(silent.Addr().String())))
	began := time.Now()
	got := w.run("panic")
	if took := time.Since(began); took > 2*time.Second || !strings.Contains(got.out, "✓ executor halted") {
		t.Errorf("after %s: exit code %d\n%s%s", took, got.code, got.out, got.err)
	}
}
