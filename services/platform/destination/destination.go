// Package destination is where a request goes, before anybody looks a name up: the one reading of a URL and its host, and the list on
// which humans say which domains agents may reach (NETS-2). It dials nobody, so that the vault, which decides, and egress, which acts,
// read both in the same way.
//
// What it parses is hostile; a list is a human's file, and refused whole where it is not plain.
package destination

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Bounds of what a URL may be, in bytes.
const (
	maxURL  = 8 << 10
	maxName = 253
)

// Destination is where a connection goes before its name is resolved. Host is a name in lower case, ASCII (IDNA) and without a
// dot at its end, or an address as netip writes it. It is comparable.
type Destination struct {
	Host string
	Port uint16
}

// String is HOST:PORT.
func (d Destination) String() string { return net.JoinHostPort(d.Host, strconv.Itoa(int(d.Port))) }

// Addr is the destination's address, if it is one and no name.
func (d Destination) Addr() (netip.Addr, bool) {
	addr, err := netip.ParseAddr(d.Host)
	return addr, err == nil
}

// Only allows the destinations of a list and nothing else.
func Only(list ...Destination) func(context.Context, Destination) error {
	return func(_ context.Context, to Destination) error {
		if slices.Contains(list, to) {
			return nil
		}
		return Refuse(RuleDestination, "%s is not on the list of destinations", to)
	}
}

// ParseURL reads a URL in its one spelling: http or https, a host that ParseHost takes, and no user. The URL that it returns is what
// it judged; send that one.
func ParseURL(raw string) (*url.URL, Destination, error) {
	if len(raw) > maxURL {
		return nil, Destination{}, Refuse(RuleURL, "the URL is longer than %d bytes", maxURL)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, Destination{}, Refuse(RuleURL, "that is no URL") // the error quotes the URL, which may be a secret
	}
	to, err := Of(u)
	if err != nil {
		return nil, Destination{}, err
	}
	return canonical(u, to), to, nil
}

// Of judges the spelling of a URL that is parsed already, and says where it leads.
func Of(u *url.URL) (Destination, error) {
	port := map[string]uint16{"http": 80, "https": 443}[u.Scheme]
	switch {
	case port == 0:
		return Destination{}, Refuse(RuleScheme, "only http and https are spoken here")
	case u.User != nil:
		return Destination{}, Refuse(RuleURL, "a URL with a user or a password in it is not taken")
	}
	if given := u.Port(); given != "" || strings.HasSuffix(u.Host, ":") {
		n, err := strconv.ParseUint(given, 10, 16)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != given {
			return Destination{}, Refuse(RuleURL, "the URL's port is no number from 1 to 65535")
		}
		port = uint16(n)
	}
	host, err := ParseHost(u.Hostname())
	return Destination{Host: host, Port: port}, err
}

// canonical is the URL to the destination that was found in it.
func canonical(u *url.URL, to Destination) *url.URL {
	own := *u
	own.Host, own.Fragment, own.RawFragment = to.String(), "", ""
	if to.Port == map[string]uint16{"http": 80, "https": 443}[u.Scheme] {
		if own.Host = to.Host; strings.Contains(to.Host, ":") {
			own.Host = "[" + to.Host + "]"
		}
	}
	return &own
}

// ParseHost returns a host as Destination holds it. An address has one spelling, that of netip: decimal, octal, hexadecimal and
// shortened ones, IPv4 within IPv6 and zones are refused, as is every name that some resolver takes for a number.
func ParseHost(host string) (string, error) {
	if len(host) > 4*maxName {
		return "", Refuse(RuleURL, "the host's name is longer than %d bytes", maxName)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Is4In6() || addr.Zone() != "" || addr.String() != host {
			return "", Refuse(RuleURL, "the address is not spelled in the usual way; write it as %s", addr.WithZone("").Unmap())
		}
		return host, nil
	}
	name, err := idna.Lookup.ToASCII(strings.TrimSuffix(host, "."))
	if err != nil || name == "" || len(name) > maxName {
		return "", Refuse(RuleURL, "the URL's host is neither a name nor an address")
	}
	// What is no UTF-8, among others, is turned into a name that is itself none.
	if again, err := idna.Lookup.ToASCII(name); err != nil || again != name {
		return "", Refuse(RuleURL, "the URL's host is neither a name nor an address")
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !validLabel(label) {
			return "", Refuse(RuleURL, "the URL's host is neither a name nor an address")
		}
	}
	if last := labels[len(labels)-1]; last[0] >= '0' && last[0] <= '9' {
		return "", Refuse(RuleURL, "the host is an address in an unusual spelling; write it as four decimal numbers")
	}
	return name, nil
}

func validLabel(label string) bool {
	if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(label, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' })
}

// Rule names what refused a connection or an answer.
type Rule string

// The rules. RuleNone is that of a connection which failed and was not refused.
const (
	RuleNone        Rule = ""
	RuleURL         Rule = "url"
	RuleScheme      Rule = "scheme"
	RuleDestination Rule = "destination"
	RulePort        Rule = "port"
	RuleAddress     Rule = "address"
	RuleOwn         Rule = "own"
	RuleDowngrade   Rule = "downgrade"
	RuleRedirect    Rule = "redirect"
	RuleSize        Rule = "size"
	RuleEncoding    Rule = "encoding"
	RuleTime        Rule = "time"
)

// Error is why there is no answer. Its text is one sentence of ours: it holds no path or query of a URL, which may be a secret, and
// nothing that the other side wrote.
type Error struct {
	Rule Rule
	Why  string

	// Cause is what went wrong below; may be nil.
	Cause error
}

func (e *Error) Error() string { return e.Why }

// Unwrap returns what the network said, which is not for outside.
func (e *Error) Unwrap() error { return e.Cause }

// Refuse returns the error of a rule.
func Refuse(rule Rule, format string, args ...any) *Error {
	return &Error{Rule: rule, Why: fmt.Sprintf(format, args...)}
}
