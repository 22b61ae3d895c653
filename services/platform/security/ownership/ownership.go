// Package ownership reads files that a human owns, and refuses those that somebody else could have written: symbolic links,
// what is no regular file, what is too large, and what a named Unix user (the gateway's) owns or may write, itself or any
// folder above it.
//
// It also refuses folders and files in the place of which another user could put others (Own).
//
// Every process that reads rules may link it. It believes the kernel, and asks it about the open file, never about a name
// twice: what was judged is what is read.
package ownership

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"durward.internal/services/platform/filewatch"
)

// Foreign is a Unix user who may neither own nor write what is read, nor a folder above it.
type Foreign struct {
	UID  uint32
	GIDs []uint32
}

// Lookup finds a user by name or number, with all of its groups.
func Lookup(name string) (*Foreign, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("there is no Unix user %q", name)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("the Unix user %q has no number: %w", name, err)
	}
	f := &Foreign{UID: uint32(uid)}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("the groups of the Unix user %q: %w", name, err)
	}
	for _, g := range append(groups, u.Gid) {
		gid, err := strconv.ParseUint(g, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the groups of the Unix user %q: %w", name, err)
		}
		if !slices.Contains(f.GIDs, uint32(gid)) {
			f.GIDs = append(f.GIDs, uint32(gid))
		}
	}
	return f, nil
}

// Reasons why something is not read. They hold no path: the caller knows it, and a record should not.
var (
	ErrLink     = errors.New("it is a symbolic link")
	ErrKind     = errors.New("it is no regular file")
	ErrFolder   = errors.New("it is no folder")
	ErrLarge    = errors.New("it is too large")
	ErrForeign  = errors.New("the gateway's user may write it, so that it is no human's word")
	ErrAbove    = errors.New("the gateway's user may write a folder above it, so that it is no human's word")
	ErrUnsteady = errors.New("it changed while it was read")
)

// ReadFile returns what is in the file at path, at most limit bytes. foreign may be nil: then nobody's rights are looked at.
// Errors are those above, or the kernel's; fs.ErrNotExist if nothing is there.
func ReadFile(path string, limit int64, foreign *Foreign) ([]byte, error) {
	f, st, err := open(path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	switch {
	case st.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, ErrKind
	case st.Size > limit:
		return nil, ErrLarge
	}
	if err := judge(f, &st, foreign); err != nil {
		return nil, err
	}
	if err := above(path, foreign); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, ErrLarge
	}
	var after syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &after); err != nil {
		return nil, err
	}
	if filewatch.Of(&after) != filewatch.Of(&st) || after.Size != int64(len(data)) {
		return nil, ErrUnsteady
	}
	return data, nil
}

// Names lists a folder, sorted, at most limit entries, and judges it as ReadFile judges a file.
func Names(path string, limit int, foreign *Foreign) ([]fs.DirEntry, error) {
	f, st, err := open(path, syscall.O_DIRECTORY)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, ErrFolder
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := judge(f, &st, foreign); err != nil {
		return nil, err
	}
	if err := above(path, foreign); err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > limit {
		return nil, ErrLarge
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// open opens a path that is no link, and never waits for whoever is at a pipe's other end.
func open(path string, flags int) (*os.File, syscall.Stat_t, error) {
	var st syscall.Stat_t
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC|flags, 0)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, st, ErrLink
	case errors.Is(err, syscall.ENOTDIR) && flags != 0 && isLink(path):
		return nil, st, ErrLink
	case errors.Is(err, syscall.ENXIO):
		return nil, st, ErrKind // a socket
	case err != nil:
		return nil, st, err
	}
	if err := syscall.Fstat(fd, &st); err != nil {
		_ = syscall.Close(fd)
		return nil, st, err
	}
	name := filepath.Base(path)
	if flags&syscall.O_DIRECTORY != 0 {
		name = path // where the kernel does not tell what an entry is, listing a folder looks it up by its whole name
	}
	return os.NewFile(uintptr(fd), name), st, nil
}

func isLink(path string) bool { return filewatch.StampOf(path).Link != 0 }

// judge says whether the open file or folder is beyond foreign's reach.
func judge(f *os.File, st *syscall.Stat_t, foreign *Foreign) error {
	if foreign != nil && reachable(*foreign, st, hasACL(int(f.Fd()))) {
		return ErrForeign
	}
	return nil
}

// maxLinks bounds the symbolic links on the way to a file, as the kernel does.
const maxLinks = 40

// above judges every folder that the way to path goes through, from the root, those that hold a link among them. In a folder
// with the sticky bit what is somebody else's stays where it is.
func above(path string, foreign *Foreign) error {
	if foreign == nil {
		return nil
	}
	return walk(path, func(folder, entry string) error { return aboveOne(folder, entry, *foreign) })
}

// walk calls visit for each entry on the way to path with the folder that it is in, links and where they lead among them.
func walk(path string, visit func(folder, entry string) error) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	folder, links := "/", 0
	for rest := parts(path); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			folder = filepath.Dir(folder) // never through a link: folder is where it truly is
			continue
		}
		entry := filepath.Join(folder, name)
		if err := visit(folder, entry); err != nil {
			return err
		}
		if !isLink(entry) {
			folder = entry
			continue
		}
		if links++; links > maxLinks {
			return syscall.ELOOP
		}
		target, err := os.Readlink(entry)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			folder = "/"
		}
		rest = append(parts(target), rest...)
	}
	return nil
}

func parts(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

// aboveOne judges one folder over one of its entries.
func aboveOne(folder, entry string, foreign Foreign) error {
	var st, child syscall.Stat_t
	if err := syscall.Stat(folder, &st); err != nil {
		return err
	}
	if err := syscall.Lstat(entry, &child); err != nil {
		return err
	}
	if child.Mode&syscall.S_IFMT == syscall.S_IFLNK && ownedBy(foreign, &child) {
		return ErrAbove
	}
	if !reachable(foreign, &st, hasACLAt(folder)) {
		return nil
	}
	if st.Mode&syscall.S_ISVTX != 0 && !ownedBy(foreign, &st) && !ownedBy(foreign, &child) {
		return nil
	}
	return ErrAbove
}

// aclName is where POSIX access lists are kept.
const aclName = "system.posix_acl_access"

// hasACL reports whether an open file has an access list beyond its mode. The mode's group bits are then the most that
// anybody who is named there may do.
func hasACL(fd int) bool { return hasACLAt("/proc/self/fd/" + strconv.Itoa(fd)) }

func hasACLAt(path string) bool {
	n, err := syscall.Getxattr(path, aclName, nil)
	return err == nil && n > 0
}
