package clients

import (
	"errors"
	"fmt"
	"slices"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/credential"
	"durward.internal/services/platform/identity"
)

// Internal reports whether it is an internal program, which its certificate proves.
func (c *Client) Internal() bool { return !c.Identity.IsZero() }

// MayCall reports whether the client's own entry lets it call a tool; rules decide beside it. The vault's own tools are about its own
// session.
func (c *Client) MayCall(t contract.Tool) bool {
	all := !c.Internal() && len(c.May) == 0
	return all || t.Sink == optionsv1.Role_ROLE_VAULT || slices.Contains(c.May, t.Name)
}

// Known returns the internal program that has that identity.
func (r *Registry) Known(id identity.ID) (*Client, bool) {
	client, ok := r.Lookup(id.Instance())
	return client, ok && client.Identity == id
}

// addCredential is what the client is let in with: a token, and a key if it has one, or else a certificate.
func (c *Client) addCredential(e credential.Client) (err error) {
	if slices.ContainsFunc(e.May, func(name string) bool { return !toolPattern().MatchString(name) }) {
		return errors.New("may: a tool's name is small letters, digits and _, or SERVER__TOOL")
	}
	c.May = e.May
	if e.Identity == "" {
		if c.Token, err = parseDigest(e.TokenSHA256); err != nil {
			return fmt.Errorf("token_sha256 %w", err)
		}
		c.Key, err = parseKey(e.Key)
		return err
	}
	c.Identity, err = identity.Parse(e.Identity)
	switch {
	case err != nil || c.Identity.Role() != optionsv1.Role_ROLE_TOOL || c.Identity.Instance() != c.ID:
		return fmt.Errorf("identity must be spiffe://TRUST_DOMAIN/tool/%s", c.ID)
	case e.TokenSHA256 != "" || e.Key != "" || e.Previous != (credential.Previous{}):
		return errors.New("a client with an identity has no token_sha256, key or previous: its certificate is all that lets it in")
	case e.Channel != "api":
		return errors.New("a client with an identity has the channel api")
	}
	return nil
}
