package install

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Misplaced is a file or folder that has another owner or mode than it was installed with.
type Misplaced struct {
	Path string
	// Is and Wanted are the two, "64001:0 0666" and "root:durward 0640".
	Is, Wanted string
	// Mend is the command that puts it right.
	Mend string
}

// Examine returns what of an installation has another owner or mode than it was installed with. Only root sees everything.
func Examine(root string, now func() time.Time) ([]Misplaced, error) {
	record, err := ReadRecord(root)
	if err != nil || !record.Installed() {
		return nil, err
	}
	from := programs
	if Packaged(root) {
		from = PackagePrograms
	}
	p, err := New(Options{Settings: record.Settings, Root: root, Programs: filepath.Join(root, from), Now: now,
		Command: func(context.Context, string, ...string) error { return nil }}) // what runs is not looked at here
	if err != nil {
		return nil, err
	}
	return p.misplaced, nil
}

// placed reports whether a file or folder has the owner and the mode, and notes it where not.
func (p *Plan) placed(path string, info fs.FileInfo, o owner, mode fs.FileMode) bool {
	if p.as(info, o, mode) {
		return true
	}
	is := fmt.Sprintf("%04o", info.Mode().Perm())
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		is = fmt.Sprintf("%d:%d %s", stat.Uid, stat.Gid, is)
	}
	mend := fmt.Sprintf("sudo chown %s %s && sudo chmod %04o %[2]s", o, path, mode)
	if p.opts.Containers { // whose users the host does not have
		mend = "docker compose run --rm setup"
	}
	p.misplaced = append(p.misplaced, Misplaced{Path: path, Is: is, Wanted: fmt.Sprintf("%s %04o", o, mode), Mend: mend})
	return false
}

// ofRoot reports whether a file or folder is root's; in a test of somebody else's, who can give none away, it passes for that.
func ofRoot(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || os.Geteuid() != 0)
}

// look notes a file that no step writes again.
func (p *Plan) look(path string, o owner, mode fs.FileMode) {
	if info, err := os.Lstat(p.on(path)); err == nil && info.Mode().IsRegular() {
		p.placed(path, info, o, mode)
	}
}
