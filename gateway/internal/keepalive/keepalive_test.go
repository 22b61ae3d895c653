package keepalive

import (
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		out, end := Stream(w, time.Minute)
		said := func(want string) {
			t.Helper()
			synctest.Wait()
			s, _ := out.(*stream)
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := w.Body.String(); got != want {
				t.Errorf("written: %q, want %q", got, want)
			}
		}
		write := func(text string) {
			t.Helper()
			if _, err := out.Write([]byte(text)); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(3 * time.Minute) // of the bubble's clock, as all of these
		said("")
		out.Header().Set("Content-Type", "text/event-stream")
		write("data: 1\n\n")
		time.Sleep(59 * time.Second)
		said("data: 1\n\n")
		write("data: 2\n\n")
		time.Sleep(59 * time.Second)
		said("data: 1\n\ndata: 2\n\n")
		time.Sleep(62 * time.Second)
		said("data: 1\n\ndata: 2\n\n:\n\n:\n\n")
		write("data: 3\n\n")
		end()
		time.Sleep(time.Hour)
		said("data: 1\n\ndata: 2\n\n:\n\n:\n\ndata: 3\n\n")
		if !w.Flushed {
			t.Error("a comment was not flushed")
		}
	})
}

// What is no stream of events is left as it is.
func TestNoStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		out, end := Stream(w, time.Minute)
		defer end()
		out.Header().Set("Content-Type", "application/json")
		if _, err := out.Write([]byte("{}")); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour) // of the bubble's clock
		if got := w.Body.String(); got != "{}" {
			t.Errorf("written: %q", got)
		}
	})
}
