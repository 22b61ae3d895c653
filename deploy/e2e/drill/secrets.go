package drill

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"durward.internal/deploy/e2e/harness"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
)

// secretLines look for the values of stored credentials wherever they have no business.
func secretLines() []Line {
	weak := map[string]string{harness.Executor: "handover"}
	return []Line{{"secrets", weak, secretsInUse}, {"secrets-vault-killed", weak, secretsUnderKills}}
}

const (
	needy = "demo-needy"
	// perStart is how many credentials a start of needy gives away.
	perStart = 16
)

// secrets is the drill's canaries: each value holds the marker, which nothing else on this machine does.
type secrets struct {
	*search
	marker string
	// passphrase is what the credentials' keys are kept under; empty: a file of the vault's.
	passphrase string
	// versions are the newest values' numbers, by credential.
	mu       sync.Mutex
	versions [perStart]int
}

func newSecrets(w *world) *secrets {
	// Made anew, and never part of this program's arguments, files or environment.
	marker := "durward-canary-" + grant.NewID()
	s := &secrets{search: newSearch(w, 0, marker), marker: marker}
	script := filepath.Join(w.h.Dir, "needy.sh")
	w.must(os.WriteFile(script, []byte("#!/bin/sh\nfor i in $(seq 0 "+strconv.Itoa(perStart-1)+`); do eval p=\$CANARY_$i; sha256sum <"$p" | cut -d' ' -f1; done >"$1.new"
mv "$1.new" "$1"
exec "$2" -port "$3"
`), 0o700)) // #nosec G306 -- a program
	var names []string
	for i := range perStart {
		names = append(names, name(i))
	}
	text := w.h.ReadFile("config/catalogue.yaml")
	if !strings.Contains(text, needy) {
		w.h.WriteFile("config/catalogue.yaml", text+fmt.Sprintf("  - {id: %s, name: Needy, driver: process, argv: [%q, %q, %q, %q], writes: [%q], credentials: [%s], port: %d, health: {path: /health}, stop_timeout_s: 2}\n",
			needy, script, s.seen(), filepath.Join(w.h.Bin, "durward-demo"), strconv.Itoa(w.h.Port(4)), s.seen(), strings.Join(names, ", "), w.h.Port(4)))
	}
	harness.Eventually(w.t, "the executor knows the new entry", func() error { _, err := w.preview("start_service", needy); return err })
	list, err := s.stored()
	w.must(err)
	for i := range perStart {
		s.versions[i] = list[name(i)]
	}
	return s
}

func name(i int) string         { return fmt.Sprintf("canary-%d", i) }
func (s *secrets) seen() string { return filepath.Join(s.h.Dir, "needy-seen") }

// value is a credential's, by its number.
func (s *secrets) value(i, version int) []byte {
	return fmt.Appendf(nil, "%s-%d-%d", s.marker, i, version)
}

// change signs for a change of a stored credential and sends it.
func (s *secrets) change(c *statement.Credential, value []byte) error {
	now := time.Now()
	req := &vaultv1.ChangeCredentialRequest{Value: value}
	if value != nil {
		req.Salt = bytes.Repeat([]byte{1}, statement.CommitmentKey)
		c.Commitment = statement.Commitment(req.GetSalt(), c.Name, c.Version, value)
	}
	ctx, cancel := s.ctx(callTime)
	defer cancel()
	status, err := vaultv1.NewControlServiceClient(s.operatorVault).GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	req.Statement = s.sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindCredential, ID: grant.NewID(), Operator: s.h.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: status.GetEpoch(), Audience: s.h.Identity(harness.Vault).String(), Credential: c,
	}, s.signer)
	_, err = vaultv1.NewCredentialServiceClient(s.operatorVault).ChangeCredential(ctx, req)
	return err
}

// renew gives a credential its next value.
func (s *secrets) renew(i int) error {
	s.mu.Lock()
	version := s.versions[i] + 1
	s.mu.Unlock()
	c := &statement.Credential{Action: statement.CredentialRotate, Name: name(i), Version: version}
	if version == 1 {
		c.Action, c.Delivery, c.Variable = statement.CredentialAdd, statement.DeliveryFile, fmt.Sprintf("CANARY_%d", i)
	}
	err := s.change(c, s.value(i, version))
	if err == nil && version == 1 {
		err = s.change(&statement.Credential{Action: statement.CredentialGrant, Name: name(i), CredentialGrants: statement.CredentialGrants{
			Sink: s.h.Identity(harness.Executor).String(), Services: []string{needy},
		}}, nil)
	}
	if err == nil {
		s.mu.Lock()
		s.versions[i] = version
		s.mu.Unlock()
	}
	return err
}

// stored are the newest values' numbers, as the vault has them.
func (s *secrets) stored() (map[string]int, error) {
	ctx, cancel := s.ctx(callTime)
	defer cancel()
	list, err := vaultv1.NewCredentialServiceClient(s.operatorVault).ListCredentials(ctx, &vaultv1.ListCredentialsRequest{})
	out := map[string]int{}
	for _, c := range list.GetCredentials() {
		out[c.GetName()] = int(c.GetVersions()[0].GetVersion())
	}
	return out, err
}

// holds is what needy must have seen when it starts now.
func (s *secrets) holds() (digests string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, version := range s.versions {
		digests += fmt.Sprintf("%x\n", sha256.Sum256(s.value(i, version)))
	}
	return digests
}

// begin starts needy, which was stopped, and returns what it saw.
func (s *secrets) begin() (string, error) {
	if err := os.Remove(s.seen()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := s.command("start_service", needy); err != nil {
		return "", err
	}
	var saw string
	err := harness.Poll(func() error {
		raw, err := os.ReadFile(s.seen())
		saw = string(raw)
		return err
	})
	return saw, err
}

// secretsInUse stores many values, has a service started with them, sixteen at a time, and searches for them at every moment of that. Its
// effects are the places where one was found beyond the vault, the launcher and the service.
func secretsInUse(w *world) (trials, effects int) {
	w.arrange()
	s := newSecrets(w)
	ctx, stop := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { // load
		for ctx.Err() == nil {
			_ = w.command("start_service", idle) // what it does is of no matter
			_ = w.command("stop_service", idle)
		}
	})
	running.Go(func() { s.watch(ctx) })
	for range w.tries(1008, 64) / perStart {
		for i := range perStart {
			w.must(s.renew(i))
			trials++
		}
		saw, err := s.begin()
		w.must(err)
		if saw != s.holds() {
			w.t.Fatalf("the service saw %q, and nothing is proved", saw)
		}
		w.must(w.command("stop_service", needy))
		if w.caught(s.places()) {
			break
		}
	}
	stop()
	running.Wait()
	s.memories()
	s.elsewhere()
	w.kill(idle)
	return trials, s.effects()
}
