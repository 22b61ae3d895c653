// Package pin makes the files that a service's command names part of the service's definition: a script, a configuration, a
// model's weights. What a human approves is then what runs, as far as it stands in files that the executor can look at.
//
// It trusts the kernel, and believes nobody's word of a file: content counts up to a size, and beyond it where the entry asks for that;
// else, and where the executor may not read, size, inode and times, of which no owner can set the time of change. The files are looked at again before the start
// and are not held: the program opens them by name.
package pin

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/filewatch"
)

// maxContent is how large a file may be of which the content counts, in bytes.
const maxContent = 64 << 20

// ErrUnread is returned where the entry asks for the digest of a file, and there is none to be had.
var ErrUnread = errors.New("a file whose digest counts is not there, or cannot be read")

// File is something on the host's file system that a command names.
type File struct {
	path string
	// identity is what the definition holds of it; "" for what is not pinned, and why says why not.
	identity, why string
	// stamped: the identity is not of the content. unread: it should be, and there is none.
	stamped, unread bool
	stamp           filewatch.Stamp
}

// Finder looks at files. Programs remembers digests of files that did not change; a new one remembers none.
type Finder struct {
	Programs *catalog.Programs
	// Dir is the command's working folder; "" if it is not known, and then only absolute paths are found.
	Dir string
	// Writes are files that the service itself changes, which are not pinned.
	Writes []string
	// Digests are files whose content counts whatever their size, absolute, named by an argument or not.
	Digests []string
}

// Arguments finds the files that arguments name: FILE, or FILE behind the first "=" of an option. An argument that is no absolute
// path names a file only where there is one. The Digests come behind them.
func (f Finder) Arguments(arguments []string) []File {
	var out []File
	for _, a := range slices.Concat(arguments, f.Digests) {
		if name, value, ok := strings.Cut(a, "="); ok && strings.HasPrefix(name, "-") {
			a = value
		}
		if file, ok := f.look(a); ok && !slices.ContainsFunc(out, func(o File) bool { return o.path == file.path }) {
			out = append(out, file)
		}
	}
	return out
}

func (f Finder) look(name string) (File, bool) {
	absolute := filepath.IsAbs(name)
	if name == "" || !absolute && f.Dir == "" || strings.ContainsRune(name, 0) {
		return File{}, false
	}
	if !absolute {
		name = filepath.Join(f.Dir, name)
	}
	file := File{path: filepath.Clean(name)}
	whole := slices.Contains(f.Digests, file.path)
	var st syscall.Stat_t
	err := syscall.Stat(file.path, &st)
	switch {
	case slices.Contains(f.Writes, file.path):
		file.why = "the service writes it"
	case err != nil && !absolute:
		return File{}, false
	case errors.Is(err, fs.ErrNotExist):
		file.why = "it is not there"
	case err != nil:
		file.why = "the executor may not look at it"
	case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		file.why = "a folder"
	case st.Mode&syscall.S_IFMT != syscall.S_IFREG:
		file.why = "no regular file"
	default:
		file.stamp = filewatch.Of(&st)
		if whole || st.Size <= maxContent {
			file.identity, err = f.Programs.Digest(file.path)
		}
		if whole && err != nil {
			file.why = "the executor may not read it"
		} else if file.stamped = file.identity == "" || err != nil; file.stamped {
			// Not the device: its number may be another after a restart of the host.
			file.identity = fmt.Sprintf("inode %d, %d bytes, modified %d, changed %d", file.stamp.Inode, file.stamp.Size, file.stamp.Modified, file.stamp.Changed)
		}
	}
	file.unread = whole && file.why != ""
	return file, true
}

// Definition binds the files to the digest of what runs; without any, it is that digest. The error is ErrUnread.
func Definition(runs string, files []File) (string, error) {
	if slices.ContainsFunc(files, func(f File) bool { return f.unread }) {
		return "", ErrUnread
	}
	sum, pinned := sha256.New(), held(files)
	if len(pinned) == 0 {
		return runs, nil
	}
	add := func(part string) {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		sum.Write([]byte(part))
	}
	add(runs)
	for _, f := range pinned {
		add(f.path)
		add(f.identity)
	}
	return canonical.FormatDigest(sum.Sum(nil)), nil
}

// Unchanged reports whether the files that count are still those that were looked at.
func Unchanged(files []File) bool {
	return !slices.ContainsFunc(held(files), func(f File) bool {
		var st syscall.Stat_t
		return syscall.Stat(f.path, &st) != nil || filewatch.Of(&st) != f.stamp
	})
}

// Lines say of each file whether it is pinned, for whoever approves.
func Lines(files []File) []string {
	out := make([]string, 0, len(files))
	for _, f := range files {
		how := "checked, not held"
		switch {
		case f.why != "":
			how = "not pinned, " + f.why
		case f.stamped:
			how += ", by size, inode and times"
		}
		out = append(out, how+": "+clean.Visible(f.path))
	}
	return out
}
