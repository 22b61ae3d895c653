package service

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/procfs"
)

const (
	// signInterval is how often the signs are read that cost something.
	signInterval = 2 * time.Second
	// grownMiB is how much more GPU memory than ever before is progress.
	grownMiB = 16
	// busyShare is which part of one processor a loading program uses at least; a hanging one idles.
	busyShare = 0.2
)

// signs are what shows that a starting service gets on: its answers, its log, its GPU memory and its processor time. None of
// them proves anything, so together they only put off the verdict that it hangs.
type signs struct {
	m       *Manager
	service *catalog.Service
	mark    string
	cursor  string
	mib     uint32
	cpu     time.Duration
	// read is when the costly signs were read; next is when they are again.
	read, next time.Time
}

func (m *Manager) signs(s *catalog.Service) *signs {
	return &signs{m: m, service: s, next: time.Now().Add(signInterval)}
}

// moved reports whether anything has moved since it was asked before.
func (g *signs) moved(ctx context.Context, status driver.Status, mark string) bool {
	moved := mark != "" && mark != g.mark
	if mark != "" {
		g.mark = mark
	}
	now := time.Now()
	if now.Before(g.next) {
		return moved
	}
	g.next = now.Add(signInterval)
	// Read from its end: a page after the cursor would be one line further each time, long after the last was written.
	if page, err := g.m.driver(g.service).Logs(ctx, g.service, "", 1); err == nil && page.Cursor != g.cursor {
		moved, g.cursor = true, page.Cursor
	}
	if mib := g.m.Measured(g.service); mib >= g.mib+grownMiB {
		moved, g.mib = true, mib
	}
	if cpu, ok := g.m.host.cpu(status); ok {
		if busy := cpu - g.cpu; !g.read.IsZero() && busy.Seconds() > busyShare*now.Sub(g.read).Seconds() {
			moved = true
		}
		g.cpu, g.read = cpu, now
	}
	return moved
}

// host is where the kernel tells of programs.
type host struct{ proc, cgroups string }

// clockTicks is USER_HZ, which Linux shows to programs as 100 on every architecture that Go knows.
const clockTicks = 100

// cpu returns the processor time that a service has used: its control group's, or its first program's.
func (h host) cpu(status driver.Status) (time.Duration, bool) {
	if status.CGroup != "" && status.CGroup != "/" {
		if text, err := os.ReadFile(filepath.Join(h.cgroups, status.CGroup, "cpu.stat")); err == nil {
			for line := range strings.Lines(string(text)) {
				if us, ok := strings.CutPrefix(line, "usage_usec "); ok {
					n, err := strconv.ParseInt(strings.TrimSpace(us), 10, 64)
					return time.Duration(n) * time.Microsecond, err == nil
				}
			}
		}
		for _, controller := range []string{"cpuacct", "cpu,cpuacct"} {
			if text, err := os.ReadFile(filepath.Join(h.cgroups, controller, status.CGroup, "cpuacct.usage")); err == nil {
				n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
				return time.Duration(n), err == nil
			}
		}
	}
	if status.PID <= 0 {
		return 0, false
	}
	text, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(status.PID), "stat"))
	if err != nil {
		return 0, false
	}
	// utime and stime are the 12th and 13th field after the program's name.
	fields := procfs.Stat(text)
	if len(fields) < 13 {
		return 0, false
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, false
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / clockTicks, true
}

// connected reports whether anybody is connected to the service's port on this host's loopback, or to a container's within its network,
// where other containers reach it; an error where the kernel does not tell of this host's.
func (h host) connected(s *catalog.Service, status driver.Status) (bool, error) {
	all, err := procfs.Sockets(h.proc)
	if err != nil || established(all, s.Port) || s.Container == nil || status.PID <= 0 {
		return established(all, s.Port), err
	}
	inside, _ := procfs.Sockets(filepath.Join(h.proc, strconv.Itoa(status.PID)))
	return established(inside, s.Container.Port), nil
}

// established looks for an established connection to the port on this host, from either side: where Docker forwards a port in the
// kernel, only the side that asks is there.
func established(sockets []procfs.Socket, port uint32) bool {
	return slices.ContainsFunc(sockets, func(s procfs.Socket) bool {
		return s.State == procfs.Established && (uint32(s.Local.Port()) == port || uint32(s.Remote.Port()) == port && s.Remote.Addr().IsLoopback())
	})
}
