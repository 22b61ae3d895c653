package mode

import (
	"fmt"
	"strconv"
	"sync"
	"syscall"

	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/platform/weakness"
)

// Guards are those that a drill build may lack.
var Guards = weakness.Of("compensation", "admission", "definition", "lease", "plan", "margin")

var (
	crashMu sync.Mutex
	crashAt int
	points  int
)

// CrashAt makes the process kill itself at the n-th point around a write of the switch journal; 1 is the first.
func CrashAt(n string) error {
	at, err := strconv.Atoi(n)
	if err != nil || at < 1 {
		return fmt.Errorf("%q is not the number of a point", n)
	}
	crashMu.Lock()
	defer crashMu.Unlock()
	crashAt = at
	return nil
}

func crashPoint(string) {
	crashMu.Lock()
	defer crashMu.Unlock()
	if points++; points == crashAt {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way; nothing more is done
	}
}

func compensationRequired() bool { return !Guards.Off("compensation") }

func admissionRequired() bool { return !Guards.Off("admission") }

func definitionRequired() bool { return !Guards.Off("definition") }

func hostLease(l *lease.Leases) (func(), error) {
	if Guards.Off("lease") {
		return func() {}, nil
	}
	return l.Host()
}

func marginAllowed(margin, least uint32) bool { return Guards.Off("margin") || margin >= least }

func planRequired() bool { return !Guards.Off("plan") }
