package trusted_test

import (
	"strings"
	"testing"

	"durward.internal/services/platform/security/trusted"
)

// FuzzProjects: whatever projects.yaml holds, it loads nothing but copies of the digests that it names.
func FuzzProjects(f *testing.F) {
	f.Add([]byte("projects: [{path: /p, sha256: " + strings.Repeat("a", 64) + "}]"))
	f.Add([]byte("projects:\n- path: /p\n  sha256: ../../x\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := trusted.Parse(trusted.File, raw)
		if err != nil {
			return
		}
		for _, p := range list {
			if len(p.Copy()) != len("projects/")+64+len(".yaml") || strings.Contains(p.Copy(), "..") {
				t.Fatalf("%+v", p)
			}
		}
	})
}
