package tryout

import (
	"testing"

	"durward.internal/services/platform/contract"
)

// TestExplainListsAndMaps: arguments that are lists and maps, as words and as JSON.
func TestExplainListsAndMaps(t *testing.T) {
	tool, ok := contract.Lookup("simulate_mode")
	if !ok {
		t.Fatal("there is no tool simulate_mode")
	}
	const whole = `{"alternatives":3,"context_overrides":{"a":8192,"b":4096},"start":["a","b"]}`
	for _, words := range [][]string{
		{"start=a,b", "context_overrides=a=8192,b=4096", "alternatives=3"}, {`start=["a","b"]`, `context_overrides={"b":4096,"a":8192}`, "alternatives=3"}, {whole},
	} {
		if got, err := Arguments(tool, words); err != nil || string(got) != whole {
			t.Errorf("%v: %s, %v", words, got, err)
		}
	}
	for _, words := range [][]string{{"start=a,a"}, {"start="}, {"start=-x"}, {"context_overrides=a"}, {"context_overrides=a=x"}, {"context_overrides=a=0"}, {"context_overrides=a=1,a=2"}, {"start={}"}} {
		if got, err := Arguments(tool, words); err == nil {
			t.Errorf("%v: %s", words, got)
		}
	}
}
