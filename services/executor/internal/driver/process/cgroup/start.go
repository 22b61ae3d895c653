package cgroup

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts the command within the group: there is no moment in which it, or a child of it, is outside.
func (g *Group) Start(cmd *exec.Cmd) error {
	if g.unified {
		return g.startUnified(cmd)
	}
	// Version 1 has no call for that. A child is born where the thread is that starts it, so this thread goes there and back. Go
	// makes no thread from a locked one, and ends one whose goroutine ends locked.
	runtime.LockOSThread()
	tid := strconv.Itoa(unix.Gettid())
	err := g.each(func(p part) error { return write(p.dir, "tasks", tid) })
	if err == nil {
		err = cmd.Start()
	}
	if g.each(func(p part) error { return write(p.own, "tasks", tid) }) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func (g *Group) startUnified(cmd *exec.Cmd) error {
	dir, err := unix.Open(filepath.Clean(g.parts[0].dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, dir
	return cmd.Start()
}

// each goes through all parts and returns the first error.
func (g *Group) each(do func(part) error) error {
	var first error
	for _, p := range g.parts {
		if err := do(p); err != nil && first == nil {
			first = err
		}
	}
	return first
}
