// Package launch brings services their credentials past the executor: a launcher, which is the executor's own program begun anew, makes a
// key for one start, opens with it what the vault sealed, and hands the values over. The executor's memory never holds one.
//
// It hands them over in one of three ways. It becomes the program (Program), which finds them in files of memory and in variables; it
// answers systemd at a socket from which a unit loads its credentials (Serve); or it puts them into files of a folder in memory, from
// which a container gets them (Put). In the last two it goes away with what it holds once the service was started, or the executor ended.
//
// It trusts the catalog's entry and the executor that began it; it gives values to whom the executor says.
package launch

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
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// Word is the first argument by which the executor's program is a launcher; see Main.
const Word = "launch"

const (
	// patience is how long a launcher may take until it is ready; the vault is asked in between.
	patience = 10 * time.Second
	// maxFrame bounds what executor and launcher tell each other, in bytes.
	maxFrame = 4 << 20
)

// Release has the vault encrypt the credentials that a service's entry names to its launcher's public key. Its errors are faults.
type Release func(ctx context.Context, service string, names []string, public []byte) (sealed []byte, err error)

// instructions are what a launcher does, and what it gets. One of Path, Socket and Folder is set.
type instructions struct {
	Service string
	// Path, Args and Env are the program that it becomes.
	Path      string
	Args, Env []string
	// Socket is where it answers systemd about Unit.
	Socket, Unit string
	// Folder is where it puts files.
	Folder string
	Sealed []byte
}

// answer is what a launcher says once it did so, where it does not become a program.
type answer struct {
	Failed string
	Files  []File
}

// File is a credential in a file.
type File struct {
	Name string
	// Variable is the one that is to hold the file's path.
	Variable string
	Path     string
}

// Program begins a program that is given credentials. A launcher begins in its place, with its user, its group and its limits, and becomes
// the program once it is told everything, if it may by then.
func Program(ctx context.Context, release Release, s *catalog.Service, cmd *exec.Cmd, begin func() error, may driver.Begin) error {
	tell := instructions{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env}
	control, err := beginAs(cmd, release, begin)
	if err != nil {
		return err
	}
	defer control.Close()
	err = within(ctx, control, func(ctx context.Context) error {
		if err := tellIt(ctx, control, release, s, tell, may); err != nil {
			return err
		}
		// The launcher's end closes when it becomes the program, and not before.
		said, err := io.ReadAll(io.LimitReader(control, 1024))
		if err == nil && len(said) > 0 {
			err = errors.New(string(said))
		}
		return failed(err)
	})
	if err != nil {
		_ = control.Close()
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return err
}

// Held is a launcher that holds values for a service which is about to start.
type Held struct {
	// Files are what it put into a folder.
	Files   []File
	control net.Conn
	ended   chan struct{}
}

// Close has it let go of the values, and returns once it has.
func (h *Held) Close() {
	if h == nil {
		return
	}
	_ = h.control.Close()
	<-h.ended
}

// Serve begins a launcher that gives the service's unit its credentials at a socket: LoadCredential=NAME:SOCKET.
func Serve(ctx context.Context, release Release, s *catalog.Service, socket string) (*Held, error) {
	return hold(ctx, release, s, instructions{Socket: socket, Unit: s.Unit})
}

// Put begins a launcher that puts the service's credentials into files, which every user may read who gets into the folder, and only the
// executor's does. The folder is made where it is missing, and must be in memory.
func Put(ctx context.Context, release Release, s *catalog.Service, folder string) (*Held, error) {
	return hold(ctx, release, s, instructions{Folder: folder})
}

func hold(ctx context.Context, release Release, s *catalog.Service, tell instructions) (*Held, error) {
	cmd := &exec.Cmd{SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	control, err := beginAs(cmd, release, cmd.Start)
	if err != nil {
		return nil, err
	}
	h := &Held{control: control, ended: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(h.ended) }()
	err = within(ctx, control, func(ctx context.Context) error {
		if err := tellIt(ctx, control, release, s, tell, driver.AtOnce); err != nil {
			return err
		}
		raw, err := readFrame(control)
		var said answer
		if err == nil {
			err = json.Unmarshal(raw, &said)
		}
		if h.Files = said.Files; err == nil && said.Failed != "" {
			return fmt.Errorf("%w: its launcher: %s", driver.ErrNotTaken, said.Failed)
		}
		return failed(err)
	})
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// beginAs makes a command a launcher, begins it, and returns where it is spoken to.
func beginAs(cmd *exec.Cmd, release Release, begin func() error) (net.Conn, error) {
	if release == nil {
		return nil, driver.ErrNoCredential
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	cmd.Path, cmd.Env = "/proc/self/exe", []string{"GOMAXPROCS=1"}
	cmd.Args = []string{"executor", Word, strconv.Itoa(3 + len(cmd.ExtraFiles))}
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	if err := errors.Join(begin(), theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}

// within bounds a conversation.
func within(ctx context.Context, control net.Conn, talk func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = control.Close() })
	defer stop()
	return talk(ctx)
}

// tellIt asks the vault for what is sealed to a launcher's key, and tells it all that it needs.
func tellIt(ctx context.Context, control net.Conn, release Release, s *catalog.Service, tell instructions, may driver.Begin) error {
	public, err := readFrame(control)
	if err != nil {
		return failed(err)
	}
	to, pass := recipient(public)
	sealed, err := release(ctx, s.ID, s.Credentials, to)
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
	tell.Service, tell.Sealed = s.ID, pass(sealed, s.ID)
	raw, err := json.Marshal(tell)
	if err == nil {
		err = may(func() error { return writeFrame(control, raw) })
	}
	return failed(err)
}

func failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: its launcher: %w", driver.ErrNotStarted, err)
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
