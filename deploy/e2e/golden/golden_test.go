package golden

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNormaliser(t *testing.T) {
	t.Parallel()
	const id, other = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	for name, c := range map[string]struct{ text, want string }{
		"equal values stay equal":   {id + " " + other + " " + id, "<ID1> <ID2> <ID1>"},
		"a digest is not an id":     {id + id, "<DIGEST1>"},
		"within a word":             {"x" + id + "y", "x" + id + "y"},
		"the longest literal first": {"/tmp/home/bin/x /tmp/home", "<BIN>/x <HOME>"},
		"a port, and more digits":   {"127.0.0.1:20001 120001 20001x", "127.0.0.1:<PORT> 120001 20001x"},
		"references":                {"[[PII:EMAIL:tkn_aaaabbbbccccddddeeeeffff22]] tkn_aaaa", "[[PII:EMAIL:<REFERENCE1>]] tkn_aaaa"},
		"columns, shorter":          {"ID                                TOOL\n" + id + "  start", "ID                                TOOL\n<ID1>                             start"},
		"columns, longer":           {"NO    TOOL\nK7F3  start", "NO    TOOL\n<NUMBER1>  start"},
		"times are not numbered":    {"2026-01-31T12:00:00Z 2026-01-31T12:00:01.5+02:00", "<TIME> <TIME>"},
		"a group of a pattern":      {"pid 417 and 417", "pid <PID> and 417"},
		"what stays":                {"8192 MiB, 24.0 GiB, r-1, K7F34", "8192 MiB, 24.0 GiB, r-1, K7F34"},
	} {
		n := &Normaliser{}
		n.Is("/tmp/home", "HOME")
		n.Is("/tmp/home/bin", "BIN")
		n.Is("20001", "PORT")
		n.IsA("K7F3", "NUMBER")
		n.Like(`pid (\d+)`, "PID")
		if diff := cmp.Diff(c.want, n.Text(c.text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestCompare: a golden that was tampered with is reported with its file and line, and so is one too many and one too few.
func TestCompare(t *testing.T) {
	t.Parallel()
	accepted, err := Accepted()
	if err != nil || len(accepted) < 20 {
		t.Fatalf("%d goldens: %v", len(accepted), err)
	}
	if differences := Compare(accepted, maps.Clone(accepted)); len(differences) != 0 {
		t.Errorf("the goldens differ from themselves: %s", differences)
	}
	const name = "help/approve.txt"
	lines := strings.SplitAfter(accepted[name], "\n")
	if len(lines) < 5 {
		t.Fatalf("%s has %d lines", name, len(lines))
	}
	lines[4] = "tampered with\n"
	for what, c := range map[string]struct {
		change func(map[string]string)
		says   []string
	}{
		"a line":        {func(m map[string]string) { m[name] = strings.Join(lines, "") }, []string{"testdata/" + name + ":5 differs", "\n+tampered with\n", "\n-"}},
		"one too many":  {func(m map[string]string) { m["x.txt"] = "new\n" }, []string{"testdata/x.txt is new", "\n+new\n"}},
		"one too few":   {func(m map[string]string) { delete(m, name) }, []string{"testdata/" + name + ": nothing makes this golden any more"}},
		"the last line": {func(m map[string]string) { m[name] += "more\n" }, []string{"testdata/" + name + ":", "\n+more\n"}},
	} {
		got := maps.Clone(accepted)
		c.change(got)
		differences := Compare(accepted, got)
		if len(differences) != 1 {
			t.Errorf("%s: %d differences, want 1: %s", what, len(differences), differences)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(differences[0], want) {
				t.Errorf("%s: no %q in\n%s", what, want, differences[0])
			}
		}
	}
}
