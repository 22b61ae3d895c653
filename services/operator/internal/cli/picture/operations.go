package picture

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
)

// WatchOperations follows what waits and what is carried out: the vault knows which operations there are, the executor their
// steps.
func WatchOperations(ctx context.Context, a *cli.App, s *cli.Session, stir func(), tell func(Change) bool) {
	for {
		err := followOperations(ctx, a, s, stir, tell)
		if ctx.Err() != nil || !tell(ProblemChange("vault", cli.PublicText(err))) || !clock.Sleep(ctx, watchRetry) {
			return
		}
	}
}

// followOperations does so until the vault or ctx ends it.
func followOperations(ctx context.Context, a *cli.App, s *cli.Session, stir func(), tell func(Change) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	// The stream first: what begins between the two is told by one of them at least.
	stream, err := s.Vault.WatchOperations(ctx, &vaultv1.WatchOperationsRequest{})
	if err != nil {
		return err
	}
	asking, stop := context.WithTimeout(ctx, watchPatience)
	known, err := s.Operations(asking, vaultv1.OperationState_OPERATION_STATE_PENDING, vaultv1.OperationState_OPERATION_STATE_RUNNING)
	stop()
	if err != nil {
		return err
	}
	ended := map[string]chan struct{}{}
	begin := func(op *vaultv1.Operation) {
		id := op.GetOperationId()
		if ended[id] != nil {
			return
		}
		over := make(chan struct{})
		ended[id] = over
		following.Go(func() { followOperation(ctx, a, s, id, over, tell) })
	}
	if !tell(OperationsChange(a, known)) {
		return nil
	}
	for _, op := range known {
		if !cli.IsPending(op) {
			begin(op)
		}
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		op := event.GetOperation()
		if !tell(operationChange(a, op)) {
			return nil
		}
		id := op.GetOperationId()
		switch op.GetState() {
		case vaultv1.OperationState_OPERATION_STATE_RUNNING:
			begin(op)
		case vaultv1.OperationState_OPERATION_STATE_DONE:
			// A quick one is told once, when it has ended; its steps are still known.
			begin(op)
			close(ended[id])
			delete(ended, id)
			stir()
		default: // it waits, or came to nothing
		}
	}
}

// followOperation passes on one operation's steps, and that it has ended once over says so.
func followOperation(ctx context.Context, a *cli.App, s *cli.Session, id string, over <-chan struct{}, tell func(Change) bool) {
	for going := true; going; {
		asking, cancel := context.WithCancel(ctx)
		told := make(chan struct{})
		go func() {
			defer close(told)
			// Why there is nothing to say does not matter: it is asked again while the operation goes on.
			_ = s.WatchProgress(asking, id, func(said *executorv1.WatchProgressResponse) { tell(StepChange(a, id, said)) })
		}()
		select {
		case <-told:
			select {
			case <-over:
				going = false
			case <-time.After(watchRetry):
			case <-ctx.Done():
			}
		case <-over:
			// The last steps are on their way; an executor that is down has none.
			select {
			case <-told:
			case <-time.After(cli.LastStep):
			}
			going = false
		case <-ctx.Done():
		}
		cancel()
		<-told
		if ctx.Err() != nil {
			return
		}
	}
	tell(endedChange(a, id))
}

// OperationsChange sets which operations wait and run, as the vault lists them.
func OperationsChange(a *cli.App, ops []*vaultv1.Operation) Change {
	return func(p *Picture) []News {
		out := solved(p, "vault")
		listed := map[string]bool{}
		for _, op := range ops {
			listed[op.GetOperationId()] = true
		}
		maps.DeleteFunc(p.Waiting, func(id string, _ struct{}) bool { return !listed[id] })
		for id, w := range p.Ops {
			if !listed[id] && w.gone.IsZero() {
				out = append(out, endedChange(a, id)(p)...)
			}
		}
		for _, op := range ops {
			out = append(out, operationChange(a, op)(p)...)
		}
		return out
	}
}

// operationChange notes what became of an operation.
func operationChange(a *cli.App, op *vaultv1.Operation) Change {
	return func(p *Picture) []News {
		var out []News
		id := op.GetOperationId()
		switch _, waited := p.Waiting[id]; {
		case cli.IsPending(op) && !waited:
			p.Waiting[id] = struct{}{}
			out = append(out, operationLine(op, "waits for you: "+a.Typed()+" approvals"))
		case !cli.IsPending(op) && waited:
			delete(p.Waiting, id)
			out = append(out, operationLine(op, contract.WordOf(op.GetState())))
		}
		begun := op.GetState() == vaultv1.OperationState_OPERATION_STATE_RUNNING ||
			op.GetState() == vaultv1.OperationState_OPERATION_STATE_DONE
		if begun && p.Ops[id] == nil {
			title := a.Out.Bold(clean.Visible(op.GetTool().GetName())) + " " + briefArguments(op)
			p.Ops[id] = &Watched{Op: op, Title: title + a.Out.Dim("  for "+clean.Visible(op.GetPrincipal()))}
			out = append(out, operationLine(op, "running"))
		}
		return out
	}
}

// endedChange notes that an operation has ended.
func endedChange(a *cli.App, id string) Change {
	return func(p *Picture) []News {
		w := p.Ops[id]
		if w == nil || !w.gone.IsZero() {
			return nil
		}
		w.gone = a.Now()
		return []News{operationLine(w.Op, "ended")}
	}
}

// Forget drops operations that ended a while ago.
func (p *Picture) Forget(now time.Time) {
	maps.DeleteFunc(p.Ops, func(_ string, w *Watched) bool { return !w.gone.IsZero() && now.Sub(w.gone) > keptEnded })
}

func operationLine(op *vaultv1.Operation, state string) News {
	tool, who := clean.Visible(op.GetTool().GetName()), clean.Visible(op.GetPrincipal())
	word, _, _ := strings.Cut(state, " ")
	return News{
		fmt.Sprintf("%s %s for %s: %s", tool, briefArguments(op), who, state),
		operationNews{"operation", op.GetOperationId(), word, tool, who},
	}
}

var digestPattern = pattern.New(`\b([0-9a-f]{12})[0-9a-f]{52}\b`)

// briefArguments are a call's arguments with their digests cut short: nobody decides anything here.
func briefArguments(op *vaultv1.Operation) string {
	return digestPattern().ReplaceAllString(approval.Arguments(op.GetArguments()), "$1…")
}

// StepChange notes a step of an operation.
func StepChange(a *cli.App, operationID string, said *executorv1.WatchProgressResponse) Change {
	return func(p *Picture) []News {
		w := p.Ops[operationID]
		if w == nil || !w.Steps.Take(said, a.Now()) {
			return nil
		}
		return []News{{"  " + w.Steps.ByNumber[said.GetStep()].Line(a.Out, a.Now()), cli.NewStepJSON(operationID, said)}}
	}
}
