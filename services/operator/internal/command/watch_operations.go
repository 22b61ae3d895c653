package command

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/platform/clean"
)

// watchOperations follows what waits and what is carried out: the vault knows which operations there are, the executor their
// steps.
func (a *app) watchOperations(ctx context.Context, s *session, stir func(), tell func(change) bool) {
	for {
		err := a.followOperations(ctx, s, stir, tell)
		if ctx.Err() != nil || !tell(problemChange("vault", publicText(err))) || !pause(ctx, watchRetry) {
			return
		}
	}
}

// followOperations does so until the vault or ctx ends it.
func (a *app) followOperations(ctx context.Context, s *session, stir func(), tell func(change) bool) error {
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
	known, err := s.Vault.ListOperations(asking, &vaultv1.ListOperationsRequest{Limit: 1000, States: []vaultv1.OperationState{
		vaultv1.OperationState_OPERATION_STATE_PENDING, vaultv1.OperationState_OPERATION_STATE_RUNNING,
	}})
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
		following.Go(func() { a.followOperation(ctx, s, id, over, tell) })
	}
	if !tell(a.operationsChange(known.GetOperations())) {
		return nil
	}
	for _, op := range known.GetOperations() {
		if !isPending(op) {
			begin(op)
		}
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		op := event.GetOperation()
		if !tell(a.operationChange(op)) {
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
		}
	}
}

// followOperation passes on one operation's steps, and that it has ended once over says so.
func (a *app) followOperation(ctx context.Context, s *session, id string, over <-chan struct{}, tell func(change) bool) {
	for going := true; going; {
		asking, cancel := context.WithCancel(ctx)
		told := make(chan struct{})
		go func() {
			defer close(told)
			// Why there is nothing to say does not matter: it is asked again while the operation goes on.
			_ = s.watchProgress(asking, id, func(said *executorv1.WatchProgressResponse) { tell(a.stepChange(id, said)) })
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
			case <-time.After(lastStep):
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
	tell(a.endedChange(id))
}

// operationsChange sets which operations wait and run, as the vault lists them.
func (a *app) operationsChange(ops []*vaultv1.Operation) change {
	return func(p *picture) []news {
		out := solved(p, "vault")
		listed := map[string]bool{}
		for _, op := range ops {
			listed[op.GetOperationId()] = true
		}
		for id := range p.waiting {
			if !listed[id] {
				delete(p.waiting, id)
			}
		}
		for id, w := range p.ops {
			if !listed[id] && w.gone.IsZero() {
				out = append(out, a.endedChange(id)(p)...)
			}
		}
		for _, op := range ops {
			out = append(out, a.operationChange(op)(p)...)
		}
		return out
	}
}

// operationChange notes what became of an operation.
func (a *app) operationChange(op *vaultv1.Operation) change {
	return func(p *picture) []news {
		var out []news
		id := op.GetOperationId()
		switch _, waited := p.waiting[id]; {
		case isPending(op) && !waited:
			p.waiting[id] = struct{}{}
			out = append(out, operationLine(op, "waits for you: durward approvals"))
		case !isPending(op) && waited:
			delete(p.waiting, id)
			out = append(out, operationLine(op, operationState(op.GetState())))
		}
		begun := op.GetState() == vaultv1.OperationState_OPERATION_STATE_RUNNING ||
			op.GetState() == vaultv1.OperationState_OPERATION_STATE_DONE
		if begun && p.ops[id] == nil {
			title := a.out.Bold(clean.Visible(op.GetTool().GetName())) + " " + briefArguments(op)
			p.ops[id] = &watched{op: op, title: title + a.out.Dim("  for "+clean.Visible(op.GetPrincipal()))}
			out = append(out, operationLine(op, "running"))
		}
		return out
	}
}

// endedChange notes that an operation has ended.
func (a *app) endedChange(id string) change {
	return func(p *picture) []news {
		w := p.ops[id]
		if w == nil || !w.gone.IsZero() {
			return nil
		}
		w.gone = a.now()
		return []news{operationLine(w.op, "ended")}
	}
}

// forget drops operations that ended a while ago.
func (p *picture) forget(now time.Time) {
	for id, w := range p.ops {
		if !w.gone.IsZero() && now.Sub(w.gone) > keptEnded {
			delete(p.ops, id)
		}
	}
}

func operationLine(op *vaultv1.Operation, state string) news {
	tool, who := clean.Visible(op.GetTool().GetName()), clean.Visible(op.GetPrincipal())
	word, _, _ := strings.Cut(state, " ")
	return news{
		fmt.Sprintf("%s %s for %s: %s", tool, briefArguments(op), who, state),
		operationNews{"operation", op.GetOperationId(), word, tool, who},
	}
}

var digestPattern = regexp.MustCompile(`\b([0-9a-f]{12})[0-9a-f]{52}\b`)

// briefArguments are a call's arguments with their digests cut short: nobody decides anything here.
func briefArguments(op *vaultv1.Operation) string {
	return digestPattern.ReplaceAllString(approval.Arguments(op.GetArguments()), "$1…")
}

// stepChange notes a step of an operation.
func (a *app) stepChange(operationID string, said *executorv1.WatchProgressResponse) change {
	return func(p *picture) []news {
		w := p.ops[operationID]
		if w == nil || !w.steps.take(said, a.now()) {
			return nil
		}
		return []news{{"  " + w.steps.byNumber[said.GetStep()].line(a.out, a.now()), toStepJSON(operationID, said)}}
	}
}
