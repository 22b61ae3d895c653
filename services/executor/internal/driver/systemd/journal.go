package systemd

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/pattern"
)

const (
	journalTimeout = 10 * time.Second
	// maxEntry bounds one entry of the journal in its JSON form, and maxLine what is kept of its message, in bytes.
	maxEntry = 1 << 20
	maxLine  = 8 << 10
	maxLines = 1000
	// beginning is the cursor before a journal's first entry.
	beginning = "start"
	// tooLong stands for a message that journalctl did not print.
	tooLong = "(a line that is too long to show)"
)

// cursorPattern is a cursor as journald writes it, sd_journal_get_cursor(3).
var cursorPattern = pattern.New(`\As=[0-9a-f]{32};i=[0-9a-f]{1,16};b=[0-9a-f]{32};` +
	`m=[0-9a-f]{1,16};t=[0-9a-f]{1,16};x=[0-9a-f]{1,16}\z`)

// journal reads systemd's log with journalctl, its only reader in public: with a fixed argument vector, no environment, no shell.
type journal struct {
	// program is journalctl's absolute path.
	program string
	// user: the units are the executor's user's own.
	user bool
	// patience bounds one call of journalctl; 0: journalTimeout.
	patience time.Duration
}

// entry is what is used of an entry of the journal.
type entry struct {
	Cursor  string          `json:"__CURSOR"`
	Message json.RawMessage `json:"MESSAGE"`
}

// page returns at most n lines of a unit after the cursor, or the newest ones for an empty cursor.
func (j journal) page(ctx context.Context, unit, cursor string, n int) (driver.Page, error) {
	n = min(max(n, 1), maxLines)
	match := j.of(unit)
	if cursor == "" {
		lines, places, err := j.read(ctx, n+driver.Around, match, "--lines="+strconv.Itoa(n+driver.Around))
		begin := max(len(lines)-n, 0)
		return driver.Page{Lines: lines[begin:], Before: lines[:begin], Cursor: orBeginning(places.at(len(places)))}, err
	}
	args := []string{match}
	if cursorPattern().MatchString(cursor) {
		args = append(args, "--after-cursor="+cursor)
	}
	lines, last, err := j.read(ctx, n+1+driver.Around, args...)
	var before []string
	if refused := (*exec.ExitError)(nil); errors.As(err, &refused) && refused.Exited() && len(args) > 1 {
		// journalctl finds no such place. The oldest lines are better than none.
		lines, last, err = j.read(ctx, n+1+driver.Around, match)
	} else if err == nil && len(lines) > 0 && len(args) > 1 {
		before, _, err = j.read(ctx, driver.Around, match, "--reverse", "--cursor="+cursor)
		slices.Reverse(before)
	}
	if err != nil {
		return driver.Page{}, err
	}
	page := driver.Page{Cursor: orBeginning(cursor), Before: before, More: len(lines) > n}
	if page.Lines = lines; page.More {
		page.Lines, page.After = lines[:n], lines[n:]
	}
	if len(page.Lines) > 0 {
		page.Cursor = last.at(n)
	}
	return page, nil
}

// since returns the newest lines of a unit, and of systemd on it, that are not older than a moment in µs since 1970. They are not
// chosen by the activation's id: journald does not know it of a program that ends at once.
func (j journal) since(ctx context.Context, unit string, begin uint64, n int) ([]string, error) {
	lines, _, err := j.read(ctx, n, j.of(unit), fmt.Sprintf("--since=@%d.%06d", begin/1e6, begin%1e6), "--lines="+strconv.Itoa(n))
	return lines, err
}

func (j journal) of(unit string) string {
	if j.user {
		return "--user-unit=" + unit
	}
	return "--unit=" + unit
}

// cursors are those of consecutive entries.
type cursors []string

// at is the cursor of entry n, counted from one, or of the last one before.
func (c cursors) at(n int) string {
	if len(c) == 0 {
		return ""
	}
	return c[min(n, len(c))-1]
}

// orBeginning is a cursor that can be given out.
func orBeginning(cursor string) string {
	if !cursorPattern().MatchString(cursor) {
		return beginning
	}
	return cursor
}

// read returns the first n entries that journalctl prints. Where one of them is longer than is sensible, all long ones are left
// out: journalctl does not print what is longer than 4 kB unless it is asked to.
func (j journal) read(ctx context.Context, n int, args ...string) ([]string, cursors, error) {
	lines, places, err := j.run(ctx, n, append([]string{"--all"}, args...))
	if errors.Is(err, bufio.ErrTooLong) {
		return j.run(ctx, n, args)
	}
	return lines, places, err
}

func (j journal) run(ctx context.Context, n int, args []string) ([]string, cursors, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(j.patience, journalTimeout))
	defer cancel()
	fixed := []string{"--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE"}
	if j.user {
		fixed = append(fixed, "--user")
	}
	//nolint:gosec // a configured program, fixed arguments, and a unit's name and a cursor that patterns let through
	cmd := exec.CommandContext(ctx, j.program, slices.Concat(fixed, args)...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	var complaint head
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	lines, places, err := decode(out, n)
	full := len(lines) == n || err != nil
	if full {
		cancel() // it may have gigabytes more to print
	}
	if werr := cmd.Wait(); err == nil && werr != nil && !full {
		err = fmt.Errorf("journalctl: %w: %s", cmp.Or(ctx.Err(), werr), complaint.String())
	}
	return lines, places, err
}

// decode reads at most n entries in journalctl's JSON form, one on a line.
func decode(r io.Reader, n int) ([]string, cursors, error) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), maxEntry)
	var lines []string
	var places cursors
	for len(lines) < n && in.Scan() {
		var e entry
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			return lines, places, fmt.Errorf("journalctl wrote what is no entry: %w", err)
		}
		if !cursorPattern().MatchString(e.Cursor) {
			return lines, places, errors.New("journalctl wrote an entry without its place")
		}
		lines, places = append(lines, message(e.Message)), append(places, e.Cursor)
	}
	if err := in.Err(); err != nil && len(lines) < n {
		return lines, places, fmt.Errorf("journalctl: %w", err)
	}
	return lines, places, nil
}

// message is an entry's text: a string, numbers of bytes where it is not UTF-8, or a list of either where there are several.
func message(raw json.RawMessage) string {
	var text string
	var octets []byte
	var list []json.RawMessage
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return tooLong
	case json.Unmarshal(raw, &text) == nil:
	case numbers(raw, &octets):
		text = string(octets)
	case json.Unmarshal(raw, &list) == nil:
		parts := make([]string, 0, len(list))
		for _, part := range list {
			if len(part) > 0 && part[0] == '[' && !numbers(part, &octets) {
				continue // deeper than journalctl nests
			}
			parts = append(parts, message(part))
		}
		text = strings.Join(parts, "\n")
	}
	// One entry is one line, so that a cursor stands between lines.
	text = strings.Join(strings.Split(strings.TrimRight(text, "\n"), "\n"), " ⏎ ")
	if len(text) <= maxLine {
		return text
	}
	cut := maxLine
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

func numbers(raw json.RawMessage, into *[]byte) bool {
	var values []int
	if json.Unmarshal(raw, &values) != nil {
		return false
	}
	*into = make([]byte, len(values))
	for i, v := range values {
		(*into)[i] = byte(v)
	}
	return true
}

// head keeps the beginning of what is written to it.
type head struct{ bytes.Buffer }

func (h *head) Write(p []byte) (int, error) {
	if room := 1024 - h.Len(); room > 0 {
		h.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
