package dialer

import "net/netip"

// globalUnicast is what IANA gives out of IPv6; whatever lies outside is special, whether or not it has a name below.
var globalUnicast = netip.MustParsePrefix("2000::/3")

type block struct {
	prefix netip.Prefix
	name   string
}

// metadata names the addresses at which clouds tell machines about themselves, credentials too.
const metadata = "a cloud's metadata service"

// special are the blocks of IANA's special-purpose registries (IPv4, IPv6 and multicast), those too that are reachable from
// everywhere, and one cloud's metadata service, which has a public address. Where two overlap the narrower comes first.
//
// https://www.iana.org/assignments/iana-ipv4-special-registry, https://www.iana.org/assignments/iana-ipv6-special-registry
var special = []block{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.100.100.200/32"), metadata},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared by a provider's customers (CGNAT)"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), metadata},
	{netip.MustParsePrefix("169.254.169.254/32"), metadata},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.192/32"), metadata},
	{netip.MustParsePrefix("192.0.0.0/24"), "for IETF protocols"},
	{netip.MustParsePrefix("192.0.2.0/24"), "for documentation"},
	{netip.MustParsePrefix("192.31.196.0/24"), "AS112"},
	{netip.MustParsePrefix("192.52.193.0/24"), "AMT"},
	{netip.MustParsePrefix("192.88.99.0/24"), "6to4 relays"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("192.175.48.0/24"), "AS112"},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "an IPv4 address in IPv6 (mapped)"},
	{netip.MustParsePrefix("::/96"), "an IPv4 address in IPv6 (compatible)"},
	{netip.MustParsePrefix("64:ff9b::/96"), "an IPv4 address in IPv6 (NAT64)"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an IPv4 address in IPv6 (NAT64)"},
	{netip.MustParsePrefix("100::/64"), "discarded"},
	{netip.MustParsePrefix("100:0:0:1::/64"), "a dummy"},
	{netip.MustParsePrefix("2001::/32"), "an IPv4 address in IPv6 (Teredo)"},
	{netip.MustParsePrefix("2001:2::/48"), "for benchmarks"},
	{netip.MustParsePrefix("2001:10::/28"), "ORCHID"},
	{netip.MustParsePrefix("2001:20::/28"), "ORCHIDv2"},
	{netip.MustParsePrefix("2001::/23"), "for IETF protocols"},
	{netip.MustParsePrefix("2001:db8::/32"), "for documentation"},
	{netip.MustParsePrefix("2002::/16"), "an IPv4 address in IPv6 (6to4)"},
	{netip.MustParsePrefix("2620:4f:8000::/48"), "AS112"},
	{netip.MustParsePrefix("3fff::/20"), "for documentation"},
	{netip.MustParsePrefix("5f00::/16"), "segment routing"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), metadata},
	{netip.MustParsePrefix("fc00::/7"), "private (unique local)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// Special says what an address is set apart for; "" for one of the public network.
func Special(addr netip.Addr) string {
	plain := addr.WithZone("")
	for _, b := range special {
		if b.prefix.Contains(plain) {
			return b.name
		}
	}
	switch {
	case addr.Zone() != "":
		return "of one link"
	case !addr.IsValid(), addr.Is6() && !globalUnicast.Contains(addr):
		return "outside of what is given out"
	}
	return ""
}
