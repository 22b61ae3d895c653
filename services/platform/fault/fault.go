// Package fault is the one error type that crosses a process boundary. An error has a public half (a stable code, one
// plain sentence, the field at fault) that every caller may see, and a private half (the cause) that stays in our log.
// Every process links it. It trusts no text: what a peer says about an error is cleaned before it is passed on.
package fault

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
)

// Sentences that are the same wherever they are said.
const (
	// Internal is all that a caller learns of our own mistakes.
	Internal = clean.Internal
	// NotAllowed is all that a caller learns of a refusal: denials look alike, and like a thing that is not there.
	NotAllowed = "not allowed"
)

// Bounds of what is taken over from a peer.
const (
	maxMessage     = 500
	maxField       = 256
	maxSuggestions = 5
	maxRetry       = 24 * time.Hour
)

// Error is an error with a public and a private half. It is immutable once made.
type Error struct {
	Code callv1.Code
	// Message is the public sentence: no path, stack, module, line number, SQL, or value that somebody sent (SEC-E1).
	Message string
	// Field is the argument at fault in proto names, without subscripts; empty when none is.
	Field string
	// Retryable: the same call may succeed later; RetryAfter is when, rounded up to seconds on the wire.
	Retryable  bool
	RetryAfter time.Duration
	// DidYouMean holds at most 5 names.
	DidYouMean []string
	// DiskFull: it waits for room on a disk.
	DiskFull bool
	// Cause is private: it is logged where the error is handled and never leaves the process.
	Cause error
}

// Option sets one part of a new Error.
type Option func(*Error)

// WithCause keeps err as the private half.
func WithCause(err error) Option { return func(e *Error) { e.Cause = err } }

// WithField names the argument at fault, in proto names without subscripts.
func WithField(field string) Option { return func(e *Error) { e.Field = field } }

// WithRetry says that the same call may succeed after a while; 0 says at once.
func WithRetry(after time.Duration) Option {
	return func(e *Error) { e.Retryable, e.RetryAfter = true, after }
}

// WithSuggestions offers names that may have been meant; the first 5 are kept.
func WithSuggestions(names ...string) Option {
	return func(e *Error) { e.DidYouMean = names[:min(len(names), maxSuggestions)] }
}

// WithDiskFull says that it waits for room on a disk.
func WithDiskFull() Option { return func(e *Error) { e.DiskFull = true } }

// New returns an Error with the public sentence message.
func New(code callv1.Code, message string, opts ...Option) *Error {
	e := &Error{Code: code, Message: message}
	for _, opt := range opts {
		opt(e)
	}
	return e
}

// Error returns the public half alone, so that formatting a fault into something public gives nothing away.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the private cause, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Cause }

// LogValue gives our log the code and the private half. The sentence is left out: it may repeat what the caller sent, who
// was told, and stands in the audit log under the request id (OUT-2).
func (e *Error) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("code", e.Code.String())}
	if e.Field != "" {
		attrs = append(attrs, slog.String("field", e.Field))
	}
	var inner *Error
	switch {
	case e.Cause == nil, FromPeer(e.Cause):
	case errors.As(e.Cause, &inner):
		attrs = append(attrs, slog.Any("cause", inner))
	default:
		attrs = append(attrs, slog.String("cause", e.Cause.Error()))
	}
	return slog.GroupValue(attrs...)
}

// FromPeer reports whether an error is a status that carries another process's fault, as against the transport having failed: its text
// is that process's sentence.
func FromPeer(err error) bool {
	return slices.ContainsFunc(status.Convert(err).Details(), func(detail any) bool { _, ok := detail.(*callv1.Fault); return ok })
}

// Is reports whether err is, or wraps, a fault with that code.
func Is(err error, code callv1.Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// From makes a fault of any error; nil stays nil. A fault keeps its public half, with whatever was wrapped around it as
// private cause. A gRPC status that carries a Fault becomes that fault. Context errors become CODE_TIMEOUT and
// CODE_UNAVAILABLE. Everything else is CODE_INTERNAL, with the error as private cause.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapped fault is handled next, and differently
		return e
	}
	if e, ok := errors.AsType[*Error](err); ok {
		c := *e
		c.Cause = err
		return &c
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return New(callv1.Code_CODE_TIMEOUT, "the call took too long", WithRetry(0), WithCause(err))
	case errors.Is(err, context.Canceled):
		return New(callv1.Code_CODE_UNAVAILABLE, "the call was cancelled", WithRetry(0), WithCause(err))
	}
	if st, ok := status.FromError(err); ok {
		return fromStatus(st, err)
	}
	return New(callv1.Code_CODE_INTERNAL, Internal, WithCause(err))
}

func fromStatus(st *status.Status, err error) *Error {
	for _, detail := range st.Details() {
		if f, ok := detail.(*callv1.Fault); ok {
			return FromProto(f, err)
		}
	}
	switch st.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		return New(callv1.Code_CODE_UNAVAILABLE, "a process of Durward cannot be reached", WithRetry(time.Second), WithCause(err))
	case codes.Canceled:
		return New(callv1.Code_CODE_UNAVAILABLE, "the call was cancelled", WithRetry(0), WithCause(err))
	case codes.ResourceExhausted:
		return New(callv1.Code_CODE_TOO_LARGE, "the message is too large", WithCause(err))
	case codes.PermissionDenied:
		return New(callv1.Code_CODE_DENIED, NotAllowed, WithCause(err))
	default: // our processes send no bare status; the others name nothing that a caller could act on
		return New(callv1.Code_CODE_INTERNAL, Internal, WithCause(err))
	}
}

// CodeName is the stable name of a code as agents, operators and records see it: NOT_FOUND.
func CodeName(code callv1.Code) string { return strings.TrimPrefix(code.String(), "CODE_") }

// FromProto takes over a fault from the wire or from a store, with err, which may be nil, as its private cause. Its text
// comes from another zone: it is cleaned and bounded, and a code that this version does not know is an internal error.
func FromProto(f *callv1.Fault, err error) *Error {
	if _, known := callv1.Code_name[int32(f.GetCode())]; !known || f.GetCode() == callv1.Code_CODE_UNSPECIFIED {
		return New(callv1.Code_CODE_INTERNAL, Internal, WithCause(err))
	}
	e := &Error{
		Code:       f.GetCode(),
		Message:    clean.Sentence(f.GetMessage(), maxMessage),
		Field:      clean.Name(f.GetField(), maxField),
		Retryable:  f.GetRetryable(),
		RetryAfter: min(time.Duration(f.GetRetryAfterS())*time.Second, maxRetry),
		DiskFull:   f.GetDiskFull(),
		Cause:      err,
	}
	e.DidYouMean = names(f.GetDidYouMean())
	return e
}

// names are the first suggestions that can be shown.
func names(suggested []string) []string {
	var out []string
	for _, name := range suggested[:min(len(suggested), maxSuggestions)] {
		if name = clean.Name(name, maxField); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// Proto returns the public half as it goes over the wire. A message that looks as if it showed what is inside goes out as
// Internal: a sentence is chosen with care, and this is for the day when one is not.
func (e *Error) Proto(requestID string) *callv1.Fault {
	return &callv1.Fault{
		Code:        e.Code,
		Message:     clean.Sentence(e.Message, maxMessage),
		Field:       clean.Name(e.Field, maxField),
		Retryable:   e.Retryable,
		RetryAfterS: uint32((min(max(e.RetryAfter, 0), maxRetry) + time.Second - 1) / time.Second),
		DidYouMean:  names(e.DidYouMean),
		RequestId:   requestID,
		DiskFull:    e.DiskFull,
	}
}

// GRPCStatus returns the public half as a gRPC status with a Fault as its detail. The cause's text is not in it.
func (e *Error) GRPCStatus(requestID string) *status.Status {
	public := e.Proto(requestID)
	st := status.New(grpcCode(e.Code), public.GetMessage())
	if detailed, err := st.WithDetails(public); err == nil {
		return detailed
	}
	return st // a Fault always marshals unless its text is not UTF-8; the code still says enough
}

// grpcCode is the status for clients that do not read the fault itself.
func grpcCode(code callv1.Code) codes.Code {
	switch code {
	case callv1.Code_CODE_INVALID_ARGUMENT:
		return codes.InvalidArgument
	case callv1.Code_CODE_NOT_FOUND:
		return codes.NotFound
	case callv1.Code_CODE_DENIED:
		return codes.PermissionDenied
	case callv1.Code_CODE_UNAUTHENTICATED, callv1.Code_CODE_PROOF_REQUIRED:
		return codes.Unauthenticated
	case callv1.Code_CODE_RATE_LIMITED, callv1.Code_CODE_TOO_MANY_PENDING, callv1.Code_CODE_TOO_LARGE,
		callv1.Code_CODE_MUTED, callv1.Code_CODE_DOES_NOT_FIT:
		return codes.ResourceExhausted
	case callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_AUDIT_UNAVAILABLE:
		return codes.Unavailable
	case callv1.Code_CODE_HALTED, callv1.Code_CODE_EXPIRED, callv1.Code_CODE_ALREADY_SPENT, callv1.Code_CODE_SEALED:
		return codes.FailedPrecondition
	case callv1.Code_CODE_CONFLICT, callv1.Code_CODE_PLAN_CHANGED, callv1.Code_CODE_FAILED:
		return codes.Aborted
	case callv1.Code_CODE_TIMEOUT:
		return codes.DeadlineExceeded
	case callv1.Code_CODE_UNKNOWN_OUTCOME:
		return codes.Unknown
	case callv1.Code_CODE_INTERNAL, callv1.Code_CODE_UNSPECIFIED:
	}
	return codes.Internal
}
