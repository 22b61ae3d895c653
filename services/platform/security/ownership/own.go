package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"strconv"
	"syscall"
)

// Own refuses each path in the place of which another user could put something: one that is, or that leads through, what belongs
// to anyone but root and this process's user, or what others may write. A folder with the sticky bit may lie on the way, as /tmp
// does, and not at the end. What is not there yet is judged as far as it is.
func Own(paths ...string) error {
	for _, path := range paths {
		last := "/"
		err := walk(path, func(_, entry string) error {
			if err := ownOne(last, false); err != nil {
				return err
			}
			last = entry
			return nil
		})
		if err == nil {
			err = ownOne(last, true)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ownOne judges one entry; last says that nothing follows it on the way.
func ownOne(path string, last bool) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	switch {
	case ownedByOther(&st):
		return fmt.Errorf("%s belongs to the user %s, who could put anything in its place: take it over (chown), or use another folder", path, nameOf(st.Uid))
	case st.Mode&syscall.S_IFMT == syscall.S_IFLNK, st.Mode&syscall.S_ISVTX != 0 && !last, !writableByOthers(&st, hasACLAt(path)):
		return nil
	}
	return fmt.Errorf("others may write to %s, which belongs to the user %s: take that right away (chmod go-w), or use another folder",
		path, nameOf(st.Uid))
}

func nameOf(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}
