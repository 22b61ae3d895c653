package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/logproof"
)

// ActOnService carries out a human's own call of a tool that takes a service id.
func (a *App) ActOnService(ctx context.Context, s *Session, tool, serviceID string, how Asking) error {
	err := a.Act(ctx, s, tool, map[string]string{"service_id": serviceID}, how)
	if errors.Is(err, approval.ErrArguments) {
		return Usage("See: durward services", "%q is not a service id: letters, digits, _ and -, at most 64",
			clean.Visible(serviceID))
	}
	return err
}

// Act carries out a human's own call: shown, signed, granted, done, recorded. Arguments that the tool does not take are
// approval.ErrArguments.
func (a *App) Act(ctx context.Context, s *Session, tool string, arguments map[string]string, how Asking) error {
	call, document, err := a.ProposeCommand(ctx, s, tool, arguments)
	if err != nil {
		return err
	}
	signed, err := a.AskAndSign(ctx, s, "Sign and do it?", how, document)
	if err != nil {
		return err
	}
	granted, err := s.Vault.GrantCommand(ctx, &vaultv1.GrantCommandRequest{Statement: signed[0]})
	if err != nil {
		return err
	}
	return a.CarryOut(ctx, s, call, granted.GetGrant(), granted.GetOperationId())
}

// ProposeCommand makes a person's own call, and what they sign for it.
func (a *App) ProposeCommand(ctx context.Context, s *Session, tool string, arguments map[string]string) (approval.Call, approval.Document, error) {
	raw, err := canonical.Marshal(arguments)
	if err != nil {
		return approval.Call{}, approval.Document{}, fmt.Errorf("%w: %w", approval.ErrArguments, err)
	}
	call, err := approval.NewCall(tool, raw)
	if err != nil {
		return call, approval.Document{}, err
	}
	document, err := a.documentOf(ctx, s, call)
	return call, document, err
}

func (a *App) documentOf(ctx context.Context, s *Session, call approval.Call) (approval.Document, error) {
	cannot := func(err error) (approval.Document, error) {
		return approval.Document{}, Denied("", "it cannot be signed: %v", err)
	}
	preview, err := s.Preview(ctx, call.Tool.Ref(), call.Arguments)
	if err != nil {
		return approval.Document{}, err
	}
	if err := sleepless(call.Tool.Name, preview.GetSubject().GetEntry()); err != nil {
		return approval.Document{}, err
	}
	signer := a.Signer(s)
	vault, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return approval.Document{}, err
	}
	st, err := signer.Command(call, preview, vault.GetEpoch())
	if err != nil {
		return cannot(err)
	}
	steps, err := call.Steps(preview)
	if err != nil {
		return cannot(err)
	}
	document := approval.DocumentOf(st, preview.GetSubject().GetEntry(), steps...)
	document.About = []approval.Line{{Kind: approval.Heading, Text: fmt.Sprintf("%s  %s %s  on %s", contract.TierName(call.Tool.Tier), call.Tool.Name,
		approval.Arguments(call.Arguments), approval.Place(st.Audience))}}
	for _, text := range slices.Concat(preview.GetPlan(), approval.StepLines(steps), approval.FitLines(preview.GetFit())) {
		line := approval.Line{Text: "  " + clean.Visible(text)}
		if approval.Unfit(text) {
			line.Kind = approval.Danger
		}
		document.About = append(document.About, line)
	}
	return document, nil
}

// sleepless refuses, before anybody signs, to put to sleep or to wake a service whose entry says no way to: the executor would refuse it.
func sleepless(tool string, entry []byte) error {
	cannot := map[string]string{"sleep_service": "cannot sleep", "wake_service": "does not sleep"}[tool]
	var service struct{ ID, Sleep string }
	if cannot == "" || json.Unmarshal(entry, &service) != nil || service.Sleep != catalog.SleepNone {
		return nil
	}
	id := clean.Line(service.ID, 64)
	return Failed("Its entry: durward catalog show "+id, "%s %s: its catalogue entry says no way to", id, cannot)
}

// Carry does a granted call at the executor and returns how it ended, in one line.
func (s *Session) Carry(ctx context.Context, call approval.Call, grant *callv1.SignedGrant) (string, error) {
	r, err := s.dispatch(ctx, call, grant)
	if err != nil {
		return "", err
	}
	summary := cmp.Or(clean.Line(r.outcome.GetSummary(), 500), "done")
	if r.outcome.GetFailed() {
		return "", Failed("", "%s", summary)
	}
	return summary, nil
}

// CarryOut does a granted call at the executor, shows its steps while it runs, and then how it ended.
func (a *App) CarryOut(
	ctx context.Context, s *Session, call approval.Call, grant *callv1.SignedGrant, operationID string,
) error {
	stop := a.follow(ctx, s, operationID)
	r, err := s.dispatch(ctx, call, grant)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return Failed("What was begun goes on at the executor; nothing is undone. See: durward watch", "interrupted")
		}
		return err
	}
	return a.showResult(r, operationID)
}

// showResult prints how a call ended. A call that was carried out and did not go well is an error, with exit code 1.
func (a *App) showResult(r result, operationID string) error {
	summary := clean.Line(r.outcome.GetSummary(), 500)
	response, err := output.MessageJSON(r.response)
	if err != nil {
		return err
	}
	status := "ok"
	if r.outcome.GetFailed() {
		status = "failed"
	}
	shown := map[string]any{
		"status": status, "operation_id": operationID, "request_id": a.RequestID, "summary": summary,
		"replayed": r.outcome.GetReplayed(), "audit_index": r.outcome.GetReceipt().GetIndex(), "result": response,
	}
	if receipt := r.outcome.GetReceipt(); receipt != nil {
		shown["receipt"] = logproof.NewReceipt(receipt)
	}
	err = a.Show(shown, func() { a.printResult(r, cmp.Or(summary, "done"), operationID) })
	if err != nil {
		return err
	}
	if !r.outcome.GetFailed() {
		return nil
	}
	if switched, ok := r.response.(*executorv1.SwitchModeResponse); ok {
		return switchProblem(switched)
	}
	return Failed("See: durward audit show "+operationID, "%s", cmp.Or(summary, "it was carried out and did not go well"))
}

// printResult prints one line: how it went, and the operation's id. More is said of what failed.
func (a *App) printResult(r result, summary, operationID string) {
	mark := a.Out.Green("✓")
	if r.outcome.GetFailed() {
		mark = a.Out.Red("✗")
	}
	a.Out.Printf("%s %s  %s\n", mark, summary, a.Out.Dim(operationID))
	if switched, ok := r.response.(*executorv1.SwitchModeResponse); ok && r.outcome.GetFailed() {
		a.printSwitched(switched)
	}
	for _, warning := range r.outcome.GetWarnings() {
		a.Out.Remark("%s", a.Out.Yellow(clean.Line(warning, 500)))
	}
	if r.outcome.GetReplayed() {
		a.Out.Remark("It had been carried out before; this is what was recorded then.")
	}
}
