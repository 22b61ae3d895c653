// Package span is the vocabulary of traces: how a span begins and ends, and which attributes it may carry. Every process
// links it, and of OpenTelemetry it needs the interface alone; what becomes of spans is package telemetry's business.
//
// Whether a request is traced is decided once, where it enters. Everything behind asks the context: where it carries no
// sampled span, these functions do nothing and allocate nothing. Attributes come from closed sets (methods, tools, tiers,
// codes, request ids, roles): never an argument, a token, a person's or client's name, or the text of an error.
package span

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Keys of attributes. There are no others: package telemetry drops what it does not know.
const (
	// Method is a gRPC method's full name without the leading slash, or an MCP method.
	Method = attribute.Key("rpc.method")
	// Tool is the name of a tool of the contract, or Unknown.
	Tool = attribute.Key("durward.tool")
	// Tier is the tool's tier.
	Tier = attribute.Key("durward.tier")
	// Era is "stateful" or "stateless".
	Era = attribute.Key("durward.era")
	// Status is OK, a fault's code, or the status of a tool's answer.
	Status = attribute.Key("durward.status")
	// RequestID is the request id that records and log lines carry.
	RequestID = attribute.Key("durward.request_id")
	// Peer is the role of the process at the other end.
	Peer = attribute.Key("durward.peer")
	// Records is how many records an append carries.
	Records = attribute.Key("durward.records")
)

// Keys of the same facts by OpenTelemetry's conventions for MCP and generative AI (open-telemetry/semantic-conventions-genai, in
// development), so that other tools find them. Of theirs those are left out that hold a client's text: arguments, results, URIs,
// session and request ids.
const (
	// MCPMethod is an MCP method.
	MCPMethod = attribute.Key("mcp.method.name")
	// Operation is ExecuteTool for a call of a tool, and absent for all else.
	Operation = attribute.Key("gen_ai.operation.name")
	// GenAITool is what Tool is.
	GenAITool = attribute.Key("gen_ai.tool.name")
	// ErrorType is ToolError, or the code of what failed; absent where nothing did.
	ErrorType = attribute.Key("error.type")
)

// Values of those.
const (
	ExecuteTool = "execute_tool"
	// ToolError is a call that was answered, by an error.
	ToolError = "tool_error"
)

// Values that stand for more than one thing.
const (
	// OK is the status of what went well.
	OK = "ok"
	// Unknown stands for a name that is in no closed set.
	Unknown = "unknown"
)

// Names of the spans that are no calls.
const (
	// Record is the wait for a record to be durable in the audit log.
	Record = "audit record"
	// Append is one batch of records on its way to the audit log.
	Append = "audit append"
	// Commit is audit's transaction.
	Commit = "audit commit"
	// DriverStart and DriverStop are what touches the host.
	DriverStart = "driver start"
	DriverStop  = "driver stop"
)

// Names returns the names of the spans that are no calls.
func Names() []string { return []string{Record, Append, Commit, DriverStart, DriverStop} }

// scope is the instrumentation scope of every span.
const scope = "durward"

// Tracer returns a provider's tracer, under the scope of every span.
func Tracer(p trace.TracerProvider) trace.Tracer { return p.Tracer(scope) }

// Start begins a child of the context's span if that one is sampled. Otherwise it returns ctx and a span that takes
// everything and keeps nothing. The caller ends the span.
func Start(ctx context.Context, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.SpanContext().IsSampled() {
		return ctx, parent
	}
	return Tracer(parent.TracerProvider()).Start(ctx, name, trace.WithSpanKind(kind))
}

// End ends a span that Start returned, with the code of err alone: an error's text says too much.
func End(s trace.Span, err error) {
	SetStatus(s, err)
	s.End()
}

// SetStatus notes how a span's work went: OK, or the code of the error.
func SetStatus(s trace.Span, err error) {
	if !s.IsRecording() {
		return
	}
	if err == nil {
		s.SetAttributes(Status.String(OK))
		return
	}
	code := fault.From(err).Code
	s.SetAttributes(Status.String(fault.CodeName(code)))
	if code == callv1.Code_CODE_INTERNAL || code == callv1.Code_CODE_UNSPECIFIED {
		s.SetStatus(codes.Error, "")
	}
}

// Header is the one header of the W3C's trace context that is read and written, over HTTP and between processes. Its
// companion tracestate, and baggage, are other people's text: they go no further.
const Header = "traceparent"

// carrier holds that header for the library's propagator.
type carrier struct{ value string }

func (c *carrier) Get(key string) string {
	if key == Header {
		return c.value
	}
	return ""
}

func (c *carrier) Set(key, value string) {
	if key == Header {
		c.value = value
	}
}

func (c *carrier) Keys() []string { return []string{Header} }

// Format returns the traceparent of the context's span, "" if that is not sampled.
func Format(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	var c carrier
	propagation.TraceContext{}.Inject(ctx, &c)
	return c.value
}

// Parse reads a traceparent; what is not one is the zero context, which is not valid.
func Parse(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), &carrier{value: traceparent}))
}
