package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
)

func (a *app) approvalsCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:     "approvals",
		Aliases: []string{"pending"},
		Short:   "What waits for your decision",
		Long: `Lists what agents asked for and nobody has decided yet: the call, who asks, how long it waits, and what
would be done, as the executor itself says. The agent's own words are marked untrusted.

With --watch at a terminal it stays, and you decide there: a approve, s within a scope, d deny, m mute, enter
shows everything. "durward tui" shows the services and GPUs as well.

The short number on the left names the operation in approve and deny. It exists on your side alone.`,
		Example: "  durward approvals\n  durward approvals --watch\n  durward approvals --json | jq -r .operations[].number",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			if watch && a.interactive() {
				return a.runScreen(ctx, s, true)
			}
			if watch {
				return a.watchApprovals(ctx, s)
			}
			return a.listApprovals(ctx, s)
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "stay and show each request as it comes (with --json: one object a line)")
	return cmd
}

// actionable are the states in which a person can still do something about an operation.
var actionable = []vaultv1.OperationState{vaultv1.OperationState_OPERATION_STATE_PENDING, vaultv1.OperationState_OPERATION_STATE_APPROVED}

// operations returns what is pending or approved and not carried out.
func (s *session) operations(ctx context.Context) ([]*vaultv1.Operation, error) {
	response, err := s.Vault.ListOperations(ctx, &vaultv1.ListOperationsRequest{States: actionable, Limit: 1000})
	return response.GetOperations(), err
}

func operationIDs(ops []*vaultv1.Operation) []string {
	ids := make([]string, len(ops))
	for i, op := range ops {
		ids[i] = op.GetOperationId()
	}
	return ids
}

func isPending(op *vaultv1.Operation) bool {
	return op.GetState() == vaultv1.OperationState_OPERATION_STATE_PENDING
}

// openSessions are the vault's open sessions, for people to recognise who asks.
type openSessions struct {
	byRef   map[string]*vaultv1.OpenSession
	numbers map[string]int
}

// openSessions asks the vault; what it does not tell is not shown.
func (s *session) openSessions(ctx context.Context) openSessions {
	list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
	if err != nil {
		return openSessions{}
	}
	return sessionsOf(list.GetSessions())
}

func sessionsOf(list []*vaultv1.OpenSession) openSessions {
	seen := openSessions{map[string]*vaultv1.OpenSession{}, approval.SessionNumbers(list)}
	for _, one := range list {
		seen.byRef[one.GetSession()] = one
	}
	return seen
}

// card adds the executor's own preview to an operation.
func (s *session) card(ctx context.Context, op *vaultv1.Operation, number string, seen openSessions) approval.Card {
	c := approval.Card{Number: number, Operation: op, Session: seen.byRef[op.GetSession()], SessionNumber: seen.numbers[op.GetSession()]}
	if c.Session == nil {
		c.Agent = s.askingAgent(ctx, op.GetOperationId())
	}
	call, err := approval.CallOf(op)
	if err == nil {
		c.Preview, err = s.preview(ctx, call.Tool.Ref(), call.Arguments)
	}
	if err != nil {
		c.Problem = publicText(err)
		return c
	}
	c.Simulated = s.simulated(ctx, call)
	return c
}

// askedPatience bounds how long a card waits for the record of its request.
const askedPatience = time.Second

// detailAgent is the detail of the vault's record of a request that names the client's agent.
const detailAgent = "agent"

// askingAgent is which of a client's agents asked, as the vault recorded it: once a session has ended nothing else tells. "" where
// it names none, or the log does not answer.
func (s *session) askingAgent(ctx context.Context, operationID string) string {
	ctx, cancel := context.WithTimeout(ctx, askedPatience)
	defer cancel()
	found, err := s.Audit.SearchRecords(ctx, &auditv1.SearchRecordsRequest{
		OperationId: operationID, Kinds: []auditv1.Kind{auditv1.Kind_KIND_ASKED}, Writer: s.cfg.Vault.Identity, Limit: 1,
	})
	if err != nil || len(found.GetEntries()) == 0 {
		return ""
	}
	return clean.Line(found.GetEntries()[0].GetRecord().GetBody().GetDetails()[detailAgent], 64)
}

// simulated is what a switch of modes would do to the GPUs' memory, as the executor reckons it now; nil for any other call and
// where it cannot say.
func (s *session) simulated(ctx context.Context, call approval.Call) *executorv1.SimulateModeResponse {
	message, err := call.Tool.Decode(call.Arguments)
	if err != nil {
		return nil
	}
	asked, ok := message.(*executorv1.SwitchModeRequest)
	if !ok {
		return nil
	}
	simulated, err := s.Executor.Tools.SimulateMode(ctx, &executorv1.SimulateModeRequest{
		ModeId: asked.ModeId, MarginMibOverride: asked.MarginMibOverride, Alternatives: new(uint32(mostAlternatives)),
	})
	if err != nil {
		return nil
	}
	return simulated
}

// publicText is an error's sentence for a screen.
func publicText(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Message
	}
	return clean.Line(err.Error(), 500)
}

// operationJSON is an operation in --json. Field names are stable.
type operationJSON struct {
	Number      string          `json:"number"`
	OperationID string          `json:"operation_id"`
	State       string          `json:"state"`
	Tier        string          `json:"tier"`
	PolicyTier  string          `json:"policy_tier,omitempty"`
	Rule        string          `json:"rule,omitempty"`
	Tool        string          `json:"tool"`
	Arguments   json.RawMessage `json:"arguments"`
	Audience    string          `json:"audience"`
	Target      string          `json:"target,omitempty"`
	Plan        []string        `json:"plan,omitempty"`
	Problem     string          `json:"problem,omitempty"`
	Principal   string          `json:"principal"`
	Agent       string          `json:"agent,omitempty"`
	ClientName  string          `json:"client_name,omitempty"`
	KeyBound    bool            `json:"key_bound"`
	Session     string          `json:"session"`
	Channel     string          `json:"channel"`
	AgentReason string          `json:"agent_reason,omitempty"`
	AskedAt     string          `json:"asked_at"`
	ExpiresAt   string          `json:"expires_at"`
	Waiters     uint32          `json:"waiters"`
	DecidedBy   string          `json:"decided_by,omitempty"`
	RequestID   string          `json:"request_id"`
}

func cardJSON(c approval.Card) operationJSON {
	op := c.Operation
	arguments := json.RawMessage(op.GetArguments())
	if !json.Valid(arguments) {
		arguments = nil
	}
	policyTier := ""
	if op.GetPolicyTier() > op.GetTier() {
		policyTier = contract.TierName(op.GetPolicyTier())
	}
	return operationJSON{
		PolicyTier: policyTier, Rule: op.GetRule(),
		Number: c.Number, OperationID: op.GetOperationId(), State: operationState(op.GetState()), Tier: contract.TierName(op.GetTier()),
		Tool: op.GetTool().GetName(), Arguments: arguments, Audience: op.GetAudience(), Target: c.Preview.GetSubject().GetLabel(),
		Plan: c.Preview.GetPlan(), Problem: c.Problem, Principal: op.GetPrincipal(), Agent: c.AgentName(), ClientName: op.GetClientName(),
		KeyBound: op.GetKeyBound(), Session: op.GetSession(), Channel: statement.ChannelName(op.GetChannel()),
		AgentReason: op.GetAgentReason(), AskedAt: op.GetAskedAt().AsTime().Format(time.RFC3339),
		ExpiresAt: op.GetExpiresAt().AsTime().Format(time.RFC3339), Waiters: op.GetWaiters(), DecidedBy: op.GetDecidedBy(),
		RequestID: op.GetRequestId(),
	}
}

func operationState(s vaultv1.OperationState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "OPERATION_STATE_"))
}

func (a *app) listApprovals(ctx context.Context, s *session) error {
	ops, err := s.operations(ctx)
	if err != nil {
		return err
	}
	numbers := approval.Numbers(operationIDs(ops))
	seen := s.openSessions(ctx)
	var waiting, approved []approval.Card
	for _, op := range ops {
		number := numbers[op.GetOperationId()]
		if isPending(op) {
			waiting = append(waiting, s.card(ctx, op, number, seen))
		} else {
			approved = append(approved, approval.Card{Number: number, Operation: op})
		}
	}
	if a.json {
		list := make([]operationJSON, 0, len(waiting))
		for _, c := range waiting {
			list = append(list, cardJSON(c))
		}
		return a.out.Value(map[string]any{"operations": list})
	}
	if len(waiting) == 0 {
		a.out.Printf("Nothing waits.\n")
	} else {
		a.out.Printf("%d waiting\n", len(waiting))
	}
	for _, c := range waiting {
		a.printCard(c)
	}
	for _, c := range approved {
		a.out.Printf("%s  approved by %s, and nobody has come for it yet: durward approve %s --run\n", c.Number,
			clean.Visible(c.Operation.GetDecidedBy()), c.Number)
	}
	if len(waiting) > 0 {
		n := waiting[0].Number
		a.out.Printf("%s\n", a.out.Dim(fmt.Sprintf("durward approve %s [--scope]   durward deny %s --reason \"…\"   durward tui", n, n)))
	}
	return nil
}

func (a *app) printCard(c approval.Card) {
	out := a.display()
	for i, line := range c.Lines(a.now()) {
		switch {
		case i == 0 && c.IsDestructive():
			line = out.Red(out.Bold(line))
		case i == 0:
			line = out.Bold(line)
		case i == 1 && c.IsDestructive():
			line = out.Red(line)
		}
		out.Printf("%s\n", line)
	}
}

// watchApprovals shows each operation as it comes and each decision as it falls.
func (a *app) watchApprovals(ctx context.Context, s *session) error {
	stream, err := s.Vault.WatchOperations(ctx, &vaultv1.WatchOperationsRequest{})
	if err != nil {
		return err
	}
	known := map[string]vaultv1.OperationState{}
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return unreachable("Start it again: durward approvals --watch", "the vault ended the watch")
		case ctx.Err() != nil:
			return nil // Ctrl-C is how a watch ends
		case err != nil:
			return err
		}
		op := event.GetOperation()
		if before, seen := known[op.GetOperationId()]; seen && before == op.GetState() {
			continue
		}
		known[op.GetOperationId()] = op.GetState()
		ids := make([]string, 0, len(known))
		for id := range known {
			ids = append(ids, id)
		}
		number := approval.Numbers(ids)[op.GetOperationId()]
		c := approval.Card{Number: number, Operation: op}
		if isPending(op) {
			c = s.card(ctx, op, number, s.openSessions(ctx))
		}
		if a.json {
			b, err := json.Marshal(cardJSON(c))
			if err != nil {
				return fmt.Errorf("encode: %w", err)
			}
			a.out.Printf("%s\n", b)
			continue
		}
		if isPending(op) {
			a.printCard(c)
			continue
		}
		line := fmt.Sprintf("%s  %s", number, operationState(op.GetState()))
		if by := op.GetDecidedBy(); by != "" {
			line += " by " + clean.Visible(by)
		}
		a.out.Printf("%s\n", line)
	}
}

// find returns the live operation that a number names.
func (s *session) find(ctx context.Context, number string) (*vaultv1.Operation, string, error) {
	ops, err := s.operations(ctx)
	if err != nil {
		return nil, "", err
	}
	ids := operationIDs(ops)
	id, err := approval.Find(number, ids)
	var ambiguous *approval.AmbiguousError
	switch {
	case errors.As(err, &ambiguous):
		return nil, "", usage("Say one of them.", "%s", ambiguous.Error())
	case err != nil:
		return nil, "", usage("See: durward approvals", "no operation that waits has the number %s", clean.Visible(number))
	}
	for _, op := range ops {
		if op.GetOperationId() == id {
			return op, approval.Numbers(ids)[id], nil
		}
	}
	return nil, "", usage("See: durward approvals", "no operation that waits has the number %s", clean.Visible(number))
}

// Defaults of a scope: enough for a sitting, not for a day.
const (
	scopeFor  = time.Hour
	scopeUses = 10
)

func (a *app) approveCommand() *cobra.Command {
	var run, yes, scope bool
	var within approval.Within
	cmd := &cobra.Command{
		Use:   "approve NUMBER",
		Short: "Look at a request whole, sign it, let it happen once or within a scope",
		Long: `Shows what an agent asked for, whole: the call, its target as the executor itself has it, the plan, and the
statement that you sign. Every digest in it is computed here, from what you see. Then it asks, opens
your signing key (a passphrase or touch is asked for each time), signs, and hands the statement in.

Approving executes nothing by itself: the agent's waiting call does. When nobody waits any more, --run
carries the call out from here.

With --scope the session may repeat the call without asking: --uses times, --for so long (8 hours at most).
Arguments are pinned to what was asked for; --free lets one have any value, --tool adds tools that take the
same arguments. Each definition that may be acted on is shown and pinned too, unless --any lets whatever the
executor's catalogue says at that time do. Only clients that sign each request themselves (key-bound) can be
let so. It ends with the session, a panic, a restart of the vault, or: durward standing revoke

Without a terminal it refuses unless --yes is given. --yes skips the question and nothing else: a
terminal proves nothing, the key does, so a protected key still asks for its passphrase.

NUMBER is a short number from "durward approvals", or the beginning of an operation id.`,
		Example: "  durward approve K7F3\n  durward approve K7F3 --run\n  durward approve K7F3 --scope --for 2h --uses 20 --tool stop_service\n" +
			"  durward approve K7F3 --scope --free service_id",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeNumbers,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !scope {
				for _, name := range []string{"for", "uses", "tool", "free", "any"} {
					if cmd.Flags().Changed(name) {
						return usage("Add --scope, or leave it out.", "--%s is for a scope", name)
					}
				}
				return a.approve(cmd.Context(), args[0], nil, run, yes)
			}
			return a.approve(cmd.Context(), args[0], &within, run, yes)
		},
	}
	cmd.Flags().BoolVar(&run, "run", false, "carry it out from here if no agent waits for it")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	cmd.Flags().BoolVar(&scope, "scope", false, "let the session repeat it without asking, within what the other flags say")
	cmd.Flags().DurationVar(&within.For, "for", scopeFor, "scope: for so long, 8h at most")
	cmd.Flags().IntVar(&within.Uses, "uses", scopeUses, "scope: so often, 1000 at most")
	cmd.Flags().StringSliceVar(&within.Tools, "tool", nil, "scope: these tools as well")
	cmd.Flags().StringSliceVar(&within.Free, "free", nil, "scope: these arguments may have any value")
	cmd.Flags().BoolVar(&within.Any, "any", false, "scope: act on whatever the catalogue says at that time")
	a.completeFlag(cmd, "for", "30m", "1h", "2h", "8h")
	a.completeFlag(cmd, "uses", "5", "10", "50")
	a.completeFlag(cmd, "tool", changingTools()...)
	a.completeFlag(cmd, "free", changingArguments()...)
	return cmd
}

// completeFlag completes a flag with fixed words.
func (a *app) completeFlag(cmd *cobra.Command, flag string, words ...string) {
	// It fails only for a flag that is not there.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// changingTools are the tools that a scope can be about.
func changingTools() (names []string) {
	for _, t := range contract.Tools() {
		if t.Tier > optionsv1.Tier_TIER_READ {
			names = append(names, t.Name)
		}
	}
	return names
}

// changingArguments are the arguments that those take.
func changingArguments() (names []string) {
	for _, t := range contract.Tools() {
		properties, _ := t.InputSchema["properties"].(map[string]any)
		for name := range properties {
			if t.Tier > optionsv1.Tier_TIER_READ && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (a *app) approve(ctx context.Context, number string, within *approval.Within, run, yes bool) error {
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	op, number, err := s.find(ctx, number)
	if err != nil {
		return err
	}
	call, err := approval.CallOf(op)
	if err != nil {
		return denied("Deny it: durward deny "+number, "%s cannot be approved: %v", number, err)
	}
	if within != nil && !isPending(op) {
		return usage("Carry it out: durward approve "+number+" --run", "%s is approved already", number)
	}
	if isPending(op) {
		if op, err = a.decide(ctx, s, op, number, within, yes); err != nil {
			return err
		}
	}
	waiting := op.GetWaiters() > 0
	if !run || waiting {
		if a.json {
			return a.out.Value(cardJSON(approval.Card{Number: number, Operation: op}))
		}
		a.out.Printf("%s %s approved.\n", a.out.Green("✓"), number)
		if within != nil {
			a.out.Printf("  It may be repeated within the scope. See it, end it: durward standing\n")
		}
		if waiting {
			a.out.Printf("  The agent waits; its call carries it out now. See it: durward watch\n")
			return nil
		}
		a.out.Printf("  No agent waits at this moment. Its next wait_operation carries it out, or: durward approve %s --run\n", number)
		if yes || !a.interactive() || a.confirm(ctx, "Carry it out from here now?", false) != nil {
			return nil
		}
	}
	claimed, err := s.Vault.ClaimOperation(ctx, &vaultv1.ClaimOperationRequest{OperationId: op.GetOperationId()})
	if err != nil {
		return err
	}
	return a.carryOut(ctx, s, call, claimed.GetGrant(), op.GetOperationId())
}

// interactive reports whether a person sits before this command.
func (a *app) interactive() bool {
	return !a.json && output.IsTerminal(a.streams.In) && output.IsTerminal(a.streams.Out)
}

// decide shows, asks, signs and hands in one approval, or a scope.
func (a *app) decide(ctx context.Context, s *session, op *vaultv1.Operation, number string, within *approval.Within, yes bool) (*vaultv1.Operation, error) {
	p, preview, err := a.proposeApproval(ctx, s, op, number)
	if err != nil {
		return nil, err
	}
	question := "Sign and approve?"
	seen := s.openSessions(ctx)
	card := approval.Card{Number: number, Operation: op, Preview: preview, Session: seen.byRef[op.GetSession()], SessionNumber: seen.numbers[op.GetSession()]}
	if card.Session == nil {
		card.Agent = s.askingAgent(ctx, op.GetOperationId())
	}
	if call, err := approval.CallOf(op); err == nil {
		card.Simulated = s.simulated(ctx, call)
	}
	if within != nil {
		if p, err = a.proposeScope(ctx, s, op, number, *within); err != nil {
			return nil, err
		}
		question = "Sign, and let it happen within this scope without asking again?"
	}
	a.printCard(card)
	if err := a.showSheet(p.sheet); err != nil {
		return nil, err
	}
	if err := a.confirm(ctx, question, yes); err != nil {
		return nil, err
	}
	signed, err := a.sign(ctx, s, p.sheet.Statement)
	if err != nil {
		return nil, err
	}
	return p.submit(ctx, signed)
}

func (a *app) denyCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "deny NUMBER",
		Short: "Refuse a request",
		Long: `Refuses what an agent asked for. The agent is told that a person refused, with your reason, and that it is
not to try again.`,
		Example:           "  durward deny K7F3 --reason \"not while the benchmark runs\"",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeNumbers,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			op, number, err := s.find(ctx, args[0])
			if err != nil {
				return err
			}
			if len(reason) > 500 {
				return usage("", "--reason is at most 500 bytes")
			}
			response, err := s.Vault.DenyOperation(ctx, &vaultv1.DenyOperationRequest{OperationId: op.GetOperationId(), Reason: reason})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Value(cardJSON(approval.Card{Number: number, Operation: response.GetOperation()}))
			}
			a.out.Printf("%s denied.\n", number)
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what the agent is told")
	return cmd
}

// completeNumbers completes the short numbers of what waits.
func (a *app) completeNumbers(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.forCompletion(cmd, func(ctx context.Context, s *session) error {
		ops, err := s.operations(ctx)
		if err != nil {
			return err
		}
		numbers := approval.Numbers(operationIDs(ops))
		for _, op := range ops {
			out = append(out, cobra.CompletionWithDesc(numbers[op.GetOperationId()],
				clean.Visible(op.GetTool().GetName())+" "+approval.Arguments(op.GetArguments())))
		}
		return nil
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
