// Package signedchange is the one way in which the operator's program changes a file that humans own: the difference is worked out and
// shown before anything is made, a statement with the digests before and after is what the operator signs, and the file is replaced
// whole, durably, by its own owner and mode, or not at all.
//
// It runs in the operator's process. It trusts the file's owner and nobody's memory of the file: a file that is not any more what
// was shown is not written.
package signedchange

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
)

// statementLife is how long a signed change may be announced.
const statementLife = 5 * time.Minute

// maxFile bounds what is read: servers.lock is the longest of the files.
const maxFile = downstream.MaxLock

// Reasons why a file is not changed.
var (
	// ErrMoved means that the file is not what it was when the difference was shown.
	ErrMoved = errors.New("the file was changed by somebody else in between; nothing was written")
	// ErrLink means that the path is a symbolic link: what it stands for would be replaced.
	ErrLink = errors.New("the file is a symbolic link; change what it points to")
	// ErrKind means that the path is no regular file, or too large.
	ErrKind = errors.New("it is no regular file of at most 4 MB")
)

// Plan is a change of one file that was worked out and not made. Make it with Prepare.
type Plan struct {
	// Path is the file, Name what statements and records call it: its name below the security folder, or of a file beside
	// it ("clients.yaml").
	Path, Name string
	// Before and After are the whole file; nil: there is none.
	Before, After []byte
}

// EditError is why a change of a file could not be worked out.
type EditError struct {
	Path string
	Err  error
}

func (e *EditError) Error() string { return e.Err.Error() }
func (e *EditError) Unwrap() error { return e.Err }

// Prepare reads the file and works out what edit makes of it: edit gets nil where there is no file, and returns nil for a file
// that is to go. Nothing is written. Its error is an *EditError.
func Prepare(path, name string, edit func(before []byte) ([]byte, error)) (*Plan, error) {
	before, err := read(path)
	if err != nil {
		return nil, &EditError{path, fmt.Errorf("%s: %w", path, err)}
	}
	after, err := edit(bytes.Clone(before))
	if err != nil {
		return nil, &EditError{path, err}
	}
	return &Plan{Path: path, Name: name, Before: before, After: after}, nil
}

// PrepareOne is Prepare for a change of one file alone.
func PrepareOne(path, name string, edit func(before []byte) ([]byte, error)) ([]*Plan, error) {
	p, err := Prepare(path, name, edit)
	if err != nil {
		return nil, err
	}
	return []*Plan{p}, nil
}

// read returns the whole file, nil if there is none, and an empty one as not nil.
func read(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, publicOf(err)
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, ErrLink
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return nil, ErrKind
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, publicOf(err)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// publicOf drops the path of an error, which the caller names.
func publicOf(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// Empty reports whether the plan changes nothing.
func (p *Plan) Empty() bool {
	return (p.Before == nil) == (p.After == nil) && bytes.Equal(p.Before, p.After)
}

// Change is what a statement says of the plan.
func (p *Plan) Change() *statement.Change {
	return &statement.Change{File: p.Name, Before: digest(p.Before), After: digest(p.After), Lines: Diff(p.Before, p.After)}
}

func digest(data []byte) string {
	if data == nil {
		return ""
	}
	return canonical.DigestText(data)
}

// Writable reports why this process could not make the change, if it could not.
func (p *Plan) Writable() error {
	folder := filepath.Dir(p.Path)
	for {
		if _, err := os.Stat(folder); err == nil || folder == filepath.Dir(folder) {
			break
		}
		folder = filepath.Dir(folder)
	}
	if err := syscall.Access(folder, 2 /* W_OK */); err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	return nil
}

// Line is the first line, counted from 1, in which the two differ, in the file as it is: where a human would edit it.
func (p *Plan) Line() int {
	before, after := lines(p.Before), lines(p.After)
	for i, line := range before {
		if i >= len(after) || line != after[i] {
			return i + 1
		}
	}
	return len(before) + 1
}

// Statement is what the operator signs: the change, as it is shown. audience is the vault's identity.
func Statement(operator, audience string, epoch uint64, now time.Time, c *statement.Change) *statement.Statement {
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindConfig, ID: grant.NewID(), Operator: operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(statementLife)),
		Epoch: epoch, Audience: audience, Change: c,
	}
}

// Write makes the change: a temporary file in the same folder, flushed to the disk, takes the file's place, and the folder is
// flushed too. Owner and mode stay; a new file gets its folder's owner, and may be read by whoever may list the folder.
func (p *Plan) Write() error {
	if err := p.unmoved(); err != nil {
		return err
	}
	folder := filepath.Dir(p.Path)
	if p.After == nil {
		if err := os.Remove(p.Path); err != nil {
			return fmt.Errorf("%s: %w", p.Path, publicOf(err))
		}
		return durable.Sync(folder)
	}
	if err := makeFolder(folder); err != nil {
		return err
	}
	owner, err := p.owner()
	if err != nil {
		return fmt.Errorf("%s: %w", p.Path, publicOf(err))
	}
	if err := durable.ReplaceAs(owner, p.Path, p.After, p.unmoved); err != nil {
		return fmt.Errorf("%s: %w", p.Path, publicOf(err))
	}
	return nil
}

// unmoved reports whether the file is still what the difference was shown of.
func (p *Plan) unmoved() error {
	now, err := read(p.Path)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	if !stillThere(now, p.Before) {
		return fmt.Errorf("%s: %w", p.Path, ErrMoved)
	}
	return nil
}

// owner is whose the file is to be, and its mode.
func (p *Plan) owner() (durable.Owner, error) {
	var mode fs.FileMode
	info, err := os.Lstat(p.Path)
	if p.Before == nil {
		if info, err = os.Stat(filepath.Dir(p.Path)); err != nil {
			return durable.Owner{}, err
		}
		mode = info.Mode().Perm() & 0o644
	} else if err == nil {
		mode = info.Mode().Perm()
	}
	if err != nil {
		return durable.Owner{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return durable.Own(mode), nil
	}
	return durable.Owner{UID: int(st.Uid), GID: int(st.Gid), Mode: mode}, nil
}

// makeFolder makes a folder as the one above it is.
func makeFolder(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	above := filepath.Dir(path)
	if above == path {
		return fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	if err := makeFolder(above); err != nil {
		return err
	}
	info, err := os.Stat(above)
	if err != nil {
		return fmt.Errorf("%s: %w", above, publicOf(err))
	}
	err = os.Mkdir(path, info.Mode().Perm())
	if err == nil {
		err = os.Chmod(path, info.Mode().Perm()) // whatever the umask took: the processes' users read what is in it
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", path, publicOf(err))
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && (int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid()) {
		if err := os.Chown(path, int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("%s: %w", path, publicOf(err))
		}
	}
	return durable.Sync(above)
}
