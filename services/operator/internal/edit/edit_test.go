package edit_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/edit"
)

const documented = `# Who may do what.

approvals:
  # An hour is too long.
  wait_s: 1800   # seconds
  four_eyes: false

# Nothing more.
desktop:
messaging: {}
`

func TestSet(t *testing.T) {
	for name, c := range map[string]struct {
		raw, path, value, want string
		err                    error
	}{
		"a comment stays":      {documented, "approvals.wait_s", "600", strings.Replace(documented, "1800", "600", 1), nil},
		"below a parent":       {documented, "approvals.scope_max_s", "60", strings.Replace(documented, "four_eyes: false\n", "four_eyes: false\n  scope_max_s: 60\n", 1), nil},
		"below nothing":        {documented, "desktop.allowed", "true", strings.Replace(documented, "desktop:\n", "desktop:\n  allowed: true\n", 1), nil},
		"below {}":             {documented, "messaging.ttl_s", "60", strings.Replace(documented, "messaging: {}\n", "messaging:\n  ttl_s: 60\n", 1), nil},
		"at the end":           {documented, "tier_ceiling", "READ", documented + "tier_ceiling: READ\n", nil},
		"comments alone":       {"# nothing\n", "dangerous.allowed", "false", "# nothing\ndangerous:\n  allowed: false\n", nil},
		"an empty file":        {"", "tier_ceiling", "READ", "tier_ceiling: READ\n", nil},
		"no end of line":       {"tier_ceiling: READ", "desktop.allowed", "true", "tier_ceiling: READ\ndesktop:\n  allowed: true\n", nil},
		"in quotes":            {"tier_ceiling: \"READ\" # why\n", "tier_ceiling", "WRITE", "tier_ceiling: WRITE # why\n", nil},
		"three deep":           {"tools:\n  a:\n    tier: WRITE\n  b: # ours\n    tier: READ\n", "tools.a.budget.day", "5", "tools:\n  a:\n    tier: WRITE\n    budget:\n      day: 5\n  b: # ours\n    tier: READ\n", nil},
		"four spaces":          {"approvals:\n    wait_s: 60\n", "approvals.four_eyes", "true", "approvals:\n    wait_s: 60\n    four_eyes: true\n", nil},
		"a hash in a text":     {"a: \"x # y\"\n", "a", "z", "a: z\n", nil},
		"in braces":            {"approvals: {wait_s: 60}\n", "approvals.four_eyes", "true", "", edit.ErrLayout},
		"in braces, replaced":  {"approvals: {wait_s: 60}\n", "approvals.wait_s", "70", "", edit.ErrLayout},
		"over several lines":   {"a: |\n  x\n", "a", "y", "", edit.ErrLayout},
		"a list in its place":  {"approvals: [1]\n", "approvals.wait_s", "60", "", edit.ErrLayout},
		"an alias":             {"x: &x {wait_s: 1}\napprovals: *x\n", "approvals.wait_s", "60", "", edit.ErrLayout},
		"two documents":        {"a: 1\n---\na: 2\n", "a", "3", "", edit.ErrLayout},
		"broken":               {"a: [\n", "a", "3", "", edit.ErrLayout},
		"a value with a line":  {"a: 1\n", "a", "1\nb: 2", "", nil},
		"a value with a key":   {"a: 1\n", "a", "b: 2", "", nil},
		"a value, a comment":   {"a: 1\n", "a", "1 # c", "a: 1 # c\n", nil},
		"twice the same key":   {"a: 1\na: 2\n", "a", "3", "", edit.ErrLayout},
		"the file ends nested": {"tools:\n  a: {tier: READ}\n", "tools.b.tier", "WRITE", "tools:\n  a: {tier: READ}\n  b:\n    tier: WRITE\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := edit.Set([]byte(c.raw), strings.Split(c.path, "."), c.value)
			if c.want == "" {
				if err == nil || c.err != nil && !errors.Is(err, c.err) {
					t.Errorf("got %v and %q", err, got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUnset(t *testing.T) {
	for name, c := range map[string]struct {
		raw, path, want string
		err             error
	}{
		"one of two":       {documented, "approvals.four_eyes", strings.Replace(documented, "  four_eyes: false\n", "", 1), nil},
		"a parent with it": {"a: 1\nb:\n  c:\n    d: 1\n", "b.c.d", "a: 1\n", nil},
		"not a comment":    {"b:\n  # why\n  c: 1\n", "b.c", "b:\n  # why\n", nil},
		"the last":         {"# top\na: 1\n", "a", "# top\n", nil},
		"not there":        {documented, "tier_ceiling", "", edit.ErrUnknown},
		"in braces":        {"a: {b: 1}\n", "a.b", "", edit.ErrLayout},
		"a whole section":  {documented, "approvals", "", edit.ErrLayout},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := edit.Unset([]byte(c.raw), strings.Split(c.path, "."))
			if c.err != nil {
				if !errors.Is(err, c.err) {
					t.Errorf("got %v and %q", err, got)
				}
				return
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" || err != nil {
				t.Error(err, diff)
			}
		})
	}
	got, err := edit.UnsetAll([]byte("tools:\n  a:\n    tier: READ\n    budget: {day: 1}\n  b: {tier: WRITE}\n"), []string{"tools", "a"})
	if err != nil || string(got) != "tools:\n  b: {tier: WRITE}\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestItems: what stands in a list's items is changed as what stands in a section is.
func TestItems(t *testing.T) {
	raw := []byte("clients:\n- id: a # one\n  old: {x: 1}\n\n# two\n- key: k # its own\n")
	for name, c := range map[string]struct {
		path []string
		want string
		err  error
	}{
		"replaced":     {[]string{"clients", "0", "id"}, "clients:\n- id: new # one\n  old: {x: 1}\n\n# two\n- key: k # its own\n", nil},
		"added":        {[]string{"clients", "1", "id"}, "clients:\n- id: a # one\n  old: {x: 1}\n\n# two\n- key: k # its own\n  id: new\n", nil},
		"nested":       {[]string{"clients", "0", "next", "id"}, "clients:\n- id: a # one\n  old: {x: 1}\n  next:\n    id: new\n\n# two\n- key: k # its own\n", nil},
		"no such item": {[]string{"clients", "2", "id"}, "", edit.ErrLayout},
		"no number":    {[]string{"clients", "id"}, "", edit.ErrLayout},
		"an item":      {[]string{"clients", "0"}, "", edit.ErrLayout},
	} {
		got, err := edit.Set(raw, c.path, "new")
		if !errors.Is(err, c.err) || err == nil && string(got) != c.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	got, err := edit.UnsetAll(raw, []string{"clients", "0", "old"})
	if err != nil || string(got) != "clients:\n- id: a # one\n\n# two\n- key: k # its own\n" {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := edit.UnsetAll(raw, []string{"clients", "0", "id"}); !errors.Is(err, edit.ErrLayout) {
		t.Error(err)
	}
}

func TestLists(t *testing.T) {
	item := "{tool: switch_mode, clients: [cursor]} # why"
	for name, c := range map[string]struct{ raw, want string }{
		"no key":          {"a: 1\n", "a: 1\nunattended:\n  - " + item + "\n"},
		"nothing":         {"unattended:\na: 1\n", "unattended:\n  - " + item + "\na: 1\n"},
		"brackets":        {"unattended: [] # none\na: 1\n", "unattended: # none\n  - " + item + "\na: 1\n"},
		"words":           {"unattended: [switch_mode, \"stop_service\"]\n", "unattended:\n  - switch_mode\n  - \"stop_service\"\n  - " + item + "\n"},
		"lines":           {"unattended:\n- switch_mode # mine\n\n# next\na: 1\n", "unattended:\n- switch_mode # mine\n- " + item + "\n\n# next\na: 1\n"},
		"items of lines":  {"unattended:\n  - tool: x\n    clients: [a]\n# end\n", "unattended:\n  - tool: x\n    clients: [a]\n  - " + item + "\n# end\n"},
		"no end of line":  {"unattended:\n  - x", "unattended:\n  - x\n  - " + item + "\n"},
		"comments behind": {"unattended:\n  - x\n  # a remark\n", "unattended:\n  - x\n  - " + item + "\n  # a remark\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := edit.Append([]byte(c.raw), "unattended", item)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
			back, err := edit.Remove(got, "unattended", func(_ any, text string) bool { return strings.Contains(text, "# why") })
			if err != nil {
				t.Fatal(err)
			}
			var before, after map[string]any
			if err := errors.Join(yaml.Unmarshal([]byte(c.raw), &before), yaml.Unmarshal(back, &after)); err != nil {
				t.Fatal(err)
			}
			if list, ok := after["unattended"].([]any); ok && len(list) == 0 {
				delete(after, "unattended")
				if list, ok := before["unattended"].([]any); !ok || len(list) == 0 {
					delete(before, "unattended")
				}
			}
			if !reflect.DeepEqual(before, after) {
				t.Errorf("%q is not what was: %q", back, c.raw)
			}
		})
	}
	for _, raw := range []string{"unattended: 1\n", "unattended: {a: 1}\n", "unattended: [a,\n  b]\n", "unattended: [{a: 1}]\n", "unattended: &x [a]\nb: *x\n", "unattended: [\n"} {
		if got, err := edit.Append([]byte(raw), "unattended", item); !errors.Is(err, edit.ErrLayout) {
			t.Errorf("%q: %v, %q", raw, err, got)
		}
	}
	if _, err := edit.Remove([]byte("a: [x]\n"), "a", func(any, string) bool { return false }); !errors.Is(err, edit.ErrUnknown) {
		t.Error(err)
	}
	if got, err := edit.Remove([]byte("a: [x, y] # z\n"), "a", func(v any, _ string) bool { return v == "x" }); err != nil || string(got) != "a: [y] # z\n" {
		t.Errorf("%q, %v", got, err)
	}
	// The empty line that parted the item from the one before goes with it.
	if got, err := edit.Remove([]byte("a:\n  - x\n\n  - y\n\n# next\nb: 1\n"), "a", func(v any, _ string) bool { return v == "y" }); err != nil || string(got) != "a:\n  - x\n\n# next\nb: 1\n" {
		t.Errorf("%q, %v", got, err)
	}
	if !edit.Has([]byte("a: [x]\n"), "a", "x") || edit.Has([]byte("a: [x]\n"), "a", "y") {
		t.Error("Has")
	}
}

const cedar = `// What runs without asking.

// cursor may switch; "not a rule" @id("a") permit (;
@id("a")
permit (principal, action, resource)
when { context.x == "; @id(\"b\")" }; // after

@id("b")
forbid (principal, action == Action::"call:x", resource);
permit (principal, action, resource);
`

func TestRemoveRule(t *testing.T) {
	got, err := edit.RemoveRule([]byte(cedar), "a")
	want := "// What runs without asking.\n\n@id(\"b\")\nforbid (principal, action == Action::\"call:x\", resource);\npermit (principal, action, resource);\n"
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Error(err, diff)
	}
	got, err = edit.RemoveRule([]byte(cedar), "b")
	if err != nil || strings.Contains(string(got), "forbid") || !strings.Contains(string(got), "resource)\nwhen {") || !strings.HasSuffix(string(got), "\n\npermit (principal, action, resource);\n") {
		t.Errorf("%q, %v", got, err)
	}
	if edit.RuleLine([]byte(cedar), "a") != 4 || edit.RuleLine([]byte(cedar), "c") != 0 {
		t.Error("RuleLine")
	}
	for raw, want := range map[string]error{
		"permit (principal, action, resource);":                                         edit.ErrUnknown,
		"@id(\"a\") permit (principal, action, resource); @id(\"c\") permit (p, a, r);": edit.ErrLayout,
		"@id(\"a\") permit (p, a, r);\n@id(\"a\") permit (p, a, r);\n":                  edit.ErrLayout,
		"@id(\"a\") permit (p, a, r)":                                                   edit.ErrLayout,
		"@id(\"a":                                                                       edit.ErrLayout,
		"permit (p, a, r) when { x == \"@id(\\\"a\\\")\" };":                            edit.ErrUnknown,
		"// @id(\"a\") permit (p, a, r);\n@x(\"@id(\\\"a\\\")\")\npermit (p, a, r);\n":  edit.ErrUnknown,
	} {
		if got, err := edit.RemoveRule([]byte(raw), "a"); !errors.Is(err, want) {
			t.Errorf("%q: %v, %q", raw, err, got)
		}
	}
}

// FuzzSet: whatever the file, the result is refused or says exactly what was meant.
func FuzzSet(f *testing.F) {
	for _, seed := range []string{documented, "", "a: {b: 1}", "a:\n- b\n", "a: |\n x\n", "? a\n: b", "\"a\": 1\n", "a: 1 # x\nb:\n  c: 2", "a:\n  b: 1\n c: 2\n", "\ta: 1", "a: &x 1\nb: *x"} {
		f.Add(seed, "a", "b", "1")
	}
	f.Fuzz(func(t *testing.T, raw, one, two, value string) {
		if len(raw) > 2000 || strings.ContainsAny(one+two, "\x00") {
			return
		}
		for _, path := range [][]string{{one}, {one, two}} {
			out, err := edit.Set([]byte(raw), path, value)
			if err != nil {
				continue
			}
			var got map[string]any
			if err := yaml.Unmarshal(out, &got); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			// Any text may be refused, and must not crash it.
			_, _ = edit.Unset(out, path)
			_, _ = edit.Append(out, one, value) // as above
		}
		// Any text may be refused, and must not crash it.
		_, _ = edit.RemoveRule([]byte(raw), one)
	})
}

// FuzzText: a text that is written is read as that text, in a value and between brackets.
func FuzzText(f *testing.F) {
	for _, seed := range []string{"", "a", "yes", "1", "a: b", "# x", "\"", "\\", "\n", "é", "- a", "null", "~", "0x1", "1e3", ".inf", "2026-01-01", "a/b", "\u2028", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s != strings.ToValidUTF8(s, "") {
			return
		}
		var got struct {
			A string   `yaml:"a"`
			B []string `yaml:"b"`
		}
		text := edit.Text(s)
		if err := yaml.Unmarshal([]byte("a: "+text+"\nb: ["+text+", "+text+"]\n"), &got); err != nil {
			t.Fatalf("%q as %s: %v", s, text, err)
		}
		if got.A != s || len(got.B) != 2 || got.B[0] != s || got.B[1] != s {
			t.Fatalf("%q as %s is read as %q and %q", s, text, got.A, got.B)
		}
	})
}
