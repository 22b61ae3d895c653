package history

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/trust"
)

// tileReader reads a folder of tiles as tlog wants them; tlog proves each tile that it reads against the tree.
type tileReader struct{ dir string }

func (tileReader) Height() int { return 8 }

func (r tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var out [][]byte
	for _, tile := range tiles {
		b, err := os.ReadFile(filepath.Join(r.dir, tilePath(tile.L, uint64(tile.N), tile.W)))
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

func (tileReader) SaveTiles([]tlog.Tile, [][]byte) {}

// leaves reads every leaf in the bundles of a log of that size.
func leaves(t *testing.T, dir string, size uint64) [][]byte {
	t.Helper()
	var out [][]byte
	for n := uint64(0); n*tileWidth < size; n++ {
		width := min(size-n*tileWidth, tileWidth)
		b := testfile.Read(t, filepath.Join(dir, tilePath(bundles, n, int(width))))
		for ; len(b) > 0; width-- {
			length := int(binary.BigEndian.Uint16(b))
			out, b = append(out, b[2:2+length]), b[2+length:]
		}
		if width != 0 {
			t.Fatalf("bundle %d is of another width", n)
		}
	}
	return out
}

func TestTilePath(t *testing.T) {
	for _, tc := range []struct {
		level int
		n     uint64
		width int
		want  string
	}{
		{0, 0, 256, "tile/0/000"},
		{0, 67, 256, "tile/0/067"},
		{1, 1067, 256, "tile/1/x001/067"},
		{0, 1234067, 256, "tile/0/x001/x234/067"},
		{bundles, 1234067, 1, "tile/entries/x001/x234/067.p/1"},
		{3, 0, 255, "tile/3/000.p/255"},
	} {
		if got := tilePath(tc.level, tc.n, tc.width); got != tc.want {
			t.Errorf("%s, not %s", got, tc.want)
		}
	}
}

func (l *log) tiles(t *testing.T, dir string, view *Log) (logproof.Checkpoint, error) {
	t.Helper()
	tiles, err := OpenTiles(dir, l.kit.Trust.Current().LogKeys)
	if err != nil {
		return logproof.Checkpoint{}, err
	}
	defer func() { _ = tiles.Close() }()
	if _, err := OpenTiles(dir, l.kit.Trust.Current().LogKeys); !errors.Is(err, ErrTilesBusy) {
		t.Errorf("two exports to one folder: %v", err)
	}
	stream := &export{parts: []*auditv1.ExportLogResponse{
		{Checkpoint: l.checkpoint(), Consistency: l.consistency(view.Held().Size)}, {Entries: l.entries[tiles.From():]},
	}}
	return view.ExportTiles(t.Context(), stream, tiles)
}

// TestTiles brings one folder from export to export, and reads it as a stranger does after each.
func TestTiles(t *testing.T) {
	l := newLog(t)
	view, dir := l.open(t.TempDir()), filepath.Join(t.TempDir(), "tiles")
	var whole map[string]string
	for _, grow := range []int{1, 254, 1, 1, 200, 56, 0, 130} {
		for range grow {
			l.add(&auditv1.Record{Sequence: uint64(len(l.entries)) + 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: &auditv1.Body{Summary: "never to be seen"}})
		}
		head, err := l.tiles(t, dir, view)
		if err != nil {
			t.Fatalf("%d entries: %v", l.size(), err)
		}
		raw := testfile.Read(t, filepath.Join(dir, tilesCheckpoint))
		tree, err := tlog.ParseTree([]byte("go.sum database tree\n" + strings.SplitN(strings.SplitN(string(raw), "\n\n", 2)[0], "\n", 2)[1] + "\n"))
		if err != nil || tree.N != l.size() || head.Size != uint64(l.size()) {
			t.Fatalf("the checkpoint is of %d entries, %v", tree.N, err)
		}
		reader := tlog.TileHashReader(tree, tileReader{dir})
		for i, leaf := range leaves(t, dir, head.Size) {
			if got, err := reader.ReadHashes([]int64{tlog.StoredHashIndex(0, int64(i))}); err != nil || got[0] != tlog.RecordHash(leaf) {
				t.Fatalf("%d entries: leaf %d is not in the tree: %v", tree.N, i, err)
			}
			if strings.Contains(string(leaf), "never to be seen") {
				t.Fatal("a body is in the folder")
			}
		}
		files := wholeTiles(t, dir)
		for name, content := range whole {
			if files[name] != content {
				t.Errorf("%d entries: the full tile %s was changed", tree.N, name)
			}
		}
		whole = files
	}
	if len(whole) != 4 { // two of 256 hashes, and their leaves
		t.Errorf("%d full tiles: %v", len(whole), slices.Sorted(maps.Keys(whole)))
	}
	if _, err := os.Stat(filepath.Join(dir, "tile/0/000.p")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("parts of a full tile are left: %v", err)
	}
}

// wholeTiles are the full tiles in a folder.
func wholeTiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(filepath.Join(dir, "tile"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, ".p/") {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = string(b)
		return err
	})
	must(t, err)
	return out
}

// TestTilesRefuse: a folder that was changed, another log's, and a log that does not go on from the folder.
func TestTilesRefuse(t *testing.T) {
	grow := func(l *log, n int, said string) {
		for range n {
			l.add(&auditv1.Record{Sequence: uint64(len(l.entries)) + 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: &auditv1.Body{Summary: said}})
		}
	}
	edit := func(name string) func(*testing.T, *log, string) {
		return func(t *testing.T, _ *log, dir string) {
			path := filepath.Join(dir, filepath.FromSlash(name))
			b := testfile.Read(t, path)
			b[len(b)-1] ^= 1
			must(t, os.WriteFile(path, b, 0o644))
		}
	}
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, l *log, dir string)
		want  error
	}{
		{"nothing", func(*testing.T, *log, string) {}, nil},
		{"the hashes of full tiles changed", edit("tile/1/000.p/1"), logproof.ErrFork},
		{"the hashes at the edge changed", edit("tile/0/001.p/44"), logproof.ErrFork},
		{"the leaves at the edge changed", edit("tile/entries/001.p/44"), logproof.ErrFork},
		{"a tile that cannot be read", func(t *testing.T, _ *log, dir string) {
			path := filepath.Join(dir, "tile/0/001.p/44")
			must(t, errors.Join(os.Remove(path), os.Symlink(filepath.Base(path), path)))
		}, syscall.ELOOP},
		{"the checkpoint changed", edit("checkpoint"), logproof.ErrFormat},
		{"the edge missing", func(t *testing.T, _ *log, dir string) {
			must(t, os.Remove(filepath.Join(dir, "tile/1/000.p/1")))
		}, fs.ErrNotExist},
		{"history rewritten and grown", func(_ *testing.T, l *log, _ string) {
			l.entries, l.hashes = nil, nil
			grow(l, 400, "another")
		}, logproof.ErrFork},
		{"the edge alone rewritten and grown", func(_ *testing.T, l *log, _ string) {
			l.entries, l.hashes = l.entries[:290], l.hashes[:tlog.StoredHashCount(290)]
			grow(l, 60, "another")
		}, logproof.ErrFork},
		{"a leaf that is too long for a bundle", func(_ *testing.T, l *log, _ string) {
			l.add(&auditv1.Record{Sequence: 301, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Tool: strings.Repeat("x", 1<<16)})
		}, errLongLeaf},
		{"history put back", func(_ *testing.T, l *log, _ string) {
			l.entries, l.hashes = l.entries[:290], l.hashes[:tlog.StoredHashCount(290)]
		}, logproof.ErrRollback},
		{"an entry changed on the way", func(_ *testing.T, l *log, _ string) {
			grow(l, 1, "one")
			l.entries[300].Record.Tool = "stop_service"
		}, logproof.ErrEntry},
		{"an entry missing on the way", func(_ *testing.T, l *log, _ string) {
			grow(l, 2, "one")
			l.entries = slices.Delete(l.entries, 300, 301)
		}, logproof.ErrEntry},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLog(t)
			grow(l, 300, "one")
			dir := filepath.Join(t.TempDir(), "tiles")
			if _, err := l.tiles(t, dir, l.open(t.TempDir())); err != nil {
				t.Fatal(err)
			}
			before := testfile.Read(t, filepath.Join(dir, tilesCheckpoint))
			tc.spoil(t, l, dir)
			if tc.want != nil {
				before, _ = os.ReadFile(filepath.Join(dir, tilesCheckpoint))
			}
			// Somebody else's program, which has kept nothing: the folder alone speaks.
			if _, err := l.tiles(t, dir, l.open(t.TempDir())); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, tilesCheckpoint)); string(after) != string(before) {
				t.Error("the folder's checkpoint was replaced")
			}
		})
	}
	l := newLog(t)
	grow(l, 300, "one")
	dir, view := filepath.Join(t.TempDir(), "tiles"), l.open(t.TempDir())
	tiles, err := OpenTiles(dir, l.kit.Trust.Current().LogKeys)
	must(t, err)
	short := &export{parts: []*auditv1.ExportLogResponse{{Checkpoint: l.checkpoint()}, {Entries: l.entries[:299]}}}
	if _, err := view.ExportTiles(t.Context(), short, tiles); !errors.Is(err, logproof.ErrFork) {
		t.Errorf("an export that ends before its checkpoint does: %v", err)
	}
	if err := tiles.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.tiles(t, dir, view); err != nil {
		t.Fatal(err)
	}
	must(t, os.Truncate(filepath.Join(dir, "tile/1/000.p/1"), 31))
	if _, err := l.tiles(t, dir, view); err == nil || !strings.Contains(err.Error(), "the folder of tiles is not whole") {
		t.Errorf("an edge that was cut: %v", err)
	}
	testfile.Write(t, filepath.Join(l.kit.Dir, "other"), "")
	if _, err := OpenTiles(l.kit.Dir, l.kit.Trust.Current().LogKeys); err == nil {
		t.Error("a folder with other files in it was taken")
	}
}

// TestTilesAfterAKill: an export that was killed while it wrote a file leaves a temporary one beside it; the next export goes on from there,
// and leaves none.
func TestTilesAfterAKill(t *testing.T) {
	l := newLog(t)
	for i := range uint64(300) {
		l.add(&auditv1.Record{Sequence: i + 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: &auditv1.Body{Summary: "one"}})
	}
	dir, view := filepath.Join(t.TempDir(), "tiles"), l.open(t.TempDir())
	must(t, os.MkdirAll(filepath.Join(dir, "tile/0"), 0o700))
	left := []string{filepath.Join(dir, ".checkpoint.123"), filepath.Join(dir, "tile/0/.000.456")}
	for _, path := range left {
		testfile.Write(t, path, "half")
	}
	if _, err := l.tiles(t, dir, view); err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// TestTilesAreCosigned: a folder ends at the newest checkpoint that a quorum cosigned, with their cosignatures, and goes on from it;
// where it holds more than that already, or nobody cosigns, it ends at the log's newest.
func TestTilesAreCosigned(t *testing.T) {
	l, dir := newLog(t), filepath.Join(t.TempDir(), "tiles")
	signer, err := logproof.NewCosigner("witness.example/one", ed25519.NewKeyFromSeed(make([]byte, 32)), func() time.Time { return testNow })
	l.must(err)
	l.kit.WriteTrust(trust.FileWitnesses, fmt.Appendf(nil, "quorum: 1\nwitnesses: [%q]\n", signer.String()))
	l.must(l.kit.Trust.Reload())
	grow := func(n int) {
		for range n {
			l.add(&auditv1.Record{Sequence: uint64(len(l.entries)) + 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.New(testNow), Body: remark("one")})
		}
	}
	state := t.TempDir()
	for _, tc := range []struct {
		name     string
		before   int // how much the log grows before it is cosigned
		cosigned bool
		after    int
		size     uint64
		quorum   bool
	}{
		{"never cosigned", 290, false, 0, 290, false},
		{"the log grew on after that", 20, true, 10, 310, true},
		{"as before", 0, false, 5, 310, true},
		{"over the end of a tile", 200, true, 3, 525, true},
	} {
		grow(tc.before)
		if tc.cosigned {
			opened, err := note.Open(l.checkpoint(), note.VerifierList(l.kit.Trust.Current().LogKeys...))
			l.must(err)
			l.cosigned, err = note.Sign(opened, signer)
			l.must(err)
			l.cosignedAt = uint64(l.size())
		}
		grow(tc.after)
		view := l.open(state)
		_, err := view.Keep(t.Context())
		l.must(err)
		head, err := l.tiles(t, dir, view)
		l.must(errors.Join(err, view.Close()))
		raw, err := os.ReadFile(filepath.Join(dir, tilesCheckpoint))
		l.must(err)
		_, err = l.kit.Trust.Current().Witnesses.OpenWitnessed(raw, l.kit.Trust.Current().LogKeys, testNow)
		if head.Size != tc.size || (err == nil) != tc.quorum || uint64(len(leaves(t, dir, head.Size))) != tc.size {
			t.Errorf("%s: %d entries of %d, a quorum: %v", tc.name, head.Size, l.size(), err)
		}
	}
	// Who takes no witness's word has the whole of it, and with witnesses once more the folder does not shrink.
	l.must(os.Remove(filepath.Join(l.kit.Dir, "trust", trust.FileWitnesses)))
	l.must(l.kit.Trust.Reload())
	view := l.open(t.TempDir())
	if head, err := l.tiles(t, dir, view); err != nil || head.Size != uint64(l.size()) {
		t.Errorf("without witnesses: %d of %d entries, %v", head.Size, l.size(), err)
	}
	l.kit.WriteTrust(trust.FileWitnesses, fmt.Appendf(nil, "quorum: 1\nwitnesses: [%q]\n", signer.String()))
	l.must(l.kit.Trust.Reload())
	if head, err := l.tiles(t, dir, l.open(state)); err != nil || head.Size != uint64(l.size()) {
		t.Errorf("a folder that holds more than witnesses saw: %d of %d entries, %v", head.Size, l.size(), err)
	}
}

// TestTilesOfManyLevels holds the tree in the folder against tlog's, over sizes at which levels begin, from resumption to resumption, and
// after exports that were cut off.
func TestTilesOfManyLevels(t *testing.T) {
	kit, dir := platformtest.New(t), t.TempDir()
	var hashes []tlog.Hash
	read := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			out[i] = hashes[index]
		}
		return out, nil
	})
	leaf := func(n uint64) tlog.Hash { return sha256.Sum256(binary.BigEndian.AppendUint64(nil, n)) }
	size := uint64(0)
	for _, next := range []uint64{255, 256, 257, 65_535, 65_536, 65_537, 66_100, 131_072} {
		for ; size < next; size++ {
			stored, err := tlog.StoredHashesForRecordHash(int64(size), leaf(size), read)
			must(t, err)
			hashes = append(hashes, stored...)
		}
		root, err := tlog.TreeHash(int64(size), read)
		must(t, err)
		signed, err := logproof.SignCheckpoint(logproof.Checkpoint{Origin: logproof.Origin(auditID), Size: size, Root: root}, kit.LogSigner)
		must(t, err)
		var tiles *Tiles
		for cut := range 2 { // the first is cut off when all full tiles are written
			if cut > 0 {
				must(t, tiles.Close())
			}
			if tiles, err = OpenTiles(dir, []note.Verifier{kit.Trust.Current().LogKeys[0]}); err != nil {
				t.Fatalf("to %d leaves: %v", size, err)
			}
			for tiles.size < size {
				n := tiles.size
				tiles.size++
				must(t, tiles.push(0, leaf(n)))
				must(t, tiles.compare())
			}
		}
		_, err = tiles.Finish(signed)
		if err = errors.Join(err, tiles.Close()); err != nil {
			t.Fatalf("%d leaves: %v", size, err)
		}
		reader := tlog.TileHashReader(tlog.Tree{N: int64(size), Hash: root}, tileReader{dir})
		for _, n := range []uint64{0, size / 3, size - 1} {
			if got, err := reader.ReadHashes([]int64{tlog.StoredHashIndex(0, int64(n))}); err != nil || got[0] != leaf(n) {
				t.Errorf("leaf %d of %d: %v", n, size, err)
			}
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
