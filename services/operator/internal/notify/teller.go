package notify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"

	"durward.internal/services/platform/dialer"
)

const (
	// sendTime bounds one try.
	sendTime = 20 * time.Second
	// tries is how often one message is tried, and firstPause the time before the second; each further one is three times as long.
	tries      = 5
	firstPause = 5 * time.Second
)

// sender reaches one destination. Its errors hold no secret and nothing that the receiver wrote.
type sender interface {
	send(ctx context.Context, m message) error
}

// teller tells one destination what waits and it does not know yet: gathered, not too often, outside quiet hours, again when that
// failed. One goroutine uses it.
type teller struct {
	cfg  *Config
	name string
	to   sender
	log  func(string)

	// seen is when a request was first seen, told those that need not be told any more.
	seen map[string]time.Time
	told map[string]bool
	// tried are the tries of the last hour.
	tried []time.Time
	// failures counts the tries of what is due that failed; again is when the next may be. silent: its failing was said.
	failures int
	again    time.Time
	silent   bool
}

func newTeller(cfg *Config, name string, to sender, log func(string)) *teller {
	return &teller{cfg: cfg, name: name, to: to, log: log, seen: map[string]time.Time{}, told: map[string]bool{}}
}

// run tells until ctx ends.
func (t *teller) run(ctx context.Context, b *board) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		waiting, changed := b.now()
		due, at := t.due(waiting, time.Now())
		if len(due) > 0 && !time.Now().Before(at) {
			t.tell(ctx, due)
			continue
		}
		if len(due) > 0 {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
	}
}

// due returns what is to be told, and when.
func (t *teller) due(waiting []Notice, now time.Time) ([]Notice, time.Time) {
	still := map[string]bool{}
	var due []Notice
	for _, n := range waiting {
		if !now.Before(n.ExpiresAt) {
			continue
		}
		still[n.full] = true
		if _, known := t.seen[n.full]; !known {
			t.seen[n.full] = now
		}
		if !t.told[n.full] {
			due = append(due, n)
		}
	}
	for number := range t.seen {
		if !still[number] {
			delete(t.seen, number)
			delete(t.told, number)
		}
	}
	if len(due) == 0 {
		t.failures = 0
		return nil, time.Time{}
	}
	first := now
	for _, n := range due {
		if seen := t.seen[n.full]; seen.Before(first) {
			first = seen
		}
	}
	at := first.Add(t.cfg.Gather)
	later := func(when time.Time) {
		if when.After(at) {
			at = when
		}
	}
	later(t.again)
	t.tried = slices.DeleteFunc(t.tried, func(when time.Time) bool { return now.Sub(when) >= time.Hour })
	if n := len(t.tried); n > 0 {
		later(t.tried[n-1].Add(t.cfg.Apart))
		if n >= t.cfg.AnHour {
			later(t.tried[n-t.cfg.AnHour].Add(time.Hour))
		}
	}
	if now.Before(at) {
		return due, at // quiet hours are looked at when it is time
	}
	later(t.cfg.quietUntil(now, newMessage(due, false).destructive()))
	return due, at
}

func (t *teller) tell(ctx context.Context, due []Notice) {
	t.tried = append(t.tried, time.Now())
	err := t.try(ctx, newMessage(due, false))
	if err != nil && ctx.Err() != nil {
		return
	}
	if err == nil && t.silent {
		t.log(fmt.Sprintf("%s can be told again.", t.name))
	}
	if err != nil && !t.silent {
		t.log(fmt.Sprintf("%s could not be told: %s. It is tried %d times, and this is said once.", t.name, err, tries))
	}
	t.silent = err != nil
	if err != nil {
		if t.failures++; t.failures < tries {
			pause := firstPause
			for range t.failures - 1 {
				pause *= 3
			}
			t.again = time.Now().Add(pause)
			return
		}
	}
	t.failures = 0
	for _, n := range due {
		t.told[n.full] = true
	}
}

// try sends once, within sendTime.
func (t *teller) try(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	return t.to.send(ctx, m)
}

// quietUntil is when the quiet hours end in which now lies; the zero time: it is in none.
func (c *Config) quietUntil(now time.Time, destructive bool) time.Time {
	minute := now.Hour()*60 + now.Minute()
	var until time.Time
	for _, q := range c.Quiet {
		from, _ := clock(q.From) // validate looked at both
		to, _ := clock(q.To)
		day := 0
		switch {
		case destructive && q.Destructive:
			continue
		case from < to && minute >= from && minute < to, from > to && minute < to:
		case from > to && minute >= from:
			day = 1
		default:
			continue
		}
		if end := time.Date(now.Year(), now.Month(), now.Day()+day, to/60, to%60, 0, 0, now.Location()); end.After(until) {
			until = end
		}
	}
	return until
}

// desktop shows a notification in the operator's session, by the Desktop Notifications Specification: one call of Notify.
type desktop struct{}

func (desktop) send(ctx context.Context, m message) error {
	address, err := sessionBus(os.Getenv)
	if err != nil {
		return err
	}
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return errors.New("there is no session bus: is anybody logged in?")
	}
	defer func() { _ = conn.Close() }()
	urgency := byte(1)
	if m.destructive() {
		urgency = 2
	}
	call := conn.Object("org.freedesktop.Notifications", "/org/freedesktop/Notifications").CallWithContext(ctx,
		"org.freedesktop.Notifications.Notify", 0, "Durward", uint32(0), "dialog-password", m.title(), m.body(), []string{},
		map[string]dbus.Variant{"urgency": dbus.MakeVariant(urgency)}, int32(-1))
	if call.Err != nil {
		return errors.New("nothing on the session bus shows notifications")
	}
	return nil
}

// sessionBus is the address of the operator's session bus: a Unix socket, never another transport.
func sessionBus(getenv func(string) string) (string, error) {
	address := getenv("DBUS_SESSION_BUS_ADDRESS")
	if address == "" {
		address = "unix:path=" + filepath.Join(cmp.Or(getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("/run/user/%d", os.Getuid())), "bus")
	}
	if !strings.HasPrefix(address, "unix:") || strings.Contains(address, ";") {
		return "", errors.New("DBUS_SESSION_BUS_ADDRESS names no Unix socket")
	}
	return address, nil
}

// maxAnswer bounds what a receiver's answer may hold; it is read and dropped.
const maxAnswer = 64 << 10

// web posts to a webhook or to ntfy.
type web struct {
	kind, token string
	url         *url.URL
	dialer      *dialer.Dialer
}

func (w *web) send(ctx context.Context, m message) error {
	body, header := w.body(m)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("the request to %s cannot be made", w.url.Host) // the error quotes the URL
	}
	req.Header = header
	req.Header.Set("User-Agent", "durward-notify")
	answer, err := w.dialer.Do(req)
	if err != nil {
		return err
	}
	if answer.Status < 200 || answer.Status > 299 {
		return fmt.Errorf("%s answers with status %d", w.url.Host, answer.Status)
	}
	return nil
}

// body is what a kind of receiver takes.
func (w *web) body(m message) ([]byte, http.Header) {
	header := http.Header{"Content-Type": {"application/json"}}
	// Within a block of code nothing is a mention or markup.
	text := m.title() + "\n```\n" + m.body() + "\n```"
	var document any
	switch w.kind {
	case KindNtfy:
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Title", m.title())
		if m.destructive() {
			header.Set("Priority", "high")
		}
		if w.token != "" {
			header.Set("Authorization", "Bearer "+w.token)
		}
		return []byte(m.body()), header
	case KindDiscord:
		document = map[string]any{"content": text, "allowed_mentions": map[string]any{"parse": []string{}}}
	default: // Slack and Mattermost take the same
		document = map[string]any{"text": text}
	}
	b, _ := json.Marshal(document) // strings: it cannot fail
	return b, header
}

// commandTime bounds a run of an operator's command.
const commandTime = 10 * time.Second

// command runs a program of the operator's with the message as JSON on its standard input. Its arguments are the file's, whatever
// waits; what it writes is dropped.
type command struct{ argv []string }

func newCommand(argv []string) (command, error) {
	if len(argv) > maxArguments {
		return command{}, fmt.Errorf("program: at most %d arguments", maxArguments)
	}
	for _, word := range argv {
		if len(word) > maxArgument {
			return command{}, fmt.Errorf("program: an argument is at most %d bytes long", maxArgument)
		}
	}
	if !filepath.IsAbs(argv[0]) {
		return command{}, errors.New("program: begins with the program's absolute path")
	}
	return command{argv}, nil
}

func (c command) send(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...) // #nosec G204 -- the operator's own, from the operator's file
	cmd.Env, cmd.Dir = environment(os.Getenv), "/"
	cmd.Stdin = bytes.NewReader(m.json())
	// What it started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the command does not end within %s", commandTime)
	case errors.As(err, &exit):
		return fmt.Errorf("the command ends with %s", exit.ProcessState)
	default:
		return errors.New("the command cannot be started: is the program there, and may it be run?")
	}
}

// environment is all that a command has of the environment (ENV-1).
func environment(getenv func(string) string) []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "TERM=dumb"}
	if tz := getenv("TZ"); tz != "" {
		env = append(env, "TZ="+tz)
	}
	if me, err := user.Current(); err == nil {
		env = append(env, "HOME="+me.HomeDir, "USER="+me.Username)
	}
	return env
}
