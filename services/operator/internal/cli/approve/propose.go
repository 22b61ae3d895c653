package approve

import (
	"context"
	"errors"
	"strings"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/fault"
)

// proposal is a statement that a person is asked to sign, and what becomes of it then.
type proposal struct {
	document approval.Document
	// card is the request that the statement was made of, with the executor's answer; of a scope, the one for the call that was asked for.
	// It stands in the document.
	card approval.Card
	// submit hands the signed statement to the vault.
	submit func(context.Context, *callv1.HumanStatement) (*vaultv1.Operation, error)
}

// propose makes the statement that lets one operation run once, or a session within a scope. The request is shown as the statement has it.
func (a *app) propose(ctx context.Context, s *cli.Session, seen openSessions, op *vaultv1.Operation, number string, within *approval.Within) (*proposal, error) {
	p, preview, err := a.proposeApproval(ctx, s, op, number)
	if err == nil && within != nil {
		p, err = a.proposeScope(ctx, s, op, number, *within)
	}
	if err != nil {
		return nil, err
	}
	p.card = seen.card(ctx, s, op, number)
	p.card.Preview = preview
	p.document.About = p.card.Sheet(a.Now())
	return p, nil
}

// proposeApproval makes the statement that lets one operation run once, of the executor's answer, which it returns too.
func (a *app) proposeApproval(ctx context.Context, s *cli.Session, op *vaultv1.Operation, number string) (*proposal, *executorv1.PreviewCallResponse, error) {
	cannot := func(err error) (*proposal, *executorv1.PreviewCallResponse, error) {
		return nil, nil, cli.Denied("Deny it: durward deny "+number, "%s cannot be approved: %v", number, err)
	}
	call, err := approval.CallOf(op)
	if err != nil {
		return cannot(err)
	}
	preview, err := s.Preview(ctx, call.Tool.Ref(), call.Arguments)
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Code == callv1.Code_CODE_PLAN_CHANGED {
		return nil, nil, cli.Denied("Deny it, and the agent simulates and asks again: durward deny "+number,
			"%s cannot be approved: %v", number, approval.ErrPlan)
	}
	if err != nil {
		return nil, nil, err
	}
	signer := a.Signer(s)
	st, err := signer.Approve(op, preview)
	if err != nil {
		return cannot(err)
	}
	steps, err := call.Steps(preview)
	if err != nil {
		return cannot(err)
	}
	return &proposal{document: approval.DocumentOf(st, preview.GetSubject().GetEntry(), steps...),
		submit: func(ctx context.Context, signed *callv1.HumanStatement) (*vaultv1.Operation, error) {
			response, err := s.Vault.ApproveOperation(ctx, &vaultv1.ApproveOperationRequest{OperationId: op.GetOperationId(), Statement: signed})
			return response.GetOperation(), err
		}}, preview, nil
}

// proposeScope makes the statement that lets a session do more than the one call that it asked for.
func (a *app) proposeScope(ctx context.Context, s *cli.Session, op *vaultv1.Operation, number string, w approval.Within) (*proposal, error) {
	cannot := func(err error) error {
		next := "Approve the one call: durward approve " + number
		if errors.Is(err, approval.ErrTool) || errors.Is(err, approval.ErrArguments) || errors.Is(err, approval.ErrTarget) {
			next = "Deny it: durward deny " + number
		}
		return cli.Denied(next, "%s cannot be approved within a scope: %v", number, err)
	}
	scope, err := approval.NewScope(op, w)
	if errors.Is(err, approval.ErrWithin) {
		return nil, cli.Usage("", "%v", err)
	}
	if err != nil {
		return nil, cannot(err)
	}
	candidates, err := candidates(ctx, s, scope.Candidates())
	if err != nil {
		return nil, err
	}
	calls, err := scope.Calls(candidates)
	if err != nil {
		return nil, cannot(err)
	}
	var previews []*executorv1.PreviewCallResponse
	for _, call := range calls {
		preview, err := s.Preview(ctx, call.Tool.Ref(), call.Arguments)
		if err != nil {
			return nil, err
		}
		previews = append(previews, preview)
	}
	signer := a.Signer(s)
	st, err := signer.Scope(scope, previews)
	if err != nil {
		return nil, cannot(err)
	}
	return &proposal{document: approval.ScopeSheet(st, previews),
		submit: func(ctx context.Context, signed *callv1.HumanStatement) (*vaultv1.Operation, error) {
			response, err := s.Vault.Standing.GrantScope(ctx, &vaultv1.GrantScopeRequest{OperationId: op.GetOperationId(), Statement: signed})
			return response.GetOperation(), err
		}}, nil
}

// candidates are the ids of everything of a kind that the executor's catalog has.
func candidates(ctx context.Context, s *cli.Session, kind string) ([]string, error) {
	switch kind {
	case "":
		return nil, nil
	case "Service", "Mode":
		return s.IDs(ctx, strings.ToLower(kind))
	default:
		return nil, cli.Usage("Let any definition do: --any", "there is no list of every %s to approve", strings.ToLower(kind))
	}
}
