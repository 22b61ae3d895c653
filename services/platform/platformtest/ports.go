package platformtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// Ports are handed out in blocks below the range from which the kernel gives out ports by itself. A block is held by a lock
// on a file, so that test processes that run at the same time never meet.
const (
	firstPort = 20000
	// portsPerHost are what a home takes for its processes and some services.
	portsPerHost = 24
	blocks       = 390 // up to 29360: scripts that test the command line name ports from 29430 on
)

// figures stand in the goldens as amounts of memory and other numbers: a port that reads alike would be taken for one of them.
var figures = []int{20000, 24576, 28192, 28800}

// ClaimPorts returns the first port of a free block of 24, which stays claimed until the test ends.
func ClaimPorts(t testing.TB) int {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "durward-test-ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range blocks {
		block := (i + os.Getpid()) % blocks
		base := firstPort + block*portsPerHost
		if slices.ContainsFunc(figures, func(n int) bool { return base <= n && n < base+portsPerHost }) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(block)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil || !allFree(base) {
			_ = f.Close()
			continue
		}
		t.Cleanup(func() { _ = f.Close() })
		return base
	}
	t.Fatal("no block of ports is free")
	return 0
}

func allFree(base int) bool {
	for port := base; port < base+portsPerHost; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
