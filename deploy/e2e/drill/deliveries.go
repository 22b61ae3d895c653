package drill

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// perKill is how many deliveries are under way when the vault is killed.
const perKill = 8

// deliveriesUnderKills kills the vault while sinks are given the values of approved calls. Its effects are values that arrive twice, of one grant
// or of one that is used again, values that arrive and that no record tells of, references that bring nothing back afterwards, and values that
// are found anywhere, in answers and on the vault's disk too.
func deliveriesUnderKills(w *world) (trials, effects int) {
	// What a human is shown of an address is its first letter and its domain.
	addressee := fmt.Sprintf("parcel-%08x", rand.Uint32())
	s := newSearch(w, w.out.port(), addressee)
	wrong := func(format string, args ...any) {
		w.t.Logf(format, args...)
		effects++
	}
	client := 0
	var owner *agentSession
	for round := range w.tries(1000, 24) / perKill {
		if round%50 == 0 {
			client = w.nextClient
			owner = w.open() // a session holds a thousand values
		}
		values := make([]string, perKill)
		granted := make([]*vaultv1.WaitOperationResponse, perKill)
		for i := range granted {
			values[i] = fmt.Sprintf("%s-%d@delivered.%s", addressee, round*perKill+i, w.out.people.domain)
			if granted[i] = w.asks(owner, "/echo", "to "+values[i]); granted[i].GetGrant() == nil {
				w.t.Fatalf("delivery %d is not granted", i)
			}
			if !mailRefs.Match(granted[i].GetArguments()) {
				w.t.Fatalf("delivery %d holds no reference: %s", i, granted[i].GetArguments())
			}
		}
		answers := make([]string, perKill)
		var running sync.WaitGroup
		for i, one := range granted {
			running.Go(func() { answers[i] = w.carriesOut(one) })
		}
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) // any moment of any of them
		w.h.Process(harness.Vault).Kill()
		running.Wait()
		w.h.StartProcess(harness.Vault)
		w.awaitAll()
		owner = w.openAs(client, owner.handle)
		for i, one := range granted {
			trials++
			again := w.carriesOut(one)
			if n := w.out.received(values[i]); n > 1 {
				wrong("delivery %d of round %d arrived %d times", i, round, n)
			}
			if strings.Contains(answers[i]+again, values[i]) {
				wrong("delivery %d of round %d: the answer holds the value", i, round)
			}
		}
		// What an agent sent stays its own: the reference of a call that the kill ended brings the same value back.
		for i, one := range granted {
			if w.caught(effects) || w.out.received(values[i]) > 0 {
				continue
			}
			said := ""
			for tries, away := 0, true; away && tries < 3; tries++ { // as the answer says where something is away
				lost := w.lost.Load()
				said = "it was refused"
				if granted := w.asks(owner, "/echo", "again to "+mailRefs.FindString(string(one.GetArguments()))); granted != nil {
					said = w.carriesOut(granted)
				}
				away = w.lost.Load() > lost
			}
			if n := w.out.received(values[i]); n != 1 {
				wrong("delivery %d of round %d arrived %d times after the kill: %s", i, round, n, said)
			}
			break // one tells, and a human's time is long
		}
		if w.caught(effects) {
			return trials, effects
		}
	}
	arrived := w.out.received(addressee)
	if arrived == 0 {
		w.t.Fatal("nothing was delivered, and nothing is proved")
	}
	resolved := w.h.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_RESOLVED}, Limit: 1000})
	if len(resolved) < min(arrived, 1000) {
		wrong("%d values arrived, and %d records tell of them", arrived, len(resolved))
	}
	s.memories()
	s.elsewhere()
	w.note = fmt.Sprintf("%d of %d arrived, ", arrived, trials)
	return trials, effects + s.effects()
}
