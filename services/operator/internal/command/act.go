package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

const signedRoad = `
It takes the same road as an agent's request: you are shown the target as the executor has it and the
whole statement, you sign it with your key, the vault grants it, the executor checks your signature
itself, and everything is recorded. No agent is involved.

Without a terminal it refuses unless --yes is given; a protected key asks for its passphrase all the same.`

// verb is a change of one service that a person can ask for.
type verb struct {
	word, tool, short, long string
}

var verbs = []verb{
	{"start", "start_service", "Start a service, by your own signed command",
		"Starts a service and waits until it answers. A service that does not fit in GPU memory is not started."},
	{"stop", "stop_service", "Stop a service, by your own signed command",
		"Stops a service. Requests in flight end with it."},
	{"sleep", "sleep_service", "Put a service to sleep, by your own signed command",
		"Puts a service to sleep: its engine gives back most of its GPU memory, and waking it is quicker than a start.\n" +
			"That the memory is free is measured, not believed."},
	{"wake", "wake_service", "Wake a sleeping service, by your own signed command",
		"Wakes a sleeping service, if it fits in GPU memory."},
}

// actCommand is one verb, below `durward` or `durward service`.
func (a *app) actCommand(v verb) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:               v.word + " ID",
		Short:             v.short,
		Long:              v.long + "\n" + signedRoad,
		Example:           "  durward " + v.word + " demo-chat",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.command(ctx, s, v.tool, args[0], yes)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	return cmd
}

// command carries out a human's own call of a tool that takes a service id.
func (a *app) command(ctx context.Context, s *session, tool, serviceID string, yes bool) error {
	err := a.act(ctx, s, tool, map[string]string{"service_id": serviceID}, yes)
	if errors.Is(err, approval.ErrArguments) {
		return usage("See: durward services", "%q is not a service id: letters, digits, _ and -, at most 64",
			clean.Visible(serviceID))
	}
	return err
}

// act carries out a human's own call: shown, signed, granted, done, recorded. Arguments that the tool does not take are
// approval.ErrArguments.
func (a *app) act(ctx context.Context, s *session, tool string, arguments map[string]string, yes bool) error {
	raw, err := canonical.Marshal(arguments)
	if err != nil {
		return fmt.Errorf("%w: %w", approval.ErrArguments, err)
	}
	call, err := approval.NewCall(tool, raw)
	if err != nil {
		return err
	}
	preview, err := s.preview(ctx, call.Tool.Ref(), call.Arguments)
	if err != nil {
		return err
	}
	signer, err := a.signer(s)
	if err != nil {
		return err
	}
	vault, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	st, err := signer.Command(call, preview, vault.GetEpoch())
	if err != nil {
		return denied("", "it cannot be signed: %v", err)
	}
	steps, err := call.Steps(preview)
	if err != nil {
		return denied("", "it cannot be signed: %v", err)
	}
	out := a.display()
	out.Printf("%s  %s %s  on %s\n", out.Bold(contract.TierName(call.Tool.Tier)), call.Tool.Name,
		approval.Arguments(call.Arguments), approval.Place(st.Audience))
	for _, step := range preview.GetPlan() {
		out.Printf("  %s\n", clean.Visible(step))
	}
	for _, line := range approval.StepLines(steps) {
		out.Printf("  %s\n", line)
	}
	if err := a.showStatement(st, preview.GetSubject().GetEntry(), steps...); err != nil {
		return err
	}
	if err := a.confirm(ctx, "Sign and do it?", yes); err != nil {
		return err
	}
	signed, err := a.sign(ctx, s, st)
	if err != nil {
		return err
	}
	granted, err := s.Vault.GrantCommand(ctx, &vaultv1.GrantCommandRequest{Statement: signed})
	if err != nil {
		return err
	}
	return a.carryOut(ctx, s, call, granted.GetGrant(), granted.GetOperationId())
}

// carryOut does a granted call at the executor, shows its steps while it runs, and then how it ended.
func (a *app) carryOut(
	ctx context.Context, s *session, call approval.Call, grant *callv1.SignedGrant, operationID string,
) error {
	stop := a.follow(ctx, s, operationID)
	r, err := s.dispatch(ctx, call, grant)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return failed("What was begun goes on at the executor; nothing is undone. See: durward watch", "interrupted")
		}
		return err
	}
	return a.showResult(r, operationID)
}

// showResult prints how a call ended. A call that was carried out and did not go well is an error, with exit code 1.
func (a *app) showResult(r result, operationID string) error {
	summary := clean.Line(r.outcome.GetSummary(), 500)
	if a.json {
		response, err := output.MessageJSON(r.response)
		if err != nil {
			return err
		}
		status := "ok"
		if r.outcome.GetFailed() {
			status = "failed"
		}
		if err := a.out.Value(map[string]any{
			"status": status, "operation_id": operationID, "request_id": a.requestID, "summary": summary,
			"replayed": r.outcome.GetReplayed(), "audit_index": r.outcome.GetReceipt().GetIndex(), "result": response,
		}); err != nil {
			return err
		}
	} else {
		a.printResult(r, orElse(summary, "done"), operationID)
	}
	if !r.outcome.GetFailed() {
		return nil
	}
	if switched, ok := r.response.(*executorv1.SwitchModeResponse); ok {
		return switchProblem(switched)
	}
	return failed("See: durward audit show "+operationID, "%s", orElse(summary, "it was carried out and did not go well"))
}

func (a *app) printResult(r result, summary, operationID string) {
	mark := a.out.Green("✓")
	if r.outcome.GetFailed() {
		mark = a.out.Red("✗")
	}
	a.out.Printf("%s %s\n", mark, summary)
	for _, warning := range r.outcome.GetWarnings() {
		a.out.Printf("  %s\n", a.out.Yellow(clean.Line(warning, 500)))
	}
	a.printResponse(r.response)
	if r.outcome.GetReplayed() {
		a.out.Printf("  It had been carried out before; this is what was recorded then.\n")
	}
	if r.outcome.GetReceipt() != nil {
		recorded := fmt.Sprintf("recorded as %d; durward audit show %s", r.outcome.GetReceipt().GetIndex(), operationID)
		a.out.Printf("  %s\n", a.out.Dim(recorded))
	}
}

// printResponse prints what a tool's own answer adds to the summary.
func (a *app) printResponse(response proto.Message) {
	switch m := response.(type) {
	case *executorv1.SwitchModeResponse:
		a.printSwitched(m)
	case interface {
		GetService() *executorv1.ServiceDetail
	}:
		if url := m.GetService().GetBaseUrl(); url != "" {
			a.out.Printf("  %s  %s\n", a.stateColour(m.GetService().GetState()), clean.Line(url, 256))
		}
	}
}
