package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// Durward's own listeners and the catalogue's services are never dialled, on whichever address of loopback, and while the catalogue cannot
// be read nothing there is.
func TestOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "catalogue.yaml")
	s := &settings{Catalogue: path, Own: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7431"), netip.MustParseAddrPort("10.0.0.1:7431")}}
	at := func(address string) bool { return s.own(netip.MustParseAddrPort(address)) }
	if !at("127.0.0.1:9000") || !at("[::1]:9000") || at("10.0.0.2:9000") {
		t.Error("a catalogue that is not there lets loopback be dialled, or keeps from what lies elsewhere")
	}
	if err := os.WriteFile(path, []byte("services: [{id: llm, port: 8000}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"127.0.0.1:8000": true, "127.0.0.2:8000": true, "[::1]:8000": true, "0.0.0.0:8000": true, "93.184.216.34:8000": false, "127.0.0.1:9000": false,
		"127.0.0.1:7431": true, "127.9.9.9:7431": true, "10.0.0.1:7431": true, "10.0.0.2:7431": false,
	} {
		if at(address) != want {
			t.Errorf("%s: own is %t", address, !want)
		}
	}
	s.Local = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8000")}
	if _, err := s.dialer(); err == nil {
		t.Error("a service's address is taken as a local one")
	}
}
