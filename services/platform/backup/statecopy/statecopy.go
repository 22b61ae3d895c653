// Package statecopy copies what a process keeps while it runs, encrypted to recipients of age, and puts such a copy back. Each program
// that keeps state does so for its own, as its own user (-backup, -restore), so that neither another process nor who carries the parts
// away reads them.
//
// What is put back is older than what happened since: whatever it says was granted, approved or spent is void. A restored vault or sink is
// therefore halted, at an epoch a million above every one that it finds, before its copy takes the state's place. Keys of personal data
// are in no copy.
//
// It trusts its own folder. A part is encrypted and bears no signature: who restores one has verified that it is the one that was made.
package statecopy

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"

	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/reserve"
)

// Names in the state folder.
const (
	copyFolder  = "backup.new"
	stageFolder = "restore.new"
	asidePrefix = "before-restore-"
)

// maxFile bounds files that are no databases.
const maxFile = 1 << 20

// Part says what of a process's state a backup holds.
type Part struct {
	// Service is the program's name, Version its version.
	Service, Version string
	StateDir         string
	// Elsewhere is why there is no such state here, as a sentence; "": it is.
	Elsewhere string
	// Databases are SQLite files in the state folder, and Files small ones beside them, which are copied where they exist.
	Databases, Files []string
	// Anew are databases that are in no backup and begin anew: what waits in a spool belongs to another history.
	Anew []string
	// Ends are what is in no backup and does not outlive a restore: files, and folders of keys, which are overwritten.
	Ends []string
	// Head adds what is told in the clear of the copy in that folder; nil: nothing.
	Head func(ctx context.Context, folder string, h *backup.Head) error
	// Control is the database whose table control has an epoch; "": there is none. Halt halts the state in that folder at one.
	Control string
	Halt    func(ctx context.Context, folder string, epoch uint64) error
	// Check judges the copy in that folder before it takes the state's place, and may add to it; nil: nothing does.
	Check func(ctx context.Context, folder string, given backup.Given) error
}

// Write copies the state and writes the part: a line, and then the encrypted archive.
func (p Part) Write(ctx context.Context, out io.Writer, recipients []age.Recipient) (err error) {
	if p.Elsewhere != "" {
		return errors.New(p.Elsewhere)
	}
	folder := filepath.Join(p.StateDir, copyFolder)
	unlock, err := process.LockState(folder)
	if err != nil {
		return fmt.Errorf("another backup of it is being made, or its folder cannot be written: %w", plain(err))
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder), unlock()) }()
	if err := empty(folder); err != nil { // of one that was cut off
		return err
	}
	// Keys go before what they open, and have to be the same afterwards.
	names, err := p.copyFiles(folder)
	if err != nil {
		return err
	}
	for _, name := range p.Databases {
		if err := database.Copy(ctx, filepath.Join(p.StateDir, name), filepath.Join(folder, name)); err != nil {
			return fmt.Errorf("%s could not be copied, for which %s needs room for it once more: %w", name, p.StateDir, plain(err))
		}
	}
	for _, name := range p.Files {
		before, err1 := read(filepath.Join(folder, name))
		after, err2 := read(filepath.Join(p.StateDir, name))
		if errors.Is(err1, fs.ErrNotExist) && errors.Is(err2, fs.ErrNotExist) {
			continue
		}
		if errors.Join(err1, err2) != nil || !bytes.Equal(before, after) {
			return fmt.Errorf("%s was replaced while the copy was made: try again", name)
		}
	}
	names = append(names, p.Databases...)
	head := backup.Head{Format: backup.Format, Service: p.Service, Version: p.Version}
	if p.Control != "" {
		if head.Epoch, err = p.epoch(ctx, folder); err != nil {
			return fmt.Errorf("the copy has no epoch: %w", err)
		}
	}
	if p.Head != nil {
		if err := p.Head(ctx, folder, &head); err != nil {
			return err
		}
	}
	line, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if _, err := out.Write(append(line, '\n')); err != nil {
		return err
	}
	sealed, err := age.Encrypt(out, recipients...)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(sealed)
	for _, name := range names {
		if err := add(archive, folder, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return errors.Join(archive.Close(), sealed.Close())
}

// copyFiles copies the small files that there are, and returns their names.
func (p Part) copyFiles(folder string) (names []string, err error) {
	for _, name := range p.Files {
		raw, err := read(filepath.Join(p.StateDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), raw, 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("%s could not be copied: %w", name, plain(err))
		}
		names = append(names, name)
	}
	return names, nil
}

func add(archive *tar.Writer, folder, name string) error {
	f, err := os.Open(filepath.Join(folder, name)) // #nosec G304 G703 -- in the state folder
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: info.Size(), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(archive, f)
	return err
}

// Restore puts a part in the state's place. Until all of it is verified and on the disk, nothing is changed; what was there is then kept
// beside it, but for what ends. A part that is to be judged alone is verified so, and changes nothing. The process must not run.
func (p Part) Restore(ctx context.Context, in *bufio.Reader, given backup.Given, now time.Time) (err error) {
	if p.Elsewhere != "" {
		return errors.New(p.Elsewhere)
	}
	unlock, err := process.LockUnfinished(p.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	given.At = now
	stage := filepath.Join(p.StateDir, stageFolder)
	if err := errors.Join(os.RemoveAll(stage), os.Mkdir(stage, 0o700)); err != nil {
		return fmt.Errorf("nothing was changed: %w", plain(err))
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	if err := p.stage(ctx, in, given, stage); err != nil {
		return fmt.Errorf("nothing was changed: %w", plain(err))
	}
	if given.Judge {
		return nil
	}
	return p.swap(stage, now)
}

// stage unpacks and judges a part.
func (p Part) stage(ctx context.Context, in *bufio.Reader, given backup.Given, stage string) error {
	head, err := backup.ReadHead(in)
	if err != nil {
		return err
	}
	if head.Service != p.Service {
		return fmt.Errorf("the part is %q's", head.Service)
	}
	opened, err := backup.Decrypt(in, given.Identities)
	if err != nil {
		return err
	}
	if err := p.unpack(tar.NewReader(opened), stage); err != nil {
		return err
	}
	if p.Check != nil {
		if err := p.Check(ctx, stage, given); err != nil {
			return err
		}
	}
	if p.Control != "" && voids(p.StateDir) {
		epoch, err := p.epoch(ctx, stage)
		if err != nil {
			return err
		}
		// What is there may be damaged, or gone: that is what restores are for. It may also lie aside, of a restore that broke off.
		for _, folder := range append(p.aside(), p.StateDir) {
			if now, err := p.epoch(ctx, folder); err == nil {
				epoch = max(epoch, now)
			}
		}
		if err := p.Halt(ctx, stage, epoch+backup.EpochJump); err != nil {
			return err
		}
	}
	return syncAll(stage)
}

// aside are the folders of what restores put aside.
func (p Part) aside() (folders []string) {
	files, _ := os.ReadDir(p.StateDir) // one that cannot be read takes no copy either
	for _, f := range files {
		if f.IsDir() && strings.HasPrefix(f.Name(), asidePrefix) {
			folders = append(folders, filepath.Join(p.StateDir, f.Name()))
		}
	}
	return folders
}

// epoch reads the epoch of the state in a folder.
func (p Part) epoch(ctx context.Context, folder string) (uint64, error) {
	n, err := database.Number(ctx, filepath.Join(folder, p.Control), `SELECT epoch FROM control`)
	return uint64(max(n, 0)), err
}

func (p Part) unpack(archive *tar.Reader, stage string) error {
	cut := func(err error) error {
		return fmt.Errorf("the backup is damaged, or was not written to its end: %w", plain(err))
	}
	missing := slices.Clone(p.Databases)
	seen := map[string]bool{}
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return cut(err)
		}
		known := slices.Contains(p.Databases, h.Name) || slices.Contains(p.Files, h.Name)
		if !known || seen[h.Name] || h.Typeflag != tar.TypeReg {
			return fmt.Errorf("the backup holds %q, which %s does not keep", h.Name, p.Service)
		}
		seen[h.Name] = true
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == h.Name })
		f, err := os.OpenFile(filepath.Join(stage, h.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // #nosec G305 -- a known name in the state folder
		if err != nil {
			return err
		}
		_, err = io.Copy(f, archive) // #nosec G110 -- nothing is compressed
		if err = errors.Join(err, f.Close()); err != nil {
			if reserve.Full(err) {
				return err
			}
			return cut(err)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the backup lacks %s", strings.Join(missing, ", "))
	}
	return nil
}

// swap gives the staged files the state's place. A process whose restore broke off here does not start: process.LockState.
func (p Part) swap(stage string, now time.Time) error {
	mark := filepath.Join(p.StateDir, process.Unfinished)
	if err := errors.Join(os.WriteFile(mark, nil, 0o600), durable.Sync(p.StateDir)); err != nil {
		return err
	}
	aside := filepath.Join(p.StateDir, asidePrefix+now.UTC().Format("20060102T150405.000Z"))
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}
	old := slices.Concat(p.Files, []string{database.KeyFile + ".new"})
	for _, name := range slices.Concat(p.Databases, p.Anew) {
		old = append(old, name, name+"-wal", name+"-shm", name+"-journal")
	}
	for _, name := range old {
		if err := os.Rename(filepath.Join(p.StateDir, name), filepath.Join(aside, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range p.Ends {
		if err := destroy(filepath.Join(p.StateDir, name)); err != nil {
			return err
		}
	}
	staged, err := os.ReadDir(stage)
	if err != nil {
		return err
	}
	for _, f := range staged {
		if err := os.Rename(filepath.Join(stage, f.Name()), filepath.Join(p.StateDir, f.Name())); err != nil {
			return err
		}
	}
	if err := durable.Sync(p.StateDir); err != nil {
		return err
	}
	_ = os.Remove(aside) // only an empty one goes: there was nothing before
	return errors.Join(os.Remove(mark), durable.Sync(p.StateDir))
}

// destroy overwrites a file, or the files of a folder, and removes it.
func destroy(path string) error {
	return errors.Join(filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // #nosec G304 G122 -- in the process's own state folder
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			_, err = f.Write(make([]byte, min(info.Size(), maxFile)))
		}
		return errors.Join(err, f.Sync(), f.Close())
	}), os.RemoveAll(path))
}

func empty(folder string) error {
	files, err := os.ReadDir(folder)
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(folder, f.Name())))
	}
	return err
}

func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0) // #nosec G304 G703 -- in the state folder
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = errors.New("it is too large")
	}
	return raw, err
}

func syncAll(folder string) error {
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := durable.Sync(filepath.Join(folder, f.Name())); err != nil {
			return err
		}
	}
	return durable.Sync(folder)
}

// plain is an error in words where the disk is full.
func plain(err error) error {
	if reserve.Full(err) {
		return errors.New("the disk is full")
	}
	return err
}
