package history

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/logproof"
)

// A folder of tiles is the log in the layout of C2SP's tlog-tiles (https://c2sp.org/tlog-tiles), which any web server or bucket can
// serve and other people's programs can verify: the checkpoint, the tree in tiles of 256 hashes, and the leaves in bundles of 256. A
// leaf holds a record's header and the commitment to its body: bodies are not in the folder.
const (
	tileWidth = 256
	// tilesCheckpoint is the file that is written last: the tiles that it needs are there.
	tilesCheckpoint = "checkpoint"
)

// Tiles is a folder of tiles that is being written.
type Tiles struct {
	dir  string
	keys []note.Verifier
	// had is what the folder holds already; zero for a new one.
	had logproof.Checkpoint
	// size is how many leaves were added, bundle the leaves of the last bundle, levels the hashes of each level's last tile.
	size   uint64
	bundle [][]byte
	levels [][]tlog.Hash
	// lock is the folder, locked: of two exports at once the slower one would put back an older checkpoint.
	lock *os.File
}

// ErrTilesBusy means that another export writes to the folder.
var ErrTilesBusy = errors.New("another export writes to the folder of tiles")

// OpenTiles opens a folder of tiles, or an empty or new folder. The checkpoint in it must be signed by one of the keys. The folder is this
// export's alone until Close.
func OpenTiles(dir string, keys []note.Verifier) (*Tiles, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // it is there to be served to everybody
		return nil, fmt.Errorf("the folder of tiles: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("the folder of tiles: %w", err)
	}
	t := &Tiles{dir: dir, keys: keys, lock: lock}
	// A file system without locks serves one export at a time.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(ErrTilesBusy, t.Close())
	}
	if err := t.open(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close lets other exports write to the folder.
func (t *Tiles) Close() error { return t.lock.Close() }

func (t *Tiles) open() error {
	dir := t.dir
	if err := sweep(filepath.Join(dir, tilesCheckpoint)); err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(dir, tilesCheckpoint))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		names, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("the folder of tiles: %w", err)
		}
		for _, name := range names {
			// An export that was cut off has tiles and no checkpoint yet.
			if name.Name() != "tile" {
				return fmt.Errorf("the folder %s holds other files and no checkpoint: name an empty one", dir)
			}
		}
		return nil
	case err != nil:
		return fmt.Errorf("the folder of tiles: %w", err)
	}
	if t.had, err = logproof.OpenCheckpoint(raw, t.keys); err != nil {
		return fmt.Errorf("the checkpoint in the folder of tiles: %w", err)
	}
	return t.resume()
}

// sweep removes what an export that was killed left beside a file that it was about to write.
func sweep(path string) error {
	dir, begins := filepath.Dir(path), "."+filepath.Base(path)+"."
	names, err := os.ReadDir(dir)
	for _, name := range names {
		if strings.HasPrefix(name.Name(), begins) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("the folder of tiles: %w", err)
	}
	return nil
}

// resume reads the tiles at the edge of what the folder holds. Leaves are added again from the last whole bundle on.
func (t *Tiles) resume() error {
	t.size = t.had.Size / tileWidth * tileWidth
	for level, n := 1, t.had.Size/tileWidth; n > 0; level, n = level+1, n/tileWidth {
		t.grow(level)
		width := int(n % tileWidth)
		if width == 0 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(t.dir, tilePath(level, n/tileWidth, width)))
		if errors.Is(err, fs.ErrNotExist) {
			// An export that was cut off may have written the full tile in its place.
			b, err = os.ReadFile(filepath.Join(t.dir, tilePath(level, n/tileWidth, tileWidth)))
			b = b[:min(len(b), width*tlog.HashSize)]
		}
		if err != nil {
			return fmt.Errorf("the folder of tiles is not whole: %w", err)
		}
		if len(b) != width*tlog.HashSize {
			return fmt.Errorf("the folder of tiles is not whole: %s", tilePath(level, n/tileWidth, width))
		}
		for ; len(b) > 0; b = b[tlog.HashSize:] {
			t.levels[level] = append(t.levels[level], tlog.Hash(b[:tlog.HashSize]))
		}
	}
	return t.compare()
}

func (t *Tiles) grow(level int) {
	for len(t.levels) <= level {
		t.levels = append(t.levels, nil)
	}
}

// From is the index of the entry that Add wants next.
func (t *Tiles) From() uint64 { return t.size }

// Had is how many entries the folder held when it was opened.
func (t *Tiles) Had() uint64 { return t.had.Size }

// Add proves the next entry's parts and writes what becomes whole with it.
func (t *Tiles) Add(e *auditv1.Entry) error {
	if e.GetIndex() != t.size {
		return fmt.Errorf("%w: index %d where %d comes next", logproof.ErrEntry, e.GetIndex(), t.size)
	}
	if err := logproof.VerifyEntry(e); err != nil {
		return fmt.Errorf("entry %d: %w", t.size, err)
	}
	t.size++
	t.bundle = append(t.bundle, e.GetLeaf())
	if len(t.bundle) == tileWidth {
		if err := t.writeBundle(); err != nil {
			return err
		}
		t.bundle = nil
	}
	if err := t.push(0, tlog.Hash(e.GetLeafHash())); err != nil {
		return err
	}
	return t.compare()
}

// compare holds the tree against the checkpoint of the folder, once it has that size.
func (t *Tiles) compare() error {
	if t.size == t.had.Size && t.had.Size > 0 && t.root() != t.had.Root {
		return fmt.Errorf("%w: the log's first %d entries are not those in the folder of tiles", logproof.ErrFork, t.size)
	}
	return nil
}

// push adds a hash to a level, and the root of a tile that is full to the level above.
func (t *Tiles) push(level int, h tlog.Hash) error {
	t.grow(level)
	t.levels[level] = append(t.levels[level], h)
	if len(t.levels[level]) < tileWidth {
		return nil
	}
	if err := t.writeTile(level); err != nil {
		return err
	}
	root := fold(t.levels[level])
	t.levels[level] = nil
	return t.push(level+1, root)
}

// fold is the root of a complete tree.
func fold(hashes []tlog.Hash) tlog.Hash {
	if len(hashes) == 1 {
		return hashes[0]
	}
	half := len(hashes) / 2
	return tlog.NodeHash(fold(hashes[:half]), fold(hashes[half:]))
}

// root is the root of what was added.
func (t *Tiles) root() tlog.Hash {
	var root tlog.Hash
	some := false
	for _, left := range t.levels { // the complete subtrees, right to left
		for width := 1; width < tileWidth; width *= 2 {
			if len(left)&width == 0 {
				continue
			}
			at := len(left) - width
			subtree := fold(left[at:])
			if left = left[:at]; some {
				subtree = tlog.NodeHash(subtree, root)
			}
			root, some = subtree, true
		}
	}
	if !some {
		root, _ = tlog.TreeHash(0, nil) // the empty tree's root reads nothing
	}
	return root
}

// Finish compares the tree with the signed checkpoint, which the caller has proved to extend what the folder held, and writes the
// tiles that are not full, then the checkpoint. It returns how large the log in the folder is.
func (t *Tiles) Finish(checkpoint []byte) (logproof.Checkpoint, error) {
	head, err := logproof.OpenCheckpoint(checkpoint, t.keys)
	if err != nil {
		return logproof.Checkpoint{}, err
	}
	if head.Size != t.size || head.Root != t.root() {
		return logproof.Checkpoint{}, fmt.Errorf("%w: %d entries and the tiles in the folder do not add up to the checkpoint of %d", logproof.ErrFork, t.size, head.Size)
	}
	if len(t.bundle) > 0 {
		if err := t.writeBundle(); err != nil {
			return logproof.Checkpoint{}, err
		}
	}
	for level := range t.levels {
		if len(t.levels[level]) > 0 {
			if err := t.writeTile(level); err != nil {
				return logproof.Checkpoint{}, err
			}
		}
	}
	return head, installdir.WriteFile(filepath.Join(t.dir, tilesCheckpoint), checkpoint, 0o644)
}

func (t *Tiles) writeTile(level int) error {
	hashes := t.levels[level]
	content := make([]byte, 0, len(hashes)*tlog.HashSize)
	for _, h := range hashes {
		content = append(content, h[:]...)
	}
	// Of a level's hashes those of whole tiles are no longer in levels.
	return t.write(level, (t.size>>(8*level)-1)/tileWidth, len(hashes), content)
}

// errLongLeaf: a bundle writes a leaf's length in two bytes.
var errLongLeaf = errors.New("a leaf fits into no bundle of tiles")

func (t *Tiles) writeBundle() error {
	var content []byte
	for _, leaf := range t.bundle {
		if len(leaf) > 1<<16-1 {
			return fmt.Errorf("%w: it has %d bytes", errLongLeaf, len(leaf))
		}
		content = append(binary.BigEndian.AppendUint16(content, uint16(len(leaf))), leaf...)
	}
	return t.write(bundles, (t.size-1)/tileWidth, len(t.bundle), content)
}

// write writes a tile. One that is there already must be the same: what a tile holds never changes.
func (t *Tiles) write(level int, n uint64, width int, content []byte) error {
	path := filepath.Join(t.dir, tilePath(level, n, width))
	switch there, err := os.ReadFile(path); {
	case err == nil && bytes.Equal(there, content):
		return nil
	case err == nil:
		return fmt.Errorf("%w: the tile %s in the folder is another one", logproof.ErrFork, tilePath(level, n, width))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the folder of tiles: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as above
		return fmt.Errorf("the folder of tiles: %w", err)
	}
	if err := sweep(path); err != nil {
		return err
	}
	if err := installdir.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	if width < tileWidth {
		return nil
	}
	// Whoever wants a part of a full tile takes the tile.
	if err := os.RemoveAll(path + ".p"); err != nil {
		return fmt.Errorf("the folder of tiles: %w", err)
	}
	return nil
}

// bundles is the level of the leaves' bundles, below the tree.
const bundles = -1

// tilePath is where a tile lies: as Go's own log has it, but that C2SP's names no height, and calls the leaves entries.
func tilePath(level int, n uint64, width int) string {
	path := tlog.Tile{H: 8, L: level, N: int64(n), W: width}.Path()
	return filepath.FromSlash(strings.Replace(strings.Replace(path, "tile/8/", "tile/", 1), "/data/", "/entries/", 1))
}

// ExportTiles brings a folder of tiles to the newest checkpoint that a quorum of witnesses cosigned, with their cosignatures; where there
// is none, or the folder holds more than it already, to the log's newest. Both are proved to extend what this program kept, and what the
// folder holds. stream is the export from t.From() on, with the size of l.Held() as known.
func (l *Log) ExportTiles(ctx context.Context, stream exporter, t *Tiles) (logproof.Checkpoint, error) {
	var raw []byte
	var end, newest uint64
	err := Each(stream, func(checkpoint []byte, consistency [][]byte) error {
		head, err := l.keeper.AcceptHead(ctx, checkpoint, consistency)
		if err == nil && head.Size < t.had.Size {
			err = fmt.Errorf("%w: %d entries, %d in the folder of tiles", logproof.ErrRollback, head.Size, t.had.Size)
		}
		raw, end, newest = checkpoint, head.Size, head.Size
		if w := l.Witnessed(); !w.IsZero() && w.Size >= t.had.Size && w.Size <= end {
			raw, end = w.Signed, w.Size
		}
		return err
	}, func(c logproof.Checked) error {
		if e := c.Entry(); e.GetIndex() >= end && e.GetIndex() < newest {
			return nil
		}
		return t.Add(c.Entry())
	})
	if err != nil {
		return logproof.Checkpoint{}, err
	}
	return t.Finish(raw)
}
