package destination

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"durward.internal/services/platform/config"
)

// maxEntries bounds a list.
const maxEntries = 20_000

// File is the name of a layer's list, in the folder of the security configuration or a user's in it.
const File = "domains.yaml"

// Verdict is what a list says of a destination.
type Verdict int

// The verdicts. Unknown is on no list: a human is asked.
const (
	Unknown Verdict = iota
	Allowed
	Blocked
)

// Entry is one line of a list: a domain, "docs.example", all names below one, "*.example", or an address; each with ":PORT" or for all
// ports. It is for every client and agent, or for the named ones alone.
type Entry struct {
	Domain          string
	Clients, Agents []string
	// Source is where it stands. One of a user's layer is for that user's clients alone.
	Source
}

// Source is one file with a list: the security configuration's layer that it is of, its name in that folder, and whose it is.
type Source struct{ Layer, File, User string }

// List says which domains agents may reach. A blocked one stays blocked, whatever else allows it. The zero value knows none.
type List struct {
	Allow, Block []Entry
	allow, block index
}

// Party is who reaches for a destination: a client, its agent where one is named, and whose client it is.
type Party struct{ Client, Agent, User string }

// index finds entries by domain.
type index map[string][]Entry

// BuiltIn blocks the names by which clouds tell machines their credentials. To look them up tells whose cloud this is, and the addresses
// behind them are never dialled. What else is looked up is for humans' files to say.
func BuiltIn() *List {
	names := []any{"metadata.google.internal", "metadata.goog", "metadata.azure.internal", "instance-data.ec2.internal"}
	l := &List{}
	l.Block, l.block, _ = entries(names, false, Source{Layer: "built-in"}) // a test reads them
	return l
}

// Join is all the lists in one.
func Join(lists ...*List) *List {
	all := &List{allow: index{}, block: index{}}
	for _, l := range lists {
		all.Allow, all.Block = append(all.Allow, l.Allow...), append(all.Block, l.Block...)
		all.allow.add(l.allow)
		all.block.add(l.block)
	}
	return all
}

func (x index) add(more index) {
	for _, domain := range slices.Sorted(maps.Keys(more)) {
		x[domain] = append(x[domain], more[domain]...)
	}
}

// Allowing is a list that allows these domains to everybody.
func Allowing(domains ...string) (l *List, err error) {
	raw := make([]any, len(domains))
	for i, domain := range domains {
		raw[i] = domain
	}
	l = &List{}
	l.Allow, l.allow, err = entries(raw, true, Source{})
	return l, err
}

// ParseList reads a domains.yaml; its name stands in errors.
func ParseList(from Source, raw []byte) (*List, error) {
	name := from.File
	var file struct {
		Allow []any `yaml:"allow"`
		Block []any `yaml:"block"`
	}
	if config.Blank(raw) {
		return &List{}, nil
	}
	if err := config.Parse(name, raw, &file); err != nil {
		return nil, err
	}
	if len(file.Allow)+len(file.Block) > maxEntries {
		return nil, fmt.Errorf("%s: more than %d entries", name, maxEntries)
	}
	l := &List{}
	var err error
	if l.Allow, l.allow, err = entries(file.Allow, true, from); err != nil {
		return nil, fmt.Errorf("%s: allow: %w", name, err)
	}
	if l.Block, l.block, err = entries(file.Block, false, from); err != nil {
		return nil, fmt.Errorf("%s: block: %w", name, err)
	}
	return l, nil
}

// ParseProject reads the domains that a project's file blocks, for the clients that the project binds; none: all. A project only tightens:
// its file can allow nothing. What else it says is other packages' to read.
func ParseProject(from Source, clients []string, raw []byte) (*List, error) {
	var file struct {
		Settings any `yaml:"settings"`
		Tools    any `yaml:"tools"`
		Domains  struct {
			Block []string `yaml:"block"`
		} `yaml:"domains"`
	}
	if err := config.Parse(from.File, raw, &file); err != nil {
		return nil, err
	}
	if len(file.Domains.Block) > maxEntries {
		return nil, fmt.Errorf("%s: domains: more than %d entries", from.File, maxEntries)
	}
	l := &List{block: index{}}
	for i, domain := range file.Domains.Block {
		if err := CheckDomain(domain, false); err != nil {
			return nil, fmt.Errorf("%s: domains.block: entry %d: %w", from.File, i+1, err)
		}
		e := Entry{Domain: domain, Clients: clients, Source: from}
		l.Block, l.block[domain] = append(l.Block, e), append(l.block[domain], e)
	}
	return l, nil
}

func entries(raw []any, allow bool, from Source) ([]Entry, index, error) {
	list, by := make([]Entry, 0, len(raw)), index{}
	for i, item := range raw {
		e, err := entry(item)
		if err == nil {
			err = CheckDomain(e.Domain, allow)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		e.Source = from
		list = append(list, e)
		by[e.Domain] = append(by[e.Domain], e)
	}
	return list, by, nil
}

func entry(item any) (e Entry, err error) {
	if text, ok := item.(string); ok {
		return Entry{Domain: text}, nil
	}
	object, ok := item.(map[string]any)
	if !ok {
		return e, errors.New("must be a domain, or {domain, clients, agents}")
	}
	for key, value := range object {
		switch key {
		case "domain":
			e.Domain, ok = value.(string)
		case "clients":
			e.Clients, ok = texts(value)
		case "agents":
			e.Agents, ok = texts(value)
		default:
			return e, fmt.Errorf("unknown key %q", key)
		}
		if !ok {
			return e, fmt.Errorf("%s: is not what belongs there", key)
		}
	}
	return e, nil
}

// texts is a list that names somebody: an empty one would be for all, which is written by leaving it out.
func texts(value any) ([]string, bool) {
	list, ok := value.([]any)
	out := make([]string, len(list))
	for i, item := range list {
		text, is := item.(string)
		out[i], ok = text, ok && is && text != ""
	}
	return out, ok && len(out) > 0
}

// CheckDomain reports why a list cannot hold a domain. It has one spelling, that of Destination; to allow all that is below a public
// suffix, as "*.com" would, is a slip of the pen.
func CheckDomain(domain string, allow bool) error {
	name, port := domain, ""
	if addr, err := netip.ParseAddr(domain); err == nil && addr.Is6() {
		return Refuse(RuleURL, "write an address of IPv6 in brackets, with its port")
	}
	if strings.Contains(domain, "/") {
		return Refuse(RuleURL, "write the host alone: a list holds no URL and no network")
	}
	if i := strings.LastIndexByte(domain, ':'); i >= 0 {
		name, port = domain[:i], domain[i:]
		if to, err := Of(&url.URL{Scheme: "http", Host: "x" + port}); err != nil || to.String() != "x"+port {
			return Refuse(RuleURL, "%q is not a port", port)
		}
		if inner, ok := strings.CutPrefix(name, "["); ok {
			name = strings.TrimSuffix(inner, "]")
		}
	}
	below, wild := strings.CutPrefix(name, "*.")
	host, err := ParseHost(below)
	switch _, isAddr := (Destination{Host: host}).Addr(); {
	case err != nil:
		return err
	case host != below:
		return Refuse(RuleURL, "write %s as %s", below, host)
	case wild && isAddr:
		return Refuse(RuleURL, "nothing is below an address")
	}
	if suffix, _ := publicsuffix.PublicSuffix(host); wild && allow && suffix == host {
		return Refuse(RuleURL, "%s would allow whatever anybody registers below %s; name the domains", name, host)
	}
	return nil
}

// Judge says what the list says of a destination, for a party, and the entry that says so.
func (l *List) Judge(of Party, to Destination) (Verdict, Entry) {
	if by, ok := l.block.find(to, of.named); ok {
		return Blocked, by
	}
	if by, ok := l.allow.find(to, of.named); ok {
		return Allowed, by
	}
	return Unknown, Entry{}
}

// BlockedFor finds an entry that blocks a destination for a client, whatever agent and user are behind it: a server that acts for a client
// does not know them. For "" it is any client's.
func (l *List) BlockedFor(client string, to Destination) (Entry, bool) {
	return l.block.find(to, func(e Entry) bool { return client == "" || len(e.Clients) == 0 || slices.Contains(e.Clients, client) })
}

// named reports whether an entry is for a party.
func (p Party) named(e Entry) bool {
	return (len(e.Clients) == 0 || slices.Contains(e.Clients, p.Client)) && (len(e.Agents) == 0 || slices.Contains(e.Agents, p.Agent)) &&
		(e.User == "" || e.User == p.User)
}

// find looks for an entry of the destination itself, then of what it is below.
func (x index) find(to Destination, named func(Entry) bool) (Entry, bool) {
	_, port, _ := strings.Cut(Destination{Host: "x", Port: to.Port}.String(), ":")
	host := to.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	for _, name := range append([]string{host}, above(to)...) {
		for _, spelled := range []string{name, name + ":" + port} {
			if i := slices.IndexFunc(x[spelled], named); i >= 0 {
				return x[spelled][i], true
			}
		}
	}
	return Entry{}, false
}

// above are the wildcards that a name is below, the nearest first.
func above(to Destination) (names []string) {
	if _, isAddr := to.Addr(); isAddr {
		return nil
	}
	for _, rest, more := strings.Cut(to.Host, "."); more; _, rest, more = strings.Cut(rest, ".") {
		names = append(names, "*."+rest)
	}
	return names
}
