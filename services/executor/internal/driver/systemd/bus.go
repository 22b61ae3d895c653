package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
)

const (
	systemBus      = "unix:path=/run/dbus/system_bus_socket"
	systemManager  = "unix:path=/run/systemd/private"
	userManager    = "unix:path=/run/user/%d/systemd/private"
	privateSuffix  = "/systemd/private"
	busName        = "org.freedesktop.systemd1"
	busPath        = "/org/freedesktop/systemd1"
	unitPaths      = busPath + "/unit/"
	managerMethods = busName + ".Manager."
)

// Bounds of one exchange with systemd.
const (
	dialTimeout = 3 * time.Second
	callTimeout = 5 * time.Second
)

// manager is what this driver asks of systemd.
type manager interface {
	// properties are a unit's, of all its interfaces. A unit that is not known has them too, with LoadState "not-found".
	properties(ctx context.Context, unit string) (properties, error)
	// states returns the active state of each unit.
	states(ctx context.Context, units []string) (map[string]string, error)
	// start and stop queue a job in mode "fail", which disturbs no other job. The channel gets its result. cancel ends one.
	start(ctx context.Context, unit string) (job uint32, result <-chan string, err error)
	stop(ctx context.Context, unit string) (job uint32, result <-chan string, err error)
	cancel(ctx context.Context, job uint32) error
	kill(ctx context.Context, unit string) error
	resetFailed(ctx context.Context, unit string) error
	// changes yields what systemd says that changed, and is closed when the connection is lost.
	changes() <-chan change
	close()
}

// change is what systemd said of a unit, unasked.
type change struct {
	path  string
	props properties
}

// bus is systemd over D-Bus.
//
// go-systemd does most of the calls. Its subscriptions and its jobs are not used: they take signals from anybody on the bus and
// trust their shape, so that any local user could end this process, or a job's wait. Here another connection takes systemd's own
// alone.
type bus struct {
	*sd.Conn
	// calls is the connection that jobs are queued on: systemd lets their own client cancel them, and whoever else polkit lets.
	calls, signals *dbus.Conn
	out            chan change
	closing        sync.Once
	closed         chan struct{}

	// mu guards jobs, which are those that are not done, by their paths. It is held while one is queued, so that its end is not
	// told before it is here.
	mu   sync.Mutex
	jobs map[dbus.ObjectPath]chan<- string
}

// connect makes the connections and subscribes. They last until close, or until ctx ends.
func connect(ctx context.Context, cfg Config) (manager, error) {
	address := cfg.Address
	if address == "" {
		address = systemBus
		if cfg.Manager == ManagerUser {
			address = fmt.Sprintf(userManager, os.Geteuid())
		}
	}
	b, err := connectTo(ctx, address)
	if err != nil && address == systemBus && os.Geteuid() == 0 {
		// A host without a bus; root may speak to systemd itself.
		if direct, derr := connectTo(ctx, systemManager); derr == nil {
			return direct, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("systemd over D-Bus: %w", err)
	}
	return b, nil
}

func connectTo(ctx context.Context, address string) (*bus, error) {
	direct := strings.HasSuffix(address, privateSuffix)
	dialled := func() (*dbus.Conn, error) { return dial(ctx, address, direct) }
	library, err := sd.NewConnection(dialled)
	if err != nil {
		return nil, err
	}
	b := &bus{Conn: library, out: make(chan change), closed: make(chan struct{}), jobs: map[dbus.ObjectPath]chan<- string{}}
	if b.calls, err = dialled(); err != nil {
		b.close()
		return nil, err
	}
	if b.signals, err = dialled(); err != nil {
		b.close()
		return nil, err
	}
	// Before subscribing, so that nothing is missed. The connection closes the channel.
	incoming := make(chan *dbus.Signal, 64)
	b.signals.Signal(incoming)
	owner, err := b.subscribe(ctx, direct)
	if err != nil {
		b.close()
		return nil, err
	}
	go b.sift(incoming, owner)
	return b, nil
}

// dial makes one connection. A bus that accepts and says nothing does not hold it up.
func dial(ctx context.Context, address string, direct bool) (*dbus.Conn, error) {
	conn, err := dbus.Dial(address, dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		return nil, err
	}
	late := time.AfterFunc(dialTimeout, func() { _ = conn.Close() })
	defer late.Stop()
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	switch {
	case err != nil:
	case direct:
		err = wake(conn)
	default:
		err = conn.Hello()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// wake has systemd's own socket answer once. systemd does not look at a message that arrives together with the end of the
// authentication before another one comes (seen with 252), so that the first is sent until there is an answer.
func wake(conn *dbus.Conn) error {
	const pause = 20 * time.Millisecond
	answers := make(chan *dbus.Call, dialTimeout/pause+1)
	for range cap(answers) {
		conn.Object(busName, busPath).Go("org.freedesktop.DBus.Peer.Ping", 0, answers)
		select {
		case answer := <-answers:
			return answer.Err
		case <-time.After(pause):
		}
	}
	return errors.New("systemd accepts a connection and does not answer")
}

// subscribe asks for signals, and returns the name that they come from; "" where there is no bus between.
func (b *bus) subscribe(ctx context.Context, direct bool) (owner string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if !direct {
		if err = b.signals.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, busName).Store(&owner); err != nil {
			return "", err
		}
		for _, match := range [][]dbus.MatchOption{
			{
				dbus.WithMatchSender(busName), dbus.WithMatchInterface("org.freedesktop.DBus.Properties"),
				dbus.WithMatchMember("PropertiesChanged"), dbus.WithMatchPathNamespace(busPath + "/unit"),
			},
			{dbus.WithMatchSender(busName), dbus.WithMatchInterface(busName + ".Manager"), dbus.WithMatchMember("JobRemoved")},
			{
				dbus.WithMatchSender("org.freedesktop.DBus"), dbus.WithMatchInterface("org.freedesktop.DBus"),
				dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, busName),
			},
		} {
			if err = b.signals.AddMatchSignalContext(ctx, match...); err != nil {
				return "", err
			}
		}
	}
	return owner, b.signals.Object(busName, busPath).CallWithContext(ctx, managerMethods+"Subscribe", 0).Err
}

// sift passes on what systemd says of units and of our jobs. A bus gives us what anybody sends to us alone, whatever we asked
// for, so the sender is looked at here again.
func (b *bus) sift(incoming <-chan *dbus.Signal, owner string) {
	defer close(b.out)
	for signal := range incoming {
		if signal.Name == "org.freedesktop.DBus.NameOwnerChanged" && signal.Sender == "org.freedesktop.DBus" {
			b.close() // another systemd took over, to which nobody has subscribed
			return
		}
		if signal.Sender != owner {
			continue
		}
		if signal.Name == managerMethods+"JobRemoved" {
			b.finish(signal.Body)
			continue
		}
		if signal.Name != "org.freedesktop.DBus.Properties.PropertiesChanged" || len(signal.Body) < 2 {
			continue
		}
		changed, ok := signal.Body[1].(map[string]dbus.Variant)
		if !ok || !strings.HasPrefix(string(signal.Path), unitPaths) {
			continue
		}
		c := change{path: string(signal.Path), props: properties{}}
		for key, v := range changed {
			c.props[key] = v.Value()
		}
		select {
		case b.out <- c:
		case <-b.closed:
			return
		}
	}
}

// finish tells whoever waits for a job how it ended: JobRemoved has its number, path, unit and result.
func (b *bus) finish(body []any) {
	if len(body) != 4 {
		return
	}
	path, isPath := body[1].(dbus.ObjectPath)
	result, isResult := body[3].(string)
	if !isPath || !isResult {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if waiting, ok := b.jobs[path]; ok {
		delete(b.jobs, path)
		waiting <- result
	}
}

func (b *bus) changes() <-chan change { return b.out }

func (b *bus) close() {
	b.closing.Do(func() {
		close(b.closed)
		b.Close()
		for _, conn := range []*dbus.Conn{b.calls, b.signals} {
			if conn != nil {
				_ = conn.Close()
			}
		}
	})
}

func (b *bus) properties(ctx context.Context, unit string) (properties, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p, err := b.GetAllPropertiesContext(ctx, unit)
	return p, translate(err)
}

func (b *bus) states(ctx context.Context, units []string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.ListUnitsByNamesContext(ctx, units)
	if err != nil {
		return nil, translate(err)
	}
	out := make(map[string]string, len(list))
	for _, u := range list {
		out[u.Name] = u.ActiveState
	}
	return out, nil
}

func (b *bus) start(ctx context.Context, unit string) (uint32, <-chan string, error) {
	return b.queue(ctx, "StartUnit", unit)
}

func (b *bus) stop(ctx context.Context, unit string) (uint32, <-chan string, error) {
	return b.queue(ctx, "StopUnit", unit)
}

// queue queues a job by one of systemd's methods. The channel has room for its result: sift never waits for anybody.
func (b *bus) queue(ctx context.Context, method, unit string) (uint32, <-chan string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	var job dbus.ObjectPath
	if err := b.calls.Object(busName, busPath).CallWithContext(ctx, managerMethods+method, 0, unit, "fail").Store(&job); err != nil {
		return 0, nil, translate(err)
	}
	number, err := strconv.ParseUint(strings.TrimPrefix(string(job), busPath+"/job/"), 10, 32)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: it queued a job without a number", driver.ErrNoManager)
	}
	result := make(chan string, 1)
	b.jobs[job] = result
	return uint32(number), result, nil
}

func (b *bus) cancel(ctx context.Context, job uint32) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return translate(b.calls.Object(busName, busPath).CallWithContext(ctx, managerMethods+"CancelJob", 0, job).Err)
}

func (b *bus) kill(ctx context.Context, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return translate(b.KillUnitWithTarget(ctx, unit, sd.All, int32(unix.SIGKILL)))
}

func (b *bus) resetFailed(ctx context.Context, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return translate(b.ResetFailedUnitContext(ctx, unit))
}

// translate puts the driver package's error in front of D-Bus's.
func translate(err error) error {
	if err == nil {
		return nil
	}
	refusal, ok := errors.AsType[dbus.Error](err)
	if !ok {
		return fmt.Errorf("%w: %w", driver.ErrNoManager, err)
	}
	switch refusal.Name {
	case "org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.LoadFailed":
		return fmt.Errorf("%w: %w", driver.ErrUnitMissing, err)
	case "org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
		"org.freedesktop.DBus.Error.AuthFailed":
		return fmt.Errorf("%w: %w", driver.ErrNotPermitted, err)
	case "org.freedesktop.systemd1.TransactionIsDestructive":
		return fmt.Errorf("%w: %w", errDestructive, err)
	case "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.Disconnected",
		"org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.Timeout":
		return fmt.Errorf("%w: %w", driver.ErrNoManager, err)
	}
	return err
}
