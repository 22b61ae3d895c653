package drill

import (
	"time"

	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/statement"
)

// approved is what a human approves and a hostile vault has carried out: a start at the executor, or a request at egress.
type approved struct {
	// statement and grant are good in every field.
	statement func() *statement.Statement
	grant     func(st *statement.Statement, statements ...*callv1.HumanStatement) *callv1.Grant
	issue     func(g *callv1.Grant)
	// halt is a human's, at that process; resume ends it.
	halt    func() (resume func())
	effects func() int
}

// grants are some that were never used, each with its own statement.
func (a approved) grants(w *world) (out []*callv1.Grant) {
	for range 10 {
		st := a.statement()
		out = append(out, a.grant(st, w.sign(st, w.signer)))
	}
	return out
}

// onStart is an attack on what is approved, by starts.
func onStart(attack func(w *world, a approved) (trials, effects int)) func(w *world) (trials, effects int) {
	return func(w *world) (trials, effects int) {
		w.takeVault()
		m := w.arrange()
		return attack(w, approved{
			statement: func() *statement.Statement { return w.agentStatement("start_service", idle) },
			grant: func(st *statement.Statement, statements ...*callv1.HumanStatement) *callv1.Grant {
				return w.grantOf(st, "start_service", idle, statements...)
			},
			issue: func(g *callv1.Grant) { w.issue(g, "start_service", idle) },
			halt: func() (resume func()) {
				control := executorv1.NewControlServiceClient(w.operatorExecutor)
				ctx, cancel := w.ctx(time.Minute)
				halted, err := control.Halt(ctx, &executorv1.HaltRequest{Reason: "drill"})
				w.must(err)
				return func() {
					defer cancel()
					_, err := control.Resume(ctx, &executorv1.ResumeRequest{Statement: w.resumption(harness.Executor, halted.GetEpoch()+1)})
					w.must(err)
				}
			},
			effects: func() int { return w.effects(m) },
		})
	}
}

// onRequest is an attack on what is approved, by requests to a path that no other has.
func onRequest(path string, attack func(w *world, a approved) (trials, effects int)) func(w *world) (trials, effects int) {
	return func(w *world) (trials, effects int) {
		w.takeVault()
		arguments := w.post(path)
		return attack(w, approved{
			statement: func() *statement.Statement { return w.requestStatement(arguments) },
			grant: func(st *statement.Statement, statements ...*callv1.HumanStatement) *callv1.Grant {
				return w.requestGrant(st, arguments, statements...)
			},
			issue:   func(g *callv1.Grant) { w.issueRequest(arguments, g) },
			halt:    func() (resume func()) { w.haltEgress(); return w.resumeEgress },
			effects: func() int { return w.out.requests(path) },
		})
	}
}

// expired takes an approval that the operator gave long ago, or for later, and that was never used.
func expired(w *world, a approved) (trials, effects int) {
	return each(w, [][2]time.Duration{
		{-30 * time.Minute, -6 * time.Minute}, {-59 * time.Minute, -10 * time.Minute}, {-48 * time.Hour, -47*time.Hour - 30*time.Minute},
		{6 * time.Minute, 20 * time.Minute}, {24 * time.Hour, 24*time.Hour + 10*time.Minute},
	}, a.effects, func(window [2]time.Duration) {
		st, now := a.statement(), time.Now()
		st.IssuedAt, st.NotBefore = statement.FormatTime(now.Add(window[0])), statement.FormatTime(now.Add(window[0]))
		st.ExpiresAt = statement.FormatTime(now.Add(window[1]))
		a.issue(a.grant(st, w.sign(st, w.signer)))
	})
}

// removed takes fresh statements of an operator whose key a human has taken out of allowed_signers.
func removed(w *world, a approved) (trials, effects int) {
	grants := a.grants(w)
	w.withoutOperator(func() { trials, effects = each(w, grants, a.effects, a.issue) })
	return trials, effects
}

// oldEpoch takes what was approved before a human halted the process, while it is halted and when it is resumed. The vault goes with the
// epoch as it likes: the statement does not.
func oldEpoch(w *world, a approved) (trials, effects int) {
	grants := a.grants(w)
	resume := a.halt()
	for _, g := range grants[:5] {
		trials++
		a.issue(g)
	}
	resume()
	for _, g := range grants[5:] {
		trials += 2
		a.issue(g)
		ahead := proto.CloneOf(g)
		ahead.Epoch += 2
		a.issue(ahead)
		if effects = a.effects(); w.caught(effects) {
			break
		}
	}
	return trials, a.effects()
}
