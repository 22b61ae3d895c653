package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"
	"time"

	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/keyfile"
)

// maxFile bounds a certificate or key file.
const maxFile = 1 << 20

// Files name a certificate chain and its private key, both PEM.
type Files struct {
	Certificate string
	Key         string
}

// Pair is what two PEM files hold, read again when they change. It is safe for concurrent use.
type Pair[T any] struct {
	files Files
	parse func(certificate, key []byte) (T, error)
	// members are the groups of the process whose files these are, where another judges them.
	members []uint32

	mu      sync.Mutex
	mark    filewatch.Stamps
	tried   time.Time
	current T
	failure error
}

// OpenPair reads the files, each a regular one of at most 1 MB. parse makes of them what Get returns, or refuses them; it is
// called once now, and once at a time whenever the files have changed, and again and again while it refuses them. members are as
// keyfile.Read has them.
func OpenPair[T any](files Files, parse func(certificate, key []byte) (T, error), members ...uint32) (*Pair[T], error) {
	p := &Pair[T]{files: files, parse: parse, members: members}
	if err := p.Reload(); err != nil {
		return nil, err
	}
	return p, nil
}

// Get returns the pair in use, after Reload.
func (p *Pair[T]) Get() T {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reload()
	return p.current
}

// Reload takes up the files now if they changed. A pair that is refused, such as a renewal half written, is left, and the last
// good one stays in use; Reload returns why for as long as it is refused.
func (p *Pair[T]) Reload() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reload()
	return p.failure
}

func (p *Pair[T]) reload() {
	mark := filewatch.Paths(p.files.Certificate, p.files.Key)()
	// What was refused may be good later though the files stay as they are: a root came to the trust folder, or its time begins.
	if maps.Equal(mark, p.mark) && (p.failure == nil || time.Since(p.tried) < filewatch.Interval) {
		return
	}
	p.mark, p.tried = mark, time.Now()
	pair, err := p.read()
	if p.failure = err; err == nil {
		p.current = pair
	}
}

func (p *Pair[T]) read() (none T, err error) {
	certificate, err := readFile(p.files.Certificate)
	if err != nil {
		return none, fmt.Errorf("certificate: %w", err)
	}
	key, err := keyfile.Read(p.files.Key, p.members...)
	if err != nil {
		return none, fmt.Errorf("private key: %w", err)
	}
	pair, err := p.parse(certificate, key)
	if err != nil {
		return none, fmt.Errorf("certificate %s: %w", p.files.Certificate, err)
	}
	return pair, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file of at most 1 MB")}
	}
	return os.ReadFile(path)
}
