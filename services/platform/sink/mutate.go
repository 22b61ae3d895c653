package sink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// answer is how a call ended: what the first caller and every later one are told. It has a response or an error.
type answer struct {
	response proto.Message
	err      error
	// outcome is nil for a call that was refused before anything was spent.
	outcome *callv1.Outcome
}

// execution is one spend key on its way; later calls with the same key wait for it.
type execution struct {
	tool   string
	digest []byte
	done   chan struct{}
	answer answer
}

// mutate lets a call have its effect at most once.
func (a *Authority) mutate(ctx context.Context, c *call, handler grpc.UnaryHandler) (any, error) {
	raw, err := header(ctx, rpc.MetadataGrant)
	if err == nil && raw == nil {
		if !grantRequired() {
			return handler(ungranted(ctx), c.request)
		}
		err = errors.New("a change without a grant")
	}
	if err != nil {
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
	}
	if err := a.acceptGrant(ctx, c, raw); err != nil {
		return nil, err
	}
	c.key = spendKey(c.grant)
	f, first := a.join(c)
	if f == nil {
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New("the spend key is in use for another call"))
	}
	if first {
		// From here on the caller only waits: hanging up neither hurries nor undoes what was begun.
		go func() {
			defer a.acting.Done()
			f.answer = a.execute(context.WithoutCancel(ctx), ctx, c, handler)
			a.finish(c.key, f)
		}()
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	got := f.answer
	if got.outcome != nil {
		if !first {
			got.outcome = proto.CloneOf(got.outcome)
			got.outcome.Replayed = true
		}
		rpc.SetOutcome(ctx, got.outcome)
	}
	return got.response, got.err
}

// join returns the execution of the key and whether the call is its first; nil if the execution is for another call.
func (a *Authority) join(c *call) (*execution, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f, ok := a.executions[c.key]; ok {
		if f.tool != c.tool.Name || !bytes.Equal(f.digest, c.grant.GetArgumentsDigest()) {
			return nil, false
		}
		return f, false
	}
	f := &execution{tool: c.tool.Name, digest: c.grant.GetArgumentsDigest(), done: make(chan struct{})}
	a.executions[c.key] = f
	a.acting.Add(1)
	return f, true
}

func (a *Authority) finish(key string, f *execution) {
	a.mu.Lock()
	delete(a.executions, key)
	a.mu.Unlock()
	close(f.done)
}

// execute takes a verified grant to its outcome. ctx outlives the caller, whose own context only says whether anybody still
// waits.
func (a *Authority) execute(ctx, caller context.Context, c *call, handler grpc.UnaryHandler) (ended answer) {
	// No caller's arguments may end the process. What panics once the key is given away does: its next start finds out what was done.
	untouched := true
	defer func() {
		if untouched {
			if p := recover(); p != nil {
				ended = answer{err: a.panicked(ctx, c, p)}
			}
		}
	}()
	known, err := a.cfg.Store.Lookup(ctx, c.key)
	if err != nil {
		return answer{err: a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)}
	}
	if known != nil {
		return a.replay(ctx, c, known)
	}
	use, err := a.verifyApproval(ctx, c)
	if err != nil {
		return answer{err: err}
	}
	if err := a.judgeDesktop(ctx, c); err != nil {
		return answer{err: err}
	}
	if err := caller.Err(); err != nil {
		return answer{err: err}
	}
	if err := a.Compare(ctx); err != nil {
		return answer{err: a.refuse(ctx, c, callv1.Code_CODE_AUDIT_UNAVAILABLE, fmt.Errorf("the state is not held against the log yet: %w", err))}
	}
	if a.cfg.Witnessed != nil && !c.tool.Relieves {
		if err := a.cfg.Witnessed(); err != nil {
			return answer{err: a.refuseWith(ctx, c, fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, sayUnwitnessed, fault.WithCause(err)))}
		}
	}
	c.fence = a.fence.Load()
	untouched = false
	if err := a.redeem(ctx, c); err != nil {
		if fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) {
			a.release(ctx, c)
		}
		return answer{err: err}
	}
	if err := a.spend(ctx, c, use); err != nil {
		return answer{err: err}
	}
	return a.act(ctx, c, handler)
}

// release tells the vault that a key which it spent, and which was never spent here, will have no outcome: the answer to
// its redemption was lost.
func (a *Authority) release(ctx context.Context, c *call) {
	if err := a.settle(ctx, c.grant.GetOperationId(), c.grant.GetUse(), false); err != nil {
		a.cfg.Logger.WarnContext(ctx, "the vault could not be told of a lost redemption", "operation", c.grant.GetOperationId(), "error", err)
	}
}

// replay answers a key that was spent before. It has no effect.
func (a *Authority) replay(ctx context.Context, c *call, e *Entry) answer {
	if e.Tool != c.tool.Name || !bytes.Equal(e.ArgumentsDigest, c.grant.GetArgumentsDigest()) {
		return answer{err: a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New("the spend key was used for another call"))}
	}
	outcome := &callv1.Outcome{}
	if err := proto.Unmarshal(e.Outcome, outcome); err != nil {
		return answer{err: a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)}
	}
	outcome.Replayed, outcome.OperationId = true, e.Operation
	switch e.State {
	case StateNotActed:
		return answer{err: a.refuse(ctx, c, callv1.Code_CODE_ALREADY_SPENT, errors.New("spent but not acted")), outcome: outcome}
	case StateUnknown, StateSpent:
		f := fault.New(callv1.Code_CODE_UNKNOWN_OUTCOME, sayUnknown)
		if e.Found != "" {
			f.Message = foundSentence(e.Found)
			outcome.Summary = f.Message
		}
		return answer{err: f, outcome: outcome}
	}
	if len(e.Fault) > 0 {
		f := &callv1.Fault{}
		if err := proto.Unmarshal(e.Fault, f); err != nil {
			return answer{err: a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)}
		}
		return answer{err: fault.FromProto(f, nil), outcome: outcome}
	}
	response := c.tool.NewResponse()
	if err := proto.Unmarshal(e.Response, response); err != nil {
		return answer{err: a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)}
	}
	return answer{response: response, outcome: outcome}
}

// verifyApproval checks what the call acts on and what a human said to it. It returns the statement's use, nil for what runs
// unattended.
func (a *Authority) verifyApproval(ctx context.Context, c *call) (*Use, error) {
	subject, err := c.subjects.Subject(ctx, c.tool, c.request)
	if err != nil {
		return nil, a.refuseWith(ctx, c, fault.From(err))
	}
	c.subject = sha256.Sum256(subject.GetEntry())
	if len(c.grant.GetSubjectDigest()) > 0 && !subjectMatches(c.grant.GetSubjectDigest(), c.subject[:]) {
		return nil, a.refuse(ctx, c, callv1.Code_CODE_CONFLICT, errors.New("the subject is not what the grant names"))
	}
	arguments, err := c.canonical()
	if err != nil {
		return nil, a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)
	}
	c.unattended = len(c.grant.GetStatements()) == 0 && a.unattended(c, arguments)
	if c.unattended && flagged(c.grant, "").GetDangerous() {
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, errFlag)
	}
	if !statementRequired(c.unattended) {
		return nil, nil
	}
	return a.human(ctx, c, arguments)
}

// spend writes down, in one transaction, that this call is going to act.
func (a *Authority) spend(ctx context.Context, c *call, use *Use) error {
	if haltHolds(a.Control().Halted) {
		a.release(ctx, c)
		return a.refuse(ctx, c, callv1.Code_CODE_HALTED, errors.New("halted while the vault redeemed"))
	}
	now := a.cfg.Now()
	var full *fault.Error // a store that has no room says so in its own words
	err := a.cfg.Store.Spend(ctx, &Spend{
		Key:             c.key,
		Operation:       c.grant.GetOperationId(),
		Use:             c.grant.GetUse(),
		Tool:            c.tool.Name,
		Arguments:       c.arguments(),
		ArgumentsDigest: c.grant.GetArgumentsDigest(),
		RequestID:       c.requestID,
		Principal:       c.who.principal,
		Session:         c.who.session,
		Channel:         c.who.channel,
		Dangerous:       c.grant.GetDangerous(),
		At:              now,
		Until:           now.Add(outcomeRetention),
		Statement:       use,
	})
	if err == nil {
		return nil
	}
	a.release(ctx, c)
	switch {
	case errors.Is(err, ErrSpent), errors.Is(err, ErrUsedUp):
		return a.refuse(ctx, c, callv1.Code_CODE_ALREADY_SPENT, err)
	case errors.As(err, &full):
		return a.refuseWith(ctx, c, full)
	default:
		return a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)
	}
}

// act records the intent, lets the handler act, and records and keeps the outcome.
func (a *Authority) act(ctx context.Context, c *call, handler grpc.UnaryHandler) answer {
	intent := a.record(auditv1.Kind_KIND_INTENT, auditv1.Status_STATUS_PENDING, c)
	intent.Body.Summary = "about to run"
	intent.Body.Statement = c.statement
	leaving, end := a.untilHalt(ctx, c)
	defer end()
	receipt, err := recordNow(ctx, intent, a.cfg.Recorder.Record)
	outcome := &callv1.Outcome{OperationId: c.grant.GetOperationId(), Receipt: receipt}
	if err != nil && intentRequired() {
		return a.notActed(ctx, c, outcome, callv1.Code_CODE_AUDIT_UNAVAILABLE, err)
	}

	if haltHolds(a.Control().Halted) {
		return a.notActed(ctx, c, outcome, callv1.Code_CODE_HALTED, errors.New("halted while the intent was recorded"))
	}

	request, err := a.deliver(ctx, c)
	if err != nil {
		f := fault.From(err)
		return a.notActed(ctx, c, outcome, f.Code, f)
	}
	n := &notes{call: c, operation: c.grant.GetOperationId(), signed: c.signedGrant, subject: c.subject[:]}
	n.proceed = func(begin func()) error { return a.proceed(c, begin) }
	n.confirm = func(ctx context.Context, late bool, begin func()) error { return a.confirm(ctx, c, n, late, begin) }
	began := a.cfg.Now()
	response, err := a.run(context.WithValue(leaving, notesKey{}, n), c, request, handler)
	took := a.cfg.Now().Sub(began)
	halted := err != nil && errors.Is(context.Cause(leaving), errHalted)
	switch refused := (*refusal)(nil); {
	case halted && !n.begun: // whatever the handler waited for says of the end of its context
		return a.notActed(ctx, c, outcome, callv1.Code_CODE_HALTED, err)
	case errors.As(err, &refused) && !n.begun:
		return a.notActed(ctx, c, outcome, refused.code, refused.cause)
	case halted:
		err = fault.New(callv1.Code_CODE_HALTED, sayCutOff, fault.WithCause(err))
	case err == nil && !n.begun:
		// Whatever it did, nobody looked whether it still might.
		a.cfg.Logger.ErrorContext(ctx, "A TOOL'S HANDLER NEVER CONFIRMED ITS CHANGE: this is a fault in the program; its answer is withheld",
			"tool", c.tool.Name, "operation", c.grant.GetOperationId())
		err = fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errUnconfirmed))
	}

	c.kept = true
	if err == nil {
		response = a.tokeniseDone(ctx, c, n, response)
	} else {
		err = a.tokeniseFault(ctx, c, err)
	}
	result := &Result{State: StateDone, OK: err == nil && !n.failed}
	record := a.record(auditv1.Kind_KIND_OUTCOME, auditv1.Status_STATUS_OK, c)
	record.Body.DurationMs = milliseconds(took)
	n.note(record)
	if err != nil {
		f := fault.From(err)
		record.Status = failed(f)
		record.Body.Summary = clean.Line(f.Message, 500)
		record.Body.Reason = fault.CodeName(f.Code)
		outcome.Summary = record.Body.Summary
		if result.Fault, err = proto.Marshal(f.Proto(c.requestID)); err != nil {
			a.cfg.Logger.ErrorContext(ctx, "a failure could not be kept", "tool", c.tool.Name, "error", err)
		}
		response, err = nil, f
	} else {
		record.Body.Summary, outcome.Summary, outcome.Warnings, outcome.Overrides = n.summary, n.summary, n.warnings, n.overrides
		record.Body.ResultDigest, result.Response = a.digest(ctx, c, response)
		if n.failed {
			record.Status, record.Body.Reason, outcome.Failed = auditv1.Status_STATUS_ERROR, fault.CodeName(callv1.Code_CODE_FAILED), true
		}
	}
	// What was done is done: the record of it may wait, and then the reply says so.
	later, rerr := recordNow(ctx, record, a.cfg.Recorder.Report)
	switch {
	case rerr != nil:
		a.cfg.Logger.ErrorContext(ctx, "an outcome could not be recorded yet", "tool", c.tool.Name, "operation", c.grant.GetOperationId(), "error", rerr)
		fallthrough
	case later == nil:
		outcome.Warnings = append(outcome.Warnings, "the audit log could not be reached; how the call ended is recorded later")
	default:
		outcome.Receipt = later
	}
	a.complete(ctx, c, result, outcome)
	return answer{response: response, err: err, outcome: outcome}
}

// notActed ends a call that was spent and is not carried out. Its intent is in the log, or may reach it yet, so the log is
// told, however late, that nothing was done.
func (a *Authority) notActed(ctx context.Context, c *call, outcome *callv1.Outcome, code callv1.Code, cause error) answer {
	a.keep(ctx, c, &Result{State: StateNotActed}, outcome)
	a.settleLater() // audit hangs; the vault may hang with it, and the caller should not
	f := newFault(code, cause)
	record := a.refusal(c, f)
	record.Body.Reason = clean.Line("spent but not acted: "+cause.Error(), 500)
	a.acting.Go(func() {
		if _, err := a.cfg.Recorder.Report(ctx, record); err != nil {
			a.cfg.Logger.ErrorContext(ctx, "that nothing was done could not be recorded yet", "tool", c.tool.Name, "error", err)
		}
	})
	return answer{err: f, outcome: outcome}
}

// recordNow bounds how long an effect waits for the log; how is one of the Recorder's ways.
func recordNow(ctx context.Context, record *auditv1.Record, how func(context.Context, *auditv1.Record) (*callv1.Receipt, error)) (*callv1.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	return how(ctx, record)
}

// failed is how records say that a call ended which failed.
func failed(f *fault.Error) auditv1.Status {
	if f.Code == callv1.Code_CODE_TIMEOUT {
		return auditv1.Status_STATUS_TIMEOUT
	}
	return auditv1.Status_STATUS_ERROR
}

// milliseconds is a duration as records hold it.
func milliseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), 1<<32-1))
}

// run calls the handler. A panic in it is a failure whose effect is not known to the caller but is over.
func (a *Authority) run(ctx context.Context, c *call, request proto.Message, handler grpc.UnaryHandler) (response proto.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			response, err = nil, a.panicked(ctx, c, p)
		}
	}()
	got, err := handler(ctx, request)
	if err != nil {
		return nil, err
	}
	response, ok := got.(proto.Message)
	if !ok {
		return nil, errors.New("a tool's response is not a message")
	}
	return response, nil
}

// panicked logs what panicked in a deferred function's recovery, and returns what the caller is told.
func (a *Authority) panicked(ctx context.Context, c *call, p any) error {
	a.cfg.Logger.ErrorContext(ctx, "a tool's call panicked", "tool", c.tool.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	return fault.New(callv1.Code_CODE_INTERNAL, fault.Internal)
}

// digest returns SHA-256 of the response's RFC 8785 form, and the wire form of what is kept of it for a replay.
func (a *Authority) digest(ctx context.Context, c *call, response proto.Message) (digest, wire []byte) {
	wire, err := proto.Marshal(contract.Kept(response))
	if err == nil {
		var form []byte
		if form, err = contract.Canonical(response); err == nil {
			sum := contract.Digest(form)
			return sum[:], wire
		}
	}
	a.cfg.Logger.ErrorContext(ctx, "a result could not be kept", "tool", c.tool.Name, "error", err)
	return nil, wire
}

// keep writes down how the call ended, and reports whether it could.
func (a *Authority) keep(ctx context.Context, c *call, r *Result, outcome *callv1.Outcome) bool {
	var err error
	if r.Outcome, err = proto.Marshal(outcome); err == nil {
		err = a.cfg.Store.Finish(ctx, c.key, r)
	}
	if err != nil {
		// The key stays spent; a restart will find it interrupted.
		a.cfg.Logger.ErrorContext(ctx, "an outcome could not be kept", "tool", c.tool.Name, "operation", c.grant.GetOperationId(), "error", err)
	}
	return err == nil
}

// complete keeps the outcome and tells the vault, side by side: the vault knows before the reply if it is quick to hear. It is told from here, so
// that its message is on the way when the store waits for the disk; the other way round it left after that.
func (a *Authority) complete(ctx context.Context, c *call, r *Result, outcome *callv1.Outcome) {
	var keeping sync.WaitGroup
	var kept bool
	keeping.Go(func() { kept = a.keep(ctx, c, r, outcome) })
	soon, cancel := context.WithTimeout(ctx, settleWait)
	untold := a.settle(soon, c.grant.GetOperationId(), c.grant.GetUse(), r.OK)
	cancel()
	keeping.Wait()
	switch {
	case untold != nil:
		a.settleLater()
	case kept: // else it is for a restart to find
		a.heard(c.key)
	}
}

// settleLater wakes Run.
func (a *Authority) settleLater() {
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}
