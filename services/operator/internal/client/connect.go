package client

import (
	"fmt"
	"strings"
)

// TokenVariable is the environment variable that an HTTP client's configuration names in the token's place.
const TokenVariable = "DURWARD_TOKEN" //nolint:gosec // a variable's name, not a token

// ServerName is Durward's name in an agent program's configuration.
const ServerName = "durward"

// Diff shows what changes between two texts: the lines that are not common at the beginning and the end, with two lines
// around them. It is empty when nothing changes.
func Diff(name string, before, after []byte) string {
	if string(before) == string(after) {
		return ""
	}
	old, now := lines(before), lines(after)
	start := 0
	for start < len(old) && start < len(now) && old[start] == now[start] {
		start++
	}
	end := 0
	for end < len(old)-start && end < len(now)-start && old[len(old)-1-end] == now[len(now)-1-end] {
		end++
	}
	const around = 2
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", name, name)
	for _, line := range old[max(0, start-around):start] {
		b.WriteString("  " + line + "\n")
	}
	for _, line := range old[start : len(old)-end] {
		b.WriteString("- " + line + "\n")
	}
	for _, line := range now[start : len(now)-end] {
		b.WriteString("+ " + line + "\n")
	}
	for _, line := range now[len(now)-end : min(len(now), len(now)-end+around)] {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

func lines(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}
