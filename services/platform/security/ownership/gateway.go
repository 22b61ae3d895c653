package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Gateway finds the gateway's user by a configuration's gateway_user. It is nil where none is named, and in development, where one
// user runs everything: then nobody's rights are looked at. A process that runs as that user itself guards nothing from it.
func Gateway(name string, development bool) (*Foreign, error) {
	if development || name == "" {
		return nil, nil
	}
	f, err := Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("gateway_user: %w", err)
	}
	if int(f.UID) == os.Geteuid() {
		return nil, errors.New("gateway_user: this process runs as that user; give the gateway a user of its own, or say -development")
	}
	return f, nil
}

// Refuse returns an error for the first of the paths that the user owns or may write, by whatever links it leads, or a folder above
// it; of a folder each entry counts. What is not there is nobody's. A nil Foreign refuses nothing.
func (f *Foreign) Refuse(paths ...string) error {
	if f == nil {
		return nil
	}
	for _, path := range paths {
		if err := f.refuse(path); err != nil {
			return err
		}
		entries, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if err := f.refuse(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Foreign) refuse(path string) error {
	var st syscall.Stat_t
	err := above(path, f)
	if err == nil {
		err = syscall.Stat(path, &st)
	}
	if err == nil && reachable(*f, &st, hasACLAt(path)) {
		err = ErrForeign
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

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
		return err
	}
	switch {
	case ownedByOther(&st):
		return fmt.Errorf("%s belongs to the user %s, who could put anything in its place: use a folder of your own", path, nameOf(st.Uid))
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
