package config_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"durward.internal/services/platform/config"
)

// TestReadWaitsForNobody: a named pipe in a file's place is refused, whether or not somebody writes into it.
func TestReadWaitsForNobody(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Read(pipe); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe was read: %v", err)
	}
}
