package mode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"durward.internal/services/executor/internal/lease"
)

// Guards are the names that Weaken takes: each switches one guard off.
var Guards = []string{"compensation", "admission", "definition", "lease", "plan", "margin"}

var (
	weakenedMu sync.RWMutex
	weakened   = map[string]bool{}
	crashAt    int
	points     int
)

// Weaken switches guards off, by comma-separated names. It exists in drill builds alone.
func Weaken(names string) error {
	weakenedMu.Lock()
	defer weakenedMu.Unlock()
	for _, name := range strings.Split(names, ",") {
		if !slices.Contains(Guards, name) {
			return fmt.Errorf("no guard is called %q; there are %s", name, strings.Join(Guards, ", "))
		}
		weakened[name] = true
	}
	return nil
}

// CrashAt makes the process kill itself at the n-th point around a write of the switch journal; 1 is the first.
func CrashAt(n string) error {
	at, err := strconv.Atoi(n)
	if err != nil || at < 1 {
		return fmt.Errorf("%q is not the number of a point", n)
	}
	weakenedMu.Lock()
	defer weakenedMu.Unlock()
	crashAt = at
	return nil
}

func crashPoint(string) {
	weakenedMu.Lock()
	defer weakenedMu.Unlock()
	if points++; points == crashAt {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way; nothing more is done
	}
}

func weak(name string) bool {
	weakenedMu.RLock()
	defer weakenedMu.RUnlock()
	return weakened[name]
}

func compensationRequired() bool { return !weak("compensation") }

func admissionRequired() bool { return !weak("admission") }

func definitionRequired() bool { return !weak("definition") }

func hostLease(l *lease.Leases) (func(), error) {
	if weak("lease") {
		return func() {}, nil
	}
	return l.Host()
}

func marginAllowed(margin, least uint32) bool { return weak("margin") || margin >= least }

func planRequired() bool { return !weak("plan") }
