// Package launcher starts other people's MCP servers in another process than egress, under another Unix user: egress asks at a Unix socket,
// and gets a child's pipes as descriptors. Egress names a server, a user and the values of its variables; what runs, and within which
// bounds, the launcher reads itself from what a human signed.
//
// Serve runs in durward-launcher, and trusts the human's files alone. Client runs in egress, and trusts whoever the kernel says listens at
// the socket. A connection is one child: it ends when egress' end closes, whatever that was.
package launcher

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is how long one side waits for the other to say what it has to.
	patience = 30 * time.Second
	// maxFrame bounds what they tell each other, in bytes.
	maxFrame = 1 << 20
)

// request asks for a child.
type request struct {
	Server  string            `json:"server"`
	User    string            `json:"user"`
	Env     map[string]string `json:"env"`
	Network bool              `json:"network"`
}

// Orders, once a child runs.
const (
	orderKill   = "kill"
	orderFreeze = "freeze"
	orderThaw   = "thaw"
)

// order is what egress says of a running child.
type order struct {
	Order string `json:"order"`
}

// answer is what the launcher says: of the start, with descriptors; of an order; or of the end.
type answer struct {
	// Failed is why it is not done; empty: it is.
	Failed string `json:"failed"`
	Ended  bool   `json:"ended"`
}

// write writes a frame, with descriptors.
func write(conn *net.UnixConn, v any, files ...*os.File) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(raw) > maxFrame {
		return fmt.Errorf("more than %d bytes to say", maxFrame)
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			raw, err := f.SyscallConn() // Fd would make the pipe one that blocks
			if err != nil {
				return err
			}
			if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
				return err
			}
		}
		rights = unix.UnixRights(fds...)
	}
	n, oob, err := conn.WriteMsgUnix(frame, rights, nil)
	if err == nil && oob != len(rights) {
		err = errors.New("descriptors are not passed on")
	}
	if err == nil && n < len(frame) {
		_, err = conn.Write(frame[n:])
	}
	return err
}

// read reads a frame, and the descriptors that came with it, which are the caller's to close.
func read(conn *net.UnixConn, into any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			files = nil
		}
	}()
	const most = 4
	head, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4*most))
	n, oobn, flags, _, err := conn.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, err
	}
	if files, err = received(oob[:oobn]); err != nil {
		return files, err
	}
	if n == 0 {
		return files, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, errors.New("more descriptors than there are to say")
	}
	if _, err := io.ReadFull(conn, head[n:]); err != nil {
		return files, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxFrame {
		return files, errors.New("it says too much")
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(conn, raw); err != nil {
		return files, err
	}
	return files, json.Unmarshal(raw, into)
}

// received opens the descriptors of a control message.
func received(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if err := unix.SetNonblock(fd, true); err != nil {
				return files, err
			}
			files = append(files, os.NewFile(uintptr(fd), "child"))
		}
	}
	return files, nil
}
