package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestJSONShowsNothingThatATerminalObeys writes characters that a terminal obeys or does not show.
func TestJSONShowsNothingThatATerminalObeys(t *testing.T) {
	const text = "a\u009b31m\u202eb\u200bc\u2066d\ue000e\U000e0041f\x7fg\x1bh é 漢 \u00a0"
	for name, stream := range map[string]bool{"Line": true, "Value": false} {
		var out bytes.Buffer
		if err := New(&out, &out, func(string) string { return "" }).Write(JSON, map[string]string{"text": text}, stream); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(strings.TrimRight(strings.ReplaceAll(out.String(), "\n  ", ""), "\n}"), func(r rune) bool { return r < ' ' && r != '\n' || unseen(r) }); i >= 0 {
			t.Errorf("%s: writes %q", name, out.String()[i:])
		}
		if !strings.Contains(out.String(), "é 漢") {
			t.Errorf("%s: what is seen is escaped: %s", name, out.String())
		}
		var back map[string]string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["text"] != text {
			t.Errorf("%s: %q, %v", name, back["text"], err)
		}
	}
}
