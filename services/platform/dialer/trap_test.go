package dialer_test

import (
	"context"
	"encoding/binary"
	"errors"
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

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/platformtest"
)

// blocks are what must never be dialled, beside any address that is not public: some of each kind, and their spellings within others.
var blocks = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "100.100.100.200/32", "169.254.169.254/32",
	"::/128", "::1/128", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:2::/48", "2001:20::/28", "2001::/23",
	"2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fd00:ec2::254/128", "fe80::/10", "ff00::/8",
}

// TestTraps is NETS-1 in a network in which every forbidden address answers: in every spelling, behind redirects and behind names that
// change their addresses between two look-ups, none gets a packet, and of the requests that are allowed none is refused.
func TestTraps(t *testing.T) {
	trap := newTrap(t)
	if trap == nil {
		return
	}
	d := trap.dialer(dialer.Config{Redirects: 3})
	tried := 0
	for _, raw := range trap.attacks() {
		tried++
		if answer, err := get(d, raw); err == nil && dialer.Special(answer.Address.Addr()) != "" {
			t.Errorf("%s is answered by %s", raw, answer.Address)
		} else if refused := (*destination.Error)(nil); err != nil && !errors.As(err, &refused) {
			t.Errorf("%s: %T %v", raw, err, err)
		}
	}
	allowed := 0
	for i := range 1000 {
		if answer, err := get(d, fmt.Sprintf("http://public-%d.test/", i)); err == nil && answer.Status == http.StatusOK && string(answer.Body) == "in" {
			allowed++
		} else if allowed == i {
			t.Errorf("public-%d.test: %+v %v", i, answer, err)
		}
	}
	packets := trap.forbidden()
	t.Logf("%d attacks, %d packets to forbidden addresses; %d of 1000 allowed requests answered", tried, packets, allowed)
	least := 4000
	if platformtest.Full() {
		least = 20_000
	}
	if packets != 0 || allowed != 1000 || tried < least {
		t.Errorf("%d attacks, %d packets to forbidden addresses; %d of 1000 allowed requests answered", tried, packets, allowed)
	}
}

// TestNamesOffTheList: a name that the list does not hold is not even looked up.
func TestNamesOffTheList(t *testing.T) {
	trap := newTrap(t)
	if trap == nil {
		return
	}
	d := trap.dialer(dialer.Config{Allow: destination.Only(destination.Destination{Host: "public-1.test", Port: 80}), Redirects: 3})
	for _, raw := range []string{
		"http://secret-data.evil.test/", "http://public-2.test/", "http://a.public-1.test/", "http://public-1.test:443/", "https://public-1.test/",
		"http://93.184.216.1/", "http://public-1.test/redirect?to=" + url.QueryEscape("http://secret-data.evil.test/"),
	} {
		if answer, err := get(d, raw); !ruled(err, destination.RuleDestination) {
			t.Errorf("%s: %+v, %v", raw, answer, err)
		}
	}
	if _, err := get(d, "http://public-1.test/"); err != nil {
		t.Error(err)
	}
	trap.mu.Lock()
	defer trap.mu.Unlock()
	for asked := range trap.asked {
		if asked.Name.String() != "public-1.test." {
			t.Errorf("%s was looked up", asked.Name)
		}
	}
}

func ruled(err error, rule destination.Rule) bool {
	refused := (*destination.Error)(nil)
	return errors.As(err, &refused) && refused.Rule == rule
}

func get(d *dialer.Dialer, raw string) (*dialer.Answer, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, &destination.Error{Rule: destination.RuleURL, Why: "net/url does not even read it"}
	}
	return d.Do(&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}})
}

// trap is a network of the test's own, with a web server at every address and a resolver.
type trap struct {
	t       *testing.T
	network *platformtest.Network
	// targets are forbidden addresses.
	targets  []netip.Addr
	resolver *net.Resolver

	mu    sync.Mutex
	asked map[dnsmessage.Question]int
}

// newTrap returns nil in the process that only starts the one with the network.
func newTrap(t *testing.T) *trap {
	t.Helper()
	network := platformtest.NewNetwork(t)
	if network == nil {
		return nil
	}
	p := &trap{t: t, network: network, asked: map[dnsmessage.Question]int{}}
	random, each := rand.New(rand.NewPCG(3, 4)), 3
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
	p.resolver = serveNames(t, "9.9.9.9:53", p.answers)
	return p
}

func (p *trap) dialer(cfg dialer.Config) *dialer.Dialer {
	p.t.Helper()
	cfg.Resolver = p.resolver
	if cfg.Allow == nil {
		cfg.Allow = func(context.Context, destination.Destination) error { return nil }
	}
	d, err := dialer.New(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// forbidden counts what was sent to addresses that are not public, since the last time.
func (p *trap) forbidden() int {
	p.t.Helper()
	n, all := 0, 0
	for to, packets := range p.network.Sent() {
		all += packets
		if dialer.Special(to.Addr()) != "" {
			n += packets
		}
	}
	if all == 0 {
		p.t.Error("no packet was seen at all: nothing is watched")
	}
	return n
}

// attacks are URLs that lead to each target.
func (p *trap) attacks() []string {
	var all []string
	for i, target := range p.targets {
		hosts := []string{fmt.Sprintf("direct-%d.test", i), fmt.Sprintf("rebind-%d.test", i), fmt.Sprintf("late-%d.test", i), fmt.Sprintf("mixed-%d.test", i), fmt.Sprintf("alias-%d.test", i)}
		hosts = append(hosts, spellings(target)...)
		for _, host := range hosts {
			to := "http://" + host + "/"
			all = append(all, to, fmt.Sprintf("http://public-%d.test/redirect?to=%s", i, url.QueryEscape(to)))
		}
		all = append(all, fmt.Sprintf("http://public-1.test/redirect?to=%s", url.QueryEscape(fmt.Sprintf("http://public-2.test/redirect?to=%s", url.QueryEscape("http://"+hosts[0]+"/")))))
	}
	return all
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
		"public-1.test@" + addr.String(), fmt.Sprintf("[::ffff:%s]", addr), fmt.Sprintf("[::ffff:%x:%x]", n>>16, n&0xffff), fmt.Sprintf("[::%s]", addr),
		fmt.Sprintf("[64:ff9b::%x:%x]", n>>16, n&0xffff), fmt.Sprintf("[2002:%x:%x::1]", n>>16, n&0xffff), fmt.Sprintf("[2001:0:%x:%x::]", n>>16, n&0xffff),
	}
}

// serveNames starts a name server that answers one question after the other.
func serveNames(t *testing.T, address string, answers func(dnsmessage.Question) []dnsmessage.Resource) *net.Resolver {
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
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

// resource is an answer to a question, nil if that address is none.
func resource(q dnsmessage.Question, name dnsmessage.Name, addr netip.Addr) []dnsmessage.Resource {
	header := dnsmessage.ResourceHeader{Name: name, Type: q.Type, Class: q.Class}
	switch {
	case addr.Is4() && q.Type == dnsmessage.TypeA:
		return []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}}}
	case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
		return []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}}}
	}
	return nil
}

// answers are to names of the form WAY-NUMBER.test, with a time to live of 0:
// public, direct: a public address, the target. rebind: a public one the first time, then the target. late: the target from the
// third time. mixed: both. alias: the target behind a chain of names.
func (p *trap) answers(q dnsmessage.Question) []dnsmessage.Resource {
	p.mu.Lock()
	times := p.asked[q]
	p.asked[q]++
	p.mu.Unlock()
	way, number := "", 0
	if _, err := fmt.Sscanf(strings.Replace(q.Name.String(), "-", " ", 1), "%s %d.test.", &way, &number); err != nil {
		return nil
	}
	public := []netip.Addr{netip.AddrFrom4([4]byte{93, 184, byte(number >> 8), byte(number)}), netip.MustParseAddr(fmt.Sprintf("2606:4700::%x", number+1))}
	addrs, name := public, q.Name
	var all []dnsmessage.Resource
	target := p.targets[number%len(p.targets)]
	switch {
	case way == "direct", way == "alias", way == "rebind" && times > 0, way == "late" && times > 1:
		addrs = []netip.Addr{target}
	case way == "mixed":
		addrs = append([]netip.Addr{target}, public...)
	}
	if way == "alias" {
		for i := range 3 {
			next := dnsmessage.MustNewName(fmt.Sprintf("link%d.%s", i, q.Name))
			all = append(all, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Type: dnsmessage.TypeCNAME, Class: q.Class}, Body: &dnsmessage.CNAMEResource{CNAME: next}})
			name = next
		}
	}
	for _, addr := range addrs {
		all = append(all, resource(q, name, addr)...)
	}
	return all
}
