package sink

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
)

// spent returns a call of start_service as it is after the redemption, with its spend key in the store.
func spent(t *testing.T, store *memory) *call {
	t.Helper()
	tool, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("no start_service")
	}
	c := &call{
		tool: tool, request: &executorv1.StartServiceRequest{ServiceId: proto.String("alpha")}, requestID: "r-1",
		grant:   &callv1.Grant{OperationId: grant.NewID(), Use: 1, Epoch: 1},
		subject: sha256.Sum256([]byte("{}")), subjects: plain{},
	}
	c.key = spendKey(c.grant)
	must(t, store.Spend(t.Context(), &Spend{Key: c.key, Operation: c.grant.GetOperationId(), Use: 1, Tool: tool.Name}))
	return c
}

// TestAChangeMustBeConfirmed: a handler that says that all went well and never asked is caught, whatever it did; one that was
// refused and says so did nothing; one that was refused and went on is caught too.
func TestAChangeMustBeConfirmed(t *testing.T) {
	kit := platformtest.New(t)
	good := &executorv1.StartServiceResponse{Changed: true}
	halted := func(a *Authority) { a.control.Store(&Control{Epoch: 1, Halted: true}) }
	tests := []struct {
		name    string
		handler func(a *Authority, effects *int) grpc.UnaryHandler
		code    callv1.Code // 0: it is answered
		state   State
		effects int
	}{
		{"confirmed", func(_ *Authority, effects *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) { return good, Confirm(ctx, func() { *effects++ }) }
		}, 0, StateDone, 1},
		{"never confirmed", func(_ *Authority, effects *int) grpc.UnaryHandler {
			return func(context.Context, any) (any, error) { *effects++; return good, nil }
		}, callv1.Code_CODE_INTERNAL, StateDone, 1},
		{"refused, and went on", func(a *Authority, effects *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) {
				halted(a)
				if err := Confirm(ctx, func() { t.Error("begun during a halt") }); err == nil {
					t.Error("confirmed during a halt")
				}
				*effects++
				return good, nil
			}
		}, callv1.Code_CODE_INTERNAL, StateDone, 1},
		{"refused", func(a *Authority, effects *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) {
				halted(a)
				return good, fmt.Errorf("start: %w", Confirm(ctx, func() { *effects++ }))
			}
		}, callv1.Code_CODE_HALTED, StateNotActed, 0},
		{"confirmed a part, then refused", func(a *Authority, effects *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) {
				if err := Confirm(ctx, func() { *effects++ }); err != nil {
					return nil, err
				}
				halted(a)
				return good, Confirm(ctx, func() { *effects++ })
			}
		}, callv1.Code_CODE_HALTED, StateDone, 1},
		{"halted and resumed between two steps", func(a *Authority, effects *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) {
				if err := errors.Join(Confirm(ctx, func() { *effects++ }), Continue(ctx, func() { *effects++ })); err != nil {
					return nil, err
				}
				a.control.Store(&Control{Epoch: 2})
				return good, Continue(ctx, func() { t.Error("a step under a grant that a halt has ended") })
			}
		}, callv1.Code_CODE_HALTED, StateDone, 2},
		{"late", func(_ *Authority, effects *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) {
				return good, errors.Join(Confirm(ctx, func() {}), Late(ctx, func() { *effects++ }))
			}
		}, 0, StateDone, 1},
		{"late, and halted meanwhile", func(a *Authority, _ *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) {
				if err := Confirm(ctx, func() {}); err != nil {
					return nil, err
				}
				halted(a)
				return good, Late(ctx, func() { t.Error("begun during a halt") })
			}
		}, callv1.Code_CODE_HALTED, StateNotActed, 0},
		{"a higher epoch", func(a *Authority, effects *int) grpc.UnaryHandler {
			return func(ctx context.Context, _ any) (any, error) {
				a.control.Store(&Control{Epoch: 2})
				return good, Confirm(ctx, func() { *effects++ })
			}
		}, callv1.Code_CODE_EXPIRED, StateNotActed, 0},
		{"failed before it asked", func(*Authority, *int) grpc.UnaryHandler {
			return func(context.Context, any) (any, error) { return nil, fault.New(callv1.Code_CODE_CONFLICT, "busy") }
		}, callv1.Code_CODE_CONFLICT, StateDone, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			a, store, log := newAuthority(t, kit)
			c := spent(t, store)
			effects := 0
			got := a.act(t.Context(), c, tc.handler(a, &effects))
			a.Wait(t.Context())
			if effects != tc.effects || store.entries[c.key].State != tc.state || store.entries[c.key].OK != (tc.code == 0) {
				t.Errorf("%d effects, kept as %q, ok %v", effects, store.entries[c.key].State, store.entries[c.key].OK)
			}
			last := log.records[len(log.records)-1]
			if tc.code == 0 {
				if got.err != nil || last.GetStatus() != auditv1.Status_STATUS_OK {
					t.Errorf("error %v, record %v", got.err, last)
				}
				return
			}
			if !fault.Is(got.err, tc.code) || got.response != nil {
				t.Errorf("answer is %v, %v, want %s", got.response, got.err, tc.code)
			}
			want := auditv1.Kind_KIND_OUTCOME
			if tc.state == StateNotActed {
				want = auditv1.Kind_KIND_SINK_REFUSED
			}
			if last.GetKind() != want || last.GetStatus() == auditv1.Status_STATUS_OK {
				t.Errorf("last record is %s %s", last.GetKind(), last.GetStatus())
			}
		})
	}
}

func TestNothingIsConfirmedOutsideAChange(t *testing.T) {
	a, _, _ := newAuthority(t, platformtest.New(t))
	begin := func() { t.Error("begun") }
	if err := Confirm(t.Context(), begin); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("anywhere: %v", err)
	}
	proceed := func(func()) error { t.Error("a step"); return nil }
	for name, n := range map[string]*notes{"in a read": {}, "before the first step": {proceed: proceed}} {
		if err := Continue(context.WithValue(t.Context(), notesKey{}, n), begin); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
			t.Errorf("a step %s: %v", name, err)
		}
	}
	for name, ctx := range map[string]context.Context{
		"anywhere": t.Context(), "before it was confirmed": context.WithValue(t.Context(), notesKey{}, &notes{confirm: func(context.Context, bool, func()) error { t.Error("late"); return nil }}),
	} {
		if err := Late(ctx, begin); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
			t.Errorf("late %s: %v", name, err)
		}
	}
	if err := Continue(t.Context(), begin); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("a step anywhere: %v", err)
	}
	read := context.WithValue(t.Context(), notesKey{}, &notes{})
	if _, err := a.run(read, &call{}, nil, func(ctx context.Context, _ any) (any, error) { return nil, Confirm(ctx, begin) }); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("in a read: %v", err)
	}
}

// TestAHaltWaitsForWhatIsBeginning: it is in force at once, and when it has answered, nothing begins any more.
func TestAHaltWaitsForWhatIsBeginning(t *testing.T) {
	a, store, _ := newAuthority(t, platformtest.New(t))
	moved := a.streams.moved.Wait()
	waitsForWhatIsBeginning(t, a, store, func() error {
		_, err := a.Halt(t.Context(), "", 0)
		return err
	}, func() {
		<-moved
		if !a.Control().Halted {
			t.Error("not in force while something begins")
		}
	})
}

// waitsForWhatIsBeginning calls end while an act begins. The check runs before the act goes on.
func waitsForWhatIsBeginning(t *testing.T, a *Authority, store *memory, end func() error, check func()) {
	t.Helper()
	c := spent(t, store)
	beginning, goOn := make(chan struct{}), make(chan struct{})
	acted, answered := make(chan error, 1), make(chan error, 1)
	go func() {
		acted <- a.act(t.Context(), c, func(ctx context.Context, _ any) (any, error) {
			return &executorv1.StartServiceResponse{}, Confirm(ctx, func() { close(beginning); <-goOn })
		}).err
	}()
	<-beginning
	go func() { answered <- end() }()
	check()
	// A writer that waits keeps further readers out, so that this ends when end has come to the lock.
	for a.beginning.TryRLock() {
		a.beginning.RUnlock()
		runtime.Gosched()
	}
	select {
	case <-answered:
		close(goOn)
		t.Fatal("it answered while something was beginning")
	default:
	}
	close(goOn)
	if err := errors.Join(<-acted, <-answered); err != nil {
		t.Error(err)
	}
}

// broken is a store whose disk refuses the switch.
type broken struct{ *memory }

func (broken) SetControl(context.Context, Control) error { return errors.New("no space") }

func TestAHaltIsInForceThoughTheDiskRefuses(t *testing.T) {
	a, _, log := newAuthority(t, platformtest.New(t), func(c *Config) { c.Store = broken{c.Store.(*memory)} })
	if _, err := a.Halt(t.Context(), "", 0); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("it is said to be durable: %v", err)
	}
	if now := a.Control(); !now.Halted || now.Epoch != 2 {
		t.Errorf("not in force: %v", now)
	}
	if len(log.records) != 1 || log.records[0].GetKind() != auditv1.Kind_KIND_HALTED {
		t.Errorf("records are %v", log.records)
	}
}
