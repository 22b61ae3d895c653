package strace

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Recording are strace's arguments for a recording that Calls reads: the times, the files and all of what is written.
func Recording(out string, names ...string) []string {
	return []string{"-ttt", "-T", "-y", "-xx", "-s", "65536", "-o", out, "-e", "trace=" + strings.Join(names, ",")}
}

// Call is a syscall on an open file, or on its name.
type Call struct {
	Name, File string
	Began      time.Time
	// Ended is when it returned; zero: it did not.
	Ended time.Time
	Data  []byte
	// Offset is of a write, Size what a file is cut to.
	Offset, Size int64
	Result       int64
	// Injected: strace had it fail.
	Injected bool
}

var (
	lineForm = regexp.MustCompile(`^(\d+) +(\d+)\.(\d{6}) (.*)$`)
	callForm = regexp.MustCompile(`^(\w+)\((?:\d+<([^>]*)>|"([^"]*)")(?:, )?(.*)\) += (-?\d+)(.*)$`)
	dataForm = regexp.MustCompile(`^"([^"]*)", (\d+), (\d+)$`)
	tookForm = regexp.MustCompile(`<(\d+)\.(\d{6})>$`)
)

// Calls reads a recording, in the order in which calls began. Calls whose lines are of another form are left out.
func Calls(path string) ([]Call, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []Call
	open := map[string]int{} // the calls that go on, by thread
	begun := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		m := lineForm.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		at, text := stamp(m[2], m[3]), m[4]
		if before, unfinished := strings.CutSuffix(text, " <unfinished ...>"); unfinished {
			begun[m[1]], open[m[1]] = before, len(out)
			out = append(out, Call{Began: at})
			continue
		}
		place := len(out)
		if rest, resumed := strings.CutPrefix(text, "<... "); resumed {
			_, rest, _ = strings.Cut(rest, " resumed>")
			if begun[m[1]] == "" {
				continue
			}
			text, place = begun[m[1]]+rest, open[m[1]]
			at = out[place].Began
			delete(begun, m[1])
		}
		call, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if call == nil {
			continue
		}
		call.Began = at
		call.Ended = at.Add(took(text))
		if place < len(out) {
			out[place] = *call
		} else {
			out = append(out, *call)
		}
	}
	// What was never finished happened as far as its arguments say.
	for thread, text := range begun {
		if call, err := parse(text + ") = 0"); err == nil && call != nil {
			call.Began = out[open[thread]].Began
			out[open[thread]] = *call
		}
	}
	return slices.DeleteFunc(out, func(c Call) bool { return c.Name == "" }), nil // of another form, in two lines
}

func stamp(seconds, micros string) time.Time {
	s, _ := strconv.ParseInt(seconds, 10, 64) // the form is of digits
	u, _ := strconv.ParseInt(micros, 10, 64)
	return time.Unix(s, u*1000)
}

func took(text string) time.Duration {
	m := tookForm.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	return stamp(m[1], m[2]).Sub(time.Unix(0, 0))
}

// parse returns nil for a line of another form.
func parse(text string) (*Call, error) {
	m := callForm.FindStringSubmatch(text)
	if m == nil {
		return nil, nil
	}
	name, err := decode(m[2] + m[3])
	if err != nil {
		return nil, err
	}
	c := &Call{Name: m[1], File: filepath.Base(string(name)), Injected: strings.Contains(m[6], "(INJECTED)")}
	if c.Result, err = strconv.ParseInt(m[5], 10, 64); err != nil {
		return nil, err
	}
	switch c.Name {
	case "pwrite64":
		d := dataForm.FindStringSubmatch(m[4])
		if d == nil {
			return nil, fmt.Errorf("a write is cut short: %.200s", text)
		}
		if c.Data, err = decode(d[1]); err != nil {
			return nil, err
		}
		c.Offset, err = strconv.ParseInt(d[3], 10, 64)
	case "ftruncate":
		c.Size, err = strconv.ParseInt(m[4], 10, 64)
	}
	return c, err
}

// decode reads a string of \xNN.
func decode(s string) ([]byte, error) {
	if !strings.HasPrefix(s, `\x`) {
		return []byte(s), nil
	}
	out := make([]byte, 0, len(s)/4)
	for i := 0; i+4 <= len(s); i += 4 {
		b, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
		if err != nil {
			return nil, fmt.Errorf("a byte %q: %w", s[i:i+4], err)
		}
		out = append(out, byte(b))
	}
	return out, nil
}
