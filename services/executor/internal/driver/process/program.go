package process

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/canonical"
)

// inherited is the program's own file as the child sees it: the first of its files after the three that every program has.
const inherited = "/proc/self/fd/3"

// program is an open program file whose content was judged.
type program struct {
	file   *os.File
	stamp  unix.Stat_t
	script bool
}

// openProgram opens the program file and compares its content with the definition. What runs is that open file: whatever has
// its name by then.
func openProgram(name, definition string) (*program, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrProgramMissing, err)
	}
	p := &program{file: file}
	if err := p.judge(definition); err != nil {
		_ = file.Close()
		return nil, err
	}
	return p, nil
}

func (p *program) judge(definition string) error {
	if err := unix.Fstat(int(p.file.Fd()), &p.stamp); err != nil || p.stamp.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: %s", driver.ErrProgramMissing, p.file.Name())
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, p.file); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	if canonical.FormatDigest(sum.Sum(nil)) != definition {
		return driver.ErrChanged
	}
	var first [2]byte
	if _, err := p.file.ReadAt(first[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	p.script = string(first[:]) == "#!"
	return nil
}

// start begins a command that runs the program. It fails where the file was written to since it was judged.
//
// A script runs by its name: its interpreter opens it again, and finds its own folder by it. So whoever may put another file in
// its place can do so in the moment between the last look and the start.
func (p *program) start(cmd *exec.Cmd, begin func() error) error {
	cmd.Path, cmd.ExtraFiles = inherited, []*os.File{p.file}
	look := func(into *unix.Stat_t) error { return unix.Fstat(int(p.file.Fd()), into) }
	if p.script {
		cmd.Path, cmd.ExtraFiles = p.file.Name(), nil
		look = func(into *unix.Stat_t) error { return unix.Stat(p.file.Name(), into) }
	}
	var now unix.Stat_t
	if err := look(&now); err != nil || !same(p.stamp, now) {
		return driver.ErrChanged
	}
	return begin()
}

// same reports whether two looks found the same file with the same content; its owner cannot set the time of its change.
func same(a, b unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mtim == b.Mtim && a.Ctim == b.Ctim
}
