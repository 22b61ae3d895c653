package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// runPatience is how long a start or stop may take: the catalogue allows an hour for a start.
const runPatience = 70 * time.Minute

// preview asks the executor itself what a call would act on and do.
func (s *session) preview(ctx context.Context, ref *callv1.ToolRef, arguments []byte) (*executorv1.PreviewCallResponse, error) {
	return s.Executor.PreviewCall(ctx, &executorv1.PreviewCallRequest{Tool: ref, Arguments: arguments})
}

// signer describes who signs. The executor's identity is the one that its certificate had to prove.
func (a *app) signer(s *session) (approval.Signer, error) {
	executor, err := identity.Parse(s.cfg.Executor.Identity)
	if err != nil {
		return approval.Signer{}, err
	}
	return approval.Signer{Operator: s.cfg.Operator, Executor: executor, Now: a.now()}, nil
}

// display is where a person looks before signing: the results' own place, or standard error when the results are for a
// program. Nothing is signed that was not shown.
func (a *app) display() *output.Printer {
	if !a.json {
		return a.out
	}
	return output.New(a.streams.Err, a.streams.Err, false, a.streams.Getenv)
}

// showStatement prints everything that is about to be signed: the target's own definition, whose digest the statement pins, the
// entry behind each step of a plan that starts or wakes something, and the statement, whole.
func (a *app) showStatement(st *statement.Statement, entry []byte, steps ...approval.Step) error {
	return a.showSheet(approval.SheetOf(st, entry, steps...))
}

// showSheet prints a sheet, whole.
func (a *app) showSheet(sheet approval.Sheet) error {
	lines, err := sheet.Lines(a.now())
	if err != nil {
		return err
	}
	out := a.display()
	for _, line := range lines {
		switch line.Kind {
		case approval.Heading:
			line.Text = out.Bold(line.Text)
		case approval.Danger:
			line.Text = out.Red(line.Text)
		}
		out.Printf("%s\n", line.Text)
	}
	return nil
}

// source is where the operator's signing key is.
func (a *app) source(s *session, ask keys.Asker) keys.Source {
	return keys.Source{File: s.cfg.SigningKey, AgentSocket: a.streams.Getenv("SSH_AUTH_SOCK"), Ask: ask}
}

// proposal is a statement that a person is asked to sign, and what becomes of it then.
type proposal struct {
	sheet approval.Sheet
	// submit hands the signed statement to the vault.
	submit func(context.Context, *callv1.HumanStatement) (*vaultv1.Operation, error)
}

// proposeApproval makes the statement that lets one operation run once.
func (a *app) proposeApproval(ctx context.Context, s *session, op *vaultv1.Operation, number string) (*proposal, *executorv1.PreviewCallResponse, error) {
	cannot := func(err error) error {
		return denied("Deny it: durward deny "+number, "%s cannot be approved: %v", number, err)
	}
	call, err := approval.CallOf(op)
	if err != nil {
		return nil, nil, cannot(err)
	}
	preview, err := s.preview(ctx, call.Tool.Ref(), call.Arguments)
	if f := (*fault.Error)(nil); errors.As(err, &f) && f.Code == callv1.Code_CODE_PLAN_CHANGED {
		return nil, nil, denied("Deny it, and the agent simulates and asks again: durward deny "+number,
			"%s cannot be approved: %v", number, approval.ErrPlan)
	}
	if err != nil {
		return nil, nil, err
	}
	signer, err := a.signer(s)
	if err != nil {
		return nil, nil, err
	}
	st, err := signer.Approve(op, preview)
	if err != nil {
		return nil, nil, cannot(err)
	}
	steps, err := call.Steps(preview)
	if err != nil {
		return nil, nil, cannot(err)
	}
	return &proposal{approval.SheetOf(st, preview.GetSubject().GetEntry(), steps...),
		func(ctx context.Context, signed *callv1.HumanStatement) (*vaultv1.Operation, error) {
			response, err := s.Vault.ApproveOperation(ctx, &vaultv1.ApproveOperationRequest{OperationId: op.GetOperationId(), Statement: signed})
			return response.GetOperation(), err
		}}, preview, nil
}

// proposeScope makes the statement that lets a session do more than the one call that it asked for.
func (a *app) proposeScope(ctx context.Context, s *session, op *vaultv1.Operation, number string, w approval.Within) (*proposal, error) {
	cannot := func(err error) error {
		next := "Approve the one call: durward approve " + number
		if errors.Is(err, approval.ErrTool) || errors.Is(err, approval.ErrArguments) || errors.Is(err, approval.ErrTarget) {
			next = "Deny it: durward deny " + number
		}
		return denied(next, "%s cannot be approved within a scope: %v", number, err)
	}
	scope, err := approval.NewScope(op, w)
	if errors.Is(err, approval.ErrWithin) {
		return nil, usage("", "%v", err)
	}
	if err != nil {
		return nil, cannot(err)
	}
	candidates, err := s.candidates(ctx, scope.Candidates())
	if err != nil {
		return nil, err
	}
	calls, err := scope.Calls(candidates)
	if err != nil {
		return nil, cannot(err)
	}
	var previews []*executorv1.PreviewCallResponse
	for _, call := range calls {
		preview, err := s.preview(ctx, call.Tool.Ref(), call.Arguments)
		if err != nil {
			return nil, err
		}
		previews = append(previews, preview)
	}
	signer, err := a.signer(s)
	if err != nil {
		return nil, err
	}
	st, err := signer.Scope(scope, previews)
	if err != nil {
		return nil, cannot(err)
	}
	return &proposal{approval.ScopeSheet(st, previews),
		func(ctx context.Context, signed *callv1.HumanStatement) (*vaultv1.Operation, error) {
			response, err := s.Vault.Standing.GrantScope(ctx, &vaultv1.GrantScopeRequest{OperationId: op.GetOperationId(), Statement: signed})
			return response.GetOperation(), err
		}}, nil
}

// candidates are the ids of everything of a kind that the executor's catalogue has.
func (s *session) candidates(ctx context.Context, kind string) (ids []string, err error) {
	switch kind {
	case "":
		return nil, nil
	case "Service":
		list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
		for _, service := range list.GetServices() {
			ids = append(ids, service.GetServiceId())
		}
		return ids, err
	case "Mode":
		list, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
		for _, mode := range list.GetModes() {
			ids = append(ids, mode.GetModeId())
		}
		return ids, err
	default:
		return nil, usage("Let any definition do: --any", "there is no list of every %s to approve", strings.ToLower(kind))
	}
}

// confirm asks a person, at the terminal. What was typed before the question is no answer to it. Without a terminal it refuses
// unless yes was given: what proves a human is the key, never a terminal.
func (a *app) confirm(ctx context.Context, question string, yes bool) error {
	if yes {
		return nil
	}
	if !output.IsTerminal(a.streams.In) {
		return denied("At a terminal run the same command; in a script that a human started, add --yes.", "there is no terminal to ask at")
	}
	forgetTyped(a.streams.In)
	a.display().Printf("%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		// What cannot be read is not a yes.
		answer, _ := bufio.NewReader(a.streams.In).ReadString('\n')
		answered <- answer
	}()
	select {
	case answer := <-answered:
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		}
	case <-ctx.Done():
		// Ctrl-C; the reading goroutine ends with the program.
		a.display().Printf("\n")
	}
	return denied("", "nothing was done")
}

// sign opens the operator's key, for this one statement, and signs.
func (a *app) sign(ctx context.Context, s *session, st *statement.Statement) (_ *callv1.HumanStatement, err error) {
	key, err := a.source(s, keys.AskTerminal).Open(ctx)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, failed("config/operator.yaml names it as signing_key.", "the signing key %s is missing", s.cfg.SigningKey)
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, key.Close()) }()
	if key.Protection == "touch" {
		a.out.Remark("Touch your security key.")
	}
	return statement.Sign(st, key)
}

// result is how a dispatched call ended.
type result struct {
	response proto.Message
	outcome  *callv1.Outcome
}

// dispatch carries out a granted call at the executor.
func (s *session) dispatch(ctx context.Context, call approval.Call, grant *callv1.SignedGrant) (result, error) {
	request, err := call.Tool.Decode(call.Arguments)
	if err != nil {
		return result{}, err
	}
	signed, err := proto.Marshal(grant)
	if err != nil {
		return result{}, fmt.Errorf("encode the grant: %w", err)
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, rpc.MetadataGrant, string(signed)), runPatience)
	defer cancel()
	r := result{response: call.Tool.NewResponse(), outcome: &callv1.Outcome{}}
	var trailer metadata.MD
	err = s.Executor.Conn.Invoke(ctx, call.Tool.FullMethod, request, r.response, grpc.Trailer(&trailer))
	if values := trailer.Get(rpc.TrailerOutcome); len(values) == 1 {
		if unmarshalErr := proto.Unmarshal([]byte(values[0]), r.outcome); unmarshalErr != nil {
			r.outcome = &callv1.Outcome{}
		}
	}
	return r, err
}
