package drill

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/procfs"
)

// ExposureLine tries the ports of a whole installation from another network namespace, as another machine would.
const ExposureLine = "exposure"

// RunExposure carries ExposureLine out, as Run does with others, one world after the other.
func RunExposure(t *testing.T, full bool) {
	harness.Binaries(t, harness.Build{})
	harness.Binaries(t, harness.Build{Weak: true})
	if platformtest.NewNetwork(t) == nil {
		return
	}
	board := NewBoard(func(line string) { _, _ = fmt.Fprintln(platformtest.Outer(), line) })
	board.Expect(ExposureLine, 2)
	from := newElsewhere(t)
	t.Run("shipped", func(t *testing.T) {
		w := newWorld(t, false, full, func(*world) {})
		trials, effects := w.exposed(from)
		board.Note(t, ExposureLine, Result{Trials: trials, Effects: effects, Note: w.note})
	})
	t.Run("weak", func(t *testing.T) {
		w := newWorld(t, true, full, func(*world) {})
		w.h.WriteFile("config/gateway.yaml", regexp.MustCompile(`(?m)^listen: 127\.0\.0\.1:`).ReplaceAllString(w.h.ReadFile("config/gateway.yaml"), "listen: 0.0.0.0:"))
		w.weaken(map[string]string{harness.Gateway: "remote"})
		_, effects := w.exposed(from)
		board.Note(t, ExposureLine, Result{Control: effects})
	})
	board.Judge(t)
}

// exposed connects from elsewhere to every port at which anything listens, also a service of the catalogue. Its effects are connections.
func (w *world) exposed(from *elsewhere) (trials, effects int) {
	ports := listening(w.t)
	if len(ports) < 2*len(harness.Roles()) {
		w.t.Fatalf("only %d ports: %v", len(ports), ports)
	}
	for port := range ports {
		for _, host := range from.near {
			trials++
			if from.reaches(netip.AddrPortFrom(host, port)) {
				w.t.Logf("%s:%d is reached from elsewhere", host, port)
				effects++
			}
		}
	}
	w.note = fmt.Sprintf("%d ports", len(ports))
	return trials, effects
}

// listening are the TCP ports of this thread's network at which somebody listens: nothing is in it but the installation.
func listening(t *testing.T) map[uint16]bool {
	t.Helper()
	sockets, err := procfs.Sockets("/proc/thread-self")
	if err != nil {
		t.Fatal(err)
	}
	ports := map[uint16]bool{}
	for _, s := range sockets {
		if s.State == procfs.Listening {
			ports[s.Local.Port()] = true
		}
	}
	return ports
}

// elsewhere is another network namespace, with a cable to the test's own.
type elsewhere struct {
	// near are the test's own addresses on the cable.
	near []netip.Addr
	ask  chan netip.AddrPort
	said chan bool
}

// newElsewhere makes one; a connection to a port that is open to it shows that the cable works.
func newElsewhere(t *testing.T) *elsewhere {
	t.Helper()
	e := &elsewhere{
		near: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		ask:  make(chan netip.AddrPort), said: make(chan bool),
	}
	run := func(line string) error {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, bytes.TrimSpace(out))
		}
		return nil
	}
	all := func(lines ...string) error {
		for _, line := range lines {
			if err := run(line); err != nil {
				return err
			}
		}
		return nil
	}
	made, linked := make(chan int), make(chan error)
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, and its network, end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- 0
			ready <- err
			return
		}
		made <- unix.Gettid()
		if err := <-linked; err != nil {
			ready <- err
			return
		}
		ready <- all("address add 192.0.2.2/24 dev far", "address add 2001:db8::2/64 dev far nodad", "link set far up")
		for to := range e.ask {
			conn, err := net.DialTimeout("tcp", to.String(), answerTime)
			if err == nil {
				_ = conn.Close() // it was made
			}
			e.said <- err == nil
		}
	}()
	t.Cleanup(func() { close(e.ask) })
	if thread := <-made; thread != 0 {
		// Other tests want every address to be here; this one wants some to be elsewhere.
		linked <- all("route del local default dev lo table local", "-6 route del local default dev lo table local",
			fmt.Sprintf("link add near type veth peer name far netns %d", thread),
			"address add 192.0.2.1/24 dev near", "address add 2001:db8::1/64 dev near nodad", "link set near up")
	}
	if err := <-ready; err != nil {
		t.Fatalf("make another network: %v", err)
	}
	for _, host := range e.near {
		open, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(answerTime)
		for at := netip.MustParseAddrPort(open.Addr().String()); !e.reaches(at); {
			if time.Now().After(deadline) {
				t.Fatalf("control: an open port at %s is not reached", host)
			}
		}
		if err := open.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// reaches reports whether a connection is made from there.
func (e *elsewhere) reaches(to netip.AddrPort) bool {
	e.ask <- to
	return <-e.said
}
