// Package packed writes entries in blocks: what they share is in a block once, what is left is compressed, and what is random (ids, salts,
// leaf hashes) is beside it as it is. A commitment is stored for a body that was pruned alone; it is computed from any other. In place of
// indexes a block has a filter of what can be searched for in it.
package packed

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/logproof"
)

const (
	version = 1
	// maxRaw bounds what a block is decompressed to.
	maxRaw = 1 << 30
)

// ErrBlock is wrapped by the error of a block that Encode did not make.
var ErrBlock = errors.New("a block of reads cannot be read")

// Cell is an entry of a block.
type Cell struct {
	Index, Sequence                  uint64
	Writer, Request, Operation, Tool string
	Kind, Tier, Status               uint64
	Written, Logged                  int64
	Said
	Pruned                 uint64 // one more than pruned_by; 0: unset
	Salt, Commitment, Leaf []byte // a body that is missing has a commitment, any other a salt
}

// Said is a cell's body.
type Said struct {
	Session, Principal, Rest string // Rest is the body without the other fields, serialised
	Channel, Duration        uint64
}

// Fields of a body that cells have by themselves, as auditv1.Body numbers them.
const (
	fieldPrincipal, fieldSession, fieldChannel, fieldDuration = 1, 2, 3, 8
)

// New makes a cell of an entry.
func New(e *auditv1.Entry) (Cell, error) {
	r := e.GetRecord()
	b := r.GetBody()
	c := Cell{
		Index: e.GetIndex(), Sequence: r.GetSequence(), Writer: e.GetWriter(), Request: r.GetRequestId(), Operation: r.GetOperationId(), Tool: r.GetTool(),
		Kind: uint64(uint32(r.GetKind())), Tier: uint64(uint32(r.GetTier())), Status: uint64(uint32(r.GetStatus())),
		Written: r.GetTime().AsTime().UnixNano(), Logged: e.GetLoggedAt().AsTime().UnixNano(), Leaf: e.GetLeafHash(),
		Said: Said{Session: b.GetSession(), Principal: b.GetPrincipal(), Channel: uint64(uint32(b.GetChannel())), Duration: uint64(b.GetDurationMs())},
	}
	if e.PrunedBy != nil {
		c.Pruned = e.GetPrunedBy() + 1
	}
	if len(c.Leaf) != logproof.SaltSize {
		return c, fmt.Errorf("entry %d has no leaf hash", c.Index)
	}
	if logproof.BodyMissing(e) {
		if c.Commitment = e.GetBodyCommitment(); len(c.Commitment) != logproof.SaltSize {
			return c, fmt.Errorf("entry %d has neither a body nor its commitment", c.Index)
		}
		return c, nil
	}
	if c.Salt = e.GetSalt(); len(c.Salt) != logproof.SaltSize {
		return c, fmt.Errorf("entry %d has a salt of %d bytes", c.Index, len(c.Salt))
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	c.Rest = string(strip(raw))
	return c, err
}

// strip takes the fields that cells have by themselves out of a serialised body.
func strip(raw []byte) []byte {
	out := raw[:0]
	for len(raw) > 0 {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			return append(out, raw...) // proto.Marshal wrote it
		}
		switch number {
		case fieldPrincipal, fieldSession, fieldChannel, fieldDuration:
		default:
			out = append(out, raw[:n]...)
		}
		raw = raw[n:]
	}
	return out
}

// Size is about what a cell takes before it is compressed.
func (c *Cell) Size() int { return 128 + len(c.Rest) + len(c.Operation) + len(c.Request) }

// Body is the entry's; nil for one that is missing, or says nothing.
func (c *Cell) Body() (*auditv1.Body, error) {
	if c.Said == (Said{}) {
		return nil, nil
	}
	b := &auditv1.Body{}
	if err := proto.Unmarshal([]byte(c.Rest), b); err != nil {
		return nil, fmt.Errorf("%w: entry %d: %w", ErrBlock, c.Index, err)
	}
	b.Session, b.Principal, b.Channel, b.DurationMs = c.Session, c.Principal, callv1.Channel(int32(uint32(c.Channel))), uint32(c.Duration)
	return b, nil
}

// Header is the entry as far as its header goes.
func (c *Cell) Header() *auditv1.Entry {
	one := &struct { // one piece of memory
		entry           auditv1.Entry
		record          auditv1.Record
		written, logged timestamppb.Timestamp
	}{}
	e, r := &one.entry, &one.record
	e.Index, e.Writer, e.LoggedAt, e.Record = c.Index, c.Writer, &one.logged, r
	r.Sequence, r.Kind, r.Time, r.RequestId, r.OperationId = c.Sequence, auditv1.Kind(int32(uint32(c.Kind))), &one.written, c.Request, c.Operation
	r.Tool, r.Tier, r.Status = c.Tool, optionsv1.Tier(int32(uint32(c.Tier))), auditv1.Status(int32(uint32(c.Status)))
	set(&one.written, c.Written)
	set(&one.logged, c.Logged)
	if c.Pruned != 0 {
		e.PrunedBy = proto.Uint64(c.Pruned - 1)
	}
	return e
}

// set makes ts a stored time.
func set(ts *timestamppb.Timestamp, nanoseconds int64) {
	at := time.Unix(0, nanoseconds)
	ts.Seconds, ts.Nanos = at.Unix(), int32(at.Nanosecond())
}

// Stored is the entry with what is stored of it. Its body is the one among bodies that says the same, and is added to them, unless they are
// nil.
func (c *Cell) Stored(bodies map[Said]*auditv1.Body) (*auditv1.Entry, error) {
	e := c.Header()
	e.BodyCommitment, e.LeafHash = c.Commitment, c.Leaf
	if c.Salt == nil {
		return e, nil
	}
	e.Salt = c.Salt
	body, known := bodies[c.Said]
	if !known {
		var err error
		if body, err = c.Body(); err != nil {
			return nil, err
		}
		if bodies != nil {
			bodies[c.Said] = body
		}
	}
	e.Record.Body = body
	return e, nil
}

// Prune takes the cell's body away.
func (c *Cell) Prune(by uint64) error {
	body, err := c.Body()
	if err != nil {
		return err
	}
	commitment, err := logproof.BodyCommitment(c.Salt, body)
	if err != nil {
		return err
	}
	c.Commitment, c.Salt, c.Pruned = commitment[:], nil, by+1
	c.Said = Said{}
	return nil
}

// table numbers the different texts of a block.
type table struct {
	at   map[string]uint64
	text []string
}

func (t *table) ref(s string) uint64 {
	n, known := t.at[s]
	if !known {
		n = uint64(len(t.text))
		t.at[s], t.text = n, append(t.text, s)
	}
	return n
}

var (
	writers = sync.Pool{New: func() any {
		w, _ := flate.NewWriter(io.Discard, flate.BestSpeed) // that level exists
		return w
	}}
	readers = sync.Pool{New: func() any { return flate.NewReader(bytes.NewReader(nil)) }}
)

// Encode makes a block of at least so many bytes: one that is written anew over an older one has its length, so that nothing of that is
// left anywhere in the database's pages.
func Encode(cells []Cell, least int) ([]byte, error) {
	words := table{at: map[string]uint64{}}
	columns, beside := make([]byte, 0, 32*len(cells)), make([]byte, 0, 80*len(cells)) // mostly: a request id, a salt and a leaf
	last := map[uint64]uint64{}
	number := func(of func(c *Cell) uint64) {
		for i := range cells {
			columns = binary.AppendUvarint(columns, of(&cells[i]))
		}
	}
	difference := func(of func(c *Cell) int64) {
		before := int64(0)
		for i := range cells {
			now := of(&cells[i])
			columns = binary.AppendVarint(columns, now-before)
			before = now
		}
	}
	difference(func(c *Cell) int64 { return int64(c.Index) })
	number(func(c *Cell) uint64 { return words.ref(c.Writer) })
	number(func(c *Cell) uint64 { // one more than the writer's last, mostly
		who := words.ref(c.Writer)
		ahead := c.Sequence - last[who] - 1
		last[who] = c.Sequence
		return ahead
	})
	number(func(c *Cell) uint64 { return c.Kind })
	number(func(c *Cell) uint64 { return c.Tier })
	number(func(c *Cell) uint64 { return c.Status })
	number(func(c *Cell) uint64 { return c.Channel })
	number(func(c *Cell) uint64 { return c.Duration })
	difference(func(c *Cell) int64 { return c.Written })
	difference(func(c *Cell) int64 { return c.Logged })
	number(func(c *Cell) uint64 {
		if _, own := random(c.Request); own {
			return 0
		}
		return words.ref(c.Request) + 1
	})
	number(func(c *Cell) uint64 { return words.ref(c.Operation) })
	number(func(c *Cell) uint64 { return words.ref(c.Tool) })
	number(func(c *Cell) uint64 { return words.ref(c.Session) })
	number(func(c *Cell) uint64 { return words.ref(c.Principal) })
	number(func(c *Cell) uint64 { return words.ref(c.Rest) })
	number(func(c *Cell) uint64 { return c.Pruned })
	number(func(c *Cell) uint64 {
		if c.Salt == nil {
			return 0
		}
		return 1
	})
	for i := range cells {
		c := &cells[i]
		if bits, own := random(c.Request); own {
			beside = append(beside, bits[:]...)
		}
		beside = append(append(append(beside, c.Salt...), c.Commitment...), c.Leaf...)
	}
	raw := binary.AppendUvarint(make([]byte, 0, len(columns)+1<<10), uint64(len(cells)))
	raw = binary.AppendUvarint(raw, uint64(len(words.text)))
	for _, text := range words.text {
		raw = append(binary.AppendUvarint(raw, uint64(len(text))), text...)
	}
	raw = append(raw, columns...)

	var small bytes.Buffer
	w := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	w.Reset(&small)
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	out := make([]byte, 0, max(least, 16+small.Len()+len(beside)))
	out = append(out, version)
	out = binary.AppendUvarint(out, uint64(len(raw)))
	out = binary.AppendUvarint(out, uint64(small.Len()))
	out = append(append(out, small.Bytes()...), beside...)
	return append(out, make([]byte, max(0, least-len(out)))...), nil
}

// input reads a block; the first thing that is wrong makes it fail for good.
type input struct {
	b   []byte
	bad bool
}

func (in *input) number() uint64 {
	v, n := binary.Uvarint(in.b)
	if n <= 0 {
		in.bad = true
		return 0
	}
	in.b = in.b[n:]
	return v
}

func (in *input) difference() int64 {
	v, n := binary.Varint(in.b)
	if n <= 0 {
		in.bad = true
		return 0
	}
	in.b = in.b[n:]
	return v
}

func (in *input) take(n uint64) []byte {
	if n > uint64(len(in.b)) {
		in.bad = true
		return nil
	}
	out := in.b[:n:n]
	in.b = in.b[n:]
	return out
}

// Decode returns what Encode was given, in order of the index.
func Decode(block []byte) ([]Cell, error) { return decodeWithin(block, maxRaw) }

// decodeWithin is Decode of a block that is decompressed to no more than so many bytes.
func decodeWithin(block []byte, most uint64) ([]Cell, error) {
	in := &input{b: block}
	if first := in.take(1); in.bad || first[0] != version {
		return nil, ErrBlock
	}
	length := in.number()
	small := in.take(in.number())
	if in.bad || length > most {
		return nil, ErrBlock
	}
	r := readers.Get().(io.ReadCloser)
	defer readers.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(small), nil); err != nil {
		return nil, err
	}
	var unpacked bytes.Buffer
	unpacked.Grow(int(min(length, 1<<20)))
	if n, err := unpacked.ReadFrom(io.LimitReader(r, int64(length)+1)); err != nil || uint64(n) != length {
		return nil, ErrBlock
	}
	cells, places, err := readColumns(&input{b: unpacked.Bytes()})
	if err != nil {
		return nil, err
	}
	var ids []byte // of all requests with random ones, so that they are one string
	for i := range cells {
		c := &cells[i]
		if places[i].random {
			ids = lower.AppendEncode(append(ids, ownRequest...), in.take(randomBytes))
		}
		if places[i].salted {
			c.Salt = in.take(logproof.SaltSize)
		} else {
			c.Commitment = in.take(logproof.SaltSize)
		}
		c.Leaf = in.take(logproof.SaltSize)
	}
	if in.bad {
		return nil, ErrBlock
	}
	texts := string(ids)
	for i := range cells {
		if places[i].random {
			cells[i].Request, texts = texts[:len(ownRequest)+randomDigits], texts[len(ownRequest)+randomDigits:]
		}
	}
	return cells, nil
}

// place is what a block has of a cell outside of its columns: the bits of its request's id, and a salt, or else a commitment.
type place struct{ random, salted bool }

func readColumns(in *input) ([]Cell, []place, error) {
	n := in.number()
	if n == 0 || n > uint64(len(in.b)) {
		return nil, nil, ErrBlock
	}
	count := in.number()
	if count > uint64(len(in.b)) {
		return nil, nil, ErrBlock
	}
	text := make([]string, count)
	for i := range text {
		text[i] = string(in.take(in.number()))
	}
	cells, places := make([]Cell, n), make([]place, n)
	number := func(of func(c *Cell, v uint64)) {
		for i := range cells {
			of(&cells[i], in.number())
		}
	}
	difference := func(of func(c *Cell, v int64)) {
		now := int64(0)
		for i := range cells {
			now += in.difference()
			of(&cells[i], now)
		}
	}
	word := func(of func(c *Cell, s string)) {
		number(func(c *Cell, v uint64) {
			if v >= uint64(len(text)) {
				in.bad = true
				return
			}
			of(c, text[v])
		})
	}
	difference(func(c *Cell, v int64) { c.Index = uint64(v) })
	word(func(c *Cell, s string) { c.Writer = s })
	last := map[string]uint64{}
	number(func(c *Cell, v uint64) {
		c.Sequence = last[c.Writer] + v + 1
		last[c.Writer] = c.Sequence
	})
	number(func(c *Cell, v uint64) { c.Kind = v })
	number(func(c *Cell, v uint64) { c.Tier = v })
	number(func(c *Cell, v uint64) { c.Status = v })
	number(func(c *Cell, v uint64) { c.Channel = v })
	number(func(c *Cell, v uint64) { c.Duration = v })
	difference(func(c *Cell, v int64) { c.Written = v })
	difference(func(c *Cell, v int64) { c.Logged = v })
	for i := range cells {
		switch v := in.number(); {
		case v == 0:
			places[i].random = true
		case v > count:
			in.bad = true
		default:
			cells[i].Request = text[v-1]
		}
	}
	word(func(c *Cell, s string) { c.Operation = s })
	word(func(c *Cell, s string) { c.Tool = s })
	word(func(c *Cell, s string) { c.Session = s })
	word(func(c *Cell, s string) { c.Principal = s })
	word(func(c *Cell, s string) { c.Rest = s })
	number(func(c *Cell, v uint64) { c.Pruned = v })
	for i := range places {
		places[i].salted = in.number() == 1
	}
	if in.bad || len(in.b) > 0 || !slices.IsSortedFunc(cells, func(a, b Cell) int { return cmp.Compare(a.Index, b.Index) }) {
		return nil, nil, ErrBlock
	}
	return cells, places, nil
}
