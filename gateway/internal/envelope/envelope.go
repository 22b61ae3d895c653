// Package envelope is the one shape in which every tool answers, whatever became of the call: done, waiting for a human,
// running, denied, failed. It runs in the gateway, the untrusted edge. It holds public text alone: what goes in is already
// the public half of an error, or a result that the sink tokenised; every string is cleaned here once more, and those of
// results that come from outside are wrapped.
//
// The same JSON goes out as structuredContent and as text, since clients show the model one or the other, and one output
// schema per tool accepts every status, since strict clients check even errors against it.
package envelope

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/opnumber"
)

// Status says what became of a call.
type Status string

// The statuses. Pending and running are not errors; denied is one, and not retryable.
const (
	OK              Status = "ok"
	PendingApproval Status = "pending_approval"
	Running         Status = "running"
	Denied          Status = "denied"
	Error           Status = "error"
)

// Reasons of a denial.
const (
	// UserRejected: a human looked at the request and said no.
	UserRejected = "user_rejected"
	// ByAgent: the agent took the request back itself.
	ByAgent = "withdrawn"
	// ByRule: a rule denies this very call, and the client may know of it.
	ByRule = "rule"
	// NotAvailable: policy does not let this client use the tool, or there is no such tool. The two look alike.
	NotAvailable = "not_available"
)

// Envelope is what a tool answers. The order of its members is the order on the wire.
type Envelope struct {
	Status    Status `json:"status"`
	Summary   string `json:"summary"`
	RequestID string `json:"request_id"`
	// OperationID is 32 hex digits: the vault's name for an asked-for mutation.
	OperationID string `json:"operation_id,omitempty"`
	// ExpiresAt is RFC 3339 in UTC, with whole seconds.
	ExpiresAt string `json:"expires_at,omitempty"`
	// TellUser is what the agent should say to its user.
	TellUser string `json:"tell_user,omitempty"`
	Next     *Next  `json:"next,omitempty"`
	// Result is the tool's own result, as its schema says.
	Result json.RawMessage `json:"result,omitempty"`
	// Reason is why a call was denied: UserRejected, NotAvailable, ByRule or ByAgent.
	Reason string `json:"reason,omitempty"`
	// Replayed: the outcome was recorded by an earlier call for the same operation.
	Replayed bool     `json:"replayed,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Audit    *Audit   `json:"audit,omitempty"`
	Error    *Failure `json:"error,omitempty"`
}

// Next is the call to make next.
type Next struct {
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
}

// Audit says which of the human's settings an override of this session changed (CFG-2).
type Audit struct {
	SessionOverrides []string `json:"session_overrides"`
	Persistent       bool     `json:"persistent"`
	OverrideSource   string   `json:"override_source"`
}

// Failure is the public half of an error.
type Failure struct {
	// Code is a name of call.v1.Code without its prefix: INVALID_ARGUMENT.
	Code    string `json:"code"`
	Message string `json:"message"`
	// Field is the argument at fault.
	Field       string   `json:"field,omitempty"`
	Retryable   bool     `json:"retryable"`
	RetryAfterS uint32   `json:"retry_after_s,omitempty"`
	DidYouMean  []string `json:"did_you_mean,omitempty"`
}

// IsError reports whether clients should treat the answer as a failed call.
func (e *Envelope) IsError() bool { return e.Status == Denied || e.Status == Error }

// JSON returns the envelope's bytes, cleaned, without HTML escaping, so that text and structured content read alike. Result
// is taken as the function Result returned it.
func (e *Envelope) JSON() ([]byte, error) {
	var b bytes.Buffer
	b.Grow(256 + len(e.Result))
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e.cleaned()); err != nil {
		return nil, fmt.Errorf("encode envelope: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// cleaned returns a copy whose own texts are clean; what it shares with e is not changed.
func (e *Envelope) cleaned() *Envelope {
	c := *e
	for _, s := range []*string{&c.Summary, &c.RequestID, &c.OperationID, &c.ExpiresAt, &c.TellUser, &c.Reason} {
		*s = clean.Line(*s, maxText)
	}
	c.Warnings = lines(e.Warnings)
	if e.Next != nil {
		c.Next = &Next{Tool: clean.Line(e.Next.Tool, maxText), Arguments: make(map[string]any, len(e.Next.Arguments))}
		for key, value := range e.Next.Arguments {
			if text, ok := value.(string); ok {
				value = clean.Line(text, maxText)
			}
			c.Next.Arguments[key] = value
		}
	}
	if e.Audit != nil {
		c.Audit = &Audit{SessionOverrides: lines(e.Audit.SessionOverrides), Persistent: e.Audit.Persistent, OverrideSource: clean.Line(e.Audit.OverrideSource, maxText)}
	}
	if e.Error != nil {
		failure := *e.Error
		failure.Message, failure.Field, failure.DidYouMean = clean.Sentence(failure.Message, maxText), clean.Name(failure.Field, maxText), slices.DeleteFunc(lines(failure.DidYouMean), clean.Leaks)
		c.Error = &failure
	}
	return &c
}

func lines(texts []string) []string {
	if texts == nil {
		return nil
	}
	out := make([]string, len(texts))
	for i, s := range texts {
		out[i] = clean.Line(s, maxText)
	}
	return out
}

// Override says that arguments changed settings of the human's, for this call or session: what a sink says it took over. Whoever reads
// the answer is warned, if not by the sink then here.
func (e *Envelope) Override(settings []string) {
	e.Audit = &Audit{SessionOverrides: settings, OverrideSource: "argument"}
	if len(e.Warnings) == 0 {
		e.Warnings = []string{"An argument overrode " + strings.Join(settings, ", ") + ". That lasts for this call or session and is recorded."}
	}
}

// Dangerous returns a copy of an answer of a session that is in dangerous mode, which says so first (DNG-1).
func (e *Envelope) Dangerous(until time.Time) *Envelope {
	banner := "DANGEROUS MODE until " + until.UTC().Format("15:04") + " UTC: changes run without asking."
	out := *e
	out.Summary = strings.TrimSpace(banner + " " + e.Summary)
	out.Warnings = append([]string{banner}, e.Warnings...)
	return &out
}

// Time formats an instant for ExpiresAt; the zero time is left out.
func Time(t time.Time) string {
	if t.IsZero() || t.Unix() == 0 {
		return ""
	}
	return t.UTC().Truncate(time.Second).Format(time.RFC3339)
}

// meanwhile is what a person can do about errors that are not the agent's.
var meanwhile = map[callv1.Code]string{
	callv1.Code_CODE_AUDIT_UNAVAILABLE: "Nothing is changed while Durward cannot record it. Ask the operator to run: durward status",
	callv1.Code_CODE_UNAVAILABLE:       "A part of Durward does not answer. Ask the operator to run: durward status",
	callv1.Code_CODE_TIMEOUT:           "A part of Durward does not answer in time. Ask the operator to run: durward status",
	callv1.Code_CODE_HALTED:            "Every change is halted. Only the operator can end that, with: durward resume",
	callv1.Code_CODE_SEALED:            "The stored credentials are needed for this, and the operator has to unseal them first: durward vault unseal",
	callv1.Code_CODE_MUTED:             "The operator does not want to be asked by this client for now, and nothing was done. Do not retry before error.retry_after_s is over.",
	callv1.Code_CODE_TOO_MANY_PENDING:  "Too many requests wait for a decision. Ask the operator to run: durward approvals",
	callv1.Code_CODE_UNKNOWN_OUTCOME:   "It is not known whether this was done. Ask the operator to run: durward status",
	callv1.Code_CODE_INTERNAL:          "This is a mistake in Durward. Give the operator the request id.",
}

// Fault makes an envelope of an error's public half.
func Fault(requestID string, f *fault.Error) *Envelope {
	p := f.Proto(requestID)
	return &Envelope{
		Status:    Error,
		Summary:   Sentence(p.GetMessage()),
		RequestID: requestID,
		TellUser:  meanwhile[f.Code],
		Error: &Failure{
			Code:        fault.CodeName(p.GetCode()),
			Message:     p.GetMessage(),
			Field:       p.GetField(),
			Retryable:   p.GetRetryable(),
			RetryAfterS: p.GetRetryAfterS(),
			DidYouMean:  p.GetDidYouMean(),
		},
	}
}

// openings are the words that begin sentences of ours. Another first word may be an id or the name of an argument.
var openings = []string{
	"a", "all", "an", "another", "everything", "halted", "internal", "it", "its", "no", "nobody", "not", "nothing", "one", "only", "others", "reading", "that", "the",
	"there", "these", "this", "too", "what", "who", "whom",
}

// Sentence begins a fault's message with a capital and ends it with a full stop, for people. An id, and the name of an argument,
// stays as it is.
func Sentence(s string) string {
	if s == "" {
		return s
	}
	if last, _ := utf8.DecodeLastRuneInString(s); !strings.ContainsRune(".!?…", last) {
		s += "."
	}
	if word, _, _ := strings.Cut(s, " "); !slices.Contains(openings, word) {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// Unavailable is the answer for a tool that this client may not use and for a tool that does not exist (ACL-3). It depends on nothing but
// the names of the client's own tools.
func Unavailable(requestID string, own []string) *Envelope {
	e := &Envelope{
		Status: Denied, RequestID: requestID, Reason: NotAvailable,
		Summary: "There is no such tool, or this call is not for you. Do not repeat it.",
		Error:   &Failure{Code: fault.CodeName(callv1.Code_CODE_DENIED), Message: "no such tool, or this call is not for you", Field: "name"},
	}
	if len(own) > 0 {
		e.Summary += " These are yours: " + strings.Join(own, ", ") + "."
	}
	return e
}

// Forbidden is the answer when a rule denies a call of a tool that the client may see; why is the rule, in words.
func Forbidden(requestID, why string) *Envelope {
	return &Envelope{
		Status: Denied, RequestID: requestID, Reason: ByRule,
		Summary:  "A rule denies this call: " + why + ". Do not retry.",
		TellUser: "A rule of the operator's denies this: " + why + ".",
	}
}

// Rejected is the answer when a human said no; words are the human's, cleaned, and may be empty.
func Rejected(requestID, operationID, words string) *Envelope {
	e := &Envelope{
		Status:      Denied,
		Summary:     "A human denied this request. Do not retry.",
		RequestID:   requestID,
		OperationID: operationID,
		TellUser:    "The operator denied the request.",
		Reason:      UserRejected,
	}
	if words != "" {
		e.Summary = "A human denied this request: " + Sentence(words) + " Do not retry."
		e.TellUser = "The operator denied the request and said: " + Sentence(words)
	}
	return e
}

// Withdrawn is the answer about an operation that the agent took back.
func Withdrawn(requestID, operationID string) *Envelope {
	return &Envelope{
		Status: Denied, Summary: "This request was taken back, and nothing was done. Ask again if it is wanted after all.",
		RequestID: requestID, OperationID: operationID, Reason: ByAgent,
	}
}

// WaitTool is the tool that waits for an operation.
const WaitTool = "wait_operation"

// Pending is the answer while a human has not decided.
func Pending(requestID, operationID string, expires time.Time) *Envelope {
	return &Envelope{
		Status:      PendingApproval,
		Summary:     "A human must approve this before it runs. Nothing has happened yet.",
		RequestID:   requestID,
		OperationID: operationID,
		ExpiresAt:   Time(expires),
		TellUser:    "This needs your approval. Ask the operator to run: durward approve " + opnumber.Of(operationID)[:opnumber.Short],
		Next:        wait(operationID),
	}
}

// StillRunning is the answer when an approved operation takes longer than a call can be held.
func StillRunning(requestID, operationID string) *Envelope {
	return &Envelope{
		Status:      Running,
		Summary:     "The operation was approved and is still running.",
		RequestID:   requestID,
		OperationID: operationID,
		Next:        wait(operationID),
	}
}

func wait(operationID string) *Next {
	return &Next{Tool: WaitTool, Arguments: map[string]any{"operation_id": operationID}}
}
