package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
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

The short number on the left names the operation in approve and deny. It exists on your side alone.`,
		Example: "  durward approvals\n  durward approvals --watch\n  durward approvals --json | jq -r .operations[].number",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
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

// card adds the executor's own preview to an operation.
func (s *session) card(ctx context.Context, op *vaultv1.Operation, number string) approval.Card {
	c := approval.Card{Number: number, Operation: op}
	call, err := approval.CallOf(op)
	if err == nil {
		c.Preview, err = s.preview(ctx, call.Tool.Ref(), call.Arguments)
	}
	if err != nil {
		c.Problem = publicText(err)
	}
	return c
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
	Tool        string          `json:"tool"`
	Arguments   json.RawMessage `json:"arguments"`
	Audience    string          `json:"audience"`
	Target      string          `json:"target,omitempty"`
	Plan        []string        `json:"plan,omitempty"`
	Problem     string          `json:"problem,omitempty"`
	Principal   string          `json:"principal"`
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
	return operationJSON{
		Number: c.Number, OperationID: op.GetOperationId(), State: operationState(op.GetState()), Tier: contract.TierName(op.GetTier()),
		Tool: op.GetTool().GetName(), Arguments: arguments, Audience: op.GetAudience(), Target: c.Preview.GetSubject().GetLabel(),
		Plan: c.Preview.GetPlan(), Problem: c.Problem, Principal: op.GetPrincipal(), ClientName: op.GetClientName(),
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
	var waiting, approved []approval.Card
	for _, op := range ops {
		number := numbers[op.GetOperationId()]
		if isPending(op) {
			waiting = append(waiting, s.card(ctx, op, number))
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
		a.out.Printf("%s\n", a.out.Dim(fmt.Sprintf("durward approve %s   durward deny %s --reason \"…\"", n, n)))
	}
	return nil
}

func (a *app) printCard(c approval.Card) {
	out := a.display()
	for i, line := range c.Lines(a.now()) {
		if i == 0 {
			line = out.Bold(line)
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
			c = s.card(ctx, op, number)
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

func (a *app) approveCommand() *cobra.Command {
	var run, yes bool
	cmd := &cobra.Command{
		Use:   "approve NUMBER",
		Short: "Look at a request whole, sign it, let it happen once",
		Long: `Shows what an agent asked for, whole: the call, its target as the executor itself has it, the plan, and the
statement that you sign. Every digest in it is computed here, from what you see. Then it asks, opens
your signing key (a passphrase or touch is asked for each time), signs, and hands the statement in.

Approving executes nothing by itself: the agent's waiting call does. When nobody waits any more, --run
carries the call out from here.

Without a terminal it refuses unless --yes is given. --yes skips the question and nothing else: a
terminal proves nothing, the key does, so a protected key still asks for its passphrase.

NUMBER is a short number from "durward approvals", or the beginning of an operation id.`,
		Example:           "  durward approve K7F3\n  durward approve K7F3 --run",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeNumbers,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.approve(cmd.Context(), args[0], run, yes)
		},
	}
	cmd.Flags().BoolVar(&run, "run", false, "carry it out from here if no agent waits for it")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	return cmd
}

func (a *app) approve(ctx context.Context, number string, run, yes bool) error {
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
	if isPending(op) {
		if op, err = a.decide(ctx, s, op, call, number, yes); err != nil {
			return err
		}
	}
	waiting := op.GetWaiters() > 0
	if !run || waiting {
		if a.json {
			return a.out.Value(cardJSON(approval.Card{Number: number, Operation: op}))
		}
		a.out.Printf("%s %s approved.\n", a.out.Green("✓"), number)
		if waiting {
			a.out.Printf("  The agent waits; its call carries it out now. See it: durward watch\n")
			return nil
		}
		a.out.Printf("  No agent waits at this moment. Its next wait_operation carries it out, or: durward approve %s --run\n", number)
		return nil
	}
	claimed, err := s.Vault.ClaimOperation(ctx, &vaultv1.ClaimOperationRequest{OperationId: op.GetOperationId()})
	if err != nil {
		return err
	}
	return a.carryOut(ctx, s, call, claimed.GetGrant(), op.GetOperationId())
}

// decide shows, asks, signs and hands in one approval.
func (a *app) decide(ctx context.Context, s *session, op *vaultv1.Operation, call approval.Call, number string, yes bool) (*vaultv1.Operation, error) {
	preview, err := s.preview(ctx, call.Tool.Ref(), call.Arguments)
	if f := (*fault.Error)(nil); errors.As(err, &f) && f.Code == callv1.Code_CODE_PLAN_CHANGED {
		return nil, denied("Deny it, and the agent simulates and asks again: durward deny "+number,
			"%s cannot be approved: %v", number, approval.ErrPlan)
	}
	if err != nil {
		return nil, err
	}
	signer, err := a.signer(s)
	if err != nil {
		return nil, err
	}
	st, err := signer.Approve(op, preview)
	if err != nil {
		return nil, denied("Deny it: durward deny "+number, "%s cannot be approved: %v", number, err)
	}
	steps, err := call.Steps(preview)
	if err != nil {
		return nil, denied("Deny it: durward deny "+number, "%s cannot be approved: %v", number, err)
	}
	a.printCard(approval.Card{Number: number, Operation: op, Preview: preview})
	if err := a.showStatement(st, preview.GetSubject().GetEntry(), steps...); err != nil {
		return nil, err
	}
	if err := a.confirm(ctx, "Sign and approve?", yes); err != nil {
		return nil, err
	}
	signed, err := a.sign(ctx, s, st)
	if err != nil {
		return nil, err
	}
	response, err := s.Vault.ApproveOperation(ctx, &vaultv1.ApproveOperationRequest{OperationId: op.GetOperationId(), Statement: signed})
	if err != nil {
		return nil, err
	}
	return response.GetOperation(), nil
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
