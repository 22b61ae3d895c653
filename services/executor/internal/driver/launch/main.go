package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/handover"
)

// Main is a launcher: it makes a key, gets what it does and the values that are sealed to that key, and does it. FD, its argument, is where
// it talks to the executor. As a program it returns only where it could not become it.
func Main(args []string) int {
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
		return 1
	}
	return 0
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
	defer handover.Clear(values)
	var said answer
	var undo func()
	switch {
	case err != nil:
	case to.Path != "":
		err = become(to, values)
	case to.Socket != "":
		undo, err = serve(to, values)
	default:
		said.Files, undo, err = put(to.Folder, values)
	}
	if to.Path != "" {
		return err // it did not become the program, and its last words say why
	}
	if err != nil {
		said.Failed = err.Error()
	}
	raw, err = json.Marshal(said)
	if err == nil {
		err = writeFrame(control, raw)
	}
	if err == nil && said.Failed == "" {
		_, _ = io.Copy(io.Discard, control) // until the executor hangs up, or ends
	}
	if undo != nil {
		undo()
	}
	return err
}

// become becomes the program.
func become(to instructions, values []handover.Value) (err error) {
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

// serve answers at a socket, where systemd comes as root, or as this user where it is the user's own, from an abstract address that
// names the unit and the credential (systemd.exec(5), LoadCredential=).
func serve(to instructions, values []handover.Value) (undo func(), err error) {
	_ = os.Remove(to.Socket) // an earlier launcher's; what cannot be removed is in the way of listening
	if err := os.MkdirAll(filepath.Dir(to.Socket), 0o700); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: to.Socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			give(conn, to.Unit, values)
		}
	}()
	return func() { _ = l.Close(); <-done }, nil
}

// give gives one of the values to systemd.
func give(conn *net.UnixConn, unit string, values []handover.Value) {
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	var peer *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		return
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Getuid() {
		return
	}
	_, asked, _ := strings.Cut(conn.RemoteAddr().String(), "/unit/")
	at := slices.IndexFunc(values, func(v handover.Value) bool { return asked == unit+"/"+v.Name })
	if at < 0 {
		return
	}
	_, _ = conn.Write(values[at].Value)
}

// put puts values into files of a folder below, and returns how to take them away.
func put(folder string, values []handover.Value) (files []File, undo func(), err error) {
	_ = os.Mkdir(folder, 0o700) // it may be there; what is there now is looked at
	var st unix.Stat_t
	var on unix.Statfs_t
	if err := errors.Join(unix.Lstat(folder, &st), unix.Statfs(folder, &on)); err != nil {
		return nil, nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o077 != 0 || int(st.Uid) != os.Getuid():
		return nil, nil, fmt.Errorf("%s is not a folder that this user alone gets into", folder)
	case on.Type != unix.TMPFS_MAGIC && on.Type != unix.RAMFS_MAGIC:
		return nil, nil, fmt.Errorf("%s is on a disk; it has to be in memory", folder)
	}
	own, err := os.MkdirTemp(folder, "")
	if err != nil {
		return nil, nil, err
	}
	undo = func() { _ = os.RemoveAll(own) }
	for _, v := range values {
		if !v.File {
			undo()
			return nil, nil, fmt.Errorf("%s is stored to be given as a variable; a container gets files alone", v.Name)
		}
		path := filepath.Join(own, v.Name)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
		if err == nil {
			_, err = f.Write(v.Value)
			// The container's user reads it, whoever that is; on the host nobody gets into the folder.
			err = errors.Join(err, f.Chmod(0o444), f.Close())
		}
		if err != nil {
			undo()
			return nil, nil, err
		}
		files = append(files, File{Name: v.Name, Variable: v.Variable, Path: path})
	}
	return files, undo, nil
}
