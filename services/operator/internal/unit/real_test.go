//go:build real

package unit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/catalog"
)

// These tests run inside scripts/systemd-sandbox.sh and nowhere else.

// TestMain is also the program that rendered units run: it shows how it was started.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "show" {
		for i, a := range os.Args {
			fmt.Printf("arg %d %q\n", i, a)
		}
		fmt.Printf("env %q\n", os.Getenv("V"))
		dir, _ := os.Getwd()
		fmt.Printf("dir %q\nuid %d\n", dir, os.Getuid())
		_, write := os.Create("/usr/bin/durward-was-here")
		_, state := os.Create(filepath.Join(os.Getenv("HOME"), "x"))
		status, _ := os.ReadFile("/proc/self/status")
		for line := range strings.SplitSeq(string(status), "\n") {
			if strings.HasPrefix(line, "CapBnd:") || strings.HasPrefix(line, "NoNewPrivs:") || strings.HasPrefix(line, "Seccomp:") {
				fmt.Println(line)
			}
		}
		fmt.Printf("writes /usr: %v\nwrites its own: %v\nshown\n", write == nil, state == nil)
		time.Sleep(time.Hour) // a program that a signal ends
	}
	if os.Getenv("SANDBOX") != "1" {
		fmt.Fprintln(os.Stderr, "run scripts/real-systemd.sh")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func do(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// A rendered unit is one that systemd accepts without a word and runs exactly as the entry says, as its own user, with nothing
// to write to but its own folders.
func TestRealRenderedUnitRuns(t *testing.T) {
	do(t, "useradd", "--system", "models")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// In /usr/local, since the sandbox's /tmp is not the unit's; with a name that needs care.
	program := "/usr/local/bin/run 100% of $HOME"
	do(t, "cp", self, program)
	hostile := []string{
		"two words", `"quoted"`, `back\slash\`, "100% %n %%", "$HOME ${HOME} $$", "new\nline", "\ttab\x01", ";", `\;`, "#x", "'", "éü", "", "-x", "\\x41",
	}
	s := &catalog.Service{
		ID: "coder", Driver: catalog.DriverProcess, RunAs: "models", Argv: append([]string{program, "show"}, hostile...),
		Environment: map[string]string{"V": "100% $HOME \"q\" \\ \n\tend"},
		WorkingDir:  "/srv/work 100% $HOME", GPUs: []uint32{0}, StartTimeoutS: 30, StopTimeoutS: 5,
		Limits: catalog.Limits{MemoryMiB: 256, CPUPercent: 50, PIDs: 64},
	}
	do(t, "mkdir", "-p", s.WorkingDir)
	text, err := Render(s)
	if err != nil {
		t.Fatal(err)
	}
	name := Name(s.ID)
	file := "/etc/systemd/system/" + name
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if out := do(t, "systemd-analyze", "verify", "--man=no", file); strings.Contains(out, name) {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	do(t, "systemctl", "daemon-reload")
	do(t, "systemctl", "start", name)
	log := ""
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(log, "\nshown") && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) { // no event: another process writes it
		log = do(t, "journalctl", "--no-pager", "--output=cat", "--unit="+name)
	}
	var want []string
	for i, a := range s.Argv {
		want = append(want, fmt.Sprintf("arg %d %q", i, a))
	}
	want = append(want, fmt.Sprintf("env %q", s.Environment["V"]), fmt.Sprintf("dir %q", s.WorkingDir),
		"uid "+strings.TrimSpace(do(t, "id", "-u", "models")), "NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000",
		"writes /usr: false", "writes its own: true", "shown")
	got := map[string]bool{}
	for line := range strings.SplitSeq(log, "\n") {
		got[line] = true
	}
	for _, line := range want {
		if !got[line] {
			t.Errorf("the program did not see %s", line)
		}
	}
	if t.Failed() {
		t.Logf("it said:\n%s\nthe unit:\n%s", log, text)
	}
	show := do(t, "systemctl", "show", name, "--property=Restart,MemoryMax,TasksMax,IPAddressDeny,IPAddressAllow,DevicePolicy,DeviceAllow,CPUQuotaPerSecUSec")
	if diff := cmp.Diff([]string{
		"CPUQuotaPerSecUSec=500ms", "DevicePolicy=closed", "DeviceAllow=char-nvidia* rw", "IPAddressAllow=127.0.0.0/8 ::1/128",
		"IPAddressDeny=0.0.0.0/0 ::/0", "MemoryMax=268435456", "Restart=no", "TasksMax=64",
	}, sorted(show)); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
	do(t, "systemctl", "stop", name)
}

func sorted(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	order := []string{"CPUQuotaPerSecUSec=", "DevicePolicy=", "DeviceAllow=", "IPAddressAllow=", "IPAddressDeny=", "MemoryMax=", "Restart=", "TasksMax="}
	var out []string
	for _, key := range order {
		for _, line := range lines {
			if strings.HasPrefix(line, key) && line != "DeviceAllow=char-rtc r" { // ProtectClock's
				_, value, _ := strings.Cut(line, "=")
				values := strings.Split(value, " ")
				if strings.HasPrefix(key, "IPAddress") {
					slices.Sort(values) // systemd keeps a set
				}
				out = append(out, key+strings.Join(values, " "))
			}
		}
	}
	return out
}

// How exposed a rendered unit is, by systemd's own reckoning.
func TestRealRenderedUnitIsHardened(t *testing.T) {
	s := &catalog.Service{ID: "coder", Driver: catalog.DriverProcess, RunAs: "nobody", Argv: []string{"/bin/true"}}
	text, err := Render(s)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), Name(s.ID))
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	out := do(t, "systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", file)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	t.Log(lines[len(lines)-1])
}
