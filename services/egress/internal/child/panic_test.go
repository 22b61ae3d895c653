package child

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"durward.internal/services/platform/downstream"
)

// TestPanicDuringAStart: a server that is being started when a panic comes is ended before it is told anything, and that is no end of its own.
func TestPanicDuringAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starting, start, killed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var at time.Time
		m := New(Config{Start: func(context.Context, *downstream.Pinned, string, map[string]string) (*Process, error) {
			close(starting)
			<-start
			said, stdin := io.Pipe()
			stdout, _ := io.Pipe()
			go func() {
				if first, _ := io.ReadAll(said); len(first) > 0 {
					t.Errorf("it was told %s", first)
				}
			}()
			return &Process{
				Stdin: stdin, Stdout: stdout, Stderr: io.NopCloser(strings.NewReader("")),
				Wait: func() error { <-killed; return nil },
				Kill: func() {
					if at.IsZero() {
						at = time.Now()
						close(killed)
						_ = stdin.Close()
					}
				},
			}, nil
		}})
		m.Set([]downstream.Pinned{pinned("good")})
		called := make(chan error, 1)
		go func() { called <- as(m, "agent", "good") }()
		<-starting
		must(t, m.Freeze())
		if err := <-called; err == nil || err.Error() != "server good: it is stopped by a panic" {
			t.Errorf("the call that started it: %v", err)
		}
		frozen := time.Now()
		close(start)
		<-killed
		if !at.Equal(frozen) {
			t.Errorf("it ran for %s", at.Sub(frozen))
		}
		synctest.Wait()
		m.mu.Lock()
		if ends := m.instances[key{"good", "agent"}].ends; ends != 0 {
			t.Errorf("it ended %d times by itself", ends)
		}
		m.mu.Unlock()
		m.Close()
	})
}
