package reserve_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
)

const size = 1 << 20

func open(t *testing.T, dir string) *reserve.Reserve {
	t.Helper()
	r, err := reserve.Open(dir, size)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOpenRefuses: what is no reserve is none.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	linked := t.TempDir()
	if err := os.Symlink(victim, filepath.Join(linked, reserve.File)); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() (*reserve.Reserve, error){
		"no bytes":       func() (*reserve.Reserve, error) { return reserve.Open(dir, 0) },
		"no bytes, less": func() (*reserve.Reserve, error) { return reserve.Open(dir, -1) },
		"a symlink":      func() (*reserve.Reserve, error) { return reserve.Open(linked, size) },
		"not a folder":   func() (*reserve.Reserve, error) { return reserve.Open(victim, size) },
	} {
		if r, err := open(); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("the link's target was written: %q, %v", text, err)
	}
}

// TestLife: taken, given up once, taken again, found again at the next start.
func TestLife(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	held := func() int64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, reserve.File))
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if r.InUse() || held() < size {
		t.Fatalf("given %v, %d bytes held", r.InUse(), held())
	}
	for i, want := range []bool{true, false} {
		if released, err := r.Release(); released != want || err != nil {
			t.Errorf("Release %d = %v, %v", i, released, err)
		}
	}
	if !r.InUse() || held() != 0 {
		t.Errorf("given up: %v, and %d bytes held", r.InUse(), held())
	}
	if err := r.Refill(); err != nil || r.InUse() || held() < size {
		t.Errorf("Refill: %v, given %v, %d bytes held", err, r.InUse(), held())
	}
	before, _ := os.Stat(filepath.Join(dir, reserve.File))
	if again := open(t, dir); again.InUse() {
		t.Error("the next start did not find it")
	}
	if after, _ := os.Stat(filepath.Join(dir, reserve.File)); !after.ModTime().Equal(before.ModTime()) {
		t.Error("the next start wrote it again")
	}
	// A file of holes is as long and holds nothing.
	if err := errors.Join(os.Truncate(filepath.Join(dir, reserve.File), 0), os.Truncate(filepath.Join(dir, reserve.File), size)); err != nil {
		t.Fatal(err)
	}
	if open(t, dir); held() < size {
		t.Errorf("a file of holes was taken for a reserve: %d bytes held", held())
	}
}

// TestRoom: a disk that is filling up is told of before the reserve is given up, while it is, and no longer once there is room.
func TestRoom(t *testing.T) {
	dir := platformtest.SmallDisk(t, 4<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	r := open(t, dir)
	probed := error(nil)
	room := func() error {
		return r.Writable(func(context.Context) error { return probed })(t.Context())
	}
	full := func(err error) bool {
		var said deepcheck.Said
		return errors.As(err, &said) && said == reserve.Problem
	}
	ballast := filepath.Join(dir, "ballast")
	if err := room(); err != nil {
		t.Errorf("with room: %v", err)
	}
	platformtest.Fill(t, ballast)
	if err := room(); !full(err) {
		t.Errorf("on a full disk: %v", err)
	}
	if released, err := r.Release(); !released || err != nil {
		t.Fatal(released, err)
	}
	if err := room(); !full(err) {
		t.Errorf("without the reserve: %v", err)
	}
	if err := errors.Join(os.Remove(ballast), r.Refill()); err != nil {
		t.Fatal(err)
	}
	if err := room(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if probed = fmt.Errorf("probe: %w", syscall.ENOSPC); !full(room()) {
		t.Errorf("a probe that finds the disk full: %v", room())
	}
	if probed = errors.New("it is read-only"); full(room()) || !errors.Is(room(), probed) {
		t.Errorf("a probe that fails otherwise: %v", room())
	}
}

// TestAFolderThatIsGone is no full disk.
func TestAFolderThatIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := r.Writable(func(context.Context) error { return nil })(t.Context()); err == nil || reserve.Full(err) {
		t.Errorf("its room is %v", err)
	}
}

// TestNone: a process without a reserve writes as it always did.
func TestNone(t *testing.T) {
	var r *reserve.Reserve
	if released, err := r.Release(); released || err != nil || r.InUse() || r.Refill() != nil || r.Writable(func(context.Context) error { return nil })(t.Context()) != nil {
		t.Error("a reserve that is none does something")
	}
	if err := r.Write(false, func() error { return syscall.ENOSPC }); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Write = %v", err)
	}
}

// TestFull: which errors mean that the disk is full.
func TestFull(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("database or disk is full"), false}, // words prove nothing
		{syscall.EIO, false},
		{coded(11), false},
		{&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, true},
		{fmt.Errorf("x: %w", syscall.EDQUOT), true},
		{fmt.Errorf("x: %w", coded(13)), true},
		{errors.Join(coded(13), errors.New("rollback")), true},
		{coded(4874), true},
	} {
		if got := reserve.Full(tc.err); got != tc.want {
			t.Errorf("Full(%v) = %v", tc.err, got)
		}
	}
}

// TestLogFull: a refusal of audit's is known through what was wrapped around it, and no other is taken for it.
func TestLogFull(t *testing.T) {
	audit := fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "not now", fault.WithField(reserve.Field))
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{syscall.ENOSPC, false},
		{reserve.Refused(nil), false},
		{fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "not now"), false},
		{fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "not that", fault.WithField(reserve.Field)), false},
		{audit, true},
		{fmt.Errorf("x: %w", fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "y", fault.WithCause(fmt.Errorf("z: %w", audit)))), true},
	} {
		if got := reserve.LogFull(tc.err); got != tc.want {
			t.Errorf("LogFull(%v) = %v", tc.err, got)
		}
		f := fault.From(fault.From(reserve.Unrecorded("why", time.Second, tc.err)).GRPCStatus("r-1").Err())
		if f.Code != callv1.Code_CODE_AUDIT_UNAVAILABLE || !f.Retryable || f.DiskFull != tc.want || (f.Message == reserve.Sentence) != tc.want || (f.Message == "why") == tc.want {
			t.Errorf("what %v keeps from being recorded: %+v", tc.err, f)
		}
	}
}

type coded int

func (c coded) Error() string { return fmt.Sprint("code ", int(c)) }
func (c coded) Code() int     { return int(c) }

// TestWrite: who may use what is kept back.
func TestWrite(t *testing.T) {
	r := open(t, t.TempDir())
	boom := errors.New("boom")
	attempts := 0
	run := func(entitled bool, results ...error) error {
		attempts = 0
		return r.Write(entitled, func() error {
			attempts++
			return results[attempts-1]
		})
	}
	if err := run(false, boom); !errors.Is(err, boom) || r.InUse() {
		t.Errorf("another error: %v", err)
	}
	err := run(false, syscall.ENOSPC)
	if f := fault.From(err); f.Code != callv1.Code_CODE_UNAVAILABLE || f.Message != reserve.Sentence || !f.DiskFull || !f.Retryable || attempts != 1 || r.InUse() {
		t.Errorf("not entitled on a full disk: %v, %d attempts, given up %v", err, attempts, r.InUse())
	}
	if err := run(true, syscall.ENOSPC, nil); err != nil || attempts != 2 || !r.InUse() {
		t.Errorf("entitled on a full disk: %v, %d attempts, given up %v", err, attempts, r.InUse())
	}
	if err := run(true, syscall.ENOSPC); !errors.Is(err, syscall.ENOSPC) || attempts != 1 {
		t.Errorf("entitled when the reserve is used up: %v, %d attempts", err, attempts)
	}
	// There is room again, as this disk never was full: the reserve is taken again and everybody writes.
	if err := run(false, nil); err != nil || r.InUse() {
		t.Errorf("with room again: %v, given up %v", err, r.InUse())
	}
}
