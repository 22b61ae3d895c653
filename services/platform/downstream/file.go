package downstream

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/pattern"
)

// File and LockFile are the names of the two files, beside clients.yaml.
const (
	File     = "servers.yaml"
	LockFile = "servers.lock"
)

// file is servers.yaml. deploy/config/servers.yaml says what each key means.
type file struct {
	Servers []server `yaml:"servers"`
}

type server struct {
	Entry   `yaml:",inline"`
	Sandbox struct {
		None       bool `yaml:"none"`
		Filesystem struct {
			AllowRead  []string `yaml:"allow_read"`
			AllowWrite []string `yaml:"allow_write"`
		} `yaml:"filesystem"`
		Network struct {
			AllowedDomains []string `yaml:"allowed_domains"`
		} `yaml:"network"`
		MemoryMiB int     `yaml:"memory_mib"`
		CPU       float64 `yaml:"cpu"`
		Processes int     `yaml:"processes"`
	} `yaml:"sandbox"`
	Tools struct {
		Allow       []string                     `yaml:"allow"`
		Read        []string                     `yaml:"read"`
		Destructive []string                     `yaml:"destructive"`
		Roles       map[string]map[string]string `yaml:"roles"`
	} `yaml:"tools"`
	Sampling bool `yaml:"sampling"`
}

var (
	serverID    = pattern.New(`\A[a-z][a-z0-9-]{0,31}\z`)
	npmName     = pattern.New(`\A(@[a-z0-9][a-z0-9._-]{0,63}/)?[a-z0-9][a-z0-9._-]{0,127}\z`)
	npmVersion  = pattern.New(`\A[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(-[0-9A-Za-z.-]{1,64})?\z`)
	toolName    = pattern.New(`\A[A-Za-z0-9_-]{1,64}\z`)
	credential  = pattern.New(`\A[a-z0-9][a-z0-9_.\-]{0,63}\z`)
	variable    = pattern.New(`\A[A-Za-z_][A-Za-z0-9_]{0,63}\z`)
	surrounding = pattern.New(`(?i)\A(LD_.*|PATH|HOME|USER|LANG|TERM|TZ|SHELL|IFS|ENV|BASH_ENV|NODE_OPTIONS|NODE_USE_ENV_PROXY|PYTHON(PATH|HOME|STARTUP)|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_FILE|NODE_EXTRA_CA_CERTS)\z`)
)

// placed is what is wrong with an entry, and where in it.
type placed struct {
	path []string
	text string
}

func wrong(text string, path ...string) *placed { return &placed{path, text} }

// ReadFile reads servers.yaml; name stands in errors, with the line and column. A file that holds nothing but comments has no servers.
// The entries come with their defaults, sorted by id.
func ReadFile(name string, text []byte) ([]Entry, error) {
	var f file
	if config.Blank(text) {
		return nil, nil
	}
	if err := config.Parse(name, text, &f); err != nil {
		return nil, err
	}
	if len(f.Servers) > MaxServers {
		return nil, fmt.Errorf("%s: %d servers; at most %d are run", config.Where(name, text, "servers"), len(f.Servers), MaxServers)
	}
	var out []Entry
	alike := map[string]string{}
	for i, s := range f.Servers {
		e, problem := s.entry()
		if other, taken := alike[skeleton(s.ID)]; taken && problem == nil {
			problem = wrong(fmt.Sprintf("%q and %q look alike, and agents would take one for the other", s.ID, other), "id")
		}
		if problem != nil {
			where := config.Where(name, text, append([]string{"servers", fmt.Sprint(i)}, problem.path...)...)
			return nil, fmt.Errorf("%s: %s", where, clean.Line(problem.text, 500))
		}
		alike[skeleton(s.ID)] = s.ID
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

func (s server) entry() (Entry, *placed) {
	e := s.Entry
	e.Allow, e.Tiers, e.Roles = s.Tools.Allow, map[string]optionsv1.Tier{}, map[string]map[string]Role{}
	e.Sandbox = Sandbox{
		None: s.Sandbox.None, Read: s.Sandbox.Filesystem.AllowRead, Write: s.Sandbox.Filesystem.AllowWrite, Domains: s.Sandbox.Network.AllowedDomains,
		MemoryMiB: cmp.Or(s.Sandbox.MemoryMiB, 512), CPU: cmp.Or(s.Sandbox.CPU, 1), Processes: cmp.Or(s.Sandbox.Processes, 64),
	}
	e.Timeouts = Timeouts{
		Ready: cmp.Or(s.Timeouts.Ready, 30*time.Second), Call: cmp.Or(s.Timeouts.Call, 30*time.Second), Idle: cmp.Or(s.Timeouts.Idle, 10*time.Minute),
	}
	if s.Sampling {
		return e, wrong("no server gets to use a client's model: sampling does not exist here; leave it out", "sampling")
	}
	for _, check := range []func(*Entry) *placed{checkOrigin, checkSandbox, checkEnvironment, s.checkTools} {
		if problem := check(&e); problem != nil {
			return e, problem
		}
	}
	return e, nil
}

// CheckID reports why a server cannot be called so.
func CheckID(id string) error {
	if !serverID().MatchString(id) {
		return errors.New("a server's id is of a-z, 0-9 and -, at most 32, and begins with a letter")
	}
	return nil
}

// CheckPackage reports why an npm package cannot be named so: only an exact version is.
func CheckPackage(name, version string) error {
	switch {
	case !npmName().MatchString(name):
		return errors.New("is no npm package: write @SCOPE/NAME or NAME")
	case !npmVersion().MatchString(version):
		return errors.New("must be an exact version, such as 1.2.3: a range or a tag is another program tomorrow")
	}
	return nil
}

func checkOrigin(e *Entry) *placed {
	if err := CheckID(e.ID); err != nil {
		return wrong(err.Error(), "id")
	}
	kinds := 0
	for _, is := range []bool{e.Program != nil, e.NPM != nil, e.URL != ""} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return wrong("a server is one of program, npm and url")
	}
	if args := e.argv(); len(args) > 100 || slices.ContainsFunc(args, func(arg string) bool { return len(arg) > 4096 || strings.ContainsRune(arg, 0) }) {
		return wrong("at most 100 arguments of 4,096 characters, without a NUL")
	}
	switch {
	case e.Program != nil && !absolute(e.Program.Path):
		return wrong("program.path must be an absolute path, without . and ..", "program", "path")
	case e.NPM != nil:
		if err := CheckPackage(e.NPM.Name, "0.0.0"); err != nil {
			return wrong("npm.package "+err.Error(), "npm", "package")
		}
		if err := CheckPackage(e.NPM.Name, e.NPM.Version); err != nil {
			return wrong("npm.version "+err.Error(), "npm", "version")
		}
		if bin := e.NPM.Bin; bin != "" && !filepath.IsLocal(bin) {
			return wrong("npm.bin must be a file of the package, such as dist/index.js", "npm", "bin")
		}
	case e.URL != "":
		return checkRemote(e)
	}
	if e.Bearer != "" {
		return wrong("bearer is for servers with a url; a program's credentials stand under credentials", "bearer")
	}
	return nil
}

func (e *Entry) argv() []string {
	switch {
	case e.Program != nil:
		return e.Program.Args
	case e.NPM != nil:
		return e.NPM.Args
	}
	return nil
}

// checkRemote holds a remote server to what a program of this host does not do.
func checkRemote(e *Entry) *placed {
	u, err := url.Parse(e.URL)
	addr, addrErr := netip.ParseAddr(hostOf(u))
	loopback := addrErr == nil && addr.IsLoopback()
	switch {
	case err != nil || u.User != nil || u.Host == "" || u.Fragment != "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback):
		return wrong("url must be https://…, or http:// of a loopback address, without a user and a fragment", "url")
	case len(e.Env)+len(e.Credentials) > 0:
		return wrong("a remote server gets no variables: its credential is named by bearer")
	case e.Sandbox.None || len(e.Sandbox.Read)+len(e.Sandbox.Write)+len(e.Sandbox.Domains) > 0:
		return wrong("a remote server is in no sandbox of this host", "sandbox")
	case e.Bearer != "" && !credential().MatchString(e.Bearer):
		return wrong("bearer is the name of a stored credential (durward credential list)", "bearer")
	}
	return nil
}

func hostOf(u *url.URL) string {
	if u == nil {
		return ""
	}
	return u.Hostname()
}

func absolute(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

func checkSandbox(e *Entry) *placed {
	s := e.Sandbox
	if e.PerSession && (e.Shared || s.None) {
		return wrong("per_session is for a server in a sandbox that is not shared", "per_session")
	}
	if e.Elicitation && e.Shared {
		return wrong("elicitation is for a server that is not shared: nobody could tell whom it asks", "elicitation")
	}
	for key, list := range map[string][]string{"allow_read": s.Read, "allow_write": s.Write} {
		for i, path := range list {
			if !absolute(path) || path == "/" || len(list) > 50 {
				return wrong("a folder is an absolute path below /, without . and .., and there are at most 50", "sandbox", "filesystem", key, fmt.Sprint(i))
			}
		}
	}
	for i, domain := range s.Domains {
		if err := destination.CheckDomain(domain, true); err != nil || len(s.Domains) > 200 {
			return wrong(fmt.Sprintf("%q: %v", domain, cmp.Or(err, errors.New("at most 200 domains"))), "sandbox", "network", "allowed_domains", fmt.Sprint(i))
		}
	}
	for _, bound := range []struct {
		key       string
		value     float64
		low, high float64
	}{
		{"memory_mib", float64(s.MemoryMiB), 32, 65536}, {"cpu", s.CPU, 0.05, 64}, {"processes", float64(s.Processes), 4, 4096},
	} {
		if !(bound.value >= bound.low && bound.value <= bound.high) { // NaN is neither
			return wrong(fmt.Sprintf("%s must be from %v to %v", bound.key, bound.low, bound.high), "sandbox", bound.key)
		}
	}
	t := e.Timeouts
	for _, bound := range []struct {
		key   string
		value time.Duration
		high  time.Duration
	}{
		{"ready", t.Ready, 5 * time.Minute}, {"call", t.Call, time.Hour}, {"idle", t.Idle, 24 * time.Hour},
	} {
		if bound.value < 100*time.Millisecond || bound.value > bound.high {
			return wrong(fmt.Sprintf("%s must be from 100ms to %v", bound.key, bound.high), "timeouts", bound.key)
		}
	}
	return nil
}

func checkEnvironment(e *Entry) *placed {
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		if value := e.Env[name]; !variable().MatchString(name) || surrounding().MatchString(name) || len(value) > 4096 || strings.ContainsRune(value, 0) {
			return wrong(fmt.Sprintf("%q is no variable that a server may be given, or its value is longer than 4,096 characters", name), "env", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Credentials)) {
		switch _, twice := e.Env[name]; {
		case !variable().MatchString(name) || surrounding().MatchString(name):
			return wrong(fmt.Sprintf("%q is no variable that a server may be given", name), "credentials", name)
		case !credential().MatchString(e.Credentials[name]):
			return wrong("the value is the name of a stored credential (durward credential list), never the credential itself", "credentials", name)
		case twice:
			return wrong(fmt.Sprintf("%q stands under env too", name), "credentials", name)
		}
	}
	if len(e.Env)+len(e.Credentials) > 100 {
		return wrong("at most 100 variables", "env")
	}
	return nil
}

// checkTools fills what the file says of tools in.
func (s server) checkTools(e *Entry) *placed {
	for _, of := range []struct {
		key  string
		list []string
		tier optionsv1.Tier
	}{{"allow", s.Tools.Allow, 0}, {"read", s.Tools.Read, optionsv1.Tier_TIER_READ}, {"destructive", s.Tools.Destructive, optionsv1.Tier_TIER_DESTRUCTIVE}} {
		for i, tool := range of.list {
			at := []string{"tools", of.key, fmt.Sprint(i)}
			if err := CheckTool(e.ID, tool); err != nil {
				return wrong(err.Error(), at...)
			}
			if of.tier == 0 {
				continue
			}
			if _, twice := e.Tiers[tool]; twice {
				return wrong(fmt.Sprintf("%q has a tier already", tool), at...)
			}
			e.Tiers[tool] = of.tier
		}
	}
	for _, tool := range slices.Sorted(maps.Keys(s.Tools.Roles)) {
		if err := CheckTool(e.ID, tool); err != nil {
			return wrong(err.Error(), "tools", "roles", tool)
		}
		e.Roles[tool] = map[string]Role{}
		for pointer, role := range s.Tools.Roles[tool] {
			if r := Role(role); r != RoleURL && r != RolePath || !strings.HasPrefix(pointer, "/") || strings.Count(pointer, "/") > 1 {
				return wrong("a role is written as /ARGUMENT: url or /ARGUMENT: path", "tools", "roles", tool, pointer)
			}
			if Role(role) == RolePath && e.Sandbox.None {
				return wrong("nothing holds a path where sandbox is none: leave the role out, or have a sandbox", "tools", "roles", tool, pointer)
			}
			e.Roles[tool][pointer] = Role(role)
		}
	}
	return nil
}

// CheckTool reports why a server's tool cannot be offered under its name.
func CheckTool(server, tool string) error { return checkName(server, tool, tool) }

// checkName is CheckTool for a name of the server's own that is pinned as tool.
func checkName(server, own, tool string) error {
	switch length := len(server) + len(separator) + len(tool); {
	case !toolName().MatchString(own):
		return fmt.Errorf("%q is no name of a tool: a-z, A-Z, 0-9, _ and -, at most 64", clean.Line(own, 100))
	case length > MaxToolName && MaxToolName-len(separator)-len(tool) > 0:
		return fmt.Errorf("%s has %d characters, and clients take %d: give the server an id of at most %d", called(server, tool), length, MaxToolName,
			MaxToolName-len(separator)-len(tool))
	case length > MaxToolName:
		return fmt.Errorf("%s has %d characters, and no id is short enough beside it: leave it out", tool, len(tool))
	}
	return nil
}

// looks are characters that are taken for others.
var looks = strings.NewReplacer("0", "o", "1", "l", "i", "l", "-", "_", "rn", "m", "vv", "w", "5", "s", "2", "z", "8", "b")

// skeleton is equal for names that look alike. No name is shown by it.
func skeleton(name string) string { return looks.Replace(strings.ToLower(name)) }

// Digest is SHA-256 of the entry's canonical form: whatever is changed of an entry has to be accepted anew.
func (e Entry) Digest() ([32]byte, error) {
	raw, err := canonical.Marshal(e)
	return canonical.Digest(raw), err
}
