//go:build real

package smi

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"durward.internal/services/executor/internal/gpu"
)

// TestStandIn reads the folder that a stand-in for nvidia-smi reads, while it changes.
func TestStandIn(t *testing.T) {
	program := os.Getenv("DURWARD_FAKE_SMI")
	if program == "" {
		t.Fatal("DURWARD_FAKE_SMI names no program: run scripts/real-gpu.sh")
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("gpus", one+" Stand-in_One 24576 300\n"+two+" Two 16384 0\n")
	write("alloc/me", strconv.Itoa(os.Getpid())+" 0 1000\n")
	// The program gets no environment of ours: a script around it says where the folder is.
	s := script(t, "DURWARD_FAKE_GPU="+dir+" exec "+program+` "$@"`)
	got, err := s.Read(t.Context())
	if err != nil || len(got) != 2 || got[0].Name != "Stand-in One" || got[0].Used != 1000 || got[0].Free != 23276 || got[0].Reserved != 300 ||
		*got[0].Power != 120 || len(got[0].Processes) != 1 || got[0].Processes[0] != (gpu.Process{PID: os.Getpid(), MiB: 1000}) {
		t.Errorf("got %+v, %v", got, err)
	}
	write("lost-1", "")
	if got, err := s.Read(t.Context()); err != nil || got[1].Problem != gpu.ProblemLost || got[0].Problem != "" {
		t.Errorf("one lost: %+v, %v", got, err)
	}
	write("gone", "")
	if got, err := s.Read(t.Context()); err == nil {
		t.Errorf("without a driver: %+v", got)
	}
}
