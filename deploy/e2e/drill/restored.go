package drill

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/rpc"
)

// keepAsItWas is a file in a state folder with which a weakened restore leaves the copy's epoch as it is, and halts nothing.
const keepAsItWas = "restore-as-it-was"

// restoredLines are apart, since the controls of other attacks on state leave halts behind. The control is a restore that raises no epoch, by
// a file: the restore is told nothing of guards.
func restoredLines() []Line { return []Line{{"state-restored", nil, restored}} }

// restored has a human put a backup back that was made when grants, an approval, a scope and a command were good, after each was used. Its
// effects are what they do once more: before the human resumes, and afterwards. What was read by a permit of before counts too.
func restored(w *world) (trials, effects int) {
	key, file := w.h.Path("backup.key"), w.h.Path("backup")
	recipient := strings.TrimSpace(w.h.Durward("backup", "--new-key", key))
	m := w.arrange()
	use, asked := w.harvest()
	w.h.Durward("backup", file, "--to", recipient)

	w.spend(use, 5)
	if looks := disclosed(w.execute(w.gatewayExecutor, "service_info", idle, rpc.MetadataPermit, asked.permits["executor"])); looks != 1 {
		w.t.Fatal("a permit shows nothing, so that what it shows later proves nothing")
	}

	roles := []string{harness.Gateway, harness.Executor, harness.Vault, harness.Audit}
	for _, role := range roles {
		w.h.Process(role).Stop()
	}
	if w.weak {
		for _, role := range []string{harness.Vault, harness.Executor} {
			w.h.WriteFile("state/"+role+"/"+keepAsItWas, "")
		}
	}
	w.h.Durward("restore", file, "--key", key, "--yes")
	w.h.StartAll()
	w.awaitAll()
	for _, role := range []string{harness.Vault, harness.Executor} {
		if err := os.Remove(w.h.Path("state", role, keepAsItWas)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.t.Fatal(err)
		}
		if epoch := w.query(role, `SELECT epoch * halted FROM control`); epoch <= backup.EpochJump && !w.weak {
			w.t.Errorf("%s is not halted at an epoch of its own: %d", role, epoch)
		}
	}
	for range 2 {
		trials += 6
		effects += use() + disclosed(w.execute(w.gatewayExecutor, "service_info", idle, rpc.MetadataPermit, asked.permits["executor"]))
		if w.caught(effects) {
			break
		}
		w.resumeOnly()
	}
	if n := w.effects(m) - 5; n > effects {
		effects = n // whatever else began
	}
	return trials, effects
}

// harvest makes what is good once: an agent's grant, one by a scope, a proof of the scope's client, a human's command and an approval that no
// grant was given for. use does each of them, and returns how many had an effect.
func (w *world) harvest() (use func() int, asked *agentSession) {
	w.t.Helper()
	asked, waits := w.open(), w.open()
	scoped := w.openKeyed()
	w.must(w.grantScope(w.sign(w.scopeOf(scoped.agentSession, "cli", time.Hour, 100, "start_service", idle, spare), w.signer)))
	approved := w.ask(waits, "start_service", idle)
	w.approve(approved)
	st, err := w.commandStatement("start_service", idle)
	w.must(err)
	command := w.sign(st, w.signer)
	held := []*callv1.SignedGrant{
		w.approved(asked, "start_service", idle), w.relay(scoped.handle, "start_service", idle, scoped.prove("start_service", idle)),
	}
	proof := scoped.prove("start_service", idle)
	return func() (done int) {
		for _, act := range []func(){
			func() { w.useGrant(held[0], "start_service", idle) },
			func() { w.useGrant(held[1], "start_service", idle) },
			func() { w.useGrant(w.relay(scoped.handle, "start_service", idle, proof), "start_service", idle) },
			func() { _ = w.carryOut(command, "start_service", idle) }, // refused is as it should be
			func() { w.useApproval(approved) },
		} {
			before := w.startsOf(idle)
			act()
			done += w.startsOf(idle) - before
			w.kill(idle)
		}
		return done
	}, asked
}

// spend uses what was harvested for the first time.
func (w *world) spend(use func() int, good int) {
	w.t.Helper()
	if n := use(); n != good {
		w.t.Fatalf("of %d things that were good %d had an effect, so that what they do later proves nothing", good, n)
	}
}

// useApproval uses an approval that no grant was given for yet, of a start of the idle service.
func (w *world) useApproval(operation string) {
	// What is refused has no grant.
	out, _ := unary(w, vaultv1.NewApprovalServiceClient(w.operatorVault).ClaimOperation, &vaultv1.ClaimOperationRequest{OperationId: operation})
	w.useGrant(out.GetGrant(), "start_service", idle)
}
