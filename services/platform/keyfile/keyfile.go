// Package keyfile reads private keys, and refuses those that somebody else could have read.
//
// Every process may link it. It believes the kernel, and asks it about the open file.
package keyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// maxSize bounds a key file, in bytes.
const maxSize = 16 << 10

// ErrOpen means that others may read a key, and so may have it.
var ErrOpen = errors.New("must be a regular file that its owner alone can read (chmod 600): make a new key if others had the time to read it")

// Read returns what is in a key's file. Members are the groups of the process whose key it is, where another reads it: root, who judges it.
func Read(path string, members ...uint32) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := judge(path, info, members); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(b) > maxSize {
		err = fmt.Errorf("%s is too large for a key", path)
	}
	return b, err
}

// Check reports what is wrong with keys that are there, without using them.
func Check(paths ...string) error {
	var problems []error
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			problems = append(problems, judge(path, info, nil))
		}
	}
	return errors.Join(problems...)
}

func judge(path string, info fs.FileInfo, members []uint32) error {
	if !info.Mode().IsRegular() || !modeHolds(private(info, members)) {
		return fmt.Errorf("%s %w", path, ErrOpen)
	}
	return nil
}

// private reports whether nobody but the owner can read a file, root and root's group aside: that group renews operators' keys,
// and systemd hands credentials over (LoadCredential=) with an access control list that shows as it. A key of root's may be
// readable by a group of this process's own, as the installed layout has it.
func private(info fs.FileInfo, members []uint32) bool {
	mode := info.Mode().Perm()
	if mode&0o077 == 0 {
		return true
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return mode&0o037 == 0 && ok && (stat.Gid == 0 || stat.Uid == 0 && (ours(stat.Gid) || slices.Contains(members, stat.Gid)))
}

func ours(gid uint32) bool {
	if int(gid) == os.Getegid() {
		return true
	}
	groups, err := os.Getgroups()
	return err == nil && slices.Contains(groups, int(gid))
}
