package downstream

import (
	"strings"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// Bounds of what a human's file holds.
const (
	// MaxServers is how many children run at once, and how many entries there may be.
	MaxServers = 20
	// MaxToolName is the most characters of SERVER__TOOL.
	MaxToolName = 64
)

// Entry is one server of servers.yaml. Exactly one of Program, NPM and URL is set. What has a key of YAML stands so in the file; the
// names of the fields are those of the form that Digest is of.
type Entry struct {
	// ID matches ^[a-z][a-z0-9-]{0,31}$: no native tool's name can begin with ID + separator.
	ID string `yaml:"id"`
	// Program is an executable and its arguments; NPM a package; URL a remote server's Streamable HTTP endpoint, over https.
	Program *Program `yaml:"program"`
	NPM     *Package `yaml:"npm"`
	URL     string   `yaml:"url"`
	// Bearer names the credential of the vault that a remote server is called with; empty: none.
	Bearer  string  `yaml:"bearer"`
	Sandbox Sandbox `yaml:"-"`
	// Env are variables with values that are no secret, and Credentials those whose value is a credential of the vault, by its name.
	Env         map[string]string `yaml:"env"`
	Credentials map[string]string `yaml:"credentials"`
	Timeouts    Timeouts          `yaml:"timeouts"`
	// Allow are the tools that are offered, by the server's own names; empty: all that the lock has.
	Allow []string `yaml:"-"`
	// Tiers are what a human says of tools: READ runs without asking; those that are not named are WRITE.
	Tiers map[string]optionsv1.Tier `yaml:"-"`
	// Roles say what arguments are, by tool and by JSON pointer: RoleURL, RolePath.
	Roles map[string]map[string]Role `yaml:"-"`
	// Shared: one instance serves every principal, and its state is theirs together.
	Shared bool `yaml:"shared"`
	// PerSession: each session of a principal has an instance of its own, whose folder is in memory: nothing of it outlives the instance.
	PerSession bool `yaml:"per_session"`
	// Remote: clients on other hosts may use it though it is a program of this one.
	Remote bool `yaml:"remote"`
	// Resources and Prompts: those of the server are offered, too.
	Resources bool `yaml:"resources"`
	Prompts   bool `yaml:"prompts"`
	// Images: pictures in results are passed on, which nobody can look through for personal data.
	Images bool `yaml:"images"`
	// Elicitation: it may ask questions during a call, which AnswerQuestion answers. Left out where it is false: digests of before hold.
	Elicitation bool `yaml:"elicitation" json:",omitempty"`
}

// Program is what a server's process is.
type Program struct {
	Path string   `yaml:"path"`
	Args []string `yaml:"args"`
}

// Package is an exact version of an npm package, installed from a lock with integrity and without its scripts.
type Package struct {
	Name    string `yaml:"package"`
	Version string `yaml:"version"`
	// Bin is the program of the package that is started, relative to the package; empty: its only one.
	Bin  string   `yaml:"bin"`
	Args []string `yaml:"args"`
}

// Sandbox is what a child sees of the host.
type Sandbox struct {
	// None: no sandbox at all. In development alone.
	None bool
	// Read and Write are folders of the host, absolute, that the child sees at the same place. Its own folder is at /data, with or without.
	Read, Write []string
	// Domains may be reached, through egress' proxy: "example.com", "*.example.com". Empty: no network at all.
	Domains []string
	// MemoryMiB, CPU (in cores) and Processes bound it: 512, 1 and 64 where the file says nothing.
	MemoryMiB int
	CPU       float64
	Processes int
}

// Reach is what the server can do where it runs, a line each, for a person who decides about a call.
func (e Entry) Reach() []string {
	switch {
	case e.URL != "":
		return []string{"the server is not on this host: the arguments leave it"}
	case e.Sandbox.None:
		return []string{"NO SANDBOX is around it: it can do what this user can"}
	}
	var out []string
	for _, part := range []struct {
		what string
		list []string
	}{{"it may write in ", e.Sandbox.Write}, {"it may read in ", e.Sandbox.Read}, {"it reaches ", e.Sandbox.Domains}} {
		if len(part.list) > 0 {
			out = append(out, part.what+strings.Join(part.list, ", "))
		}
	}
	if len(e.Sandbox.Domains) == 0 {
		out = append(out, "it has no network")
	}
	return out
}

// Timeouts bound a child: 30 s, 30 s and 10 min where the file says nothing.
type Timeouts struct {
	Ready time.Duration `yaml:"ready"`
	Call  time.Duration `yaml:"call"`
	Idle  time.Duration `yaml:"idle"`
}

// Role is what an argument is.
type Role string

// The roles. A URL is judged before the call, and a path stays inside the server's folders.
const (
	RoleURL  Role = "url"
	RolePath Role = "path"
)
