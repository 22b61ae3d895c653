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
	"durward.internal/services/executor/internal/driver/pin"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
)

// inherited is the program's own file as the child sees it: the first of its files after the three that every program has.
const inherited = "/proc/self/fd/3"

// program is an open program file, and the files that it is given, whose content was judged.
type program struct {
	file   *os.File
	stamp  unix.Stat_t
	script bool
	files  []pin.File
}

// openProgram opens the program file and compares its content, and that of the files that arguments name, with the definition. What
// runs is that open file: whatever has its name by then.
func openProgram(s *catalog.Service, definition string) (*program, error) {
	file, err := os.OpenFile(s.Program(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrProgramMissing, err)
	}
	p := &program{file: file, files: arguments(s, &catalog.Programs{})}
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
	is, err := pin.Definition(canonical.FormatDigest(sum.Sum(nil)), p.files)
	if err != nil || is != definition {
		return driver.ErrChanged
	}
	if p.script, err = isScript(p.file); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	return nil
}

func isScript(file io.ReaderAt) (bool, error) {
	var first [2]byte
	if _, err := file.ReadAt(first[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return string(first[:]) == "#!", nil
}

// arguments are the files that the service's arguments name.
func arguments(s *catalog.Service, programs *catalog.Programs) []pin.File {
	find := pin.Finder{Programs: programs, Writes: s.Writes, Digests: s.Digests}
	if as, err := runsAs(s); err == nil {
		find.Dir = workingDir(s, as)
	}
	return find.Arguments(s.Argv[1:])
}

// give has a command run the program.
//
// A script runs by its name: its interpreter opens it again, and finds its own folder by it. So whoever may put another file in
// its place can do so in the moment between the last look and the start.
func (p *program) give(cmd *exec.Cmd) {
	if cmd.Path, cmd.ExtraFiles = inherited, []*os.File{p.file}; p.script {
		cmd.Path, cmd.ExtraFiles = p.file.Name(), nil
	}
}

// unchanged is the last look: it fails where a file was written to since it was judged.
func (p *program) unchanged() error {
	var now unix.Stat_t
	err := unix.Fstat(int(p.file.Fd()), &now)
	if p.script {
		err = unix.Stat(p.file.Name(), &now)
	}
	if err != nil || !same(p.stamp, now) || !pin.Unchanged(p.files) {
		return driver.ErrChanged
	}
	return nil
}

// same reports whether two looks found the same file with the same content; its owner cannot set the time of its change.
func same(a, b unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mtim == b.Mtim && a.Ctim == b.Ctim
}
