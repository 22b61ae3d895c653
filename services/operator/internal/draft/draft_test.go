package draft

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/model"
)

func entry(t testing.TB, text string) Entry {
	t.Helper()
	e, err := Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestReadRefuses(t *testing.T) {
	for _, text := range []string{
		"", "# nothing", "- id: a", "just words", "id: a\n---\nid: b\n", "[1, 2]", "{", "id: [", "id: a\n...\nid: b",
		"id: " + strings.Repeat("x", maxEntry),
	} {
		if e, err := Read([]byte(text)); err == nil {
			t.Errorf("%.40q was read as %q", text, e.lines)
		}
	}
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"as it was written", "---\n# why\nid: a   \nhealth:\n  path: /x  # here\n", []string{"# why", "id: a", "health:", "  path: /x  # here"}},
		{"indented", "    id: a\n  # left\n    port: 1\n", []string{"id: a", "# left", "port: 1"}},
		{"Windows", "id: a\r\nport: 1\r\n", []string{"id: a", "port: 1"}},
		{"JSON", `{"id": "a", "argv": ["serve", "--x", "-1", "a b", "yes", "q\"uote"], "pin": true, "port": 80, "health": {"path": "/h"}}`,
			[]string{`id: a`, `argv: [serve, --x, "-1", "a b", "yes", "q\"uote"]`, `pin: true`, `port: 80`, `health: {path: /h}`}},
		{"long JSON", `{"id": "a", "argv": ["` + strings.Repeat("x", 60) + `", "` + strings.Repeat("y", 60) + `"]}`,
			[]string{"id: a", "argv:", "  - " + strings.Repeat("x", 60), "  - " + strings.Repeat("y", 60)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, entry(t, c.text).lines); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestAppendRefuses(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"no YAML", "services: ["},
		{"empty", ""},
		{"a list", "- a\n"},
		{"one line of braces", "{version: 1, services: []}\n"},
		{"two documents", "version: 1\n---\nversion: 1\n"},
		{"a list in brackets that holds something", "version: 1\nservices: [{id: b}]\n"},
		{"brackets over lines", "version: 1\nservices: [\n]\n"},
		{"no list", "version: 1\nservices: none\n"},
		{"an end mark", "version: 1\n...\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out, _, err := Append([]byte(c.text), Services, entry(t, "id: a")); !errors.Is(err, edit.ErrLayout) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestAppend(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		line             int
	}{
		{"no section", "version: 1", "version: 1\n\nservices:\n  - id: a\n    port: 1\n", 4},
		{"an empty section", "version: 1\nservices:   # none\nmodes: []\n", "version: 1\nservices:   # none\n  - id: a\n    port: 1\nmodes: []\n", 3},
		{"empty brackets", "version: 1\nservices: []   # none yet\n", "version: 1\nservices:   # none yet\n  - id: a\n    port: 1\n", 3},
		{
			"in the middle, comments in their places",
			"# top\nversion: 1\n\nservices:\n  # one\n  - id: b   # b\n    port: 2\n    # tail of b\n  - {id: c}\n\n# about modes\nmodes:\n  - id: m\n",
			"# top\nversion: 1\n\nservices:\n  # one\n  - id: b   # b\n    port: 2\n    # tail of b\n  - {id: c}\n  - id: a\n    port: 1\n\n# about modes\nmodes:\n  - id: m\n", 10,
		},
		{
			"spaced as its neighbours are",
			"services:\n  - id: b\n\n  # c\n  - id: c\n    port: 2\nversion: 1\n",
			"services:\n  - id: b\n\n  # c\n  - id: c\n    port: 2\n\n  - id: a\n    port: 1\nversion: 1\n", 8,
		},
		{"dashes at the edge", "version: 1\nservices:\n- id: b\n  port: 2\n", "version: 1\nservices:\n- id: b\n  port: 2\n- id: a\n  port: 1\n", 5},
		{"Windows", "version: 1\r\nservices:\r\n  - id: b\r\n", "version: 1\r\nservices:\r\n  - id: b\r\n  - id: a\r\n    port: 1\r\n", 4},
		{"a text over lines", "services:\n  - id: b\n    description: |\n      one\n\n      # no comment\nversion: 1\n",
			"services:\n  - id: b\n    description: |\n      one\n\n      # no comment\n  - id: a\n    port: 1\nversion: 1\n", 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, line, err := Append([]byte(c.text), Services, entry(t, "id: a\nport: 1\n"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if line != c.line {
				t.Errorf("it begins at line %d, want %d", line, c.line)
			}
		})
	}
}

func TestMakeQuotesWhatIsNotPlain(t *testing.T) {
	words := []any{"a b", "", "yes", "NULL", "~", "#x", "a: b", "1", "-1", "--flag", "-", "0x1", "{x}", "$HOME", "\u2028", "é", "\x1b[31m", "a,b", "2024-01-01", ".inf", "/p/q-1.2"}
	e, err := Make(yaml.MapSlice{{Key: "argv", Value: words}, {Key: "id", Value: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(words, e.value["argv"]); diff != "" {
		t.Errorf("(-want +got)\n%s\n%s", diff, strings.Join(e.lines, "\n"))
	}
	if _, err := Make(yaml.MapSlice{{Key: "x", Value: struct{}{}}}); !errors.Is(err, ErrEntry) {
		t.Errorf("a value of no kind: %v", err)
	}
}

// means reports whether after is before with the entry at the end of the section, and nothing else.
func means(before, after []byte, section string, e Entry) bool {
	var old, now map[string]any
	if yaml.Unmarshal(before, &old) != nil || yaml.Unmarshal(after, &now) != nil {
		return false
	}
	list, _ := old[section].([]any)
	old[section] = append(slices.Clone(list), any(e.value))
	return reflect.DeepEqual(old, now)
}

// FuzzAppend: whatever the file and the entry, what comes out means the file and the entry, or nothing comes out.
func FuzzAppend(f *testing.F) {
	f.Add("version: 1\nservices:\n  - id: b\n    # c\n\nmodes: []\n", "id: a\nport: 1\n")
	f.Add("version: 1\nservices: []\n", `{"id": "a", "argv": ["x", "\u2028"]}`)
	f.Add("services:\n- |\n  text\n # odd\nversion: 1", "a: |\n  b\n\n  c\n")
	f.Add("a: 1\r\nservices:\r\n  - x\r\n", "? a\n: b\n")
	f.Fuzz(func(t *testing.T, text, raw string) {
		e, err := Read([]byte(raw))
		if err != nil {
			return
		}
		out, line, err := Append([]byte(text), Services, e)
		if err != nil {
			return
		}
		if !means([]byte(text), out, Services, e) {
			t.Errorf("%q with %q became %q", text, raw, out)
		}
		lines := strings.Split(string(out), "\n")
		if line < 1 || line > len(lines) || !strings.Contains(lines[line-1], "- ") {
			t.Errorf("line %d of %q does not begin an entry", line, out)
		}
	})
}

// TestOf: an entry's keys stand in its struct's order; what is zero is left out, but the index of a GPU.
func TestOf(t *testing.T) {
	t.Parallel()
	for want, fields := range map[string]yaml.MapSlice{
		"id: a\ndriver: docker\ncontainer: {image: x, mounts: [{source: /a, target: /b, writable: true}]}\nenvironment: {A: \"1\", B: \"2\"}\nlimits: {pids: 5}\n" +
			"health: {path: /h}\ngpus: [0, 1]\nextra_config: {z: 1, a: 2}\nstart_timeout_s: 9": Of(Service{
			ID: "a", Driver: "docker", Environment: map[string]string{"B": "2", "A": "1"}, GPUs: []uint32{0, 1}, StartTimeoutS: 9, Argv: []string{},
			Container: &catalog.Container{Image: "x", Mounts: []catalog.Mount{{Source: "/a", Target: "/b", Writable: true}}},
			Limits:    catalog.Limits{PIDs: 5}, Health: catalog.Health{Path: "/h"}, Extra: yaml.MapSlice{{Key: "z", Value: 1}, {Key: "a", Value: 2}},
		}),
		"id: m\nfile: /m\ncard: {weights_mib: 7, layers: [{count: 2, kind: full}]}": Of(catalog.Model{
			ID: "m", File: "/m", Card: &model.Card{WeightsMiB: 7, Layers: []model.Layers{{Count: 2, Kind: model.Full}}},
		}),
		"index: 0\nuuid: GPU-1": OfGPU(catalog.GPU{UUID: "GPU-1"}),
	} {
		e, err := Make(fields)
		if got := strings.Join(e.lines, "\n"); err != nil || got != want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
	}
}
