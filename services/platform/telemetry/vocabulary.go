package telemetry

import (
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/telemetry/span"
)

// vocabulary is everything that a span may say. Whatever code makes a span, what is not in here does not leave the process.
type vocabulary struct {
	// methods are MCP's, at the gateway.
	methods []string
	values  map[attribute.Key]func(string) bool
}

// requestID is the form of the ids that we make; another one would be somebody's text.
var requestID = pattern.New(`^r-[a-z2-7]{26}$`)

// answers are the statuses of a tool's answer.
var answers = []string{span.OK, "pending_approval", "running", "denied", "error"}

func newVocabulary(methods []string) *vocabulary {
	v := &vocabulary{methods: methods}
	v.values = map[attribute.Key]func(string) bool{
		span.Method:    v.method,
		span.Tool:      v.tool,
		span.Tier:      tier,
		span.Era:       func(s string) bool { return s == "stateful" || s == "stateless" },
		span.Status:    status,
		span.RequestID: requestID().MatchString,
		span.Peer:      role,
		span.MCPMethod: v.method,
		span.GenAITool: v.tool,
		span.Operation: func(s string) bool { return s == span.ExecuteTool },
		span.ErrorType: func(s string) bool { return s == span.ToolError || isCode(s) },
	}
	return v
}

func (v *vocabulary) method(s string) bool { return s == span.Unknown || slices.Contains(v.methods, s) }

func (v *vocabulary) tool(s string) bool {
	_, known := contract.Lookup(s)
	return known || s == span.Unknown
}

func tier(s string) bool {
	return slices.ContainsFunc([]optionsv1.Tier{optionsv1.Tier_TIER_READ, optionsv1.Tier_TIER_WRITE, optionsv1.Tier_TIER_DESTRUCTIVE},
		func(t optionsv1.Tier) bool { return contract.TierName(t) == s })
}

func status(s string) bool {
	return slices.Contains(answers, s) || isCode(s)
}

func isCode(s string) bool {
	n, known := callv1.Code_value["CODE_"+s]
	return known && fault.CodeName(callv1.Code(n)) == s
}

func role(s string) bool {
	r, err := identity.ParseRole(s)
	return err == nil && r != optionsv1.Role_ROLE_UNSPECIFIED
}

// name returns a span's name if it is one of ours: an RPC of the contract, an MCP method with or without a tool, or one of
// package span.
func (v *vocabulary) name(s string) string {
	method, tool, _ := strings.Cut(s, " ")
	switch {
	case slices.Contains(span.Names(), s), rpcMethod(s), v.method(s), v.method(method) && v.tool(tool):
		return s
	default:
		return span.Unknown
	}
}

// rpcMethod reports whether "durward.vault.v1.SessionService/OpenSession" is a method of a contract that is linked.
func rpcMethod(s string) bool {
	service, method, ok := strings.Cut(s, "/")
	if !ok {
		return false
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return false
	}
	_, ok = d.(protoreflect.MethodDescriptor)
	return ok
}

// filter keeps the attributes whose key is known and whose value is in the key's set.
func (v *vocabulary) filter(attributes []attribute.KeyValue) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(attributes))
	for _, a := range attributes {
		if a.Key == span.Records && a.Value.Type() == attribute.INT64 {
			out = append(out, a)
			continue
		}
		if valid := v.values[a.Key]; valid != nil && a.Value.Type() == attribute.STRING && valid(a.Value.AsString()) {
			out = append(out, a)
		}
	}
	return out
}

// public is a span as it leaves the process. What it does not override is identifiers, times and the kind.
type public struct {
	sdktrace.ReadOnlySpan
	name       string
	attributes []attribute.KeyValue
}

// clean returns a span without anything that is not in the vocabulary.
func (v *vocabulary) clean(s sdktrace.ReadOnlySpan) public {
	return public{ReadOnlySpan: s, name: v.name(s.Name()), attributes: v.admit(s.Attributes())}
}

// Name implements sdktrace.ReadOnlySpan, as do the others.
func (p public) Name() string                     { return p.name }
func (p public) Attributes() []attribute.KeyValue { return p.attributes }

// Events are none: they would be errors' texts.
func (public) Events() []sdktrace.Event { return nil }

// Status keeps the code and drops the description.
func (p public) Status() sdktrace.Status { return sdktrace.Status{Code: p.ReadOnlySpan.Status().Code} }

// Links keep who they point to.
func (p public) Links() []sdktrace.Link {
	var out []sdktrace.Link
	for _, l := range p.ReadOnlySpan.Links() {
		out = append(out, sdktrace.Link{SpanContext: l.SpanContext})
	}
	return out
}
