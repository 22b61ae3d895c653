package drill

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// unsealLines kill the vault while operators unseal it.
func unsealLines() []Line {
	return []Line{{"secrets-unseal-killed", map[string]string{harness.Executor: "handover"}, secretsUnderUnseals}}
}

// secretsUnderKills kills the vault while values are delivered, renewed and put under new keys. Its effects are values that were
// acknowledged and are lost, deliveries of others and of what no record tells, and values that are found anywhere, on the vault's disk too.
func secretsUnderKills(w *world) (trials, effects int) {
	w.arrange()
	return newSecrets(w).underKills()
}

// secretsUnderUnseals does so with keys under a passphrase, which operators hand in at the same time: the first makes the keys, and each start of
// the vault needs it again. The passphrase is looked for like the values.
func secretsUnderUnseals(w *world) (trials, effects int) {
	w.arrange()
	if config := w.h.ReadFile("config/vault.yaml"); !strings.Contains(config, "key: passphrase") {
		w.h.WriteFile("config/vault.yaml", config+"\ncredentials: {key: passphrase}\n")
		w.restart(harness.Vault)
	}
	s := newSecrets(w)
	s.passphrase = s.marker + "-passphrase"
	return s.underKills()
}

// unseal hands in a passphrase.
func (s *secrets) unseal(passphrase string) error {
	ctx, cancel := s.ctx(callTime)
	defer cancel()
	_, err := vaultv1.NewCredentialServiceClient(s.operatorVault).Unseal(ctx, &vaultv1.UnsealRequest{Passphrase: []byte(passphrase)})
	return err
}

// unsealed has the vault serve values: it opens with its passphrase, whatever it was killed in.
func (s *secrets) unsealed() {
	if s.passphrase != "" {
		s.must(s.unseal(s.passphrase))
	}
}

// killed kills the vault at any moment of what is done again and again at the same time, and starts it anew.
func (s *secrets) killed(acts ...func(i int)) {
	ctx, stop := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	for _, act := range acts {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				act(i)
			}
		})
	}
	if len(acts) > 0 {
		time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond) // any moment of any of them
	}
	s.h.Process(harness.Vault).Kill()
	stop()
	running.Wait()
	s.h.StartProcess(harness.Vault)
	s.awaitAll()
}

func (s *secrets) underKills() (trials, effects int) {
	w, starts := s.world, 0
	acts := []func(i int){
		func(int) {
			if err := w.command("start_service", needy); err == nil {
				starts++
			}
			_ = w.command("stop_service", needy)
		},
		func(i int) { _ = s.renew(i % perStart) },
		func(i int) {
			_, _ = unary(w, vaultv1.NewCredentialServiceClient(w.operatorVault).RotateKeys, &vaultv1.RotateKeysRequest{
				Upper: i%2 == 1, Passphrase: []byte(s.passphrase), NextPassphrase: []byte(s.passphrase),
			})
		},
	}
	if s.passphrase != "" {
		s.killed(func(int) { _ = s.unseal(s.passphrase) }) // which makes the keys
		acts = append(acts, func(int) { _ = s.unseal(s.passphrase) }, func(int) { _ = s.unseal("not " + s.passphrase) })
	}
	s.unsealed()
	for i := range perStart {
		w.must(s.renew(i))
	}
	lost := func(format string, args ...any) {
		w.t.Logf(format, args...)
		effects++
	}
	for round := range w.tries(200, 3) {
		if s.passphrase != "" { // sealed again
			s.killed()
		}
		s.killed(acts...)
		trials++
		s.unsealed()
		list, err := s.stored()
		w.must(err)
		for i := range perStart {
			acknowledged := s.versions[i]
			if now := list[name(i)]; now != acknowledged && now != acknowledged+1 {
				lost("after kill %d credential %d has the value %d, and %d was acknowledged", round+1, i, now, acknowledged)
			}
			s.versions[i] = list[name(i)]
		}
		harness.Eventually(w.t, "needy is stopped", func() error { return w.command("stop_service", needy) })
		saw, err := s.begin()
		switch {
		case fault.Is(err, callv1.Code_CODE_SEALED):
			lost("after kill %d the credentials are sealed: %v", round+1, err)
		case err != nil:
			lost("after kill %d nothing is delivered: %v", round+1, err)
		case saw != s.holds():
			lost("after kill %d the service saw other values: %q", round+1, saw)
		default:
			starts++
		}
		w.must(w.command("stop_service", needy))
		s.memories()
		if w.caught(s.places()) {
			break
		}
	}
	s.elsewhere()
	records := w.h.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_CREDENTIAL_USED}})
	if len(records) < min(starts*perStart, 1000) {
		lost("%d uses are recorded of %d starts with %d values each", len(records), starts, perStart)
	}
	return trials, effects + s.effects()
}
