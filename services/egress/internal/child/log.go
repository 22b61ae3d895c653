package child

import (
	"io"
	"strings"
	"sync"
	"time"

	"durward.internal/services/platform/clean"
)

const (
	// maxLog is how much of what an instance writes is kept, in bytes; maxLogRate is how much of it is read in a second.
	maxLog     = 64 << 10
	maxLogRate = 1 << 20
)

// journal keeps the last lines that an instance wrote, cleaned.
type journal struct {
	mu   sync.Mutex
	text []byte
}

// add appends a text in lines.
func (j *journal) add(text string) {
	text = clean.Block(text, clean.Whole)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text = append(j.text, text...)
	if over := len(j.text) - maxLog; over > 0 {
		j.text = append([]byte(nil), j.text[over:]...)
	}
}

// String returns what is kept, from the first whole character on.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.ToValidUTF8(string(j.text), "")
}

// follow keeps what is read until it ends. A writer that is faster than maxLogRate waits.
func (j *journal) follow(from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		j.add(string(buf[:n]))
		if err != nil {
			return
		}
		time.Sleep(time.Duration(n) * time.Second / maxLogRate)
	}
}
