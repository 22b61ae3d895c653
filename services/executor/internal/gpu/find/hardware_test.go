//go:build real && hardware && nvml && cgo

package find

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"durward.internal/services/executor/internal/gpu"
)

// TestBothReaders holds the driver's library, nvidia-smi as it is read here and nvidia-smi's own words side by side, while a program
// takes memory of the card, more of it, and ends.
func TestBothReaders(t *testing.T) {
	library, program := source(t, gpu.SourceNVML), source(t, gpu.SourceSMI)
	for _, mib := range []int{0, 1000, 20000} {
		t.Run(strconv.Itoa(mib), func(t *testing.T) { sideBySide(t, library, program, mib) })
	}
}

// sideBySide is the host with a program that holds so much memory beside its context; 0: with none.
func sideBySide(t *testing.T, library, program gpu.Source, mib int) {
	pid := 0
	if mib > 0 {
		pid = grab(t, mib)
	}
	a, b := read(t, library), read(t, program)
	words := asked(t, "--query-gpu=uuid,name,memory.total,memory.used,memory.free,memory.reserved,ecc.errors.uncorrected.volatile.total,mig.mode.current")
	if len(a) != len(b) || len(a) != len(words) {
		t.Fatalf("%d and %d GPUs, nvidia-smi has %d", len(a), len(b), len(words))
	}
	for i := range a {
		t.Logf("with %d MiB: library %s, program %s, nvidia-smi %q", mib, line(a[i]), line(b[i]), words[i])
		for _, d := range []gpu.Device{a[i], b[i]} {
			if d.UUID != words[i][0] || d.Name != words[i][1] || d.Problem != "" || d.Index != uint32(i) {
				t.Errorf("a GPU is %+v, nvidia-smi has %q", d, words[i])
			}
			// The parts are rounded down one by one.
			if sum := d.Reserved + d.Used + d.Free; sum > d.Total+1 || d.Total > sum+3 {
				t.Errorf("reserved %d, used %d and free %d are not the total %d", d.Reserved, d.Used, d.Free, d.Total)
			}
			for j, size := range []uint32{d.Total, d.Used, d.Free, d.Reserved} {
				want, err := strconv.Atoi(words[i][2+j])
				if got := int(size); err != nil || max(got, want)-min(got, want) > 1 {
					t.Errorf("of total, used, free and reserved number %d is %d, nvidia-smi has %q", j, size, words[i])
				}
			}
			if (d.ECC == nil) != (words[i][6] == "[N/A]") || d.ECC != nil && strconv.Itoa(int(*d.ECC)) != words[i][6] {
				t.Errorf("uncorrected errors: %s, nvidia-smi has %q", line(d), words[i])
			}
			if d.Utilisation == nil || d.Temperature == nil || d.Power == nil {
				t.Errorf("sensors: %s", line(d))
			}
		}
		if x, y := a[i].Temperature, b[i].Temperature; x != nil && y != nil && max(*x, *y)-min(*x, *y) > 3 {
			t.Errorf("%d and %d degrees", *x, *y)
		}
	}
	if pid == 0 {
		return
	}
	for _, d := range []gpu.Device{a[0], b[0]} {
		// Beside what it asked for stands what CUDA and the driver take for a program.
		if len(d.Processes) != 1 || d.Processes[0].PID != pid || d.Processes[0].MiB < uint32(mib) || d.Processes[0].MiB > uint32(mib)+1024 ||
			d.Used < d.Processes[0].MiB {
			t.Errorf("the program %d with %d MiB is %+v of %d used", pid, mib, d.Processes, d.Used)
		}
	}
	if rows := asked(t, "--query-compute-apps=pid,used_memory"); len(rows) != 1 || rows[0][1] != strconv.Itoa(int(a[0].Processes[0].MiB)) {
		t.Errorf("nvidia-smi has %q, the library %+v", rows, a[0].Processes)
	}
}

func source(t testing.TB, kind string) gpu.Source {
	t.Helper()
	s, _, err := Source(kind, "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func read(t testing.TB, s gpu.Source) []gpu.Device {
	t.Helper()
	out, err := s.Read(t.Context())
	if err != nil || len(out) == 0 {
		t.Fatalf("%s: %+v, %v", s.Name(), out, err)
	}
	return out
}

// grab starts a program that holds so much memory of the first card until the test ends.
func grab(t *testing.T, mib int) (pid int) {
	t.Helper()
	programs := os.Getenv("DURWARD_GPU_PROGRAMS")
	if programs == "" {
		t.Fatal("DURWARD_GPU_PROGRAMS names no folder: run scripts/gpu.sh")
	}
	taker := exec.Command(filepath.Join(programs, "durward-engine"), "grab", "-cuda", "-mib", strconv.Itoa(mib))
	out, err := taker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := taker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taker.Process.Kill(); _ = taker.Wait() })
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatalf("it takes nothing: %v", err)
	}
	return taker.Process.Pid
}

func asked(t *testing.T, question string) [][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", question, "--format=csv,noheader,nounits").CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %s: %v\n%s", question, err, out)
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimSpace(line), ", "))
	}
	return rows
}

func line(d gpu.Device) string {
	var sensors []string
	for _, s := range []*uint32{d.Utilisation, d.Temperature, d.Power, d.ECC} {
		if s == nil {
			sensors = append(sensors, "-")
		} else {
			sensors = append(sensors, strconv.Itoa(int(*s)))
		}
	}
	return strings.Join(append([]string{"total " + strconv.Itoa(int(d.Total)), "used " + strconv.Itoa(int(d.Used)), "free " + strconv.Itoa(int(d.Free)),
		"reserved " + strconv.Itoa(int(d.Reserved))}, sensors...), " ")
}

func BenchmarkReadLibrary(b *testing.B) { bench(b, gpu.SourceNVML) }
func BenchmarkReadProgram(b *testing.B) { bench(b, gpu.SourceSMI) }

func bench(b *testing.B, kind string) {
	s := source(b, kind)
	for b.Loop() {
		if _, err := s.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
