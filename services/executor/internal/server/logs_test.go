package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// tape is a log that grows: cursors are places in it.
type tape struct {
	mu    sync.Mutex
	lines []string
	asked []string
	err   error
}

func (l *tape) Logs(_ context.Context, _ *catalog.Service, cursor string, n int) (driver.Page, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, cursor)
	if l.err != nil {
		return driver.Page{}, l.err
	}
	at := max(0, len(l.lines)-n)
	if cursor != "" {
		at = len(cursor) - 1
	}
	to := min(at+n, len(l.lines))
	return driver.Page{Lines: slices.Clone(l.lines[at:to]), Cursor: strings.Repeat("x", to+1), More: to < len(l.lines)}, nil
}

func (l *tape) add(lines ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, lines...)
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &tape{lines: []string{"one", "two", "three"}}
		ctx, cancel := context.WithCancelCause(t.Context())
		var got []string
		over := make(chan error, 1)
		go func() {
			over <- follow(ctx, l, nil, 2, func(lines []string) error { got = append(got, lines...); return nil })
		}()
		synctest.Wait()
		if diff := cmp.Diff([]string{"two", "three"}, got); diff != "" {
			t.Fatalf("at first (-want +got):\n%s", diff)
		}
		time.Sleep(followPause)
		synctest.Wait()
		if len(got) != 2 {
			t.Fatalf("a quiet log was sent again: %q", got)
		}
		for range 3*followLines + 1 {
			l.add("more")
		}
		l.add("end")
		time.Sleep(followPause)
		synctest.Wait()
		if len(got) != 2+3*followLines+2 || got[len(got)-1] != "end" {
			t.Errorf("%d lines were sent, the last %q", len(got), got[len(got)-1])
		}
		reason := errors.New("hung up")
		cancel(reason)
		if err := <-over; !errors.Is(err, reason) {
			t.Errorf("follow ended with %v", err)
		}
	})
}

func TestFollowFromTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &tape{lines: []string{"one"}}
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		over := make(chan error, 1)
		go func() {
			over <- follow(ctx, l, nil, 0, func(lines []string) error { got = append(got, lines...); return nil })
		}()
		synctest.Wait()
		l.add("two")
		time.Sleep(followPause)
		synctest.Wait()
		cancel()
		<-over
		if diff := cmp.Diff([]string{"two"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestFollowSaysThatALogIsEmpty: who asks for what is there learns that nothing is, before anything is written.
func TestFollowSaysThatALogIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sent := 0
		over := make(chan error, 1)
		go func() { over <- follow(ctx, &tape{}, nil, 100, func([]string) error { sent++; return nil }) }()
		synctest.Wait()
		time.Sleep(3 * followPause)
		synctest.Wait()
		cancel()
		<-over
		if sent != 1 {
			t.Errorf("%d messages of an empty log, want 1", sent)
		}
	})
}

func TestFollowEndsWithAnError(t *testing.T) {
	wrong := errors.New("no log")
	if err := follow(t.Context(), &tape{err: wrong}, nil, 1, nil); !errors.Is(err, wrong) {
		t.Errorf("a log that cannot be read: %v", err)
	}
	send := func([]string) error { return wrong }
	if err := follow(t.Context(), &tape{lines: []string{"one"}}, nil, 1, send); !errors.Is(err, wrong) {
		t.Errorf("a stream that cannot be sent: %v", err)
	}
}

func TestBatches(t *testing.T) {
	half := strings.Repeat("a", followBytes/2)
	cases := []struct {
		name  string
		lines []string
		want  []int
	}{
		{"nothing", nil, nil},
		{"one", []string{"a"}, []int{1}},
		{"all that fits", []string{half, half}, []int{2}},
		{"one too many", []string{half, half, "b", "c"}, []int{2, 2}},
		{"one that is too long", []string{half + half + half, "b"}, []int{1, 1}},
		{"what is not UTF-8", []string{"\xff\xfe"}, []int{1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []int
			if err := batches(c.lines, func(lines []string) error {
				got = append(got, len(lines))
				for _, line := range lines {
					if len(line) > followBytes+len("…") || strings.ToValidUTF8(line, "") != line {
						t.Errorf("a line of %d bytes was sent: %.20q", len(line), line)
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("lines in messages (-want +got):\n%s", diff)
			}
		})
	}
}

// Half of a credential looks like none, and a part of a key neither: nothing is cut within a word, and what lies around is told.
func TestLogWindow(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "short": "short", "a few words": "a few …", "averyveryverylongword": "…", "é é é é é": "é é é é é",
	} {
		if got := atWord(in, 10); want != got {
			t.Errorf("%q became %q", in, got)
		}
	}
	long := strings.Repeat("x", aroundBytes/maxLogLine)
	page := driver.Page{Before: []string{"far", long, "b1\x1b[31m", "b2"}, Lines: []string{"one", strings.Repeat("y", 3*maxLogLine)}, After: []string{"a1"}}
	got := strings.Split(around(page), "\n")
	if len(got) != 7 || got[2] != "b1" || got[4] != "one" || len(got[5]) < 2*maxLogLine || got[6] != "a1" {
		t.Errorf("around is %.300q", got)
	}
	page.Before = slices.Repeat([]string{strings.Repeat("x", maxLogLine)}, 100)
	page.After = page.Before
	if n := len(around(page)); n > 3*aroundBytes {
		t.Errorf("around are %d bytes", n)
	}
}
