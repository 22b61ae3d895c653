package docker

import (
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/cause"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/procfs"
)

const (
	// pace is how often the daemon is asked what there is, beside being listened to.
	pace = time.Second
	// maxBackoff is the longest pause before a daemon that does not answer is asked again.
	maxBackoff = 8 * time.Second
	// causeLines are how many of a log's last lines are read for why a container ended.
	causeLines = 20
)

// watcher is what was last seen of every container with a service's label.
type watcher struct {
	seenMu sync.Mutex
	// known is false until the daemon has answered, and again when it does not any more.
	known bool
	// seen by service id; a service may have a container that was made and one that was stopped.
	seen map[string][]sighting
	// stale are the ids of containers that something happened to since they were inspected.
	stale map[string]bool
	// settled, by service, are the ends that Stop asked for or was told of. A container that was made keeps it in its name.
	settled map[string]string
	// wake has a look made before its time.
	wake chan struct{}

	// round keeps two looks from overtaking each other: the one that began later is the one that stays.
	round  sync.Mutex
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// sighting is one container as it was last seen.
type sighting struct {
	summary container.Summary
	mode    container.NetworkMode
	status  driver.Status
	// end is the container's last one.
	end string
}

// watch begins the observation. The first look is waited for, so that services which run already are not taken for stopped.
func (d *Driver) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel, d.wake, d.settled = cancel, make(chan struct{}, 1), map[string]string{}
	d.look(ctx)
	d.done.Go(func() { d.listen(ctx) })
	d.done.Go(func() { d.observe(ctx) })
}

func (d *Driver) unwatch() {
	d.cancel()
	d.done.Wait()
}

// observe looks at its own pace, and when something happened, until ctx ends.
func (d *Driver) observe(ctx context.Context) {
	wait := pace
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-timer.C:
		}
		if d.look(ctx) {
			wait = pace
		} else {
			wait = min(2*wait, maxBackoff)
		}
		timer.Reset(wait)
	}
}

// look asks for every container of ours, and inspects those that changed. It reports whether the daemon answered.
func (d *Driver) look(ctx context.Context) bool {
	d.round.Lock()
	defer d.round.Unlock()
	d.seenMu.Lock()
	before, stale := d.seen, d.stale
	d.stale = nil
	d.seenMu.Unlock()
	all, err := d.list(ctx, "")
	if err != nil {
		if ctx.Err() == nil {
			d.forget(err)
		}
		return false
	}
	now := make(map[string][]sighting, len(all))
	for _, c := range all {
		id := c.Labels[containerpolicy.LabelService]
		now[id] = append(now[id], d.status(ctx, c, before[id], stale[c.ID] || stale[everything]))
	}
	d.seenMu.Lock()
	defer d.seenMu.Unlock()
	if !d.known {
		d.cfg.Logger.Info("Docker answers", "api", d.api.ClientVersion(), "containers", len(all))
	}
	d.known, d.seen = true, now
	return true
}

// refresh looks at one service's containers now, so that what is seen is not older than the last start or stop.
func (d *Driver) refresh(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	d.seenMu.Lock()
	known := d.known
	d.seenMu.Unlock()
	if !known {
		d.look(ctx)
		return
	}
	d.round.Lock()
	defer d.round.Unlock()
	all, err := d.list(ctx, id)
	if err != nil {
		d.forget(err)
		return
	}
	var now []sighting
	for _, c := range all {
		now = append(now, d.status(ctx, c, nil, true))
	}
	d.seenMu.Lock()
	defer d.seenMu.Unlock()
	if d.known {
		d.seen[id] = now
	}
}

// forget: what was seen says nothing any more.
func (d *Driver) forget(err error) {
	d.seenMu.Lock()
	defer d.seenMu.Unlock()
	if d.known {
		d.cfg.Logger.Warn("Docker does not answer", "error", err)
	}
	d.known, d.seen = false, nil
}

// sight inspects a container whose state changed; one that is as before needs no second look.
func (d *Driver) status(ctx context.Context, c container.Summary, before []sighting, afresh bool) sighting {
	for _, old := range before {
		// Names and State are all that can change of a container without an event of starting or ending, beside Status, which
		// counts the time.
		if !afresh && old.summary.ID == c.ID && old.summary.State == c.State && c.State != container.StateRestarting {
			old.summary = c
			return old
		}
	}
	out := sighting{summary: c, status: driver.Status{State: driver.Unknown, Cause: driver.CauseNoManager}}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	got, err := d.api.ContainerInspect(asking, c.ID, client.ContainerInspectOptions{})
	if err != nil || got.Container.State == nil {
		out.summary.State = "" // so that the next look asks again
		return out
	}
	if got.Container.HostConfig != nil {
		out.mode = got.Container.HostConfig.NetworkMode
	}
	out.summary.State = got.Container.State.Status
	out.end = end(got.Container)
	out.status = d.describe(ctx, got.Container)
	return out
}

// end tells a container's last end from every other, and from other containers'.
func end(c container.InspectResponse) string {
	if c.State == nil {
		return ""
	}
	return c.ID + " " + c.State.FinishedAt
}

// settle notes that the end of a service's container was meant to be.
func (d *Driver) settle(id string, c container.InspectResponse) {
	d.seenMu.Lock()
	defer d.seenMu.Unlock()
	d.settled[id] = end(c)
}

// describe says what an inspected container is.
func (d *Driver) describe(ctx context.Context, c container.InspectResponse) driver.Status {
	st := c.State
	s := driver.Status{Restarts: uint32(max(c.RestartCount, 0))}
	switch {
	case st.Restarting:
		s.State = driver.Starting
	case st.Running:
		s.State = driver.Running
		s.Since, _ = time.Parse(time.RFC3339Nano, st.StartedAt)
		s.PID = st.Pid
		s.CGroup = cgroup(st.Pid)
	case st.Status == container.StateRemoving:
		s.State = driver.Stopping
	case st.Status == container.StateCreated:
		s.State = driver.Stopped
	case d.beforeBoot(st.StartedAt):
		s.State, s.Cause = driver.Stopped, driver.CauseRestarted
	default:
		s.State = driver.Ended
		s.Cause = d.why(ctx, c)
	}
	return s
}

// beforeBoot reports whether a container was started before the host was.
func (d *Driver) beforeBoot(started string) bool {
	at, err := time.Parse(time.RFC3339Nano, started)
	return err == nil && at.Before(d.boot)
}

// bootTime reads when the host was started, from /proc/stat; the zero time where it is not said.
func bootTime(stat string) time.Time {
	for line := range strings.Lines(stat) {
		if text, ok := strings.CutPrefix(line, "btime "); ok {
			if seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
				return time.Unix(seconds, 0)
			}
		}
	}
	return time.Time{}
}

// What the daemon's init, like a shell, ends with where it cannot run the program.
const (
	notPermitted = 126
	notFound     = 127
)

// why a container ended: the kernel's word, then the init's, then the log's.
func (d *Driver) why(ctx context.Context, c container.InspectResponse) string {
	switch {
	case c.State.OOMKilled:
		return driver.CauseOutOfMemory
	case c.State.ExitCode == notFound:
		return driver.CauseProgramMissing
	case c.State.ExitCode == notPermitted:
		return driver.CauseNotPermitted
	}
	if page, err := d.page(ctx, c.ID, position{}, causeLines); err == nil {
		if known := cause.FromLog(page.Lines); known != "" {
			return known
		}
	}
	return driver.CauseExited
}

// Status reports what was last seen of a service: at most a second old while the daemon answers.
func (d *Driver) Status(s *catalog.Service) driver.Status {
	if s.Container == nil {
		return driver.Status{State: driver.Stopped}
	}
	d.seenMu.Lock()
	known, all, settled := d.known, d.seen[s.ID], d.settled[s.ID]
	d.seenMu.Unlock()
	if !known {
		return driver.Status{State: driver.Unknown, Cause: driver.CauseNoManager, Network: unlooked(s)}
	}
	summaries := make([]container.Summary, len(all))
	for i, c := range all {
		summaries[i] = c.summary
	}
	id, found, err := pick(summaries, s)
	switch {
	case err != nil:
		return driver.Status{State: driver.Unknown, Cause: driver.CauseContainer, Network: unlooked(s)}
	case !found:
		return driver.Status{State: driver.Stopped, Network: unlooked(s)}
	}
	for _, c := range all {
		if c.summary.ID == id {
			out := c.status
			out.Network = enforced(s, c.mode)
			// Where nobody wrote down who ended it, an orderly end counts as asked for.
			meant := c.end == settled || out.Cause == driver.CauseExited && asked(c.summary.Status)
			if s.Container.Adopt && out.State == driver.Ended && meant {
				out.State, out.Cause = driver.Stopped, ""
			}
			return out
		}
	}
	return driver.Status{State: driver.Stopped, Network: unlooked(s)}
}

// unlooked is what is enforced once the service's container is there.
func unlooked(s *catalog.Service) driver.Network {
	if s.Container.Adopt {
		return enforced(s, "")
	}
	return enforced(s, networkMode(s))
}

// asked reports whether a container ended in the way in which one ends that is told to: "Exited (0) 2 seconds ago".
func asked(status string) bool {
	code, _, _ := strings.Cut(strings.TrimPrefix(status, "Exited ("), ")")
	return code == "0" || code == strconv.Itoa(128+15)
}

// cgroup is the control group of a container's first program, as the kernel names it to us: the unified hierarchy's, or the
// memory controller's where there is none.
func cgroup(pid int) string {
	if pid <= 0 {
		return ""
	}
	raw, err := os.ReadFile(path.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	return groupOf(string(raw))
}

func groupOf(text string) string {
	memory := ""
	for controllers, path := range procfs.CGroups(text) {
		switch {
		case path == "/":
		case controllers == "":
			return path
		case controllers == "memory":
			memory = path
		}
	}
	return memory
}

// reopen is the first pause before a stream of events that ended is opened again.
const reopen = time.Second

// actions are the events after which a container is looked at. Those of programs run inside one, and of health checks, are
// left out: there are many, and they change nothing that is seen.
var actions = []string{
	string(events.ActionCreate), string(events.ActionStart), string(events.ActionDie), string(events.ActionOOM),
	string(events.ActionPause), string(events.ActionUnPause), string(events.ActionRename), string(events.ActionUpdate),
	string(events.ActionDestroy),
}

// listen marks each container that the daemon speaks of, and wakes the observer. While there is no stream, the observer's own
// pace is what there is; a new stream makes it look at everything afresh.
func (d *Driver) listen(ctx context.Context) {
	filters := client.Filters{}.Add("type", string(events.ContainerEventType)).Add("label", containerpolicy.LabelService).Add("event", actions...)
	for pause := reopen; ctx.Err() == nil; {
		began := time.Now()
		stream := d.api.Events(ctx, client.EventsListOptions{Filters: filters})
		d.mark(everything)
		for open := true; open; {
			select {
			case message := <-stream.Messages:
				d.mark(message.Actor.ID)
			case err := <-stream.Err: // the context's end too
				d.cfg.Logger.Debug("Docker's events ended", "error", err)
				open = false
			}
		}
		if pause = min(2*pause, maxBackoff); time.Since(began) > maxBackoff {
			pause = reopen
		}
		clock.Sleep(ctx, pause)
	}
}

// everything stands for every container.
const everything = "*"

// mark has a container inspected in the next look.
func (d *Driver) mark(id string) {
	d.seenMu.Lock()
	defer d.seenMu.Unlock()
	if d.stale == nil {
		d.stale = map[string]bool{}
	}
	d.stale[id] = true
	select {
	case d.wake <- struct{}{}:
	default:
	}
}
