package docker

import (
	"context"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"durward.internal/services/platform/containerpolicy"
)

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
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
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
