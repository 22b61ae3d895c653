package catalog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/filewatch"
)

// ErrNoProgram is returned for a program file that is missing or not a regular file.
var ErrNoProgram = errors.New("the program file is missing")

// Programs computes digests of program files and remembers each until its file changes. It is safe for concurrent use.
//
// The digest binds an approval to the program's content at approval; the program is started by path right after the
// comparison, so whoever may replace the file in that instant (its owner) can still do so.
type Programs struct {
	mu    sync.Mutex
	known map[string]*programDigest
}

// programDigest is of one file. Its lock is held while the file is read, which takes a while where it holds a model's weights.
type programDigest struct {
	mu     sync.Mutex
	stamp  filewatch.Stamp
	digest string
}

// Digest returns "sha256:…" of the file's content.
func (p *Programs) Digest(file string) (string, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNoProgram
	}
	if err != nil {
		return "", fmt.Errorf("program digest: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("program digest: %w", err)
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return "", ErrNoProgram
	}
	stamp := filewatch.Of(sys)
	known := p.of(file)
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.digest != "" && known.stamp == stamp {
		return known.digest, nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", fmt.Errorf("program digest: %w", err)
	}
	known.stamp, known.digest = stamp, canonical.FormatDigest(hash.Sum(nil))
	return known.digest, nil
}

func (p *Programs) of(file string) *programDigest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string]*programDigest{}
	}
	if p.known[file] == nil {
		p.known[file] = &programDigest{}
	}
	return p.known[file]
}
