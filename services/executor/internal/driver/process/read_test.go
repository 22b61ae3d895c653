package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// log writes what the service wrote.
func log(t *testing.T, d *Driver, text string) {
	t.Helper()
	f, err := os.OpenFile(d.logFile("demo"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	must(t, err)
	must(t, f.Close())
}

// shown compares what a page shows, and not what lies around it.
var shown = cmpopts.IgnoreFields(driver.Page{}, "Before", "After")

// Whoever reads may make a cursor up; what begins in the middle of a line is never shown.
func TestNoCursorShowsAPartOfALine(t *testing.T) {
	d := open(t, t.TempDir())
	const text = "first\npassword=s3cr3tv4lue\nlast\n"
	log(t, d, text)
	check := func(from int, pages func(cursor string) driver.Page) {
		for at := from; at <= len(text); at++ {
			p := pages(place(int64(at)))
			for _, line := range p.Lines {
				if !slices.Contains([]string{"first", "password=s3cr3tv4lue", "last"}, line) {
					t.Errorf("at %d it shows %q", at, line)
				}
			}
			if got := slices.Concat(p.Before, p.Lines, p.After); p.Lines != nil && got[0] != "first" && from == 0 || len(p.Lines) > 1 {
				t.Errorf("at %d: %+v", at, p)
			}
		}
	}
	logs := func(cursor string) driver.Page {
		p, err := d.Logs(t.Context(), entry("polite", ""), cursor, 1)
		must(t, err)
		return p
	}
	check(0, logs)
	if p := logs("b6"); len(p.Before) != 1 || len(p.After) != 1 || p.Lines[0] != "password=s3cr3tv4lue" {
		t.Errorf("a true cursor gives %+v", p)
	}
	// The oldest byte that is left may be in the middle of a line.
	must(t, boundLog(d.logFile("demo"), 12))
	check(len(text)-12, logs)
	// Nor is a part of a line shown that is longer than what is read at once.
	log(t, d, strings.Repeat("y", 3*window)+"secret\nend\n")
	if p := logs(""); len(p.Lines) != 1 || p.Lines[0] != "end" {
		t.Errorf("the newest is %.50q", p.Lines)
	}
	for at := len(text) + 1; at < len(text)+3*window; at += window / 2 {
		if p := logs(place(int64(at))); len(p.Lines) > 0 && p.Lines[0] != "end" {
			t.Errorf("at %d it shows %.50q", at, p.Lines[0])
		}
	}
}

func TestLogs(t *testing.T) {
	d := open(t, t.TempDir())
	logs := func(cursor string, lines int) driver.Page {
		t.Helper()
		p, err := d.Logs(t.Context(), entry("polite", ""), cursor, lines)
		must(t, err)
		return p
	}
	want := func(what string, got driver.Page, want driver.Page) {
		t.Helper()
		if diff := cmp.Diff(want, got, shown); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("nothing was written", logs("", 5), driver.Page{Cursor: "b0"})
	want("after nothing", logs("b0", 5), driver.Page{Cursor: "b0"})
	log(t, d, "one\ntwo\r\n\nfour\n")
	want("the newest", logs("", 2), driver.Page{Lines: []string{"", "four"}, Cursor: "b15"})
	want("all", logs("", 10), driver.Page{Lines: []string{"one", "two", "", "four"}, Cursor: "b15"})
	want("from the beginning", logs("b0", 2), driver.Page{Lines: []string{"one", "two"}, Cursor: "b9", More: true})
	want("on", logs("b9", 2), driver.Page{Lines: []string{"", "four"}, Cursor: "b15"})
	want("no more", logs("b15", 2), driver.Page{Cursor: "b15"})
	want("none asked for", logs("b9", 0), driver.Page{Cursor: "b9", More: true, Lines: []string{}})
	for _, cursor := range []string{"b16", "b-1", "9", "b09", "b", "x", "b99999999999999999999", "b9 "} {
		want(cursor, logs(cursor, 1), driver.Page{Lines: []string{"one"}, Cursor: "b4", More: true})
	}
	log(t, d, "last words")
	want("what ended without an end of line", logs("b15", 5), driver.Page{Lines: []string{"last words"}, Cursor: "b25"})
	d.records["demo"] = &record{ID: "demo", Boot: d.boot}
	want("what is still being written", logs("b15", 5), driver.Page{Cursor: "b15"})
	want("the newest whole line", logs("", 1), driver.Page{Lines: []string{"four"}, Cursor: "b15"})
}

// A cursor holds when the log is emptied under it: no line twice, and none left out that is still there.
func TestLogsAcrossRotation(t *testing.T) {
	d := open(t, t.TempDir())
	file, s := d.logFile("demo"), entry("polite", "")
	const limit = 400
	var got []string
	cursor, n := "b0", 0
	for round := range 50 {
		for range round % 7 {
			log(t, d, fmt.Sprintf("line %d %s\n", n, strings.Repeat("x", n%11)))
			n++
		}
		if round%3 == 0 {
			must(t, boundLog(file, limit))
		}
		for more := true; more; {
			p, err := d.Logs(t.Context(), s, cursor, 2)
			must(t, err)
			got, cursor, more = append(got, p.Lines...), p.Cursor, p.More
		}
	}
	if len(got) != n {
		t.Fatalf("%d lines of %d", len(got), n)
	}
	for i, line := range got {
		if !strings.HasPrefix(line, fmt.Sprintf("line %d ", i)) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if _, err := os.Stat(file + ".1"); err != nil {
		t.Fatal("nothing was emptied:", err)
	}
	// Who comes back after two rounds gets what is left, from a whole line on.
	old, err := d.Logs(t.Context(), s, "b5", 1000)
	if err != nil || len(old.Lines) == 0 || old.Cursor != cursor || !strings.HasPrefix(old.Lines[0], "line ") {
		t.Errorf("%d lines, from %q, %v", len(old.Lines), old.Lines, err)
	}
	// A damaged or missing base costs places, no lines.
	for _, base := range []string{"x", "-5", ""} {
		must(t, os.WriteFile(file+".base", []byte(base), 0o600))
		if p, err := d.Logs(t.Context(), s, "", 1); err != nil || len(p.Lines) != 1 || p.Lines[0] != got[n-1] {
			t.Errorf("base %q: %+v, %v", base, p, err)
		}
		if p, err := d.Logs(t.Context(), s, cursor, 1); err != nil || len(p.Lines) != 1 {
			t.Errorf("base %q: %+v, %v", base, p, err)
		}
	}
}

// Of a line without end the beginning is shown, and no more than a window is read at once.
func TestLongLines(t *testing.T) {
	d := open(t, t.TempDir())
	log(t, d, strings.Repeat("y", 2*window+10)+"\nend\n")
	var lengths []int
	for cursor, more := "b0", true; more; {
		p, err := d.Logs(t.Context(), entry("polite", ""), cursor, 5)
		must(t, err)
		for _, line := range p.Lines {
			lengths = append(lengths, len(line))
		}
		cursor, more = p.Cursor, p.More
	}
	if diff := cmp.Diff([]int{window, 3}, lengths); diff != "" {
		t.Error(diff)
	}
}

// The cause is in the last lines, and looked for once.
func TestCause(t *testing.T) {
	d := open(t, t.TempDir())
	for text, want := range map[string]string{
		"all is well\n": driver.CauseExited,
		"torch.OutOfMemoryError: CUDA out of memory.\n":                        driver.CauseOutOfVRAM,
		"bind: address already in use":                                         driver.CausePortInUse,
		"CUDA out of memory\n" + strings.Repeat("then many other lines\n", 30): driver.CauseExited,
	} {
		must(t, os.WriteFile(d.logFile("demo"), []byte(text), 0o600))
		d.records["demo"] = &record{ID: "demo", Boot: d.boot, PID: 1 << 30, Start: 1}
		if got := d.Status(entry("polite", "")); got.State != driver.Ended || got.Cause != want {
			t.Errorf("%.30q: %+v", text, got)
		}
		log(t, d, "\naddress already in use\n")
		if got := d.Status(entry("polite", "")).Cause; got != want {
			t.Errorf("%.30q: the cause changed to %q", text, got)
		}
	}
}

func TestDefinition(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("polite", "")
	s.Argv = []string{filepath.Join(t.TempDir(), "program")}
	if _, err := d.Definition(t.Context(), s); err == nil {
		t.Error("a missing program has a digest")
	}
	must(t, os.WriteFile(s.Argv[0], []byte("x"), 0o700))
	got, err := d.Definition(t.Context(), s)
	if err != nil || got != "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSight(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("polite", "")
	for expected, want := range map[string]driver.Network{
		"": driver.NetworkUnasked, catalog.NetworkHost: driver.NetworkUnasked,
		catalog.NetworkLoopback: driver.NetworkNotEnforced, catalog.NetworkNone: driver.NetworkNotEnforced,
	} {
		s.Network = expected
		if got := d.Status(s).Network; got != want {
			t.Errorf("network %q: %v", expected, got)
		}
	}
	d.records["demo"] = &record{ID: "demo", Boot: d.boot}
	if got := d.Status(s).State; got != driver.Starting {
		t.Errorf("before the program has a pid: %v", got)
	}
}

// The program before may have been killed in the middle of a line: what the next one writes is no part of it, and is shown after a cursor
// from before its start.
func TestARunBeginsALineOfItsOwn(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("talker", "")
	log(t, d, "loading 50%")
	logs := func(cursor string) driver.Page {
		t.Helper()
		page, err := d.Logs(t.Context(), s, cursor, 10)
		must(t, err)
		return page
	}
	before := logs("").Cursor
	started(t, d, s)
	eventually(t, "the program speaks", func() bool { return slices.Contains(logs("").Lines, "hello") })
	if got := logs(before).Lines; !slices.Equal(got, []string{"hello"}) {
		t.Errorf("%q", got)
	}
	if got := logs("").Lines; !slices.Equal(got, []string{"loading 50%", "hello"}) {
		t.Errorf("%q", got)
	}
}
