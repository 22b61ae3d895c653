// Package clients reads clients.yaml: who may connect, with what credential, up to which tier. A human owns the file; no
// RPC writes it. It is read again within a second of a change; a file that does not parse changes nothing, and Err says
// what is wrong with it.
//
// It trusts the file and nothing of a credential that arrives. An internal program has no credential: its certificate is proved on
// its connection, and the file names it.
package clients

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/credential"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/statement"
)

// Defaults and bounds of a client's limits.
const (
	DefaultSessions = 64
	DefaultPending  = 5
	maxClients      = 1000
	maxAgents       = 64
	maxFile         = 1 << 20
)

// Client is one entry of the file. It is immutable.
type Client struct {
	ID string
	// Token is the SHA-256 of the bearer token.
	Token [sha256.Size]byte
	// Key makes the client key-bound; nil otherwise.
	Key ed25519.PublicKey
	// Identity is in the certificate of an internal program, which has neither token nor key; zero otherwise. Its instance is ID, so that
	// a sink knows whose a permit is.
	Identity identity.ID
	// May are the tools that the client may call; what is not here does not exist for it. Empty: of an internal program none, of others all.
	May []string
	// Channel, and for a messaging channel its name.
	Channel     callv1.Channel
	ChannelName string
	// Remote: its programs run on other machines, as those that reach this one over SSH.
	Remote  bool
	Ceiling optionsv1.Tier
	// Sessions and Pending are the most that the client may have open, and waiting for a human.
	Sessions, Pending int
	// Agents are the names that the client may give its own agents; it may give no other.
	Agents []string
	// Credentials are the names of those that its calls may refer to; a human's grant must name the client too.
	Credentials []string
	// User is the human whose client it is, or "".
	User    string
	Revoked bool
	// Previous is the credential that a rotation replaced, while it is still taken; nil otherwise. What the registry hands out has
	// none whose time is over.
	Previous *Credential

	// alone is the client without Previous.
	alone *Client
}

// Credential is what a client is let in with.
type Credential struct {
	Token [sha256.Size]byte
	Key   ed25519.PublicKey
	// Until is when it is not taken any more.
	Until time.Time
}

// KeyBound reports whether nobody can call in the client's name without a key of its own: it signs its requests, or calls us itself.
func (c *Client) KeyBound() bool { return c.Key != nil || c.Internal() }

// Messaging reports whether the client speaks for people on a messaging platform, each of whom has sessions of their own (CH-1).
func (c *Client) Messaging() bool { return c.Channel == callv1.Channel_CHANNEL_MESSAGING }

// HasAgent reports whether the client may say that it is that agent; "" is none in particular.
func (c *Client) HasAgent(name string) bool { return name == "" || slices.Contains(c.Agents, name) }

// SameCredential reports whether the client is still let in with what it was let in with before: its credential, or the one that
// a rotation replaced and that is still taken. What decides on its calls must be the same too: its channel and whose it is.
func (c *Client) SameCredential(before *Client) bool {
	if c.Revoked || c.Identity != before.Identity || c.Channel != before.Channel || c.ChannelName != before.ChannelName || c.Remote != before.Remote || c.User != before.User {
		return false
	}
	same := func(token [sha256.Size]byte, key ed25519.PublicKey) bool {
		return token == before.Token && string(key) == string(before.Key)
	}
	return same(c.Token, c.Key) || c.Previous != nil && same(c.Previous.Token, c.Previous.Key)
}

// at is the client at a time: a previous credential ends by itself.
func (c *Client) at(now time.Time) *Client {
	if c.Previous != nil && !stillTaken(now, c.Previous.Until) {
		return c.alone
	}
	return c
}

// Go's $ without (?m) is the end of the text: a trailing newline does not pass.
var (
	idPattern   = pattern.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	namePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)
	toolPattern = pattern.New(`^([a-z][a-z0-9_]{0,63}|[a-z][a-z0-9-]{0,31}__[A-Za-z0-9_.-]{1,61})$`)
)

// IsUser reports whether a name can be the user of a client.
func IsUser(name string) bool { return idPattern().MatchString(name) }

// Registry is the file as it was last good. It is safe for concurrent use.
type Registry struct {
	path    string
	now     func() time.Time
	foreign *ownership.Foreign
	current atomic.Pointer[[]*Client]
	watch   *filewatch.Watcher
}

// Config is what a Registry needs.
type Config struct {
	// Path is where clients.yaml is.
	Path string
	// Now is the clock that ends a previous credential; nil is time.Now.
	Now func() time.Time
	// Foreign may neither own nor write the file, nor a folder above it; nil: nobody is looked at.
	Foreign *ownership.Foreign
}

// Open reads the file and watches it until Close.
func Open(c Config) (*Registry, error) {
	r := &Registry{path: c.Path, now: c.Now, foreign: c.Foreign}
	if r.now == nil {
		r.now = time.Now
	}
	var err error
	if r.watch, err = filewatch.Open(r.look, r.load); err != nil {
		return nil, err
	}
	return r, nil
}

// Close ends the watch.
func (r *Registry) Close() { r.watch.Close() }

// Reload reads the file now instead of within a second.
func (r *Registry) Reload() error { return r.watch.Reload() }

func (r *Registry) load() error {
	list, err := r.read()
	if err != nil {
		return err
	}
	r.current.Store(&list)
	return nil
}

// look looks at the file, and at the folders above it where it counts who may write them.
func (r *Registry) look() filewatch.Stamps {
	s := filewatch.Paths(r.path)()
	if r.foreign != nil {
		s.Above(r.path)
	}
	return s
}

func (r *Registry) read() ([]*Client, error) {
	if r.foreign == nil {
		return Read(r.path)
	}
	data, err := ownership.ReadFile(r.path, maxFile, r.foreign)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.path, err)
	}
	return parse(r.path, data)
}

// Err returns what is wrong with the file as it is now, or nil.
func (r *Registry) Err() error { return r.watch.Err() }

// Count returns how many clients are let in.
func (r *Registry) Count() int {
	n := 0
	for _, c := range *r.current.Load() {
		if !c.Revoked {
			n++
		}
	}
	return n
}

// Authenticate returns the client whose token it is, with the credential that the token is of. It does the same work whoever
// asks: the token is hashed and compared with every client's.
func (r *Registry) Authenticate(token string) (*Client, bool) {
	digest, now := credential.Digest(token), r.now()
	var found, before *Client
	for _, c := range *r.current.Load() {
		if c.Internal() {
			continue
		}
		if subtle.ConstantTimeCompare(digest[:], c.Token[:]) == 1 {
			found = c
		}
		if c.Previous != nil && subtle.ConstantTimeCompare(digest[:], c.Previous.Token[:]) == 1 {
			before = c
		}
	}
	switch {
	case found != nil && !found.Revoked:
		return found.at(now), true
	case before != nil && !before.Revoked && before.at(now).Previous != nil:
		old := *before
		old.Token, old.Key = before.Previous.Token, before.Previous.Key
		return &old, true
	default:
		return nil, false
	}
}

// Lookup finds a client that is let in by its id.
func (r *Registry) Lookup(id string) (*Client, bool) {
	for _, c := range *r.current.Load() {
		if c.ID == id && !c.Revoked {
			return c.at(r.now()), true
		}
	}
	return nil, false
}

// User is whose client that is; "": nobody's in particular.
func (r *Registry) User(id string) string {
	if c, ok := r.Lookup(id); ok {
		return c.User
	}
	return ""
}

// Keys returns the own keys of every client that the file names, be it revoked or its key rotated out: who asks must not be who
// allows.
func (r *Registry) Keys() []ed25519.PublicKey {
	var out []ed25519.PublicKey
	for _, c := range *r.current.Load() {
		if c.Key != nil {
			out = append(out, c.Key)
		}
		if c.Previous != nil && c.Previous.Key != nil {
			out = append(out, c.Previous.Key)
		}
	}
	return out
}

// LetIn reports whether there is a client of that id that is let in.
func (r *Registry) LetIn(id string) bool {
	_, ok := r.Lookup(id)
	return ok
}

// Read parses the file. Errors name the client and say what is wrong, and never repeat a credential.
func Read(path string) ([]*Client, error) {
	var file credential.File
	if err := config.Load(path, &file); err != nil {
		return nil, err
	}
	return judge(file.Clients)
}

func parse(name string, data []byte) ([]*Client, error) {
	var file credential.File
	if err := config.Parse(name, data, &file); err != nil {
		return nil, err
	}
	return judge(file.Clients)
}

// judge checks the entries, each and beside each other.
func judge(entries []credential.Client) ([]*Client, error) {
	if len(entries) > maxClients {
		return nil, fmt.Errorf("clients: more than %d clients", maxClients)
	}
	out := make([]*Client, 0, len(entries))
	ids, tokens := map[string]bool{}, map[[sha256.Size]byte]bool{}
	for i, e := range entries {
		c, err := judgeOne(e)
		switch {
		case err != nil:
			return nil, fmt.Errorf("clients[%d]: %w", i, err)
		case ids[c.ID]:
			return nil, fmt.Errorf("clients[%d]: the id %q is used twice", i, c.ID)
		case !c.Internal() && tokens[c.Token], c.Previous != nil && (tokens[c.Previous.Token] || c.Previous.Token == c.Token):
			return nil, fmt.Errorf("clients[%d]: %q has a token that is there already", i, c.ID)
		}
		ids[c.ID], tokens[c.Token] = true, true
		if c.Previous != nil {
			tokens[c.Previous.Token] = true
		}
		out = append(out, c)
	}
	return out, nil
}

// judgeOne checks what an entry says by itself.
func judgeOne(e credential.Client) (*Client, error) {
	if !idPattern().MatchString(e.ID) {
		return nil, errors.New("id must be 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit")
	}
	c := &Client{ID: e.ID, Revoked: e.Revoked, Sessions: e.Limits.Sessions, Pending: e.Limits.Pending, Agents: e.Agents, Credentials: e.Credentials, User: e.User, Remote: e.Remote}
	if c.User != "" && !IsUser(c.User) {
		return nil, fmt.Errorf("%s: user must be 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit", e.ID)
	}
	var err error
	if err = c.addCredential(e); err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	if c.Channel, c.ChannelName, err = parseChannel(e.Channel); err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	switch e.TierCeiling {
	case "READ":
		c.Ceiling = optionsv1.Tier_TIER_READ
	case "WRITE":
		c.Ceiling = optionsv1.Tier_TIER_WRITE
	case "DESTRUCTIVE":
		c.Ceiling = optionsv1.Tier_TIER_DESTRUCTIVE
	default:
		return nil, fmt.Errorf("%s: tier_ceiling must be READ, WRITE or DESTRUCTIVE", e.ID)
	}
	c.Sessions = cmp.Or(c.Sessions, DefaultSessions)
	c.Pending = cmp.Or(c.Pending, DefaultPending)
	if c.Sessions < 1 || c.Sessions > 1024 || c.Pending < 1 || c.Pending > 50 {
		return nil, fmt.Errorf("%s: limits must be sessions 1 to 1024 and pending 1 to 50", e.ID)
	}
	if len(c.Agents) > maxAgents {
		return nil, fmt.Errorf("%s: more than %d agents", e.ID, maxAgents)
	}
	for _, name := range c.Credentials {
		if !statement.CredentialName(name) {
			return nil, fmt.Errorf("%s: credentials: a name is up to 64 small letters, digits, _ - and .; a value is never written here", e.ID)
		}
	}
	for _, agent := range c.Agents {
		if !namePattern().MatchString(agent) {
			return nil, fmt.Errorf("%s: an agent's name is 1 to 64 letters, digits, _ . and -", e.ID)
		}
	}
	if e.Previous != (credential.Previous{}) {
		if err := c.addPrevious(e.Previous); err != nil {
			return nil, fmt.Errorf("%s: previous.%w", e.ID, err)
		}
	}
	return c, nil
}

func (c *Client) addPrevious(p credential.Previous) (err error) {
	alone, old := *c, &Credential{}
	if old.Token, err = parseDigest(p.TokenSHA256); err != nil {
		return fmt.Errorf("token_sha256 %w", err)
	}
	if old.Key, err = parseKey(p.Key); err != nil {
		return err
	}
	if c.KeyBound() != (old.Key != nil) {
		// An old token that needs no key beside a new one that does would be the way around the key.
		return errors.New("key must be there if the client has a key, and only then")
	}
	if old.Until, err = time.Parse(time.RFC3339, p.Until); err != nil {
		return errors.New("until must be a time such as 2026-01-31T12:00:00Z")
	}
	c.alone, c.Previous = &alone, old
	return nil
}

func parseDigest(s string) ([sha256.Size]byte, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != sha256.Size || strings.ToLower(s) != s {
		return [sha256.Size]byte{}, errors.New("must be 64 lower-case hex digits")
	}
	return [sha256.Size]byte(raw), nil
}

func parseKey(line string) (ed25519.PublicKey, error) {
	if line == "" {
		return nil, nil
	}
	wrong := errors.New("key must be one ssh-ed25519 public key line")
	parsed, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || len(options) > 0 || len(strings.TrimSpace(string(rest))) > 0 || parsed.Type() != ssh.KeyAlgoED25519 {
		return nil, wrong
	}
	wrapped, ok := parsed.(ssh.CryptoPublicKey)
	if !ok {
		return nil, wrong
	}
	key, ok := wrapped.CryptoPublicKey().(ed25519.PublicKey)
	if !ok {
		return nil, wrong
	}
	return key, nil
}

func parseChannel(s string) (callv1.Channel, string, error) {
	switch s {
	case "cli":
		return callv1.Channel_CHANNEL_CLI, "", nil
	case "desktop_ui":
		return callv1.Channel_CHANNEL_DESKTOP_UI, "", nil
	case "api":
		return callv1.Channel_CHANNEL_API, "", nil
	}
	if name, ok := strings.CutPrefix(s, "messaging:"); ok && namePattern().MatchString(name) {
		return callv1.Channel_CHANNEL_MESSAGING, name, nil
	}
	return 0, "", errors.New("channel must be cli, desktop_ui, api or messaging:NAME")
}
