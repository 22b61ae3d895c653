//go:build real

package process

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalogue"
)

// Outside development, as root, with control groups: another user, limits that hold, and nobody left behind.
func TestProduction(t *testing.T) {
	d, err := New(Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.groups == nil {
		t.Fatal("no control group can be made here")
	}
	s := &catalogue.Service{
		ID: "demo", Driver: catalogue.DriverProcess, RunAs: "nobody", StopTimeoutS: 1, LogMaxBytes: 64 << 10, WorkingDir: "/",
		Argv:   []string{"/bin/sh", "-c", "echo $USER; setsid sh -c 'trap \"\" TERM; sleep 600; sleep 600' & sleep 600"},
		Limits: catalogue.Limits{MemoryMiB: 32, PIDs: 20, CPUPercent: 100},
	}
	who := started(t, d, s)
	sight := d.Look(s)
	group := d.groups.Group("demo")
	if sight.State != driver.Running || sight.CGroup == "" || sight.CGroup != group.Path() || !group.There() {
		t.Errorf("it is seen as %+v", sight)
	}
	eventually(t, "it says who it is", func() bool {
		p, err := d.Logs(t.Context(), s, "", 1)
		return err == nil && len(p.Lines) == 1 && p.Lines[0] == "nobody"
	})
	eventually(t, "one of it is out of reach", func() bool { return strays(t, who.pid) != "" })
	// A service is found again by another executor with the same folder.
	if r, err := readRecord(d.recordFile("demo")); err != nil || r.CGroup != sight.CGroup {
		t.Errorf("the record is %+v, %v", r, err)
	}
	if changed, err := d.Stop(t.Context(), s); !changed || err != nil {
		t.Fatalf("stop: %v, %v", changed, err)
	}
	if left := strays(t, who.pid); left != "" || group.There() {
		t.Errorf("left behind: %q, the group: %v", left, group.There())
	}

	s.Argv = []string{"/bin/sh", "-c", "head -c 200000000 /dev/zero | tail -c 200000000 > /dev/null; exit 3"}
	started(t, d, s)
	eventually(t, "it ends", func() bool { return d.Look(s).State == driver.Ended })
	if got := d.Look(s).Cause; got != driver.CauseOutOfMemory {
		t.Errorf("its cause is %q", got)
	}
	if _, err := d.Stop(t.Context(), s); err != nil || group.There() {
		t.Errorf("the group is still there: %v", err)
	}
}

// strays are programs in the group that are not in the session of the first one.
func strays(t *testing.T, session int) string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		raw, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err != nil || !strings.Contains(string(raw), "/service-demo\n") {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		if st, err := parseStat(text); err == nil && st.session != session && st.runs() {
			out = append(out, e.Name())
		}
	}
	return strings.Join(out, " ")
}
