package procfs

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listeners returns those of Sockets that take connections. Where root is the kernel's own, sock_diag(7) is asked, which goes through
// listening sockets alone: for a table in /proc/net the kernel goes through the places of all the connections that it could hold. Where
// netlink is refused, the tables are read.
func Listeners(root string) ([]Socket, error) {
	if root == "/proc" {
		if out, err := diagnosed(); err == nil {
			return out, nil
		}
	}
	all, err := Sockets(root)
	return slices.DeleteFunc(all, func(s Socket) bool { return s.State != Listening }), err
}

// diagnosed asks for what listens: a request of sock_diag(7)'s inet_diag_req_v2 for each family, answered by an inet_diag_msg for each socket.
func diagnosed() ([]Socket, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(socket) }()
	var out []Socket
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, unix.NLMSG_HDRLEN+56)
		binary.NativeEndian.PutUint32(request, uint32(len(request)))
		binary.NativeEndian.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
		binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
		request[16], request[17] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(request[20:], 1<<unix.BPF_TCP_LISTEN)
		if err := unix.Sendto(socket, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return nil, err
		}
		if out, err = answers(socket, family, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// answers adds the sockets of a request's answers, up to the last one.
func answers(socket int, family byte, out []Socket) ([]Socket, error) {
	width := map[byte]int{unix.AF_INET: 4, unix.AF_INET6: 16}[family]
	for buffer := make([]byte, 32<<10); ; {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return out, nil
			case m.Header.Type != unix.SOCK_DIAG_BY_FAMILY || len(m.Data) < 72:
				return nil, unix.EPROTO // a refusal, above all
			}
			local, _ := netip.AddrFromSlice(m.Data[8 : 8+width])
			out = append(out, Socket{
				Local: netip.AddrPortFrom(local.Unmap(), binary.BigEndian.Uint16(m.Data[4:])), State: Listening,
				User:  strconv.FormatUint(uint64(binary.NativeEndian.Uint32(m.Data[64:])), 10),
				Inode: strconv.FormatUint(uint64(binary.NativeEndian.Uint32(m.Data[68:])), 10),
			})
		}
	}
}
