package outside

import (
	"slices"
	"strings"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

const value = "maria.gonzalez@example.org"

// looked puts a stand-in in the place of each value that one text holds whole, as the vault does.
func looked(texts []string) []string {
	out := slices.Clone(texts)
	for i, s := range texts {
		out[i] = strings.ReplaceAll(s, value, "<>")
	}
	return out
}

// through passes a text through the requests that it takes, and checks their bounds.
func through(t *testing.T, text string) string {
	t.Helper()
	m := &auditv1.Body{Summary: text, Reason: "beside it"}
	found := Find(m.ProtoReflect())
	for batch := found.Take(nil); len(batch) > 0; batch = found.Take(nil) {
		var ask []string
		size := 0
		for _, one := range batch {
			if ask, size = append(ask, one.Text), size+len(one.Text); len(one.Text) > MaxText {
				t.Errorf("a text of %d bytes is asked about", len(one.Text))
			}
		}
		if len(batch) > MaxTexts || size > MaxBatch {
			t.Errorf("%d texts, %d bytes in one request", len(batch), size)
		}
		for i, answer := range looked(ask) {
			batch[i].Set(answer)
		}
	}
	return m.GetSummary()
}

// A text leaves whole, and no value in it in parts; where it is too long to leave, nothing of a value that its end is in.
func TestLongTexts(t *testing.T) {
	for _, at := range []int{0, 1000, MaxText/4 - 20, MaxText / 2, MaxText - len(value) - 1000} {
		text := strings.Repeat("x", at) + value + strings.Repeat("y", MaxText-at-len(value))
		got := through(t, text)
		for n := 8; n <= len(value); n++ {
			if strings.Contains(got, value[:n]) || strings.Contains(got, value[len(value)-n:]) {
				t.Fatalf("at %d: %d bytes of the value leave", at, n)
			}
		}
		if !strings.HasPrefix(got, strings.Repeat("x", at)) || !strings.HasSuffix(got, strings.Repeat("y", 1000)) || len(got) < MaxText-len(value) {
			t.Errorf("at %d: %d bytes left", at, len(got))
		}
	}
	for over := 1; over < len(value); over++ {
		got := through(t, strings.Repeat("é", (MaxText-over)/2)+strings.Repeat("x", (MaxText-over)%2)+value+"rest")
		if strings.Contains(got, "maria") || !strings.HasSuffix(got, "…") || len(got) < MaxText-2*maxValue {
			t.Fatalf("cut %d bytes into a value: %d bytes left, %q", over, len(got), got[len(got)-40:])
		}
	}
	lines := strings.Repeat("a line of a log that is not long\n", MaxText/33)
	if got := through(t, lines); got != lines {
		t.Errorf("lines leave as %d bytes of %d", len(got), len(lines))
	}
}

func TestLongTextsAreWithheldWhole(t *testing.T) {
	m := &auditv1.Body{Summary: strings.Repeat("x", MaxText), Reason: "short"}
	Find(m.ProtoReflect()).Withhold("(withheld)")
	if m.GetSummary() != "(withheld)" || m.GetReason() != "(withheld)" {
		t.Errorf("%.40q, %q", m.GetSummary(), m.GetReason())
	}
}

// Characters that nobody sees part no value: they are gone before the text is looked through, in values and in keys.
func TestTextsAreCleanedFirst(t *testing.T) {
	for _, text := range []string{
		"maria.gon\u200bzalez@example.org", "maria.gonzalez\u00ad@example.org", "\x1b[31mmaria\x1b[0m.gonzalez@example.org", "\u202emaria.gonzalez@exam\ufeffple.org", "[bold]maria[/bold].gonzalez@example.org",
	} {
		if got := through(t, text); got != "<>" {
			t.Errorf("%q leaves as %q", text, got)
		}
	}
	if got := through(t, "4111\u00a01111"); got != "4111 1111" {
		t.Errorf("an odd space leaves as %q", got)
	}
	if got := through(t, "\u200b"); got != "" {
		t.Errorf("what shows nothing leaves as %q", got)
	}
	m := &auditv1.Body{Details: map[string]string{"a\u200bb": "1"}}
	found := Find(m.ProtoReflect())
	for _, one := range found.Take(nil) {
		one.Set(one.Text)
	}
	if err := found.Complete(); err != nil || m.GetDetails()["ab"] != "1" {
		t.Errorf("%v, %v", m.GetDetails(), err)
	}
}
