package store

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/logproof"
)

// Reads are most of what a log holds, and like each other. They are kept in blocks: what they share is in a block once, what is left is
// compressed, and what is random (ids, salts, leaf hashes) is beside it as it is. A commitment is stored for a body that was pruned
// alone; it is computed from any other. In place of indexes a block has a filter of what can be searched for in it.
const (
	blockVersion = 1
	// blockEntries and blockBytes bound a block. One takes more records while it has fewer than blockOpen.
	blockEntries, blockOpen = 256, 128
	blockBytes              = 128 << 10
	// maxRaw bounds what a block is decompressed to.
	maxRaw = 1 << 30
)

var errBlock = fmt.Errorf("%w: a block of reads cannot be read", errStored)

// inBlocks reports whether an entry is kept in a block, and not in rows of its own.
func inBlocks(e *auditv1.Entry) bool { return e.GetRecord().GetKind() == auditv1.Kind_KIND_READ }

// cell is an entry of a block.
type cell struct {
	index, sequence                  uint64
	writer, request, operation, tool string
	kind, tier, status               uint64
	written, logged                  int64
	said
	pruned                 uint64 // one more than pruned_by; 0: unset
	salt, commitment, leaf []byte // a body that is missing has a commitment, any other a salt
}

// said is a cell's body.
type said struct {
	session, principal, rest string // rest is the body without the other fields, serialised
	channel, duration        uint64
}

// Fields of a body that cells have by themselves, as auditv1.Body numbers them.
const (
	fieldPrincipal, fieldSession, fieldChannel, fieldDuration = 1, 2, 3, 8
)

func newCell(e *auditv1.Entry) (cell, error) {
	r := e.GetRecord()
	b := r.GetBody()
	c := cell{
		index: e.GetIndex(), sequence: r.GetSequence(), writer: e.GetWriter(), request: r.GetRequestId(), operation: r.GetOperationId(), tool: r.GetTool(),
		kind: uint64(uint32(r.GetKind())), tier: uint64(uint32(r.GetTier())), status: uint64(uint32(r.GetStatus())),
		written: r.GetTime().AsTime().UnixNano(), logged: e.GetLoggedAt().AsTime().UnixNano(), leaf: e.GetLeafHash(),
		said: said{session: b.GetSession(), principal: b.GetPrincipal(), channel: uint64(uint32(b.GetChannel())), duration: uint64(b.GetDurationMs())},
	}
	if e.PrunedBy != nil {
		c.pruned = e.GetPrunedBy() + 1
	}
	if len(c.leaf) != logproof.SaltSize {
		return c, fmt.Errorf("entry %d has no leaf hash", c.index)
	}
	if logproof.BodyMissing(e) {
		if c.commitment = e.GetBodyCommitment(); len(c.commitment) != logproof.SaltSize {
			return c, fmt.Errorf("entry %d has neither a body nor its commitment", c.index)
		}
		return c, nil
	}
	if c.salt = e.GetSalt(); len(c.salt) != logproof.SaltSize {
		return c, fmt.Errorf("entry %d has a salt of %d bytes", c.index, len(c.salt))
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	c.rest = string(strip(raw))
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

// size is about what a cell takes before it is compressed.
func (c *cell) size() int { return 128 + len(c.rest) + len(c.operation) + len(c.request) }

// body is the entry's; nil for one that is missing, or says nothing.
func (c *cell) body() (*auditv1.Body, error) {
	if c.said == (said{}) {
		return nil, nil
	}
	b := &auditv1.Body{}
	if err := proto.Unmarshal([]byte(c.rest), b); err != nil {
		return nil, fmt.Errorf("%w: entry %d: %w", errBlock, c.index, err)
	}
	b.Session, b.Principal, b.Channel, b.DurationMs = c.session, c.principal, callv1.Channel(int32(uint32(c.channel))), uint32(c.duration)
	return b, nil
}

// header is the entry as far as its header goes.
func (c *cell) header() *auditv1.Entry {
	one := &struct { // one piece of memory
		entry           auditv1.Entry
		record          auditv1.Record
		written, logged timestamppb.Timestamp
	}{}
	e, r := &one.entry, &one.record
	e.Index, e.Writer, e.LoggedAt, e.Record = c.index, c.writer, &one.logged, r
	r.Sequence, r.Kind, r.Time, r.RequestId, r.OperationId = c.sequence, auditv1.Kind(int32(uint32(c.kind))), &one.written, c.request, c.operation
	r.Tool, r.Tier, r.Status = c.tool, optionsv1.Tier(int32(uint32(c.tier))), auditv1.Status(int32(uint32(c.status)))
	set(&one.written, c.written)
	set(&one.logged, c.logged)
	if c.pruned != 0 {
		e.PrunedBy = proto.Uint64(c.pruned - 1)
	}
	return e
}

// set makes ts a stored time.
func set(ts *timestamppb.Timestamp, nanoseconds int64) {
	at := moment(nanoseconds)
	ts.Seconds, ts.Nanos = at.Unix(), int32(at.Nanosecond())
}

// entry is the entry with everything.
func (c *cell) entry() (*auditv1.Entry, error) {
	e, err := c.stored(nil)
	if err != nil {
		return nil, err
	}
	return e, whole(e)
}

// stored is the entry with what is stored of it. Its body is the one among bodies that says the same, and is added to them, unless they are
// nil.
func (c *cell) stored(bodies map[said]*auditv1.Body) (*auditv1.Entry, error) {
	e := c.header()
	e.BodyCommitment, e.LeafHash = c.commitment, c.leaf
	if c.salt == nil {
		return e, nil
	}
	e.Salt = c.salt
	body, known := bodies[c.said]
	if !known {
		var err error
		if body, err = c.body(); err != nil {
			return nil, err
		}
		if bodies != nil {
			bodies[c.said] = body
		}
	}
	e.Record.Body = body
	return e, nil
}

// prune takes the cell's body away.
func (c *cell) prune(by uint64) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	commitment, err := logproof.BodyCommitment(c.salt, body)
	if err != nil {
		return err
	}
	c.commitment, c.salt, c.pruned = commitment[:], nil, by+1
	c.said = said{}
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

// encode makes a block of at least so many bytes: one that is written anew over an older one has its length, so that nothing of that is
// left anywhere in the database's pages.
func encode(cells []cell, least int) ([]byte, error) {
	words := table{at: map[string]uint64{}}
	var columns, beside []byte
	last := map[uint64]uint64{}
	number := func(of func(c *cell) uint64) {
		for i := range cells {
			columns = binary.AppendUvarint(columns, of(&cells[i]))
		}
	}
	difference := func(of func(c *cell) int64) {
		before := int64(0)
		for i := range cells {
			now := of(&cells[i])
			columns = binary.AppendVarint(columns, now-before)
			before = now
		}
	}
	difference(func(c *cell) int64 { return int64(c.index) })
	number(func(c *cell) uint64 { return words.ref(c.writer) })
	number(func(c *cell) uint64 { // one more than the writer's last, mostly
		who := words.ref(c.writer)
		ahead := c.sequence - last[who] - 1
		last[who] = c.sequence
		return ahead
	})
	number(func(c *cell) uint64 { return c.kind })
	number(func(c *cell) uint64 { return c.tier })
	number(func(c *cell) uint64 { return c.status })
	number(func(c *cell) uint64 { return c.channel })
	number(func(c *cell) uint64 { return c.duration })
	difference(func(c *cell) int64 { return c.written })
	difference(func(c *cell) int64 { return c.logged })
	number(func(c *cell) uint64 {
		if _, own := random(c.request); own {
			return 0
		}
		return words.ref(c.request) + 1
	})
	number(func(c *cell) uint64 { return words.ref(c.operation) })
	number(func(c *cell) uint64 { return words.ref(c.tool) })
	number(func(c *cell) uint64 { return words.ref(c.session) })
	number(func(c *cell) uint64 { return words.ref(c.principal) })
	number(func(c *cell) uint64 { return words.ref(c.rest) })
	number(func(c *cell) uint64 { return c.pruned })
	number(func(c *cell) uint64 {
		if c.salt == nil {
			return 0
		}
		return 1
	})
	for i := range cells {
		c := &cells[i]
		if bits, own := random(c.request); own {
			beside = append(beside, bits[:]...)
		}
		beside = append(append(append(beside, c.salt...), c.commitment...), c.leaf...)
	}
	raw := binary.AppendUvarint(nil, uint64(len(cells)))
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
	out = append(out, blockVersion)
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

// decode returns what encode was given, in order of the index.
func decode(block []byte) ([]cell, error) { return decodeWithin(block, maxRaw) }

// decodeWithin is decode of a block that is decompressed to no more than so many bytes.
func decodeWithin(block []byte, most uint64) ([]cell, error) {
	in := &input{b: block}
	if version := in.take(1); in.bad || version[0] != blockVersion {
		return nil, errBlock
	}
	length := in.number()
	small := in.take(in.number())
	if in.bad || length > most {
		return nil, errBlock
	}
	r := readers.Get().(io.ReadCloser)
	defer readers.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(small), nil); err != nil {
		return nil, err
	}
	var unpacked bytes.Buffer
	unpacked.Grow(int(min(length, 1<<20)))
	if n, err := unpacked.ReadFrom(io.LimitReader(r, int64(length)+1)); err != nil || uint64(n) != length {
		return nil, errBlock
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
			c.salt = in.take(logproof.SaltSize)
		} else {
			c.commitment = in.take(logproof.SaltSize)
		}
		c.leaf = in.take(logproof.SaltSize)
	}
	if in.bad {
		return nil, errBlock
	}
	texts := string(ids)
	for i := range cells {
		if places[i].random {
			cells[i].request, texts = texts[:len(ownRequest)+randomDigits], texts[len(ownRequest)+randomDigits:]
		}
	}
	return cells, nil
}

// place is what a block has of a cell outside of its columns: the bits of its request's id, and a salt, or else a commitment.
type place struct{ random, salted bool }

func readColumns(in *input) ([]cell, []place, error) {
	n := in.number()
	if n == 0 || n > uint64(len(in.b)) {
		return nil, nil, errBlock
	}
	count := in.number()
	if count > uint64(len(in.b)) {
		return nil, nil, errBlock
	}
	text := make([]string, count)
	for i := range text {
		text[i] = string(in.take(in.number()))
	}
	cells, places := make([]cell, n), make([]place, n)
	number := func(of func(c *cell, v uint64)) {
		for i := range cells {
			of(&cells[i], in.number())
		}
	}
	difference := func(of func(c *cell, v int64)) {
		now := int64(0)
		for i := range cells {
			now += in.difference()
			of(&cells[i], now)
		}
	}
	word := func(of func(c *cell, s string)) {
		number(func(c *cell, v uint64) {
			if v >= uint64(len(text)) {
				in.bad = true
				return
			}
			of(c, text[v])
		})
	}
	difference(func(c *cell, v int64) { c.index = uint64(v) })
	word(func(c *cell, s string) { c.writer = s })
	last := map[string]uint64{}
	number(func(c *cell, v uint64) {
		c.sequence = last[c.writer] + v + 1
		last[c.writer] = c.sequence
	})
	number(func(c *cell, v uint64) { c.kind = v })
	number(func(c *cell, v uint64) { c.tier = v })
	number(func(c *cell, v uint64) { c.status = v })
	number(func(c *cell, v uint64) { c.channel = v })
	number(func(c *cell, v uint64) { c.duration = v })
	difference(func(c *cell, v int64) { c.written = v })
	difference(func(c *cell, v int64) { c.logged = v })
	for i := range cells {
		switch v := in.number(); {
		case v == 0:
			places[i].random = true
		case v > count:
			in.bad = true
		default:
			cells[i].request = text[v-1]
		}
	}
	word(func(c *cell, s string) { c.operation = s })
	word(func(c *cell, s string) { c.tool = s })
	word(func(c *cell, s string) { c.session = s })
	word(func(c *cell, s string) { c.principal = s })
	word(func(c *cell, s string) { c.rest = s })
	number(func(c *cell, v uint64) { c.pruned = v })
	for i := range places {
		places[i].salted = in.number() == 1
	}
	if in.bad || len(in.b) > 0 || !slices.IsSortedFunc(cells, func(a, b cell) int { return cmp.Compare(a.index, b.index) }) {
		return nil, nil, errBlock
	}
	return cells, places, nil
}
