package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/output"
)

// Program is an agent program whose configuration this program can write. Places and shapes are the programs' own:
// https://code.claude.com/docs/en/mcp, https://modelcontextprotocol.io/docs/develop/connect-local-servers,
// https://cursor.com/docs/mcp, https://code.visualstudio.com/docs/agents/reference/mcp-configuration, https://zed.dev/docs/ai/mcp,
// https://docs.windsurf.com/windsurf/cascade/mcp, https://docs.cline.bot/mcp/configuring-mcp-servers,
// https://geminicli.com/docs/tools/mcp-server.
type Program struct {
	// Name is the word for it on a command line, Title what people call it.
	Name, Title string
	// servers is the member that holds the servers.
	servers string
	dialect dialect
	// typed: an entry says by "type" what it is.
	typed bool
	// environment is how its configuration names an environment variable; empty: it connects by no URL.
	environment string
	// project is the file in a project's folder; empty: it has none.
	project string
	// user is the file of the user.
	user func(Places) string
	// manual, if set, is what a human enters there: a format that nothing here edits.
	manual func(command string, args []string) string
}

// Places are the folders under which programs look.
type Places struct {
	// Home is the user's, Config where programs keep their settings ($XDG_CONFIG_HOME, or ~/.config).
	Home, Config string
	// Mac: settings are in ~/Library/Application Support.
	Mac bool
}

// settings is a file of a program that keeps its settings as its system wants it.
func (p Places) settings(parts ...string) string {
	if p.Mac {
		return filepath.Join(append([]string{p.Home, "Library", "Application Support"}, parts...)...)
	}
	return filepath.Join(append([]string{p.Config}, parts...)...)
}

// Programs are all of them, the one that most people mean first.
func Programs() []Program {
	return []Program{
		{
			Name: "claude-code", Title: "Claude Code", servers: "mcpServers", typed: true, environment: "${%s}", project: ".mcp.json",
			user: func(p Places) string { return filepath.Join(p.Home, ".claude.json") },
		},
		{
			Name: "claude-desktop", Title: "Claude Desktop", servers: "mcpServers",
			user: func(p Places) string { return p.settings("Claude", "claude_desktop_config.json") },
		},
		{
			Name: "cursor", Title: "Cursor", servers: "mcpServers", dialect: commented, environment: "${env:%s}",
			project: filepath.Join(".cursor", "mcp.json"),
			user:    func(p Places) string { return filepath.Join(p.Home, ".cursor", "mcp.json") },
		},
		{
			Name: "cline", Title: "Cline", servers: "mcpServers",
			user: func(p Places) string {
				return p.settings("Code", "User", "globalStorage", "saoudrizwan.claude-dev", "settings", "cline_mcp_settings.json")
			},
		},
		{
			Name: "codex", Title: "Codex", manual: codexLines,
			user: func(p Places) string { return filepath.Join(p.Home, ".codex", "config.toml") },
		},
		{
			Name: "gemini-cli", Title: "Gemini CLI", servers: "mcpServers", dialect: commented, project: filepath.Join(".gemini", "settings.json"),
			user: func(p Places) string { return filepath.Join(p.Home, ".gemini", "settings.json") },
		},
		{
			Name: "goose", Title: "Goose", manual: gooseLines,
			user: func(p Places) string { return filepath.Join(p.Config, "goose", "config.yaml") },
		},
		{
			Name: "vscode", Title: "VS Code", servers: "servers", dialect: commented, typed: true, environment: "${env:%s}",
			project: filepath.Join(".vscode", "mcp.json"),
			user:    func(p Places) string { return p.settings("Code", "User", "mcp.json") },
		},
		{
			Name: "windsurf", Title: "Windsurf", servers: "mcpServers",
			user: func(p Places) string { return filepath.Join(p.Home, ".codeium", "windsurf", "mcp_config.json") },
		},
		{
			Name: "zed", Title: "Zed", servers: "context_servers", dialect: commented,
			project: filepath.Join(".zed", "settings.json"),
			user:    func(p Places) string { return filepath.Join(p.Config, "zed", "settings.json") },
		},
	}
}

// codexLines are what Codex's TOML says of a server: https://developers.openai.com/codex/mcp. A JSON string is a TOML one.
func codexLines(command string, args []string) string {
	return fmt.Sprintf("[mcp_servers.%s]\ncommand = %s\nargs = %s\n", ServerName, jsonText(command), jsonText(args))
}

// gooseLines are what Goose's YAML says of one: https://block.github.io/goose/docs/getting-started/using-extensions. JSON is YAML.
func gooseLines(command string, args []string) string {
	return fmt.Sprintf("extensions:\n  %s:\n    type: stdio\n    name: %s\n    enabled: true\n    cmd: %s\n    args: %s\n    timeout: 300\n",
		ServerName, ServerName, jsonText(command), jsonText(args))
}

func jsonText(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // of strings: it cannot fail
	return strings.TrimSpace(b.String())
}

// ProgramNames are the words for them.
func ProgramNames() []string {
	return output.Each(Programs(), func(p Program) string { return p.Name })
}

// FindProgram returns the program of that name.
func FindProgram(name string) (Program, bool) {
	all := Programs()
	i := slices.IndexFunc(all, func(p Program) bool { return p.Name == name })
	if i < 0 {
		return Program{}, false
	}
	return all[i], true
}

// ErrNoURL means that a program connects to servers that it starts itself alone.
var ErrNoURL = errors.New("it connects by no URL")

// Manual reports whether a human enters Durward there: what Stdio returns are the lines to add, not the file.
func (p Program) Manual() bool { return p.manual != nil }

// HasProject reports whether projects have a configuration of their own.
func (p Program) HasProject() bool { return p.project != "" }

// ProjectFile is the configuration of the project in a folder; UserFile the user's.
func (p Program) ProjectFile(folder string) string { return filepath.Join(folder, p.project) }

// UserFile is the user's configuration.
func (p Program) UserFile(places Places) string { return p.user(places) }

// server is an entry for Durward. It holds no secret.
type server struct {
	Type    string            `json:"type,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Stdio returns the configuration with an entry that starts a command, and nothing else changed.
func (p Program) Stdio(document []byte, command string, args ...string) ([]byte, error) {
	if p.manual != nil {
		return []byte(p.manual(command, args)), nil
	}
	s := server{Command: command, Args: args}
	if p.typed {
		s.Type = "stdio"
	}
	return setIn(document, []string{p.servers, ServerName}, s, p.dialect)
}

// HTTP returns the configuration with Durward's URL in it. The token is read from the environment.
func (p Program) HTTP(document []byte, url string) ([]byte, error) {
	if p.environment == "" {
		return nil, ErrNoURL
	}
	s := server{URL: url, Headers: map[string]string{"Authorization": "Bearer " + fmt.Sprintf(p.environment, TokenVariable)}}
	if p.typed {
		s.Type = "http"
	}
	return setIn(document, []string{p.servers, ServerName}, s, p.dialect)
}

// Remove returns the configuration without Durward, and nothing else changed.
func (p Program) Remove(document []byte) ([]byte, error) {
	return removeIn(document, []string{p.servers, ServerName}, p.dialect)
}

// Bridge is the command that speaks for a client: `durward mcp`, with the arguments after the program's name.
func Bridge(home, name string) []string { return []string{"mcp", "--home", home, "--client", name} }

// keyLine is what a public key's line in authorized_keys may be of.
const keyLine = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=-@._ "

// AuthorizedKey is the line of authorized_keys that lets a key do one thing alone: speak for a client. What the other side asks
// to be run is not looked at. publicKey is a line of a .pub file, or empty: it has to be put in.
func AuthorizedKey(program, home, name, publicKey string) (string, error) {
	command := quoteWords(append([]string{program}, Bridge(home, name)...))
	if strings.ContainsAny(command, "\n\r\x00") {
		return "", errors.New("a path with a line break cannot be put into authorized_keys")
	}
	publicKey = strings.TrimSpace(publicKey)
	if strings.Trim(publicKey, keyLine) != "" {
		return "", errors.New("that is not the line of one public key")
	}
	publicKey = cmp.Or(publicKey, "PUBLIC-KEY-OF-THE-AGENT'S-MACHINE")
	// Within the quotes of authorized_keys a quote is escaped, and nothing else (sshd(8)).
	return `restrict,command="` + strings.ReplaceAll(command, `"`, `\"`) + `" ` + publicKey, nil
}

// quoteWords makes a shell's line of words.
func quoteWords(words []string) string {
	return strings.Join(output.Each(words, Word), " ")
}

// Word quotes one word for a POSIX shell, if it needs it.
func Word(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./@:=+,"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// TokenVariable is the environment variable that an HTTP client's configuration names in the token's place.
const TokenVariable = "DURWARD_TOKEN" //nolint:gosec // a variable's name, not a token

// ServerName is Durward's name in an agent program's configuration.
const ServerName = "durward"

// Diff shows what changes between two texts: the lines that are not common at the beginning and the end, with two lines
// around them. It is empty when nothing changes.
func Diff(name string, before, after []byte) string {
	if string(before) == string(after) {
		return ""
	}
	old, now := lines(before), lines(after)
	start := 0
	for start < len(old) && start < len(now) && old[start] == now[start] {
		start++
	}
	end := 0
	for end < len(old)-start && end < len(now)-start && old[len(old)-1-end] == now[len(now)-1-end] {
		end++
	}
	const around = 2
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", name, name)
	for _, line := range old[max(0, start-around):start] {
		b.WriteString("  " + line + "\n")
	}
	for _, line := range old[start : len(old)-end] {
		b.WriteString("- " + line + "\n")
	}
	for _, line := range now[start : len(now)-end] {
		b.WriteString("+ " + line + "\n")
	}
	for _, line := range now[len(now)-end : min(len(now), len(now)-end+around)] {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

func lines(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}
