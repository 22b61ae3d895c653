package platformtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Network is a test's own network, in which every address of the world is this process: a listener on 0.0.0.0 gets what is sent to
// any address, and nothing leaves the host. It counts the packets that begin something, by where they go.
type Network struct {
	t      *testing.T
	socket int

	mu    sync.Mutex
	sent  map[netip.AddrPort]int
	seen  chan struct{} // the marker of Sent has come
	ended chan struct{}
}

// marker is where Sent sends a packet to know that those before it were counted.
var marker = netip.MustParseAddrPort("198.18.255.254:9")

// NewNetwork runs the test again in a process with its own network: there it returns that network, here nil when that process is
// done, and the test returns. It skips where the system forbids namespaces, which it never does to root.
func NewNetwork(t *testing.T) *Network {
	t.Helper()
	if !apart(t, syscall.CLONE_NEWNET|syscall.CLONE_NEWNS) {
		return nil
	}
	if err := everywhereIsHere(); err != nil {
		t.Fatalf("make a network: %v", err)
	}
	// Packets without the head of their link, of every protocol, in the network's byte order.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(unix.ETH_P_ALL<<8))
	if err != nil {
		t.Fatalf("watch a network: %v", err)
	}
	_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20) // as much of it as the system gives; Sent says if it was too little
	n := &Network{t: t, socket: socket, sent: map[netip.AddrPort]int{}, seen: make(chan struct{}, 1), ended: make(chan struct{})}
	go n.watch()
	return n
}

// ResolveAt has every program of the network ask a server for names: its /etc/resolv.conf, and nobody else's, says so.
func (n *Network) ResolveAt(server netip.Addr) {
	n.t.Helper()
	file := filepath.Join(n.t.TempDir(), "resolv.conf")
	err := os.WriteFile(file, fmt.Appendf(nil, "nameserver %s\n", server), 0o600)
	if err == nil {
		err = syscall.Mount(file, "/etc/resolv.conf", "", syscall.MS_BIND, "")
	}
	if err != nil {
		n.t.Fatalf("name a network's name server: %v", err)
	}
	n.t.Cleanup(func() { _ = syscall.Unmount("/etc/resolv.conf", syscall.MNT_DETACH) }) // it ends with its namespace anyway
}

// Sent returns how often something was begun with each address until now: the first packet of a TCP connection, or a UDP packet.
func (n *Network) Sent() map[netip.AddrPort]int {
	n.t.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(marker))
	if err == nil {
		_, err = conn.Write([]byte("."))
		_ = conn.Close()
	}
	if err != nil {
		n.t.Fatalf("watch a network: %v", err)
	}
	select {
	case <-n.seen:
	case <-n.ended:
		n.t.Fatal("the network is no longer watched")
	}
	stats, err := unix.GetsockoptTpacketStats(n.socket, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil || stats.Drops != 0 {
		n.t.Fatalf("of the network's packets %d were not seen: %v", stats.Drops, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	sent := n.sent
	n.sent = map[netip.AddrPort]int{}
	return sent
}

func (n *Network) watch() {
	defer close(n.ended)
	packet := make([]byte, 1<<16)
	for {
		size, from, err := unix.Recvfrom(n.socket, packet, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype != unix.PACKET_OUTGOING {
			continue // each packet of the loopback device is seen as it goes and as it comes
		}
		switch to, begins := begun(packet[:size]); {
		case to == marker:
			n.seen <- struct{}{}
		case begins:
			n.mu.Lock()
			n.sent[to]++
			n.mu.Unlock()
		}
	}
}

// begun returns where an IP packet goes, and whether it begins something.
func begun(p []byte) (netip.AddrPort, bool) {
	var to netip.Addr
	var protocol byte
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		to, protocol = netip.AddrFrom4([4]byte(p[16:20])), p[9]
		p = p[min(len(p), int(p[0]&15)*4):]
	case len(p) >= 40 && p[0]>>4 == 6:
		to, protocol, p = netip.AddrFrom16([16]byte(p[24:40])), p[6], p[40:]
	default:
		return netip.AddrPort{}, false
	}
	switch {
	case protocol == unix.IPPROTO_UDP && len(p) >= 8:
	case protocol == unix.IPPROTO_TCP && len(p) >= 20 && p[13]&0x12 == 0x02: // SYN without ACK
	default:
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(to, binary.BigEndian.Uint16(p[2:4])), true
}

// everywhereIsHere brings the loopback device up and makes every address one of its own.
func everywhereIsHere() error {
	device, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	inet, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(inet) }()
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(inet, unix.SIOCSIFFLAGS, up); err != nil {
		return err
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := localRoute(family, device.Index); err != nil {
			return err
		}
	}
	return nil
}

// localRoute does what "ip route add local default dev DEVICE" does.
func localRoute(family byte, device int) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	body := []byte{family, 0, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0}
	body = binary.NativeEndian.AppendUint16(body, 8)
	body = binary.NativeEndian.AppendUint16(body, unix.RTA_OIF)
	body = binary.NativeEndian.AppendUint32(body, uint32(device))
	request := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	request = binary.NativeEndian.AppendUint16(request, unix.RTM_NEWROUTE)
	request = binary.NativeEndian.AppendUint16(request, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	request = append(append(request, make([]byte, 8)...), body...) // its number and its sender's are 0
	if err := unix.Sendto(socket, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	size, _, err := unix.Recvfrom(socket, answer, 0)
	if err != nil {
		return err
	}
	if size < unix.NLMSG_HDRLEN+4 {
		return errors.New("the kernel's answer is cut")
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); errno != 0 {
		return syscall.Errno(errno)
	}
	return nil
}
