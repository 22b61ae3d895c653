package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// chunkHashes is how many hashes of the tree are kept together: what fits into a page of SQLite's. Statements know it too.
const chunkHashes = 126

// chunk are hashes of the tree, which follow those that their chunk has already.
type chunk struct {
	number int64
	has    int // bytes
	hashes []byte
}

// joined are hashes as they are stored, one after the other.
func joined(hashes []tlog.Hash) []byte {
	out := make([]byte, 0, len(hashes)*tlog.HashSize)
	for i := range hashes {
		out = append(out, hashes[i][:]...)
	}
	return out
}

// chunksOf are the chunks that a batch's hashes are in.
func chunksOf(b Batch) (chunks []chunk) {
	hashes := joined(b.Hashes)
	for from := b.FirstHash; len(hashes) > 0; {
		c := chunk{number: from / chunkHashes, has: int(from%chunkHashes) * tlog.HashSize}
		n := min(len(hashes), chunkHashes*tlog.HashSize-c.has)
		c.hashes, hashes = hashes[:n], hashes[n:]
		chunks = append(chunks, c)
		from += int64(n / tlog.HashSize)
	}
	return chunks
}

// Recent are hashes of a tree that need no database. The zero Recent has none. It is read at any time once nothing is added to Hashes.
type Recent struct {
	// First is the stored index of the first of Hashes, which follow one another.
	First  int64
	Hashes []tlog.Hash
	// Roots are some of those before, by their stored indexes.
	Roots map[int64]tlog.Hash
}

// Hash returns the hash at a stored index, if it is among them.
func (r *Recent) Hash(index int64) (hash tlog.Hash, ok bool) {
	if i := index - r.First; i < 0 {
		hash, ok = r.Roots[index]
	} else if i < int64(len(r.Hashes)) {
		hash, ok = r.Hashes[i], true
	}
	return hash, ok
}

// Hashes is a tree's hashes for tlog: those of Fresh, which may not be committed yet, then those of From, which may be ahead, since a stored
// hash never changes.
type Hashes struct {
	Ctx  context.Context
	From interface {
		ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error)
	}
	Fresh *Recent // nil: none
}

// ReadHashes implements tlog.HashReader.
func (h Hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	var missing []int64
	var places []int
	for i, index := range indexes {
		if h.Fresh != nil {
			var ok bool
			if out[i], ok = h.Fresh.Hash(index); ok {
				continue
			}
		}
		missing, places = append(missing, index), append(places, i)
	}
	if len(missing) == 0 {
		return out, nil
	}
	hashes, err := h.From.ReadHashes(h.Ctx, missing)
	if err != nil {
		return nil, err
	}
	for i, hash := range hashes {
		out[places[i]] = hash
	}
	return out, nil
}

// ReadHashes returns the tree's hashes at these stored indexes, as tlog.HashReader wants them.
func (s *Store) ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error) {
	waiting, err := s.unsettled(ctx)
	if err != nil {
		return nil, err
	}
	s = s.tables()
	chunks := map[int64][]byte{}
	var numbers []any
	for _, index := range indexes {
		if len(waiting) > 0 && index >= waiting[0].FirstHash {
			continue
		}
		if number := index / chunkHashes; chunks[number] == nil {
			chunks[number] = []byte{}
			numbers = append(numbers, number)
		}
	}
	for some := range slices.Chunk(numbers, 256) {
		if err := s.each(ctx, `SELECT chunk, hashes FROM tree WHERE chunk IN (`+marks(len(some))+`)`, some, func(scan func(...any) error) (bool, error) {
			var number int64
			var hashes []byte
			if err := scan(&number, &hashes); err != nil {
				return false, fmt.Errorf("%w: %w", errStored, err)
			}
			chunks[number] = hashes
			return true, nil
		}); err != nil {
			return nil, err
		}
	}
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		if n, _ := slices.BinarySearchFunc(waiting, index, func(b Batch, index int64) int { return cmp.Compare(b.FirstHash+int64(len(b.Hashes))-1, index) }); n < len(waiting) &&
			index >= waiting[n].FirstHash {
			out[i] = waiting[n].Hashes[index-waiting[n].FirstHash]
			continue
		}
		at := int(index%chunkHashes) * tlog.HashSize
		hashes := chunks[index/chunkHashes]
		if len(hashes) < at+tlog.HashSize {
			return nil, fmt.Errorf("%w: hash %d of the tree is missing", errStored, index)
		}
		out[i] = tlog.Hash(hashes[at : at+tlog.HashSize])
	}
	return out, nil
}
