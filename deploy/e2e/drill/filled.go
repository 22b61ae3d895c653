package drill

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"durward.internal/deploy/e2e/harness"
)

const (
	filler = "demo-filler"
	// fillerLimit is the bound of each of the two files that a log is kept in, in bytes.
	fillerLimit = 64 << 10
	// ahead is how much more than its size a file system may give a file that grows.
	ahead = 1 << 20
)

// serviceFills runs a service that does whatever it can to what it was given to write to, and looks at its log in the meantime. Its
// effects are the most bytes that it had beyond its bound.
func serviceFills(w *world) (trials, effects int) {
	const catalogFile = "config/catalogue.yaml"
	before, report := w.h.ReadFile(catalogFile), w.h.Path("filler-report")
	program := w.build("filler")
	bytes := w.size(64<<20, 4<<20)
	w.h.WriteFile(catalogFile, before+fmt.Sprintf(`  - id: %s
    name: Filler
    driver: process
    argv: [%q, -port, "%d", -bytes, "%d", -report, %q]
    writes: [%q]
    port: %d
    health: {path: /health}
    stop_timeout_s: 2
    log_max_bytes: %d
`, filler, program, w.h.Port(4), bytes, report, report, w.h.Port(4), fillerLimit))
	harness.Eventually(w.t, "the service is in the catalogue", func() error { _, err := w.preview("start_service", filler); return err })

	looked, stop := make(chan int), make(chan struct{})
	go func() {
		most := 0
		for {
			most = max(most, w.beyond(filler))
			select {
			case <-stop:
				looked <- max(most, w.beyond(filler))
				return
			case <-time.After(time.Millisecond): // files grow without an event
			}
		}
	}()
	ended := sync.OnceFunc(func() {
		close(stop)
		effects = <-looked
	})
	defer ended()
	harness.Eventually(w.t, "it is started", func() error { return w.command("start_service", filler) })
	var tried []string
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) { // its report has no event
		raw, err := os.ReadFile(report)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatal(err)
		}
		if tried = strings.Split(strings.TrimSpace(string(raw)), "\n"); tried[len(tried)-1] == "done" {
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the service has not tried everything:\n%s", raw)
		}
	}
	ended()
	trials = len(tried) - 1
	if !w.weak {
		// What the service wrote last may still be on its way there, and the file is being written again then.
		harness.Eventually(w.t, "the log was filled, without which nothing is proved", func() error {
			info, err := os.Stat(w.logOf(filler) + ".1")
			if err == nil && info.Size() != fillerLimit {
				err = fmt.Errorf("it has %d of %d bytes", info.Size(), fillerLimit)
			}
			return err
		})
	}
	if effects > 0 {
		w.t.Logf("%d bytes beyond the bound:\n%s", effects, strings.Join(tried, "\n"))
	}
	harness.Eventually(w.t, "it is stopped", func() error { return w.command("stop_service", filler) })
	w.h.WriteFile(catalogFile, before)
	w.must(os.Remove(report))
	return trials, effects
}

func (w *world) logOf(service string) string {
	return w.h.Path("state", harness.Executor, "logs", service+".log")
}

// beyond is how many bytes a service's log takes on the disk, or claims to, beyond its bound.
func (w *world) beyond(service string) (n int) {
	for _, file := range []string{w.logOf(service), w.logOf(service) + ".1"} {
		info, err := os.Stat(file)
		if err != nil {
			continue // not there yet
		}
		taken := 0
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			taken = int(st.Blocks) * 512
		}
		n += max(int(info.Size())-fillerLimit, taken-fillerLimit-ahead, 0)
	}
	return n
}
