// Package containertest holds containers for the tests of what judges or reads them.
package containertest

import (
	_ "embed"
	"encoding/json"
	"maps"
	"testing"
)

// Cases are containers as a daemon describes them, with the verdict that each must get as one to be adopted.
type Cases struct {
	Rules struct {
		Mounts, Environment, GPUs []string
		Port                      uint32
		HostPort                  uint32 `json:"host_port"`
	}
	Image struct {
		RepoDigests []string
		Config      struct{ Env, Cmd, Entrypoint []string }
	}
	Base  any
	Cases []struct {
		Name  string
		Good  bool
		Patch any
	}
}

//go:embed adopt.json
var adopt []byte

// Adopt reads them.
func Adopt(t testing.TB) Cases {
	t.Helper()
	var out Cases
	if err := json.Unmarshal(adopt, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Merge is RFC 7396's merge of a patch into a value.
func Merge(value, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out := map[string]any{}
	if old, ok := value.(map[string]any); ok {
		maps.Copy(out, old)
	}
	for key, change := range changes {
		if change == nil {
			delete(out, key)
		} else {
			out[key] = Merge(out[key], change)
		}
	}
	return out
}
