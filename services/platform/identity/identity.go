// Package identity says who a process is: spiffe://TRUST_DOMAIN/ROLE/INSTANCE, its certificate and key, and the mutual TLS
// that proves it to its peers. Every process links it, in every zone. It trusts the files that its configuration names and
// the trust folder; of a peer it believes what a certificate from the current bundle says, and nothing else.
package identity

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// DefaultTrustDomain is the trust domain of an installation that names no other.
const DefaultTrustDomain = "durward.local"

// ErrInvalid is wrapped by every error of Parse and New.
var ErrInvalid = errors.New("not an identity of the form spiffe://TRUST_DOMAIN/ROLE/INSTANCE")

// Bounds of an identity's parts, in bytes.
const (
	maxTrustDomain = 255
	maxInstance    = 63
)

// ID is an identity of a process or an operator. It is comparable; the zero ID is nobody.
type ID struct {
	trustDomain string
	role        optionsv1.Role
	instance    string
}

// New returns the identity of one instance of a role. The instance is 1 to 63 characters of [a-zA-Z0-9._-] and begins with
// a letter or a digit.
func New(trustDomain string, role optionsv1.Role, instance string) (ID, error) {
	name := RoleName(role)
	if name == "" {
		return ID{}, fmt.Errorf("%w: unknown role", ErrInvalid)
	}
	// spiffeid lowers nothing and refuses everything outside the SPIFFE-ID grammar.
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil || td.Name() != trustDomain || len(trustDomain) > maxTrustDomain {
		return ID{}, fmt.Errorf("%w: bad trust domain", ErrInvalid)
	}
	if !validInstance(instance) {
		return ID{}, fmt.Errorf("%w: bad instance", ErrInvalid)
	}
	return ID{trustDomain: trustDomain, role: role, instance: instance}, nil
}

// Parse reads an identity. It accepts one spelling alone: Parse(s).String() == s.
func Parse(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, "spiffe://")
	if !ok {
		return ID{}, ErrInvalid
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return ID{}, ErrInvalid
	}
	role, err := ParseRole(parts[1])
	if err != nil {
		return ID{}, err
	}
	return New(parts[0], role, parts[2])
}

func validInstance(s string) bool {
	if len(s) == 0 || len(s) > maxInstance {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// String returns the SPIFFE ID, or "" for the zero ID.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	return "spiffe://" + id.trustDomain + "/" + RoleName(id.role) + "/" + id.instance
}

// MarshalText makes an identity appear as its SPIFFE ID in logs and JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// AddressedBy reports whether a statement with that audience is for this process: it names the process, or its whole trust domain.
func (id ID) AddressedBy(audience string) bool {
	return audience == id.String() || audience == Everyone(id.trustDomain)
}

// Everyone is the audience of statements that are for every process of a trust domain.
func Everyone(trustDomain string) string { return "spiffe://" + trustDomain }

// TrustDomain returns the trust domain's name.
func (id ID) TrustDomain() string { return id.trustDomain }

// Role returns the role, ROLE_UNSPECIFIED for the zero ID.
func (id ID) Role() optionsv1.Role { return id.role }

// Instance returns the last part.
func (id ID) Instance() string { return id.instance }

// IsZero reports whether this is nobody.
func (id ID) IsZero() bool { return id == ID{} }

// RoleName returns a role as it stands in identities, "gateway"; "" for one that is not known.
func RoleName(role optionsv1.Role) string {
	name, known := optionsv1.Role_name[int32(role)]
	if !known || role == optionsv1.Role_ROLE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(name, "ROLE_"))
}

// ParseRole is the inverse of RoleName.
func ParseRole(name string) (optionsv1.Role, error) {
	role := optionsv1.Role(optionsv1.Role_value["ROLE_"+strings.ToUpper(name)])
	if role == optionsv1.Role_ROLE_UNSPECIFIED || RoleName(role) != name {
		return optionsv1.Role_ROLE_UNSPECIFIED, fmt.Errorf("%w: unknown role", ErrInvalid)
	}
	return role, nil
}
