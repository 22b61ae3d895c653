package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"durward.internal/services/platform/downstream"
)

// maxProgram is the largest program that is started, in bytes.
const maxProgram = 512 << 20

// pinnedProgram returns a copy of an entry's program that holds the very bytes which the lock pins, in a folder where this process alone
// writes: the child gets the copy, so that what was checked is what runs, whatever becomes of the original after the check.
//
// The original is read at each start: a program that was replaced is refused, and not run from an old copy.
func (l *Local) pinnedProgram(p *downstream.Pinned) (copied string, err error) {
	path := p.Entry.Program.Path
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("its program %q is not an absolute, clean path", path)
	}
	from, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("its program %s is not there, or cannot be read by the launcher's user", path)
	}
	defer from.Close()
	if info, err := from.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxProgram {
		return "", fmt.Errorf("its program %s is no file of at most %d MiB", path, maxProgram>>20)
	}
	folder := filepath.Join(l.cfg.State, "programs")
	copied = filepath.Join(folder, hex.EncodeToString(p.ProgramDigest[:]))
	to := io.Discard
	var fresh *os.File
	if held, err := downstream.FileDigest(copied); err != nil || held != p.ProgramDigest {
		if fresh, err = os.CreateTemp(folder, "new-"); err != nil {
			return "", err
		}
		defer func() { _ = fresh.Close(); _ = os.Remove(fresh.Name()) }() // once it has its name, there is nothing to remove
		to = fresh
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(from, maxProgram+1)); err != nil {
		return "", fmt.Errorf("its program %s cannot be read: %w", path, err)
	}
	if !accepted([32]byte(sum.Sum(nil)), p.ProgramDigest) {
		return "", fmt.Errorf("its program %s is not the one that was accepted: look at it, and accept it with `durward server accept %s`", path, p.Entry.ID)
	}
	if fresh == nil {
		return copied, nil
	}
	return copied, errors.Join(fresh.Chmod(0o555), fresh.Close(), os.Rename(fresh.Name(), copied)) // #nosec G302 -- a program, which no one changes
}

// pinnedPackage does for an npm package what pinnedProgram does for a program: it returns a copy of the tree that the lock pins, and the
// program of the package in it. One at a time: a second first start would remove what the first is about to run.
func (l *Local) pinnedPackage(p *downstream.Pinned) (tree, program string, err error) {
	from := filepath.Join(l.cfg.Packages, p.Entry.NPM.Folder())
	is, err := downstream.TreeDigest(from)
	if err != nil {
		return "", "", fmt.Errorf("its package %s is not installed in %s, or not whole: %w", p.Entry.NPM.Name, from, err)
	}
	if !accepted(is, p.ProgramDigest) {
		return "", "", fmt.Errorf("its package %s is not the one that was accepted: look at it, and accept it with `durward server accept %s`", p.Entry.NPM.Name, p.Entry.ID)
	}
	l.packages.Lock()
	defer l.packages.Unlock()
	tree = filepath.Join(l.cfg.State, "programs", hex.EncodeToString(is[:]))
	if held, err := downstream.TreeDigest(tree); err != nil || held != is {
		fresh := tree + ".new"
		if err := errors.Join(os.RemoveAll(fresh), os.RemoveAll(tree), os.CopyFS(fresh, os.DirFS(from))); err != nil {
			return "", "", err
		}
		// What it was copied from may have changed since.
		if held, err := downstream.TreeDigest(fresh); err != nil || held != is {
			return "", "", errors.Join(fmt.Errorf("its package %s changes while it is read", p.Entry.NPM.Name), err)
		}
		if err := os.Rename(fresh, tree); err != nil {
			return "", "", err
		}
	}
	program, err = p.Entry.NPM.Main(tree)
	return tree, program, err
}
