package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/pattern"
)

// maxSocketPath is what sockaddr_un holds, less the final NUL.
const maxSocketPath = 107

// unixPrefix marks an address that is a Unix socket's.
const unixPrefix = "unix:"

var (
	socketPath = pattern.New(`^/[A-Za-z0-9/._-]*$`)
	// unixName is what useradd(8) and groupadd(8) let pass, or a number.
	unixName = pattern.New(`^([a-zA-Z_][a-zA-Z0-9_.-]{0,31}|[0-9]{1,10})$`)
)

// Unix is an address of the form unix:PATH[,user=NAME]…[,group=NAME]…, in the manner of D-Bus addresses. Whoever listens
// names by it who may connect; whoever connects names the user that must be listening.
type Unix struct {
	// Path is the socket's, absolute and clean; abstract sockets, which have no owner, are not accepted.
	Path string
	// Users and Groups are names or numbers, in the order in which they stand.
	Users, Groups []string
}

// IsUnix reports whether an address is meant to be a Unix socket's; whether it is well formed is ParseUnix's to say.
func IsUnix(addr string) bool { return strings.HasPrefix(addr, unixPrefix) }

// ParseUnix reads a Unix socket's address. It accepts one spelling alone: u.String() is what was read.
func ParseUnix(addr string) (Unix, error) {
	rest, ok := strings.CutPrefix(addr, unixPrefix)
	if !ok {
		return Unix{}, errors.New("must begin with the scheme unix")
	}
	parts := strings.Split(rest, ",")
	u := Unix{Path: parts[0]}
	switch {
	case !socketPath().MatchString(u.Path) || filepath.Clean(u.Path) != u.Path || u.Path == "/":
		return Unix{}, errors.New("must be unix: with an absolute path of letters, digits, / . _ and -, without . and .. and doubled slashes")
	case len(u.Path) > maxSocketPath:
		return Unix{}, fmt.Errorf("has a path of more than %d bytes, which the kernel does not take", maxSocketPath)
	}
	for _, part := range parts[1:] {
		key, name, _ := strings.Cut(part, "=")
		list := map[string]*[]string{"user": &u.Users, "group": &u.Groups}[key]
		switch {
		case list == nil:
			return Unix{}, errors.New("takes user=NAME and group=NAME after the path, and nothing else")
		case !unixName().MatchString(name):
			return Unix{}, fmt.Errorf("has a %s that is no name", key)
		case slices.Contains(*list, name):
			return Unix{}, fmt.Errorf("names a %s twice", key)
		case key == "user" && len(u.Groups) > 0:
			return Unix{}, errors.New("must name users before groups")
		}
		*list = append(*list, name)
	}
	return u, nil
}

// String writes the address as ParseUnix reads it.
func (u Unix) String() string {
	var b strings.Builder
	b.WriteString(unixPrefix + u.Path)
	for _, name := range u.Users {
		b.WriteString(",user=" + name)
	}
	for _, name := range u.Groups {
		b.WriteString(",group=" + name)
	}
	return b.String()
}
