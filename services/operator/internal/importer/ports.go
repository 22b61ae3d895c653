package importer

import (
	"cmp"
	"errors"
	"net"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
)

// published is a port of the host and the container's own.
type published struct {
	host            string
	outside, inside uint32
	// text is how it stands there.
	text string
}

// ports are the published ones, in any of the ways to say it.
func (x *box) ports() (out []published) {
	v := x.v.Get("ports")
	for _, key := range v.Keys { // a preset's: the container's port, and the host's
		v.List = append(v.List, boundedyaml.Plain(v.Get(key).Str()+":"+strings.TrimSuffix(key, "/tcp")))
	}
	for _, p := range v.List {
		if p.Kind != boundedyaml.Mapping {
			one := x.text(p)
			if why := unusable(one); why != "" {
				x.note("A published port was left out: it %s.", why)
				continue
			}
			host, outside, inside := enginecmd.Published(one)
			out = append(out, published{host, outside, inside, one})
			continue
		}
		outside, _ := boundedyaml.Plain(x.text(p.Get("published"))).Number()
		inside, _ := boundedyaml.Plain(x.text(p.Get("target"))).Number()
		shown := x.text(p.Get("published")) + ":" + x.text(p.Get("target"))
		if protocol := x.text(p.Get("protocol")); protocol != "" && protocol != "tcp" || inside > 65535 || outside > 65535 {
			inside = 0
		}
		out = append(out, published{x.text(p.Get("host_ip")), outside, inside, shown})
	}
	return out
}

// publish settles on the port of the host, on 127.0.0.1, and on the container's own; 0: it has none.
func (x *box) publish() {
	inside := x.engine.Port
	if inside == 0 && x.known {
		inside = enginecmd.ListensAs(x.engine.Engine).Default
	}
	inside = cmp.Or(x.inside, inside)
	var chosen *published
	for _, one := range x.ports() {
		left := &one
		switch {
		case one.inside == 0:
		case chosen == nil || one.inside == inside && chosen.inside != inside:
			left, chosen = chosen, &one
		}
		if left != nil {
			x.note("The published port %s was left out: one port, published by TCP, is what a service has.", clean.Visible(left.text))
		}
	}
	switch {
	case chosen != nil:
		inside = chosen.inside
		x.Port = cmp.Or(x.Port, chosen.outside)
		if !local(chosen.host) {
			x.note("It was published as %s; it is published on 127.0.0.1 alone.", clean.Visible(chosen.text))
		}
	case inside == 0 && x.Port != 0 && x.shared:
		inside = x.Port
	case inside == 0:
		x.note("It publishes no port, so that only its container's state says whether it is well.")
		x.Port = 0
	case x.Port == 0:
		x.note("It publishes no port; the engine's own is published on 127.0.0.1.")
	}
	x.Port, x.Container.Port = cmp.Or(x.Port, inside), inside
}

// narrow puts 127.0.0.1 in the place of each address by which the catalog sees that a program would be reached from other hosts.
func (s *program) narrow() {
	for range 16 { // as many places as anybody has; what is left is the catalog's to refuse
		at, err := catalog.Loopback(s.Argv, s.Environment)
		if !errors.Is(err, catalog.ErrBeyond) {
			return
		}
		was := ""
		if key, ok := strings.CutPrefix(at, ".environment."); ok {
			was = s.Environment[key]
			s.Environment[key] = loopback(was)
		} else if i, err := strconv.Atoi(strings.Trim(strings.TrimPrefix(at, ".argv"), "[]")); err == nil {
			was = s.Argv[i]
			option, value, joined := strings.Cut(was, "=")
			if joined && strings.HasPrefix(option, "-") {
				was, option = value, option+"="
			} else {
				option = ""
			}
			s.Argv[i] = option + loopback(was)
		}
		s.note("It listened on %s; a service listens on 127.0.0.1 alone.", clean.Visible(was))
	}
}

// loopback is an address with 127.0.0.1 in the place of its host; scheme and port stay.
func loopback(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	if ok {
		scheme += "://"
	} else {
		scheme, rest = "", address
	}
	if _, port, err := net.SplitHostPort(strings.TrimSuffix(rest, "/")); err == nil && port != "" {
		return scheme + "127.0.0.1:" + port
	}
	return scheme + "127.0.0.1"
}
