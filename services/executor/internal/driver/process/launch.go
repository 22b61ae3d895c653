package process

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/handover"
)

// Launch is the first argument by which the executor's program is a service's launcher; see LaunchMain.
const Launch = "launch"

const (
	// launchPatience is how long a launcher may take to become the program; the vault is asked in between.
	launchPatience = 10 * time.Second
	// maxFrame bounds what executor and launcher tell each other, in bytes.
	maxFrame = 4 << 20
)

// Release has the vault encrypt the credentials that a service's entry names to its launcher's public key. Its errors are faults.
type Release func(ctx context.Context, service string, names []string, public []byte) (sealed []byte, err error)

// instructions are what a launcher becomes, and what it gets.
type instructions struct {
	Service   string
	Path      string
	Args, Env []string
	Sealed    []byte
}

// launching returns a begin for a program that is given credentials. A launcher begins in its place, with its user, its group and its
// limits: this very program, which makes a key, opens with it what the vault sealed, and becomes the program. This process sees no value.
func (d *Driver) launching(ctx context.Context, s *catalog.Service, cmd *exec.Cmd, begin func() error) func() error {
	return func() error {
		if d.release == nil {
			return driver.ErrNoCredential
		}
		ours, theirs, err := socketPair()
		if err != nil {
			return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
		}
		defer ours.Close()
		tell := instructions{Service: s.ID, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env}
		cmd.Path, cmd.Env = "/proc/self/exe", []string{"GOMAXPROCS=1"}
		cmd.Args = []string{"executor", Launch, strconv.Itoa(3 + len(cmd.ExtraFiles))}
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
		err = begin()
		if closed := theirs.Close(); err != nil || closed != nil {
			return errors.Join(err, closed)
		}
		if err := d.handOver(ctx, ours, s, tell); err != nil {
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			_ = cmd.Wait()
			return err
		}
		return nil
	}
}

// handOver talks to a launcher until it is the program.
func (d *Driver) handOver(ctx context.Context, with net.Conn, s *catalog.Service, tell instructions) error {
	ctx, cancel := context.WithTimeout(ctx, launchPatience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = with.Close() })()
	failed := func(err error) error { return fmt.Errorf("%w: its launcher: %w", driver.ErrNotStarted, err) }
	public, err := readFrame(with)
	if err != nil {
		return failed(err)
	}
	to, pass := recipient(public)
	sealed, err := d.release(ctx, s.ID, s.Credentials, to)
	switch {
	case fault.Is(err, callv1.Code_CODE_SEALED):
		return fmt.Errorf("%w: %w", driver.ErrSealed, err)
	case fault.Is(err, callv1.Code_CODE_NOT_FOUND):
		return fmt.Errorf("%w: %w", driver.ErrNoCredential, err)
	case errors.Is(err, driver.ErrOnlyByCall):
		return err
	case err != nil:
		return failed(err)
	}
	tell.Sealed = pass(sealed, s.ID)
	raw, err := json.Marshal(tell)
	if err != nil {
		return failed(err)
	}
	if err := writeFrame(with, raw); err != nil {
		return failed(err)
	}
	// The launcher's end closes when it becomes the program, and not before.
	said, err := io.ReadAll(io.LimitReader(with, 1024))
	switch {
	case err != nil:
		return failed(err)
	case len(said) > 0:
		return failed(errors.New(string(said)))
	}
	return nil
}

// LaunchMain is a launcher: it makes a key, gets what it becomes and the values that are sealed to that key, and becomes it. It returns
// only where that fails. FD, its argument, is where it talks to the executor.
func LaunchMain(args []string) int {
	fd := -1
	if len(args) == 1 {
		fd, _ = strconv.Atoi(args[0])
	}
	if fd < 3 {
		return 2
	}
	// Neither dumped nor looked at by others of its user while it holds the values as it gets them.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	unix.CloseOnExec(fd)
	control := os.NewFile(uintptr(fd), "control")
	if err := launch(control); err != nil {
		_, _ = io.WriteString(control, err.Error())
	}
	return 1
}

func launch(control io.ReadWriter) error {
	key, err := handover.NewKey()
	if err != nil {
		return err
	}
	if err := writeFrame(control, key.Public()); err != nil {
		return err
	}
	raw, err := readFrame(control)
	if err != nil {
		return err
	}
	var to instructions
	if err := json.Unmarshal(raw, &to); err != nil {
		return errors.New("the executor said nothing that can be understood")
	}
	values, err := key.Open(to.Sealed, to.Service)
	if err != nil {
		return err
	}
	env := to.Env
	for _, v := range values {
		text := string(v.Value)
		if v.File {
			if text, err = memoryFile(v); err != nil {
				return fmt.Errorf("%s: %w", v.Name, err)
			}
		} else if strings.Contains(text, "\x00") {
			return fmt.Errorf("%s: it holds a zero byte, and so can be given as a file alone", v.Name)
		}
		// The first of a name is what C's getenv finds.
		env = slices.DeleteFunc(env, func(set string) bool { return strings.HasPrefix(set, v.Variable+"=") })
		env = append(env, v.Variable+"="+text)
	}
	handover.Clear(values)
	return syscall.Exec(to.Path, to.Args, env) // #nosec G204 -- what the catalog says, by the executor's own word
}

// memoryFile makes a file that has no name in any folder, that the program's user alone can read and nobody can change, and returns its
// path, which is good in every process that has it open.
func memoryFile(v handover.Value) (string, error) {
	fd, err := unix.MemfdCreate(v.Name, unix.MFD_ALLOW_SEALING)
	if err != nil {
		return "", err
	}
	for rest := v.Value; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return "", err
		}
		rest = rest[n:]
	}
	if err := unix.Fchmod(fd, 0o400); err != nil {
		return "", err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return "", err
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}

// socketPair makes the two ends of a conversation: ours, and the one that a child gets.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	own := os.NewFile(uintptr(fds[0]), "launcher")
	theirs = os.NewFile(uintptr(fds[1]), "control")
	defer own.Close()
	ours, err = net.FileConn(own)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return ours, theirs, nil
}

func writeFrame(w io.Writer, p []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...))
	return err
}

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return nil, errors.New("it says too much")
	}
	p := make([]byte, n)
	_, err := io.ReadFull(r, p)
	return p, err
}
