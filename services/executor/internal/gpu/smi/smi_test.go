package smi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/executor/internal/gpu"
)

const (
	one = "GPU-8f6f3a3a-0a5b-4b0e-9d5a-000000000001"
	two = "GPU-8f6f3a3a-0a5b-4b0e-9d5a-000000000002"
)

func ref(n uint32) *uint32 { return &n }

func TestDevices(t *testing.T) {
	for name, raw := range map[string]string{
		"words":              "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
		"too few columns":    "0, " + one + ", 1, 2, 3, 4, 5, 6, 7, 8",
		"no index":           "x, " + one + ", 1, 2, 3, 4, 5, 6, 7, 8, N",
		"a negative index":   "-1, " + one + ", 1, 2, 3, 4, 5, 6, 7, 8, N",
		"no UUID":            "0, MIG-1, 1, 2, 3, 4, 5, 6, 7, 8, N",
		"an escape sequence": "0, GPU-\x1b[31m, 1, 2, 3, 4, 5, 6, 7, 8, N",
		"one GPU twice":      "0, " + one + ", 1, 2, 3, 4, 5, 6, 7, 8, N\n1, " + one + ", 1, 2, 3, 4, 5, 6, 7, 8, N",
		"too many":           strings.Repeat("0, GPU-1, 1, 2, 3, 4, 5, 6, 7, 8, N\n", 65),
	} {
		if got, err := parseDevices([]byte(raw), true); !errors.Is(err, errOutput) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	raw := "0, " + one + ", 143771, 21, 142894, 856, 37, 41, 120.50, 0, NVIDIA H200, the, first\r\n" +
		"3, " + two + ", 24576, 0, 24576, [N/A], [N/A], [Not Supported], [N/A], [N/A], Two\n\n" +
		"1, GPU-3, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]"
	want := []gpu.Device{
		{
			Index: 0, UUID: one, Name: "NVIDIA H200, the, first", Total: 143771, Used: 21, Free: 142894, Reserved: 856,
			Utilisation: ref(37), Temperature: ref(41), Power: ref(120), ECC: ref(0),
		},
		{Index: 3, UUID: two, Name: "Two", Total: 24576, Free: 24576},
		{Index: 1, UUID: "GPU-3", Problem: gpu.ProblemLost},
	}
	got, err := parseDevices([]byte(raw), true)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	before, err := parseDevices([]byte("0, "+one+", 10, 2, 8, 37, 41, 120, 0, Old"), false)
	if err != nil || before[0].Free != 8 || before[0].Name != "Old" || *before[0].Temperature != 41 {
		t.Errorf("without what is reserved: %+v, %v", before, err)
	}
}

func TestPrograms(t *testing.T) {
	for name, raw := range map[string]string{
		"too few columns":  one + ", 1",
		"too many columns": one + ", 1, 2, 3",
		"no UUID":          "0, 1, 2",
		"pid 0":            one + ", 0, 2",
		"no pid":           one + ", -1, 2",
		"a huge pid":       one + ", 4194305, 2",
	} {
		if got, err := parsePrograms([]byte(raw)); !errors.Is(err, errOutput) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	got, err := parsePrograms([]byte(one + ", 17, 300\n" + two + ", 17, [N/A]\n" + one + ", 18, 1"))
	want := map[string][]gpu.Process{one: {{PID: 17, MiB: 300}, {PID: 18, MiB: 1}}, two: {{PID: 17}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := parsePrograms(nil); err != nil || len(got) != 0 {
		t.Errorf("nothing: %v, %v", got, err)
	}
}

// script writes a program that answers as nvidia-smi would.
func script(t *testing.T, body string) *Source {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := New(file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRead(t *testing.T) {
	t.Setenv("LD_PRELOAD", "/nonexistent")
	t.Setenv("SECRET", "must not be inherited")
	row := one + ", 10, 2, 8, 1, 37, 41, 120, 0, N"
	answers := `case "$1" in
--query-gpu=*reserved*) echo "0, ` + row + `";;
--query-compute-apps=gpu_uuid,pid,used_memory) echo "` + one + `, 17, 2";;
esac`
	good := script(t, `test "$2" = --format=csv,noheader,nounits && test $# = 2 && test -z "$SECRET$LD_PRELOAD" || exit 3
`+answers)
	got, err := good.Read(t.Context())
	if err != nil || len(got) != 1 || got[0].Reserved != 1 || len(got[0].Processes) != 1 || got[0].Processes[0].PID != 17 {
		t.Errorf("got %+v, %v", got, err)
	}
	old := script(t, `case "$1" in
*reserved*) echo 'Field "memory.reserved" is not a valid field to query.'; exit 2;;
--query-gpu=*) echo "0, `+one+`, 10, 2, 8, 37, 41, 120, 0, Old";;
esac`)
	if got, err := old.Read(t.Context()); err != nil || len(got) != 1 || got[0].Name != "Old" || got[0].Processes != nil {
		t.Errorf("an old program: %+v, %v", got, err)
	}
	for name, body := range map[string]string{
		"it fails":          "exit 9",
		"it fails in words": "echo NVIDIA-SMI has failed; exit 0",
		"it never ends":     "yes 0",
	} {
		if got, err := script(t, body).Read(t.Context()); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := script(t, "exec sleep 60").Read(ctx); err == nil {
		t.Error("a program that says nothing was waited for")
	}
}

func TestNew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"", "nvidia-smi", "/nonexistent/nvidia-smi", t.TempDir(), file} {
		if _, err := New(program); !errors.Is(err, ErrNoProgram) {
			t.Errorf("%q: %v", program, err)
		}
	}
}

// What the program writes never does harm: it parses, or it is refused, and no number is made up.
func FuzzDevices(f *testing.F) {
	f.Add([]byte("0, "+one+", 143771, 21, 142894, 856, 37, 41, 120.50, 0, NVIDIA H200"), true)
	f.Add([]byte("0, "+one+", 10, 2, 8, [N/A], 41, 120, 0, Old"), false)
	f.Add([]byte("0, GPU-3, [GPU is lost], [GPU is lost], , , , , , , "), true)
	f.Add([]byte("NVIDIA-SMI has failed"), true)
	f.Add([]byte("0, "+one+", NaN, inf, 1e9, -1, 0x10, 1_0, 99999999999, , \xff"), true)
	f.Fuzz(func(t *testing.T, raw []byte, reserved bool) {
		got, err := parseDevices(raw, reserved)
		if err != nil && got != nil {
			t.Error("an error, and GPUs all the same")
		}
		for _, d := range got {
			if !uuid(d.UUID) || d.Problem != "" && (d.Total != 0 || d.Free != 0) {
				t.Errorf("%+v", d)
			}
		}
	})
}

func FuzzPrograms(f *testing.F) {
	f.Add([]byte(one + ", 17, 300\n" + two + ", 17, [N/A]"))
	f.Add([]byte("[N/A], [N/A], [N/A]"))
	f.Add([]byte(one + ", 0, 0"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := parsePrograms(raw)
		if err != nil && got != nil {
			t.Error("an error, and programs all the same")
		}
		for id, programs := range got {
			for _, p := range programs {
				if !uuid(id) || p.PID <= 0 || p.PID > maxPID {
					t.Errorf("%s %+v", id, p)
				}
			}
		}
	})
}
