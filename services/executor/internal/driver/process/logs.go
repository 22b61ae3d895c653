package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/catalog"
)

// KeepLog is the first argument by which the executor's program is a log's keeper; see KeepLogMain.
const KeepLog = "keep-log"

const (
	// chunk is how much of a service's output is read at once, in bytes.
	chunk = 32 << 10
	// keepPatience is how long the last words of a program may take to reach its log. What a program left behind may hold the pipe.
	keepPatience = time.Second
)

// keep starts the keeper of a service's log, and returns the end of the pipe that the program writes to. The caller closes it.
//
// A process of its own reads the pipe (HOST-8), since services outlive the executor: one that wrote to a pipe of ours would end with us. The
// program holds no descriptor of the file, so that it can neither lengthen nor empty it.
func (d *Driver) keep(s *catalog.Service) (out *os.File, keeper identity, err error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, identity{}, err
	}
	defer in.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"executor", KeepLog, filepath.Base(d.logFile(s.ID)), strconv.FormatInt(s.LogMaxBytes, 10)},
		Dir: d.logDir, Env: []string{"GOMAXPROCS=1"}, Stdin: in, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	begin := cmd.Start
	if !d.development {
		begin = func() error { return confined(cmd.Start) }
	}
	if err := begin(); err != nil {
		return nil, identity{}, errors.Join(err, out.Close())
	}
	keeper.pid = cmd.Process.Pid
	keeper.start, err = ticks(keeper.pid)
	go func() { _ = cmd.Wait() }() // it ends when nobody holds the pipe
	if err != nil {
		return nil, identity{}, errors.Join(err, out.Close())
	}
	return out, keeper, nil
}

// KeepLogMain copies standard input to the log FILE of its folder, of at most LIMIT bytes, its arguments, until nobody can write to the pipe any
// more, and returns the process's exit code. What has no room is moved to FILE.1; what cannot be written is dropped: a full disk
// ends no service.
func KeepLogMain(args []string) int {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	if len(args) != 2 {
		return 2
	}
	limit, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil || limit < 1 {
		return 2
	}
	file := filepath.Base(args[0])
	_ = appendLog(file, unended(file), limit) // so that it is there
	buf := make([]byte, chunk)
	for {
		n, err := os.Stdin.Read(buf)
		if n > 0 {
			_ = appendLog(file, buf[:n], limit)
		}
		if err != nil {
			return 0
		}
	}
}

// unended is the end of a log's last line where that has none, so that no line is of two runs.
func unended(file string) []byte {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	last := make([]byte, 1)
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return nil
	}
	if _, err := f.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return nil
	}
	return []byte("\n")
}

// appendLog appends to a log, which holds no more than limit bytes before and afterwards.
func appendLog(file string, p []byte, limit int64) error {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := unix.Flock(int(out.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	for len(p) > 0 {
		if err := boundLog(file, limit); err != nil {
			return err
		}
		info, err := out.Stat()
		if err != nil {
			return err
		}
		room := limit - info.Size()
		if room <= 0 {
			return errors.New("the log was taken away while it was opened") // and what was emptied is another
		}
		n, err := out.Write(p[:min(int64(len(p)), room)])
		if p = p[n:]; err != nil {
			return err
		}
	}
	return nil
}

// locked keeps a log as it is until release is called.
func locked(file string) (release func(), err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// boundLog copies a log that is full to FILE.1, its last limit bytes, and empties it. The caller has locked it.
func boundLog(file string, limit int64) error {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() < limit {
		return nil
	}
	base, err := readBase(file)
	if err != nil {
		return err
	}
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	old, err := os.OpenFile(file+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(old, io.NewSectionReader(in, info.Size()-limit, limit))
	if cerr := old.Close(); err == nil {
		err = cerr
	}
	// The base comes first: killed in between, a keeper leaves lines twice, rather than none.
	if err == nil {
		err = writeBase(file, base+info.Size())
	}
	if err != nil {
		return err
	}
	return os.Truncate(file, 0)
}

// pipeName is what /proc/PID/fd shows of a pipe.
func pipeName(f *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("process driver: %w", err)
	}
	return fmt.Sprintf("pipe:[%d]", st.Ino), nil
}
