package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/statement"
)

// bannerPatience is how long a command waits to know whether anything is dangerous.
const bannerPatience = time.Second

// Dangers are the dangerous modes in force.
func Dangers(list *vaultv1.ListStandingResponse) (out []*vaultv1.Standing) {
	for _, one := range list.GetStanding() {
		if one.GetKind() == string(statement.KindDangerous) {
			out = append(out, one)
		}
	}
	return out
}

// warnOfDanger writes one red line to standard error while any session is in dangerous mode. It asks only a vault that this
// command talked to anyway, and waits for it a second at most.
func (a *App) warnOfDanger(s *Session) {
	if !s.Vault.Spoken() {
		return
	}
	// The command's own context may have ended: Ctrl-C is how watching ends.
	ctx, cancel := context.WithTimeout(context.Background(), bannerPatience)
	defer cancel()
	list, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
	if err != nil {
		return
	}
	if line := DangerLine(Dangers(list), a.Typed()); line != "" {
		errs := output.New(a.Streams.Err, a.Streams.Err, a.Streams.Getenv)
		errs.Printf("%s\n", errs.Red(line))
	}
}

// DangerLine is the banner, to a person who types durward so; "" while nothing is dangerous.
func DangerLine(found []*vaultv1.Standing, durward string) string {
	if len(found) == 0 {
		return ""
	}
	parts := output.Each(found, func(one *vaultv1.Standing) string {
		return fmt.Sprintf("%s (%s) until %s", clean.Line(one.GetPrincipal(), 64), clean.Line(one.GetSession(), 32),
			one.GetExpiresAt().AsTime().Local().Format("15:04"))
	})
	return "DANGEROUS MODE: " + strings.Join(parts, ", ") + ": changes run without asking. End it: " + durward + " dangerous disable"
}

// Seen returns what is kept of the log, by the processes that answered with their status (nil: not), by witnesses (what audit shows of
// theirs) and by the operator's commands. What no key of the log signed counts for nothing: whoever keeps it may lie.
func (s *Session) Seen(ctx context.Context, vault *vaultv1.GetStatusResponse, executor *executorv1.GetStatusResponse, egress *egressv1.GetStatusResponse, witnessed []byte) []history.Seen {
	own, _ := history.Kept(ctx, s.Config.StateDir) // where it cannot be read, the commands of the log say so
	var seen []history.Seen
	for _, kept := range []struct {
		by  string
		raw []byte
	}{
		{"the vault", vault.GetCheckpoint()}, {"the executor", executor.GetCheckpoint()}, {"egress", egress.GetCheckpoint()},
		{"a witness", witnessed}, {"this program", own},
	} {
		if c, err := s.openCheckpoint(kept.raw); err == nil && c.Origin == logproof.Origin(s.Config.Audit.Identity) {
			seen = append(seen, history.Seen{By: kept.by, Checkpoint: c})
		}
	}
	return seen
}

// Statuses asks the vault and the sinks how they are, all at once, each for StatusPatience; nil of one that does not answer.
func (s *Session) Statuses(ctx context.Context) (vault *vaultv1.GetStatusResponse, executor *executorv1.GetStatusResponse, egress *egressv1.GetStatusResponse) {
	ctx, cancel := context.WithTimeout(ctx, StatusPatience)
	defer cancel()
	var wait sync.WaitGroup
	wait.Go(func() { vault, _ = s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{}) })
	wait.Go(func() { executor, _ = s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{}) })
	if s.Egress != nil {
		wait.Go(func() { egress, _ = s.Egress.GetStatus(ctx, &egressv1.GetStatusRequest{}) })
	}
	wait.Wait()
	return vault, executor, egress
}

// LogExtends returns a *history.Altered if audit's log does not extend what was seen of it.
func (s *Session) LogExtends(ctx context.Context, seen []history.Seen) error {
	return history.Extends(ctx, s.Audit.Log, s.Audit.Witness, s.openCheckpoint, seen...)
}

func (s *Session) openCheckpoint(raw []byte) (logproof.Checkpoint, error) {
	return logproof.OpenCheckpoint(raw, s.Trust.Current().LogKeys)
}
