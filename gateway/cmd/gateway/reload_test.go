package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest/input"
)

// A human's change of allowed_origins is taken up without a restart. A file that is broken changes nothing, and says so; what else
// changed waits for a restart, and says so.
func TestOriginsAreReadAgain(t *testing.T) {
	input.Outside(t)
	good, err := os.ReadFile(shipped)
	must(t, err)
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	written := time.Now().Add(-time.Hour)
	write := func(from, to string) {
		t.Helper()
		if !strings.Contains(string(good), from) {
			t.Fatalf("the shipped file does not say %q", from)
		}
		must(t, os.WriteFile(path, []byte(strings.Replace(string(good), from, to, 1)), 0o600))
		written = written.Add(time.Minute)
		must(t, os.Chtimes(path, written, written))
	}
	write("hold_s: 0", "hold_s: 0")
	began := new(settings)
	must(t, config.Load(path, began))
	must(t, began.Validate())
	var got [][]string
	var log bytes.Buffer
	r := newReloader(path, began, func(origins []string) { got = append(got, origins) }, slog.New(slog.NewTextHandler(&log, nil)))
	look := func() {
		t.Helper()
		_ = r.Reload() // Err keeps it
	}
	for _, c := range []struct {
		name, from, to string
		want           []string
		problem, logs  string
	}{
		{"nothing changed", "hold_s: 0", "hold_s: 0", nil, "", ""},
		{"half a file", "allowed_origins: []", "allowed_origins: ['https://a.exam", nil, "gateway.yaml", ""},
		{"an unknown key", "allowed_origins: []", "allowed_origin: ['https://a.example']", nil, "unknown key", ""},
		{"an origin that is none", "allowed_origins: []", "allowed_origins: ['*']", nil, "allowed_origins", ""},
		{"what would not start", "hold_s: 0", "hold_s: 99", nil, "hold_s", ""},
		{"an origin", "allowed_origins: []", "allowed_origins: ['https://a.example']", []string{"https://a.example"}, "", "taken up"},
		{"broken again", "allowed_origins: []", "allowed_origins: [", nil, "gateway.yaml", ""},
		{"something else", "hold_s: 0", "hold_s: 9", []string{}, "", "takes a restart"},
	} {
		got = nil
		log.Reset()
		write(c.from, c.to)
		look()
		look() // an unchanged file is not read again, and what was wrong is wrong still
		var applied []string
		if len(got) > 1 {
			t.Errorf("%s: applied %d times", c.name, len(got))
		} else if len(got) == 1 {
			applied = got[0]
		}
		if diff := cmp.Diff(c.want, applied); diff != "" {
			t.Errorf("%s: origins (-want +got):\n%s", c.name, diff)
		}
		if (r.Err() == nil) != (c.problem == "") || c.problem != "" && !strings.Contains(r.Err().Error(), c.problem) {
			t.Errorf("%s: problem %v", c.name, r.Err())
		}
		if c.logs != "" && !strings.Contains(log.String(), c.logs) {
			t.Errorf("%s: log %s", c.name, &log)
		}
	}
	// Gone and back is no change: what is wrong, or not, is so of what the file says.
	for _, c := range []struct{ name, to, problem string }{{"good", "hold_s: 9", ""}, {"broken", "hold_s: 99", "hold_s"}} {
		write("hold_s: 0", c.to)
		look()
		got = nil
		aside := path + ".aside"
		must(t, os.Rename(path, aside))
		if look(); r.Err() == nil || !strings.Contains(r.Err().Error(), "cannot be found") || len(got) != 0 {
			t.Errorf("%s, without a file: %v, %v", c.name, r.Err(), got)
		}
		must(t, os.Rename(aside, path))
		for range 2 {
			look()
			if (r.Err() == nil) != (c.problem == "") || c.problem != "" && !strings.Contains(r.Err().Error(), c.problem) || len(got) != 0 {
				t.Errorf("%s, back: %v, %v", c.name, r.Err(), got)
			}
		}
	}
}
