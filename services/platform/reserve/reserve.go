// Package reserve keeps disk space for the day when there is none left: a file of nothing that a process gives up when its
// disk is full, so that what stops things (a halt, a denial, a service that is stopped) can still be recorded and done. The
// vault, audit and every sink link it, each with a reserve beside its own state.
//
// It trusts the state folder's owner. While the reserve is given up only entitled writes go on; it is taken again once the
// disk has room for it twice over, so that a disk at the brink does not go back and forth.
package reserve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/fault"
)

const (
	// File is the reserve's name in the state folder.
	File = "reserve"
	// Default is how much a process keeps unless it is told otherwise: room for thousands of records.
	Default = 8 << 20
	// retry is the least time between two attempts of Write to take the reserve again.
	retry = 5 * time.Second
	// block is how much is written at a time.
	block = 1 << 20
)

// Sentence is what a caller is told whose change has to wait for the disk.
const Sentence = "the disk is full and nothing more can be written down: only what takes load off the host goes on now"

// Problem is what operators are told of a process that is not Writable since its disk is full.
const Problem = "its disk is full, and only what takes load off the host goes on: make room, and all goes on by itself"

// Reserve is a file that holds disk space. It is safe for concurrent use. A nil *Reserve holds nothing and refuses nothing.
type Reserve struct {
	path  string
	bytes int64
	// now is time.Now but in tests.
	now func() time.Time

	mu   sync.Mutex
	held bool
	// tried is when Write last tried to take the reserve again.
	tried time.Time
}

// Open takes a reserve of that many bytes in the folder, or finds the one that is there. On a disk without room for it the
// process has to start all the same, to be able to stop things: Open then returns a reserve that is given up already.
func Open(dir string, bytes int64) (*Reserve, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("a reserve of %d bytes is none", bytes)
	}
	r := &Reserve{path: filepath.Join(dir, File), bytes: bytes, now: time.Now}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the reserve's folder: %w", err)
	}
	info, err := os.Lstat(r.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("the reserve cannot be looked at: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("the reserve %s is not a regular file", r.path)
	case allocated(info) >= bytes:
		r.held = true
		return r, nil
	}
	if err := r.take(); err != nil && !Full(err) {
		return nil, fmt.Errorf("the reserve cannot be taken: %w", err)
	}
	return r, nil
}

// allocated is how much disk a file holds, which is not its length if it has holes.
func allocated(info os.FileInfo) int64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return min(info.Size(), st.Blocks*512) //nolint:unconvert // Blocks is not an int64 on every system
}

// InUse reports whether the reserve is given up.
func (r *Reserve) InUse() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.held
}

// Release gives the reserve up and reports whether there was one to give.
func (r *Reserve) Release() (bool, error) {
	if r == nil {
		return false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held {
		return false, nil
	}
	// Cutting the file needs no space of its own, where removing it may, on a file system that copies what it changes.
	if err := os.Truncate(r.path, 0); err != nil {
		return false, fmt.Errorf("the reserve cannot be given up: %w", err)
	}
	r.held = false
	return true, nil
}

// Refill takes the reserve again. It takes nothing, and returns an error for which Full reports true, unless the disk has
// room for it twice over.
func (r *Reserve) Refill() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refill()
}

func (r *Reserve) refill() error {
	if r.held {
		return nil
	}
	free, err := Free(filepath.Dir(r.path))
	if err != nil {
		return err
	}
	if free/2 < uint64(r.bytes) {
		return fmt.Errorf("the disk has %d bytes left, and a reserve of %d wants twice its size: %w", free, r.bytes, syscall.ENOSPC)
	}
	return r.take()
}

// Free is how many bytes an ordinary process may still write to the folder's file system.
func Free(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("the disk's free space cannot be read: %w", err)
	}
	return st.Bavail * uint64(st.Bsize), nil //nolint:unconvert // the types differ from system to system
}

// take fills the file, or leaves it empty. The caller holds mu, or is Open.
func (r *Reserve) take() (err error) {
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Truncate(0) // half a reserve would be space that nobody can use
		}
		err = errors.Join(err, f.Close())
		r.held = err == nil
	}()
	if err = syscall.Fallocate(int(f.Fd()), 0, 0, r.bytes); errors.Is(err, syscall.EOPNOTSUPP) {
		err = fill(f, r.bytes)
	}
	if err != nil {
		return err
	}
	return f.Sync()
}

// fill writes a file where the system cannot allocate one.
func fill(f *os.File, bytes int64) error {
	// Noise, since a file system that compresses keeps no space for zeros.
	noise := rand.NewChaCha8([32]byte{'d', 'u', 'r', 'w', 'a', 'r', 'd'})
	buffer := make([]byte, min(block, bytes))
	for left := bytes; left > 0; left -= int64(len(buffer)) {
		buffer = buffer[:min(int64(len(buffer)), left)]
		_, _ = noise.Read(buffer) // never fails
		if _, err := f.Write(buffer); err != nil {
			return err
		}
	}
	return nil
}

// Write runs a durable write that either happens as a whole or not at all. If the disk is full and the write is entitled, the
// reserve is given up and it runs once more. While the reserve is given up a write that is not entitled is refused without
// being tried; see Refused. Everything else is as write returned it.
func (r *Reserve) Write(entitled bool, write func() error) error {
	if r == nil {
		return write()
	}
	if !mayWrite(entitled) && r.Tight() {
		return Refused(nil)
	}
	err := write()
	if !Full(err) {
		return err
	}
	if !mayWrite(entitled) {
		return Refused(err)
	}
	released, gone := r.Release()
	if !released {
		return errors.Join(err, gone)
	}
	return write()
}

// ToStart opens what a process cannot start without, and gives the reserve up for it where the disk is full: a process that does not
// start stops nothing.
func ToStart[T any](r *Reserve, open func() (T, error)) (opened T, err error) {
	err = r.Write(true, func() (err error) { opened, err = open(); return err })
	return opened, err
}

// Tight is InUse after an attempt, now and then, to take the reserve again.
func (r *Reserve) Tight() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		return false
	}
	if now := r.now(); now.Sub(r.tried) >= retry || now.Before(r.tried) {
		r.tried = now
		_ = r.refill() // it stays given up, and the caller is told so
	}
	return !r.held
}

// room returns an error while the disk has less left than block, or the reserve is given up.
func (r *Reserve) room() error {
	if r == nil {
		return nil
	}
	left, err := Free(filepath.Dir(r.path))
	if err == nil && (left < block || r.Tight()) {
		err = fmt.Errorf("the disk has %d bytes left: %w", left, syscall.ENOSPC)
	}
	return err
}

// Writable is a deep check: what probe finds, and Problem where that is a full disk, there is less than block left, or the reserve is given
// up.
func (r *Reserve) Writable(probe func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := errors.Join(r.room(), probe(ctx))
		if Full(err) {
			return errors.Join(deepcheck.Said(Problem), err)
		}
		return err
	}
}

// Refused is the fault of a write that has to wait for the disk, of which nothing was done: CODE_UNAVAILABLE, to be tried again.
func Refused(cause error) *fault.Error {
	return fault.New(callv1.Code_CODE_UNAVAILABLE, Sentence, fault.WithDiskFull(), fault.WithRetry(retry), fault.WithCause(cause))
}

// Unrecorded is the fault of what cannot be recorded, CODE_AUDIT_UNAVAILABLE: with that sentence, or Sentence where LogFull says why.
func Unrecorded(sentence string, retry time.Duration, cause error) *fault.Error {
	f := fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, sentence, fault.WithRetry(retry), fault.WithCause(cause))
	if LogFull(cause) {
		f.Message, f.DiskFull = Sentence, true
	}
	return f
}

// LogFull reports whether err is, or was caused by, audit's refusal of a record for which its disk has no room; see Field.
func LogFull(err error) bool {
	var f *fault.Error
	for errors.As(err, &f) {
		if f.Code == callv1.Code_CODE_AUDIT_UNAVAILABLE && f.Field == Field {
			return true
		}
		err = f.Cause
	}
	return false
}

// SQLite's codes for a disk that is full: SQLITE_FULL, and SQLITE_IOERR_SHMSIZE, which is what it makes of one when it extends
// the index of its write-ahead log (https://sqlite.org/rescode.html).
const (
	sqliteFull    = 13
	sqliteShmSize = 4874
)

// Full reports whether an error says that the disk, or its owner's share of it, is used up.
func Full(err error) bool {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return true
	}
	var coded interface{ Code() int }
	return errors.As(err, &coded) && (coded.Code()&0xff == sqliteFull || coded.Code() == sqliteShmSize)
}

// Denial is the action in the vault's record of a human's no.
const Denial = "deny"

// Field marks audit's refusal of records for which its disk has no room left, where a fault names the argument at fault:
// nothing of the request was written, and what Entitled allows would be.
const Field = "records.kind"

// Relieves reports whether the tool takes load off the host and adds none, so that its calls go on out of the reserve. A
// name that the contract does not know relieves nothing.
func Relieves(tool string) bool {
	t, known := contract.Lookup(tool)
	return known && t.Relieves
}

// Entitled reports whether a record may be written out of the reserve, whoever writes it and however often: that something was
// stopped, refused or taken away, and the whole story of a call that takes load off the host. That a process came and went is
// not among it: every process may write that at any time, and could use the reserve up with it.
func Entitled(r *auditv1.Record) bool { return mayWrite(entitled(r)) }

func entitled(r *auditv1.Record) bool {
	switch r.GetKind() {
	case auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED, auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_MUTED:
		return true
	case auditv1.Kind_KIND_DENIED:
		// A human's no. An agent whom policy refuses could use the reserve up by asking on.
		return r.GetBody().GetAction() == Denial || Relieves(r.GetTool())
	case auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_WITHDRAWN, auditv1.Kind_KIND_GRANTED,
		auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED:
		return Relieves(r.GetTool())
	default:
		return false
	}
}
