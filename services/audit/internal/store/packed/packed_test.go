package packed

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

// pack makes a block of columns as they are, which says that they have so many bytes, with what lies beside them.
func pack(t *testing.T, raw []byte, length uint64, beside ...byte) []byte {
	t.Helper()
	var small bytes.Buffer
	w, err := flate.NewWriter(&small, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out := binary.AppendUvarint([]byte{version}, length)
	out = binary.AppendUvarint(out, uint64(small.Len()))
	return append(append(out, small.Bytes()...), beside...)
}

// columnsOf are those of so many cells with these indexes, each with a text for all its words.
func columnsOf(indexes ...int64) []byte {
	raw := binary.AppendUvarint(nil, uint64(len(indexes)))
	raw = append(binary.AppendUvarint(raw, 1), 1, 'x')
	before := int64(0)
	for _, index := range indexes {
		raw, before = binary.AppendVarint(raw, index-before), index
	}
	for column := range 17 {
		for range indexes {
			if column == 9 { // the request's id, one more than its text
				raw = append(raw, 1)
				continue
			}
			raw = append(raw, 0)
		}
	}
	return raw
}

// TestBrokenBlocks: a block that encode did not make is refused as one, whatever in it is wrong, and takes neither the process nor its memory
// along. Its negative control is the block that is whole.
func TestBrokenBlocks(t *testing.T) {
	t.Parallel()
	const size = logproof.SaltSize
	two := columnsOf(3, 4)
	beside := make([]byte, 2*2*size)
	whole := pack(t, two, uint64(len(two)), beside...)
	if cells, err := Decode(whole); err != nil || len(cells) != 2 || cells[1].Index != 4 {
		t.Fatalf("%v, %v: nothing is proved", cells, err)
	}
	broken := map[string][]byte{
		"nothing":                 {},
		"another version":         append([]byte{version + 1}, whole[1:]...),
		"shorter than it says":    pack(t, two, uint64(len(two))+1, beside...),
		"longer than it says":     pack(t, two, uint64(len(two))-1, beside...),
		"no cells":                pack(t, []byte{0, 0}, 2),
		"more cells than bytes":   pack(t, []byte{100, 0}, 2),
		"more texts than bytes":   pack(t, append([]byte{1}, binary.AppendUvarint(nil, 1<<50)...), 9),
		"bytes behind the last":   pack(t, append(columnsOf(3, 4), 0), uint64(len(two))+1, beside...),
		"indexes that go back":    pack(t, columnsOf(4, 3), uint64(len(two)), beside...),
		"a salt that is cut off":  whole[:len(whole)-1],
		"no place for what it is": pack(t, two[:len(two)-1], uint64(len(two))-1, beside...),
	}
	for name, block := range broken {
		if cells, err := Decode(block); !errors.Is(err, ErrBlock) || cells != nil {
			t.Errorf("%s: %v, %v", name, cells, err)
		}
	}
	if cells, err := decodeWithin(whole, uint64(len(two))-1); !errors.Is(err, ErrBlock) || cells != nil {
		t.Errorf("more than a block is decompressed to: %v, %v", cells, err)
	}
	for at := range whole {
		if cells, err := Decode(whole[:at]); err == nil || cells != nil {
			t.Errorf("%d bytes of it: %v, %v", at, cells, err)
		}
	}
}

// TestWhatIsNoRead goes into no block: an entry without its leaf, its salt, or both a body and its commitment.
func TestWhatIsNoRead(t *testing.T) {
	t.Parallel()
	sealed := func() *auditv1.Entry {
		return &auditv1.Entry{
			Index: 3, LeafHash: make([]byte, logproof.SaltSize), Salt: make([]byte, logproof.SaltSize),
			Record: &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Body: &auditv1.Body{Session: "s"}},
		}
	}
	if _, err := New(sealed()); err != nil {
		t.Fatalf("%v: nothing is proved", err)
	}
	for name, spoil := range map[string]func(*auditv1.Entry){
		"no leaf":                  func(e *auditv1.Entry) { e.LeafHash = nil },
		"half a salt":              func(e *auditv1.Entry) { e.Salt = e.GetSalt()[1:] },
		"no body or commitment":    func(e *auditv1.Entry) { e.Record.Body, e.Salt = nil, nil },
		"no body, half its digest": func(e *auditv1.Entry) { e.Record.Body, e.Salt, e.BodyCommitment = nil, nil, make([]byte, 5) },
	} {
		e := sealed()
		spoil(e)
		if c, err := New(e); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// FuzzBlock: a block that is read is written as what it was read as.
func FuzzBlock(f *testing.F) {
	f.Add([]byte{1, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		cells, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Encode(cells, 0)
		if err != nil {
			t.Fatal(err)
		}
		if read, err := Decode(again); err != nil || !cmp.Equal(cells, read, cmpopts.EquateEmpty()) {
			t.Fatalf("%v, %v, %v", cells, read, err)
		}
	})
}
