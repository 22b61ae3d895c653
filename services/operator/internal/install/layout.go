// Package install lays Durward out on a host as it is meant to be run: a Unix user for each process, keys that the one
// process alone can read that needs them, trust roots and rules that root alone can change, Unix sockets between the
// processes, and hardened units under systemd.
//
// It runs as root, at the command of the person who owns the host; what belongs into an operator's home folder is made by
// that operator's own user (Join). It trusts the host's root-owned folders and the programs beside its own. A second run
// changes nothing; what a human has edited is kept.
package install

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/config"
)

//go:embed files
var files embed.FS

// Names of groups; files/systemd/sysusers.conf makes them.
const (
	// Group may read /etc/durward and reach the folders of the sockets: processes and operators.
	Group = "durward"
	// Operators are let in as operators.
	Operators = "durward-operators"
	// Tools are let in as internal programs; whoever runs one is in Group too.
	Tools = "durward-tools"
)

// Folders of an installation, below its root.
const (
	etc      = "/etc/durward"
	trustDir = etc + "/trust"
	// securityDir holds the rules.
	securityDir = etc + "/security"
	pkiDir      = etc + "/pki"
	keysDir     = etc + "/keys"
	tlsDir      = etc + "/tls"
	stateDir    = "/var/lib/durward"
	runDir      = "/run/durward"
	programs    = "/usr/local/lib/durward"
	command     = "/usr/local/bin/durward"
	// commandTarget is where the link at command leads.
	commandTarget = "../lib/durward/durward"
	unitsDir      = "/etc/systemd/system"
)

const (
	healthOffset = 10
	// witnessOffset comes behind the ports of health.
	witnessOffset = healthOffset + 5
	// DefaultPort is where agents connect.
	DefaultPort = installdir.DefaultBasePort
)

// callers are who connects to whom, beside operators and what a human adds.
var callers = map[string][]string{
	"vault": {"gateway", "executor"}, "executor": {"gateway"}, "audit": {"gateway", "vault", "executor"}, egress: {"gateway"},
}

// Settings are what can be chosen about an installation. The zero value, with a port, is what is recommended.
type Settings struct {
	// Port is where agents connect, on 127.0.0.1.
	Port int `json:"port"`
	// HealthOnLoopback puts what processes say of themselves on ports of 127.0.0.1, from Port+10 on, instead of Unix sockets
	// that operators alone may read.
	HealthOnLoopback bool `json:"health_on_loopback"`
	// Docker lets the executor speak to the Docker Engine; ProcessDriver lets it start services by itself.
	Docker        bool `json:"docker"`
	ProcessDriver bool `json:"process_driver"`
	// Relay adds auditrelay, which carries checkpoints to witnesses and forwards records to collectors.
	Relay bool `json:"relay,omitempty"`
	// Egress adds the process that reaches other hosts for agents.
	Egress bool `json:"egress,omitempty"`
	// Witness adds auditwitness, on this host. It needs Relay, which shows it the checkpoints.
	Witness bool `json:"witness,omitempty"`
	// Firewall has the kernel refuse what comes to Durward's ports from elsewhere.
	Firewall bool `json:"firewall,omitempty"`
	// Containers: the processes run in containers (deploy/compose), whose images bring programs and users. Nothing of systemd's is made.
	Containers bool `json:"containers,omitempty"`
}

// Processes beside those of every installation.
const (
	relay   = "relay"
	egress  = "egress"
	witness = "witness"
	// launcher starts other people's MCP servers for egress, and comes with it.
	launcher = "launcher"
)

const (
	// witnessDir has nothing of Durward's: who has the witness has nothing else.
	witnessDir = "/etc/durward-witness"
	witnessKey = witnessDir + "/witness.key"
	// witnessName is what its cosignatures are called.
	witnessName = "durward.local/witness/main"
)

// addition is a process that a human adds.
type addition struct {
	wanted        bool
	role, program string
	// calls are the processes that it connects to. One that connects to none has no certificate, and does not start with Durward's target.
	calls []string
	// serves: others connect to it, and it says whether it is well.
	serves bool
}

func (a addition) unit() string {
	return "durward-" + strings.TrimPrefix(a.program, "durward-") + ".service"
}

// wantedBy is the unit with which an addition starts.
func (a addition) wantedBy() string {
	if len(a.calls) == 0 {
		return "multi-user.target"
	}
	return "durward.target"
}

// launcher reports whether other people's servers can be started: a container makes no sandboxes.
func (s Settings) launcher() bool { return s.Egress && !s.Containers }

func (s Settings) additions() []addition {
	return []addition{
		{wanted: s.Witness, role: witness, program: "auditwitness"},
		{wanted: s.Relay, role: relay, program: "auditrelay", calls: []string{"audit"}},
		{wanted: s.launcher(), role: launcher, program: "durward-launcher"},
		{wanted: s.Egress, role: egress, program: egress, calls: []string{"vault", "audit"}, serves: true},
	}
}

// wanted are the additions of this installation.
func (s Settings) wanted() []addition {
	return slices.DeleteFunc(s.additions(), func(a addition) bool { return !a.wanted })
}

// serving are the processes that say whether they are well, in the order in which they start.
func (s Settings) serving() []string {
	roles := installdir.Roles()
	for _, a := range s.wanted() {
		if a.serves {
			roles = slices.Insert(roles, len(roles)-1, a.role)
		}
	}
	return roles
}

// connecting are the processes that connect to others, which have a certificate and what Durward's own have.
func (s Settings) connecting() []string {
	roles := installdir.Roles()
	for _, a := range s.wanted() {
		if len(a.calls) > 0 {
			roles = append(roles, a.role)
		}
	}
	return roles
}

// values are what the templates are filled with.
type values struct {
	Settings
	// Operator, State and SigningKey are an operator's; empty elsewhere.
	Operator, State, SigningKey string
	// Logs are the public keys of the logs that the witness cosigns; empty elsewhere.
	Logs []string
}

// WitnessAddress is where the witness listens, and WitnessURL where the relay finds it.
func (v values) WitnessAddress() string { return v.loopback(witnessOffset) }
func (v values) WitnessURL() string     { return "http://" + v.WitnessAddress() }

// Launcher is where the launcher listens; empty where there is none.
func (v values) Launcher() string {
	if !v.launcher() {
		return ""
	}
	return config.Unix{Path: runDir + "/launcher/launcher.sock"}.String()
}

// Identity writes a process's SPIFFE ID.
func (values) Identity(role string) (string, error) {
	id, err := installdir.ProcessIdentity(role, "")
	return id.String(), err
}

// User is the Unix user of a process.
func User(role string) string { return "durward-" + role }

// Listen is where a process serves.
func (v values) Listen(role string) string {
	if role == "gateway" {
		return v.loopback(0)
	}
	u := config.Unix{Path: runDir + "/" + role + "/grpc.sock", Groups: []string{Operators}}
	if role == "vault" || role == "executor" || role == egress {
		u.Groups = append(u.Groups, Tools)
	}
	for _, caller := range callers[role] {
		u.Users = append(u.Users, User(caller))
	}
	for _, a := range v.wanted() {
		if slices.Contains(a.calls, role) {
			u.Users = append(u.Users, User(a.role))
		}
	}
	return u.String()
}

// Peer is where others reach a process.
func (values) Peer(role string) string {
	return config.Unix{Path: runDir + "/" + role + "/grpc.sock", Users: []string{User(role)}}.String()
}

// Health is where a process says whether it is well.
func (v values) Health(role string) string {
	// Of containers, the gateway's and the executor's alone share the host's loopback.
	if v.HealthOnLoopback && (!v.Containers || role == "gateway" || role == "executor") {
		return v.loopback(healthOffset + map[string]int{"gateway": 0, "vault": 1, "executor": 2, "audit": 3, egress: 4}[role])
	}
	return config.Unix{Path: runDir + "/" + role + "/health.sock", Groups: []string{Operators}}.String()
}

// AskHealth is where operators ask whether a process is well.
func (v values) AskHealth(role string) string {
	if health := v.Health(role); !config.IsUnix(health) {
		return health
	}
	return config.Unix{Path: runDir + "/" + role + "/health.sock", Users: []string{User(role)}}.String()
}

// MCPURL is where agents connect.
func (v values) MCPURL() string { return "http://" + v.loopback(0) + "/mcp" }

// Loopback are the ports at which the installation listens.
func (v values) Loopback() []string {
	ports := []string{v.Listen("gateway")}
	for _, role := range v.serving() {
		if health := v.Health(role); !config.IsUnix(health) {
			ports = append(ports, health)
		}
	}
	return ports
}

func (v values) loopback(offset int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(v.Port+offset))
}

func (v values) render(name string) ([]byte, error) {
	return installdir.Render(files, "files/config", name, v)
}

// account is a Unix user of the host under a root.
type account struct {
	Name, Home string
	UID, GID   int
}

// errNoSuchUser and errNoSuchGroup are what lookups end with where nobody is of that name.
var (
	errNoSuchUser  = errors.New("there is no such Unix user")
	errNoSuchGroup = errors.New("there is no such Unix group")
)

// lookupUser finds a user in root's own /etc/passwd, and on this host also where else users come from.
func lookupUser(root, name string) (account, error) {
	fields, err := entry(filepath.Join(root, "etc/passwd"), name, 7)
	if err != nil {
		return account{}, err
	}
	if fields == nil && root == "/" {
		if u, err := user.Lookup(name); err == nil {
			fields = []string{u.Username, "", u.Uid, u.Gid, "", u.HomeDir, ""}
		}
	}
	if fields == nil {
		return account{}, fmt.Errorf("%s: %w", name, errNoSuchUser)
	}
	uid, err1 := strconv.Atoi(fields[2])
	gid, err2 := strconv.Atoi(fields[3])
	if err := errors.Join(err1, err2); err != nil {
		return account{}, fmt.Errorf("user %s: %w", name, err)
	}
	return account{Name: name, Home: fields[5], UID: uid, GID: gid}, nil
}

// lookupGroup finds a group of root's, and its members beside those who have it as their first.
func lookupGroup(root, name string) (gid int, members []string, err error) {
	fields, err := entry(filepath.Join(root, "etc/group"), name, 4)
	if err != nil {
		return 0, nil, err
	}
	if fields == nil {
		return 0, nil, fmt.Errorf("%s: %w", name, errNoSuchGroup)
	}
	if gid, err = strconv.Atoi(fields[2]); err != nil {
		return 0, nil, fmt.Errorf("group %s: %w", name, err)
	}
	return gid, strings.Split(fields[3], ","), nil
}

// entry returns the fields of a line of passwd(5) or group(5); nil: there is none of that name.
func entry(path, name string, fields int) ([]string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if parts := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(parts) == fields && parts[0] == name {
			return parts, nil
		}
	}
	return nil, nil
}

// Program is where the durward command is installed without the package.
const Program = programs + "/durward"

// OnHost reports whether Durward was installed on this host, for a user who may not be let in to see what.
func OnHost() bool {
	info, err := os.Stat(etc)
	return err == nil && info.IsDir()
}
