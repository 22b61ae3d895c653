// Package coredump keeps the memory of this process and its children, with the keys and tokens in it, from being written to disk when
// one crashes. Installed, systemd does so before they start.
package coredump

import (
	"fmt"
	"syscall"
)

// Off switches core dumps off.
func Off() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return fmt.Errorf("switch core dumps off: %w", err)
	}
	return nil
}
