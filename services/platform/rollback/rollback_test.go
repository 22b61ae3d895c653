package rollback

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/recorder"
)

// log is a History that was told one thing.
type log struct {
	control recorder.Control
	state   recorder.State
	index   uint64
	err     error
}

func (l *log) Last(context.Context, auditv1.Kind, string) (*auditv1.Entry, error) { return nil, l.err }
func (l *log) LastControl(context.Context) (recorder.Control, error)              { return l.control, l.err }
func (l *log) LastState(context.Context) (recorder.State, uint64, error) {
	return l.state, l.index, l.err
}

// late is a History that answers once it is no longer away.
type late struct {
	*log
	away atomic.Bool
}

func (l *late) LastControl(ctx context.Context) (recorder.Control, error) {
	if l.away.Load() {
		return recorder.Control{}, errors.New("audit is away")
	}
	return l.log.LastControl(ctx)
}

func config(history *log) (Config, *[]string) {
	did := &[]string{}
	return Config{
		History: history, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		Control: func() (uint64, bool) { return 1, false },
		State:   func(context.Context) (recorder.State, error) { return recorder.State{Revision: 3}, nil },
		Missing: func(context.Context, uint64) (string, error) { return "", nil },
		Halt:    func(_ context.Context, reason string, _ uint64) error { *did = append(*did, reason); return nil },
		Tell: func(_ context.Context, r *auditv1.Record) error {
			*did = append(*did, r.GetKind().String()+" "+r.GetBody().GetDetails()["revision"])
			return nil
		},
	}, did
}

// A resumption is recorded before the state has it. A comparison that comes in between waits: it would take that for a loss.
func TestAResumptionIsNoLoss(t *testing.T) {
	history := &log{control: recorder.Control{Index: 4, Epoch: 1}}
	cfg, did := config(history)
	var epoch atomic.Uint64
	epoch.Store(1)
	cfg.Control = func() (uint64, bool) { return epoch.Load(), false }
	k := New(cfg)
	done := k.Apart()
	history.control.Epoch = 2
	compared := make(chan error, 1)
	go func() { compared <- k.Compare(t.Context()) }()
	select {
	case <-compared:
		t.Fatal("it was compared in between")
	case <-time.After(50 * time.Millisecond):
	}
	epoch.Store(2)
	done()
	if err := <-compared; err != nil || len(*did) > 0 {
		t.Errorf("%v, %v", err, *did)
	}
}

// A process that ended between the record of a resumption and its own note of it is not told that its state was lost.
func TestAResumptionThatWasNotWrittenDown(t *testing.T) {
	for name, c := range map[string]struct {
		halted bool
		said   string
	}{
		"halted": {true, "a resumption was recorded and not written down, or the state is an older copy: the log has epoch 3, and the state epoch 2"},
		"lost":   {false, "the state was lost or is an older copy: the log has epoch 3, and the state epoch 2"},
	} {
		cfg, did := config(&log{control: recorder.Control{Index: 4, Epoch: 3}})
		cfg.Control = func() (uint64, bool) { return 2, c.halted }
		if err := New(cfg).Compare(t.Context()); err != nil || !slices.Equal(*did, []string{c.said}) {
			t.Errorf("%s: %v, it did %q", name, err, *did)
		}
	}
}

// A halt that is not durable is tried again, one that is comes once, and each look that fails leaves the state uncompared.
func TestComparedOnceItIsDecided(t *testing.T) {
	failed := errors.New("failed")
	for name, broken := range map[string]func(*Config, *log){
		"the log does not answer": func(_ *Config, l *log) { l.err = failed },
		"what is missing cannot be told": func(c *Config, l *log) {
			l.control = recorder.Control{}
			c.Missing = func(context.Context, uint64) (string, error) { return "", failed }
		},
		"the halt is not durable": func(c *Config, _ *log) { c.Halt = func(context.Context, string, uint64) error { return failed } },
	} {
		t.Run(name, func(t *testing.T) {
			history := &log{control: recorder.Control{Index: 4, Epoch: 7}}
			cfg, did := config(history)
			whole := cfg
			broken(&cfg, history)
			k := New(cfg)
			for range 2 {
				if err := k.Compare(t.Context()); !errors.Is(err, failed) {
					t.Fatalf("compared: %v", err)
				}
			}
			k.cfg, history.err, history.control = whole, nil, recorder.Control{Index: 4, Epoch: 7}
			for range 2 {
				if err := k.Compare(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if len(*did) != 1 || !strings.Contains((*did)[0], "the log has epoch 7, and the state epoch 1") {
				t.Errorf("it did %q", *did)
			}
		})
	}
}

// What the state was once halts it only where it was told, and since a human resumed last.
func TestOlderThanWhatWasTold(t *testing.T) {
	for name, tc := range map[string]struct {
		resumed uint64
		told    recorder.State
		index   uint64
		halts   bool
	}{
		"nothing was told":             {0, recorder.State{Digest: "a"}, 0, false},
		"a later revision":             {0, recorder.State{Revision: 4, Digest: "a"}, 9, true},
		"another of the same revision": {0, recorder.State{Revision: 3, Digest: "a"}, 9, true},
		"an earlier revision":          {0, recorder.State{Revision: 2, Digest: "a"}, 9, false},
		"before a human resumed":       {10, recorder.State{Revision: 4, Digest: "a"}, 9, false},
		"since a human resumed":        {8, recorder.State{Revision: 4, Digest: "a"}, 9, true},
	} {
		cfg, did := config(&log{control: recorder.Control{Index: tc.resumed, Epoch: 1}, state: tc.told, index: tc.index})
		cfg.State = func(context.Context) (recorder.State, error) { return recorder.State{Revision: 3, Digest: "b"}, nil }
		if tc.told.Revision == 0 {
			cfg.State = func(context.Context) (recorder.State, error) { return recorder.State{Digest: "b"}, nil }
		}
		if err := New(cfg).Compare(t.Context()); err != nil || (len(*did) == 1) != tc.halts {
			t.Errorf("%s: %v, it did %q", name, err, *did)
		}
	}
}

// Soon waits for nothing, whatever becomes of the state: the log is told once it can be read, each day, and at the end.
func TestTheStateIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, did := config(&log{})
		var mu sync.Mutex
		tell := cfg.Tell
		cfg.Tell = func(ctx context.Context, r *auditv1.Record) error {
			mu.Lock()
			defer mu.Unlock()
			return tell(ctx, r)
		}
		told := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(*did)
		}
		readable := make(chan struct{})
		cfg.State = func(context.Context) (recorder.State, error) {
			<-readable
			return recorder.State{Revision: 3}, nil
		}
		k := New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { k.Run(ctx); close(ended) }()
		for range 3 {
			k.Soon()
			synctest.Wait()
		}
		if got := told(); len(got) != 0 {
			t.Errorf("it told %q of what it cannot read", got)
		}
		close(readable)
		synctest.Wait()
		if want := []string{"KIND_STATE 3", "KIND_STATE 3"}; !slices.Equal(told(), want) { // one that was under way, and one since
			t.Errorf("it told %q, want %q", told(), want)
		}
		time.Sleep(recorder.StateEvery)
		synctest.Wait()
		cancel()
		<-ended
		if got := told(); len(got) != 4 {
			t.Errorf("it told %q", got)
		}
	})
}

// An older copy that starts while the log does not answer tells nothing of itself, not at a halt and not at its end: the next process would
// compare it with that. Once the log has answered it is halted, and told.
func TestAnOlderCopyIsNotToldBeforeItIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		history := &late{log: &log{state: recorder.State{Revision: 4}, index: 9}}
		history.away.Store(true)
		cfg, did := config(history.log)
		cfg.History = history
		k := New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { k.Run(ctx); close(ended) }()
		k.Soon()
		time.Sleep(recorder.StateEvery)
		cancel()
		<-ended
		if len(*did) > 0 {
			t.Errorf("without an answer it did %q", *did)
		}
		ctx, cancel = context.WithCancel(t.Context())
		ended = make(chan struct{})
		go func() { k.Run(ctx); close(ended) }()
		synctest.Wait()
		history.away.Store(false)
		time.Sleep(Retry)
		synctest.Wait()
		if len(*did) != 2 || !strings.Contains((*did)[0], "the log has revision 4 of it, and it is revision 3") || (*did)[1] != "KIND_STATE 3" {
			t.Errorf("it did %q", *did)
		}
		cancel()
		<-ended
	})
}

// Rows that bear no seal halt before they are taken as they are; without a halt they are not.
func TestDamaged(t *testing.T) {
	var did []string
	failed := errors.New("failed")
	accept := func(context.Context) error { did = append(did, "accepted"); return nil }
	halt := func(err error) func(context.Context, string) error {
		return func(_ context.Context, reason string) error { did = append(did, reason); return err }
	}
	logger := slog.New(slog.DiscardHandler)
	if err := Damaged(t.Context(), logger, nil, halt(nil), accept); err != nil || len(did) != 0 {
		t.Errorf("whole: %v, %q", err, did)
	}
	if err := Damaged(t.Context(), logger, []string{"a"}, halt(failed), accept); !errors.Is(err, failed) || len(did) != 1 {
		t.Errorf("not halted: %v, %q", err, did)
	}
	if err := Damaged(t.Context(), logger, []string{"a", "b"}, halt(nil), accept); err != nil || !slices.Equal(did[1:], []string{"the state is damaged: a; b", "accepted"}) {
		t.Errorf("damaged: %v, %q", err, did)
	}
}
