package policy

import (
	"encoding/json"
	"maps"
	"os"
	"testing"

	"github.com/moby/moby/api/types/container"

	"durward.internal/services/platform/platformtest/input"
)

// The operator's program says before an import what this package will say of a container, by rules of its own, since it may not link
// Docker's structures. Both are held against the same containers here and in services/operator/internal/importer/discover.
func TestFoundAgrees(t *testing.T) {
	input.Outside(t)
	raw, err := os.ReadFile("../../../../../operator/internal/importer/discover/testdata/adopt.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Rules struct {
			Mounts, Environment, GPUs []string
			Port                      uint32
			HostPort                  uint32 `json:"host_port"`
		}
		Image struct{ Config struct{ Env []string } }
		Base  any
		Cases []struct {
			Name  string
			Good  bool
			Patch any
		}
	}
	if err := json.Unmarshal(raw, &all); err != nil || len(all.Cases) == 0 {
		t.Fatalf("%d cases, %v", len(all.Cases), err)
	}
	rules := &Rules{
		Mounts: all.Rules.Mounts, Environment: all.Rules.Environment, ImageEnvironment: all.Image.Config.Env, GPUs: all.Rules.GPUs,
		Port: all.Rules.Port, HostPort: all.Rules.HostPort,
	}
	for _, tc := range all.Cases {
		text, err := json.Marshal(mergePatch(all.Base, tc.Patch))
		if err != nil {
			t.Fatal(err)
		}
		var seen container.InspectResponse
		if err := json.Unmarshal(text, &seen); err != nil {
			t.Errorf("%s: %v", tc.Name, err)
			continue
		}
		if err := rules.Check(Inspected(seen, text)); (err == nil) != tc.Good {
			t.Errorf("%s: good %v, found %v", tc.Name, tc.Good, err)
		}
	}
}

// mergePatch is RFC 7396's.
func mergePatch(value, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out := map[string]any{}
	if old, ok := value.(map[string]any); ok {
		out = maps.Clone(old)
	}
	for key, change := range changes {
		if change == nil {
			delete(out, key)
		} else {
			out[key] = mergePatch(out[key], change)
		}
	}
	return out
}
