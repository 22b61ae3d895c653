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
	// maxSaid is how much of it the end of a process tells, in bytes.
	maxSaid = 1000
)

// journal keeps the last lines that an instance wrote, cleaned.
type journal struct {
	mu   sync.Mutex
	text []byte
	// written is how much there was in all.
	written int
}

// add appends a text in lines.
func (j *journal) add(text string) {
	text = clean.Block(text, clean.Whole)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text = append(j.text, text...)
	j.written += len(text)
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

// length is how much was written in all.
func (j *journal) length() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.written
}

// since returns the last of what was written after the first from bytes, without secrets.
func (j *journal) since(from int, secrets []string) string {
	j.mu.Lock()
	text := string(j.text[max(len(j.text)-(j.written-from), 0):])
	j.mu.Unlock()
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "[credential]")
	}
	return strings.ToValidUTF8(strings.TrimSpace(text[max(len(text)-maxSaid, 0):]), "")
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
