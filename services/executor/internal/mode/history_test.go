package mode

import (
	"context"
	"errors"
	"testing"
	"time"

	"durward.internal/services/executor/internal/store"
)

// lasting is a Journal of one mode.
type lasting struct {
	Journal
	mode string
	// reads counts how often it was read; reading is called in the midst of that.
	reads   int
	reading func()
	fails   error
}

func (l *lasting) CurrentMode(context.Context) (string, error) {
	l.reads++
	mode := l.mode
	if l.reading != nil {
		l.reading()
	}
	return mode, l.fails
}

func (l *lasting) SetCurrentMode(_ context.Context, mode string) error {
	if l.fails == nil {
		l.mode = mode
	}
	return l.fails
}

func (l *lasting) EndSwitch(_ context.Context, _ int64, _ *store.Step, _ time.Time, e *store.Ending) error {
	l.mode = e.Current // it is written although the caller hears of an error
	return l.fails
}

// The current mode is read once until something may have changed it, whether or not that went well, and what was read before a change
// is not remembered after it.
func TestCurrentModeIsReadOnce(t *testing.T) {
	t.Parallel()
	journal := &lasting{mode: "chat"}
	h := &history{Journal: journal, took: map[pastStep][]time.Duration{}}
	current := func(want string, reads int) {
		t.Helper()
		got, err := h.CurrentMode(t.Context())
		if err != nil || got != want || journal.reads != reads {
			t.Errorf("the mode is %q (%v) after %d reads, want %q after %d", got, err, journal.reads, want, reads)
		}
	}
	broken := errors.New("broken")
	journal.fails = broken
	if _, err := h.CurrentMode(t.Context()); !errors.Is(err, broken) {
		t.Errorf("a journal that cannot be read: %v", err)
	}
	journal.fails = nil
	current("chat", 2)
	current("chat", 2)
	must(t, h.SetCurrentMode(t.Context(), "work"))
	current("work", 3)
	current("work", 3)
	journal.fails = broken
	if err := h.EndSwitch(t.Context(), 1, nil, time.Time{}, &store.Ending{Current: "talk"}); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	journal.fails = nil
	journal.reading = func() { // a switch ends between the read and its being remembered
		journal.reading = nil
		if err := h.EndSwitch(t.Context(), 2, nil, time.Time{}, &store.Ending{Current: "late"}); err != nil {
			t.Error(err)
		}
	}
	current("talk", 4)
	current("late", 5)
}
