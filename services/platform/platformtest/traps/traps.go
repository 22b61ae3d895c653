// Package traps is a network of a test's own in which every address that may not be dialled answers, and addresses of every spelling,
// names and redirects that lead there (NETS-1). Whatever dials can be put into it: a dialer, or the built program of one.
//
// It runs in tests alone. Nothing in it leaves the host, and what it counts is what the kernel sent.
package traps

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"durward.internal/services/platform/platformtest"
)

// blocks are what must never be dialled, beside any address that is not public: some of each kind, and their spellings within others.
var blocks = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "100.100.100.200/32", "169.254.169.254/32",
	"::/128", "::1/128", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/32", "2001:2::/48", "2001:20::/28", "2001::/23",
	"2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fd00:ec2::254/128", "fe80::/10", "fec0::/10", "ff00::/8",
}

// Names is the domain of every name in the network; Server is its name server. Public are its public addresses: all others are traps.
const Names = "trap.test"

var (
	// Server is the network's name server.
	Server = netip.MustParseAddrPort("9.9.9.9:53")
	public = []netip.Prefix{netip.MustParsePrefix("93.184.0.0/16"), netip.MustParsePrefix("2606:4700::/32")}
)

// Traps is the network, with a web server at port 80 of every address and a name server. Forbidden is for one goroutine.
type Traps struct {
	t       *testing.T
	network *platformtest.Network
	targets []netip.Addr
	watched bool // packets were seen

	mu    sync.Mutex
	asked map[dnsmessage.Question]int
}

// New returns the network in the process that it starts for the test, as platformtest.NewNetwork does, and nil in the process that
// started it.
func New(t *testing.T) *Traps {
	t.Helper()
	network := platformtest.NewNetwork(t)
	if network == nil {
		return nil
	}
	p := &Traps{t: t, network: network, asked: map[dnsmessage.Question]int{}}
	random, each := rand.New(rand.NewPCG(3, 4)), 3 // #nosec G404 -- the same each time
	if platformtest.Full() {
		each = 16
	}
	for _, b := range blocks {
		prefix := netip.MustParsePrefix(b)
		p.targets = append(p.targets, prefix.Addr())
		for range each {
			addr := prefix.Addr().AsSlice()
			for bit := prefix.Bits(); bit < len(addr)*8; bit++ {
				addr[bit/8] ^= byte(random.UintN(2)) << (7 - bit%8)
			}
			one, _ := netip.AddrFromSlice(addr)
			p.targets = append(p.targets, one)
		}
	}
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			w.Header()["Location"] = []string{r.URL.Query().Get("to")}
			w.WriteHeader(http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("in"))
	})}
	for network, address := range map[string]string{"tcp4": "0.0.0.0:80", "tcp6": "[::]:80"} {
		l, err := net.Listen(network, address) // in a network of the test's own
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = web.Serve(l) }()
	}
	t.Cleanup(func() { _ = web.Close() })
	ServeNames(t, Server.String(), p.answers)
	network.ResolveAt(Server.Addr())
	return p
}

// Forbidden counts what was sent to traps since the last time, but to those that own names.
func (p *Traps) Forbidden(own func(netip.AddrPort) bool) (packets int) {
	p.t.Helper()
	for to, n := range p.network.Sent() {
		p.watched = true
		if to.Addr() != Server.Addr() && !public[0].Contains(to.Addr()) && !public[1].Contains(to.Addr()) && !own(to) {
			packets += n
		}
	}
	if !p.watched {
		p.t.Error("no packet was seen at all: nothing is watched")
	}
	return packets
}

// Asked are the names that were looked up since the last time.
func (p *Traps) Asked() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for q := range p.asked {
		names = append(names, q.Name.String())
	}
	clear(p.asked)
	return names
}

// Allowed is a URL that leads to no trap and answers "in", by a number.
func Allowed(n int) string { return fmt.Sprintf("http://public-%d.%s/", n, Names) }

func redirect(from int, to string) string {
	return Allowed(from) + "redirect?to=" + url.QueryEscape(to)
}

// Rebinding are URLs whose names lead to each target once they were looked up before.
func (p *Traps) Rebinding() (urls []string) {
	for i := range p.targets {
		urls = append(urls, fmt.Sprintf("http://rebind-%d.%s/", i, Names), fmt.Sprintf("http://late-%d.%s/", i, Names))
	}
	return urls
}

// Attacks are URLs that lead to each target.
func (p *Traps) Attacks() (urls []string) {
	for i, target := range p.targets {
		var hosts []string
		for _, way := range []string{"direct", "rebind", "late", "mixed", "alias"} {
			hosts = append(hosts, fmt.Sprintf("%s-%d.%s", way, i, Names))
		}
		for _, host := range append(hosts, spellings(target)...) {
			urls = append(urls, "http://"+host+"/", redirect(i, "http://"+host+"/"))
		}
		urls = append(urls, redirect(1, redirect(2, "http://"+hosts[0]+"/")))
	}
	return urls
}

// Addresses are the hosts of Attacks that are addresses, in every spelling.
func (p *Traps) Addresses() (hosts []string) {
	for _, target := range p.targets {
		hosts = append(hosts, spellings(target)...)
	}
	return hosts
}

// spellings are the ways in which resolvers, libraries and browsers write an address.
func spellings(addr netip.Addr) []string {
	if addr.Is6() {
		return []string{"[" + addr.String() + "]", "[" + addr.StringExpanded() + "]", "[" + strings.ToUpper(addr.String()) + "]", "[" + addr.String() + "%251]"}
	}
	b := addr.As4()
	n := binary.BigEndian.Uint32(b[:])
	wide := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r - '0' + '０'
		}
		return '。'
	}, addr.String())
	return []string{
		addr.String(), addr.String() + ".", fmt.Sprint(n), fmt.Sprintf("0x%x", n), fmt.Sprintf("0%o", n), wide,
		fmt.Sprintf("0x%x.0x%x.0x%x.0x%x", b[0], b[1], b[2], b[3]), fmt.Sprintf("0%o.0%o.0%o.0%o", b[0], b[1], b[2], b[3]),
		fmt.Sprintf("%d.%d", b[0], n&0xffffff), fmt.Sprintf("%d.%d.%d", b[0], b[1], n&0xffff), strings.ReplaceAll(addr.String(), ".", "%2e"),
		"public-1." + Names + "@" + addr.String(), fmt.Sprintf("[::ffff:%s]", addr), fmt.Sprintf("[::ffff:%x:%x]", n>>16, n&0xffff), fmt.Sprintf("[::%s]", addr),
		fmt.Sprintf("[64:ff9b::%x:%x]", n>>16, n&0xffff), fmt.Sprintf("[2002:%x:%x::1]", n>>16, n&0xffff), fmt.Sprintf("[2001:0:%x:%x::]", n>>16, n&0xffff),
	}
}

// ServeNames starts a name server that answers one question after the other, and returns where it is.
func ServeNames(t *testing.T, address string, answers func(dnsmessage.Question) []dnsmessage.Resource) string {
	t.Helper()
	conn, err := net.ListenPacket("udp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		packet := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:size]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			m.Answers = answers(m.Questions[0])
			if data, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(data, from) // the asker may have gone
			}
		}
	}()
	return conn.LocalAddr().String()
}

// Resource is an answer to a question, nil if that address is none.
func Resource(q dnsmessage.Question, name dnsmessage.Name, addr netip.Addr) []dnsmessage.Resource {
	header := dnsmessage.ResourceHeader{Name: name, Type: q.Type, Class: q.Class}
	switch {
	case addr.Is4() && q.Type == dnsmessage.TypeA:
		return []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}}}
	case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
		return []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}}}
	}
	return nil
}

// answers are to names of the form WAY-NUMBER below Names, with a time to live of 0:
// public, direct: a public address, the target. rebind: a public one the first time, then the target. late: the target from the
// third time. mixed: both. alias: the target behind a chain of names.
func (p *Traps) answers(q dnsmessage.Question) []dnsmessage.Resource {
	p.mu.Lock()
	times := p.asked[q]
	p.asked[q]++
	p.mu.Unlock()
	way, number := "", 0
	if _, err := fmt.Sscanf(strings.Replace(q.Name.String(), "-", " ", 1), "%s %d."+Names+".", &way, &number); err != nil {
		return nil
	}
	here := []netip.Addr{netip.AddrFrom4([4]byte{93, 184, byte(number >> 8), byte(number)}), netip.MustParseAddr(fmt.Sprintf("2606:4700::%x", number+1))}
	addrs, name := here, q.Name
	var all []dnsmessage.Resource
	target := p.targets[number%len(p.targets)]
	switch {
	case way == "direct", way == "alias", way == "rebind" && times > 0, way == "late" && times > 1:
		addrs = []netip.Addr{target}
	case way == "mixed":
		addrs = append([]netip.Addr{target}, here...)
	}
	if way == "alias" {
		for i := range 3 {
			next := dnsmessage.MustNewName(fmt.Sprintf("link%d.%s", i, q.Name))
			all = append(all, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Type: dnsmessage.TypeCNAME, Class: q.Class}, Body: &dnsmessage.CNAMEResource{CNAME: next}})
			name = next
		}
	}
	for _, addr := range addrs {
		all = append(all, Resource(q, name, addr)...)
	}
	return all
}
