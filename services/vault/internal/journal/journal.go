// Package journal writes the vault's records. What gives somebody power is recorded synchronously, before it takes effect:
// asking, approving, redeeming. What takes power away, or gives none by itself (a session, a permit, a denial, an answer to who
// asks how an operation stands, the issue of a grant, which is worth nothing until it is redeemed), goes to the vault's own durable spool and follows.
package journal

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/vault/internal/store"
)

// patience is how long a synchronous record may take, and whatever waits for one: who asked is answered within 2 s.
const patience = 1500 * time.Millisecond

// WithPatience bounds a call that records synchronously. When its time is over, context.Cause is CODE_AUDIT_UNAVAILABLE.
func WithPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, patience, unavailable(context.DeadlineExceeded))
}

// maxArguments is the longest text that a record's arguments may be.
const maxArguments = 65536

// Recorder is what the journal needs of the platform's recorder.
type Recorder interface {
	// Record returns when the record is in the log and the log's answer was verified.
	Record(context.Context, *auditv1.Record) (*callv1.Receipt, error)
	// Spool keeps the record until the log takes it; it fails when the spool is full.
	Spool(context.Context, *auditv1.Record) error
	// Reachable reports whether the log took or answered the last thing that it was asked.
	Reachable() bool
}

// Journal writes records. It is safe for concurrent use.
type Journal struct {
	recorder Recorder
	now      func() time.Time
	logger   *slog.Logger
}

// New makes a journal.
func New(recorder Recorder, now func() time.Time, logger *slog.Logger) *Journal {
	return &Journal{recorder: recorder, now: now, logger: logger}
}

// Check returns CODE_AUDIT_UNAVAILABLE when nothing can be recorded synchronously now.
func (j *Journal) Check() error {
	if !j.recorder.Reachable() {
		return unavailable(nil)
	}
	return nil
}

// Must records before something takes effect; CODE_AUDIT_UNAVAILABLE within 1.5 s, and then it must not. A record that was
// given up may still reach the log: another follows it and says that nothing was done.
func (j *Journal) Must(ctx context.Context, r *auditv1.Record) error {
	if err := j.Check(); err != nil {
		return err
	}
	r = j.complete(ctx, r)
	patient, cancel := WithPatience(ctx)
	defer cancel()
	_, err := j.recorder.Record(patient, r)
	if err == nil {
		return nil
	}
	j.ended(ctx, r, logproof.GivenUp, "it could not be recorded in time; nothing was done")
	return unavailable(err)
}

// Do records as Must does and then does it. Where that fails, as after a halt in between, another record follows and says so, or, of
// store.ErrUnknown, that it may have been done.
func (j *Journal) Do(ctx context.Context, r *auditv1.Record, effect func() error) error {
	if err := j.Must(ctx, r); err != nil {
		return err
	}
	err := effect()
	switch {
	case errors.Is(err, store.ErrUnknown):
		j.ended(ctx, r, logproof.Unknown, "it was recorded, and whether it was done is not known: "+err.Error())
	case err != nil:
		j.ended(ctx, r, logproof.GivenUp, "it was recorded, and then refused; nothing was done: "+err.Error())
	}
	return err
}

func (j *Journal) ended(ctx context.Context, r *auditv1.Record, how, why string) {
	given := proto.CloneOf(r)
	given.Kind, given.Status = auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_ERROR
	given.Body.Action, given.Body.Reason, given.Body.Summary = r.GetBody().GetAction()+how, why, ""
	given.Body.Statement, given.Body.Arguments, given.Body.Confirmed = nil, "", false
	j.Note(ctx, given)
}

// GaveUp reports whether a later entry of the log, which may be nil, says that what an earlier one recorded was not done.
func GaveUp(later, earlier *auditv1.Entry) bool {
	return later.GetIndex() > earlier.GetIndex() && later.GetRecord().GetBody().GetAction() == earlier.GetRecord().GetBody().GetAction()+logproof.GivenUp
}

// Follow spools a record; CODE_AUDIT_UNAVAILABLE when the spool is full.
func (j *Journal) Follow(ctx context.Context, r *auditv1.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := j.recorder.Spool(ctx, j.complete(ctx, r)); err != nil {
		return unavailable(err)
	}
	return nil
}

// Note spools a record of something that happens whether or not it can be recorded: a refusal, an end. A failure is
// logged.
func (j *Journal) Note(ctx context.Context, r *auditv1.Record) {
	if err := j.Follow(ctx, r); err != nil {
		j.logger.ErrorContext(ctx, "a record could not be spooled", "kind", r.GetKind().String(), "cause", fault.From(err).Cause)
	}
}

func (j *Journal) complete(ctx context.Context, r *auditv1.Record) *auditv1.Record {
	r.Time = timestamppb.New(j.now())
	if r.RequestId == "" {
		r.RequestId = rpc.RequestID(ctx)
	}
	if r.Body == nil {
		r.Body = &auditv1.Body{}
	}
	r.Body.Summary = cmp.Or(r.Body.Summary, sentences[r.Body.Action])
	r.Body.Reason = clean.Line(r.Body.Reason, 500)
	r.Body.Summary = clean.Line(r.Body.Summary, 500)
	r.Body.DecisionSource = clean.Line(r.Body.DecisionSource, 256)
	return r
}

// sentences say what a record's action means, for whoever reads the story of an operation.
var sentences = map[string]string{ // #nosec G101 -- sentences
	"open":                   "a session began",
	"renew":                  "the session's reads may go on",
	"close":                  "the session ended",
	"ask":                    "waits for a human",
	"joined":                 "asked for again while it waits or runs",
	"policy":                 "policy does not allow it",
	"approve":                "a human approved it, once",
	"command":                "a human's own command",
	"scope":                  "a human let this session do it",
	"withdraw":               "the agent took back what it had asked for",
	"withdraw-part":          "one session took it back, and another still asks for it",
	"dangerous":              "the session is in dangerous mode: nobody was asked",
	"unattended":             "a human's file lets it run unattended",
	"scope-granted":          "a human let a session do this without being asked",
	"dangerous-asked":        "a human wants dangerous mode for a session",
	"dangerous-granted":      "a human put a session into dangerous mode",
	"standing-refused":       "a signed permission was not accepted",
	"standing-ended":         "what a human let a session do has ended",
	"standing-withdrawn":     "dangerous mode was proposed for a session, and is not any more",
	"mute":                   "an operator does not want to be asked by this client",
	"unmute":                 "an operator may be asked by this client again",
	"deny":                   "a human refused it",
	"expire":                 "nobody came for it in time",
	"grant":                  "a live call may carry it out",
	"redeem":                 "the sink took it up; the grant is spent",
	"statement-refused":      "a signed statement was not accepted",
	"command-refused":        "a signed command was not accepted",
	"show":                   "its principal was told how it stands",
	"halt":                   "every change is halted",
	"resume":                 "changes may go on",
	"tokenise":               "values in a text became references",
	"tokenise-own":           "its agent was shown a text of its own with references",
	"deliver":                "a sink may have values in the place of references, in this call",
	"resolve":                "a sink has the values",
	"disclosure-denied":      "references in a call stay references",
	"capability-invalid":     "a sink asked for a value with a capability that is not for it",
	"credential-add":         "a human stored a credential",
	"credential-rotate":      "a human gave a stored credential a new value",
	"credential-grant":       "a human granted a stored credential to services",
	"credential-revoke":      "a stored credential was taken from services",
	"credential-remove":      "a stored credential, or one of its values, was removed",
	"credential-use":         "a service got a stored credential",
	"credential-refused":     "a stored credential was not given or changed",
	"credential-unseal":      "an operator unsealed the stored credentials",
	"credential-rotate-keys": "the stored credentials were encrypted anew",
}

func unavailable(cause error) error {
	return reserve.Unrecorded("nothing can be recorded now, therefore nothing is done", 5*time.Second, cause)
}

// Operation begins a record about an operation.
func Operation(kind auditv1.Kind, status auditv1.Status, o *store.Operation) *auditv1.Record {
	r := &auditv1.Record{
		Kind: kind, Status: status, OperationId: o.ID, Tool: o.ToolName, Tier: o.Tier,
		Body: &auditv1.Body{
			Principal: o.Principal, Session: o.Session, Channel: o.Channel, Source: o.ToolSource, ParentRequestId: o.RequestID,
			Dangerous: o.Dangerous,
			Details: map[string]string{
				"arguments_digest": "sha256:" + hex.EncodeToString(o.ArgumentsDigest),
				"audience":         o.Audience,
				"epoch":            strconv.FormatUint(o.Epoch, 10),
			},
		},
	}
	if o.Rule != "" {
		r.Body.Details["rule"] = clean.Line(o.Rule, 512)
	}
	if o.Agent != "" {
		r.Body.Details["agent"] = o.Agent
	}
	return r
}

// Arguments returns arguments as records hold them: RFC 8785 JSON without sensitive values, or nothing when they are too
// long for a record; their digest is always there.
func Arguments(arguments proto.Message) (string, error) {
	raw, err := contract.Canonical(contract.Redact(arguments))
	if err != nil {
		return "", err
	}
	if len(raw) > maxArguments {
		return "", nil
	}
	return string(raw), nil
}

// Session begins a record about a session.
func Session(kind auditv1.Kind, status auditv1.Status, principal, session string, channel callv1.Channel) *auditv1.Record {
	return &auditv1.Record{Kind: kind, Status: status, Tier: optionsv1.Tier_TIER_UNSPECIFIED, Body: &auditv1.Body{
		Principal: principal, Session: session, Channel: channel,
	}}
}

// Process begins a record about this process.
func Process(kind auditv1.Kind, version string) *auditv1.Record {
	return &auditv1.Record{Kind: kind, Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{
		Action: "process", Summary: "vault " + version,
	}}
}
