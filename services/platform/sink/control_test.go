package sink

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/statement"
)

// resumption is a human's statement that ends a halt of every process at that epoch.
func (s *stand) resumption(epoch uint64) *statement.Statement {
	now := time.Now()
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindResume, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: epoch, Audience: s.self,
	}
}

func (s *stand) resume(st *statement.Statement) error {
	s.t.Helper()
	h, err := statement.Sign(st, s.kit.OperatorSigner)
	must(s.t, err)
	_, err = s.Resume(s.t.Context(), h)
	return err
}

// Each of these ends no halt, and is refused before the log says that one ended.
func TestWhatDoesNotEndAHalt(t *testing.T) {
	for name, c := range map[string]struct {
		of    func(s *stand) *statement.Statement
		cause string
	}{
		"another kind":    {func(s *stand) *statement.Statement { return s.approved("start_service", startAlpha()).statement }, "kind"},
		"this epoch":      {func(s *stand) *statement.Statement { return s.resumption(2) }, errOldEpoch.Error()},
		"the end of time": {func(s *stand) *statement.Statement { return s.resumption(grant.MaxEpoch + 1) }, "epoch"},
		"another process": {func(s *stand) *statement.Statement {
			st := s.resumption(3)
			st.Audience = "spiffe://durward.local/vault/main"
			return st
		}, "another process"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			if _, err := s.Halt(t.Context(), "", 0); err != nil {
				t.Fatal(err)
			}
			s.refused(s.resume(c.of(s)), callv1.Code_CODE_DENIED, c.cause)
			for _, r := range s.log.records {
				if r.GetKind() == auditv1.Kind_KIND_RESUMED {
					t.Errorf("the log says that it was resumed: %v", r)
				}
			}
			if now := s.Control(); !now.Halted || now.Epoch != 2 {
				t.Errorf("after it: %v", now)
			}
		})
	}
}

// A sink that is new beside restored processes is a million epochs behind. It believes that of no vault, false or not, until a human's
// statement says it: from then on it goes along.
func TestASinkAddedAfterARestore(t *testing.T) {
	s := newStand(t)
	const restored = 1_000_003
	granted := func(epoch uint64) *paper {
		p := s.approved("start_service", startAlpha())
		p.grant.Epoch, p.statement.Epoch = epoch, epoch
		return p
	}
	for _, epoch := range []uint64{restored, grant.EpochWithin(1) + 1, grant.MaxEpoch} {
		s.refused(s.call(granted(epoch), startAlpha()), callv1.Code_CODE_DENIED, "durward resume")
	}
	if now := s.Control(); now.Epoch != 1 || s.effects != 0 {
		t.Fatalf("unasked: %v, %d effects", now, s.effects)
	}
	if _, err := s.Halt(t.Context(), "resume", restored); err != nil {
		t.Fatal(err)
	}
	must(t, s.resume(s.resumption(restored+1)))
	if err := s.call(granted(restored+1), startAlpha()); err != nil || s.effects != 1 {
		t.Errorf("resumed: %v, %d effects", err, s.effects)
	}
}

// meanwhile is a Recorder during which something happens once.
type meanwhile struct {
	*notebook
	kind    auditv1.Kind
	happens func()
}

func (m *meanwhile) Record(ctx context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	if r.GetKind() == m.kind {
		m.happens()
	}
	return m.notebook.Record(ctx, r)
}

// A halt that comes while a resume is written down is not ended by it, however high an epoch that names; the log, which has the resume below
// the halt by then, is told that the halt goes on.
func TestAHaltOvertakesAResume(t *testing.T) {
	for _, named := range []uint64{3, 9} {
		s := newStand(t)
		halt := func() {
			if _, err := s.Halt(t.Context(), "again", 0); err != nil {
				t.Error(err)
			}
		}
		halt()
		s.cfg.Recorder = &meanwhile{s.log, auditv1.Kind_KIND_RESUMED, halt}
		s.refused(s.resume(s.resumption(named)), callv1.Code_CODE_DENIED, errOldEpoch.Error())
		if now := s.Control(); !now.Halted || now.Epoch != 3 || now.Reason != "again" {
			t.Errorf("after one at epoch %d: %v", named, now)
		}
		halts := slices.DeleteFunc(s.log.records, func(r *auditv1.Record) bool { return r.GetKind() != auditv1.Kind_KIND_HALTED })
		if last := halts[len(halts)-1].GetBody(); last.GetDetails()["epoch"] != "3" || !strings.Contains(last.GetSummary(), "the halt goes on") {
			t.Errorf("the last halt that was recorded is %v", last)
		}
	}
}

// Of two resumptions at once one is recorded: the log does not say that a halt ended which the other ended.
func TestOneOfTwoResumptionsIsRecorded(t *testing.T) {
	s := newStand(t)
	if _, err := s.Halt(t.Context(), "", 0); err != nil {
		t.Fatal(err)
	}
	other := make(chan error, 1)
	s.cfg.Recorder = &meanwhile{s.log, auditv1.Kind_KIND_RESUMED, sync.OnceFunc(func() {
		go func() { other <- s.resume(s.resumption(3)) }()
		time.Sleep(50 * time.Millisecond) // nothing tells that the other one waits
	})}
	must(t, s.resume(s.resumption(3)))
	s.refused(<-other, callv1.Code_CODE_DENIED, errOldEpoch.Error())
	n := 0
	for _, r := range s.log.records {
		if r.GetKind() == auditv1.Kind_KIND_RESUMED {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the log has %d resumptions", n)
	}
}

// unwritable is a store that keeps its switch as it is.
type unwritable struct{ *memory }

func (unwritable) SetControl(context.Context, Control) error { return errors.New("the disk is full") }

// late is a log that takes a resumption after its caller gave up.
type late struct{ *notebook }

func (l late) Record(ctx context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	_, err := l.notebook.Record(ctx, r)
	return nil, errors.Join(err, errors.New("no answer in time"))
}

// A resumption that is in the log and not in force is followed there by the halt that goes on: the next process finds its state as the
// log has it.
func TestAResumptionThatFailedIsNotTheLastWord(t *testing.T) {
	for name, c := range map[string]struct {
		broken func(s *stand)
		code   callv1.Code
	}{
		"not written down":     {func(s *stand) { s.cfg.Store = unwritable{s.cfg.Store.(*memory)} }, callv1.Code_CODE_INTERNAL},
		"not recorded in time": {func(s *stand) { s.cfg.Recorder = late{s.log} }, callv1.Code_CODE_AUDIT_UNAVAILABLE},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			if _, err := s.Halt(t.Context(), "", 0); err != nil {
				t.Fatal(err)
			}
			c.broken(s)
			if err := s.resume(s.resumption(9)); !fault.Is(err, c.code) || !s.Control().Halted {
				t.Errorf("resumed: %v, %v", err, s.Control())
			}
			last := s.log.records[len(s.log.records)-1]
			if last.GetKind() != auditv1.Kind_KIND_HALTED || last.GetBody().GetDetails()["epoch"] != "2" || !strings.Contains(last.GetBody().GetSummary(), "the halt goes on") {
				t.Errorf("the last that was recorded is %v", last)
			}
		})
	}
}

// What the state is is told behind a resumption that is not in force: of what was told before one the next process asks nothing.
func TestTheStateIsToldBehindAResumptionThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.cfg.Store.(*memory).state = recorder.State{Revision: 5}
		if _, err := s.Halt(t.Context(), "", 0); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		defer running.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		running.Go(func() { s.keeper.Run(ctx) })
		synctest.Wait()
		s.cfg.Recorder = late{s.log}
		if err := s.resume(s.resumption(9)); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
			t.Errorf("resumed: %v", err)
		}
		synctest.Wait()
		var kinds []auditv1.Kind
		for _, r := range s.log.records {
			kinds = append(kinds, r.GetKind())
		}
		const halted, state, resumed = auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_STATE, auditv1.Kind_KIND_RESUMED
		if !slices.Equal(kinds, []auditv1.Kind{halted, state, resumed, halted, state}) {
			t.Errorf("it recorded %v", kinds)
		}
	})
}

// halting is a vault during whose redemption the sink is halted.
type halting struct {
	*clerk
	halt func()
}

func (h halting) Redeem(ctx context.Context, r *vaultv1.RedeemRequest, o ...grpc.CallOption) (*vaultv1.RedeemResponse, error) {
	h.halt()
	return h.clerk.Redeem(ctx, r, o...)
}

// full is a store without room.
type full struct{ *memory }

func (full) Spend(context.Context, *Spend) error {
	return fault.New(callv1.Code_CODE_UNAVAILABLE, "the disk is full")
}

// What comes between an admitted call and its handler keeps the handler from being called, each thing by itself.
func TestWhatKeepsACallFromItsHandler(t *testing.T) {
	for name, c := range map[string]struct {
		comes func(s *stand, p *paper, halt func())
		code  callv1.Code
		cause string
	}{
		"a halt, while the vault redeems": {func(s *stand, _ *paper, halt func()) { s.cfg.Vault = halting{s.clerk, halt} }, callv1.Code_CODE_HALTED, "halted while the vault redeemed"},
		"a halt, while the intent is written": {func(s *stand, _ *paper, halt func()) {
			s.cfg.Recorder = &meanwhile{s.log, auditv1.Kind_KIND_INTENT, halt}
		}, callv1.Code_CODE_HALTED, "halted while the intent was recorded"},
		"a full disk": {func(s *stand, _ *paper, _ func()) { s.cfg.Store = full{s.cfg.Store.(*memory)} }, callv1.Code_CODE_UNAVAILABLE, "full"},
		"another call under the same key, beside": {func(s *stand, p *paper, _ func()) { s.executions[spendKey(p.grant)] = &execution{tool: "stop_service"} }, callv1.Code_CODE_DENIED, "in use for another call"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			p := s.approved("start_service", startAlpha())
			c.comes(s, p, func() {
				if _, err := s.Halt(t.Context(), "", 0); err != nil {
					t.Error(err)
				}
			})
			s.handle = func(context.Context) { t.Error("the handler was called") }
			s.refused(s.call(p, startAlpha()), c.code, c.cause)
		})
	}
}

// The chain in front hands over messages alone; anything else is no call.
func TestWhatIsNoMessageIsNoCall(t *testing.T) {
	s := newStand(t)
	tool := mustTool(t, "start_service")
	handler := func(context.Context, any) (any, error) { t.Error("served"); return nil, nil }
	_, err := s.Unary(s.subject)(t.Context(), 42, &grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, handler)
	if err == nil || !strings.Contains(err.Error(), "not a message") {
		t.Errorf("a call: %v", err)
	}
	stream := &recordedStream{ServerStream: &wire{ctx: t.Context()}, ctx: t.Context(), authority: s.Authority, call: &call{}}
	if err := stream.RecvMsg(42); err == nil || !strings.Contains(err.Error(), "not a message") {
		t.Errorf("a stream: %v", err)
	}
}

// unreadable is a store whose state cannot be read.
type unreadable struct{ *memory }

func (u unreadable) State(ctx context.Context) (recorder.State, error) {
	<-ctx.Done()
	return recorder.State{}, ctx.Err()
}

// A halt answers whether or not the state can be read: what it is is told afterwards.
func TestAHaltDoesNotWaitForTheState(t *testing.T) {
	s := newStand(t)
	s.cfg.Store = unreadable{s.cfg.Store.(*memory)}
	if epoch, err := s.Halt(t.Context(), "", 0); err != nil || epoch != 2 {
		t.Errorf("halted at %d, %v", epoch, err)
	}
	if kinds := s.log.records; len(kinds) != 1 || kinds[0].GetKind() != auditv1.Kind_KIND_HALTED {
		t.Errorf("it recorded %v", kinds)
	}
}
