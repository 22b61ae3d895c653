// Package filewatch reads files again when they have changed: trust roots, certificates, the catalogue, clients, rules.
//
// It is the one place that decides when a file is another: by device, inode, size, owner, mode and both times, of the file and of a
// symbolic link that leads to it. A change counts once it looked the same at two looks, so that a file is not read while an
// editor writes it. What was written within the grain of a file system's clock is read once more, since a second change in the
// same grain looks like the first. What could not be loaded is tried at each look, until it is good. Everything is loaded again each
// minute however it looks, since a file system of the network, or a program that writes through mapped memory, may keep a file's times;
// so load must do nothing where the content is the same.
//
// Every process may link it. It looks, and reads nothing: who may have written a file is package ownership's question.
package filewatch

import (
	"context"
	"maps"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"durward.internal/services/platform/clock"
)

const (
	// Interval is how often files are looked at: two looks, and so a change, fit into a second.
	Interval = 400 * time.Millisecond
	// grain is the coarsest clock of file times that is met: 2 s on FAT, 1 s on old file systems of the network.
	grain = 2 * time.Second
	// rereadEvery is how often files are loaded that look the same.
	rereadEvery = time.Minute
)

// Stamp tells versions of a file apart without reading it. The zero Stamp: nothing is there, or nothing that this process may look at;
// only reading tells which.
type Stamp struct {
	Device, Inode     uint64
	Size              int64
	Modified, Changed int64 // Unix time, ns; a file's owner cannot set Changed
	Mode              uint32
	UID, GID          uint32
	// Link is the inode of the symbolic link that leads to it; 0: none.
	Link uint64
}

// StampOf looks at a path, through a symbolic link and at the link itself.
func StampOf(path string) Stamp {
	var st syscall.Stat_t
	if syscall.Lstat(path, &st) != nil {
		return Stamp{}
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFLNK {
		return Of(&st)
	}
	link := st.Ino
	if syscall.Stat(path, &st) != nil {
		return Stamp{Link: link}
	}
	stamp := Of(&st)
	stamp.Link = link
	return stamp
}

// Of is the Stamp of what was looked at already.
func Of(st *syscall.Stat_t) Stamp {
	return compared(Stamp{
		Device: st.Dev, Inode: st.Ino, Size: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano(),
		Mode: st.Mode, UID: st.Uid, GID: st.Gid,
	})
}

// Stamps are Stamps by names of the caller's choice.
type Stamps map[string]Stamp

// Paths returns what looks at these paths.
func Paths(paths ...string) func() Stamps {
	return func() Stamps {
		s := make(Stamps, len(paths))
		for _, path := range paths {
			s[path] = StampOf(path)
		}
		return s
	}
}

// Above adds the folders above a path, of which owner and mode count: who may write one may put another file in its place.
func (s Stamps) Above(path string) {
	for dir := filepath.Dir(filepath.Clean(path)); ; dir = filepath.Dir(dir) {
		one := StampOf(dir)
		s["above "+dir] = Stamp{Device: one.Device, Inode: one.Inode, Mode: one.Mode, UID: one.UID, GID: one.GID, Link: one.Link}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// settled reports whether another change would look different.
func (s Stamps) settled(now time.Time) bool {
	for _, one := range s {
		if one.Changed > now.Add(-grain).UnixNano() {
			return false
		}
	}
	return true
}

// Watcher loads files again when they have changed. It is safe for concurrent use.
type Watcher struct {
	look func() Stamps
	load func() error

	mu      sync.Mutex // held while loading
	seen    Stamps
	settled bool
	read    time.Time

	failed  sync.Mutex
	failure error

	cancel  context.CancelFunc
	stopped sync.WaitGroup
}

// New returns a Watcher that has loaded nothing and does not watch before Run. load is called once at a time, at least once a minute.
func New(look func() Stamps, load func() error) *Watcher {
	return &Watcher{look: look, load: load, cancel: func() {}}
}

// Open loads the files, which must be good, and watches them until Close.
func Open(look func() Stamps, load func() error) (*Watcher, error) {
	w := New(look, load)
	if err := w.Reload(); err != nil {
		return nil, err
	}
	w.Start()
	return w, nil
}

// Start watches until Close.
func (w *Watcher) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.stopped.Go(func() { w.Run(ctx) })
}

// Close ends the watch that Start began, and waits for what it is loading. load must not call it.
func (w *Watcher) Close() {
	w.cancel()
	w.stopped.Wait()
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	var last Stamps
	for clock.Every(ctx, Interval) {
		now := w.look()
		if maps.Equal(now, last) && w.due(now) {
			_ = w.Reload() // Err keeps it
		}
		last = now
	}
}

func (w *Watcher) due(now Stamps) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Err() != nil || !maps.Equal(now, w.seen) || !w.settled && now.settled(time.Now()) || time.Since(w.read) >= rereadEvery
}

// Reload loads the files now, instead of within a second.
func (w *Watcher) Reload() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Looked at before they are read, so that a change during the reading is seen at the next look.
	w.seen = w.look()
	w.read = time.Now()
	w.settled = w.seen.settled(w.read)
	err := w.load()
	w.failed.Lock()
	defer w.failed.Unlock()
	w.failure = err
	return err
}

// Err is why the files as they are now were not taken up, or nil.
func (w *Watcher) Err() error {
	w.failed.Lock()
	defer w.failed.Unlock()
	return w.failure
}
