// Package client is the operator's side of who may connect: it edits the vault's clients.yaml without losing a comment,
// makes tokens and keys, and writes an agent program's configuration.
//
// It runs in the operator's process. It trusts the files' owner and nothing of their content: an edit whose result does
// not say exactly what was meant is not written.
package client

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/credential"
)

// Client is one entry of clients.yaml. deploy/config/clients.yaml says what each field means.
type Client struct {
	ID          string   `yaml:"id" json:"id"`
	TokenSHA256 string   `yaml:"token_sha256" json:"-"`
	Key         string   `yaml:"key" json:"-"`
	Channel     string   `yaml:"channel" json:"channel"`
	TierCeiling string   `yaml:"tier_ceiling" json:"tier_ceiling"`
	Limits      Limits   `yaml:"limits" json:"limits"`
	Agents      []string `yaml:"agents" json:"agents,omitempty"`
	User        string   `yaml:"user" json:"user,omitempty"`
	Previous    Previous `yaml:"previous" json:"previous,omitzero"`
	Revoked     bool     `yaml:"revoked" json:"revoked"`
}

// Previous is the credential that a rotation replaced, until it ends.
type Previous struct {
	TokenSHA256 string `yaml:"token_sha256" json:"-"`
	Key         string `yaml:"key" json:"-"`
	// Until is RFC 3339 in UTC, whole seconds.
	Until string `yaml:"until" json:"until"`
}

// Limits of a client; 0 means the vault's default.
type Limits struct {
	Sessions int `yaml:"sessions" json:"sessions"`
	Pending  int `yaml:"pending" json:"pending"`
}

type document struct {
	Clients []Client `yaml:"clients"`
}

var (
	// The vault's rule.
	namePattern  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	agentPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)
	channels     = regexp.MustCompile(`^(cli|desktop_ui|api|messaging:[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63})$`)
)

var (
	// ErrName means that a name is not one that the vault accepts.
	ErrName = errors.New("a client's name is a-z, 0-9, _ and -, at most 64, beginning with a letter or digit")
	// ErrExists means that the name is taken.
	ErrExists = errors.New("a client of that name is there already; names are not used again, also not after they were revoked")
	// ErrUnknown means that there is no such client.
	ErrUnknown = errors.New("there is no client of that name")
	// ErrRevoked means that a client was revoked, for good.
	ErrRevoked = errors.New("the client was revoked; add another one")
	// ErrLayout means that the file is laid out in a way that cannot be edited without touching other parts.
	ErrLayout = errors.New("the file is laid out so that it cannot be edited safely; edit it by hand")
)

// CheckName reports why name cannot be a client's.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return ErrName
	}
	return nil
}

// ValidAgent reports whether a client may call one of its agents so.
func ValidAgent(name string) bool { return agentPattern.MatchString(name) }

// NewToken makes a bearer token of 256 random bits and the digest that clients.yaml holds.
func NewToken() (token, digest string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	token = "durward_" + base64.RawURLEncoding.EncodeToString(b[:])
	sum := credential.Digest(token)
	return token, hex.EncodeToString(sum[:])
}

// Read parses a clients.yaml.
func Read(path string) ([]Client, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("clients: %w", err)
	}
	return parse(path, raw)
}

func parse(name string, raw []byte) ([]Client, error) {
	var doc document
	if err := config.Parse(name, raw, &doc); err != nil {
		return nil, err
	}
	return doc.Clients, nil
}

// Add returns the file with the client added at the end of the list; everything else, comments included, stays as it was.
func Add(raw []byte, c Client) ([]byte, error) {
	if err := CheckName(c.ID); err != nil {
		return nil, err
	}
	if !channels.MatchString(c.Channel) {
		return nil, errors.New("channel must be cli, desktop_ui, api or messaging:NAME")
	}
	if !slices.Contains([]string{"READ", "WRITE", "DESTRUCTIVE"}, c.TierCeiling) {
		return nil, errors.New("tier must be READ, WRITE or DESTRUCTIVE")
	}
	if c.User != "" && !namePattern.MatchString(c.User) {
		return nil, errors.New("a user is a-z, 0-9, _ and -, at most 64, beginning with a letter or digit")
	}
	for i, agent := range c.Agents {
		if !agentPattern.MatchString(agent) {
			return nil, errors.New("an agent is letters, digits, dots, dashes and underscores, at most 64, beginning with a letter or digit")
		}
		if slices.Contains(c.Agents[:i], agent) {
			return nil, errors.New("the same agent is given twice")
		}
	}
	if strings.HasPrefix(c.Channel, "messaging:") && c.TierCeiling != "READ" {
		return nil, errors.New("a client on a messaging channel may only look: its tier is READ")
	}
	before, err := parse("clients.yaml", raw)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(before, func(other Client) bool { return other.ID == c.ID }) {
		return nil, ErrExists
	}
	items, list, err := locateItems(raw)
	if err != nil {
		return nil, err
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	var out []byte
	if len(items) == 0 {
		// "clients: []" or "clients:" on a line of its own.
		line := string(bytes.TrimRight(lines[list], "\r\n"))
		key, rest, ok := strings.Cut(line, ":")
		value, comment, commented := strings.Cut(rest, "#")
		if !ok || strings.TrimSpace(key) != "clients" || strings.TrimSpace(value) != "[]" && strings.TrimSpace(value) != "" {
			return nil, ErrLayout
		}
		replaced := key + ":"
		if commented {
			replaced += " #" + comment
		}
		out = append(join(lines[:list]), []byte(replaced+"\n"+entry(c, "  "))...)
		out = append(out, join(lines[list+1:])...)
	} else {
		last := items[len(items)-1]
		out = ensureNewline(join(lines[:last.end]))
		out = append(out, []byte(entry(c, last.indent))...)
		out = append(out, join(lines[last.end:])...)
	}
	return out, verify(out, append(before, c))
}

// Revoke returns the file with the client marked as revoked. Its entry stays, so that the name is not used again and
// history can be read.
func Revoke(raw []byte, name string) ([]byte, error) {
	before, err := parse("clients.yaml", raw)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(before, func(c Client) bool { return c.ID == name })
	if at < 0 {
		return nil, ErrUnknown
	}
	if before[at].Revoked {
		return raw, nil
	}
	items, _, err := locateItems(raw)
	if err != nil {
		return nil, err
	}
	if len(items) != len(before) {
		return nil, ErrLayout
	}
	item := items[at]
	lines := bytes.SplitAfter(raw, []byte("\n"))
	for i := item.start; i < item.end; i++ {
		// Said already, as false.
		if strings.HasPrefix(strings.TrimLeft(string(lines[i]), " -"), "revoked:") {
			lines[i] = bytes.Replace(lines[i], []byte("false"), []byte("true"), 1)
			out := join(lines)
			before[at].Revoked = true
			return out, verify(out, before)
		}
	}
	out := ensureNewline(join(lines[:item.end]))
	out = append(out, []byte(item.indent+"  revoked: true\n")...)
	out = append(out, join(lines[item.end:])...)
	before[at].Revoked = true
	return out, verify(out, before)
}

// Rotation is a client's new credential, and until when the old one is taken beside it; a zero Until: it ends at once.
type Rotation struct {
	TokenSHA256, Key string
	Until            time.Time
}

// Rotate returns the file with the client's credential replaced; everything else, comments included, stays as it was. A
// credential that an earlier rotation replaced ends with this one.
func Rotate(raw []byte, name string, r Rotation) ([]byte, error) {
	before, err := parse("clients.yaml", raw)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(before, func(c Client) bool { return c.ID == name })
	switch {
	case at < 0:
		return nil, ErrUnknown
	case before[at].Revoked:
		return nil, ErrRevoked
	case (before[at].Key == "") != (r.Key == ""):
		return nil, errors.New("a rotation neither gives a client a key nor takes it away")
	}
	items, _, err := locateItems(raw)
	if err != nil {
		return nil, err
	}
	if len(items) != len(before) {
		return nil, ErrLayout
	}
	want := &before[at]
	old := *want
	want.TokenSHA256, want.Key, want.Previous = r.TokenSHA256, r.Key, Previous{}
	if !r.Until.IsZero() {
		want.Previous = Previous{TokenSHA256: old.TokenSHA256, Key: old.Key, Until: r.Until.UTC().Truncate(time.Second).Format(time.RFC3339)}
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	out := join(lines[:items[at].start])
	out = append(out, rotated(lines[items[at].start:items[at].end], items[at].indent, want)...)
	out = append(out, join(lines[items[at].end:])...)
	return out, verify(out, before)
}

// rotated writes an item's lines anew: the two of the credential replaced, an earlier previous one left out, the new one at the
// end.
func rotated(lines [][]byte, indent string, c *Client) []byte {
	var out []byte
	skipping := false
	for _, line := range lines {
		body := strings.TrimLeft(string(line), " ")
		depth := len(line) - len(body)
		body = strings.TrimLeft(strings.TrimPrefix(body, "-"), " ")
		if skipping && (depth > len(indent)+2 || isBlankOrComment(line)) {
			continue
		}
		skipping = false
		head := string(line[:len(line)-len(body)])
		key, _, _ := strings.Cut(body, ":")
		switch {
		case key == "token_sha256":
			out = append(out, fmt.Sprintf("%stoken_sha256: %q%s\n", head, c.TokenSHA256, comment(body))...)
		case key == "key" && depth <= len(indent)+2:
			out = append(out, fmt.Sprintf("%skey: %q%s\n", head, c.Key, comment(body))...)
		case key == "previous" && !strings.Contains(head, "-"):
			skipping = true
		default:
			out = append(out, line...)
		}
	}
	if c.Previous.Until == "" {
		return out
	}
	out = append(ensureNewline(out), previous(c, indent)...)
	return out
}

// comment is the comment at the end of a line of a credential, whose value holds no "#".
func comment(body string) string {
	if i := strings.Index(body, " #"); i >= 0 {
		return strings.TrimRight(body[i:], "\r\n")
	}
	return ""
}

func previous(c *Client, indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  previous:\n%s    token_sha256: %q\n", indent, indent, c.Previous.TokenSHA256)
	if c.Previous.Key != "" {
		fmt.Fprintf(&b, "%s    key: %q\n", indent, c.Previous.Key)
	}
	fmt.Fprintf(&b, "%s    until: %q\n", indent, c.Previous.Until)
	return b.String()
}

// verify makes sure that an edited file says exactly what was meant.
func verify(out []byte, want []Client) error {
	got, err := parse("clients.yaml", out)
	if err != nil || !reflect.DeepEqual(got, want) {
		return ErrLayout
	}
	return nil
}

// entry writes a client as a list item.
func entry(c Client, indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s- id: %s\n", indent, c.ID)
	fmt.Fprintf(&b, "%s  token_sha256: %q\n", indent, c.TokenSHA256)
	if c.Key != "" {
		fmt.Fprintf(&b, "%s  key: %q\n", indent, c.Key)
	}
	fmt.Fprintf(&b, "%s  channel: %s\n", indent, c.Channel)
	fmt.Fprintf(&b, "%s  tier_ceiling: %s\n", indent, c.TierCeiling)
	if len(c.Agents) > 0 {
		// Quoted: an agent may be called 007 or null.
		quoted := make([]string, len(c.Agents))
		for i, agent := range c.Agents {
			quoted[i] = strconv.Quote(agent)
		}
		fmt.Fprintf(&b, "%s  agents: [%s]\n", indent, strings.Join(quoted, ", "))
	}
	if c.User != "" {
		fmt.Fprintf(&b, "%s  user: %q\n", indent, c.User)
	}
	return b.String()
}

// item is where a list item stands: lines [start, end), 0-based, without blank lines and comments behind it.
type item struct {
	start, end int
	indent     string
}

// locateItems finds the items of the list "clients", and the line of its key.
func locateItems(raw []byte) (items []item, list int, err error) {
	file, err := parser.ParseBytes(raw, 0)
	if err != nil || len(file.Docs) != 1 {
		return nil, 0, ErrLayout
	}
	path, err := yaml.PathString("$.clients")
	if err != nil {
		return nil, 0, fmt.Errorf("clients: %w", err)
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	list = slices.IndexFunc(lines, func(line []byte) bool { return bytes.HasPrefix(line, []byte("clients:")) })
	if list < 0 {
		return nil, 0, ErrLayout
	}
	node, err := path.FilterFile(file)
	if err != nil {
		return nil, 0, ErrLayout
	}
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		return nil, list, nil // clients: with nothing behind it
	}
	if sequence.IsFlowStyle && len(sequence.Values) > 0 {
		return nil, 0, ErrLayout
	}
	for _, value := range sequence.Values {
		token := value.GetToken()
		if mapping, ok := value.(*ast.MappingNode); ok && len(mapping.Values) > 0 {
			token = mapping.Values[0].Key.GetToken()
		} else if single, ok := value.(*ast.MappingValueNode); ok {
			token = single.Key.GetToken()
		}
		start := token.Position.Line - 1
		for start > list && !bytes.HasPrefix(bytes.TrimLeft(lines[start], " "), []byte("-")) {
			start--
		}
		text := lines[start]
		indent := text[:len(text)-len(bytes.TrimLeft(text, " "))]
		items = append(items, item{start: start, indent: string(indent)})
	}
	for i := range items {
		end := len(lines)
		if i+1 < len(items) {
			end = items[i+1].start
		} else {
			// A key of the document behind the list ends it.
			for j := items[i].start + 1; j < len(lines); j++ {
				if text := lines[j]; len(bytes.TrimSpace(text)) > 0 && text[0] != ' ' && text[0] != '#' && text[0] != '-' {
					end = j
					break
				}
			}
		}
		for end > items[i].start+1 && isBlankOrComment(lines[end-1]) {
			end--
		}
		items[i].end = end
	}
	return items, list, nil
}

func isBlankOrComment(line []byte) bool {
	text := bytes.TrimSpace(line)
	return len(text) == 0 || text[0] == '#'
}

func join(lines [][]byte) []byte { return bytes.Join(lines, nil) }

func ensureNewline(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return b
}
