package backupfile

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
)

// keptBack is how much of a part's end is read and not given before all of it is known to be the part that was made. It is more than what age
// encrypts as its last chunk, so that no program reads another part to its end.
const keptBack = 128 << 10

// Part opens a service's part. Reading it ends with an error, and without the end of it, where it is not the part that the list has: the file may
// lie with somebody who answers the second time otherwise than the first.
func (f *File) Part(service string) (io.ReadCloser, error) {
	i := slices.IndexFunc(f.Parts, func(p Part) bool { return p.Head.Service == service })
	in, err := f.file.Open(service + partSuffix)
	if err != nil || i < 0 {
		return nil, fmt.Errorf("the part of %s is missing: the file is damaged", service)
	}
	p := &partReader{part: f.Parts[i], file: in, sum: sha256.New()}
	p.ahead = bufio.NewReaderSize(io.TeeReader(in, p), keptBack+64<<10)
	return p, nil
}

// partReader reads a part, and is what its bytes are written to on their way.
type partReader struct {
	part  Part
	file  io.ReadCloser
	ahead *bufio.Reader
	sum   hash.Hash
	bytes int64
	whole bool
}

// Write implements io.Writer.
func (p *partReader) Write(b []byte) (int, error) {
	p.bytes += int64(len(b))
	return p.sum.Write(b)
}

// Read implements io.Reader.
func (p *partReader) Read(b []byte) (int, error) {
	if !p.whole {
		switch _, err := p.ahead.Peek(keptBack + 1); {
		case err == nil:
			return p.ahead.Read(b[:min(len(b), p.ahead.Buffered()-keptBack)])
		case !errors.Is(err, io.EOF), p.bytes != p.part.Bytes, hex.EncodeToString(p.sum.Sum(nil)) != p.part.SHA256:
			return 0, fmt.Errorf("the part of %s is not the one that was made: the file is damaged, or somebody changed it", p.part.Head.Service)
		}
		p.whole = true
	}
	return p.ahead.Read(b)
}

// Close implements io.Closer.
func (p *partReader) Close() error { return p.file.Close() }
