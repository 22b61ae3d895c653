package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

func written(t *testing.T, f Format, value any, stream bool) string {
	t.Helper()
	var out bytes.Buffer
	if err := New(&out, &out, func(string) string { return "" }).Write(f, value, stream); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestNumbersAreNumbersAndEnumsAreWords: what protojson writes as strings and names.
func TestNumbersAreNumbersAndEnumsAreWords(t *testing.T) {
	entry := &auditv1.Entry{Index: 1 << 53, Record: &auditv1.Record{Kind: auditv1.Kind_KIND_OUTCOME, Status: auditv1.Status_STATUS_OK, Sequence: 7}}
	text := written(t, JSON, entry, false)
	for _, want := range []string{`"index": 9007199254740992`, `"sequence": 7`, `"kind": "outcome"`, `"status": "ok"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	list := &executorv1.ListServicesResponse{Services: []*executorv1.ServiceSummary{{ServiceId: "chat", State: executorv1.ServiceState_SERVICE_STATE_RUNNING}}}
	if text := written(t, JSON, list, true); text != `{"services":[{"service_id":"chat","name":"","state":"running","model":"","vram_mib":0}],"disabled":[]}`+"\n" {
		t.Errorf("%s", text)
	}
}

// TestYAMLSaysWhatJSONSays, of every kind of value and of texts that YAML could read as something else.
func TestYAMLSaysWhatJSONSays(t *testing.T) {
	value := map[string]any{
		"strings": []string{"", "no", "null", "~", "1e3", "0x1f", "- a", "a: b", "#", " x ", "two\nlines", "é 漢", "a\u009b31m\u202eb\U000e0041", "\x1b[2J", "2026-01-02", "&a", "*b", "!c", "{", "'", "\""},
		"number":  json.Number("9007199254740993"), "float": 1.5, "true": true, "none": nil, "empty": map[string]any{}, "list": []int{},
	}
	text := written(t, YAML, value, false)
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' || unseen(r) }); i >= 0 {
		t.Errorf("it writes %q", text[i:])
	}
	var fromYAML any
	if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got := fromYAML.(map[string]any)
	for i, want := range value["strings"].([]string) {
		if got["strings"].([]any)[i] != want {
			t.Errorf("%q came back as %#v", want, got["strings"].([]any)[i])
		}
	}
	if got["number"] != 9007199254740993 || got["float"] != 1.5 || got["true"] != true || got["none"] != nil {
		t.Errorf("%#v", got)
	}
	if text := written(t, YAML, map[string]string{"a": "b"}, true); text != "---\na: b\n" {
		t.Errorf("of a stream: %q", text)
	}
}

func TestQuietWritesIDsAlone(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{map[string]any{"services": []any{map[string]any{"name": "Chat", "service_id": "chat"}, map[string]any{"service_id": "coder"}}}, "chat\ncoder\n"},
		{map[string]any{"operation_id": "aa", "result": map[string]any{"service_id": "chat"}}, "aa\n"},
		{map[string]any{"plan_digest": "", "mode_id": "coding"}, "coding\n"},
		{map[string]any{"operations": []any{}}, ""},
		{map[string]any{"session": "s\x1b[2J"}, "s\\u{1B}[2J\n"},
		{map[string]any{"entries": []any{map[string]any{"index": 4711, "leaf_hash": "ab", "record": map[string]any{"request_id": "r-a"}}}}, "4711\n"},
		{map[string]any{"connections": []any{map[string]any{"index": 9, "rule": "docs.example"}}}, "9\n"},
		{map[string]any{"gpus": []any{map[string]any{"index": 1, "name": "Example GPU"}}}, "1\n"},
		{map[string]any{"operators": []any{map[string]any{"operator": "alice", "type": "ssh-ed25519"}}}, "alice\n"},
		{map[string]any{"domains": []any{map[string]any{"domain": "example.com", "user": "bob"}}}, "example.com\n"},
		{map[string]any{"rules": []any{map[string]any{"rule": "R&D's \"own\"", "layer": "user"}}}, "R&D's \"own\"\n"},
	} {
		if got := written(t, Quiet, c.value, false); got != c.want {
			t.Errorf("%v: %q, want %q", c.value, got, c.want)
		}
	}
}

// TestTablesFitTheTerminalWithoutBreakingWords: at 80 columns and at others.
func TestTablesFitTheTerminalWithoutBreakingWords(t *testing.T) {
	header := []string{"CLIENT", "#", "SESSION", "CHANNEL", "REACHES", "OPEN FOR", "NOTES"}
	rows := [][]string{
		{"claude-code/intern", "1", "s-aaaabbbbccccddddeeeeffffgg", "cli", "key-bound: one durward mcp", "1:02:03", "calls itself \"Claude Code\""},
		{"cursor", "2", "s-hhhhiiiijjjjkkkkllllmmmmnn", "\x1b[31mmessaging\x1b[0m", "bearer client: this one call", "0:09", ""},
	}
	plain := func(s string) string { return s }
	for width := 40; width <= 160; width++ {
		lines := table(header, rows, width, plain)
		text := strings.Join(lines, "\n")
		for _, line := range lines {
			if ansi.StringWidth(line) > width {
				t.Fatalf("%d columns at %d: %q", ansi.StringWidth(line), width, line)
			}
		}
		for _, row := range rows {
			for _, cell := range row {
				for _, word := range strings.Fields(cell) {
					if !strings.Contains(text, word) {
						t.Fatalf("at %d %q is broken:\n%s", width, word, text)
					}
				}
			}
		}
	}
	want := []string{
		"SERVICE  STATE    MODEL",
		"chat     running  a model of",
		"                  many words",
		"coder    stopped",
	}
	if diff := cmp.Diff(want, table([]string{"SERVICE", "STATE", "MODEL"}, [][]string{{"chat", "running", "a model of many words"}, {"coder", "stopped", ""}}, 30, plain)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	cards := table([]string{"ID", "URL"}, [][]string{{"chat", "http://127.0.0.1:7450/v1"}, {"coder", "-"}}, 20, plain)
	if diff := cmp.Diff([]string{"ID   chat", "URL  http://127.0.0.1:7450/v1", "", "ID   coder", "URL  -"}, cards); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if whole := table(header, rows, 0, plain); len(whole) != 3 || !strings.Contains(whole[1], "key-bound: one durward mcp") {
		t.Errorf("without a terminal: %s", fmt.Sprint(whole))
	}
}
