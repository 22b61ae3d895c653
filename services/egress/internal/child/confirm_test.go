package child

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"durward.internal/services/platform/downstream"
)

// TestConfirmedLast: a call is confirmed once its server is ready. One that is not confirmed is not made, and its caller hears why in its own words.
func TestConfirmedLast(t *testing.T) {
	t.Parallel()
	starting, started := make(chan struct{}), make(chan struct{})
	var ready atomic.Bool
	m := New(Config{Env: environment, Start: func(ctx context.Context, server *downstream.Pinned, user string, env map[string]string) (*Process, error) {
		close(starting)
		<-started
		ready.Store(true)
		return execute(ctx, server, user, env)
	}})
	t.Cleanup(m.Close)
	m.Set([]downstream.Pinned{pinned("counts")})
	ended := errors.New("what it rests on was ended")
	called := make(chan error, 1)
	go func() {
		_, err := m.Call(t.Context(), "agent", "counts", "echo", []byte(`{}`), func() error {
			if !ready.Load() {
				t.Error("it is confirmed before its server starts")
			}
			return ended
		})
		called <- err
	}()
	select {
	case <-starting:
	case err := <-called:
		t.Fatalf("the call did not wait: %v", err)
	}
	close(started)
	if err := <-called; err != ended { //nolint:errorlint // as it is
		t.Errorf("a call that is not confirmed: %v", err)
	}
	if got, err := call(m, "counts"); err != nil || got.Content[0].Text != "1" {
		t.Errorf("the call after it: %+v, %v; want the server's first", got, err)
	}
}

// TestQuestionsConfirmedLast: a server that may ask is waited for until it is at no other call, and the next call is confirmed then. Nor is an
// answer given that is not confirmed, and its question waits on.
func TestQuestionsConfirmedLast(t *testing.T) {
	m := manager(t, inquirer(t, "inquires"))
	r, err := m.enter(t.Context(), "agent", "inquires")
	must(t, err)
	r.turn <- struct{}{} // another call
	var over atomic.Bool
	ended := errors.New("what it rests on was ended")
	called := make(chan error, 1)
	go func() {
		_, err := m.Call(t.Context(), "agent", "inquires", "echo", []byte(`{}`), func() error {
			if !over.Load() {
				t.Error("it is confirmed while the server is at another call")
			}
			return ended
		})
		called <- err
	}()
	for status(m, "inquires", "agent").Calls < 2 && len(called) == 0 {
		runtime.Gosched()
	}
	over.Store(true)
	<-r.turn
	m.leave(r)
	if err := <-called; err != ended { //nolint:errorlint // as it is
		t.Errorf("a call that is not confirmed: %v", err)
	}
	got, err := call(m, "inquires")
	if err != nil || got.Question == "" {
		t.Fatal(got, err)
	}
	answer := fmt.Appendf(nil, `{"action":"decline","question":%q}`, got.Question)
	if _, err := m.Call(t.Context(), "agent", "inquires", downstream.AnswerQuestion, answer, func() error { return ended }); err != ended { //nolint:errorlint // as it is
		t.Errorf("an answer that is not confirmed: %v", err)
	}
	if done, err := reply(m, "agent", "inquires", got.Question, `"action":"decline",`); err != nil || done.Content[0].Text != `{"action":"decline"}` {
		t.Errorf("%+v, %v", done, err)
	}
}
