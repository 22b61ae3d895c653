// Package approval makes what a human signs: it holds an operation against this program's own compiled contract and
// against what the executor itself says of the target, computes every digest from what it shows, and lays the statement
// out so that nothing in it can hide.
//
// It runs in the operator's process. It trusts the compiled contract and, for what a call would act on, the executor. The
// vault, the gateway and the agent are not trusted: what they say is shown, and signed only where it was checked here.
package approval

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/opnumber"
	"durward.internal/services/platform/statement"
)

// Lifetimes of what a human signs.
const (
	maxApproval = 30 * time.Minute
	commandLife = 5 * time.Minute
	resumeLife  = 5 * time.Minute
)

// CommandSession stands in the place of a session in a human's own command, which has none.
const CommandSession = "-"

// Reasons why nothing is offered for signing.
var (
	// ErrTool means that the operation names a tool that this program does not know, or knows by another definition.
	ErrTool = errors.New("it names a tool that this program does not know by that definition; is durward as new as the other processes?")
	// ErrArguments means that the arguments are not the canonical form of valid arguments.
	ErrArguments = errors.New("its arguments are not valid for the tool")
	// ErrTarget means that the executor's answer does not belong to the operation.
	ErrTarget = errors.New("what the executor says of the target does not belong to this operation")
	// ErrEpoch means that there was a panic in between.
	ErrEpoch = errors.New("a halt lies between: what was asked for before it is void, and vault and executor must be resumed together (durward resume)")
	// ErrExpired means that its time is over.
	ErrExpired = errors.New("it has expired")
	// ErrPlan means that the call names one plan, and the executor would carry out another.
	ErrPlan = errors.New("the executor would now carry out another plan than the one that was asked for; simulate and ask again")
)

// Signer is who is going to sign.
type Signer struct {
	// Operator is the name in allowed_signers.
	Operator string
	// Executor is the identity that the answering executor proved.
	Executor identity.ID
	// Egress is the same of egress; zero where there is none.
	Egress identity.ID
	// Now is this machine's clock.
	Now time.Time
}

// Call is one call of a tool, checked against the contract.
type Call struct {
	Tool contract.Tool
	// Arguments are in RFC 8785 form.
	Arguments []byte
}

// NewCall checks arguments against this program's own contract. They must be their own canonical form.
func NewCall(name string, arguments []byte) (Call, error) {
	tool, ok := contract.Lookup(name)
	if !ok {
		return Call{}, ErrTool
	}
	if _, err := contract.CanonicalArguments(arguments); err != nil {
		return Call{}, fmt.Errorf("%w: %w", ErrArguments, err)
	}
	message, err := tool.Decode(arguments)
	if err != nil {
		return Call{}, fmt.Errorf("%w: %w", ErrArguments, err)
	}
	again, err := contract.Canonical(message)
	if err != nil || !bytes.Equal(again, arguments) {
		return Call{}, ErrArguments
	}
	return Call{Tool: tool, Arguments: arguments}, nil
}

// CallOf checks an operation of the vault's and returns its call.
func CallOf(op *vaultv1.Operation) (Call, error) {
	call, err := NewCall(op.GetTool().GetName(), op.GetArguments())
	if err == nil && (statement.ToolOf(call.Tool.Ref()) != statement.ToolOf(op.GetTool()) || call.Tool.Tier != op.GetTier()) {
		err = ErrTool
	}
	if errors.Is(err, ErrTool) && contract.IsServerSource(op.GetTool().GetSource()) {
		err = errServerTool{}
	}
	if err != nil {
		return Call{}, err
	}
	return call, nil
}

// errServerTool is ErrTool for a tool of another's server, which is as new as what the human accepted.
type errServerTool struct{}

func (errServerTool) Error() string {
	return "its server's tool was accepted anew since it was asked for, or is in force no more; deny it, and it can be asked for again"
}

func (errServerTool) Is(target error) bool { return target == ErrTool }

// planDigest is the plan that the arguments name, in hex, or "".
func (c Call) planDigest() string {
	var named struct {
		PlanDigest string `json:"plan_digest"`
	}
	if json.Unmarshal(c.Arguments, &named) != nil {
		return ""
	}
	return named.PlanDigest
}

// planIs reports whether the plan that the arguments name, if they name one, is the one whose canonical JSON is given. It is
// reckoned here, from what a person is shown, and believed of nobody.
func (c Call) planIs(plan []byte) bool {
	named := c.planDigest()
	if named == "" {
		return true
	}
	digest := canonical.Digest(plan)
	return named == hex.EncodeToString(digest[:])
}

// sink is the identity of the sink that serves a tool.
func (s Signer) sink(tool contract.Tool) string {
	if tool.Sink == s.Egress.Role() {
		return s.Egress.String()
	}
	return s.Executor.String()
}

// single fills in what a statement about one call has.
func (s Signer) single(kind statement.Kind, call Call, preview *executorv1.PreviewCallResponse, life time.Duration) (*statement.Statement, error) {
	if preview.GetAudience() != s.sink(call.Tool) {
		return nil, ErrTarget
	}
	entry := preview.GetSubject().GetEntry()
	if err := canonical.Check(entry); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTarget, err)
	}
	if !call.planIs(entry) {
		return nil, ErrPlan
	}
	if _, err := call.Steps(preview); err != nil {
		return nil, err
	}
	tool := statement.ToolOf(call.Tool.Ref())
	st := s.begin(kind, life, preview.GetAudience(), 0)
	st.Tool, st.Tier, st.Uses = &tool, contract.TierName(call.Tool.Tier), 1
	st.Arguments, st.ArgumentsDigest = call.Arguments, canonical.DigestText(call.Arguments)
	st.Target, st.SubjectDigest, st.Plan = preview.GetSubject().GetLabel(), canonical.DigestText(entry), preview.GetPlan()
	return st, nil
}

// begin fills in what every statement has.
func (s Signer) begin(kind statement.Kind, life time.Duration, audience string, epoch uint64) *statement.Statement {
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: kind, ID: grant.NewID(), Operator: s.Operator,
		IssuedAt: statement.FormatTime(s.Now), NotBefore: statement.FormatTime(s.Now), ExpiresAt: statement.FormatTime(s.Now.Add(life)),
		Epoch: epoch, Audience: audience,
	}
}

// Approve makes the statement that lets one operation run once. The operation is the vault's word and is held against the
// contract; the preview is the executor's, for the same tool and arguments.
func (s Signer) Approve(op *vaultv1.Operation, preview *executorv1.PreviewCallResponse) (*statement.Statement, error) {
	call, err := CallOf(op)
	if err != nil {
		return nil, err
	}
	if op.GetAudience() != preview.GetAudience() {
		return nil, ErrTarget
	}
	if preview.GetEpoch() > op.GetEpoch() {
		return nil, ErrEpoch
	}
	life := min(op.GetExpiresAt().AsTime().Sub(s.Now), maxApproval)
	if life <= time.Second {
		return nil, ErrExpired
	}
	st, err := s.single(statement.KindApprove, call, preview, life)
	if err != nil {
		return nil, err
	}
	st.Epoch, st.Operation = op.GetEpoch(), op.GetOperationId()
	st.Principal, st.Session, st.Channel = op.GetPrincipal(), op.GetSession(), statement.ChannelName(op.GetChannel())
	st.AgentReason = op.GetAgentReason()
	for _, d := range op.GetDisclosures() {
		st.Disclosures = append(st.Disclosures, statement.Disclosure{
			Pointer: d.GetPointer(), Ref: d.GetRef(), Type: d.GetType(), Hint: d.GetHint(), Commitment: d.GetCommitment(),
		})
	}
	return st, nil
}

// Command makes the statement for a call of the human's own. epoch is the vault's: a sink that is behind adopts it with the
// grant, and one that is ahead would refuse.
func (s Signer) Command(call Call, preview *executorv1.PreviewCallResponse, epoch uint64) (*statement.Statement, error) {
	if preview.GetEpoch() > epoch {
		return nil, ErrEpoch
	}
	st, err := s.single(statement.KindCommand, call, preview, commandLife)
	if err != nil {
		return nil, err
	}
	st.Epoch, st.Operation = epoch, grant.NewID()
	st.Principal, st.Session = statement.CommandPrincipal(s.Operator), CommandSession
	st.Channel = statement.ChannelName(callv1.Channel_CHANNEL_CLI)
	return st, nil
}

// Resume makes the statement that ends a halt of one process; epoch is the one that it begins.
func (s Signer) Resume(audience string, epoch uint64) *statement.Statement {
	return s.begin(statement.KindResume, resumeLife, audience, epoch)
}

// Retention makes a statement about what the log of that audit keeps, to be completed: of kind prune, hold or release.
func (s Signer) Retention(kind statement.Kind, audience string, epoch uint64) *statement.Statement {
	return s.begin(kind, resumeLife, audience, epoch)
}

// Credential makes the statement by which the vault of that identity changes a stored credential.
func (s Signer) Credential(vault string, epoch uint64, c *statement.Credential) *statement.Statement {
	st := s.begin(statement.KindCredential, resumeLife, vault, epoch)
	st.Credential = c
	return st
}

// Servers makes the statement by which an operator accepts other people's servers: what stands in servers.lock.
func (s Signer) Servers(vault string, epoch uint64, accepted *statement.Servers) *statement.Statement {
	st := s.begin(statement.KindServers, resumeLife, vault, epoch)
	st.Servers = accepted
	return st
}

// ErrNoSuchSession means that no open session has the name.
var ErrNoSuchSession = errors.New("no such session")

const sessionPrefix = "s-"

// SessionNumbers counts each client's open sessions, the oldest first: for people to tell them apart. A number changes when an
// older session ends, so nothing is granted by it.
func SessionNumbers(sessions []*vaultv1.OpenSession) map[string]int {
	sorted := slices.Clone(sessions)
	slices.SortFunc(sorted, func(a, b *vaultv1.OpenSession) int {
		return cmp.Or(a.GetOpenedAt().AsTime().Compare(b.GetOpenedAt().AsTime()), strings.Compare(a.GetSession(), b.GetSession()))
	})
	count, numbers := map[string]int{}, map[string]int{}
	for _, s := range sorted {
		count[s.GetPrincipal()]++
		numbers[s.GetSession()] = count[s.GetPrincipal()]
	}
	return numbers
}

// FindSession returns the open session whose reference is name, or begins with it: at least 4 characters behind "s-", which may
// be left out.
func FindSession(name string, sessions []*vaultv1.OpenSession) (*vaultv1.OpenSession, error) {
	name = strings.TrimPrefix(strings.ToLower(name), sessionPrefix)
	if len(name) < opnumber.Short {
		return nil, ErrNoSuchSession
	}
	found := slices.DeleteFunc(slices.Clone(sessions), func(s *vaultv1.OpenSession) bool {
		return !strings.HasPrefix(strings.TrimPrefix(s.GetSession(), sessionPrefix), name)
	})
	switch len(found) {
	case 0:
		return nil, ErrNoSuchSession
	case 1:
		return found[0], nil
	}
	return nil, &AmbiguousError{Number: name, Candidates: output.Each(found, (*vaultv1.OpenSession).GetSession)}
}

// Phrase is what a person types to turn dangerous mode on: it names the client and the session, so that it cannot be typed for
// another one out of habit.
func Phrase(s *vaultv1.OpenSession) string {
	ref := strings.TrimPrefix(s.GetSession(), sessionPrefix)
	return "dangerous " + s.GetPrincipal() + " " + ref[:min(len(ref), 6)]
}
