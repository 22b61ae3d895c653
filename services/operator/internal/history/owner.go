package history

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// asOwner does something with files below a folder as the user whose it is, or the nearest that there is above it: root, who works for an
// operator under sudo, leaves nothing there that the operator cannot use, and follows no link of theirs to where they could not go.
func asOwner(dir string, do func() error) error {
	if os.Geteuid() != 0 {
		return do()
	}
	info, err := os.Lstat(dir)
	for err != nil && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		info, err = os.Lstat(dir)
	}
	if err != nil {
		return err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known || owner.Uid == 0 {
		return do()
	}
	// Of this thread alone, which is thrown away where it cannot be root's again.
	runtime.LockOSThread()
	if err := unix.Setfsgid(int(owner.Gid)); err != nil {
		return err
	}
	if err := unix.Setfsuid(int(owner.Uid)); err != nil {
		return err
	}
	failed := do()
	if err := unix.Setfsuid(0); err != nil {
		return err
	}
	if err := unix.Setfsgid(0); err != nil {
		return err
	}
	runtime.UnlockOSThread()
	return failed
}
