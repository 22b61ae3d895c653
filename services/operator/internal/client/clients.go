// Package client is the operator's side of who may connect: it edits the vault's clients.yaml without losing a comment,
// makes tokens and keys, and writes an agent program's configuration.
//
// It runs in the operator's process. It trusts the files' owner and nothing of their content: an edit whose result does
// not say exactly what was meant is not written.
package client

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/credential"
	"durward.internal/services/platform/pattern"
)

// Client is one entry of clients.yaml.
type Client = credential.Client

var (
	// The vault's rule.
	namePattern  = pattern.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	agentPattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)
	channels     = pattern.New(`^(cli|desktop_ui|api|messaging:[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63})$`)
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
	// ErrInternal means that the client has a certificate and no token.
	ErrInternal = errors.New("it is an internal program: its certificate is renewed by itself, and there is no token")
)

// CheckName reports why name cannot be a client's.
func CheckName(name string) error {
	if !namePattern().MatchString(name) {
		return ErrName
	}
	return nil
}

// ValidAgent reports whether a client may call one of its agents so.
func ValidAgent(name string) bool { return agentPattern().MatchString(name) }

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

// Admitted are the clients of a clients.yaml that are let in.
func Admitted(path string) ([]Client, error) {
	list, err := Read(path)
	return slices.DeleteFunc(list, func(c Client) bool { return c.Revoked }), err
}

// Users are the users that clients have, each once.
func Users(list []Client) []string {
	var out []string
	for _, c := range list {
		if c.User != "" && !slices.Contains(out, c.User) {
			out = append(out, c.User)
		}
	}
	return out
}

func parse(name string, raw []byte) ([]Client, error) {
	var file credential.File
	err := config.Parse(name, raw, &file)
	return file.Clients, err
}

// find is which of a file's clients has the name.
func find(raw []byte, name string) (list []Client, at int, err error) {
	if list, err = parse("clients.yaml", raw); err != nil {
		return nil, 0, err
	}
	if at = slices.IndexFunc(list, func(c Client) bool { return c.ID == name }); at < 0 {
		return nil, 0, ErrUnknown
	}
	return list, at, nil
}

// Add returns the file with the client added at the end of the list; everything else, comments included, stays as it was.
func Add(raw []byte, c Client) ([]byte, error) {
	if err := CheckName(c.ID); err != nil {
		return nil, err
	}
	if !channels().MatchString(c.Channel) {
		return nil, errors.New("channel must be cli, desktop_ui, api or messaging:NAME")
	}
	if !slices.Contains([]string{"READ", "WRITE", "DESTRUCTIVE"}, c.TierCeiling) {
		return nil, errors.New("tier must be READ, WRITE or DESTRUCTIVE")
	}
	if c.User != "" && !namePattern().MatchString(c.User) {
		return nil, errors.New("a user is a-z, 0-9, _ and -, at most 64, beginning with a letter or digit")
	}
	for i, agent := range c.Agents {
		if !agentPattern().MatchString(agent) {
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
	if edit.Line(raw, []string{"clients"}) == 0 {
		return nil, edit.ErrLayout
	}
	out, err := edit.Append(raw, "clients", entry(c))
	if err != nil {
		return nil, err
	}
	if len(c.May) == 0 {
		c.May = nil // as an entry without it is read
	}
	return out, verify(out, append(before, c))
}

// Revoke returns the file with the client marked as revoked. Its entry stays, so that the name is not used again and
// history can be read.
func Revoke(raw []byte, name string) ([]byte, error) {
	before, at, err := find(raw, name)
	if err != nil {
		return nil, err
	}
	if before[at].Revoked {
		return raw, nil
	}
	before[at].Revoked = true
	out, err := edit.Set(raw, field(at, "revoked"), "true")
	if err != nil {
		return nil, err
	}
	return out, verify(out, before)
}

// Rotation is a client's new credential, and until when the old one is taken beside it; a zero Until: it ends at once.
type Rotation struct {
	TokenSHA256, Key string
	Until            time.Time
}

// Rotatable says why a client's credential cannot be replaced: ErrUnknown, ErrRevoked or ErrInternal.
func Rotatable(raw []byte, name string) error {
	_, _, err := rotatable(raw, name)
	return err
}

func rotatable(raw []byte, name string) (list []Client, at int, err error) {
	list, at, err = find(raw, name)
	switch {
	case err != nil:
	case list[at].Revoked:
		err = ErrRevoked
	case list[at].Identity != "":
		err = ErrInternal
	}
	return list, at, err
}

// Rotate returns the file with the client's credential replaced; everything else, comments included, stays as it was. A
// credential that an earlier rotation replaced ends with this one.
func Rotate(raw []byte, name string, r Rotation) ([]byte, error) {
	before, at, err := rotatable(raw, name)
	if err != nil {
		return nil, err
	}
	if (before[at].Key == "") != (r.Key == "") {
		return nil, errors.New("a rotation neither gives a client a key nor takes it away")
	}
	want := &before[at]
	old := *want
	want.TokenSHA256, want.Key, want.Previous = r.TokenSHA256, r.Key, credential.Previous{}
	out := raw
	if edit.Line(raw, field(at, "previous")) > 0 {
		if out, err = edit.UnsetAll(out, field(at, "previous")); err != nil {
			return nil, err
		}
	}
	values := []struct{ name, value string }{{"token_sha256", r.TokenSHA256}, {"key", r.Key}}
	if !r.Until.IsZero() {
		want.Previous = credential.Previous{TokenSHA256: old.TokenSHA256, Key: old.Key, Until: r.Until.UTC().Truncate(time.Second).Format(time.RFC3339)}
		values = append(values, []struct{ name, value string }{
			{"previous.token_sha256", old.TokenSHA256}, {"previous.key", old.Key}, {"previous.until", want.Previous.Until},
		}...)
	}
	for _, v := range values {
		if v.value == "" {
			continue
		}
		if out, err = edit.Set(out, field(at, strings.Split(v.name, ".")...), strconv.Quote(v.value)); err != nil {
			return nil, err
		}
	}
	return out, verify(out, before)
}

// field is the path of a field of the client with that number.
func field(at int, name ...string) []string {
	return append([]string{"clients", strconv.Itoa(at)}, name...)
}

// verify makes sure that an edited file says exactly what was meant.
func verify(out []byte, want []Client) error {
	got, err := parse("clients.yaml", out)
	if err != nil || !reflect.DeepEqual(got, want) {
		return edit.ErrLayout
	}
	return nil
}

// entry writes a client as a list item.
func entry(c Client) string {
	var b strings.Builder
	fmt.Fprintf(&b, "id: %s\n", c.ID)
	if c.Identity != "" {
		fmt.Fprintf(&b, "identity: %q\n", c.Identity)
	} else {
		fmt.Fprintf(&b, "token_sha256: %q\n", c.TokenSHA256)
	}
	if len(c.May) > 0 {
		fmt.Fprintf(&b, "may: [%s]\n", strings.Join(c.May, ", "))
	}
	if c.Key != "" {
		fmt.Fprintf(&b, "key: %q\n", c.Key)
	}
	fmt.Fprintf(&b, "channel: %s\n", c.Channel)
	fmt.Fprintf(&b, "tier_ceiling: %s\n", c.TierCeiling)
	if len(c.Agents) > 0 {
		// Quoted: an agent may be called 007 or null.
		fmt.Fprintf(&b, "agents: [%s]\n", strings.Join(output.Each(c.Agents, strconv.Quote), ", "))
	}
	if c.User != "" {
		fmt.Fprintf(&b, "user: %q\n", c.User)
	}
	if c.Remote {
		b.WriteString("remote: true\n")
	}
	return b.String()
}
