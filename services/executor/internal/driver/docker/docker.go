// Package docker runs services as containers of the Docker Engine on this host, through its Unix socket.
//
// Whoever holds that socket is root on the host. So the driver is the only one that speaks to it, says only what the
// catalog's entry says, and lets package containerpolicy judge each container three times (SEC-D7..D10): as it is sent, as the
// daemon says that it made it, and once more when it runs. A container that a human made, which an entry adopts by its label,
// is judged in the same way and by the same rules.
//
// Images are never pulled, built or loaded: a human puts them on the host. An image is named by its digest; where the
// catalog allows a tag, the image that was approved is the one that runs, and the container is made from its id. GPUs are
// asked for by UUID; the NVIDIA runtime, which believes what images say, is never used.
//
// A container that was made here outlives the executor and keeps its log when it ends; the next start removes it.
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/platform/catalog"
)

const (
	// minAPI is the oldest that is spoken: Docker 20.10's.
	minAPI = "1.41"
	// askTimeout bounds one question to the daemon, makeTimeout one that makes it work.
	askTimeout  = 5 * time.Second
	makeTimeout = 60 * time.Second
	// stopGrace is what the daemon may take beyond the entry's stop timeout to kill and to clear up.
	stopGrace = 20 * time.Second
)

// Config is what a Driver needs.
type Config struct {
	// Socket is the Docker Engine's, an absolute path.
	Socket string
	// Catalog returns the newest good one: what a human allows containers, and which GPU has which UUID.
	Catalog func() *catalog.Catalog
	// UUID finds the UUID of a real GPU that the catalog names by its index alone; it may be nil.
	UUID func(index uint32) (uuid string, ok bool)
	// Refused are folders and files that no container may see beyond those that none ever may: the executor's own.
	Refused []string
	// Release brings containers their credentials, as files that a launcher puts into the folder Credentials, which is in memory.
	Release     launch.Release
	Credentials string
	Logger      *slog.Logger
}

// Driver makes, finds, starts and stops containers. It is safe for concurrent use; start and stop of one service must not
// overlap.
type Driver struct {
	cfg  Config
	api  *client.Client
	boot time.Time

	watcher
}

// New begins to observe the daemon. A daemon that is not there is not an error: its services are unknown until it comes.
func New(cfg Config) (*Driver, error) {
	if !filepath.IsAbs(cfg.Socket) || filepath.Clean(cfg.Socket) != cfg.Socket {
		return nil, errors.New("docker driver: the socket must be an absolute path in its shortest form")
	}
	api, err := client.New(client.WithHost("unix://"+cfg.Socket), client.WithUserAgent("durward"))
	if err != nil {
		return nil, fmt.Errorf("docker driver: %w", err)
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("docker driver: %w", err)
	}
	d := &Driver{cfg: cfg, api: api, boot: bootTime(string(stat))}
	d.watch()
	return d, nil
}

// Close ends the observation. It stops no container.
func (d *Driver) Close() error {
	d.unwatch()
	return d.api.Close()
}

// Start makes the entry's container, or finds the one that it adopts, and starts it, if it has the definition. It returns when the container runs,
// whether or not it is healthy yet. Errors wrap one of the driver package's.
func (d *Driver) Start(ctx context.Context, s *catalog.Service, definition string, begin driver.Begin) error {
	if s.Container == nil {
		return fmt.Errorf("%w: the entry has no container", driver.ErrContainer)
	}
	if err := driver.PortFree(s.Address()); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrPortInUse, err)
	}
	h, err := d.daemon(ctx)
	if err != nil {
		return err
	}
	if s.Container.Adopt {
		err = d.startAdopted(ctx, s, definition, h, begin)
	} else {
		err = d.startMade(ctx, s, definition, h, begin)
	}
	d.refresh(ctx, s.ID)
	return err
}

// startMade makes a container of the entry and starts it.
func (d *Driver) startMade(ctx context.Context, s *catalog.Service, definition string, h host, begin driver.Begin) error {
	img, err := d.image(ctx, s)
	if err != nil {
		return err
	}
	if img.definition() != definition {
		return driver.ErrChanged
	}
	rules, err := d.rules(s, h, img)
	if err != nil {
		return err
	}
	spec, err := d.make(s, img, rules)
	if err != nil {
		return err
	}
	if len(s.Credentials) > 0 {
		// The container keeps the files, and they lose their names here, as soon as it was started.
		held, err := launch.Put(ctx, d.cfg.Release, s, d.cfg.Credentials)
		if err != nil {
			return err
		}
		defer held.Close()
		spec.give(held.Files, rules)
	}
	if err := spec.check(rules); err != nil {
		return fmt.Errorf("%w: what would be sent: %w", driver.ErrContainer, err)
	}
	if err := d.clear(ctx, s); err != nil {
		return err
	}
	creating, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	made, err := d.api.ContainerCreate(creating, client.ContainerCreateOptions{
		Config: spec.config, HostConfig: spec.host, Name: name(s),
	})
	if err != nil {
		return because("create", err)
	}
	for _, w := range made.Warnings {
		d.cfg.Logger.Warn("Docker changed what a container was to be", "service_id", s.ID, "warning", w)
	}
	if err := d.run(ctx, made.ID, begin, func(c container.InspectResponse, raw []byte) error {
		return errors.Join(rules.Check(raw), spec.differs(c, img))
	}); err != nil {
		if removed := d.remove(ctx, made.ID); removed && errors.Is(err, driver.ErrUnknown) {
			return fmt.Errorf("%w: the start was not answered, and the container is gone", driver.ErrNoManager)
		}
		return err
	}
	return nil
}

// startAdopted starts a container that a human made.
func (d *Driver) startAdopted(ctx context.Context, s *catalog.Service, definition string, h host, begin driver.Begin) error {
	if len(s.Credentials) > 0 {
		return fmt.Errorf("%w: a container that somebody else made is given none", driver.ErrNotTaken)
	}
	img, err := d.image(ctx, s)
	if err != nil {
		return err
	}
	found, err := d.adopted(ctx, s)
	if err != nil {
		return err
	}
	if adoptedDefinition(img, found.Raw) != definition {
		return driver.ErrChanged
	}
	rules, err := d.rules(s, h, img)
	if err != nil {
		return err
	}
	return d.run(ctx, found.Container.ID, begin, func(c container.InspectResponse, raw []byte) error {
		if adoptedDefinition(img, raw) != definition {
			return driver.ErrChanged
		}
		return errors.Join(rules.Check(raw), sameImage(c, img))
	})
}

// run judges a container that is there, starts it, and judges it again: between the two looks others may have changed it.
func (d *Driver) run(ctx context.Context, id string, begin driver.Begin, judge func(container.InspectResponse, []byte) error) error {
	look := func() (container.InspectResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		got, err := d.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			return container.InspectResponse{}, because("inspect", err)
		}
		if err := judge(got.Container, got.Raw); err != nil {
			return container.InspectResponse{}, fmt.Errorf("%w: %w", driver.ErrContainer, err)
		}
		return got.Container, nil
	}
	before, err := look()
	if err != nil {
		return err
	}
	if before.State != nil && before.State.Running {
		return fmt.Errorf("%w: it runs already", driver.ErrNotStarted)
	}
	starting, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	asked := false
	err = begin(func() error {
		asked = true
		_, err := d.api.ContainerStart(starting, id, client.ContainerStartOptions{})
		return err
	})
	lost := err != nil && (unreachable(err) || errors.Is(err, context.Canceled))
	switch {
	case !asked:
		return err
	case err == nil:
		_, err = look()
	case lost:
		err = because("start", err)
	default:
		return because("start", err)
	}
	if err == nil {
		return nil
	}
	// It may run, and shall not.
	if killed := d.kill(ctx, id); killed != nil && (lost || !errdefs.IsNotFound(killed) && !errdefs.IsConflict(killed)) {
		d.cfg.Logger.Error("a container that is not as approved, or whose start was not answered, may run", "container", id, "error", killed)
		return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return err
}

// Stop ends a service: SIGTERM, and SIGKILL after the entry's stop timeout. It reports whether anything ran. It does not end
// when ctx does: half a stop helps nobody.
func (d *Driver) Stop(ctx context.Context, s *catalog.Service) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.StopTimeout()+stopGrace)
	defer cancel()
	got, found, err := d.find(ctx, s)
	if err != nil || !found {
		return false, err
	}
	c := got.Container
	ran := alive(c.State)
	if ran {
		seconds := int(s.StopTimeoutS)
		_, err := d.api.ContainerStop(ctx, c.ID, client.ContainerStopOptions{Signal: "SIGTERM", Timeout: &seconds})
		if err != nil && !errdefs.IsNotFound(err) {
			return false, stopped(err)
		}
		after, err := d.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
		switch {
		case errdefs.IsNotFound(err):
			d.refresh(ctx, s.ID)
			return true, nil
		case err != nil:
			return false, stopped(err)
		case alive(after.Container.State):
			return false, fmt.Errorf("%w: container %.12s", driver.ErrNotStopped, c.ID)
		}
		c = after.Container
	}
	d.settle(s.ID, c)
	if err := d.retire(ctx, s, c); err != nil {
		d.cfg.Logger.Warn("a container that was stopped keeps its name", "service_id", s.ID, "error", err)
	}
	d.refresh(ctx, s.ID)
	return ran, nil
}

// stopped says why a container was not ended.
func stopped(err error) error {
	if unreachable(err) {
		return fmt.Errorf("%w: %w", driver.ErrNoManager, err)
	}
	return fmt.Errorf("%w: %w", driver.ErrNotStopped, err)
}

// alive reports whether a container has programs that run.
func alive(s *container.State) bool { return s != nil && (s.Running || s.Paused || s.Restarting) }

// kill ends a container at once.
func (d *Driver) kill(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	_, err := d.api.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "SIGKILL"})
	return err
}

// remove takes away a container that came to nothing, and reports whether it is gone.
func (d *Driver) remove(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	_, err := d.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		d.cfg.Logger.Warn("a container that came to nothing could not be removed", "container", id, "error", err)
		return false
	}
	return true
}
