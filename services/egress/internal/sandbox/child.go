package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/cgroup"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/procfs"
)

const (
	// spareDisk is what children leave of the disk, in bytes. Who holds more than modest is ended first; where that makes no room, all are.
	spareDisk = 512 << 20
	modest    = 64 << 20
	// fullFor is how many seconds the disk is full before they are.
	fullFor = 5
)

var errTooMuch = errors.New("it holds too much")

// child is one that this process started.
type child struct {
	local *Local
	// key is the server's and the user's.
	key    string
	entry  *downstream.Entry
	data   string
	socket string
	group  *cgroup.Group

	cmd    *exec.Cmd
	done   chan struct{}
	err    error
	once   sync.Once
	excess atomic.Bool
}

// start starts the command and hands it what it reads from pipes: the first in full, the others as far as a pipe holds.
func (c *child) start(cmd *exec.Cmd, p *Process, pipes ...[]byte) (err error) {
	var ours, theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err == nil {
			return
		}
		for _, f := range ours {
			_ = f.Close()
		}
	}()
	pipe := func(read bool) (their *os.File) {
		r, w, perr := os.Pipe()
		if err = errors.Join(err, perr); err != nil {
			return nil
		}
		if !read {
			r, w = w, r
		}
		theirs, ours = append(theirs, r), append(ours, w)
		return r
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipe(true), pipe(false), pipe(false)
	for range pipes {
		cmd.ExtraFiles = append(cmd.ExtraFiles, pipe(true))
	}
	if err != nil {
		return err
	}
	cmd.SysProcAttr = c.local.attributes()
	begin := cmd.Start
	if c.group != nil {
		begin = func() error { return c.group.Start(cmd) }
	}
	if err := begin(); err != nil {
		return err
	}
	c.cmd = cmd
	for i := len(pipes) - 1; i >= 0 && err == nil; i-- {
		_, err = ours[3+i].Write(pipes[i])
		err = errors.Join(err, ours[3+i].Close())
	}
	if c.data != "" {
		go c.watch()
	}
	go c.reap()
	if err != nil {
		c.Kill()
		<-c.done
		return fmt.Errorf("the sandbox does not take what it is told: %w", err)
	}
	p.Stdin, p.Stdout, p.Stderr = ours[0], ours[1], ours[2]
	return nil
}

// reap waits for the child's end, and leaves nothing of it behind.
func (c *child) reap() {
	c.err = c.cmd.Wait()
	memory := c.group != nil && c.group.OutOfMemory()
	c.kill()
	switch {
	case c.excess.Load():
		c.err = fmt.Errorf("it wrote more than %d MiB, or %d files, into its own folder, or the disk is full, and was ended", c.local.most>>20, maxEntries)
	case c.err != nil && memory:
		c.err = fmt.Errorf("it needed more memory than its %d MiB, and was ended: %w", c.entry.Sandbox.MemoryMiB, c.err)
	}
	c.clear()
	close(c.done)
}

// clear gives up what the child held of this process.
func (c *child) clear() {
	c.once.Do(func() {
		if c.socket != "" {
			_ = os.Remove(c.socket)
		}
		if c.group != nil {
			c.group.Remove()
		}
		c.local.mu.Lock()
		delete(c.local.running, c.key)
		c.local.mu.Unlock()
	})
}

// Wait implements Control.
func (c *child) Wait() error {
	<-c.done
	return c.err
}

// Kill implements Control.
func (c *child) Kill() {
	select {
	case <-c.done: // its number may be another's by now
	default:
		// With bubblewrap's first process go its namespace's, and with those all others in there.
		_ = c.cmd.Process.Kill()
		_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGKILL)
	}
}

// kill ends what the end of the first process left, and waits for it.
func (c *child) kill() {
	if c.group != nil {
		_ = c.group.Kill()
	}
}

// Freeze implements Control. A process that forks meanwhile is found in a later round, with a parent that is stopped. One that waits in
// the kernel (D), as a parent does for what it begot by vfork(2), stops as soon as it comes back.
func (c *child) Freeze(frozen bool) error {
	signal, done := unix.SIGCONT, func(state string) bool { return state != "T" }
	if frozen {
		signal, done = unix.SIGSTOP, func(state string) bool { return state == "T" || state == "D" }
	}
	for range 100 {
		left := 0
		for pid, state := range descendants(c.cmd.Process.Pid) {
			if !done(state) {
				left++
			}
			_ = unix.Kill(pid, signal)
		}
		if left == 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("some of the server's processes go on")
}

// descendants are the states of a process and of all that came of it. What a process in a sandbox leaves behind becomes its sandbox's first
// process', so that none gets away.
func descendants(root int) map[int]string {
	children, states := map[int][]int{}, map[int]string{}
	for pid, stat := range procfs.Processes("/proc", "stat") {
		if fields := procfs.Stat([]byte(stat)); len(fields) > 1 && fields[0] != "Z" && fields[0] != "X" {
			parent, _ := strconv.Atoi(fields[1]) // the kernel's own
			children[parent] = append(children[parent], pid)
			states[pid] = fields[0]
		}
	}
	found := map[int]string{}
	for next := []int{root}; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		if state, there := states[pid]; there {
			found[pid] = state
		}
	}
	return found
}

// watch ends a child that fills its own folder, or the disk: no quota of the kernel's holds for a folder.
func (c *child) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	full := 0
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
		held, err := holds(c.data, c.local.most)
		if full++; !isFull(c.data, c.local.spare.Load()) {
			full = 0
		}
		if err != nil || full > 0 && held > modest || full > fullFor {
			c.excess.Store(true)
			c.Kill()
			return
		}
	}
}

// holds is how many bytes a folder holds, an error if they are more than a child may have. What cannot be counted is too much.
func holds(folder string, most int64) (held int64, err error) {
	entries := 0
	err = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		held += st.Blocks * 512
		if entries++; held > most || entries > maxEntries {
			return errTooMuch
		}
		return nil
	})
	return held, err
}

// isFull reports whether less than spare is left of a folder's disk. What is open and has no name any more is counted by this alone.
func isFull(folder string, spare uint64) bool {
	var disk unix.Statfs_t
	return unix.Statfs(folder, &disk) == nil && disk.Bavail*uint64(disk.Bsize) < spare
}
