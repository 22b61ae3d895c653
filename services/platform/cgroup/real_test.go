//go:build real

package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The first thread is left to the main goroutine, so that no test is on it, and no thread is born of it (TestOpenedWhileAnotherStarts).
func init() { runtime.LockOSThread() }

func open(t *testing.T) *Tree {
	t.Helper()
	tree, err := Open(Config{Key: t.TempDir(), Leaf: "durward-test"})
	must(t, err)
	t.Cleanup(tree.Close)
	return tree
}

func group(t *testing.T, l Limits) *Group {
	t.Helper()
	g := open(t).Group("demo")
	missing, err := g.Make(l)
	if err != nil || missing != nil {
		t.Fatalf("missing %q, %v", missing, err)
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		g.Remove()
		if g.There() {
			t.Error("the group is still there")
		}
	})
	return g
}

func start(t *testing.T, g *Group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(t, g.Start(cmd))
	return cmd
}

// A program and its children are in the group from their first moment; this process and its threads are not.
func TestInside(t *testing.T) {
	g := group(t, Limits{})
	file := filepath.Join(t.TempDir(), "groups")
	cmd := start(t, g, "cat /proc/self/cgroup > "+file)
	must(t, cmd.Wait())
	raw, err := os.ReadFile(file)
	if err != nil || strings.Count(string(raw), "/service-demo\n") != len(g.parts) {
		t.Errorf("a child is in %s, %v", raw, err)
	}
	tasks, err := filepath.Glob("/proc/self/task/*/cgroup")
	if err != nil || len(tasks) == 0 {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if raw, err := os.ReadFile(task); err == nil && strings.Contains(string(raw), "service-demo") {
			t.Errorf("a thread of ours is in the group: %s", raw)
		}
	}
}

// Where this process is does not depend on its first thread, which another tree's Start may have moved: a tree that took a program's group for
// this process' own would bring its threads there, and this process would be ended with the program.
func TestOpenedWhileAnotherStarts(t *testing.T) {
	g := group(t, Limits{})
	if g.unified {
		t.Skip("version 2 has no thread of a process elsewhere")
	}
	first := strconv.Itoa(os.Getpid()) // the first thread's id is the process's
	must(t, g.each(func(p part) error { return write(p.dir, "tasks", first) }))
	tree, err := Open(Config{Key: t.TempDir(), Leaf: "durward-test"})
	must(t, g.each(func(p part) error { return write(p.own, "tasks", first) }))
	must(t, err)
	tree.Close()
	for i, p := range tree.places {
		if p.own != g.parts[i].own {
			t.Errorf("it takes %s for this process' own group, not %s", p.own, g.parts[i].own)
		}
	}
}

// Everybody is ended, also who left the session and the group of processes.
func TestKill(t *testing.T) {
	g := group(t, Limits{})
	file := filepath.Join(t.TempDir(), "pid")
	cmd := start(t, g, "setsid sh -c 'trap \"\" TERM HUP; echo $$ > "+file+".new; mv "+file+".new "+file+"; sleep 600; sleep 600' & wait")
	var pid int
	for pid == 0 {
		raw, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
		time.Sleep(interval) // no event: the kernel is asked
	}
	must(t, g.Kill())
	_ = cmd.Wait() // A killed program ends with an error.
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) && !zombie(pid) {
		t.Errorf("the one that left is alive: %v", err)
	}
	g.Remove()
	if g.There() {
		t.Error("the group is still there")
	}
}

// The kernel holds to the limits, and says so.
func TestLimitsHold(t *testing.T) {
	g := group(t, Limits{MemoryMiB: 32, PIDs: 5, CPUPercent: 50})
	if g.OutOfMemory() {
		t.Error("its memory ran out before it began")
	}
	if out, err := exec.Command("/bin/true").CombinedOutput(); err != nil {
		t.Fatal(err, out)
	}
	cmd := start(t, g, "head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null; exit 3")
	_ = cmd.Wait() // The kernel kills a part of it or all.
	if !g.OutOfMemory() {
		t.Error("200 MB fit into 32 MiB")
	}
	file := filepath.Join(t.TempDir(), "errors")
	cmd = start(t, g, "exec 2> "+file+"; for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait")
	deadline := time.Now().Add(10 * time.Second)
	for {
		raw, _ := os.ReadFile(file)
		if strings.Contains(strings.ToLower(string(raw)), "fork") || time.Now().After(deadline) {
			break
		}
		time.Sleep(interval) // no event: the kernel is asked
	}
	if n := len(g.programs()); n > 5 {
		t.Errorf("%d programs of 5", n)
	}
	if raw, _ := os.ReadFile(file); !strings.Contains(strings.ToLower(string(raw)), "fork") {
		t.Errorf("nobody was refused: %s", raw)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // A killed program ends with an error.
}

// Two executors on one host do not meet.
func TestKeys(t *testing.T) {
	if a, b := open(t), open(t); a.Group("demo").Path() == b.Group("demo").Path() {
		t.Errorf("both have %s", a.Group("demo").Path())
	}
}

// TestSecondVersion holds the tree of version 2 to the kernel's own rules, also on a host whose limits are of version 1: there with whatever
// controller is left, since the rules are the same for each.
func TestSecondVersion(t *testing.T) {
	const inside = "DURWARD_TEST_SECOND_VERSION"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSecondVersion$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	root := t.TempDir()
	must(t, unix.Mount("cgroup2", root, "cgroup2", 0, ""))
	pid := strconv.Itoa(os.Getpid())
	own := filepath.Join(root, "durward-test-"+pid+".service")
	text := func(parts ...string) string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(parts...))
		must(t, err)
		return strings.TrimSpace(string(raw))
	}
	free, before := strings.Fields(text(root, "cgroup.controllers")), text(root, "cgroup.subtree_control")
	if len(free) == 0 {
		t.Fatal("version 1 has every controller")
	}
	controllers = free[:1]
	must(t, write(root, "cgroup.subtree_control", "+"+free[0]))
	must(t, mkdir(own))
	must(t, write(own, "cgroup.procs", pid))
	t.Cleanup(func() {
		must(t, write(root, "cgroup.procs", pid))
		for _, dir := range []string{"mine", "leaf", "."} {
			must(t, os.Remove(filepath.Join(own, dir)))
		}
		if !strings.Contains(before, free[0]) {
			must(t, write(root, "cgroup.subtree_control", "-"+free[0]))
		}
		must(t, unix.Unmount(root, unix.MNT_DETACH))
	})
	here := hierarchy{unified: true, dir: own, shown: "/own"}

	// A unit that outlives its services is left as it is: nothing is bounded in it.
	tree, err := Config{Leaf: "leaf"}.openIn([]hierarchy{here}, "mine")
	must(t, err)
	if in := text("/proc/self/cgroup"); len(tree.places[0].controls) != 0 || strings.Contains(in, "/leaf") {
		t.Errorf("in a unit that outlives it: %v, %s", tree.places, in)
	}
	// Elsewhere this process makes room, once.
	for _, at := range []string{own, filepath.Join(own, "leaf")} {
		here.dir = at
		tree, err = Config{Leaf: "leaf", Ending: true}.openIn([]hierarchy{here}, "mine")
		must(t, err)
		if in := text("/proc/self/cgroup"); len(tree.places[0].controls) != 1 || tree.places[0].dir != filepath.Join(own, "mine") || !strings.HasSuffix(in, ".service/leaf") {
			t.Fatalf("from %s: %+v, %s", at, tree.places, in)
		}
		here.shown = "/own/leaf"
	}
	g := tree.Group("demo")
	_, err = g.Make(Limits{})
	must(t, err)
	cmd := start(t, g, "sleep 600 & sleep 600")
	if in := text("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"); !strings.HasSuffix(in, "/mine/service-demo") {
		t.Errorf("the program is in %s", in)
	}
	if limits, err := filepath.Glob(filepath.Join(own, "mine", "service-demo", free[0]+".*")); err != nil || len(limits) == 0 {
		t.Errorf("nothing bounds it: %v, %v", limits, err)
	}
	must(t, g.Kill())
	_ = cmd.Wait() // it was killed
	if g.Remove(); g.There() {
		t.Error("the group is still there")
	}
}
