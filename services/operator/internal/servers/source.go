package servers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/secret"
)

var (
	notInID = pattern.New(`[^a-z0-9]+`)
	// secretly are names of variables whose values are not copied, whatever they are, beside those of package secret.
	secretly = pattern.New(`(?i)(token|key|secret|passw|auth|credential|cookie|session|bearer|private|_pat\b|dsn|connection|_url$|_uri$)`)
	// filledIn is what a program puts a variable's value in the place of: ${NAME} in all of them, $NAME in Gemini CLI.
	filledIn = pattern.New(`\$(\{|[A-Z_]{2})`)
	// taken are the members of a configured server that mean something here.
	taken = []string{"args", "command", "cwd", "env", "envFile", "headers", "httpUrl", "serverUrl", "type", "url",
		"sandbox", "sandbox.filesystem", "sandbox.filesystem.allowRead", "sandbox.filesystem.allowWrite", "sandbox.filesystem.denyRead",
		"sandbox.filesystem.denyWrite", "sandbox.network", "sandbox.network.allowedDomains", "sandbox.network.deniedDomains"}
)

// Found is a server as another program's file has it, and what was not taken from there.
type Found struct {
	Entry downstream.Entry
	// Notes are sentences for the operator: secrets that are named and not copied, and what else is left to do.
	Notes []string
	// Problem is why it cannot be run here.
	Problem error
}

// IDOf makes an id of a name: "@modelcontextprotocol/server-filesystem" is filesystem, and "@playwright/mcp" playwright.
func IDOf(name string) string {
	if scope, rest := path.Split(name); rest == "mcp" || rest == "server" {
		name = strings.TrimSuffix(scope, "/")
	}
	id := strings.Trim(notInID().ReplaceAllString(strings.ToLower(path.Base(name)), "-"), "-0123456789")
	for _, word := range []string{"mcp-server-", "server-", "mcp-"} {
		id = strings.TrimPrefix(id, word)
	}
	for _, word := range []string{"-mcp-server", "-server", "-mcp"} {
		id = strings.TrimSuffix(id, word)
	}
	return strings.Trim(id[:min(len(id), 32)], "-")
}

// Package reads NAME@VERSION.
func Package(spec string) (*downstream.Package, error) {
	at := strings.LastIndexByte(spec, '@')
	if at <= 0 {
		return nil, fmt.Errorf("%s: an exact version is missing: npm:NAME@1.2.3", clean.Line(spec, 200))
	}
	name, version := spec[:at], spec[at+1:]
	if err := downstream.CheckPackage(name, version); err != nil {
		return nil, fmt.Errorf("%s: %w", clean.Line(spec, 200), err)
	}
	return &downstream.Package{Name: name, Version: version}, nil
}

// FromFile reads a server.json of the MCP registry, or the servers of Claude Desktop, Cursor, VS Code, Windsurf and Gemini CLI, by their names.
// id is what the server is to be called; "": an id is made of its name.
func FromFile(raw []byte, id string) (map[string]Found, error) {
	if len(raw) > 1<<20 {
		return nil, errors.New("it is larger than 1 MB")
	}
	var f struct {
		MCPServers map[string]configured `json:"mcpServers"`
		Servers    map[string]configured `json:"servers"`
		Name       string                `json:"name"`
		Packages   []registryPackage     `json:"packages"`
		Remotes    []struct {
			Type    string            `json:"type"`
			URL     string            `json:"url"`
			Headers []registryKeyword `json:"headers"`
		} `json:"remotes"`
	}
	plain, err := hujson.Standardize(bytes.TrimPrefix(raw, []byte("\ufeff"))) // people's files hold comments and commas behind the last
	if err != nil {
		return nil, fmt.Errorf("it is no JSON: %s", clean.Line(strings.TrimPrefix(err.Error(), "hujson: "), 200))
	}
	var members struct {
		MCPServers, Servers map[string]map[string]json.RawMessage
	}
	if err := cmp.Or(json.Unmarshal(plain, &f), json.Unmarshal(plain, &members)); err != nil {
		if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
			err = fmt.Errorf("%s is of the wrong kind, %s", cmp.Or(wrong.Field, "the whole"), wrong.Value)
		}
		return nil, fmt.Errorf("it is no JSON that names servers: %s", clean.Line(err.Error(), 200))
	}
	out := map[string]Found{}
	add := func(of map[string]configured, members map[string]map[string]json.RawMessage) {
		for name, c := range of {
			found, err := c.found(cmp.Or(id, IDOf(name)))
			if err != nil {
				found.Problem = err
			}
			found.left(names(members[name], ""))
			out[name] = found
		}
	}
	add(f.MCPServers, members.MCPServers)
	add(f.Servers, members.Servers)
	for _, p := range f.Packages {
		if former, several := out[f.Name]; several {
			former.Notes = append(former.Notes, "of what it names the first package is taken, and not "+clean.Visible(clean.Line(p.Identifier, 200)))
			out[f.Name] = former
		} else if p.Type == "npm" || p.OldType == "npm" {
			found, err := p.found(cmp.Or(id, IDOf(f.Name)))
			if err != nil {
				return nil, err
			}
			out[f.Name] = found
		}
	}
	for _, r := range f.Remotes {
		if _, known := out[f.Name]; !known && r.Type == "streamable-http" {
			found := Found{Entry: downstream.Entry{ID: cmp.Or(id, IDOf(f.Name)), URL: r.URL}}
			if len(r.Headers) > 0 {
				found.bearer()
			}
			out[f.Name] = found
		}
	}
	for name, found := range out {
		if found.Problem == nil {
			found.Problem = found.secrets()
			out[name] = found
		}
	}
	if len(out) == 0 {
		return nil, errors.New("it names no server that can be run: an npm package, a program, or a Streamable HTTP endpoint")
	}
	return out, nil
}

// secrets is why an entry is not taken over as it is: arguments and a URL are in files and lists of processes that others read.
func (f *Found) secrets() error {
	var args []string
	switch e := f.Entry; {
	case e.NPM != nil:
		args = e.NPM.Args
	case e.Program != nil:
		args = e.Program.Args
	}
	switch {
	case filledIn().MatchString(strings.Join(args, " ") + f.Entry.URL), strings.ContainsAny(f.Entry.URL, "{}"):
		return errors.New("an argument or its URL is filled in by the program whose file this is: add the server with the value itself")
	case secret.InArguments(args):
		return errors.New("an argument looks like a secret: add the server without it, and give it in a variable by --credential VAR=NAME")
	case secret.Suspect(f.Entry.URL):
		return errors.New("its URL looks as if it held a secret: add the server without it, and give a token by --bearer NAME")
	}
	return nil
}

// scalar is a text. Where one belongs, as in a variable, people write numbers and true, too.
type scalar string

// UnmarshalJSON implements json.Unmarshaler.
func (s *scalar) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"', '{', '[', 'n': // null leaves it empty
		return json.Unmarshal(raw, (*string)(s))
	}
	*s = scalar(raw)
	return nil
}

// configured is one server of Claude Desktop, Cursor, VS Code, Windsurf or Gemini CLI. The last two have names of their own for a URL.
type configured struct {
	Type      string             `json:"type"`
	Command   string             `json:"command"`
	Args      []string           `json:"args"`
	Cwd       string             `json:"cwd"`
	Env       map[string]*scalar `json:"env"`
	EnvFile   string             `json:"envFile"`
	URL       string             `json:"url"`
	ServerURL string             `json:"serverUrl"`
	HTTPURL   string             `json:"httpUrl"`
	Headers   map[string]string  `json:"headers"`
	Sandbox   struct {
		Filesystem struct {
			AllowRead  []string `json:"allowRead"`
			AllowWrite []string `json:"allowWrite"`
			DenyRead   []string `json:"denyRead"`
			DenyWrite  []string `json:"denyWrite"`
		} `json:"filesystem"`
		Network struct {
			AllowedDomains []string `json:"allowedDomains"`
			DeniedDomains  []string `json:"deniedDomains"`
		} `json:"network"`
	} `json:"sandbox"`
}

func (c configured) found(id string) (f Found, err error) {
	f.Entry.ID = id
	if f.Entry.URL = cmp.Or(c.HTTPURL, c.URL, c.ServerURL); f.Entry.URL != "" {
		if c.Type == "sse" {
			return f, errors.New("its transport is SSE, which is not spoken here: find its Streamable HTTP endpoint, and add that by its URL")
		}
		if len(c.Headers) > 0 {
			f.bearer()
		}
		return f, nil
	}
	if c.EnvFile != "" {
		f.Notes = append(f.Notes, "its envFile is not read: give what stands there by --env VAR=VALUE or, where it is a secret, --credential VAR=NAME")
	}
	if c.Cwd != "" {
		f.Notes = append(f.Notes, "its cwd is not taken over, it is started in a folder of its own: a path among its arguments has to be a whole one")
		if strings.Contains(c.Command, "/") && !filepath.IsAbs(c.Command) {
			c.Command = filepath.Join(c.Cwd, c.Command)
		}
	}
	box := c.Sandbox
	f.Entry.Sandbox = downstream.Sandbox{Read: box.Filesystem.AllowRead, Write: box.Filesystem.AllowWrite, Domains: box.Network.AllowedDomains}
	if denied := slices.Concat(box.Filesystem.DenyRead, box.Filesystem.DenyWrite, box.Network.DeniedDomains); len(denied) > 0 {
		f.Notes = append(f.Notes, "what its sandbox denies is not taken over, allow nothing that holds it: "+clean.Visible(clean.Line(strings.Join(denied, ", "), 200)))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Env)) {
		if c.Env[key] != nil { // null takes a variable away
			value := string(*c.Env[key])
			f.variable(key, value, hidden(key) || secret.Suspect(value) || filledIn().MatchString(value))
		}
	}
	switch path.Base(c.Command) {
	case "npx", "bunx", "pnpx":
		args, spec := c.Args, ""
		for len(args) > 0 && strings.HasPrefix(args[0], "-") {
			name, value, with := strings.Cut(args[0], "=")
			args = args[1:]
			if name != "-p" && name != "--package" {
				continue
			}
			if spec = value; !with && len(args) > 0 {
				spec, args = args[0], args[1:]
			}
		}
		if len(args) == 0 {
			return f, errors.New("it runs npx without a package")
		}
		spec = cmp.Or(spec, args[0]) // what stands behind a package of its own is the name of its program
		if f.Entry.NPM, err = Package(spec); err != nil {
			return f, fmt.Errorf("%w; find one with: npm view %s version", err, clean.Line(spec, 200))
		}
		f.Entry.NPM.Args = args[1:]
	case "docker", "podman", "uvx", "uv", "pipx", "sh", "bash", "cmd":
		return f, fmt.Errorf("it is started through %s, which fetches or runs something else each time: install the program, and name it", clean.Line(c.Command, 64))
	case ".", "":
		return f, errors.New("it names no command")
	default:
		program, err := exec.LookPath(c.Command)
		if err == nil {
			program, err = filepath.Abs(program)
		}
		if err != nil {
			return f, fmt.Errorf("its program %s is not on this host", clean.Line(c.Command, 200))
		}
		f.Entry.Program = &downstream.Program{Path: program, Args: c.Args}
	}
	return f, nil
}

// hidden reports whether a variable of that name may hold a secret.
func hidden(name string) bool { return secretly().MatchString(name) || secret.Name(name) }

// variable copies a value that is no secret, and names a credential for one that may be.
func (f *Found) variable(name, value string, hidden bool) {
	if !hidden {
		if f.Entry.Env == nil {
			f.Entry.Env = map[string]string{}
		}
		f.Entry.Env[name] = value
		return
	}
	if f.Entry.Credentials == nil {
		f.Entry.Credentials = map[string]string{}
	}
	credential := f.Entry.ID + "-" + strings.Trim(notInID().ReplaceAllString(strings.ToLower(name), "-"), "-")
	credential = credential[:min(len(credential), 64)]
	f.Entry.Credentials[name] = credential
	f.Notes = append(f.Notes, fmt.Sprintf("%s is not copied: store it with durward credential add %s --variable %s, then durward credential grant %s --server %s",
		clean.Visible(name), credential, clean.Visible(name), credential, f.Entry.ID))
}

// names are those of a configured server's members, of its sandbox those within it.
func names(members map[string]json.RawMessage, within string) (all []string) {
	for name, raw := range members {
		var inner map[string]json.RawMessage
		if name = within + name; (within != "" || strings.EqualFold(name, "sandbox")) && json.Unmarshal(raw, &inner) == nil && len(inner) > 0 {
			all = append(all, names(inner, name+".")...)
			continue
		}
		all = append(all, name)
	}
	return all
}

// left names what was not taken over: some of it narrows what the server may.
func (f *Found) left(members []string) {
	slices.Sort(members)
	members = slices.DeleteFunc(members, func(name string) bool {
		return slices.ContainsFunc(taken, func(known string) bool { return strings.EqualFold(known, name) })
	})
	if len(members) > 0 {
		f.Notes = append(f.Notes, "not taken over: "+clean.Visible(clean.Line(strings.Join(members, ", "), 200)))
	}
}

func (f *Found) bearer() {
	f.Entry.Bearer = f.Entry.ID + "-token"
	f.Notes = append(f.Notes, fmt.Sprintf("its headers are not copied: store the token with durward credential add %s --variable TOKEN, then durward credential grant %s --server %s",
		f.Entry.Bearer, f.Entry.Bearer, f.Entry.ID))
}

// registryPackage is a package of a server.json.
type registryPackage struct {
	Type       string            `json:"registryType"`
	OldType    string            `json:"registry_type"`
	Identifier string            `json:"identifier"`
	Version    string            `json:"version"`
	Arguments  []registryKeyword `json:"packageArguments"`
	Variables  []registryKeyword `json:"environmentVariables"`
}

// registryKeyword is an argument, a variable or a header.
type registryKeyword struct {
	Type     string `json:"type"`
	Name     string `json:"name"`
	Value    scalar `json:"value"`
	Default  scalar `json:"default"`
	Required bool   `json:"isRequired"`
	Secret   bool   `json:"isSecret"`
}

func (p registryPackage) found(id string) (f Found, err error) {
	f.Entry.ID = id
	if f.Entry.NPM, err = Package(p.Identifier + "@" + p.Version); err != nil {
		return f, err
	}
	for _, a := range p.Arguments {
		value := string(cmp.Or(a.Value, a.Default))
		switch {
		case strings.ContainsAny(value, "{}") || value == "" && a.Required:
			f.Notes = append(f.Notes, fmt.Sprintf("its argument %s has no value yet: give it behind --", clean.Visible(clean.Line(a.Name, 64))))
		case a.Type == "named" && value != "":
			f.Entry.NPM.Args = append(f.Entry.NPM.Args, a.Name+"="+value)
		case a.Type == "named":
			f.Entry.NPM.Args = append(f.Entry.NPM.Args, a.Name)
		case value != "":
			f.Entry.NPM.Args = append(f.Entry.NPM.Args, value)
		}
	}
	for _, v := range p.Variables {
		value := string(cmp.Or(v.Value, v.Default))
		switch {
		case v.Secret || hidden(v.Name) && v.Required || value != "" && (secret.Name(v.Name) || secret.Suspect(value)):
			f.variable(v.Name, "", true)
		case strings.ContainsAny(value, "{}") || value == "" && v.Required:
			name := clean.Visible(clean.Line(v.Name, 64))
			f.Notes = append(f.Notes, fmt.Sprintf("its variable %s has no value yet: give it by --env %s=VALUE", name, name))
		case value != "":
			f.variable(v.Name, value, false)
		}
	}
	return f, nil
}
