package procfs

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListeners: netlink tells of this test's listeners what the tables tell, and of no connection.
func TestListeners(t *testing.T) {
	t.Parallel()
	ports := map[uint16]bool{}
	for network, at := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "tcp": ":0"} {
		l, err := net.Listen(network, at)
		if network == "tcp6" && err != nil {
			continue // a host without IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		ports[port] = true
		c, err := net.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	sorted := func(all []Socket, err error) []Socket {
		if err != nil {
			t.Fatal(err)
		}
		all = slices.DeleteFunc(all, func(s Socket) bool { return !ports[s.Local.Port()] || s.State != Listening })
		for i := range all {
			all[i].Remote = netip.AddrPort{} // 0.0.0.0:0
		}
		slices.SortFunc(all, func(a, b Socket) int { return cmp.Compare(a.Inode, b.Inode) })
		return all
	}
	want := sorted(Sockets("/proc"))
	got, err := diagnosed()
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel, or what confines the test, has no sock_diag:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(got, func(s Socket) bool { return s.State != Listening }) {
		t.Error("a connection is among them")
	}
	if got := sorted(got, nil); !slices.Equal(got, want) || len(got) != len(ports) || got[0].User != strconv.Itoa(os.Geteuid()) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := sorted(Listeners("/proc")); !slices.Equal(got, want) {
		t.Errorf("Listeners: %v", got)
	}
}

// TestNoNetlink: without netlink the tables are read.
func TestNoNetlink(t *testing.T) {
	t.Parallel()
	if _, err := answers(-1, unix.AF_INET, nil); err == nil {
		t.Error("a socket that is none answered")
	}
	root := t.TempDir()
	if err := os.Mkdir(root+"/net", 0o700); err != nil {
		t.Fatal(err)
	}
	const address, rest = " 0: 0100007F:1F90 00000000:0000 ", " 00000000:00000000 00:00000000 00000000 1001 0 111 1\n"
	table := address + Established + rest + address + Listening + rest + address + Established + rest
	if err := os.WriteFile(root+"/net/tcp", []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Listeners(root); err != nil || len(got) != 1 || got[0].Inode != "111" {
		t.Errorf("%v, %v", got, err)
	}
}
