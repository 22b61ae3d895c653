// Package gguf makes a model's card from the header of a GGUF file. The file was written by a stranger: it is read once, front to
// back, by a reader that allocates nothing for what a count or a length merely claims, and every number in it is bounded before
// it is used. What the numbers mean for each architecture is known to github.com/gpustack/gguf-parser-go; its own reader and its
// fetching of remote files are not used.
package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	parser "github.com/gpustack/gguf-parser-go"
)

// Bounds of a header. Published models stay far below: their largest part is a tokenizer of some 10 MiB.
const (
	maxHeader     = 64 << 20
	maxKeys       = 4096
	maxKey        = 256
	maxString     = 4 << 20
	maxArray      = 4 << 20  // items, of a tokenizer's arrays, which are skipped
	maxKept       = 64 << 10 // items, of all arrays that are kept: those have one for each layer
	maxTensors    = 128 << 10
	maxTensorName = 256
	maxDimensions = 4 // GGML_MAX_DIMS
)

// Errors of a file that is no sound GGUF. They say nothing of what is in it.
var (
	errNotGGUF   = errors.New("the file is not a GGUF file")
	errTruncated = errors.New("the file ends within its header")
	errHeader    = fmt.Errorf("the file's header is longer than %d MiB", maxHeader>>20)
	errMalformed = errors.New("the file's header is malformed")
)

// header is what one file says of itself.
type header struct {
	keys    parser.GGUFMetadataKVs
	tensors parser.GGUFTensorInfos
	// data is where the tensors' bytes begin, size the file's length.
	data, size int64
}

// reader reads little- or big-endian values and counts what it has read. After an error it only returns zeros.
type reader struct {
	in    *bufio.Reader
	order binary.ByteOrder
	at    int64
	size  int64
	kept  uint64
	err   error
	word  [8]byte
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// take reports whether n more bytes may be read.
func (r *reader) take(n int64) bool {
	switch {
	case r.err != nil:
	case n < 0 || n > r.size-r.at:
		r.fail(errTruncated)
	case n > maxHeader-r.at:
		r.fail(errHeader)
	default:
		r.at += n
		return true
	}
	return false
}

func (r *reader) bytes(n int) []byte {
	if !r.take(int64(n)) {
		return r.word[:0]
	}
	if _, err := io.ReadFull(r.in, r.word[:n]); err != nil {
		r.fail(errTruncated)
		return r.word[:0]
	}
	return r.word[:n]
}

func (r *reader) u8() uint8 {
	if b := r.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.bytes(2); len(b) == 2 {
		return r.order.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); len(b) == 4 {
		return r.order.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); len(b) == 8 {
		return r.order.Uint64(b)
	}
	return 0
}

// count is a number of things that each take at least so many bytes of what is left.
func (r *reader) count(most uint64, each int64, what string) uint64 {
	n := r.u64()
	switch {
	case r.err != nil:
		return 0
	case n > most:
		r.fail(fmt.Errorf("the file's header has more than %d %s", most, what))
		return 0
	case int64(n)*each > r.size-r.at:
		r.fail(errTruncated)
		return 0
	}
	return n
}

func (r *reader) skip(n int64) {
	if !r.take(n) {
		return
	}
	if _, err := r.in.Discard(int(n)); err != nil { // of at most maxHeader
		r.fail(errTruncated)
	}
}

func (r *reader) text(most uint64) string {
	n := r.u64()
	if r.err == nil && n > most {
		// A length beyond the end is a truncated file; one beyond the bound within the file is a malformed one.
		if n > uint64(r.size-r.at) {
			r.fail(errTruncated)
		} else {
			r.fail(errMalformed)
		}
	}
	if !r.take(int64(n)) {
		return ""
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r.in, b); err != nil {
		r.fail(errTruncated)
		return ""
	}
	return string(b)
}

// skipText passes over a string of an array that nobody asks for.
func (r *reader) skipText() {
	n := r.u64()
	if r.err == nil && n > maxString {
		r.fail(errMalformed)
	}
	r.skip(int64(n))
}

// width is how many bytes a value of a fixed size takes; 0: the type has none.
func width(t parser.GGUFMetadataValueType) int64 {
	switch t {
	case parser.GGUFMetadataValueTypeUint8, parser.GGUFMetadataValueTypeInt8, parser.GGUFMetadataValueTypeBool:
		return 1
	case parser.GGUFMetadataValueTypeUint16, parser.GGUFMetadataValueTypeInt16:
		return 2
	case parser.GGUFMetadataValueTypeUint32, parser.GGUFMetadataValueTypeInt32, parser.GGUFMetadataValueTypeFloat32:
		return 4
	case parser.GGUFMetadataValueTypeUint64, parser.GGUFMetadataValueTypeInt64, parser.GGUFMetadataValueTypeFloat64:
		return 8
	}
	return 0
}

// scalar reads a value that is no string and no array. Numbers below zero are zero, and those that are none fail: no size is
// either.
func (r *reader) scalar(t parser.GGUFMetadataValueType) any {
	switch t {
	case parser.GGUFMetadataValueTypeUint8:
		return r.u8()
	case parser.GGUFMetadataValueTypeInt8:
		return max(0, int8(r.u8()))
	case parser.GGUFMetadataValueTypeUint16:
		return r.u16()
	case parser.GGUFMetadataValueTypeInt16:
		return max(0, int16(r.u16()))
	case parser.GGUFMetadataValueTypeUint32:
		return r.u32()
	case parser.GGUFMetadataValueTypeInt32:
		return max(0, int32(r.u32()))
	case parser.GGUFMetadataValueTypeFloat32:
		return math.Float32frombits(r.u32())
	case parser.GGUFMetadataValueTypeBool:
		return r.u8() != 0
	case parser.GGUFMetadataValueTypeUint64:
		return r.u64()
	case parser.GGUFMetadataValueTypeInt64:
		return max(0, int64(r.u64()))
	case parser.GGUFMetadataValueTypeFloat64:
		return math.Float64frombits(r.u64())
	}
	r.fail(errMalformed)
	return uint8(0)
}

// array reads an array's values where keep says so, else passes over them. An array of arrays is refused: no key that is used
// has one, and depth is how a parser's stack is exhausted.
func (r *reader) array(keep bool) parser.GGUFMetadataKVArrayValue {
	a := parser.GGUFMetadataKVArrayValue{Type: parser.GGUFMetadataValueType(r.u32())}
	each := width(a.Type)
	if a.Type == parser.GGUFMetadataValueTypeString {
		each = 8
	}
	if r.err == nil && each == 0 {
		r.fail(errMalformed)
	}
	a.Len = r.count(maxArray, max(1, each), "items in one array")
	switch {
	case r.err != nil:
	case a.Type == parser.GGUFMetadataValueTypeString:
		for range a.Len {
			if r.skipText(); r.err != nil {
				break
			}
		}
	case !keep:
		r.skip(int64(a.Len) * each)
	case a.Len > maxKept-r.kept:
		r.fail(errMalformed)
	default:
		r.kept += a.Len
		a.Array = make([]any, a.Len)
		for i := range a.Array {
			a.Array[i] = r.scalar(a.Type)
		}
	}
	return a
}

// read reads the header of one file of that size.
func read(in io.Reader, size int64) (header, error) {
	r := &reader{in: bufio.NewReaderSize(io.LimitReader(in, min(size, maxHeader)), 64<<10), order: binary.LittleEndian, size: size}
	switch magic := string(r.bytes(4)); {
	case r.err != nil, magic != "GGUF":
		return header{}, errNotGGUF
	}
	version := r.u32()
	// A big-endian file has the same magic and its version the other way round.
	if version != 0 && version&0xFFFF == 0 {
		r.order = binary.BigEndian
		version = binary.BigEndian.Uint32(binary.LittleEndian.AppendUint32(nil, version))
	}
	if r.err == nil && version != 2 && version != 3 {
		return header{}, errors.New("the file's version of GGUF is not 2 or 3")
	}
	tensors := r.count(maxTensors, 24, "tensors")
	keys := r.count(maxKeys, 13, "keys")
	h := header{size: size}
	seen := make(map[string]bool, keys)
	alignment := int64(32)
	for range keys {
		kv := parser.GGUFMetadataKV{Key: r.text(maxKey), ValueType: parser.GGUFMetadataValueType(r.u32())}
		if r.err != nil {
			break
		}
		if !plain(kv.Key) || seen[kv.Key] {
			return header{}, errMalformed
		}
		seen[kv.Key] = true
		switch kv.ValueType {
		case parser.GGUFMetadataValueTypeString:
			kv.Value = r.text(maxString)
		case parser.GGUFMetadataValueTypeArray:
			kv.Value = r.array(kept(kv.Key))
		default:
			kv.Value = r.scalar(kv.ValueType)
		}
		if kv.Key == "general.alignment" {
			// Of a power of two alone is the tensors' place sure (GGUF_DEFAULT_ALIGNMENT and its check in ggml's gguf.cpp).
			v, ok := kv.Value.(uint32)
			if !ok || v == 0 || v&(v-1) != 0 || v > 1<<20 {
				return header{}, errMalformed
			}
			alignment = int64(v)
		}
		h.keys = append(h.keys, kv)
	}
	for range tensors {
		info := parser.GGUFTensorInfo{Name: r.text(maxTensorName), NDimensions: r.u32()}
		if r.err == nil && (info.NDimensions == 0 || info.NDimensions > maxDimensions) {
			return header{}, errMalformed
		}
		if r.err != nil {
			break
		}
		info.Dimensions = make([]uint64, info.NDimensions)
		for i := range info.Dimensions {
			info.Dimensions[i] = r.u64()
		}
		info.Type = parser.GGMLType(r.u32())
		if trait, ok := info.Type.Trait(); r.err == nil && (!ok || trait.BlockSize == 0) {
			return header{}, errors.New("the file has a tensor of a type that is not known")
		}
		info.Offset = r.u64()
		h.tensors = append(h.tensors, info)
	}
	if r.err != nil {
		return header{}, r.err
	}
	h.data = (r.at + alignment - 1) / alignment * alignment
	return h, nil
}

// plain reports whether a key is printable ASCII without spaces, as the format has them.
func plain(key string) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return key != ""
}
