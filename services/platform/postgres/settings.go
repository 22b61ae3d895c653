// Package postgres connects audit and the vault to a PostgreSQL server that a human configured: through a Unix socket, where the kernel
// says which user listens, or through TCP, where TLS 1.3 proves the server's name. It refuses a server that acknowledges what is not
// on a disk, and takes nothing from the environment or from files that libpq would read. Several processes may share a database, of
// which one leads: Lease.
//
// It trusts the server to keep what it acknowledged and to hold locks. That what it returns is what was written is for the users to
// prove: audit's log has signed checkpoints, the vault's rows have seals.
package postgres

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/pattern"
)

// Engines of a database.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
)

// maxAddresses bounds Settings.Addresses.
const maxAddresses = 5

// Settings is the part of a configuration that says where a process keeps what others of its kind share.
type Settings struct {
	// Engine is sqlite, a file in the state folder, or postgres. Optional; sqlite.
	Engine string `yaml:"engine"`
	// Addresses are where the server is: one Unix socket, "unix:/run/postgresql/.s.PGSQL.5432,user=postgres", with the user who
	// must be listening there; or host:port, one for each server of a cluster, of which the one that takes writes is used.
	Addresses []string `yaml:"addresses"`
	// Name is the database's, User the role's. Both are this kind of process's alone.
	Name string `yaml:"name"`
	User string `yaml:"user"`
	// PasswordFile holds the role's password on one line, mode 0600. Optional: through a socket, PostgreSQL can take the kernel's
	// word for the user (peer).
	PasswordFile string `yaml:"password_file"`
	// CA is a PEM file with the authority of the server's certificate. Required with host:port, refused with a socket.
	CA string `yaml:"ca"`
}

// Shared reports whether the database is a server's, which several processes may use.
func (s Settings) Shared() bool { return s.Engine == Postgres }

// roleName is what needs no quotes, and the hyphen that names of Unix users have.
var roleName = pattern.New(`^[a-z_][a-z0-9_-]{0,62}$`)

// Validate checks the block.
func (s Settings) Validate() error {
	switch s.Engine {
	case "", SQLite:
		if len(s.Addresses) > 0 || s.Name != "" || s.User != "" || s.PasswordFile != "" || s.CA != "" {
			return errors.New("database: addresses, name, user, password_file and ca belong to the engine postgres; engine is sqlite")
		}
		return nil
	case Postgres:
	default:
		return errors.New("database.engine: must be sqlite or postgres")
	}
	var problems []error
	if !roleName().MatchString(s.Name) || !roleName().MatchString(s.User) {
		problems = append(problems, errors.New("database: name and user are required, in small letters, digits, _ and -"))
	}
	if s.PasswordFile != "" && (!filepath.IsAbs(s.PasswordFile) || filepath.Clean(s.PasswordFile) != s.PasswordFile) {
		problems = append(problems, errors.New("database.password_file: must be an absolute path"))
	}
	if len(s.Addresses) == 0 || len(s.Addresses) > maxAddresses {
		problems = append(problems, fmt.Errorf("database.addresses: must be 1 to %d", maxAddresses))
	}
	remote := false
	for _, address := range s.Addresses {
		place, err := parse(address)
		if err != nil {
			problems = append(problems, fmt.Errorf("database.addresses: %q %w", address, err))
		}
		remote = remote || !place.socket
		if place.socket && len(s.Addresses) > 1 {
			problems = append(problems, errors.New("database.addresses: a Unix socket stands alone"))
		}
	}
	switch {
	case remote && !filepath.IsAbs(s.CA):
		problems = append(problems, errors.New("database.ca: is required with host:port, as an absolute path: the connection is TLS, and the server proves its name"))
	case !remote && s.CA != "":
		problems = append(problems, errors.New("database.ca: a Unix socket has no TLS; take it out"))
	case remote && s.PasswordFile == "":
		problems = append(problems, errors.New("database.password_file: is required with host:port"))
	}
	return errors.Join(problems...)
}

// place is an address, read.
type place struct {
	socket bool
	// host is the server's name, or the folder of its socket, which with the port names the socket.
	host string
	port uint16
}

// socketName is what PostgreSQL calls its sockets.
const socketName = ".s.PGSQL."

func parse(address string) (place, error) {
	if config.IsUnix(address) {
		u, err := config.ParseUnix(address)
		if err != nil {
			return place{socket: true}, err
		}
		digits, ok := strings.CutPrefix(filepath.Base(u.Path), socketName)
		port, err := strconv.ParseUint(digits, 10, 16)
		if !ok || err != nil || len(u.Users) != 1 || len(u.Groups) > 0 {
			return place{socket: true}, errors.New("must be like unix:/run/postgresql/.s.PGSQL.5432,user=postgres")
		}
		return place{true, filepath.Dir(u.Path), uint16(port)}, nil
	}
	host, digits, err := net.SplitHostPort(address)
	port, bad := strconv.ParseUint(digits, 10, 16)
	if err != nil || bad != nil || host == "" || port == 0 {
		return place{}, errors.New("must be host:port, or a Unix socket")
	}
	return place{false, host, uint16(port)}, nil
}
