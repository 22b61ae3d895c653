package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/platformtest/testfile"
)

func TestHierarchies(t *testing.T) {
	const (
		one = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
			"39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
			"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		two = "41 31 0:38 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	)
	first := []hierarchy{
		{dir: "/sys/fs/cgroup/memory/b", shown: "/b", controls: []string{memory}},
		{dir: "/sys/fs/cgroup/pids", shown: "/", controls: []string{pids}},
		{dir: "/sys/fs/cgroup/cpu,cpuacct/a:b", shown: "/a:b", controls: []string{cpu}},
	}
	for name, tc := range map[string]struct {
		mounts, self string
		want         []hierarchy
	}{
		"nothing":                       {"", "", nil},
		"nonsense":                      {"a b - c\nd - e f\n\n - \n", "x\n:\n::\n", nil},
		"no mount":                      {"", "0::/x\n", nil},
		"outside of what is mounted":    {"41 31 0:38 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/docker/2\n", nil},
		"a name that begins so":         {"41 31 0:38 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/docker/12\n", nil},
		"above the own namespace":       {two, "0::/../x\n", nil},
		"an escaped mount":              {"41 31 0:38 / /sys/fs/c\\040group rw - cgroup2 cgroup2 rw\n", "0::/x\n", nil},
		"version 2":                     {two, "0::/a/b.service\n", []hierarchy{{unified: true, dir: "/sys/fs/cgroup/a/b.service", shown: "/a/b.service"}}},
		"version 2, a part":             {"41 31 0:38 /d/1 /c rw - cgroup2 cgroup2 rw\n", "0::/d/1/x\n", []hierarchy{{unified: true, dir: "/c/x", shown: "/d/1/x"}}},
		"version 2, the part":           {"41 31 0:38 /d/1 /c rw - cgroup2 cgroup2 rw\n", "0::/d/1\n", []hierarchy{{unified: true, dir: "/c", shown: "/d/1"}}},
		"version 1":                     {one, "5:cpu,cpuacct:/a:b\n4:memory:/b\n3:pids:/\n1:name=systemd:/c\n", first},
		"both, and version 1 is in use": {one + two, "5:cpu,cpuacct:/a:b\n4:memory:/b\n3:pids:/\n0::/\n", first},
		"both, and version 2 is in use": {
			"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n" + two, "1:name=systemd:/c\n0::/v\n",
			[]hierarchy{{unified: true, dir: "/sys/fs/cgroup/v", shown: "/v"}},
		},
	} {
		got := hierarchies(tc.mounts, tc.self)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(hierarchy{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// files makes files as the kernel would.
func files(t *testing.T, dir string, names ...string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	for _, name := range names {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
}

func content(t *testing.T, dir, name string) string {
	t.Helper()
	raw := testfile.Read(t, filepath.Join(dir, name))
	return string(raw)
}

func TestLimits(t *testing.T) {
	limits := Limits{MemoryMiB: 64, CPUPercent: 250, PIDs: 9}
	for name, tc := range map[string]struct {
		unified bool
		want    map[string]string
	}{
		"version 2": {true, map[string]string{
			"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "9", "cpu.max": "250000 100000",
		}},
		"version 1": {false, map[string]string{
			"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864", "pids.max": "9",
			"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "250000",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			own := t.TempDir()
			files(t, own, "cgroup.subtree_control")
			testfile.Write(t, filepath.Join(own, "cgroup.controllers"), "cpuset cpu io memory hugetlb pids")
			files(t, filepath.Join(own, "mine"), "cgroup.subtree_control")
			tree, err := Config{}.openIn([]hierarchy{
				{unified: tc.unified, dir: own, shown: "/x", controls: map[bool][]string{false: controllers}[tc.unified]},
			}, "mine")
			must(t, err)
			g := tree.Group("tasks")
			if g.Path() != "/x/mine/service-tasks" || g.There() {
				t.Errorf("the group is %s, there: %v", g.Path(), g.There())
			}
			var names []string
			for file := range tc.want {
				names = append(names, file)
			}
			dir := filepath.Join(own, "mine", "service-tasks")
			files(t, dir, names...)
			missing, err := g.Make(limits)
			if err != nil || missing != nil || !g.There() {
				t.Errorf("missing %q, %v", missing, err)
			}
			for file, want := range tc.want {
				if got := content(t, dir, file); got != want {
					t.Errorf("%s is %q, want %q", file, got, want)
				}
			}
			// Without limits nothing is written; what the host has no file for is told.
			files(t, dir, names...)
			if missing, err := g.Make(Limits{}); err != nil || missing != nil || content(t, dir, "pids.max") != "" {
				t.Errorf("without limits: %q, %v", missing, err)
			}
			must(t, os.RemoveAll(dir))
			if missing, err := g.Make(limits); err != nil || cmp.Diff(controllers, missing) != "" {
				t.Errorf("a host that enforces nothing: %q, %v", missing, err)
			}
		})
	}
}

func TestOutOfMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		unified bool
		file    string
		text    string
		want    bool
	}{
		"none":               {true, "memory.events", "low 0\nmax 12\noom 3\noom_kill 0\noom_group_kill 0\n", false},
		"version 2":          {true, "memory.events", "oom 3\noom_kill 1\n", true},
		"version 1":          {false, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", true},
		"version 1, none":    {false, "memory.oom_control", "oom_kill_disable 1\nunder_oom 1\noom_kill 0\n", false},
		"an old kernel":      {false, "memory.oom_control", "oom_kill_disable 1\nunder_oom 1\n", false},
		"the other's answer": {true, "memory.oom_control", "oom_kill 2\n", false},
	} {
		dir := t.TempDir()
		files(t, dir)
		testfile.Write(t, filepath.Join(dir, tc.file), tc.text)
		if got := (&Group{unified: tc.unified, parts: []part{{dir: dir}}}).OutOfMemory(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNoPlace(t *testing.T) {
	for name, found := range map[string][]hierarchy{
		"none":             nil,
		"not there":        {{dir: "/nonexistent", controls: []string{memory}}},
		"no version 2":     {{unified: true, dir: t.TempDir()}},
		"a file, no group": {{dir: "/proc/self/status", controls: []string{memory}}},
	} {
		if _, err := (Config{}).openIn(found, "mine"); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
