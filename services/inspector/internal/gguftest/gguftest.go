// Package gguftest writes small GGUF files for tests: sound ones, and ones whose counts, lengths and types lie. It has the format
// from ggml's docs/gguf.md and shares no code with what reads it.
package gguftest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"testing"
)

// Types of values, as the format numbers them.
const (
	Uint8 uint32 = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

// Types of tensors, of which a test needs few.
const (
	F32  uint32 = 0
	F16  uint32 = 1
	Q4_0 uint32 = 2
	Q8_0 uint32 = 8
)

// Raw is a value that is written as it is, behind its type.
type Raw struct {
	Type  uint32
	Bytes []byte
}

// KV is a key and its value: a Go number, bool, string, or slice of one of these, or Raw.
type KV struct {
	Key   string
	Value any
}

// Tensor is one tensor; its data is zeros.
type Tensor struct {
	Name string
	Dims []uint64
	Type uint32
}

// File is a GGUF file. Zero values are those of a sound one.
type File struct {
	Version   uint32 // 3
	BigEndian bool
	KVs       []KV
	Tensors   []Tensor
	// KVCount and TensorCount are written where they are not nil, whatever there really is.
	KVCount, TensorCount *uint64
	// Data is how many bytes follow the header; 0: what the tensors take.
	Data int64
}

// Set replaces the value of a key, or adds it.
func (f *File) Set(key string, value any) *File {
	for i := range f.KVs {
		if f.KVs[i].Key == key {
			f.KVs[i].Value = value
			return f
		}
	}
	f.KVs = append(f.KVs, KV{key, value})
	return f
}

func (f *File) order() binary.AppendByteOrder {
	if f.BigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// Header is the file up to its tensors' data, padded to 32 bytes.
func (f *File) Header() []byte {
	o := f.order()
	version := f.Version
	version = cmp.Or(version, 3)
	keys, tensors := uint64(len(f.KVs)), uint64(len(f.Tensors))
	if f.KVCount != nil {
		keys = *f.KVCount
	}
	if f.TensorCount != nil {
		tensors = *f.TensorCount
	}
	b := []byte("GGUF")
	b = o.AppendUint32(b, version)
	b = o.AppendUint64(b, tensors)
	b = o.AppendUint64(b, keys)
	for _, kv := range f.KVs {
		b = f.text(b, kv.Key)
		b = f.value(b, kv.Value)
	}
	var offset uint64
	for _, t := range f.Tensors {
		b = f.text(b, t.Name)
		b = o.AppendUint32(b, uint32(len(t.Dims)))
		for _, d := range t.Dims {
			b = o.AppendUint64(b, d)
		}
		b = o.AppendUint32(b, t.Type)
		b = o.AppendUint64(b, offset)
		offset += (t.Size() + 31) / 32 * 32
	}
	for len(b)%32 != 0 {
		b = append(b, 0)
	}
	return b
}

// Size is what the tensor's data takes, in bytes.
func (t Tensor) Size() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	switch t.Type {
	case F32:
		return n * 4
	case F16:
		return n * 2
	case Q4_0:
		return n / 32 * 18
	case Q8_0:
		return n / 32 * 34
	}
	return 0
}

// Bytes is the whole file.
func (f *File) Bytes() []byte { return append(f.Header(), make([]byte, f.data())...) }

func (f *File) data() int64 {
	if f.Data != 0 {
		return f.Data
	}
	var n uint64
	for _, t := range f.Tensors {
		n += (t.Size() + 31) / 32 * 32
	}
	return int64(n)
}

// Write writes the file to path; its tensors' data takes no room on a disk.
func (f *File) Write(t testing.TB, path string) {
	t.Helper()
	h := f.Header()
	if err := os.WriteFile(path, h, 0o644); err != nil { //nolint:gosec // G306: the program that reads it may be another user's
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(len(h))+f.data()); err != nil {
		t.Fatal(err)
	}
}

func (f *File) text(b []byte, s string) []byte {
	return append(f.order().AppendUint64(b, uint64(len(s))), s...)
}

// value appends a value behind its type.
func (f *File) value(b []byte, v any) []byte {
	o := f.order()
	if raw, ok := v.(Raw); ok {
		return append(o.AppendUint32(b, raw.Type), raw.Bytes...)
	}
	if kind, n, item := f.items(v); item != nil {
		b = o.AppendUint32(b, Array)
		b = o.AppendUint32(b, kind)
		b = o.AppendUint64(b, uint64(n))
		for i := range n {
			b = item(b, i)
		}
		return b
	}
	kind, plain := f.plain(v)
	return append(o.AppendUint32(b, kind), plain...)
}

func (f *File) items(v any) (kind uint32, n int, item func([]byte, int) []byte) {
	switch v := v.(type) {
	case []uint32:
		return Uint32, len(v), func(b []byte, i int) []byte { return f.order().AppendUint32(b, v[i]) }
	case []int32:
		return Int32, len(v), func(b []byte, i int) []byte { return f.order().AppendUint32(b, uint32(v[i])) }
	case []bool:
		return Bool, len(v), func(b []byte, i int) []byte { _, p := f.plain(v[i]); return append(b, p...) }
	case []string:
		return String, len(v), func(b []byte, i int) []byte { return f.text(b, v[i]) }
	}
	return 0, 0, nil
}

func (f *File) plain(v any) (kind uint32, b []byte) {
	o := f.order()
	switch v := v.(type) {
	case uint8:
		return Uint8, []byte{v}
	case bool:
		if v {
			return Bool, []byte{1}
		}
		return Bool, []byte{0}
	case uint16:
		return Uint16, o.AppendUint16(nil, v)
	case uint32:
		return Uint32, o.AppendUint32(nil, v)
	case int32:
		return Int32, o.AppendUint32(nil, uint32(v))
	case uint64:
		return Uint64, o.AppendUint64(nil, v)
	case string:
		return String, f.text(nil, v)
	}
	panic(fmt.Sprintf("gguftest: %T is not written", v))
}
