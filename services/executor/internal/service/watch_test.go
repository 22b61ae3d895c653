package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// told collects what a watcher is sent.
type told struct{ lines []string }

func (w *told) send(c Change) error {
	line := c.ID + " " + StateName(c.State)
	if c.Initial {
		line += "*"
	}
	w.lines = append(w.lines, line)
	return nil
}

func TestWatchTellsEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, a := &program{after: driver.Running, took: 100 * time.Millisecond}, &answers{ready: time.Now().Add(time.Second)}
		m, s := manager(t, p, a, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var w told
		ended := make(chan error, 1)
		go func() { ended <- m.Watch(ctx, nil, w.send) }()
		running := make(chan struct{})
		go func() { m.Run(ctx); close(running) }()
		synctest.Wait()
		start := func() {
			if _, err := m.Start(t.Context(), s); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		start()
		a.mu.Lock()
		a.err = errors.New("no answer")
		a.mu.Unlock()
		time.Sleep(2 * healthInterval)
		a.mu.Lock()
		a.err = nil
		a.mu.Unlock()
		time.Sleep(10 * healthInterval) // one that does not answer is asked less often
		p.mu.Lock()
		p.status = driver.Status{State: driver.Ended, Cause: driver.CauseExited}
		p.mu.Unlock()
		time.Sleep(2 * healthInterval)
		start()
		if _, err := m.Stop(t.Context(), s); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		cancel()
		<-running
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		want := []string{"chat stopped*", "chat starting", "chat running", "chat unhealthy", "chat running", "chat failed",
			"chat starting", "chat running", "chat stopping", "chat stopped"}
		// The first health check may say before the reader looks what the watch would have begun with.
		if w.lines[0] == "chat stopped" {
			w.lines[0] = "chat stopped*"
		}
		if diff := cmp.Diff(want, w.lines); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if len(m.watchers.all) != 0 {
			t.Error("a watcher that left is still told")
		}
	})
}

func TestWatchRefusesWhatIsNotThere(t *testing.T) {
	m, _ := manager(t, &program{}, &answers{}, 0)
	err := m.Watch(t.Context(), []string{"chat", "caht"}, func(Change) error { return nil })
	wantFault(t, err, callv1.Code_CODE_NOT_FOUND, "no service has that id")
}

// A reader that is slow keeps nobody waiting, and finds the newest state of each service, however many changes it missed.
func TestASlowWatcherGetsTheNewestState(t *testing.T) {
	w := newWatcher([]string{"one", "two"})
	for i := range 10_000 {
		for _, id := range []string{"one", "two"} {
			w.put(Change{ID: id, State: executorv1.ServiceState(i%8 + 1)})
		}
	}
	w.put(Change{ID: "one", State: executorv1.ServiceState_SERVICE_STATE_STOPPED, Initial: true}) // late, and told by a change already
	want := []Change{{ID: "one", State: executorv1.ServiceState(9_999%8 + 1)}, {ID: "two", State: executorv1.ServiceState(9_999%8 + 1)}}
	if diff := cmp.Diff(want, w.take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if left := w.take(); len(left) != 0 || len(w.waiting) != 0 {
		t.Errorf("%v is told twice", left)
	}
	if w.wants("three") || !newWatcher(nil).wants("three") {
		t.Error("the choice of services is not kept")
	}
}

// A service that the catalog drops is told once, as unknown, and one that comes is told as it is.
func TestWatchersLearnOfANewCatalog(t *testing.T) {
	parse := func(ids ...string) *catalog.Catalog {
		text := "version: 1\nservices:\n"
		for _, id := range ids {
			text += fmt.Sprintf("  - {id: %s, driver: \"null\"}\n", id)
		}
		c, err := catalog.Parse("c.yaml", []byte(text), catalog.Options{Development: true})
		must(t, err)
		return c
	}
	current := parse("one", "two")
	m := New(Config{Catalog: func() *catalog.Catalog { return current }, Drivers: map[string]func() Driver{"null": Is(&program{})}, Health: &answers{}, Confirm: willing})
	w := newWatcher(nil)
	m.watchers.add(w)
	for _, c := range []struct {
		next *catalog.Catalog
		want []Change
	}{
		{current, []Change{{ID: "one", State: executorv1.ServiceState_SERVICE_STATE_STOPPED}, {ID: "two", State: executorv1.ServiceState_SERVICE_STATE_STOPPED}}},
		{parse("one", "three"), []Change{{ID: "two", State: executorv1.ServiceState_SERVICE_STATE_UNKNOWN}, {ID: "three", State: executorv1.ServiceState_SERVICE_STATE_STOPPED}}},
		{parse("one", "three"), []Change{}},
		{parse("one", "two"), []Change{{ID: "two", State: executorv1.ServiceState_SERVICE_STATE_STOPPED}, {ID: "three", State: executorv1.ServiceState_SERVICE_STATE_UNKNOWN}}},
	} {
		current = c.next
		m.observe(t.Context())
		m.checks.Wait()
		got := w.take()
		byID := func(a, b Change) int { return strings.Compare(a.ID, b.ID) }
		slices.SortFunc(got, byID)
		slices.SortFunc(c.want, byID)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
