package systemd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"durward.internal/services/executor/internal/driver"
)

func place(n int) string {
	return fmt.Sprintf("s=%032x;i=%x;b=%032x;m=1;t=1;x=1", 1, n, 2)
}

// line is an entry as journalctl writes it.
func line(n int, message string) string {
	return fmt.Sprintf(`{"__CURSOR":"%s","_BOOT_ID":"b","MESSAGE":%s}`+"\n", place(n), message)
}

func TestDecode(t *testing.T) {
	cases := []struct {
		name  string
		in    string
		lines []string
		fails bool
	}{
		{"nothing", "", nil, false},
		{"text", line(1, `"a"`) + line(2, `"b"`), []string{"a", "b"}, false},
		{"no more than asked for", line(1, `"a"`) + line(2, `"b"`) + line(3, `"c"`) + line(4, `"d"`), []string{"a", "b", "c"}, false},
		{"bytes", line(1, `[104,105,255]`), []string{"hi\xff"}, false},
		{"several", line(1, `["a",[98,99]]`), []string{"a ⏎ bc"}, false},
		{"several, deeper than they are", line(1, `["a",[[98]],[["x"]]]`), []string{"a"}, false},
		{"a line that ends", line(1, `"a\n"`), []string{"a"}, false},
		{"lines in one", line(1, `"a\nb"`), []string{"a ⏎ b"}, false},
		{"too long for journalctl", line(1, `null`), []string{tooLong}, false},
		{"no message", fmt.Sprintf(`{"__CURSOR":"%s"}`, place(1)), []string{tooLong}, false},
		{"a number", line(1, `5`), []string{""}, false},
		{"no entry", "No entries\n", nil, true},
		{"no place", `{"MESSAGE":"a"}`, nil, true},
		{"a place that is an option", `{"__CURSOR":"--file=/etc/shadow","MESSAGE":"a"}`, nil, true},
		{"half an entry", line(1, `"a"`) + `{"__CURSOR":`, []string{"a"}, true},
		{"more than is sensible", line(1, `"`+strings.Repeat("a", maxEntry)+`"`), nil, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			lines, places, err := decode(strings.NewReader(c.in), 3)
			if diff := cmp.Diff(c.lines, lines); diff != "" || (err != nil) != c.fails {
				t.Errorf("err = %v, lines (-want +got):\n%s", err, diff)
			}
			if len(places) != len(lines) || len(places) > 0 && places.at(1) != place(1) {
				t.Errorf("places: %q", places)
			}
		})
	}
}

func TestLongMessagesAreCut(t *testing.T) {
	for _, text := range []string{strings.Repeat("a", 2*maxLine), strings.Repeat("é", maxLine), strings.Repeat("€", maxLine)} {
		lines, _, err := decode(strings.NewReader(line(1, `"`+text+`"`)), 1)
		if err != nil || len(lines) != 1 || len(lines[0]) > maxLine+len("…") || !utf8.ValidString(lines[0]) {
			t.Errorf("%.4q…: %d lines, %v", text, len(lines), err)
		}
	}
}

// journalctl writes a program that stands for journalctl: it notes its arguments and environment, and then does as told.
func journalctl(t *testing.T, script string) (j journal, args func() string) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "journalctl")
	text := fmt.Sprintf("#!/bin/sh\n{ echo \"$@\"; env | grep -v ^PWD= | grep -v ^_= | sort | tr '\\n' ' '; echo; } >>%s/said\n%s\n", dir, script)
	must(t, os.WriteFile(program, []byte(text), 0o700))
	return journal{program: program, patience: 2 * time.Minute}, func() string {
		said, err := os.ReadFile(filepath.Join(dir, "said"))
		must(t, err)
		return string(said)
	}
}

func printed(entries ...string) string {
	return "cat <<'END'\n" + strings.Join(entries, "") + "END"
}

func TestPage(t *testing.T) {
	fixed := "--quiet --no-pager --output=json --output-fields=MESSAGE "
	three := printed(line(1, `"a"`), line(2, `"b"`), line(3, `"c"`))
	cases := []struct {
		name, script, cursor string
		n                    int
		want                 driver.Page
		args                 []string
	}{
		{"the newest", three, "", 3, driver.Page{Lines: []string{"a", "b", "c"}, Cursor: place(3)}, []string{"--all --unit=x.service --lines=103"}},
		{"an empty log", "true", "", 3, driver.Page{Cursor: "start"}, []string{"--all --unit=x.service --lines=103"}},
		{"from the beginning", three, "start", 2, driver.Page{Lines: []string{"a", "b"}, Cursor: place(2), More: true, After: []string{"c"}}, []string{"--all --unit=x.service"}},
		{
			"after a place", three, place(9), 3,
			driver.Page{Lines: []string{"a", "b", "c"}, Cursor: place(3), Before: []string{"c", "b", "a"}},
			[]string{"--all --unit=x.service --after-cursor=" + place(9), "--all --unit=x.service --reverse --cursor=" + place(9)},
		},
		{"at the end", "true", place(9), 3, driver.Page{Cursor: place(9)}, []string{"--all --unit=x.service --after-cursor=" + place(9)}},
		{"an option for a place", three, "--file=/etc/shadow", 3, driver.Page{Lines: []string{"a", "b", "c"}, Cursor: place(3)}, []string{"--all --unit=x.service"}},
		{
			"a place that is gone", `case "$*" in *after*) exit 1 ;; esac` + "\n" + three, place(9), 3,
			driver.Page{Lines: []string{"a", "b", "c"}, Cursor: place(3)},
			[]string{"--all --unit=x.service --after-cursor=" + place(9), "--all --unit=x.service"},
		},
		{
			"a line that is too long", `case "$*" in *--all*) head -c 2000000 /dev/zero | tr '\0' a; echo; exit ;; esac` + "\n" + printed(line(1, "null")), "", 3,
			driver.Page{Lines: []string{tooLong}, Cursor: place(1)}, []string{"--all --unit=x.service --lines=103", "--unit=x.service --lines=103"},
		},
		{"more than anybody wants", three, "", 1 << 30, driver.Page{Lines: []string{"a", "b", "c"}, Cursor: place(3)}, []string{"--all --unit=x.service --lines=1100"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			j, args := journalctl(t, c.script)
			got, err := j.page(t.Context(), "x.service", c.cursor, c.n)
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
				t.Errorf("page: %v (-want +got):\n%s", err, diff)
			}
			want := ""
			for _, a := range c.args {
				want += fixed + a + "\nLC_ALL=C PATH=/usr/bin:/bin \n"
			}
			if diff := cmp.Diff(want, args()); diff != "" {
				t.Errorf("arguments and environment (-want +got):\n%s", diff)
			}
		})
	}
}

// What lies around a page is known too, and not shown.
func TestAroundAPage(t *testing.T) {
	var all []string
	for n := range 3 * driver.Around {
		all = append(all, line(n+1, fmt.Sprintf(`"%d"`, n+1)))
	}
	j, _ := journalctl(t, `case "$*" in *--reverse*)`+"\n"+printed(line(9, `"i"`), line(8, `"h"`))+"\nexit ;; esac\n"+printed(all...))
	got, err := j.page(t.Context(), "x.service", place(9), 2)
	if err != nil || len(got.Lines) != 2 || got.Cursor != place(2) || len(got.After) != driver.Around+1 || !slices.Equal(got.Before, []string{"h", "i"}) {
		t.Errorf("%+v, %v", got, err)
	}
	j, _ = journalctl(t, printed(all[:5]...))
	if got, err = j.page(t.Context(), "x.service", "", 2); err != nil || !slices.Equal(got.Lines, []string{"4", "5"}) || !slices.Equal(got.Before, []string{"1", "2", "3"}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPageFails(t *testing.T) {
	j, _ := journalctl(t, "echo no journal >&2; exit 1")
	if _, err := j.page(t.Context(), "x.service", "", 3); err == nil || !strings.Contains(err.Error(), "no journal") {
		t.Errorf("page = %v", err)
	}
	if _, err := (journal{program: "/nowhere/journalctl"}).page(t.Context(), "x.service", "", 3); err == nil {
		t.Error("without journalctl there was a page")
	}
	// One that is killed before it answers does not say that the place is gone.
	for end, patience := range map[string]time.Duration{"kill -KILL $$": time.Minute, "exec sleep 60": time.Second} {
		j, _ := journalctl(t, `case "$*" in *after*) `+end+" ;; esac\n"+printed(line(1, `"a"`)))
		j.patience = patience
		if got, err := j.page(t.Context(), "x.service", place(9), 3); err == nil {
			t.Errorf("%s: %+v", end, got)
		}
	}
}

// It stops where enough was read, however much there is.
func TestPageEndsAnEndlessLog(t *testing.T) {
	j, _ := journalctl(t, "while true; do cat <<'END'\n"+line(1, `"a"`)+"END\ndone")
	got, err := j.page(t.Context(), "x.service", "start", 40)
	if err != nil || len(got.Lines) != 40 || !got.More {
		t.Errorf("page of %d lines, more: %v, %v", len(got.Lines), got.More, err)
	}
}

func TestUsersJournal(t *testing.T) {
	j, args := journalctl(t, "true")
	j.user = true
	if _, err := j.page(t.Context(), "x.service", "", 1); err != nil || !strings.Contains(args(), "--user --all --user-unit=x.service") {
		t.Errorf("%v: %s", err, args())
	}
}

// Whatever journalctl writes, lines are bounded, one line each, and stand at places.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"", line(1, `"a"`), line(1, `[1,2,300,-1]`), line(1, `["a",["b",["c"]]]`), line(1, `{}`), "{}\n", "null\n", "[]\n", line(1, `"\ud800"`)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		lines, places, err := decode(bytes.NewReader(in), 5)
		if len(lines) > 5 || len(lines) != len(places) {
			t.Fatalf("%d lines, %d places", len(lines), len(places))
		}
		for i, l := range lines {
			if len(l) > maxLine+len("…") || strings.Contains(l, "\n") || !cursorPattern().MatchString(places[i]) {
				t.Errorf("line %q at %q", l, places[i])
			}
		}
		if errors.Is(err, bufio.ErrTooLong) && len(in) < maxEntry {
			t.Errorf("%d bytes are too long", len(in))
		}
	})
}
