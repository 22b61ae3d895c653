// Package keepalive keeps streams of server-sent events from being silent: proxies cut a connection on which nothing came for a
// while, often after 60 s, and a client that is gone shows only when something is written to it. It runs in the gateway, the
// untrusted edge.
//
// What it writes is a comment, which clients leave out (https://html.spec.whatwg.org/multipage/server-sent-events.html). It is not
// the SDK's KeepAlive, whose pings end every session of the stateful era that has no stream to get them on.
package keepalive

import (
	"cmp"
	"net/http"
	"sync"
	"time"
)

// Every is how long a stream is silent at most.
const Every = 25 * time.Second

// comment is a line that says nothing, and the end of no event.
const comment = ":\n\n"

// Stream returns a writer for a stream of events that is written to w, each with one call of Write. Once the first was written, a
// comment follows whenever nothing was written for so long; 0: Every. The caller calls end when the stream is over; nothing is
// written to w after that.
func Stream(w http.ResponseWriter, every time.Duration) (out http.ResponseWriter, end func()) {
	every = cmp.Or(every, Every)
	s := &stream{ResponseWriter: w, every: every}
	s.mu.Lock() // until the timer is there
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(every, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over {
			return
		}
		if s.begun {
			if _, err := w.Write([]byte(comment)); err != nil {
				return // the server ends the request when its client is gone
			}
			_ = http.NewResponseController(w).Flush() // as the events are
		}
		s.timer.Reset(every)
	})
	return s, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over = true
		s.timer.Stop()
	}
}

type stream struct {
	http.ResponseWriter
	every time.Duration

	mu          sync.Mutex
	timer       *time.Timer
	begun, over bool
}

// Write implements http.ResponseWriter.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = s.begun || s.Header().Get("Content-Type") == "text/event-stream"
	if !s.over {
		s.timer.Reset(s.every)
	}
	return s.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.NewResponseController(s.ResponseWriter).Flush()
}

// Unwrap is too.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }
