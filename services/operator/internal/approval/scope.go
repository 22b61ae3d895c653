package approval

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/statement"
)

// Bounds of what a human can let a session do without being asked again.
const (
	MaxStanding = 8 * time.Hour
	MinStanding = time.Minute
	MaxUses     = 1000
)

// planArgument is the argument that names a plan by its digest. A plan depends on what runs, so a scope cannot pin one.
const planArgument = "plan_digest"

// Reasons why no standing authority is offered for signing.
var (
	// ErrBearer means that the client proves nothing per call: a hostile gateway could use what is given to it.
	ErrBearer = errors.New("only clients that sign each request themselves (key-bound, through durward mcp) can be let do more than one call")
	// ErrMessaging means that the session is a messaging channel's.
	ErrMessaging = errors.New("there is no dangerous mode over messaging")
	// ErrWithin means that the scope's bounds are not possible.
	ErrWithin = errors.New("that scope cannot be")
)

// Within is how far a scope is to reach beyond the one call that was asked for.
type Within struct {
	// Tools are further tools. Each takes the arguments that were asked for.
	Tools []string
	// Free are arguments that may have any value; all others are pinned to what was asked for.
	Free []string
	// Any: what is acted on may be anything that the executor's catalog has, as it is then. Otherwise each definition that may be
	// acted on is listed.
	Any bool
	// For is how long, a minute to eight hours; Uses how often, 1 to 1000.
	For  time.Duration
	Uses int
}

// Scope is a scope in the making.
type Scope struct {
	op     *vaultv1.Operation
	within Within
	tools  []contract.Tool
	// arguments are those that were asked for.
	arguments map[string]json.RawMessage
}

// NewScope holds a wish against the contract. The operation is one that waits, of a key-bound client.
func NewScope(op *vaultv1.Operation, w Within) (*Scope, error) {
	call, err := CallOf(op)
	if err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrWithin, fmt.Sprintf(format, args...))
	}
	switch {
	case !op.GetKeyBound():
		return nil, ErrBearer
	case w.For < MinStanding || w.For > MaxStanding:
		return nil, bad("it lasts from a minute to 8 hours")
	case w.Uses < 1 || w.Uses > MaxUses:
		return nil, bad("it has 1 to %d uses", MaxUses)
	}
	s := &Scope{op: op, within: w, tools: []contract.Tool{call.Tool}}
	if err := json.Unmarshal(call.Arguments, &s.arguments); err != nil {
		return nil, ErrArguments
	}
	for _, name := range w.Tools {
		if slices.ContainsFunc(s.tools, func(t contract.Tool) bool { return t.Name == name }) {
			continue
		}
		other, err := NewCall(name, call.Arguments)
		switch {
		case errors.Is(err, ErrTool):
			return nil, bad("there is no tool %s", clean.Visible(name))
		case err != nil:
			return nil, bad("%s does not take the arguments that were asked for", clean.Visible(name))
		case other.Tool.Sink != call.Tool.Sink:
			return nil, bad("%s is another process's", clean.Visible(name))
		}
		s.tools = append(s.tools, other.Tool)
	}
	slices.SortFunc(s.tools, func(a, b contract.Tool) int { return strings.Compare(a.Name, b.Name) })
	for _, name := range w.Free {
		if !s.takes(name) {
			return nil, bad("no tool of it takes an argument %s", clean.Visible(name))
		}
	}
	if s.takes(planArgument) {
		// A plan depends on what runs at that time, so none can be named beforehand.
		s.within.Any = true
		if !slices.Contains(s.within.Free, planArgument) {
			s.within.Free = append(slices.Clone(s.within.Free), planArgument)
		}
	}
	slices.Sort(s.within.Free)
	s.within.Free = slices.Compact(s.within.Free)
	return s, nil
}

// takes reports whether every tool of the scope has the argument.
func (s *Scope) takes(argument string) bool {
	for _, t := range s.tools {
		properties, _ := t.InputSchema["properties"].(map[string]any)
		if _, ok := properties[argument]; !ok {
			return false
		}
	}
	return true
}

// Candidates is the kind of thing ("Service", "Mode") whose every id is to be previewed, because the argument that names it is
// free and each definition is to be listed; "" where there is none to be.
func (s *Scope) Candidates() string {
	if s.within.Any || !slices.Contains(s.within.Free, s.tools[0].ResourceArgument) {
		return ""
	}
	return s.tools[0].Resource
}

// Calls are what the executor is to preview: each tool with the arguments that were asked for, or with each candidate.
func (s *Scope) Calls(candidates []string) ([]Call, error) {
	if s.Candidates() == "" {
		candidates = nil
	}
	var calls []Call
	for _, t := range s.tools {
		if candidates == nil {
			calls = append(calls, Call{Tool: t, Arguments: s.op.GetArguments()})
			continue
		}
		for _, id := range candidates {
			call, err := callFor(t, s.arguments, id)
			if err != nil {
				return nil, err
			}
			calls = append(calls, call)
		}
	}
	return calls, nil
}

// callFor is a call of a tool with other arguments' values, on the thing of an id; "": on none in particular.
func callFor(t contract.Tool, arguments map[string]json.RawMessage, id string) (Call, error) {
	all := map[string]any{}
	for name, value := range arguments {
		all[name] = value
	}
	if id != "" {
		all[t.ResourceArgument] = id
	}
	raw, err := canonical.Marshal(all)
	if err != nil {
		return Call{}, fmt.Errorf("%w: %w", ErrArguments, err)
	}
	return NewCall(t.Name, raw)
}

// CallsOf are calls that a scope in force lets happen: one for each tool, and for each candidate where it leaves free what is named.
// What the executor shows for them now is what the scope's digests may stand for. A scope that leaves more than that free may
// have none.
func CallsOf(st *statement.Statement, candidates func(kind string) []string) []Call {
	var calls []Call
	for _, t := range st.Tools {
		tool, ok := contract.Lookup(t.Name)
		if !ok {
			continue
		}
		arguments := map[string]json.RawMessage{}
		for _, pin := range st.Pinned {
			arguments[strings.TrimPrefix(pin.Pointer, "/")] = pin.Value
		}
		ids := []string{""}
		if slices.Contains(st.Free, pointer(tool.ResourceArgument)) {
			ids = candidates(tool.Resource)
		}
		for _, id := range ids {
			if call, err := callFor(tool, arguments, id); err == nil {
				calls = append(calls, call)
			}
		}
	}
	return calls
}

// Scope makes the statement. The previews are the executor's answers to the calls, in their order.
func (s Signer) Scope(scope *Scope, previews []*executorv1.PreviewCallResponse) (*statement.Statement, error) {
	op := scope.op
	audience := s.sink(scope.tools[0])
	if op.GetAudience() != audience {
		return nil, ErrTarget
	}
	if op.GetExpiresAt().AsTime().Sub(s.Now) <= 0 {
		return nil, ErrExpired
	}
	if len(previews) == 0 {
		return nil, ErrTarget
	}
	st := s.standing(statement.KindScope, scope.within.For, op.GetEpoch())
	st.Audience = audience
	for _, p := range previews {
		if p.GetAudience() != audience {
			return nil, ErrTarget
		}
		if p.GetEpoch() > op.GetEpoch() {
			return nil, ErrEpoch
		}
		entry := p.GetSubject().GetEntry()
		if err := canonical.Check(entry); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTarget, err)
		}
		st.SubjectDigests = append(st.SubjectDigests, canonical.DigestText(entry))
	}
	slices.Sort(st.SubjectDigests)
	st.SubjectDigests = slices.Compact(st.SubjectDigests)
	if scope.within.Any {
		st.SubjectDigests, st.AnySubject = nil, true
	}
	st.Principal, st.Session, st.Channel = op.GetPrincipal(), op.GetSession(), statement.ChannelName(op.GetChannel())
	st.Uses = scope.within.Uses
	for _, t := range scope.tools {
		st.Tools = append(st.Tools, statement.ToolOf(t.Ref()))
	}
	for name, value := range scope.arguments {
		if !slices.Contains(scope.within.Free, name) {
			st.Pinned = append(st.Pinned, statement.Pin{Pointer: pointer(name), Value: value})
		}
	}
	slices.SortFunc(st.Pinned, func(a, b statement.Pin) int { return strings.Compare(a.Pointer, b.Pointer) })
	for _, name := range scope.within.Free {
		st.Free = append(st.Free, pointer(name))
	}
	if _, err := st.Marshal(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWithin, err)
	}
	return st, nil
}

// standing fills in what every standing statement has.
func (s Signer) standing(kind statement.Kind, life time.Duration, epoch uint64) *statement.Statement {
	st := s.begin(kind, life, s.Executor.String(), epoch)
	st.ExpiresAt = statement.FormatTime(s.Now.Truncate(time.Second).Add(life))
	return st
}

// Dangerous makes the statement that lets a session change things without asking (DNG-1). The session is the vault's word; its
// sessions alone are let, whoever it says they are. epoch is the vault's, sinkEpoch the executor's. It allows nothing without
// statement.Confirmation.
func (s Signer) Dangerous(session *vaultv1.OpenSession, life time.Duration, uses int, epoch, sinkEpoch uint64) (*statement.Statement, error) {
	switch {
	case !session.GetKeyBound():
		return nil, ErrBearer
	case session.GetChannel() == callv1.Channel_CHANNEL_MESSAGING:
		return nil, ErrMessaging
	case life < MinStanding || life > MaxStanding:
		return nil, fmt.Errorf("%w: it lasts from a minute to 8 hours", ErrWithin)
	case uses < 1 || uses > statement.MaxUses:
		return nil, fmt.Errorf("%w: it is for 1 to %d changes", ErrWithin, statement.MaxUses)
	case sinkEpoch > epoch:
		return nil, ErrEpoch
	}
	st := s.standing(statement.KindDangerous, life, epoch)
	st.Version, st.Uses = statement.VersionConfirmed, uses
	st.Principal, st.Session, st.Channel = session.GetPrincipal(), session.GetSession(), statement.ChannelName(session.GetChannel())
	if _, err := st.Marshal(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWithin, err)
	}
	return st, nil
}

func pointer(argument string) string { return string(jsontext.Pointer("").AppendToken(argument)) }

// Words say in sentences what a standing statement lets a session do. They are read from the statement itself.
func Words(st *statement.Statement, now time.Time) []string {
	who := clean.Visible(st.Principal) + "'s session " + clean.Visible(st.Session)
	until := until(st, now)
	const ends = "It ends sooner with the session, a panic, a restart of the vault, or when you say so: durward standing revoke"
	if st.Kind == statement.KindDangerous {
		return []string{
			"DANGEROUS MODE for " + who + ":",
			fmt.Sprintf("  every WRITE and DESTRUCTIVE tool runs without asking you, %d times at most, %s", st.Uses, until),
			"  still refused: what your rules deny, unknown tools, desktop control; still recorded: everything, marked",
			"  " + ends,
		}
	}
	tools := output.Each(st.Tools, func(t statement.Tool) string {
		if takesAway(t) {
			return clean.Visible(t.Name) + " (DESTRUCTIVE)"
		}
		return clean.Visible(t.Name)
	})
	lines := []string{"Without asking you again, " + who + " may call " + strings.Join(tools, ", ")}
	for _, pin := range st.Pinned {
		lines = append(lines, "  with "+clean.Visible(strings.TrimPrefix(pin.Pointer, "/"))+" exactly "+clean.Visible(string(pin.Value)))
	}
	for _, free := range st.Free {
		lines = append(lines, "  with ANY "+clean.Visible(strings.TrimPrefix(free, "/")))
	}
	if st.AnySubject {
		lines = append(lines, "  on WHATEVER the executor's catalogue says of it at that time: what runs then is not shown to you now")
		if slices.Contains(st.Free, pointer(planArgument)) {
			lines = append(lines, "  (a plan depends on what runs at that time, so none can be named beforehand)")
		}
	} else {
		lines = append(lines, fmt.Sprintf("  on nothing but what is defined as the statement's subject_digests say (%d of them): a changed catalogue entry asks you again",
			len(st.SubjectDigests)))
	}
	return append(lines, fmt.Sprintf("  %d times at most, %s", st.Uses, until), "  "+ends)
}
