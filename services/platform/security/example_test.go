package security_test

import (
	"os"
	"testing"

	"durward.internal/services/platform/security"

	"durward.internal/services/platform/platformtest/input"
)

// The documented examples load, and say of each setting what is built in.
func TestShippedConfiguration(t *testing.T) {
	input.Outside(t)
	files := map[string]string{}
	for _, name := range []string{"security.yaml", "tools.yaml"} {
		raw, err := os.ReadFile("../../../deploy/config/" + name)
		must(t, err)
		files[name] = string(raw)
	}
	state, err := security.Try(security.Options{Dir: tree(t, files)}, nil)
	must(t, err)
	for _, s := range state.Settings("", "") {
		known, _ := security.Find(s.Name)
		if s.Value != known.Default {
			t.Errorf("%s is %s in the example, and %s is built in", s.Name, s.Value, known.Default)
		}
		if s.Layer != security.LayerSystem || s.Line == 0 {
			t.Errorf("the example does not document %s", s.Name)
		}
	}
	if len(state.Policies.Rules()) == 0 {
		t.Error("no rules")
	}
}
