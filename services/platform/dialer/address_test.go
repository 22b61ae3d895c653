package dialer

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"code.dny.dev/ssrf"

	"durward.internal/services/platform/destination"
)

// stricter is where this package refuses what the library lets pass.
var stricter = netip.MustParsePrefix("168.63.129.16/32")

// TestTableAndLibraryAgree tries the table of this package against the library's and the other way round: at both ends of every block
// of either, beside them, within them and anywhere.
func TestTableAndLibraryAgree(t *testing.T) {
	guardian := ssrf.New(ssrf.WithAnyPort())
	tried, special := 0, 0
	try := func(addr netip.Addr) {
		if !addr.IsValid() {
			return
		}
		tried++
		ours, theirs := Special(addr) != "", guardian.SafeAddr(addr) != nil
		if ours {
			special++
		}
		if ours != theirs && (!ours || !stricter.Contains(addr)) {
			t.Errorf("%s: this table refuses: %v (%s), the library refuses: %v", addr, ours, Special(addr), theirs)
		}
	}
	var all []netip.Prefix
	for _, b := range allBlocks() {
		all = append(all, b.prefix)
	}
	all = append(append(append(all, ssrf.IPv4DeniedPrefixes...), ssrf.IPv6DeniedPrefixes...), globalUnicast, ssrf.IPv6GlobalUnicast)
	random := rand.New(rand.NewPCG(1, 2))
	for _, prefix := range all {
		first, last := prefix.Masked().Addr(), lastOf(prefix)
		for _, addr := range []netip.Addr{first, first.Prev(), first.Next(), last, last.Prev(), last.Next()} {
			try(addr)
		}
		for range 200 {
			try(within(prefix, random))
		}
	}
	for range 100_000 {
		try(within(netip.MustParsePrefix("0.0.0.0/0"), random))
		try(within(netip.MustParsePrefix("::/0"), random))
		try(within(netip.MustParsePrefix("2000::/3"), random))
	}
	if special < 1000 || special > tried-1000 {
		t.Errorf("of %d addresses %d are special", tried, special)
	}
	if !stricter.Contains(netip.MustParseAddr("168.63.129.16")) || Special(stricter.Addr()) == "" {
		t.Error("a cloud's metadata service at a public address is let pass")
	}
}

// TestBlocksOverlapInOrder: of two blocks the narrower is named.
func TestBlocksOverlapInOrder(t *testing.T) {
	for i, wide := range special {
		for _, narrow := range special[i+1:] {
			if wide.prefix.Overlaps(narrow.prefix) && narrow.prefix.Bits() >= wide.prefix.Bits() {
				t.Errorf("%s is never named: %s comes first", narrow.prefix, wide.prefix)
			}
		}
	}
}

// TestJudge: what stands behind the list of destinations and behind this package's table.
func TestJudge(t *testing.T) {
	d, err := New(Config{Allow: destination.Only(), Local: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080")}})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(err error, want destination.Rule) bool {
		e := (*destination.Error)(nil)
		return errors.As(err, &e) && e.Rule == want
	}
	for _, c := range []struct {
		network, address string
		want             destination.Rule
	}{
		{"tcp4", "93.184.216.34:8080", destination.RulePort}, // a local service's, elsewhere
		{"tcp4", "127.0.0.1:80", destination.RuleAddress},
		{"udp4", "93.184.216.34:80", destination.RuleAddress},
		{"unix", "/run/docker.sock", destination.RuleAddress},
		{"tcp4", "93.184.216.34", destination.RuleAddress},
		{"tcp", "93.184.216.34:80", destination.RuleAddress},
	} {
		if err := d.connecting(t.Context(), c.network, c.address, nil); !refused(err, c.want) {
			t.Errorf("%s %s: %v, want %s", c.network, c.address, err, c.want)
		}
	}
	for network, address := range map[string]string{"tcp4": "93.184.216.34:443", "tcp6": "[2606:4700::1111]:80"} {
		if err := d.connecting(t.Context(), network, address, nil); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	defer func(all []block, unicast netip.Prefix) { special, globalUnicast = all, unicast }(special, globalUnicast)
	special, globalUnicast = nil, netip.MustParsePrefix("::/0")
	for _, address := range []string{"127.0.0.1:80", "10.0.0.1:80", "[::1]:80", "[fe80::1]:80", "[::ffff:127.0.0.1]:80"} {
		if err := d.judge(netip.MustParseAddrPort(address)); !refused(err, destination.RuleAddress) {
			t.Errorf("without the table the library lets %s pass: %v", address, err)
		}
	}
}

func TestSpecialNames(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1": "loopback", "169.254.169.254": "a cloud's metadata service", "100.64.0.1": "shared by a provider's customers (CGNAT)",
		"::1": "loopback", "fe80::1": "link-local", "fe80::1%eth0": "link-local", "::ffff:8.8.8.8": "an IPv4 address in IPv6 (mapped)",
		"64:ff9b::7f00:1": "an IPv4 address in IPv6 (NAT64)", "2002:7f00:1::1": "an IPv4 address in IPv6 (6to4)",
		"2001:0:1::1": "an IPv4 address in IPv6 (Teredo)", "fd00:ec2::254": "a cloud's metadata service", "fd00::1": "private (unique local)",
		"4000::1": "outside of what is given out", "2606:4700::1%eth0": "of one link", "8.8.8.8": "", "2606:4700::1111": "",
	} {
		if got := Special(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is %q, want %q", addr, got, want)
		}
	}
	if Special(netip.Addr{}) == "" {
		t.Error("no address at all is public")
	}
}

func allBlocks() []block { return special }

// within is any address of a block.
func within(prefix netip.Prefix, random *rand.Rand) netip.Addr {
	return fill(prefix, func() byte { return byte(random.Uint32()) })
}

func lastOf(prefix netip.Prefix) netip.Addr { return fill(prefix, func() byte { return 0xff }) }

// fill puts bytes behind a block's own bits.
func fill(prefix netip.Prefix, with func() byte) netip.Addr {
	addr := prefix.Masked().Addr().AsSlice()
	for i := range addr {
		switch free := (i+1)*8 - prefix.Bits(); {
		case free >= 8:
			addr[i] = with()
		case free > 0:
			addr[i] |= with() & (1<<free - 1)
		}
	}
	got, _ := netip.AddrFromSlice(addr)
	return got
}
