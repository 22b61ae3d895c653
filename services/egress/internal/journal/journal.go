// Package journal keeps the last of what another's MCP server wrote to its standard error and logged, for a human: cleaned and bounded. It runs
// in egress; what it keeps is a stranger's text.
package journal

import (
	"io"
	"strings"
	"sync"
	"time"

	"durward.internal/services/platform/clean"
)

const (
	// Max is how much is kept, in bytes; maxRate is how much is read in a second.
	Max     = 64 << 10
	maxRate = 1 << 20
	// MaxSince is how much of it Since returns, in bytes.
	MaxSince = 1000
)

// Journal holds the last lines. Its zero value is empty, and its methods may be called concurrently.
type Journal struct {
	mu   sync.Mutex
	text []byte
	// written is how much there was in all.
	written int
}

// Add appends a text in lines.
func (j *Journal) Add(text string) {
	text = clean.Block(text, clean.Whole)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text = append(j.text, text...)
	j.written += len(text)
	if over := len(j.text) - Max; over > 0 {
		j.text = append([]byte(nil), j.text[over:]...)
	}
}

// String returns what is kept, from the first whole character on.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.ToValidUTF8(string(j.text), "")
}

// Length is how much was written in all.
func (j *Journal) Length() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.written
}

// Since returns the last of what was written after the first from bytes, without secrets.
func (j *Journal) Since(from int, secrets []string) string {
	j.mu.Lock()
	text := string(j.text[max(len(j.text)-(j.written-from), 0):])
	j.mu.Unlock()
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "[credential]")
	}
	return strings.ToValidUTF8(strings.TrimSpace(text[max(len(text)-MaxSince, 0):]), "")
}

// Follow keeps what is read until it ends. A writer that is faster than maxRate waits.
func (j *Journal) Follow(from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		j.Add(string(buf[:n]))
		if err != nil {
			return
		}
		time.Sleep(time.Duration(n) * time.Second / maxRate)
	}
}
