package server

import (
	"context"
	"crypto/rand"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/platform/weakness"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/token"
)

// This file makes the negative controls of deploy/e2e: the vault without one of its guards.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("unattended", "agent", "turns", "references", "called-by", "opening").
	Also("state", func() {
		database.WeakenSeals()
		rollback.Weaken()
	})

// valueOf without "references" takes a reference for whatever session's it is.
func (s *Server) valueOf(ctx context.Context, session string, ref reference.ID) (token.Value, bool) {
	if Guards.Off("references") {
		for _, held := range s.Tokens.Sessions() {
			if value, ok := s.Tokens.Value(ctx, held.Session, ref); ok {
				return value, true
			}
		}
	}
	return s.Tokens.Value(ctx, session, ref)
}

// unattended without "unattended" lets whoever relays a bearer token change things.
func unattended(opened *session.Session) bool {
	return opened.Client.KeyBound() || Guards.Off("unattended")
}

// hasAgent without "agent" believes any name.
func hasAgent(c *clients.Client, name string) bool { return Guards.Off("agent") || c.HasAgent(name) }

// calledBy without "called-by" takes a session's handle from whoever has it.
func calledBy(c *clients.Client, caller identity.ID) bool {
	if !Guards.Off("called-by") && (caller.Role() == optionsv1.Role_ROLE_TOOL || c.Internal()) {
		return c.Identity == caller
	}
	return true
}

// turnOf without "turns" gives each request a turn of its own.
func turnOf(principal string) string {
	if Guards.Off("turns") {
		return rand.Text()
	}
	return principal
}

// once without "opening" takes an opening as often as it comes.
func once() bool { return !Guards.Off("opening") }
