package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/telemetry/span"
)

// maxSummary and maxWarnings bound what a sink says about a call.
const (
	maxSummary  = 500
	maxWarnings = 20
)

// patience is how long a wait goes on while the vault is away.
const patience = 2 * time.Second

// bounds say how long a call is held.
type bounds struct {
	// decided is until when it waits for a human, done until when for what was approved.
	decided, done time.Time
}

// held returns the bounds of a call that is held for its answer.
func (s *Server) held(began time.Time) bounds {
	return bounds{decided: began.Add(s.conf.Hold), done: began.Add(min(s.conf.Hold+runGrace, LongestHold))}
}

// call serves one tools/call of a tool that exists. It never returns an error: whatever happens is an envelope.
func (s *Server) call(ctx context.Context, req *mcp.CallToolRequest, t tool) (*mcp.CallToolResult, error) {
	call := callOf(req)
	out := s.answer(ctx, call, t, func(until bounds) (answer, error) { return s.limited(ctx, req, call, t, until) })
	s.leaveTask(ctx, call, t, out)
	return s.result(ctx, call, out)
}

// answer carries one call out, and counts and logs it. A read from a snapshot that went well has its line at the level debug: it is in
// the audit log already, and a line would be a fourteenth of what it takes the gateway.
func (s *Server) answer(ctx context.Context, call *httpfront.Call, t tool, carryOut func(until bounds) (answer, error)) answer {
	began := time.Now()
	answered := call.Seen.Call(t.Name)
	until := s.held(began)
	if takesTasks(call, t) {
		until = s.heldAsTask(began)
	}
	out, err := carryOut(until)
	if err != nil {
		out = failed(call, t, err)
	}
	level := slog.LevelInfo
	if t.Snapshot && out.Status == envelope.OK {
		level = slog.LevelDebug
	}
	if s.conf.Logger.Enabled(ctx, level) {
		attributes := []any{"tool", t.Name, "principal", call.Session.Principal(), "session", call.Session.Ref(),
			"status", string(out.Status), "operation", out.OperationID, "duration_ms", time.Since(began).Milliseconds()}
		if out.fault != nil {
			attributes = append(attributes, "fault", out.fault)
		}
		s.conf.Logger.Log(ctx, level, "tool call", attributes...)
	}
	answered(string(out.Status))
	return out
}

// unknownTool answers like a denial of policy (ACL-3).
func (s *Server) unknownTool(ctx context.Context, call *httpfront.Call) (mcp.Result, error) {
	call.Seen.Call(span.Unknown)(string(envelope.Denied))
	s.conf.Metrics.Refused("unknown tool")
	s.conf.Logger.InfoContext(ctx, "unknown tool", "principal", call.Session.Principal(), "session", call.Session.Ref())
	s.conf.Refusals.Record(ctx, refusal.Event{
		RequestID: call.RequestID, Code: callv1.Code_CODE_DENIED, Reason: "unknown tool",
		Principal: call.Session.Principal(), Session: call.Session.Ref(),
	})
	result, err := s.result(ctx, call, answer{Envelope: envelope.Unavailable(call.RequestID, call.Session.Tools())})
	if err != nil || call.Era == httpfront.Stateful {
		return result, err
	}
	return completed{result}, nil
}

// enter takes one of the principal's slots for the call; leave gives it back.
func (s *Server) enter(call *httpfront.Call) (leave func(), err error) {
	if !call.Enter() {
		s.conf.Metrics.Refused("limit: calls")
		return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded", fault.WithRetry(time.Second))
	}
	return call.Leave, nil
}

// limited holds one of the principal's slots for the call.
func (s *Server) limited(ctx context.Context, req *mcp.CallToolRequest, call *httpfront.Call, t tool, until bounds) (answer, error) {
	leave, err := s.enter(call)
	if err != nil {
		return answer{}, err
	}
	defer leave()
	request, reason, err := t.decode(req.Params.Arguments, fromMessages(call))
	if err != nil {
		s.recordRefused(ctx, call, t, err)
		return answer{}, err
	}
	if err := s.screened(ctx, call, t, req.Params.Arguments); err != nil {
		return answer{}, err
	}
	switch {
	case t.FullMethod == vaultv1.ToolService_WaitOperation_FullMethodName:
		return s.waitOperation(ctx, req, call, request, until)
	case t.ByPermit():
		return s.read(ctx, req, call, t, request, until)
	default:
		return s.ask(ctx, req, call, t, request, reason, until)
	}
}

// read calls a READ tool under the session's permit, or asks for leave to make this one call if the permit is not for the tool, or not
// any more: policy may count, limit or ask about what only looks, too.
func (s *Server) read(ctx context.Context, req *mcp.CallToolRequest, call *httpfront.Call, t tool, request proto.Message, until bounds) (answer, error) {
	covers := func() (bool, error) { return s.conf.Relay.Covers(ctx, call.Session, call.Caller, t.Tool) }
	covered, err := covers()
	if fault.Is(err, callv1.Code_CODE_PROOF_REQUIRED) && call.Caller.Proof.GetPurpose() == callv1.Proof_PURPOSE_CALL {
		err = nil // the proof is for this very call, and renews no permit
	}
	if err != nil {
		return answer{}, err
	}
	if !covered {
		return s.ask(ctx, req, call, t, request, "", until)
	}
	reply, err := s.conf.Relay.Read(ctx, call.Session, call.Caller, t.Tool, request)
	if fault.Is(err, callv1.Code_CODE_DENIED) {
		if still, _ := covers(); !still {
			return s.ask(ctx, req, call, t, request, "", until) // it was the permit that was too old
		}
	}
	if err != nil {
		return answer{}, err
	}
	if t.Snapshot {
		return s.written.done(call, t.Tool, reply)
	}
	return done(call, t.Tool, reply, "")
}

// decode checks arguments against the contract, and takes the agent's reason out of them first. A reason that is too long is
// refused, or cut if the caller wants that.
func (t tool) decode(raw json.RawMessage, cut bool) (proto.Message, string, error) {
	var reason string
	if t.TakesReason() {
		var err error
		if raw, reason, err = splitReason(raw); err != nil {
			return nil, "", err
		}
		if !cut && utf8.RuneCountInString(reason) > maxReason {
			return nil, "", fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "reason is too long, the most is 1000", fault.WithField(contract.ReasonArgument))
		}
		reason = clean.Block(reason, maxReason)
	}
	m, err := t.Decode(raw)
	return m, reason, err
}

// splitReason takes the member "reason" out of an object, if it is there, as it was sent. Its input was scanned: keys are unique.
func splitReason(raw json.RawMessage) (rest json.RawMessage, reason string, err error) {
	invalid := func(sentence string) error {
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, sentence, fault.WithField(contract.ReasonArgument))
	}
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != jsontext.KindBeginObject {
		return raw, "", nil // the contract says what is wrong with it
	}
	out := append(make([]byte, 0, len(raw)), '{')
	for dec.PeekKind() == jsontext.KindString {
		key, err := dec.ReadValue()
		if err != nil {
			return nil, "", invalid("the arguments are not well-formed JSON")
		}
		key = bytes.Clone(key) // the decoder's buffer is its own
		value, err := dec.ReadValue()
		if err != nil {
			return nil, "", invalid("the arguments are not well-formed JSON")
		}
		if name, err := jsontext.AppendUnquote(nil, key); err == nil && string(name) == contract.ReasonArgument {
			text, err := jsontext.AppendUnquote(nil, value)
			if err != nil || value.Kind() != jsontext.KindString {
				return nil, "", invalid("reason must be a string")
			}
			reason = string(text)
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	return append(out, '}'), reason, nil
}

// ask asks the vault for leave to make one call, waits for a human within bounds, and carries the call out.
func (s *Server) ask(ctx context.Context, req *mcp.CallToolRequest, call *httpfront.Call, t tool, request proto.Message, reason string, until bounds) (answer, error) {
	arguments, err := contract.Canonical(request)
	if err != nil {
		return answer{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(err))
	}
	deciding, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	ctx = telling(ctx, req)
	looking, looked := context.WithTimeout(deciding, lookTimeout)
	defer looked()
	if err := s.look(looking, call, t, request); err != nil {
		s.recordRefused(ctx, call, t, err)
		return answer{}, err
	}
	stale := s.conf.Relay.Stale(looking, call.Session, call.Caller, request)
	decision, err := s.conf.Relay.Authorise(deciding, call.Session, call.Caller, t.Tool, arguments, reason, stale != nil)
	if err != nil {
		if stale != nil && fault.Is(err, callv1.Code_CODE_CONFLICT) {
			err = stale
		}
		return answer{}, err
	}
	id := decision.GetOperationId()
	switch decision.GetDecision() {
	case vaultv1.AuthoriseResponse_DECISION_GRANTED:
		if referred := decision.GetArguments(); referred != nil {
			if request, err = t.Decode(referred); err != nil {
				return answer{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(err))
			}
		}
		if t.Tier == optionsv1.Tier_TIER_READ {
			// The one call that the grant is for: there is no operation to come back to.
			reply, err := s.conf.Relay.ReadOnce(ctx, t.Tool, request, decision.GetGrant())
			if err != nil {
				return answer{}, err
			}
			return done(call, t.Tool, reply, "")
		}
		return s.run(ctx, call, t.Tool, request, id, decision.GetGrant(), until)
	case vaultv1.AuthoriseResponse_DECISION_PENDING:
		return s.settle(ctx, call, id, decision.GetExpiresAt().AsTime(), until)
	case vaultv1.AuthoriseResponse_DECISION_DENIED:
		if why := clean.Line(decision.GetReason(), maxSummary); why != "" {
			return answer{Envelope: envelope.Forbidden(call.RequestID, why)}, nil
		}
		return answer{Envelope: envelope.Unavailable(call.RequestID, call.Session.Tools())}, nil
	default:
		return answer{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("decision %v", decision.GetDecision())))
	}
}

// waitOperation is the tool that an agent calls after pending_approval. Its answer is the original tool's.
func (s *Server) waitOperation(ctx context.Context, req *mcp.CallToolRequest, call *httpfront.Call, request proto.Message, until bounds) (answer, error) {
	wait, _ := request.(*vaultv1.WaitOperationRequest) // by the contract
	return s.settle(telling(ctx, req), call, wait.GetOperationId(), time.Time{}, until)
}

// settle waits for an operation within bounds, carries it out if a human approved it, and says how it stands.
func (s *Server) settle(ctx context.Context, call *httpfront.Call, id string, expires time.Time, until bounds) (answer, error) {
	state, err := s.await(ctx, call, id, until.decided)
	if err != nil {
		f := fault.From(err)
		if f.Code == callv1.Code_CODE_PROOF_REQUIRED && !expires.IsZero() {
			// It was asked for with the one proof that this request has. Waiting for it takes another, which wait_operation
			// brings; the same call signed again would get no further.
			return answer{Envelope: envelope.Pending(call.RequestID, id, expires)}, nil
		}
		if !f.Retryable || f.Code == callv1.Code_CODE_PROOF_REQUIRED {
			return answer{}, err
		}
		// The operation is still there: the agent can come back for it.
		out := envelope.Fault(call.RequestID, f)
		out.OperationID, out.Next = id, envelope.Pending(call.RequestID, id, expires).Next
		return answer{Envelope: out, fault: f}, nil
	}
	switch state.GetState() {
	case vaultv1.OperationState_OPERATION_STATE_PENDING:
		if at := state.GetExpiresAt(); at != nil {
			expires = at.AsTime()
		}
		return answer{Envelope: envelope.Pending(call.RequestID, id, expires)}, nil
	case vaultv1.OperationState_OPERATION_STATE_DENIED:
		return answer{Envelope: envelope.Rejected(call.RequestID, id, clean.Line(state.GetReason(), maxSummary))}, nil
	case vaultv1.OperationState_OPERATION_STATE_WITHDRAWN:
		return answer{Envelope: envelope.Withdrawn(call.RequestID, id)}, nil
	case vaultv1.OperationState_OPERATION_STATE_EXPIRED:
		why := fault.New(callv1.Code_CODE_EXPIRED, "nobody decided on the request in time, and nothing was done; ask again if it is still wanted")
		if state.GetHalted() {
			why = fault.New(callv1.Code_CODE_HALTED, "everything was halted, and nothing was done; ask again when that is over")
			why.Retryable = true
		}
		out := envelope.Fault(call.RequestID, why)
		out.OperationID = id
		return answer{Envelope: out, over: true}, nil
	case vaultv1.OperationState_OPERATION_STATE_APPROVED, vaultv1.OperationState_OPERATION_STATE_RUNNING, vaultv1.OperationState_OPERATION_STATE_DONE:
	default:
		return answer{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("operation state %v", state.GetState())))
	}
	switch {
	case state.GetGrant() != nil:
	case state.GetState() == vaultv1.OperationState_OPERATION_STATE_DONE:
		// What let it run is over, and no grant asks the sink any more how it went: waiting brings no result.
		out := envelope.Fault(call.RequestID, fault.New(callv1.Code_CODE_EXPIRED,
			"the operation was carried out and has ended, and its result can be had no more; look at what it was to change"))
		out.OperationID = id
		return answer{Envelope: out, over: true}, nil
	default:
		return answer{Envelope: envelope.StillRunning(call.RequestID, id)}, nil
	}
	t, ok := contract.Lookup(state.GetTool().GetName())
	if !ok || !bytes.Equal(t.DefinitionDigest[:], state.GetTool().GetDefinitionDigest()) {
		out := envelope.Fault(call.RequestID, fault.New(callv1.Code_CODE_CONFLICT, "the tool is not what it was when the human was asked; ask again"))
		out.OperationID = id
		return answer{Envelope: out}, nil
	}
	request, err := t.Decode(state.GetArguments())
	if err != nil {
		return answer{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(err))
	}
	return s.run(ctx, call, t, request, id, state.GetGrant(), until)
}

// await asks the vault where an operation stands until it no longer needs a human. When the hold is over, the client has
// left or the process stops, the answer is PENDING.
func (s *Server) await(ctx context.Context, call *httpfront.Call, id string, until time.Time) (*vaultv1.WaitOperationResponse, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	defer s.conf.Metrics.Wait()()
	defer s.watchClient(ctx, call, cancel)()
	pending := &vaultv1.WaitOperationResponse{State: vaultv1.OperationState_OPERATION_STATE_PENDING}
	var failing time.Time
	for {
		// The vault answers at the end of its own hold; a second more lets that answer arrive.
		attempt, stop := context.WithDeadline(context.WithoutCancel(ctx), until.Add(time.Second))
		unlink := context.AfterFunc(ctx, func() {
			if errors.Is(ctx.Err(), context.Canceled) {
				stop()
			}
		})
		state, err := s.conf.Relay.Wait(attempt, call.Session, call.Caller, id)
		unlink()
		stop()
		pause := 50 * time.Millisecond
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return pending, nil // nobody waits: an approval that came just now is for whoever asks next
		case err == nil && state.GetState() != vaultv1.OperationState_OPERATION_STATE_PENDING:
			return state, nil
		case err == nil:
			pending, failing = state, time.Time{}
		case ctx.Err() != nil:
		case fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || fault.Is(err, callv1.Code_CODE_TIMEOUT):
			if failing.IsZero() {
				failing = time.Now()
			}
			if time.Since(failing) > patience {
				return nil, err
			}
			pause = patience / 8
		default:
			return nil, err
		}
		if !clock.Sleep(ctx, pause) {
			return pending, nil
		}
	}
}

// run carries an operation out. A client that leaves, cancels or runs out of time does not stop it: the answer is then
// that it is running.
func (s *Server) run(ctx context.Context, call *httpfront.Call, t contract.Tool, request proto.Message, id string, grant *callv1.SignedGrant, until bounds) (answer, error) {
	waiting, cancel := context.WithDeadline(ctx, until.done)
	defer cancel()
	defer s.watchClient(waiting, call, cancel)()
	defer s.watchSteps(waiting, call, t, id)()
	reply, err := s.conf.Relay.Run(waiting, t, request, id, grant)
	switch {
	case errors.Is(err, relay.ErrRunning):
		return answer{Envelope: envelope.StillRunning(call.RequestID, id)}, nil
	case err != nil:
		f := fault.From(err)
		out := answer{Envelope: envelope.Fault(call.RequestID, f), fault: f, receipt: reply.Outcome.GetReceipt(), over: reply.Outcome != nil}
		out.OperationID, out.Next = id, nextAfter(f, request)
		return out, nil
	}
	return done(call, t, reply, id)
}
