package server

import (
	"context"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/reference"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/token"
)

// valueOf is what a reference stands for in a session: nothing, where it is another's.
func (s *Server) valueOf(ctx context.Context, session string, ref reference.ID) (token.Value, bool) {
	return s.Tokens.Value(ctx, session, ref)
}

// unattended reports whether what a human's file lets run unasked may run so: for a client that signs what it asks for.
func unattended(opened *session.Session) bool { return opened.Client.KeyBound() }

// hasAgent reports whether the client may say that it is that agent.
func hasAgent(c *clients.Client, name string) bool { return c.HasAgent(name) }

// calledBy reports whether a client's sessions may be used on the caller's connection: those of an internal program by itself alone, all
// others by the gateway, which relays their credentials.
func calledBy(c *clients.Client, caller identity.ID) bool {
	if caller.Role() == optionsv1.Role_ROLE_TOOL || c.Internal() {
		return c.Identity == caller
	}
	return true
}

// turnOf says whose turn it is to have texts looked through: each principal has one.
func turnOf(principal string) string { return principal }

// once reports whether a key-bound client's opening counts once alone.
func once() bool { return true }
