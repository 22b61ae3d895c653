package approve

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/contract"
)

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
						return cli.Usage("Add --scope, or leave it out.", "--%s is for a scope", name)
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
	cli.CompleteFlag(cmd, "for", cli.OneOf("30m", "1h", "2h", "8h"))
	cli.CompleteFlag(cmd, "uses", cli.OneOf("5", "10", "50"))
	cli.CompleteFlag(cmd, "tool", cli.OneOf(changingTools()...))
	cli.CompleteFlag(cmd, "free", cli.OneOf(changingArguments()...))
	return cmd
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
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		op, number, err := find(ctx, s, number)
		if err != nil {
			return err
		}
		call, err := approval.CallOf(op)
		if err != nil {
			return cli.Denied("Deny it: durward deny "+number, "%s cannot be approved: %v", number, err)
		}
		if within != nil && !cli.IsPending(op) {
			return cli.Usage("Carry it out: durward approve "+number+" --run", "%s is approved already", number)
		}
		if cli.IsPending(op) {
			if op, err = a.decide(ctx, s, op, number, within, yes); err != nil {
				return err
			}
		}
		waiting := op.GetWaiters() > 0
		if !run || waiting {
			err := a.Show(cardJSON(approval.Card{Number: number, Operation: op}), func() {
				a.Out.Printf("%s %s approved.\n", a.Out.Green("✓"), number)
				if within != nil {
					a.Out.Printf("  It may be repeated within the scope. See it, end it: durward standing\n")
				}
				if waiting {
					a.Out.Printf("  The agent waits; its call carries it out now. See it: durward watch\n")
				} else {
					a.Out.Printf("  No agent waits at this moment. Its next wait_operation carries it out, or: durward approve %s --run\n", number)
				}
			})
			if err != nil || waiting || yes || !a.Interactive() || a.Confirm(ctx, "Carry it out from here now?", false) != nil {
				return err
			}
		}
		claimed, err := s.Vault.ClaimOperation(ctx, &vaultv1.ClaimOperationRequest{OperationId: op.GetOperationId()})
		if err != nil {
			return err
		}
		return a.CarryOut(ctx, s, call, claimed.GetGrant(), op.GetOperationId())
	})
}

// decide shows, asks, signs and hands in one approval, or a scope.
func (a *app) decide(ctx context.Context, s *cli.Session, op *vaultv1.Operation, number string, within *approval.Within, yes bool) (*vaultv1.Operation, error) {
	p, preview, err := a.proposeApproval(ctx, s, op, number)
	if err != nil {
		return nil, err
	}
	question := "Sign and approve?"
	seen := askSessions(ctx, s)
	card := approval.Card{Number: number, Operation: op, Preview: preview, Session: seen.byRef[op.GetSession()], SessionNumber: seen.numbers[op.GetSession()]}
	if card.Session == nil {
		card.Agent = askingAgent(ctx, s, op.GetOperationId())
	}
	if within != nil {
		if p, err = a.proposeScope(ctx, s, op, number, *within); err != nil {
			return nil, err
		}
		question = "Sign, and let it happen within this scope without asking again?"
	}
	a.PrintLines(card.Sheet(a.Now()))
	signed, err := a.AskAndSign(ctx, s, p.document, question, yes)
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
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			op, number, err := find(ctx, s, args[0])
			if err != nil {
				return err
			}
			if len(reason) > 500 {
				return cli.Usage("", "--reason is at most 500 bytes")
			}
			response, err := s.Vault.DenyOperation(ctx, &vaultv1.DenyOperationRequest{OperationId: op.GetOperationId(), Reason: reason})
			if err != nil {
				return err
			}
			return a.Show(cardJSON(approval.Card{Number: number, Operation: response.GetOperation()}), func() {
				a.Out.Printf("%s denied.\n", number)
			})
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what the agent is told")
	return cmd
}
