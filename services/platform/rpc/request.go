package rpc

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
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

// Invoke calls a tool's method with a permission under its metadata key, fills response, and returns the outcome that came
// beside it: an empty one where none came. A call that failed has one too, nil where none came, if it got as far as to be
// recorded. The call may have been carried out when its outcome cannot be read: that is CODE_UNKNOWN_OUTCOME.
func Invoke(ctx context.Context, conn grpc.ClientConnInterface, method string, request, response proto.Message, key, permission string) (*callv1.Outcome, error) {
	var trailer metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, key, permission)
	failed := conn.Invoke(ctx, method, request, response, grpc.Trailer(&trailer))
	outcome := new(callv1.Outcome)
	values := trailer.Get(TrailerOutcome)
	if len(values) == 0 {
		if failed != nil {
			return nil, failed
		}
		return outcome, nil
	}
	err := proto.Unmarshal([]byte(values[0]), outcome)
	if len(values) > 1 {
		err = errors.New("more than one")
	}
	switch {
	case failed != nil && err != nil:
		return nil, failed // how it failed is known
	case failed != nil:
		return outcome, failed
	case err != nil:
		return nil, fault.New(callv1.Code_CODE_UNKNOWN_OUTCOME, "the call was answered, but how it ended cannot be read", fault.WithCause(err))
	}
	return outcome, nil
}

// SetOutcome sends the outcome beside the reply of the call that ctx belongs to. It fails only when the caller is gone.
func SetOutcome(ctx context.Context, o *callv1.Outcome) {
	raw, err := proto.Marshal(o)
	if err != nil {
		return // strings of our own
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs(TrailerOutcome, string(raw)))
}
