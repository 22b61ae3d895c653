package containerpolicy

import "testing"

// TestGivenFilesAreMountedAsTheyWereGivenAlone: one of the executor's own files, at its place, and read-only.
func TestGivenFilesAreMountedAsTheyWereGivenAlone(t *testing.T) {
	t.Parallel()
	const source, target = "/dev/shm/durward-1/x/hf", "/run/credentials/hf"
	k := &check{Rules: &Rules{Given: map[string]string{target: source}, NamesOnly: true}}
	for name, m := range map[string]mount{
		"another file":  {Type: "bind", Source: "/dev/shm/durward-1/x/other", Target: target, ReadOnly: true},
		"its folder":    {Type: "bind", Source: "/dev/shm/durward-1/x", Target: target, ReadOnly: true},
		"another place": {Type: "bind", Source: source, Target: "/run/credentials/other", ReadOnly: true},
		"writable":      {Type: "bind", Source: source, Target: target},
		"nothing":       {Type: "bind", Target: "/run/credentials/none", ReadOnly: true},
	} {
		if k.mount(m) == "" {
			t.Errorf("%s is mounted", name)
		}
		if k.mountPoint(mountPoint{Type: m.Type, Source: m.Source, Destination: m.Target, RW: !m.ReadOnly}) == "" {
			t.Errorf("%s is taken as the daemon reports it", name)
		}
	}
	if wrong := k.mount(mount{Type: "bind", Source: source, Target: target, ReadOnly: true}); wrong != "" {
		t.Error(wrong)
	}
	if wrong := k.mountPoint(mountPoint{Type: "bind", Source: source, Destination: target}); wrong != "" {
		t.Error(wrong)
	}
}
