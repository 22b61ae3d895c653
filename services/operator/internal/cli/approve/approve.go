package approve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

// Defaults of a scope: enough for a sitting, not for a day.
const (
	scopeFor  = time.Hour
	scopeUses = 10
)

func (a *app) approveCommand() *cobra.Command {
	var run, scope bool
	var how *cli.Asking
	var session string
	var within approval.Within
	cmd := &cobra.Command{
		Use:   "approve NUMBER...",
		Short: "Look at requests, sign, let each happen once or within a scope",
		Long: `Shows what an agent asked for on one screen: who asks, the call, its target, whether it fits now, the risk, and
the agent's words. v at the question, or --full, shows whole what you sign: the target as the executor itself has
it, the plan, and the statement. What does not fit on the screen takes v before y. Every digest is computed
here. Then it opens your signing key (a passphrase or touch is asked for each time), signs, and hands the
statement in. With several numbers, or --all-of a session, you are asked once for all of them, and once for
each that is DESTRUCTIVE.

Approving executes nothing by itself: the agent's waiting call does. When nobody waits any more, --run
carries the call out from here. What nobody has come for yet "durward deny" takes back.

With --scope the session may repeat the call without asking: --uses times, --for so long (8 hours at most).
Arguments are pinned to what was asked for; --free lets one have any value, --tool adds tools that take the
same arguments. Each definition that may be acted on is shown and pinned too, unless --any lets whatever the
executor's catalogue says at that time do. Only clients that sign each request themselves (key-bound) can be
let so. It ends with the session, a panic, a restart of the vault, or: durward standing revoke

Without a terminal it shows everything whole, and refuses unless --yes is given. --yes skips the question and
nothing else: a terminal proves nothing, the key does, so a protected key still asks for its passphrase.

NUMBER is a short number from "durward approvals", or the first 8 characters of an operation id or more.`,
		Example: "  durward approve K7F3\n  durward approve K7F3 --run\n  durward approve K7F3 QXD2\n  durward approve --all-of s-4kqz\n" +
			"  durward approve K7F3 --scope --for 2h --uses 20 --tool stop_service\n  durward approve K7F3 --scope --free service_id",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeNumbers,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 == (session == "") {
				return cli.Usage("Usage: "+cmd.UseLine(), "say which: numbers, or --all-of a session")
			}
			if !scope {
				for _, name := range []string{"for", "uses", "tool", "free", "any"} {
					if cmd.Flags().Changed(name) {
						return cli.Usage("Add --scope, or leave it out.", "--%s is for a scope", name)
					}
				}
				return a.approve(cmd.Context(), args, session, nil, run, *how)
			}
			if len(args) != 1 {
				return cli.Usage("Approve them one after the other.", "a scope is of one request")
			}
			return a.approve(cmd.Context(), args, "", &within, run, *how)
		},
	}
	how = cli.AskingFlags(cmd)
	cmd.Flags().BoolVar(&run, "run", false, "carry it out from here if no agent waits for it")
	cmd.Flags().StringVar(&session, "all-of", "", "all that this `SESSION` asked for and that waits")
	cmd.Flags().BoolVar(&scope, "scope", false, "let the session repeat it without asking, within what the other flags say")
	cmd.Flags().DurationVar(&within.For, "for", scopeFor, "scope: for so long, 8h at most")
	cmd.Flags().IntVar(&within.Uses, "uses", scopeUses, "scope: so often, 1000 at most")
	cmd.Flags().StringSliceVar(&within.Tools, "tool", nil, "scope: these tools as well")
	cmd.Flags().StringSliceVar(&within.Free, "free", nil, "scope: these arguments may have any value")
	cmd.Flags().BoolVar(&within.Any, "any", false, "scope: act on whatever the catalogue says at that time")
	cli.CompleteFlag(cmd, "all-of", a.CompleteSessions)
	cli.CompleteFlag(cmd, "for", cli.OneOf("30m", "1h", "2h", "8h"))
	cli.CompleteFlag(cmd, "uses", cli.OneOf("5", "10", "50"))
	cli.CompleteFlag(cmd, "tool", cli.OneOfThose(changingTools))
	cli.CompleteFlag(cmd, "free", cli.OneOfThose(changingArguments))
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

// request is one that is to be approved.
type request struct {
	op     *vaultv1.Operation
	number string
	call   approval.Call
}

func (r request) name() string { return r.number }

func (a *app) approve(ctx context.Context, numbers []string, session string, within *approval.Within, run bool, how cli.Asking) error {
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		chosen, err := choose(ctx, s, numbers, session)
		if err != nil {
			return err
		}
		if within != nil && !cli.IsPending(chosen[0].op) {
			return cli.Usage("Carry it out: durward approve "+chosen[0].number+" --run", "%s is approved already", chosen[0].number)
		}
		approved, err := a.decideAll(ctx, s, chosen, within, how)
		if err != nil && len(approved) == 0 {
			return err
		}
		return errors.Join(a.afterwards(ctx, s, approved, len(chosen) > 1, within != nil, run, how), err)
	})
}

// choose finds the requests that are named, or all that a session has waiting.
func choose(ctx context.Context, s *cli.Session, numbers []string, session string) ([]request, error) {
	ops, err := operations(ctx, s)
	if err != nil {
		return nil, err
	}
	if session != "" {
		if numbers, err = waitingOf(ops, session); err != nil {
			return nil, err
		}
	}
	chosen, err := named(ctx, s, ops, numbers)
	if err != nil {
		return nil, err
	}
	for i, r := range chosen {
		if chosen[i].call, err = approval.CallOf(r.op); err != nil {
			return nil, cli.Denied("Deny it: durward deny "+r.number, "%s cannot be approved: %v", r.number, err)
		}
	}
	return chosen, nil
}

// named are the requests that numbers name, each once, without their calls.
func named(ctx context.Context, s *cli.Session, ops []*vaultv1.Operation, numbers []string) (out []request, err error) {
	for _, name := range numbers {
		op, number, err := findAmong(ctx, s, ops, name)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(out, func(r request) bool { return r.number == number }) {
			out = append(out, request{op: op, number: number})
		}
	}
	return out, nil
}

// waitingOf are the ids of what a session asked for and that waits.
func waitingOf(ops []*vaultv1.Operation, name string) ([]string, error) {
	var sessions []*vaultv1.OpenSession
	ids := map[string][]string{}
	for _, op := range ops {
		if ref := op.GetSession(); cli.IsPending(op) {
			if ids[ref] == nil {
				sessions = append(sessions, &vaultv1.OpenSession{Session: ref})
			}
			ids[ref] = append(ids[ref], op.GetOperationId())
		}
	}
	found, err := cli.FindSession(name, sessions, cli.Usage("See: durward approvals", "nothing waits that a session %s asked for", clean.Visible(name)))
	return ids[found.GetSession()], err
}

// decideAll has requests decided: what is DESTRUCTIVE each for itself, everything else together. It returns those that are approved,
// those from before included. Of several, one that is not approved keeps none of the others back.
func (a *app) decideAll(ctx context.Context, s *cli.Session, chosen []request, within *approval.Within, how cli.Asking) ([]request, error) {
	var together, approved []request
	var decisions [][]request
	for _, r := range chosen {
		switch {
		case !cli.IsPending(r.op):
			approved = append(approved, r)
		case (approval.Card{Operation: r.op}).IsDestructive():
			decisions = append(decisions, []request{r})
		default:
			together = append(together, r)
		}
	}
	if len(together) > 0 {
		decisions = append([][]request{together}, decisions...)
	}
	err := a.each(ctx, make([]string, len(decisions)), errNotAll, func(i int) error {
		done, err := a.decide(ctx, s, decisions[i], within, how)
		approved = append(approved, done...)
		return err
	})
	return approved, err
}

// errNotAll means that of several requests some were not approved.
var errNotAll = cli.Denied("See: durward approvals", "not all of them were approved")

// each does one thing after the other. Of several, one that fails is told, behind its name, and keeps none of the others back; the error is
// rest then. Of one alone, and once a person ended it, the error is its own.
func (a *app) each(ctx context.Context, names []string, rest error, do func(i int) error) (failed error) {
	for i, name := range names {
		err := do(i)
		if err != nil && (len(names) == 1 || ctx.Err() != nil) {
			return err
		}
		if err != nil {
			a.Out.Remark("%s", a.Out.Red(cli.When(name != "", name+": ")+cli.PublicText(err)))
			failed = rest
		}
	}
	return failed
}

// decide shows requests, asks once, signs and hands each approval in, or a scope of the only one.
func (a *app) decide(ctx context.Context, s *cli.Session, decision []request, within *approval.Within, how cli.Asking) ([]request, error) {
	seen := askSessions(ctx, s)
	var asked []request
	var proposals []*proposal
	var documents []approval.Document
	failed := a.each(ctx, make([]string, len(decision)), errNotAll, func(i int) error {
		p, err := a.propose(ctx, s, seen, decision[i].op, decision[i].number, within)
		if err == nil {
			asked, proposals, documents = append(asked, decision[i]), append(proposals, p), append(documents, p.document)
		}
		return err
	})
	if len(asked) == 0 {
		return nil, failed
	}
	question := "Sign and approve?"
	switch {
	case within != nil:
		question = "Sign, and let it happen within this scope without asking again?"
	case len(asked) > 1:
		question = fmt.Sprintf("Sign and approve these %d?", len(asked))
	}
	signed, err := a.AskAndSign(ctx, s, question, how, documents...)
	if err != nil {
		return nil, err
	}
	var approved []request
	err = a.each(ctx, output.Each(asked, request.name), errNotAll, func(i int) error {
		op, err := proposals[i].submit(ctx, signed[i]) // it may have been decided on, or taken back, while this was read
		if err == nil {
			approved = append(approved, request{op, asked[i].number, asked[i].call})
		}
		return err
	})
	return approved, cmp.Or(err, failed)
}

// afterwards says what becomes of what was approved, and carries out from here what nobody waits for, where that is wanted.
func (a *app) afterwards(ctx context.Context, s *cli.Session, approved []request, several, scope, run bool, how cli.Asking) error {
	var left []request
	var cards []operationJSON
	for _, r := range approved {
		if !run || r.op.GetWaiters() > 0 {
			cards = append(cards, cardJSON(approval.Card{Number: r.number, Operation: r.op}))
		} else {
			left = append(left, r)
		}
	}
	text := func() {
		for _, r := range approved {
			if run && r.op.GetWaiters() == 0 {
				continue
			}
			a.Out.Printf("%s %s approved.\n", a.Out.Green("✓"), r.number)
			if scope {
				a.Out.Printf("  It may be repeated within the scope. See it, end it: %s standing\n", a.Typed())
			}
			if r.op.GetWaiters() > 0 {
				a.Out.Printf("  The agent waits; its call carries it out now. See it: %s watch\n", a.Typed())
			} else {
				a.Out.Printf("  No agent waits at this moment. Its next wait_operation carries it out, or: %s approve %s --run\n", a.Typed(), r.number)
			}
		}
	}
	if several && run && a.Machine() {
		results, failed := a.Gathered(func() error { return a.carryOutAll(ctx, s, left) })
		return cmp.Or(failed, a.Show(map[string]any{"operations": cli.NonNil(cards), "results": cli.NonNil(results)}, nil))
	}
	var err error
	switch {
	case len(cards) == 0:
	case several:
		err = a.Show(map[string]any{"operations": cards}, text)
	default:
		err = a.Show(cards[0], text)
	}
	if err != nil {
		return err
	}
	if one := approved[0]; !run && !several && one.op.GetWaiters() == 0 && !how.Yes && a.Interactive() && a.Confirm(ctx, "Carry it out from here now?", false) == nil {
		left = approved
	}
	return a.carryOutAll(ctx, s, left)
}

func (a *app) carryOutAll(ctx context.Context, s *cli.Session, left []request) error {
	return a.each(ctx, output.Each(left, request.name), cli.Failed("See: durward approvals", "not all of them were carried out"), func(i int) error {
		id := left[i].op.GetOperationId()
		claimed, err := s.Vault.ClaimOperation(ctx, &vaultv1.ClaimOperationRequest{OperationId: id})
		if err != nil {
			return err
		}
		return a.CarryOut(ctx, s, left[i].call, claimed.GetGrant(), id)
	})
}

func (a *app) denyCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "deny NUMBER...",
		Short: "Refuse requests",
		Long: `Refuses what an agent asked for. The agent is told that a person refused, with your reason, and that it is
not to try again. What was approved once, and nobody has come for yet, is taken back: at the vault, and where it
would be carried out.

NUMBER is what approve takes.`,
		Example:           "  durward deny K7F3 --reason \"not while the benchmark runs\"\n  durward deny K7F3 QXD2",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeNumbers,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			return a.denyAll(ctx, s, args, reason)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what the agent is told")
	return cmd
}

// denyAll refuses requests, once all were found. Of several, one that is not refused keeps none of the others back.
func (a *app) denyAll(ctx context.Context, s *cli.Session, numbers []string, reason string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	ops, err := operations(ctx, s)
	if err != nil {
		return err
	}
	chosen, err := named(ctx, s, ops, numbers)
	if err != nil {
		return err
	}
	var said []string
	var cards []operationJSON
	failed := a.each(ctx, output.Each(chosen, request.name), cli.Failed("See: durward approvals", "not all of them were denied"), func(i int) error {
		r := chosen[i]
		op, err := deny(ctx, s, r.op, reason)
		if op != nil {
			said = append(said, r.number+" denied"+cli.When(!cli.IsPending(r.op), ": its approval is taken back")+".")
			cards = append(cards, cardJSON(approval.Card{Number: r.number, Operation: op}))
		}
		return err
	})
	if len(cards) == 0 {
		return failed
	}
	var shown any = map[string]any{"operations": cards}
	if len(chosen) == 1 {
		shown = cards[0]
	}
	return errors.Join(failed, a.Show(shown, func() { a.Out.Printf("%s\n", strings.Join(said, "\n")) }))
}

// deny refuses a request, and returns it if the vault has refused it.
func deny(ctx context.Context, s *cli.Session, op *vaultv1.Operation, reason string) (*vaultv1.Operation, error) {
	response, err := s.Vault.DenyOperation(ctx, &vaultv1.DenyOperationRequest{OperationId: op.GetOperationId(), Reason: reason})
	if err != nil {
		return nil, err
	}
	denied := response.GetOperation()
	// Whatever the vault says: the sinks have the last word on what begins.
	if approved := cmp.Or(op.GetStatement(), denied.GetStatement()); approved != nil {
		if deaf := s.EndAtSinks(ctx, approved); deaf != nil {
			err = cli.Unreachable("At the vault it is taken back: only a false vault could still have it carried out. Stop everything: durward panic", "%v", deaf)
		}
	}
	return denied, err
}
