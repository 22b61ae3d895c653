package statement

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/pattern"
)

// What a statement of kind credential does.
const (
	// CredentialAdd stores a credential under a new name.
	CredentialAdd = "add"
	// CredentialRotate gives a credential a new value; the old ones stay until they are removed.
	CredentialRotate = "rotate"
	// CredentialGrant says which services may get it from now on, of all those that may.
	CredentialGrant = "grant"
)

// How a program gets a value.
const (
	// DeliveryFile: as a file in memory; the variable holds its path.
	DeliveryFile = "file"
	// DeliveryEnvironment: as the value of the variable.
	DeliveryEnvironment = "environment"
)

// CommitmentKey is the size of a commitment's key, in bytes.
const CommitmentKey = 32

// MaxCredential is how long a credential's value may be, in bytes.
const MaxCredential = 64 << 10

// maxServices is how many services a credential may be granted to.
const maxServices = 64

// Credential is what a human does with a stored credential. The value is never part of it.
type Credential struct {
	// Action is "add", "rotate" or "grant".
	Action string `json:"action"`
	Name   string `json:"name"`
	// Version and Commitment are for add and rotate: the number of the value, from 1, and Commitment's digest of it.
	Version    int    `json:"version,omitempty"`
	Commitment string `json:"commitment,omitempty"`
	// Delivery and Variable are for add: how a program gets the value.
	Delivery string `json:"delivery,omitempty"`
	Variable string `json:"variable,omitempty"`
	CredentialGrants
}

// CredentialGrants is to whom a credential is granted. It replaces what the sink had before, and no other sink's.
type CredentialGrants struct {
	// Sink (a SPIFFE ID) may ask for it: for services of its catalog, or for requests to origins, and not both.
	Sink     string   `json:"sink,omitempty"`
	Services []string `json:"services,omitempty"`
	// Origins are exact, as Origin has them. Place is where the value goes in requests to them, as Place has it: in a header after Scheme
	// and a space where there is a scheme, such as "Bearer".
	Origins []string `json:"origins,omitempty"`
	Place   string   `json:"place,omitempty"`
	Scheme  string   `json:"scheme,omitempty"`
	// Agents are clients, or "CLIENT/AGENT", whose calls may use it. For services none means any whose call a human let happen.
	Agents []string `json:"agents,omitempty"`
	// Unattended: the services get it in starts without a call too.
	Unattended bool `json:"unattended,omitempty"`
	// Until ends it (RFC 3339); empty: it lasts until it is revoked.
	Until string `json:"until,omitempty"`
}

var (
	credentialName     = pattern.New(`\A[a-z0-9][a-z0-9_.\-]{0,63}\z`)
	credentialVariable = pattern.New(`\A[A-Z_][A-Z0-9_]{0,63}\z`)
	credentialHeader   = pattern.New(`\A[A-Z][a-z0-9]*(-[A-Z0-9][a-z0-9]*){0,7}\z`)
	credentialScheme   = pattern.New(`\A[A-Za-z][A-Za-z0-9\-]{0,31}\z`)
	// A client, and one of its agents, as clients.yaml may name them.
	credentialAgent   = pattern.New(`\A[a-z0-9][a-z0-9_\-]{0,63}(/[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,63})?\z`)
	credentialHost    = pattern.New(`\A[a-z0-9]([a-z0-9.\-]{0,251}[a-z0-9])?\z`)
	credentialService = pattern.New(`\A[a-zA-Z0-9][a-zA-Z0-9_\-]{0,63}\z`)
	// reserved are variables that change which program runs, or how, before it runs.
	reserved = pattern.New(`\A(LD_[A-Z_]*|PATH|HOME|USER|LANG|TERM|TZ|SHELL|IFS|ENV|BASH_ENV|GCONV_PATH|GLIBC_TUNABLES|PYTHON(PATH|HOME|STARTUP)|PERL5(OPT|LIB)|RUBYOPT|NODE_OPTIONS|JAVA_TOOL_OPTIONS|CUDA_[A-Z_]*)\z`)
)

// CredentialName reports whether a credential may be called so.
func CredentialName(name string) bool { return credentialName().MatchString(name) }

// CredentialVariable reports whether a credential may be put into that variable, or its path.
func CredentialVariable(name string) bool {
	return credentialVariable().MatchString(name) && !reserved().MatchString(name)
}

// Commitment is what stands in a statement for a value: HMAC-SHA256 under a key that is made for it, over the credential's name, the
// number of the value and the value, each with its length. Without the key nothing can be guessed by it.
func Commitment(key []byte, name string, version int, value []byte) string {
	return commitment(key, []byte("durward.credential.v1"), []byte(name), binary.BigEndian.AppendUint64(nil, uint64(version)), value)
}

// commitment is HMAC-SHA256 over parts, each with its length.
func commitment(key []byte, parts ...[]byte) string {
	h := hmac.New(sha256.New, key)
	for _, part := range parts {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.Write(part)
	}
	return canonical.FormatDigest(h.Sum(nil))
}

func (c *Credential) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: a credential's %s", ErrMalformed, what) }
	value := c.Version >= 1 && c.Version < 1<<31 && c.Commitment != ""
	if _, err := canonical.ParseDigest(c.Commitment); err != nil && c.Commitment != "" {
		return bad("commitment is not a digest")
	}
	anyGrant, anyDelivery := !reflect.ValueOf(c.CredentialGrants).IsZero(), c.Delivery != "" || c.Variable != ""
	switch {
	case !CredentialName(c.Name):
		return bad("name is none")
	case c.Action == CredentialAdd && value && c.Version == 1 && !anyGrant:
		if c.Delivery != DeliveryFile && c.Delivery != DeliveryEnvironment || !CredentialVariable(c.Variable) {
			return bad("way to a program is none")
		}
	case c.Action == CredentialRotate && value && c.Version > 1 && !anyGrant && !anyDelivery:
	case c.Action == CredentialGrant && c.Version == 0 && c.Commitment == "" && !anyDelivery:
		return c.CredentialGrants.check(bad)
	default:
		return bad("statement says too little or too much for what it does")
	}
	return nil
}

// Ends returns when the grant ends; the zero time: when it is revoked.
func (g *CredentialGrants) Ends() time.Time {
	t, _ := parseTime(g.Until) // checked
	return t
}

// hopHeaders steer a request itself, and hold no credential.
var hopHeaders = []string{"Host", "Connection", "Content-Length", "Content-Type", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Proxy-Authorization", "Expect", "Accept-Encoding"}

var credentialMember = pattern.New(`\A(/[A-Za-z0-9_.\-]{1,64}){1,8}\z`)

// NoPlace says what a place of a credential is. None is in a URL.
const NoPlace = "no place for a credential: a header such as Authorization, or /MEMBER of a JSON body; never in a URL, which servers, proxies and logs keep"

// Place returns the one spelling of where a request has a credential: a header that may hold one, "Authorization"; or "/auth/token", a
// member of a JSON body. "" for none.
func Place(place string) string {
	if credentialMember().MatchString(place) {
		return place
	}
	if place = http.CanonicalHeaderKey(place); credentialHeader().MatchString(place) && !slices.Contains(hopHeaders, place) {
		return place
	}
	return ""
}

// Check reports what a human could not sign.
func (g *CredentialGrants) Check() error {
	return g.check(func(what string) error { return errors.New("a credential's " + what) })
}

func (g *CredentialGrants) check(bad func(string) error) error {
	for _, list := range []struct {
		what  string
		items []string
		fits  func(string) bool
	}{
		{"services", g.Services, credentialService().MatchString},
		{"origins", g.Origins, func(s string) bool { origin, err := Origin(s); return err == nil && origin == s }},
		{"agents", g.Agents, credentialAgent().MatchString},
	} {
		if len(list.items) > maxServices || !slices.IsSorted(list.items) || len(slices.Compact(slices.Clone(list.items))) != len(list.items) ||
			slices.ContainsFunc(list.items, func(s string) bool { return !list.fits(s) }) {
			return bad(list.what + " are too many, not in order, or none")
		}
	}
	if g.Until != "" {
		if _, err := parseTime(g.Until); err != nil {
			return bad("end is no time")
		}
	}
	switch toServices, toOrigins := len(g.Services) > 0, len(g.Origins) > 0; {
	case g.Sink == "" || toServices == toOrigins:
		return bad("grant names a sink, and either services or origins")
	case toServices && (g.Place != "" || g.Scheme != ""):
		return bad("grant to services has no place in requests")
	case toOrigins && (g.Unattended || len(g.Agents) == 0):
		return bad("grant to origins names its agents, and is never unattended")
	case toOrigins && (g.Place == "" || Place(g.Place) != g.Place):
		return bad("place is " + NoPlace)
	case g.Scheme != "" && (!credentialScheme().MatchString(g.Scheme) || !credentialHeader().MatchString(g.Place)):
		return bad("scheme is none, or of no header")
	}
	return nil
}

// Origin returns the origin of an absolute URL: scheme, host in small letters, and the port where it is not the scheme's own. Only https
// has one, and http on a loopback address.
func Origin(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", errors.New("it is no URL")
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	address, err := netip.ParseAddr(host)
	switch loopback := err == nil && address.IsLoopback(); {
	case u.User != nil || u.Opaque != "" || host == "" || strings.HasSuffix(u.Host, ":"):
		return "", errors.New("it has no host, or more than one")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback):
		return "", errors.New("it is not https")
	}
	if err != nil && !credentialHost().MatchString(host) {
		return "", errors.New("its host is not a name in ASCII, nor an address")
	}
	if port == map[string]string{"https": "443", "http": "80"}[u.Scheme] {
		port = ""
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		host += ":" + port
	}
	return u.Scheme + "://" + host, nil
}
