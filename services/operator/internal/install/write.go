package install

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"durward.internal/services/operator/internal/installdir"
)

// recordFile says what was installed: whoever may read /etc/durward may read it.
const recordFile = etc + "/installed.json"

// Record is what was installed by the last run.
type Record struct {
	Settings
	// Operators are Unix users. Revoked were operators: they come back when root names them, and not before.
	Operators []string `json:"operators"`
	Revoked   []string `json:"revoked,omitempty"`
	// Files are the SHA-256, in hex, of files as they were written: a file that has another one was edited by a human.
	Files map[string]string `json:"files"`
	// Former are digests of before, and RestartDue says that processes may run on what was there before: both stand here from when an
	// installation begins to change one that there is until it has ended, so that the next goes on where it broke off.
	Former     map[string][]string `json:"former,omitempty"`
	RestartDue bool                `json:"restart_due,omitempty"`
}

// Installed reports whether there is an installation.
func (r Record) Installed() bool { return len(r.Files) > 0 }

// ReadRecord reads what was installed below root; an empty record: nothing.
func ReadRecord(root string) (Record, error) {
	r := Record{Files: map[string]string{}}
	b, err := os.ReadFile(filepath.Join(root, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil || r.Files == nil {
		return r, fmt.Errorf("%s cannot be read: move it away, and every file that differs is taken for edited", recordFile)
	}
	return r, nil
}

// recorded is the step that writes the record; begun wrote it already where other steps have an effect.
func (p *Plan) recorded() error {
	data, err := p.record.text()
	if err != nil {
		return err
	}
	p.look(recordFile, owner{}, 0o644)
	if current, err := os.ReadFile(p.on(recordFile)); err == nil && bytes.Equal(current, data) && !p.restarts() {
		p.add(Step{Verb: Same, What: recordFile})
		return nil
	}
	p.begins = !p.First
	p.add(Step{Verb: Change, What: recordFile, Note: "what was installed", do: func(context.Context) (string, error) {
		return "", p.put(recordFile, data, owner{}, 0o644)
	}})
	return nil
}

// begun writes down what an installation is about to be changed to.
func (p *Plan) begun() error {
	r := p.record
	r.Former, r.RestartDue = map[string][]string{}, p.before.RestartDue || p.restarts()
	for path, was := range p.before.Files {
		if r.Former[path] = slices.Clone(p.before.Former[path]); was != r.Files[path] {
			r.Former[path] = append(r.Former[path], was)
		}
	}
	maps.DeleteFunc(r.Former, func(_ string, was []string) bool { return len(was) == 0 })
	data, err := r.text()
	if err != nil {
		return err
	}
	return p.put(recordFile, data, owner{}, 0o644)
}

func (r Record) text() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// restarts reports whether running processes must be started again for what the steps change.
func (p *Plan) restarts() bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.restart && s.Effect() })
}

// ours reports whether that is what the last installation wrote, or one that broke off.
func (p *Plan) ours(path, sum string) bool {
	return sum == p.before.Files[path] || slices.Contains(p.before.Former[path], sum)
}

// owner is a user and a group by name; empty: root.
type owner struct{ user, group string }

func (o owner) String() string {
	return cmp.Or(o.user, "root") + ":" + cmp.Or(o.group, "root")
}

// numbers finds the owner below a root.
func (o owner) numbers(root string) (uid, gid int, err error) {
	if o.user != "" {
		u, err := lookupUser(root, o.user)
		if err != nil {
			return 0, 0, err
		}
		uid = u.UID
	}
	if o.group != "" {
		if gid, _, err = lookupGroup(root, o.group); err != nil {
			return 0, 0, err
		}
	}
	return uid, gid, nil
}

// describe writes a path as steps show it.
func describe(path string, o owner, mode fs.FileMode) string {
	return fmt.Sprintf("%s  %s %04o", path, o, mode)
}

// as reports whether a file or folder has the owner and the mode.
func (p *Plan) as(info fs.FileInfo, o owner, mode fs.FileMode) bool {
	if info.Mode().Perm() != mode {
		return false
	}
	uid, gid, err := o.numbers(p.opts.Root)
	stat, ok := info.Sys().(*syscall.Stat_t)
	return err == nil && ok && (os.Geteuid() != 0 || int(stat.Uid) == uid && int(stat.Gid) == gid)
}

// give sets owner and mode. Only root can give files away; in a test of somebody else's they stay his.
func (p *Plan) give(path string, o owner, mode fs.FileMode) error {
	uid, gid, err := o.numbers(p.opts.Root)
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.Lchown(path, uid, gid); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

// folder is a step that makes a folder, or corrects its owner and mode.
func (p *Plan) folder(path string, o owner, mode fs.FileMode) {
	s := Step{Verb: Same, What: describe(path, o, mode)}
	info, err := os.Lstat(p.on(path))
	switch {
	case err != nil:
		s.Verb = Make
	case !info.IsDir():
		s.Verb, s.Note = Keep, "it is no folder"
	case o == owner{} && path != trustDir && path != pkiDir && path != keysDir && info.Mode().Perm()&0o022 == 0 && mode == 0o755 && ofRoot(info):
		// A system folder, or one of ours that nobody else can write to, may be narrower, and another group's.
	case !p.placed(path, info, o, mode):
		s.Verb, s.Note = Change, fmt.Sprintf("it is %04o", info.Mode().Perm())
	}
	s.do = func(context.Context) (string, error) {
		if err := p.above(path); err != nil {
			return "", err
		}
		if err := os.Mkdir(p.on(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		return "", p.give(p.on(path), o, mode)
	}
	p.add(s)
}

// above makes the system folders that a path lies in, where an image has none.
func (p *Plan) above(path string) error {
	return os.MkdirAll(filepath.Dir(p.on(path)), 0o755) //nolint:gosec // /etc and the like are everybody's to enter
}

// put replaces a file.
func (p *Plan) put(path string, data []byte, o owner, mode fs.FileMode) error {
	if err := p.above(path); err != nil {
		return err
	}
	// Narrow until it has its owner.
	if err := installdir.WriteFile(p.on(path), data, mode&0o700); err != nil {
		return err
	}
	return p.give(p.on(path), o, mode)
}

func digest(data []byte) string {
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// managed is write for a file that is installed as it is.
func (p *Plan) managed(from, path string) error {
	if p.packaged {
		if folder, carried := packageFolders[filepath.Dir(path)]; carried {
			if err := p.packageFile(folder + "/" + filepath.Base(path)); err != nil {
				return err
			}
			return p.inPackage(path)
		}
	}
	data, err := files.ReadFile(from)
	if err != nil {
		return err
	}
	return p.write(path, data)
}

// write is a step that writes a file of root's that all may read and of which every version is ours, unless a human has edited it.
func (p *Plan) write(path string, data []byte) error {
	o, mode := owner{}, fs.FileMode(0o644)
	s := Step{Verb: Same, What: describe(path, o, mode), restart: true}
	was := p.record.Files[path]
	p.record.Files[path] = digest(data)
	info, err := os.Lstat(p.on(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.Verb = Make
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		s.Verb, s.Note = Keep, "it is no regular file"
		p.forget(path, was)
	default:
		current, err := os.ReadFile(p.on(path))
		if err != nil {
			return err
		}
		placed := p.placed(path, info, o, mode)
		switch {
		case digest(current) == digest(data):
			if !placed {
				s.Verb, s.Note = Change, fmt.Sprintf("it is %04o", info.Mode().Perm())
			}
		case p.ours(path, digest(current)):
			s.Verb, s.Note = Change, "nobody has edited it"
		default:
			s.Verb, s.Note = Keep, "a human has edited it; this version would write something else"
			p.forget(path, was)
		}
	}
	s.do = func(context.Context) (string, error) { return "", p.put(path, data, o, mode) }
	p.add(s)
	return nil
}

// forget leaves a file that is kept in the record as it was.
func (p *Plan) forget(path, was string) {
	if was == "" {
		delete(p.record.Files, path)
		return
	}
	p.record.Files[path] = was
}

// unwanted is a step that removes a file of ours that a setting no longer asks for.
func (p *Plan) unwanted(path string) {
	current, err := os.ReadFile(p.on(path))
	if err != nil {
		delete(p.record.Files, path)
		return
	}
	if !p.ours(path, digest(current)) {
		p.add(Step{Verb: Keep, What: path, Note: "a human has edited it"})
		return
	}
	delete(p.record.Files, path)
	p.add(Step{Verb: Remove, What: path, restart: true, do: func(context.Context) (string, error) { return "", os.Remove(p.on(path)) }})
}

// once is a step that makes a file and never changes what is in it again.
func (p *Plan) once(path string, o owner, mode fs.FileMode, data func() ([]byte, error)) error {
	s := Step{Verb: Same, What: describe(path, o, mode)}
	info, err := os.Lstat(p.on(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.Verb = Make
		s.do = func(context.Context) (string, error) {
			b, err := data()
			if err != nil {
				return "", err
			}
			return "", p.put(path, b, o, mode)
		}
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		s.Verb, s.Note = Keep, "it is no regular file"
	case !p.placed(path, info, o, mode):
		s.Verb, s.Note = Change, fmt.Sprintf("it is %04o", info.Mode().Perm())
		s.do = func(context.Context) (string, error) { return "", p.give(p.on(path), o, mode) }
	}
	p.add(s)
	return nil
}

// program is a step that replaces a program whole, also one that runs, by the one that was looked at when the plan was made.
func (p *Plan) program(from, path string) error {
	s := Step{Verb: Same, What: describe(path, owner{}, 0o755), restart: true}
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("a program is missing: %w", err)
	}
	want := digest(data)
	p.look(path, owner{}, 0o755)
	have, err := os.ReadFile(p.on(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.Verb = Make
	case err != nil:
		return err
	case digest(have) != want:
		s.Verb, s.Note = Change, "another version"
	}
	s.do = func(context.Context) (string, error) {
		data, err := os.ReadFile(from)
		if err == nil && digest(data) != want {
			err = errors.New("it has changed since the plan was made")
		}
		if err != nil {
			return "", err
		}
		return "", installdir.WriteFile(p.on(path), data, 0o755)
	}
	p.add(s)
	return nil
}
