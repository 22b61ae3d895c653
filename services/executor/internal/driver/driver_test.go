package driver

import (
	"net"
	"net/netip"
	"testing"
)

func TestPortFree(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	if PortFree(at) == nil {
		t.Error("a port on which somebody listens is free")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]netip.AddrPort{
		"nobody listens":              at,
		"no port":                     netip.MustParseAddrPort("127.0.0.1:0"),
		"a privileged one":            netip.MustParseAddrPort("127.0.0.1:1"),
		"the executor cannot have it": netip.MustParseAddrPort("192.0.2.1:17999"), // no address of this host
	} {
		if err := PortFree(at); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
