// Package telemetry is what a process tells about itself: structured logs on stderr, and on loopback GET /health, /metrics
// and /traces. Every server process links it. It trusts its callers' messages and keys; of values it shows only what is
// plain, never one whose key says that it is secret or names somebody, and in traces only what stands in a closed set
// (OUT-2). It is never in the way: what it cannot deliver it drops and counts.
package telemetry

import (
	"context"
	"encoding"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/trace"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
)

// Masked stands for a value that is not shown.
const Masked = "[masked]"

// NewLogger returns a logger of JSON lines with the service's name and, where the context has them, request_id and trace_id. The level
// is debug, info, warn, error, or "" for info. Values under keys that name a secret are masked; messages, structs and maps
// are left out whole, since what is in them cannot be judged by a key.
func NewLogger(w io.Writer, service, level string) (*slog.Logger, error) {
	var minimum slog.Level
	switch level {
	case "debug":
		minimum = slog.LevelDebug
	case "", "info":
		minimum = slog.LevelInfo
	case "warn":
		minimum = slog.LevelWarn
	case "error":
		minimum = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q is not debug, info, warn or error", level)
	}
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: minimum, ReplaceAttr: replace})
	return slog.New(requestHandler{handler}).With("service", service), nil
}

// Secret reports whether a key (of a log attribute or an environment variable) names something that is masked.
func Secret(key string) bool {
	key = strings.ToLower(key)
	return slices.ContainsFunc([]string{"token", "key", "secret", "password", "credential"}, func(word string) bool { return strings.Contains(key, word) })
}

// personal are keys of names that people chose for themselves and their programs. Logs name sessions and requests; who
// they were is in the audit log, which knows who may read it.
var personal = []string{"principal", "operator", "client"}

func replace(groups []string, a slog.Attr) slog.Attr {
	if slices.Contains(personal, a.Key) {
		return slog.Attr{}
	}
	if id, ok := a.Value.Any().(identity.ID); ok {
		return slog.String(a.Key, nameless(id))
	}
	secret := Secret(a.Key)
	for _, group := range groups {
		secret = secret || Secret(group)
	}
	switch {
	case secret:
		return slog.String(a.Key, Masked)
	case a.Value.Kind() == slog.KindAny && !plain(a.Value.Any()):
		return slog.String(a.Key, "[omitted]")
	}
	return a
}

// nameless is an identity without the name of a person: operators' programs and notifiers carry theirs.
func nameless(id identity.ID) string {
	if id.Role() == optionsv1.Role_ROLE_OPERATOR || id.Role() == optionsv1.Role_ROLE_NOTIFIER {
		return identity.RoleName(id.Role())
	}
	return id.String()
}

// plain reports whether a value is one fact with a text form of its own, or a list of such.
func plain(v any) bool {
	switch v.(type) {
	case nil, error, encoding.TextMarshaler, slog.Level, *slog.Source, []string:
		return true
	}
	switch reflect.TypeOf(v).Kind() {
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	default:
		return false
	}
}

// requestHandler adds the context's request id to every line, and the trace's where there is one.
type requestHandler struct{ slog.Handler }

func (h requestHandler) Handle(ctx context.Context, r slog.Record) error {
	if id := rpc.RequestID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", id))
		if sampled := trace.SpanContextFromContext(ctx); sampled.IsSampled() {
			r.AddAttrs(slog.String("trace_id", sampled.TraceID().String()))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h requestHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return requestHandler{h.Handler.WithAttrs(attrs)}
}

func (h requestHandler) WithGroup(name string) slog.Handler {
	return requestHandler{h.Handler.WithGroup(name)}
}
