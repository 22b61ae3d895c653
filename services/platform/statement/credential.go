package statement

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"

	"durward.internal/services/platform/canonical"
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
	// Sink (a SPIFFE ID) and Services are for grant: who may ask for it, and for which services of its catalog.
	Sink     string   `json:"sink,omitempty"`
	Services []string `json:"services,omitempty"`
}

var (
	credentialName     = regexp.MustCompile(`\A[a-z0-9][a-z0-9_.\-]{0,63}\z`)
	credentialVariable = regexp.MustCompile(`\A[A-Z_][A-Z0-9_]{0,63}\z`)
	credentialService  = regexp.MustCompile(`\A[a-zA-Z0-9][a-zA-Z0-9_\-]{0,63}\z`)
	// reserved are variables that change which program runs, or how, before it runs.
	reserved = regexp.MustCompile(`\A(LD_[A-Z_]*|PATH|HOME|USER|LANG|TERM|TZ|SHELL|IFS|ENV|BASH_ENV|GCONV_PATH|GLIBC_TUNABLES|PYTHON(PATH|HOME|STARTUP)|PERL5(OPT|LIB)|RUBYOPT|NODE_OPTIONS|JAVA_TOOL_OPTIONS|CUDA_[A-Z_]*)\z`)
)

// CredentialName reports whether a credential may be called so.
func CredentialName(name string) bool { return credentialName.MatchString(name) }

// CredentialVariable reports whether a credential may be put into that variable, or its path.
func CredentialVariable(name string) bool {
	return credentialVariable.MatchString(name) && !reserved.MatchString(name)
}

// Commitment is what stands in a statement for a value: HMAC-SHA256 under a key that is made for it, over the credential's name, the
// number of the value and the value, each with its length. Without the key nothing can be guessed by it.
func Commitment(key []byte, name string, version int, value []byte) string {
	h := hmac.New(sha256.New, key)
	for _, part := range [][]byte{[]byte("durward.credential.v1"), []byte(name), binary.BigEndian.AppendUint64(nil, uint64(version)), value} {
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
	anyGrant, anyDelivery := c.Sink != "" || c.Services != nil, c.Delivery != "" || c.Variable != ""
	switch {
	case !CredentialName(c.Name):
		return bad("name is none")
	case c.Action == CredentialAdd && value && c.Version == 1 && !anyGrant:
		if c.Delivery != DeliveryFile && c.Delivery != DeliveryEnvironment || !CredentialVariable(c.Variable) {
			return bad("way to a program is none")
		}
	case c.Action == CredentialRotate && value && c.Version > 1 && !anyGrant && !anyDelivery:
	case c.Action == CredentialGrant && c.Version == 0 && c.Commitment == "" && !anyDelivery:
		if c.Sink == "" || len(c.Services) == 0 || len(c.Services) > maxServices ||
			!slices.IsSorted(c.Services) || len(slices.Compact(slices.Clone(c.Services))) != len(c.Services) {
			return bad("sink or services are missing, too many or not in order")
		}
		for _, s := range c.Services {
			if !credentialService.MatchString(s) {
				return bad("service has no service's name")
			}
		}
	default:
		return bad("statement says too little or too much for what it does")
	}
	return nil
}
