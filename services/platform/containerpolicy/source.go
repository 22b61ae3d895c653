package containerpolicy

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"durward.internal/services/platform/catalog"
)

const (
	mountTable  = "/proc/self/mountinfo"
	socketTable = "/proc/net/unix"
	// maxEntries is how much of a folder is looked through for sockets and devices.
	maxEntries = 200_000
)

// Resolve follows every symbolic link of a mount's source. What is sent to the daemon is what this returns, so that a link
// cannot point elsewhere by the time the daemon follows it.
func Resolve(source string) (string, error) {
	if !Plain(source) {
		return "", errors.New("the path is not in its shortest form")
	}
	return filepath.EvalSymlinks(source)
}

// source judges what of the host is mounted, with what is mounted below it or without.
func (k *check) source(path string, recursive bool) string {
	resolved, err := Resolve(path)
	if err != nil && k.NamesOnly && Plain(path) {
		resolved, err = path, nil
	}
	switch {
	case err != nil:
		return safe(path) + " cannot be resolved"
	case resolved != path:
		return safe(path) + " is reached through a symbolic link"
	case path == "/":
		return "the whole host is not mounted"
	case !slices.ContainsFunc(k.Rules.Mounts, func(yes string) bool {
		allowed, err := Resolve(yes)
		if err != nil && k.NamesOnly {
			allowed, err = yes, nil
		}
		return err == nil && allowed != "/" && catalog.Within(path, allowed)
	}):
		return safe(path) + " lies in no folder that a human allows (containers.mounts)"
	}
	// By its name, and below by where it really is.
	if why := catalog.Unmountable(path); why != "" {
		return safe(path) + " " + why
	}
	if k.NamesOnly {
		return ""
	}
	table, err := readMounts()
	if err != nil {
		return "the host's mounts cannot be read"
	}
	for _, no := range append(catalog.HostFolders(), k.Refused...) {
		real, err := filepath.EvalSymlinks(no)
		if err != nil {
			real = filepath.Clean(no)
		}
		if table.overlap(path, real) {
			return safe(path) + " touches " + no
		}
	}
	if recursive && slices.ContainsFunc(table, func(m mountEntry) bool { return m.at != path && catalog.Within(m.at, path) }) {
		return safe(path) + " has something mounted below it, which would come along"
	}
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return safe(path) + " is neither a folder nor a file"
	}
	if wrong := k.steady(path); wrong != "" {
		return wrong
	}
	return sockets(path)
}

// steady: nobody whom the container could be may put something else in the source's place before the daemon looks. Whoever may
// write to a folder can rename what is in it; with the sticky bit, who owns it can.
func (k *check) steady(path string) string {
	uid, gid := k.uid()
	for child, at := path, filepath.Dir(path); ; child, at = at, filepath.Dir(at) {
		folder, mode, err := owner(at)
		if err != nil {
			return safe(at) + " cannot be looked at"
		}
		inside, _, err := owner(child)
		if err != nil {
			return safe(child) + " cannot be looked at"
		}
		writable := mode&0o002 != 0 || mode&0o020 != 0 && gid != 0 && folder.Gid == gid
		switch {
		case uid != 0 && folder.Uid == uid:
			return safe(at) + " belongs to the container's user, who could put another folder in its place"
		case writable && (mode&fs.ModeSticky == 0 || inside.Uid == uid):
			return safe(at) + " may be written to by the container's user"
		}
		if at == "/" {
			return ""
		}
	}
}

func owner(path string) (*syscall.Stat_t, fs.FileMode, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, 0, errors.ErrUnsupported
	}
	return st, info.Mode(), nil
}

// sockets refuses a folder with a socket or a device in it: a runtime's socket under another name is still the host. It looks
// at the files that we may see, and at the kernel's list of sockets that somebody listens on.
func sockets(path string) string {
	seen := 0
	errFound := errors.New("found")
	found := ""
	err := filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			// What we may not see is a private folder of somebody else's. A socket that somebody listens on is found below.
			return nil //nolint:nilerr // So it is passed over.
		}
		if seen++; seen > maxEntries {
			found = safe(path) + " holds too much to be looked through"
			return errFound
		}
		if e.Type()&(fs.ModeSocket|fs.ModeDevice|fs.ModeCharDevice) != 0 {
			found = safe(at) + " is a socket or a device"
			return errFound
		}
		return nil
	})
	if err != nil {
		return cmp.Or(found, safe(path)+" cannot be looked through")
	}
	f, err := os.Open(socketTable)
	if err != nil {
		return "the host's sockets cannot be read"
	}
	defer f.Close()
	for _, name := range listening(f) {
		folder, err := filepath.EvalSymlinks(filepath.Dir(name))
		if err == nil && catalog.Within(filepath.Join(folder, filepath.Base(name)), path) {
			return safe(name) + " is a socket"
		}
	}
	return ""
}

// listening reads the absolute paths of /proc/net/unix.
func listening(r io.Reader) []string {
	var out []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path; a path may hold spaces.
		if i := strings.Index(lines.Text(), " /"); i > 0 {
			out = append(out, lines.Text()[i+1:])
		}
	}
	return out
}

// place is where a path really is: which file system, and where in it. Two bind mounts of one folder have one place.
type place struct{ device, path string }

// mountEntry is one line of the mount table.
type mountEntry struct {
	at string
	place
}

// mountsTable is the host's mounts, in the order in which they were made.
type mountsTable []mountEntry

func readMounts() (mountsTable, error) {
	f, err := os.Open(mountTable)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads /proc/PID/mountinfo, proc(5): "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw".
func parseMounts(r io.Reader) (mountsTable, error) {
	var out mountsTable
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		parts := strings.Fields(lines.Text())
		if len(parts) < 6 {
			return nil, fmt.Errorf("a line of %d words", len(parts))
		}
		out = append(out, mountEntry{unescape(parts[4]), place{parts[2], unescape(parts[3])}})
	}
	return out, lines.Err()
}

// unescape undoes the kernel's octal escapes of spaces, tabs, line ends and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// locate finds where a path really is: below the deepest mount point, the newest of several.
func (t mountsTable) locate(path string) (place, bool) {
	best := -1
	for i, m := range t {
		if catalog.Within(path, m.at) && (best < 0 || len(m.at) >= len(t[best].at)) {
			best = i
		}
	}
	if best < 0 {
		return place{}, false
	}
	rest := strings.TrimPrefix(path, strings.TrimSuffix(t[best].at, "/"))
	return place{t[best].device, filepath.Join(t[best].path, rest)}, true
}

// overlap reports whether one of two resolved paths is the other or lies in it, by name or by where they really are.
func (t mountsTable) overlap(a, b string) bool {
	if catalog.Within(a, b) || catalog.Within(b, a) {
		return true
	}
	pa, oka := t.locate(a)
	pb, okb := t.locate(b)
	return oka && okb && pa.device == pb.device && (catalog.Within(pa.path, pb.path) || catalog.Within(pb.path, pa.path))
}
