package approve

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/doctor"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/identity"
)

// haltPatience is how long a process has to answer a panic.
const haltPatience = time.Second

// haltResult is one process's answer, in --json too.
type haltResult struct {
	Process string `json:"process"`
	OK      bool   `json:"ok"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Problem string `json:"problem,omitempty"`
	took    time.Duration
}

// answered is what every process answers to a halt and to a resume.
type answered interface{ GetEpoch() uint64 }

func (a *app) panicCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "panic",
		Short: "Stop everything that changes anything, at once",
		Long: `Tells the vault, the executor and egress, in parallel and directly, to refuse every further change and to void every
grant that is out. It takes a second at most, needs no key, and works with the gateway hung or other
processes down: each process says for itself whether it stopped. It is durable: a restart does not end it.

Running services keep running ("durward down --services" stops them after a resume). Looking at this host stays
possible; egress closes its connections and fetches nothing. "durward resume" ends it.`,
		Example: "  durward panic --reason \"the agent does strange things\"",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.panic(cmd.Context(), reason) },
	}
	cmd.Flags().StringVar(&reason, "reason", "", "for the record")
	return cmd
}

func (a *app) panic(ctx context.Context, reason string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		return a.reportHalt(a.haltAll(ctx, s, reason), "halted", "What is named may be running still. Stop it by hand: durward down, or end its process.")
	})
}

// haltAll halts the vault and every sink, whether or not the others answer.
func (a *app) haltAll(ctx context.Context, s *cli.Session, reason string) []haltResult {
	ctx, cancel := context.WithTimeout(ctx, haltPatience)
	defer cancel()
	results := make([]haltResult, 1+len(s.Sinks))
	var wait sync.WaitGroup
	halt := func(i int, name string, call func() (answered, error)) {
		wait.Go(func() {
			began := time.Now()
			response, err := call()
			results[i] = haltResult{Process: name, OK: err == nil, took: time.Since(began)}
			if err != nil {
				results[i].Problem = cli.PublicText(err)
				return
			}
			results[i].Epoch = response.GetEpoch()
		})
	}
	halt(0, "vault", func() (answered, error) {
		return s.Vault.Control.Halt(ctx, &vaultv1.HaltRequest{Reason: reason})
	})
	for i, sink := range s.Sinks {
		halt(1+i, sink.Name, func() (answered, error) {
			return sink.Halt(ctx, &executorv1.HaltRequest{Reason: reason})
		})
	}
	wait.Wait()
	return results
}

func (a *app) reportHalt(results []haltResult, done, next string) error {
	var missed []string
	for _, r := range results {
		if !r.OK {
			missed = append(missed, r.Process)
		}
	}
	err := a.Show(map[string]any{"processes": results}, func() {
		for _, r := range results {
			if !r.OK {
				a.Out.Printf("%s %-8s %s\n", a.Out.Red("✗"), r.Process, r.Problem)
				continue
			}
			took := ""
			if r.took > 0 {
				took = a.Out.Dim(fmt.Sprintf("  (%d ms)", r.took.Milliseconds()))
			}
			a.Out.Printf("%s %-8s %s, epoch %d%s\n", a.Out.Green("✓"), r.Process, done, r.Epoch, took)
		}
	})
	if err == nil && len(missed) > 0 {
		err = cli.Unreachable(next, "not known to be %s: %s", done, strings.Join(missed, ", "))
	}
	return err
}

func (a *app) resumeCommand() *cobra.Command {
	var how *cli.Asking
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "End a halt, with your signature",
		Long: `Ends a panic. You sign one statement that begins a new epoch in the vault, the executor and egress; what was asked for
or granted before stays void, and agents ask again. The same ends what a process that was added after a restore refuses: its
epoch is the first one, too far below the others' to be raised by anybody but you.`,
		Example: "  durward resume",
		RunE:    a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error { return a.wake(ctx, s, *how) }),
	}
	how = cli.AskingFlags(cmd)
	return cmd
}

// wake ends the halt of the vault and of every sink.
func (a *app) wake(ctx context.Context, s *cli.Session, how cli.Asking) error {
	vault, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	epoch, something := vault.GetEpoch(), vault.GetHalted()
	haltedAt := map[string]uint64{} // a sink's epoch; 0 where it is not halted
	var names []string
	var about []approval.Line
	for _, sink := range s.Sinks {
		stands, own, err := sink.Control(ctx)
		if err != nil {
			return err
		}
		// A sink that is behind takes up the vault's epoch with the next grant; one that is ahead, or far behind, refuses all of them.
		behind := doctor.FarBehind(vault.GetEpoch(), own)
		if behind != "" {
			about = append(about, approval.Line{Kind: approval.Danger, Text: "  the " + sink.Name + " is " + behind + ": sign where it was added after a restore; else the vault is false"})
		}
		something = something || stands || behind != "" || own > vault.GetEpoch()
		if stands {
			haltedAt[sink.Name] = own
		} else {
			own++ // that it is halted raises it
		}
		epoch = max(epoch, own)
		names = append(names, sink.Name)
	}
	if !something {
		return a.Show(map[string]any{"processes": []haltResult{}}, func() { a.Out.Printf("Nothing is halted.\n") })
	}
	// A panic may have reached one of them alone. All are halted, every sink at one epoch, so that all begin the same new epoch: one that was
	// left further below it would begin it although a panic comes before the signature.
	const why = "resume: halted so that vault and executor begin the same epoch"
	if !vault.GetHalted() {
		response, err := s.Vault.Control.Halt(ctx, &vaultv1.HaltRequest{Reason: why})
		if err != nil {
			return err
		}
		epoch = max(epoch, response.GetEpoch())
	}
	for _, sink := range s.Sinks {
		if haltedAt[sink.Name] >= epoch {
			continue
		}
		response, err := sink.Halt(ctx, &executorv1.HaltRequest{Reason: why, Epoch: epoch})
		if err != nil {
			return err
		}
		epoch = max(epoch, response.GetEpoch())
	}
	epoch++
	signer := a.Signer(s)
	vaultID, err := identity.Parse(s.Config.Vault.Identity)
	if err != nil {
		return err
	}
	// One statement for all: each takes it once, for itself.
	document := approval.DocumentOf(signer.Resume(identity.Everyone(vaultID.TrustDomain()), epoch), nil)
	document.About = about
	signed, err := a.AskAndSign(ctx, s, "Sign and resume the "+strings.Join(names, ", ")+" and the vault?", how, document)
	if err != nil {
		return err
	}
	var results []haltResult
	resume := func(name string, send func() (answered, error)) error {
		r := haltResult{Process: name}
		if err := signedchange.Unhurried(ctx, func() error {
			response, err := send()
			if err == nil {
				r.Epoch = response.GetEpoch()
			}
			return err
		}); err != nil {
			return err
		}
		r.OK = true
		results = append(results, r)
		return nil
	}
	// The sinks first: were the vault first, its new grants would meet a sink that still refuses.
	for _, sink := range s.Sinks {
		if err := resume(sink.Name, func() (answered, error) {
			return sink.Resume(ctx, &executorv1.ResumeRequest{Statement: signed[0]})
		}); err != nil {
			return err
		}
	}
	if err := resume("vault", func() (answered, error) {
		return s.Vault.Control.Resume(ctx, &vaultv1.ResumeRequest{Statement: signed[0]})
	}); err != nil {
		return err
	}
	return a.reportHalt(results, "resumed", "")
}
