package rpc

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strings"

	"durward.internal/services/platform/identity"
)

// Keys of the gRPC metadata that travels with a call. Values of keys that end in -bin are serialised messages.
const (
	// MetadataRequestID carries one id from the agent's request to every record of it.
	MetadataRequestID = "durward-request-id"
	// MetadataPermit carries a SignedPermit, for READ tools.
	MetadataPermit = "durward-permit-bin"
	// MetadataGrant carries a SignedGrant, for everything else.
	MetadataGrant = "durward-grant-bin"
	// TrailerOutcome carries an Outcome beside a sink's reply.
	TrailerOutcome = "durward-outcome-bin"
)

type (
	requestIDKey struct{}
	callerKey    struct{}
)

// NewRequestID returns a fresh request id: "r-" and 26 lower-case base32 characters of 128 random bits.
func NewRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "r-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// WithRequestID returns a context whose calls and log lines carry the id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the context's request id, "" if it has none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// ValidRequestID reports whether an id from outside may be taken over: 1 to 64 characters of [a-z0-9-].
func ValidRequestID(id string) bool {
	return len(id) >= 1 && len(id) <= 64 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Caller returns the identity of the peer whose call a server is handling.
func Caller(ctx context.Context) (identity.ID, bool) {
	id, ok := ctx.Value(callerKey{}).(identity.ID)
	return id, ok
}

// WithCaller returns a context in which Caller returns id, for tests of handlers without a connection.
func WithCaller(ctx context.Context, id identity.ID) context.Context {
	return context.WithValue(ctx, callerKey{}, id)
}
