// Package client is the operator's side of who may connect: it edits the vault's clients.yaml without losing a comment,
// makes tokens and keys, and writes an agent program's configuration.
//
// It runs in the operator's process. It trusts the files' owner and nothing of their content: an edit whose result does
// not say exactly what was meant is not written.
package client

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"durward.internal/services/platform/config"
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
	Revoked     bool     `yaml:"revoked" json:"revoked"`
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
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	channels    = regexp.MustCompile(`^(cli|desktop_ui|api|messaging:[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63})$`)
)

var (
	// ErrName means that a name is not one that the vault accepts.
	ErrName = errors.New("a client's name is a-z, 0-9, _ and -, at most 64, beginning with a letter or digit")
	// ErrExists means that the name is taken.
	ErrExists = errors.New("a client of that name is there already; names are not used again, also not after they were revoked")
	// ErrUnknown means that there is no such client.
	ErrUnknown = errors.New("there is no client of that name")
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

// NewToken makes a bearer token of 256 random bits and the digest that clients.yaml holds.
func NewToken() (token, digest string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	token = "durward_" + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
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
