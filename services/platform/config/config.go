// Package config reads a process's one YAML file strictly: an unknown key, a wrong type, a duplicate key or a second
// document is refused with its place and the nearest known name. Every process links it. A configuration file is written
// by a human and is trusted; the strictness is against mistakes, and so that a key that is not understood never passes
// for one that is obeyed.
package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/security/ownership"
)

// Default memory settings of a server process; see Common.
const (
	DefaultMemoryLimitMiB = 28
	DefaultGOGC           = 800
)

// Common is what every server process's file has. Embed it with `yaml:",inline"`.
type Common struct {
	// Listen is where the process serves, "127.0.0.1:7431": gRPC, at the gateway MCP over HTTP. Required; loopback
	// unless the command line says -dangerous-allow-remote. Or a Unix socket, "unix:/run/durward/vault/grpc.sock,user=NAME,
	// group=NAME": these users, the members of these groups, root and the process's own user may connect, by the kernel's
	// word. Mutual TLS is spoken there all the same.
	Listen string `yaml:"listen"`
	// HealthListen is where GET /health, /metrics and /traces answer, to whoever asks and in clear, "127.0.0.1:7441".
	// Required; loopback always, or a Unix socket as under Listen.
	HealthListen string `yaml:"health_listen"`
	// StateDir is the folder for everything the process writes. Required, absolute.
	StateDir string `yaml:"state_dir"`
	// TrustDir is the folder of trust roots, which the process only reads. Required, absolute.
	TrustDir string `yaml:"trust_dir"`
	// TLS says where the process's own certificate and key come from. Required.
	TLS OwnTLS `yaml:"tls"`
	// LogLevel is debug, info (the default), warn or error.
	LogLevel string `yaml:"log_level"`
	// MemoryLimitMiB is the Go runtime's soft memory limit in MiB; 0 means 28, at the gateway 44. It gives way to twice what is in
	// use. Collections become rarer with a higher one.
	MemoryLimitMiB int `yaml:"memory_limit_mib"`
	// GOGC is the garbage collector's target percentage; 0 means 800, which doubles throughput and is safe under a
	// memory limit.
	GOGC int `yaml:"gogc"`
	// Telemetry is what the process shows of itself beyond its log. Optional.
	Telemetry Telemetry `yaml:"telemetry"`

	// AllowRemote is set by -dangerous-allow-remote and by nothing else. It concerns Listen alone.
	AllowRemote bool `yaml:"-"`
	// Gateway is the Unix user whom the trust folder has to be beyond, by Guarded; nil: nobody's rights are looked at.
	Gateway *ownership.Foreign `yaml:"-"`
}

// Guarded is what the file of a process has that obeys files which the gateway's user must not reach. Embed it beside Common.
type Guarded struct {
	// GatewayUser is the Unix user that the gateway runs as, by name or number. It may neither own nor write this file, the trust
	// folder, what else of a human's the process obeys, nor a folder above them: the process does not start, and takes no change over.
	// Empty: not checked; leave it empty only where the gateway runs on another host.
	GatewayUser string `yaml:"gateway_user"`
}

// Gateways returns it.
func (g *Guarded) Gateways() string { return g.GatewayUser }

// TLS names a certificate chain and its private key, both PEM files with absolute paths.
type TLS struct {
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
}

// OwnTLS names two files, or a SPIFFE Workload API instead.
type OwnTLS struct {
	TLS `yaml:",inline"`
	// WorkloadAPI is the socket of SPIRE's agent, "unix:/run/spire/agent/api.sock,user=root": certificate, key and further roots come from
	// there, by the kernel's word of who listens. Optional; certificate and key are empty with it.
	WorkloadAPI string `yaml:"workload_api"`
}

// Validate checks that there is one source, and not two.
func (t OwnTLS) Validate() error {
	if t.WorkloadAPI == "" {
		return errors.Join(named("tls.certificate", checkAbsolute(t.Certificate)), named("tls.key", checkAbsolute(t.Key)))
	}
	if u, err := ParseUnix(t.WorkloadAPI); err != nil || len(u.Users) != 1 || len(u.Groups) > 0 {
		return errors.New("tls.workload_api: must be unix:/PATH,user=NAME, with the user who listens there")
	}
	if t.TLS != (TLS{}) {
		return errors.New("tls.workload_api: stands beside certificate or key: leave those out, or this")
	}
	return nil
}

// Folders are where certificate and key lie, or the socket.
func (t OwnTLS) Folders() []string {
	if u, err := ParseUnix(t.WorkloadAPI); err == nil {
		return []string{filepath.Dir(u.Path)}
	}
	return []string{filepath.Dir(t.Key), filepath.Dir(t.Certificate)}
}

// Peer is another process: where it is and who it must prove to be.
type Peer struct {
	// Address is host:port; or "unix:/run/durward/vault/grpc.sock,user=NAME", where the user must be the one who listens.
	Address string `yaml:"address"`
	// Identity is the whole SPIFFE ID that its certificate must carry, "spiffe://durward.local/audit/main".
	Identity string `yaml:"identity"`
	// Standbys are the addresses of further processes with that identity, of which one does the work. Optional; audit's and the
	// vault's alone, of which several processes may share a database that is a server's.
	Standbys []string `yaml:"standbys"`
}

// maxStandbys bounds Peer.Standbys.
const maxStandbys = 4

// Shared returns the common part, for packages that start processes.
func (c *Common) Shared() *Common { return c }

// Validate checks the common part. Every problem is reported, one a line, by its key.
func (c Common) Validate() error {
	problems := []error{
		named("listen", CheckListen(c.Listen, c.AllowRemote)),
		named("health_listen", CheckListen(c.HealthListen, false)),
		named("state_dir", checkFolder(c.StateDir)),
		named("trust_dir", checkFolder(c.TrustDir)),
		c.TLS.Validate(),
	}
	if c.Listen != "" && place(c.Listen) == place(c.HealthListen) {
		problems = append(problems, errors.New("health_listen: is the same as listen"))
	}
	if !slices.Contains([]string{"", "debug", "info", "warn", "error"}, c.LogLevel) {
		problems = append(problems, errors.New("log_level: must be debug, info, warn or error"))
	}
	if c.MemoryLimitMiB != 0 && (c.MemoryLimitMiB < 16 || c.MemoryLimitMiB > 1<<20) {
		problems = append(problems, errors.New("memory_limit_mib: must be 0 (for the default) or 16 to 1048576"))
	}
	if c.GOGC < 0 || c.GOGC > 10000 {
		problems = append(problems, errors.New("gogc: must be 0 (for the default) to 10000"))
	}
	problems = append(problems, c.Telemetry.Validate())
	return errors.Join(problems...)
}

// place is an address without who may come there.
func place(addr string) string {
	if u, err := ParseUnix(addr); err == nil {
		return u.Path
	}
	return addr
}

// Validate checks that both parts are there and that the address can be dialled. Whether the identity is well formed is
// for the identity package.
func (p Peer) Validate() error {
	var problems []error
	problems = append(problems, named("address", checkDial(p.Address)))
	if !strings.HasPrefix(p.Identity, "spiffe://") {
		problems = append(problems, errors.New("identity: must be a SPIFFE ID, spiffe://TRUST_DOMAIN/ROLE/INSTANCE"))
	}
	if len(p.Standbys) > 0 && !strings.Contains(p.Identity, "/audit/") && !strings.Contains(p.Identity, "/vault/") {
		problems = append(problems, errors.New("standbys: audit and the vault alone have any"))
	}
	if len(p.Standbys) > maxStandbys {
		problems = append(problems, fmt.Errorf("standbys: are at most %d", maxStandbys))
	}
	for i, address := range p.Standbys {
		problems = append(problems, named("standbys", checkDial(address)))
		if address == p.Address || slices.Contains(p.Standbys[:i], address) {
			problems = append(problems, fmt.Errorf("standbys: %s stands there twice", address))
		}
	}
	return errors.Join(problems...)
}

// checkDial checks the address of a peer.
func checkDial(addr string) error {
	if IsUnix(addr) {
		u, err := ParseUnix(addr)
		if err == nil && (len(u.Users) > 1 || len(u.Groups) > 0) {
			err = errors.New("takes one user=NAME, the one who listens there, and no group")
		}
		return err
	}
	if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" || port == "0" {
		return errors.New("must be host:port, or unix:/PATH,user=NAME")
	}
	return nil
}

// CheckListen checks a listen address: an IP and a port, a loopback one unless allowRemote (NET-1), or a Unix socket.
func CheckListen(addr string, allowRemote bool) error {
	if IsUnix(addr) {
		_, err := ParseUnix(addr)
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return errors.New("must be an IP address and a port, like 127.0.0.1:7431")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return errors.New("has no valid port")
	}
	// A name is not accepted: what it means is decided elsewhere, and can change.
	ip := net.ParseIP(host)
	if ip == nil {
		return errors.New("must begin with an IP address, like 127.0.0.1")
	}
	if !ip.IsLoopback() && !remoteAllowed(allowRemote) {
		return errors.New("is not a loopback address; -dangerous-allow-remote on the command line lets listen be another, and health_listen never")
	}
	return nil
}

// StatePath resolves the path of a file or folder that a process is going to write, following every symbolic link on the
// way, and returns it if it lies under the state folder, $HOME or the temporary folder (SEC-V4). The last parts need not
// exist yet. stateDir may be empty.
func StatePath(path, stateDir string) (string, error) {
	if err := checkAbsolute(path); err != nil {
		return "", fmt.Errorf("path %q %w", path, err)
	}
	resolved, err := resolve(path)
	if err != nil {
		return "", fmt.Errorf("path %q cannot be resolved: %w", path, err)
	}
	roots := []string{stateDir, os.TempDir()}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, home)
	}
	for _, root := range roots {
		if !filepath.IsAbs(root) {
			continue
		}
		real, err := resolve(root)
		if err != nil || real == string(filepath.Separator) {
			continue // a root of everything restricts nothing
		}
		if within(real, resolved) {
			return resolved, nil
		}
	}
	return "", fmt.Errorf("path %q is not under the state folder, the home folder or the temporary folder", path)
}

// resolve follows the symbolic links of the longest part of path that exists.
func resolve(path string) (string, error) {
	path = filepath.Clean(path)
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		// A dangling link exists though its target does not: writing would go where it points.
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
			return "", errors.New("a symbolic link on the way points nowhere")
		}
		parent := filepath.Dir(path)
		if parent == path {
			return "", err
		}
		rest = filepath.Join(filepath.Base(path), rest)
		path = parent
	}
}

// within compares whole path elements, so that /state-old is not under /state.
func within(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && filepath.IsLocal(rel)
}

func checkAbsolute(path string) error {
	switch {
	case path == "":
		return errors.New("is required")
	case !filepath.IsAbs(path):
		return errors.New("must be an absolute path")
	case filepath.Clean(path) != path:
		return errors.New("must be written without . and .. and doubled or trailing slashes")
	}
	return nil
}

// CheckAbsolute reports each path that is not absolute, by its key, in the order of the keys. An optional one may be empty.
func CheckAbsolute(required, optional map[string]string) error {
	var problems []string
	for i, paths := range []map[string]string{required, optional} {
		for key, path := range paths {
			if !filepath.IsAbs(path) && (i == 0 || path != "") {
				problems = append(problems, key+": must be an absolute path")
			}
		}
	}
	if problems == nil {
		return nil
	}
	slices.Sort(problems)
	return errors.New(strings.Join(problems, "\n"))
}

func checkFolder(path string) error {
	if err := checkAbsolute(path); err != nil {
		return err
	}
	if path == string(filepath.Separator) {
		return errors.New("must not be the root folder")
	}
	return nil
}

func named(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", key, err)
}
