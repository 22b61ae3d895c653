package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/picture"
)

// answer is an envelope with what goes into the reply's _meta beside it.
type answer struct {
	*envelope.Envelope
	receipt *callv1.Receipt
	// proof names the proof that the request lacked.
	proof string
	// dangerous is until when the session is in dangerous mode; zero: it is not.
	dangerous time.Time
	// pictures are a server's, which no envelope holds.
	pictures []mcp.Content
	// over: the operation has ended with this answer, whatever it says of asking again.
	over bool
	// fault is for the log.
	fault *fault.Error
	// form is how the envelope is written but for its request id; nil where nobody remembers.
	form *form
}

// done makes the envelope of a sink's answer, which it leaves as it is: callers that were joined share one.
func done(call *httpfront.Call, t contract.Tool, reply relay.Reply, id string) (answer, error) {
	response := proto.Clone(reply.Response)
	simulated, _ := response.(*executorv1.SimulateModeResponse)
	barred := simulated.GetNext() != nil && !call.Session.May(simulated.GetNext().GetTool())
	if barred {
		simulated.Next = nil // nothing is named that the client may not call
	}
	render := envelope.Result
	var pictures []mcp.Content
	answered, foreign := response.(*egressv1.CallServerToolResponse)
	if foreign {
		render, pictures = envelope.ServerResult, picturesOf(answered)
	}
	result, err := render(response)
	if err != nil {
		return answer{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(err))
	}
	out := &envelope.Envelope{
		Status:      envelope.OK,
		Summary:     clean.Line(reply.Outcome.GetSummary(), maxSummary),
		RequestID:   call.RequestID,
		OperationID: id,
		Result:      result,
		Replayed:    reply.Outcome.GetReplayed(),
	}
	out.Summary = cmp.Or(out.Summary, t.Title+": done.")
	if reply.Outcome.GetFailed() || foreign && answered.GetFailed() {
		// It was done and did not go well; the result says how.
		failure := envelope.Fault(call.RequestID, fault.New(callv1.Code_CODE_FAILED, out.Summary))
		out.Status, out.Error = failure.Status, failure.Error
	}
	out.Warnings = shortLines(reply.Outcome.GetWarnings())
	if overrides := shortLines(reply.Outcome.GetOverrides()); len(overrides) > 0 {
		out.Override(overrides)
	}
	if barred {
		out.Warnings = append(out.Warnings, "This client may not carry this out: tell the user what it would do. The operator can do it, or let this client ask for it.")
	}
	if config, ok := reply.Response.(*vaultv1.SecurityConfigResponse); ok {
		call.Session.Lower(config.GetTierCeiling())
	}
	return answer{Envelope: out, receipt: reply.Outcome.GetReceipt(), pictures: pictures}, nil
}

// picturesOf returns the pictures of a server's result. Egress has checked them; nothing is believed because of it.
func picturesOf(r *egressv1.CallServerToolResponse) (out []mcp.Content) {
	for _, c := range r.GetContent() {
		if len(c.GetData()) > 0 && len(out) < picture.Most && picture.Check(c.GetMediaType(), c.GetData()) == nil {
			out = append(out, &mcp.ImageContent{MIMEType: c.GetMediaType(), Data: c.GetData()})
		}
	}
	return out
}

// shortLines returns what a sink says beside a result, bounded.
func shortLines(texts []string) []string {
	var out []string
	for _, text := range texts[:min(len(texts), maxWarnings)] {
		out = append(out, clean.Line(text, maxSummary))
	}
	return out
}

// failed makes the answer of an error.
func failed(call *httpfront.Call, t tool, err error) answer {
	f := fault.From(err)
	forget(call, f)
	out := answer{Envelope: envelope.Fault(call.RequestID, f), fault: f}
	switch f.Code {
	case callv1.Code_CODE_DENIED:
		out.Envelope = envelope.Unavailable(call.RequestID, call.Session.Tools()) // denials look alike
	case callv1.Code_CODE_PROOF_REQUIRED:
		otherwise := callv1.Proof_PURPOSE_RENEW
		if !t.ByPermit() {
			otherwise = callv1.Proof_PURPOSE_CALL
		}
		out.proof = proofNeeded(err, otherwise)
	default: // the envelope says it all
	}
	return out
}

// proofNeeded names the proof that a request lacked, by what the relay says, or else the other one.
func proofNeeded(err error, otherwise callv1.Proof_Purpose) string {
	if needed, ok := errors.AsType[relay.ProofNeeded](err); ok {
		return contract.WordOf(needed.Purpose)
	}
	return contract.WordOf(otherwise)
}

// recordRefused writes down an input that never reached a decision.
func (s *Server) recordRefused(ctx context.Context, call *httpfront.Call, t tool, err error) {
	f := fault.From(err)
	s.conf.Metrics.Refused("arguments")
	s.conf.Refusals.Record(ctx, refusal.Event{
		RequestID: call.RequestID, Code: f.Code, Reason: "arguments", Principal: call.Session.Principal(), Session: call.Session.Ref(),
		Tool: t.Name, Tier: t.Tier, Field: f.Field,
	})
}

// banner puts dangerous mode in front of an answer of a session that is in it, as the vault says at this moment.
func (s *Server) banner(call *httpfront.Call, out answer) answer {
	until, ok := s.conf.Relay.Dangerous(call.Session)
	if !ok {
		return out
	}
	out.Envelope, out.dangerous, out.form = out.Dangerous(until), until, nil
	return out
}

// final returns an answer as this client gets it: without a call that is not for it, and with the banner of dangerous mode.
func (s *Server) final(call *httpfront.Call, out answer) answer {
	if out.Next != nil && !call.Session.May(out.Next.Tool) {
		without := *out.Envelope
		without.Next = nil
		out.Envelope = &without
	}
	return s.banner(call, out)
}

// result writes an envelope as text and as structured content, byte for byte the same JSON, and a server's pictures after it.
func (s *Server) result(ctx context.Context, call *httpfront.Call, out answer) (*mcp.CallToolResult, error) {
	out = s.final(call, out)
	raw, err := out.JSON()
	if err != nil {
		s.conf.Logger.ErrorContext(ctx, "encode an answer", "error", err)
		return nil, internalError(call)
	}
	return &mcp.CallToolResult{
		Meta:              metaOf(call, out),
		Content:           append([]mcp.Content{&mcp.TextContent{Text: string(raw)}}, out.pictures...),
		StructuredContent: json.RawMessage(raw),
		IsError:           out.IsError(),
	}, nil
}

// metaOf is what a reply's _meta says beside an answer.
func metaOf(call *httpfront.Call, out answer) mcp.Meta {
	meta := mcp.Meta{metaRequestID: call.RequestID}
	if out.OperationID != "" {
		meta[metaOperationID] = out.OperationID
	}
	if out.receipt != nil {
		meta[metaReceipt] = logproof.NewReceipt(out.receipt)
	}
	if call.Session.KeyBound() {
		meta[metaSession] = call.Session.Ref()
	}
	if !out.dangerous.IsZero() {
		meta[metaDangerous] = envelope.Time(out.dangerous)
	}
	if out.proof != "" {
		meta[metaProofNeeded] = out.proof
	}
	return meta
}
