package redaction

import (
	"strings"
	"sync"
)

// memory remembers fields that hold no credential: records of one client, tool or session are like each other, and looking through a text
// costs a hundred times as much as finding it here. What is in it depends on nothing else than the field.
type memory struct {
	mu sync.Mutex
	// new is filled, and becomes old when it is full: what was asked for lately stays.
	new, old map[text]bool
}

// text is what a field's cleanness depends on.
type text struct {
	arguments       bool
	key, tool, text string
}

const (
	// remembered bounds how many texts each half holds, and longest how many bytes one has.
	remembered = 1024
	longest    = 256
)

// has reports whether the field holds no credential.
func (m *memory) has(f field) bool {
	if len(f.text) > longest || ownID(f.text) {
		return f.clean()
	}
	at := text{arguments: f.name == arguments, key: f.key, text: f.text}
	if at.arguments {
		at.tool = f.tool
	}
	m.mu.Lock()
	known := m.new[at] || m.old[at]
	m.mu.Unlock()
	if !known && !f.clean() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.new) == remembered {
		m.new, m.old = map[text]bool{}, m.new
	}
	m.new[at] = true
	return true
}

// OwnHandle is what requests and sessions are called, as a regular expression: r- or s- with 26 characters of base32. It looks like a
// credential, and is none.
const OwnHandle = `[rs]-[a-z2-7]{26}`

// ownID reports whether a text is an id that the project's own processes make: an OwnHandle, or 32 hex digits.
func ownID(s string) bool {
	digits, low, high := s, "09", "af"
	switch {
	case len(s) == 28 && (strings.HasPrefix(s, "r-") || strings.HasPrefix(s, "s-")):
		digits, low, high = s[2:], "27", "az"
	case len(s) != 32:
		return false
	}
	for i := range len(digits) {
		if c := digits[i]; (c < low[0] || c > low[1]) && (c < high[0] || c > high[1]) {
			return false
		}
	}
	return true
}
