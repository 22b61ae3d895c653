package approve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
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
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
			if watch && a.Interactive() && a.Out.Draws {
				return a.runScreen(ctx, s, true)
			}
			if watch {
				return a.watchApprovals(ctx, s)
			}
			return a.listApprovals(ctx, s)
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "stay and show each request as it comes (with --json: one object a line)")
	return cmd
}

// actionable are the states in which a person can still do something about an operation.
var actionable = []vaultv1.OperationState{vaultv1.OperationState_OPERATION_STATE_PENDING, vaultv1.OperationState_OPERATION_STATE_APPROVED}

// operations returns what is pending or approved and not carried out.
func operations(ctx context.Context, s *cli.Session) ([]*vaultv1.Operation, error) {
	return s.Operations(ctx, actionable...)
}

func operationIDs(ops []*vaultv1.Operation) []string {
	return output.Each(ops, (*vaultv1.Operation).GetOperationId)
}

// openSessions are the vault's open sessions, for people to recognise who asks.
type openSessions struct {
	byRef   map[string]*vaultv1.OpenSession
	numbers map[string]int
}

// askSessions asks the vault; what it does not tell is not shown.
func askSessions(ctx context.Context, s *cli.Session) openSessions {
	list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
	if err != nil {
		return openSessions{}
	}
	seen := openSessions{map[string]*vaultv1.OpenSession{}, approval.SessionNumbers(list.GetSessions())}
	for _, one := range list.GetSessions() {
		seen.byRef[one.GetSession()] = one
	}
	return seen
}

// card is an operation with who asks.
func (seen openSessions) card(ctx context.Context, s *cli.Session, op *vaultv1.Operation, number string) approval.Card {
	c := approval.Card{Number: number, Operation: op, Session: seen.byRef[op.GetSession()], SessionNumber: seen.numbers[op.GetSession()]}
	if c.Session == nil {
		c.Agent = askingAgent(ctx, s, op.GetOperationId())
	}
	return c
}

// card adds the executor's own preview to an operation.
func card(ctx context.Context, s *cli.Session, op *vaultv1.Operation, number string, seen openSessions) approval.Card {
	c := seen.card(ctx, s, op, number)
	call, err := approval.CallOf(op)
	if err == nil {
		c.Preview, err = s.Preview(ctx, call.Tool.Ref(), call.Arguments)
	}
	if err != nil {
		c.Problem = cli.PublicText(err)
	}
	return c
}

// askedPatience bounds how long a card waits for the record of its request, and a sentence for one of an end.
const askedPatience = time.Second

// detailAgent is the detail of the vault's record of a request that names the client's agent.
const detailAgent = "agent"

// askingAgent is which of a client's agents asked, as the vault recorded it: once a session has ended nothing else tells. "" where
// it names none, or the log does not answer.
func askingAgent(ctx context.Context, s *cli.Session, operationID string) string {
	ctx, cancel := context.WithTimeout(ctx, askedPatience)
	defer cancel()
	found, err := s.Audit.SearchRecords(ctx, &auditv1.SearchRecordsRequest{
		OperationId: operationID, Kinds: []auditv1.Kind{auditv1.Kind_KIND_ASKED}, Writer: s.Config.Vault.Identity, Limit: 1,
	})
	if err != nil || len(found.GetEntries()) == 0 {
		return ""
	}
	return clean.Line(found.GetEntries()[0].GetRecord().GetBody().GetDetails()[detailAgent], 64)
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
	Fit         *fitJSON        `json:"fit,omitempty"`
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

// fitJSON says whether a start, a wake or a switch fits now, and what would make room.
type fitJSON struct {
	Fits    bool      `json:"fits"`
	Reason  string    `json:"reason,omitempty"`
	GPUs    []gpuJSON `json:"gpus"`
	Instead []string  `json:"instead,omitempty"`
}

type gpuJSON struct {
	Index    uint32 `json:"index"`
	TotalMiB uint32 `json:"total_mib"`
	NowMiB   uint32 `json:"now_mib"`
	AfterMiB uint32 `json:"after_mib"`
	FreeMiB  uint32 `json:"free_mib"`
	Source   string `json:"source"`
}

func fitOf(fit *executorv1.SimulateModeResponse) *fitJSON {
	if fit == nil {
		return nil
	}
	out := &fitJSON{Fits: fit.GetFits(), Reason: fit.GetReason(), GPUs: []gpuJSON{}, Instead: output.Each(fit.GetAlternatives(), approval.ChangeWords)}
	for _, g := range fit.GetGpus() {
		out.GPUs = append(out.GPUs, gpuJSON{g.GetIndex(), g.GetTotalMib(), g.GetNowMib(), g.GetAfterMib(), g.GetFreeMib(), g.GetSource()})
	}
	return out
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
		Number: c.Number, OperationID: op.GetOperationId(), State: contract.WordOf(op.GetState()), Tier: contract.TierName(op.GetTier()),
		Tool: op.GetTool().GetName(), Arguments: arguments, Audience: op.GetAudience(), Target: c.Preview.GetSubject().GetLabel(),
		Plan: c.Preview.GetPlan(), Fit: fitOf(c.Preview.GetFit()), Problem: c.Problem, Principal: op.GetPrincipal(), Agent: c.AgentName(), ClientName: op.GetClientName(),
		KeyBound: op.GetKeyBound(), Session: op.GetSession(), Channel: statement.ChannelName(op.GetChannel()),
		AgentReason: op.GetAgentReason(), AskedAt: op.GetAskedAt().AsTime().Format(time.RFC3339),
		ExpiresAt: op.GetExpiresAt().AsTime().Format(time.RFC3339), Waiters: op.GetWaiters(), DecidedBy: op.GetDecidedBy(),
		RequestID: op.GetRequestId(),
	}
}

func (a *app) listApprovals(ctx context.Context, s *cli.Session) error {
	ops, err := operations(ctx, s)
	if err != nil {
		return err
	}
	numbers := approval.Numbers(operationIDs(ops))
	seen := askSessions(ctx, s)
	var waiting, approved []approval.Card
	for _, op := range ops {
		number := numbers[op.GetOperationId()]
		if cli.IsPending(op) {
			waiting = append(waiting, card(ctx, s, op, number, seen))
		} else {
			approved = append(approved, approval.Card{Number: number, Operation: op})
		}
	}
	list := output.Each(waiting, cardJSON)
	changed := changedServers(ctx, s)
	shown := map[string]any{"operations": list}
	if len(changed) > 0 {
		shown["changed_servers"] = changed
	}
	return a.Show(shown, func() {
		for _, server := range changed {
			a.Out.Printf("! the server %s is not as you accepted it, and no such call passes: %s server diff %s\n", server, a.Typed(), server)
		}
		if len(waiting) == 0 {
			a.Out.Printf("Nothing waits.\n")
		} else {
			a.Out.Printf("%d waiting\n", len(waiting))
		}
		for _, c := range waiting {
			a.PrintLines(c.Sheet(a.Now()))
		}
		for _, c := range approved {
			a.Out.Printf("%s  approved by %s, and nobody has come for it yet: %[3]s approve %[1]s --run, or take it back: %[3]s deny %[1]s\n", c.Number,
				clean.Visible(c.Operation.GetDecidedBy()), a.Typed())
		}
		if len(waiting) > 0 {
			n, durward := waiting[0].Number, a.Typed()
			scope := cli.When(waiting[0].Operation.GetKeyBound(), " [--scope]")
			a.Out.Printf("%s\n", a.Out.Dim(fmt.Sprintf("%s approve %s%s   %s deny %s --reason \"…\"   %s tui", durward, n, scope, durward, n, durward)))
		}
	})
}

// serversWithin is how long egress has to say what became of servers' tools: nobody waits for that.
const serversWithin = time.Second

// changedServers are other people's servers that list another definition of a tool than a human accepted, or it no more.
func changedServers(ctx context.Context, s *cli.Session) []string {
	if s.Egress == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, serversWithin)
	defer cancel()
	list, err := s.Egress.ListServers(ctx, &egressv1.ListServersRequest{})
	if err != nil {
		return nil // durward status says why
	}
	changed := map[string]bool{}
	for _, one := range list.GetServers() {
		if len(one.GetChanged())+len(one.GetAbsent()) > 0 {
			changed[clean.Visible(one.GetId())] = true
		}
	}
	return slices.Sorted(maps.Keys(changed))
}

// watchApprovals shows each operation as it comes and each decision as it falls.
func (a *app) watchApprovals(ctx context.Context, s *cli.Session) error {
	known := map[string]vaultv1.OperationState{}
	ended := cli.Unreachable("Start it again: durward approvals --watch", "the vault ended the watch")
	return cli.Follow(ctx, a.Now, ended, func(bool) (grpc.ServerStreamingClient[vaultv1.WatchOperationsResponse], error) {
		return s.Vault.WatchOperations(ctx, &vaultv1.WatchOperationsRequest{})
	}, func(event *vaultv1.WatchOperationsResponse) error {
		op := event.GetOperation()
		if before, seen := known[op.GetOperationId()]; seen && before == op.GetState() {
			return nil
		}
		known[op.GetOperationId()] = op.GetState()
		number := approval.Numbers(slices.Collect(maps.Keys(known)))[op.GetOperationId()]
		c := approval.Card{Number: number, Operation: op}
		if cli.IsPending(op) {
			c = card(ctx, s, op, number, askSessions(ctx, s))
		}
		return a.ShowLine(cardJSON(c), func() {
			if cli.IsPending(op) {
				a.PrintLines(c.Sheet(a.Now()))
				return
			}
			a.Out.Printf("%s  %s\n", number, became(op))
		})
	})
}

// became is what became of an operation, and by whom.
func became(op *vaultv1.Operation) string {
	text := contract.WordOf(op.GetState())
	if by := op.GetDecidedBy(); by != "" {
		text += " by " + approval.Person(by)
	}
	return text
}

// waitsNot says that no operation that waits has the number, and what became of one that has it, where the vault tells.
func waitsNot(ctx context.Context, s *cli.Session, number string) error {
	past, _ := s.Operations(ctx, vaultv1.OperationState_OPERATION_STATE_RUNNING, vaultv1.OperationState_OPERATION_STATE_DONE,
		vaultv1.OperationState_OPERATION_STATE_DENIED, vaultv1.OperationState_OPERATION_STATE_EXPIRED, vaultv1.OperationState_OPERATION_STATE_WITHDRAWN)
	ids := operationIDs(past)
	id, err := approval.Find(number, ids)
	if err != nil {
		return cli.Usage("See: durward approvals", "no operation that waits has the number %s", clean.Visible(number))
	}
	return cli.Usage("See: durward audit show "+id, "%s waits no more: %s", clean.Visible(number), became(past[slices.Index(ids, id)]))
}

// findAmong returns the live operation that a number names.
func findAmong(ctx context.Context, s *cli.Session, ops []*vaultv1.Operation, number string) (*vaultv1.Operation, string, error) {
	ids := operationIDs(ops)
	id, err := approval.Find(number, ids)
	if ambiguous, ok := errors.AsType[*approval.AmbiguousError](err); ok {
		return nil, "", cli.Usage("Say one of them.", "%v", ambiguous)
	}
	if err != nil {
		return nil, "", waitsNot(ctx, s, number)
	}
	at := slices.Index(ids, id)
	return ops[at], approval.Numbers(ids)[id], nil
}

// completeNumbers completes the short numbers of what waits, but for those that stand on the line.
func (a *app) completeNumbers(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var numbers map[string]string
	return cli.CompleteAsked(a.App, cmd, nil, func(ctx context.Context, s *cli.Session) ([]*vaultv1.Operation, error) {
		ops, err := operations(ctx, s)
		numbers = approval.Numbers(operationIDs(ops))
		return slices.DeleteFunc(ops, func(op *vaultv1.Operation) bool { return slices.Contains(args, numbers[op.GetOperationId()]) }), err
	}, func(op *vaultv1.Operation) (id, about string) {
		return numbers[op.GetOperationId()], clean.Visible(op.GetTool().GetName()) + " " + approval.Arguments(op.GetArguments())
	})
}
