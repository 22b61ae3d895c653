package find

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/gpu/nvml"
	"durward.internal/services/executor/internal/gpu/smi"
)

func TestSource(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nonexistent")
	const nowhere = "/nonexistent/libnvidia-ml.so.1"
	for name, tc := range map[string]struct {
		kind, library, program string
		want                   error
	}{
		"another kind":       {"rocm", "", "", ErrKind},
		"a missing program":  {gpu.SourceSMI, "", "/nonexistent/nvidia-smi", smi.ErrNoProgram},
		"a missing library":  {gpu.SourceNVML, nowhere, "", missing},
		"no program to find": {gpu.SourceSMI, "", "", exec.ErrNotFound},
		"a relative program": {gpu.SourceSMI, "", "nvidia-smi", smi.ErrNoProgram},
		"in vain, auto":      {Auto, "", "/nonexistent/nvidia-smi", smi.ErrNoProgram},
	} {
		if s, _, err := Source(tc.kind, tc.library, tc.program); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	for _, tc := range []struct{ kind, library, program, want string }{
		{None, "", "", ""},
		{Auto, "", "", ""},
		{"", "", program, gpu.SourceSMI},
		{Auto, "", program, gpu.SourceSMI},
		{gpu.SourceSMI, "", program, gpu.SourceSMI},
	} {
		s, note, err := Source(tc.kind, tc.library, tc.program)
		got := ""
		if s != nil {
			got = s.Name()
		}
		if err != nil || got != tc.want || (note != "") != (tc.want != "" && tc.kind != gpu.SourceSMI) {
			t.Errorf("%+v: %q, %q, %v", tc, got, note, err)
		}
	}
	t.Setenv("PATH", filepath.Dir(program))
	if s, note, err := Source(Auto, "", ""); err != nil || s == nil || note == "" {
		t.Errorf("the program in PATH: %v, %q, %v", s, note, err)
	}
}

// missing is why there is no NVML here: builds differ.
var missing = func() error {
	if _, err := nvml.New("/nonexistent/libnvidia-ml.so.1"); errors.Is(err, nvml.ErrNotBuilt) {
		return nvml.ErrNotBuilt
	}
	return nvml.ErrNoLibrary
}()
