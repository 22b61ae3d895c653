package unattended

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/sink/unattended"
)

func lookup(t *testing.T, name string) contract.Tool {
	t.Helper()
	tool, ok := contract.Lookup(name)
	if !ok {
		t.Fatalf("there is no tool %s", name)
	}
	return tool
}

// TestAnEntryIsReadAsItWasMeant: whatever stands in a value, the sink reads this client, this tool, these values and no others.
func TestAnEntryIsReadAsItWasMeant(t *testing.T) {
	t.Parallel()
	until := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		tool      string
		arguments map[string][]string
		want      map[string][]json.RawMessage
		until     time.Time
	}{
		"no arguments":      {"stop_service", nil, nil, time.Time{}},
		"with an end":       {"stop_service", nil, nil, until},
		"a text":            {"stop_service", map[string][]string{"service_id": {"chat"}}, map[string][]json.RawMessage{"service_id": {[]byte(`"chat"`)}}, time.Time{}},
		"several":           {"stop_service", map[string][]string{"service_id": {"a", "b"}}, map[string][]json.RawMessage{"service_id": {[]byte(`"a"`), []byte(`"b"`)}}, until},
		"what ends a list":  {"stop_service", map[string][]string{"service_id": {`a], clients: []`}}, map[string][]json.RawMessage{"service_id": {[]byte(`"a], clients: []"`)}}, time.Time{}},
		"a comma":           {"stop_service", map[string][]string{"service_id": {"a, b"}}, map[string][]json.RawMessage{"service_id": {[]byte(`"a, b"`)}}, time.Time{}},
		"a comment":         {"stop_service", map[string][]string{"service_id": {"a # b"}}, map[string][]json.RawMessage{"service_id": {[]byte(`"a # b"`)}}, time.Time{}},
		"a quote":           {"stop_service", map[string][]string{"service_id": {`"a"`}}, map[string][]json.RawMessage{"service_id": {[]byte(`"\"a\""`)}}, time.Time{}},
		"a text of digits":  {"stop_service", map[string][]string{"service_id": {"7"}}, map[string][]json.RawMessage{"service_id": {[]byte(`"7"`)}}, time.Time{}},
		"a text that is no": {"stop_service", map[string][]string{"service_id": {"no"}}, map[string][]json.RawMessage{"service_id": {[]byte(`"no"`)}}, time.Time{}},
		"a number":          {"switch_mode", map[string][]string{"margin_mib_override": {"256"}}, map[string][]json.RawMessage{"margin_mib_override": {[]byte(`256`)}}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := "unattended:\n  - " + Entry(lookup(t, c.tool), "cursor", c.arguments, "allow/cursor/x/1", c.until) + "\n"
			var file struct {
				Unattended []any `yaml:"unattended"`
			}
			if err := yaml.Unmarshal([]byte(text), &file); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			got, err := unattended.Parse(file.Unattended)
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			want := []unattended.Entry{{Tool: c.tool, Clients: []string{"cursor"}, Arguments: c.want, Until: c.until}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s\n%s", diff, text)
			}
		})
	}
}

// TestEntriesAreFoundByTheirRule: an entry is found and taken out by the rule that it was written with; others, and comments, stay.
func TestEntriesAreFoundByTheirRule(t *testing.T) {
	t.Parallel()
	tool := lookup(t, "stop_service")
	one, two := Entry(tool, "cursor", nil, "allow/cursor/1", time.Time{}), Entry(tool, "claude", nil, "allow/claude/2", time.Time{})
	file := []byte("# mine\nlisten: x\nunattended:\n  - " + one + "\n  - wait_operation # by hand\n  - " + two + "\n  # - {tool: x} " + Mark + "allow/none/3\n")
	for id, want := range map[string]bool{"allow/cursor/1": true, "allow/claude/2": true, "allow/none/3": false, "allow/cursor/": false, "": false} {
		if Has(file, id) != want {
			t.Errorf("%q: %t, want %t", id, !want, want)
		}
	}
	after, err := Without(file, "allow/cursor/1", "allow/none/3")
	if err != nil || Has(after, "allow/cursor/1") || !Has(after, "allow/claude/2") {
		t.Fatalf("%v\n%s", err, after)
	}
	for _, stays := range []string{"# mine\n", "wait_operation # by hand", "listen: x"} {
		if !strings.Contains(string(after), stays) {
			t.Errorf("%q is gone:\n%s", stays, after)
		}
	}
	if same, err := Without(file, "allow/none/3"); err != nil || string(same) != string(file) {
		t.Errorf("nothing to take out: %v\n%s", err, same)
	}
}

// TestOtherEnds: a rule with another end is another rule; it is known by the ends that the text speaks of.
func TestOtherEnds(t *testing.T) {
	t.Parallel()
	tool, until := lookup(t, "stop_service"), time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	endless, _, err := policy.Allow("cursor", tool, nil, "", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	ending, rule, err := policy.Allow("cursor", tool, nil, "", until)
	if err != nil || ending == endless {
		t.Fatalf("%q and %q: %v", ending, endless, err)
	}
	for name, c := range map[string]struct {
		text string
		id   string
		want []string
	}{
		"the rule's own text":     {string(rule), endless, []string{ending}},
		"the executor's entry":    {Entry(tool, "cursor", nil, ending, until), endless, []string{ending}},
		"what it is itself":       {string(rule), ending, []string{endless}},
		"a text without any ends": {"unattended: []\n", endless, nil},
	} {
		if diff := cmp.Diff(c.want, OtherEnds([]byte(c.text), "cursor", tool, nil, c.id)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
