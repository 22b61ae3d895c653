// Package backupfile is the file that durward backup writes: the processes' parts, each as its process encrypted it, and a list of their
// digests that the log's key signed, so that nobody who keeps the file can put other parts into it. It is a ZIP archive without
// compression.
//
// It runs in the operator's program, and trusts the log's key. It can read no part.
package backupfile

import (
	"archive/zip"
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	"time"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/durable"
)

// Format begins the signed list. No log has that name.
const Format = "durward-backup/1"

// listName is the list's name in the archive; parts are called after their services.
const (
	listName   = "parts.signed"
	partSuffix = ".part"
)

// maxList bounds the list.
const maxList = 1 << 20

// List is what was signed.
type List struct {
	// Made is when the backup was made, by this host's clock.
	Made    time.Time `json:"made"`
	Version string    `json:"version"`
	// Parts are in the order in which they were made.
	Parts []Part `json:"parts"`
}

// Part is one process's.
type Part struct {
	Head   backup.Head `json:"head"`
	Bytes  int64       `json:"bytes"`
	SHA256 string      `json:"sha256"`
}

// Log is the part that is the log's head; nil: there is none.
func (l List) Log() *backup.Head {
	for i, p := range l.Parts {
		if p.Head.Service == "audit" {
			return &l.Parts[i].Head
		}
	}
	return nil
}

// Epoch is the highest epoch of any part.
func (l List) Epoch() (epoch uint64) {
	for _, p := range l.Parts {
		epoch = max(epoch, p.Head.Epoch)
	}
	return epoch
}

// Writer writes a file, which gets its name when it is whole.
type Writer struct {
	path string
	file *os.File
	zip  *zip.Writer
	list List
}

// Create begins a file that must not be there.
func Create(path, version string, now time.Time) (*Writer, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s is there already", path)
	}
	removeLeft(filepath.Dir(path))
	f, err := createLocked(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return &Writer{path: path, file: f, zip: zip.NewWriter(f), list: List{Made: now.UTC().Truncate(time.Second), Version: version}}, nil
}

// unfinished is what a file is called until it has its name, with a number behind it. Its writer holds a lock on it: one that nobody holds
// was left by a program that was killed.
const unfinished = ".durward-backup."

func createLocked(folder string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(folder, unfinished+"*")
		if err != nil {
			return nil, err
		}
		// Where the file system has no locks, none is ever taken for left.
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if _, err := os.Lstat(f.Name()); err == nil {
			return f, nil
		}
		_ = f.Close() // another backup took it for left before it was locked
	}
}

// removeLeft removes what earlier backups left unfinished in a folder. What cannot be removed stays: the backup is what matters.
func removeLeft(folder string) {
	files, _ := os.ReadDir(folder)
	for _, file := range files {
		number, ours := strings.CutPrefix(file.Name(), unfinished)
		if _, err := strconv.ParseUint(number, 10, 64); !ours || err != nil {
			continue
		}
		path := filepath.Join(folder, file.Name())
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if owned(f) && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.Remove(path)
		}
		_ = f.Close()
	}
}

// owned reports whether it is a file of this user's.
func owned(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// Add copies a service's part to the file. run writes it.
func (w *Writer) Add(service string, run func(io.Writer) error) error {
	entry, err := w.zip.CreateHeader(&zip.FileHeader{Name: service + partSuffix, Method: zip.Store, Modified: w.list.Made})
	if err != nil {
		return err
	}
	sum, into := sha256.New(), &counter{first: new(strings.Builder)}
	to := &destination{w: entry}
	if err := run(io.MultiWriter(to, sum, into)); err != nil || to.err != nil {
		return cmp.Or(to.err, err)
	}
	head, err := backup.ReadHead(bufio.NewReaderSize(strings.NewReader(into.first.String()), firstBytes))
	if err != nil || head.Service != service {
		return errors.Join(err, errors.New("it wrote no part of a backup"))
	}
	w.list.Parts = append(w.list.Parts, Part{Head: head, Bytes: into.bytes, SHA256: hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// destination keeps why the file could not be written: the program that writes the part then has but a broken pipe to tell of.
type destination struct {
	w   io.Writer
	err error
}

func (d *destination) Write(b []byte) (int, error) {
	n, err := d.w.Write(b)
	d.err = cmp.Or(d.err, err)
	return n, err
}

// firstBytes is as long as a part's first line may be.
const firstBytes = 64 << 10

// counter counts, and keeps the beginning.
type counter struct {
	first *strings.Builder
	bytes int64
}

func (c *counter) Write(b []byte) (int, error) {
	if room := firstBytes - c.first.Len(); room > 0 {
		c.first.Write(b[:min(room, len(b))])
	}
	c.bytes += int64(len(b))
	return len(b), nil
}

// Finish signs the list and gives the file its name, on the disk when it returns.
func (w *Writer) Finish(signer note.Signer) (List, error) {
	raw, err := json.Marshal(w.list)
	if err != nil {
		return List{}, err
	}
	signed, err := note.Sign(&note.Note{Text: Format + "\n" + string(raw) + "\n"}, signer)
	if err != nil {
		return List{}, err
	}
	entry, err := w.zip.CreateHeader(&zip.FileHeader{Name: listName, Method: zip.Store, Modified: w.list.Made})
	if err == nil {
		_, err = entry.Write(signed)
	}
	if err = errors.Join(err, w.zip.Close(), w.file.Sync(), w.file.Close()); err == nil {
		err = giveName(w.file.Name(), w.path)
	}
	if gone := os.Remove(w.file.Name()); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return w.list, errors.Join(err, durable.Sync(filepath.Dir(w.path)))
}

// link is os.Link; a variable, since no test has a file system without links.
var link = os.Link

// giveName gives a file its name, and never over a file that came meanwhile. Where there are no hard links, as on exFAT, the name is taken first.
func giveName(file, name string) error {
	err := link(file, name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	taken, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(taken.Close(), os.Rename(file, name)); err != nil {
		err = errors.Join(err, os.Remove(name)) // an empty file is no backup
	}
	return err
}

// nameLayout is what a backup is called that is made in a folder.
const nameLayout = "durward-20060102T150405Z.backup"

// Name is what a backup is called that is made in a folder at that time.
func Name(now time.Time) string { return now.UTC().Format(nameLayout) }

// Keep removes the backups beside made, the one that was just made, that have such names, but for the newest n with it, and returns the names of
// those that it removed. A name of a later time than made's is of a clock that was ahead, and counts as older.
func Keep(made string, n int) (removed []string, err error) {
	folder, name := filepath.Split(made)
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(f os.DirEntry) bool {
		_, err := time.Parse(nameLayout, f.Name())
		return err != nil || !f.Type().IsRegular()
	})
	at := 1 + slices.IndexFunc(files, func(f os.DirEntry) bool { return f.Name() == name })
	files = slices.Concat(files[at:], files[:at])
	for _, f := range files[:max(len(files)-n, 0)] {
		if err := os.Remove(filepath.Join(folder, f.Name())); err != nil {
			return removed, err
		}
		removed = append(removed, f.Name())
	}
	return removed, durable.Sync(folder)
}

// Abort removes what was written.
func (w *Writer) Abort() { _ = errors.Join(w.file.Close(), os.Remove(w.file.Name())) }

// File is an open file whose list and parts were verified.
type File struct {
	List
	file *zip.ReadCloser
}

// Open reads a file and holds every part to the list, and that to the log's keys.
func Open(path string, keys []note.Verifier) (*File, error) {
	z, err := zip.OpenReader(path)
	if errors.Is(err, zip.ErrFormat) {
		return nil, errors.New("it is no backup, or was not written to its end")
	}
	if err != nil {
		return nil, err
	}
	f := &File{file: z}
	if err := f.verify(keys); err != nil {
		return nil, errors.Join(err, z.Close())
	}
	return f, nil
}

func (f *File) verify(keys []note.Verifier) error {
	listed, err := f.file.Open(listName)
	if err != nil {
		return errors.New("it has no list of its parts")
	}
	raw, err := io.ReadAll(io.LimitReader(listed, maxList))
	if err != nil {
		return fmt.Errorf("its list cannot be read: %w", err)
	}
	signed, err := note.Open(raw, note.VerifierList(keys...))
	if err != nil {
		return errors.New("its list is not signed by a key in the trust folder's log_keys: it is another installation's, or somebody made it")
	}
	text, ok := strings.CutPrefix(signed.Text, Format+"\n")
	if !ok || json.Unmarshal([]byte(text), &f.List) != nil {
		return errors.New("its list is of another version")
	}
	for _, p := range f.Parts {
		in, err := f.Part(p.Head.Service)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, in)
		if err = errors.Join(err, in.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether there is a part of a service.
func (f *File) Has(service string) bool {
	return slices.ContainsFunc(f.Parts, func(p Part) bool { return p.Head.Service == service })
}

// Close closes it.
func (f *File) Close() error { return f.file.Close() }
