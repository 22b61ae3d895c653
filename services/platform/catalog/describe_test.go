package catalog

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadSubjectRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                  "",
		"null":                     "null",
		"another key":              `{"id":"chat","more":1}`,
		"not canonical":            `{"id": "chat"}`,
		"not whole":                `{"id":"chat"}`,
		"a key in another case":    `{"ID":"chat"}`,
		"a definition of a number": `{"definition_sha256":1}`,
	} {
		if s, err := ReadSubject([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// What was made of an entry is read as that entry.
func TestReadSubject(t *testing.T) {
	c, err := Parse("c.yaml", []byte(good), host(t))
	must(t, err)
	for _, s := range c.Services {
		for _, definition := range []string{"", Unreadable, "sha256:aa"} {
			raw, err := s.Subject(definition)
			must(t, err)
			got, err := ReadSubject(raw)
			if diff := cmp.Diff(s, got); err != nil || diff != "" {
				t.Errorf("%s: %v\n%s", s.ID, err, diff)
			}
		}
	}
}

func TestDescribe(t *testing.T) {
	for want, s := range map[string]*Service{
		"null driver, does nothing":        {ID: "a", Driver: DriverNull, Argv: []string{"/bin/sh"}},
		"unit chat@one.service, port 8000": {ID: "a", Driver: DriverSystemd, Unit: "chat@one.service", Port: 8000},
		`/bin/x "two words" "" as the executor's own user, GPU 0 (simulated), GPU 1, 6000 MiB declared`: {
			ID: "a", Driver: DriverProcess, Argv: []string{"/bin/x", "two words", ""}, GPUs: []uint32{0, 1}, VRAMMiB: 6000},
		`/bin/x \u{1B}[2K as \u{202E}root`: {ID: "a", Argv: []string{"/bin/x", "\x1b[2K"}, RunAs: "\u202eroot"},
		`the container labelled durward.service=a\u{A}, of img as user 5, command serve, mounts /a at /b WRITABLE`: {
			ID: "a\n", Driver: DriverDocker, Container: &Container{Image: "img", Adopt: true, User: "5", Command: []string{"serve"},
				Mounts: []Mount{{Source: "/a", Target: "/b", Writable: true}}}},
	} {
		if got := s.Describe([]GPU{{Index: 0, Simulated: true}, {Index: 1}}); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := (&Service{Argv: []string{"/bin/x"}, GPUs: []uint32{0}}).Describe(nil); strings.Contains(got, "simulated") {
		t.Errorf("without a catalogue it says %s", got)
	}
}

func FuzzReadSubject(f *testing.F) {
	c, err := Parse("c.yaml", []byte(good), host(f))
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range c.Services {
		raw, err := s.Subject("sha256:aa")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := ReadSubject(raw)
		if err != nil {
			return
		}
		if line := s.Describe(nil); strings.ContainsAny(line, "\n\x1b\u202e") {
			t.Errorf("hostile characters came through: %q", line)
		}
		if !bytes.Contains(raw, []byte(`"id":`)) {
			t.Errorf("it was read from %s", raw)
		}
	})
}
