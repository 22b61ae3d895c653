package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

const (
	// window is how much of a log is read at once. Of a line that is longer, only the beginning is shown.
	window = 256 << 10
	// around is how much of a log is read on either side of that.
	around = 16 << 10
)

// Logs returns lines of the service's log. A cursor is a place in all that the service ever wrote, "b" and a number of bytes, so
// that it holds when the log is emptied; what was thrown away since is skipped. Whoever reads may make one up, so the rest of a
// line that it stands in is skipped too. While the service runs, a line that is not ended yet is not shown.
func (d *Driver) Logs(_ context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error) {
	d.mu.Lock()
	r := d.records[s.ID]
	d.mu.Unlock()
	running := r != nil && r.Boot == d.boot && (r.PID == 0 || alive(r.identity()))
	return d.page(s.ID, cursor, lines, running)
}

func (d *Driver) page(id, cursor string, lines int, running bool) (driver.Page, error) {
	release, err := locked(d.logFile(id))
	if err != nil {
		return driver.Page{}, fmt.Errorf("process driver: %w", err)
	}
	defer release()
	l, err := openStream(d.logFile(id))
	if err != nil {
		return driver.Page{}, fmt.Errorf("process driver: %w", err)
	}
	defer l.Close()
	lines = max(lines, 0)
	if cursor == "" {
		return l.last(lines, running)
	}
	return l.after(cursor, lines, running)
}

// stream is all that is left of what a service ever wrote: the old log, then the log. Places in it are counted from the
// first byte that was ever written.
type stream struct {
	old, log *os.File
	// origin is where the old log's first byte was written; start is where what is left begins, base where the log does, and
	// end where it ends.
	origin, start, base, end int64
}

func openStream(file string) (*stream, error) {
	base, err := readBase(file)
	if err != nil {
		return nil, err
	}
	l := &stream{start: base, base: base, end: base}
	for _, part := range []struct {
		name string
		into **os.File
		size func(int64)
	}{
		{file + ".1", &l.old, func(n int64) { l.origin, l.start = base-n, max(base-n, 0) }},
		{file, &l.log, func(n int64) { l.end = base + n }},
	} {
		f, err := os.Open(part.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			l.Close()
			return nil, err
		}
		*part.into = f
		info, err := f.Stat()
		if err != nil {
			l.Close()
			return nil, err
		}
		part.size(info.Size())
	}
	return l, nil
}

// Close closes both files.
func (l *stream) Close() {
	for _, f := range []*os.File{l.old, l.log} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// read returns what is there from one place to another.
func (l *stream) read(from, to int64) ([]byte, error) {
	out := make([]byte, to-from)
	n := 0
	if from < l.base {
		upTo := min(to, l.base) - from
		got, err := l.old.ReadAt(out[:upTo], from-l.origin)
		if n = got; err != nil && !errors.Is(err, io.EOF) || int64(got) < upTo {
			return out[:n], err
		}
	}
	if to > l.base {
		got, err := l.log.ReadAt(out[n:], from+int64(n)-l.base)
		if n += got; err != nil && !errors.Is(err, io.EOF) {
			return out[:n], err
		}
	}
	return out[:n], nil
}

// last returns the newest lines.
func (l *stream) last(lines int, running bool) (driver.Page, error) {
	from := max(l.start, l.end-window)
	raw, err := l.read(from, l.end)
	if err != nil {
		return driver.Page{}, err
	}
	from, raw = skipPart(from, raw)
	all, used := split(raw, running, false)
	n := max(len(all)-lines, 0)
	return driver.Page{Lines: all[n:], Before: all[max(n-driver.Around, 0):n], Cursor: place(from + int64(used))}, nil
}

// after returns the lines after a cursor; the oldest ones for a cursor that stands for no place that is left.
func (l *stream) after(cursor string, lines int, running bool) (driver.Page, error) {
	at, ok := parsePlace(cursor)
	if !ok || at < l.start || at > l.end {
		at = l.start
	}
	whole, err := l.begins(at)
	if err != nil {
		return driver.Page{}, err
	}
	to := min(at+window, l.end)
	raw, err := l.read(at, to)
	if err != nil {
		return driver.Page{}, err
	}
	if !whole {
		at, raw = skipPart(at, raw)
	}
	all, used := split(raw, running || to < l.end, to < l.end)
	page := driver.Page{Lines: all, More: to < l.end}
	if len(all) > lines {
		page.Lines, page.More = all[:lines], true
		page.After = all[lines:min(lines+driver.Around, len(all))]
		used = 0
		for range lines {
			used += bytes.IndexByte(raw[used:], '\n') + 1
		}
	}
	page.Cursor = place(at + int64(used))
	page.Before, err = l.before(at)
	return page, err
}

// begins reports whether a line begins at a place: at the first byte ever written, or after the end of another line.
func (l *stream) begins(at int64) (bool, error) {
	if at <= l.start {
		return at == 0, nil
	}
	raw, err := l.read(at-1, at)
	return string(raw) == "\n", err
}

// before returns the whole lines before a place where a line begins.
func (l *stream) before(at int64) ([]string, error) {
	from := max(l.start, at-around)
	raw, err := l.read(from, at)
	if err != nil {
		return nil, err
	}
	_, raw = skipPart(from, raw)
	all, _ := split(raw, true, false)
	return all[max(len(all)-driver.Around, 0):], nil
}

// skipPart leaves out the rest of a line that began before.
func skipPart(at int64, raw []byte) (int64, []byte) {
	if at == 0 {
		return at, raw
	}
	n := bytes.IndexByte(raw, '\n') + 1
	if n == 0 {
		n = len(raw)
	}
	return at + int64(n), raw[n:]
}

// split returns the lines and how much of raw they are. What follows the last end of a line is one where nothing will
// follow it, and where there is no end in a full window.
func split(raw []byte, open, full bool) (lines []string, used int) {
	used = bytes.LastIndexByte(raw, '\n') + 1
	for line := range strings.Lines(string(raw[:used])) {
		lines = append(lines, strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
	}
	if used < len(raw) && (!open || full && used == 0) {
		lines, used = append(lines, string(raw[used:])), len(raw)
	}
	return lines, used
}

// place is the cursor for a place.
func place(at int64) string { return "b" + strconv.FormatInt(at, 10) }

func parsePlace(cursor string) (int64, bool) {
	digits, ok := strings.CutPrefix(cursor, "b")
	at, err := strconv.ParseInt(digits, 10, 64)
	return at, ok && err == nil && at >= 0 && place(at) == cursor
}

// readBase returns how much was written before the first byte of the log: what was thrown away and what the old log holds.
func readBase(file string) (int64, error) {
	raw, err := os.ReadFile(file + ".base")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	base, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil || base < 0 {
		// Cursors of before mean nothing now; the lines are there all the same.
		return 0, nil
	}
	return base, nil
}

func writeBase(file string, base int64) error {
	if err := os.WriteFile(file+".base.new", []byte(strconv.FormatInt(base, 10)+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".base.new", file+".base")
}
