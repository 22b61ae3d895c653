package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/pattern"
)

const (
	// maxLine is what is kept of one line, in bytes; the rest of a longer one is dropped.
	maxLine = 16 << 10
	// maxFrame bounds what the daemon sends at a time: it cuts lines at 16 kB, and adds a time.
	maxFrame = 1 << 20
	logsTime = 10 * time.Second
	// disorder is by how much the times in a log may go backwards: the daemon reads a program's two outputs side by side, and
	// gives each line its time before it writes it.
	disorder = time.Second
	// maxSkip is more lines than the daemon writes within the disorder. The time of each line that is passed over is kept.
	maxSkip = 1 << 19
	// margin is how many lines before the newest ones are read with them, so that those of the last second can be counted.
	margin = 2000
	// around is for how long before a position the lines are looked at too.
	around = 10 * time.Second
)

// position is a place in a container's log: after the first skip lines of those that have a time not before since, in the
// order of the log. Times alone cannot tell a place, because the log is not in their order.
type position struct {
	// container is the beginning of the container's id: each start of a service has a log of its own.
	container string
	since     time.Time
	skip      int
}

var cursorPattern = pattern.New(`\Ac=([0-9a-f]{12});t=([0-9]{1,12})\.([0-9]{9});n=([0-9]{1,9})\z`)

// cursor is the position's text.
func (p position) cursor() string {
	seconds, nanos := int64(0), 0
	if !p.since.IsZero() {
		seconds, nanos = p.since.Unix(), p.since.Nanosecond()
	}
	return fmt.Sprintf("c=%.12s;t=%d.%09d;n=%d", p.container, seconds, nanos, p.skip)
}

// parseCursor reads what cursor wrote, and nothing else.
func parseCursor(text string) (position, bool) {
	m := cursorPattern().FindStringSubmatch(text)
	if m == nil {
		return position{}, false
	}
	seconds, err1 := strconv.ParseInt(m[2], 10, 64)
	nanos, err2 := strconv.ParseInt(m[3], 10, 64)
	skip, err3 := strconv.Atoi(m[4])
	if errors.Join(err1, err2, err3) != nil || skip > maxSkip {
		return position{}, false
	}
	p := position{container: m[1], skip: skip}
	if seconds != 0 || nanos != 0 {
		p.since = time.Unix(seconds, nanos).UTC()
	}
	return p, p.cursor() == text
}

// nowhere is the cursor of a service that has no container.
const nowhere = "c=000000000000;t=0.000000000;n=0"

// Logs returns lines of the service's container: the newest, or those after the cursor. A cursor from before the container
// was made anew gives the oldest lines that there are.
func (d *Driver) Logs(ctx context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error) {
	if s.Container == nil || lines < 1 {
		return driver.Page{Cursor: nowhere}, nil
	}
	id, err := d.logged(ctx, s)
	switch {
	case err != nil:
		return driver.Page{}, err
	case id == "":
		return driver.Page{Cursor: nowhere}, nil
	case cursor == "":
		return d.page(ctx, id, position{}, lines)
	}
	from, ok := parseCursor(cursor)
	if !ok || from.container != id[:12] {
		from = position{container: id[:12]}
	}
	return d.page(ctx, id, from, lines)
}

// logged is the container whose log is the service's: the one that runs, or else the one that was stopped last.
func (d *Driver) logged(ctx context.Context, s *catalog.Service) (string, error) {
	all, err := d.list(ctx, s.ID)
	if err != nil {
		return "", err
	}
	id, found, err := pick(all, s)
	if err != nil || found {
		return id, err
	}
	for _, c := range all {
		if !s.Container.Adopt && isMade(c.Labels, s.ID) {
			return c.ID, nil
		}
	}
	return "", nil
}

// page reads a container's log: its newest lines where the position names no container, and those after it otherwise.
func (d *Driver) page(ctx context.Context, id string, from position, lines int) (driver.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, logsTime)
	defer cancel()
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true}
	newest := from.container == ""
	from.container = id[:12]
	if newest {
		options.Tail = strconv.Itoa(lines + margin)
	} else if !from.since.IsZero() {
		begin := time.Unix(max(from.since.Add(-around).Unix(), 0), int64(from.since.Nanosecond()))
		options.Since = fmt.Sprintf("%d.%09d", begin.Unix(), begin.Nanosecond())
	}
	stream, err := d.api.ContainerLogs(ctx, id, options)
	switch {
	case errdefs.IsNotFound(err):
		return driver.Page{Cursor: nowhere}, nil
	case err != nil:
		return driver.Page{}, because("logs", err)
	}
	defer stream.Close()
	read := readPage
	if newest {
		read = readNewest
	}
	page, err := read(stream, from, lines)
	if err != nil {
		return driver.Page{}, because("logs", err)
	}
	return page, nil
}

// readPage takes at most lines whole lines that lie after a position.
func readPage(r io.Reader, from position, lines int) (driver.Page, error) {
	var page driver.Page
	var times []time.Time // of every line before the place that is reached
	in := newFrames(r)
	for {
		line, err := in.line()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return driver.Page{}, err
		}
		if !from.since.IsZero() && line.at.After(from.since.Add(disorder)) {
			from.skip = 0 // it came after all that lay before the place, and what is missing of that was rotated away
		}
		switch old := line.at.Before(from.since); {
		case page.More:
			page.After = append(page.After, line.text)
		case old || len(times) < from.skip:
			if len(page.Lines) == 0 {
				page.Before = appendLast(page.Before, line.text, driver.Around)
			}
			if old {
				continue
			}
		case len(page.Lines) == lines:
			page.More, page.After = true, []string{line.text}
		default:
			page.Lines = append(page.Lines, line.text)
		}
		if len(page.After) == driver.Around {
			break
		}
		if !page.More {
			times = append(times, line.at)
		}
	}
	page.Cursor = from.after(times, len(page.Lines)).cursor()
	return page, nil
}

// readNewest takes the last lines of a stream that begins somewhere in a log. In a log that grows by more than margin lines a
// second, the next page may repeat some.
func readNewest(r io.Reader, from position, lines int) (driver.Page, error) {
	var page driver.Page
	var times []time.Time
	in := newFrames(r)
	for {
		line, err := in.line()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return driver.Page{}, err
		}
		if len(page.Lines) == lines {
			page.Before = appendLast(page.Before, page.Lines[0], driver.Around)
			page.Lines = page.Lines[1:]
		}
		page.Lines = append(page.Lines, line.text)
		times = append(times, line.at)
	}
	page.Cursor = from.after(times, len(page.Lines)).cursor()
	return page, nil
}

// appendLast appends to a list of which only the last n are kept.
func appendLast(list []string, one string, n int) []string {
	if len(list) == n {
		list = list[1:]
	}
	return append(list, one)
}

// after is the place after lines with these times, of which the last taken ones are new. What is written later has a time
// later than the latest less the disorder, so counting may begin there.
func (p position) after(times []time.Time, taken int) position {
	if taken == 0 {
		return p
	}
	latest := p.since
	for _, at := range times {
		if at.After(latest) {
			latest = at
		}
	}
	if begin := latest.Add(-disorder); begin.After(p.since) && begin.Unix() >= 0 {
		p.since = begin
	}
	p.skip = 0
	for _, at := range times {
		if !at.Before(p.since) {
			p.skip++
		}
	}
	return p
}

// entry is one line with the time of its end.
type entry struct {
	at   time.Time
	text string
}

// frames takes the daemon's stream of both outputs apart: eight bytes that say which and how long, and then a time, a space and
// a line, or a piece of one that is longer than the daemon's buffer.
type frames struct {
	r *bufio.Reader
	// open are lines of which pieces have come, by output.
	open [3]*entry
}

func newFrames(r io.Reader) *frames { return &frames{r: bufio.NewReader(r)} }

var errStream = errors.New("the daemon's log stream is not one")

// line returns the next whole line; io.EOF at the end. A line without its end is not whole and is not returned.
func (f *frames) line() (entry, error) {
	for {
		var header [8]byte
		if _, err := io.ReadFull(f.r, header[:]); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return entry{}, errStream
			}
			return entry{}, err
		}
		size := binary.BigEndian.Uint32(header[4:])
		if header[0] > 2 || header[1]|header[2]|header[3] != 0 || size > maxFrame {
			return entry{}, errStream
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(f.r, payload); err != nil {
			return entry{}, errStream
		}
		stamp, text, ok := strings.Cut(string(payload), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if !ok || err != nil || at.Unix() < 0 {
			return entry{}, errStream
		}
		piece := f.open[header[0]]
		if piece == nil {
			piece = &entry{}
			f.open[header[0]] = piece
		}
		text, whole := strings.CutSuffix(text, "\n")
		piece.at = at.UTC()
		piece.text += text[:min(len(text), maxLine-len(piece.text))]
		if whole {
			f.open[header[0]] = nil
			piece.text = strings.TrimSuffix(piece.text, "\r")
			return *piece, nil
		}
	}
}
