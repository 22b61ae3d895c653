package sink

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// call is one call of a tool, or of what takes a tool's permit, on its way through.
type call struct {
	tool contract.Tool
	// method is the RPC's gRPC name where it is not the tool itself.
	method  string
	request proto.Message
	// form is what canonical returned, redacted what arguments returned.
	form, redacted []byte
	requestID      string
	caller         identity.ID
	began          time.Time
	// who is what a verified grant or permit says; empty before.
	who who
	// key names what the grant spends, beyond READ.
	key string
	// grant and statement are set once verified.
	grant     *callv1.Grant
	statement *callv1.HumanStatement
	// agreed is what the statement says; unattended: there is none, and this sink's own file lets the call run.
	agreed     *statement.Verified
	unattended bool
	// fence is the authority's, as it was before the grant was redeemed.
	fence uint64
	// subjects says what a call beyond READ acts on.
	subjects Subjects
	// redeemed is when the vault was asked to redeem the grant.
	redeemed time.Time
	// signedGrant and signedPermit are what the call came with, once verified: at most one of them.
	signedGrant  *callv1.SignedGrant
	signedPermit *callv1.SignedPermit
	// replaced is how many values of the answer became references.
	replaced int
	// kept: what the caller is told is kept, for everybody who asks again.
	kept bool
	// subject is the digest of what the call acts on, as it was when the statement was checked.
	subject [sha256.Size]byte
}

// rpc is the gRPC name of what was called.
func (c *call) rpc() string {
	if c.method != "" {
		return c.method
	}
	return c.tool.FullMethod
}

// who is for whom a call is made, by a verified grant or permit.
type who struct {
	principal, session string
	channel            callv1.Channel
	// dangerous: the session was in dangerous mode.
	dangerous bool
}

func (a *Authority) newCall(ctx context.Context, tool contract.Tool, request proto.Message) *call {
	caller, _ := rpc.Caller(ctx)
	return &call{tool: tool, request: request, requestID: rpc.RequestID(ctx), caller: caller, began: a.cfg.Now()}
}

// notes is where a handler leaves what the reply says beside its response.
type notes struct {
	call *call
	// details are for the record alone.
	details  map[string]string
	summary  string
	warnings []string
	// overrides are the settings that an argument changed for this call.
	overrides []string
	// confirm is nil in a handler that may change nothing. late: Late asks.
	confirm func(ctx context.Context, late bool, begin func()) error
	// proceed is confirm for a later step of the same change.
	proceed func(begin func()) error
	// begun: an effect was confirmed.
	begun bool
	// operation is the id of the operation that the call carries out; "" in a read.
	operation string
	// signed is the grant that it runs by; nil in a read.
	signed *callv1.SignedGrant
	// subject is the digest of what was approved; nil in a read.
	subject []byte
	// failed: the response tells of a failure.
	failed bool
	// around is what lies around the text from outside in the response.
	around string
	// cut makes the response as short as it is to be; nil: it is.
	cut func(proto.Message)
}

type notesKey struct{}

// noted is where the handler with this context leaves its notes; outside a tool's handler nobody reads them.
func noted(ctx context.Context) *notes {
	if n, ok := ctx.Value(notesKey{}).(*notes); ok {
		return n
	}
	return &notes{}
}

// Summarise sets the one line that says how the call went, from CATALOGUE text alone. Outside a tool's handler it does
// nothing.
func Summarise(ctx context.Context, line string) {
	noted(ctx).summary = clean.Line(line, 500)
}

// Warn adds a warning to the reply, from CATALOGUE text alone.
func Warn(ctx context.Context, line string) {
	n := noted(ctx)
	n.warnings = append(n.warnings, clean.Line(line, 500))
}

// Override says that an argument named …_override changed a human's setting for this call: the reply says so, with a warning, and
// the record. Both words come from our own text or from a number. Outside a tool's handler it does nothing.
func Override(ctx context.Context, setting, value string) {
	n, line := noted(ctx), clean.Line(setting+"="+value, 200)
	n.overrides = append(n.overrides, line)
	Warn(ctx, line+" for this call alone, by the argument "+setting+"_override; no setting was changed")
}

// Detail adds a word to the record of how the call ended, which no agent reads. Outside a tool's handler it does nothing.
func Detail(ctx context.Context, name, value string) {
	n := noted(ctx)
	if n.details == nil {
		n.details = map[string]string{}
	}
	n.details[name] = clean.Line(value, 500)
}

// note adds to the record of how a call ended what its handler said of it, and what it overrode.
func (n *notes) note(record *auditv1.Record) {
	maps.Copy(record.Body.Details, n.details)
	if len(n.overrides) > 0 {
		record.Body.Details["overrides"] = clean.Line(strings.Join(n.overrides, ", "), 500)
	}
}

// Fail says that the change was done and did not go well, and that the response tells how: it is recorded as an error, and the
// caller gets both. line is what went wrong, from CATALOGUE text alone.
func Fail(ctx context.Context, line string) {
	n := noted(ctx)
	n.summary, n.failed = clean.Line(line, 500), true
}

// Around tells what the text from outside in the response is a window on: that text, with some of what comes before and after. A
// secret of which the window shows a part can be told by that alone. It is looked through with the response, and never leaves.
func Around(ctx context.Context, text string) {
	noted(ctx).around = text
}

// Cut says how the response is made as short as it is to be. That is done when text from outside in it was looked through: half of a value
// looks like none. Outside a tool's handler it does nothing.
func Cut[M proto.Message](ctx context.Context, cut func(M)) {
	noted(ctx).cut = func(response proto.Message) {
		if own, ok := response.(M); ok {
			cut(own)
		}
	}
}

// Operation returns the id of the operation that a changing tool's call carries out, and "" elsewhere.
func Operation(ctx context.Context) string {
	return noted(ctx).operation
}

// Grant returns the grant that a changing tool's call runs by, as the vault signed it, and nil elsewhere: what the vault does for the
// call it does by that.
func Grant(ctx context.Context) *callv1.SignedGrant {
	return noted(ctx).signed
}

// Subject returns the digest of the subject that a changing tool's call was approved for, and nil elsewhere or where the grant
// names none: a handler that starts something compares what it is about to start with it.
func Subject(ctx context.Context) []byte {
	return approvedSubject(noted(ctx).subject)
}

// header returns the one value of a binary metadata key; none is nil, and more than one is an error.
func header(ctx context.Context, key string) ([]byte, error) {
	values := metadata.ValueFromIncomingContext(ctx, key)
	switch len(values) {
	case 0:
		return nil, nil
	case 1:
		return []byte(values[0]), nil
	default:
		return nil, errors.New("the call carries " + key + " more than once")
	}
}

// parse reads a message that travelled in metadata; it may hold no unknown fields.
func parse(raw []byte, into proto.Message) error {
	if err := proto.Unmarshal(raw, into); err != nil {
		return errors.New("what the call carries is not a message of the contract")
	}
	if grant.HasUnknown(into) {
		return grant.ErrUnknown
	}
	return nil
}

// Sentences that callers see.
const (
	sayAudit       = "nothing can be recorded, so nothing was done; an operator must bring the audit log back"
	sayUnwitnessed = "no quorum of witnesses has cosigned the audit log lately, so nothing was done; only what takes load off the host goes on"
	sayCutOff      = "all changes were halted while this was under way, and its connection was closed; look at the state before you ask again"
	sayUntokenised = "the vault cannot look through the answer for secrets now; ask again"
	sayUnknown     = "the process was interrupted while it did this; look at the state before you ask again"
)

// sentences are one for each code; fault.Internal is for the others.
var sentences = map[callv1.Code]string{
	callv1.Code_CODE_CONFLICT:          "what the call acts on is not what was approved; ask again",
	callv1.Code_CODE_UNAVAILABLE:       "the vault cannot be reached, so nothing was done",
	callv1.Code_CODE_AUDIT_UNAVAILABLE: sayAudit,
	callv1.Code_CODE_HALTED:            "all changes are halted; nothing was done",
	callv1.Code_CODE_EXPIRED:           "the approval has expired; ask again",
	callv1.Code_CODE_ALREADY_SPENT:     "the approval was used before, and nothing was done now; ask again",
	callv1.Code_CODE_UNKNOWN_OUTCOME:   sayUnknown,
	callv1.Code_CODE_DENIED:            fault.NotAllowed,
}

func say(code callv1.Code) string { return cmp.Or(sentences[code], fault.Internal) }

// newFault is what callers see of a code, with the true cause for our own log.
func newFault(code callv1.Code, cause error) *fault.Error {
	if code == callv1.Code_CODE_AUDIT_UNAVAILABLE {
		return reserve.Unrecorded(sayAudit, time.Second, cause)
	}
	opts := []fault.Option{fault.WithCause(cause)}
	if code == callv1.Code_CODE_UNAVAILABLE {
		opts = append(opts, fault.WithRetry(time.Second))
	}
	return fault.New(code, say(code), opts...)
}

// refuse records why a call goes no further, and returns what the caller sees of it.
func (a *Authority) refuse(ctx context.Context, c *call, code callv1.Code, cause error) error {
	return a.refuseWith(ctx, c, newFault(code, cause))
}

// refuseWith is refuse for a fault that has its own sentence.
func (a *Authority) refuseWith(ctx context.Context, c *call, f *fault.Error) error {
	record := a.refusal(c, f)
	// A caller that hangs up must not keep its refusal out of the log.
	if err := a.cfg.Recorder.Spool(context.WithoutCancel(ctx), record); err != nil {
		a.cfg.Logger.ErrorContext(ctx, "a refusal could not be recorded", "tool", c.tool.Name, "reason", record.Body.Reason, "error", err)
	}
	return f
}

// refusal is the record of a refusal, with its true cause.
func (a *Authority) refusal(c *call, f *fault.Error) *auditv1.Record {
	record := a.record(auditv1.Kind_KIND_SINK_REFUSED, auditv1.Status_STATUS_DENIED, c)
	record.Body.Action = "refuse " + fault.CodeName(f.Code)
	record.Body.Reason = clean.Line(f.Message, 500)
	if f.Cause != nil {
		record.Body.Reason = clean.Line(f.Cause.Error(), 500)
	}
	return record
}

// record begins a record with what is known of the call.
func (a *Authority) record(kind auditv1.Kind, status auditv1.Status, c *call) *auditv1.Record {
	record := &auditv1.Record{
		Kind:        kind,
		Time:        timestamppb.New(a.cfg.Now()),
		RequestId:   c.requestID,
		OperationId: c.grant.GetOperationId(),
		Tool:        c.tool.Name,
		Tier:        c.tool.Tier,
		Status:      status,
		Body: &auditv1.Body{
			Principal: c.who.principal,
			Session:   c.who.session,
			Channel:   c.who.channel,
			Source:    c.tool.Source,
			Arguments: string(c.arguments()),
			Confirmed: c.statement != nil,
			Dangerous: c.who.dangerous,
			// Who waits asks under a request id of its own; the story belongs to the request that began it.
			ParentRequestId: c.grant.GetRequestId(),
			Details:         map[string]string{"caller": c.caller.String()},
		},
	}
	if c.method != "" {
		record.Body.Details["method"] = c.method
	}
	switch {
	case c.agreed != nil:
		record.Body.Details["statement_id"], record.Body.Details["statement_kind"] = c.agreed.ID, string(c.agreed.Kind)
	case c.unattended:
		record.Body.Details["unattended"] = "yes"
	}
	if c.replaced > 0 {
		record.Body.Details["replaced"] = strconv.Itoa(c.replaced)
	}
	return record
}

// canonical returns the RFC 8785 form of the request as it was when it was first asked for, which is before a handler has it.
func (c *call) canonical() (_ []byte, err error) {
	if c.form == nil {
		c.form, err = contract.Canonical(c.request)
	}
	return c.form, err
}

// arguments returns the redacted arguments as records hold them.
func (c *call) arguments() []byte {
	if c.request == nil {
		return nil
	}
	if proto.Size(c.request) == 0 {
		return []byte("{}")
	}
	if c.redacted == nil {
		raw, err := contract.Canonical(contract.Redact(c.request))
		if err != nil {
			return []byte("{}")
		}
		c.redacted = raw
	}
	return c.redacted
}
