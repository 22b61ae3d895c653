package approve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
)

const (
	// confirmSlack is added to the wait before the second confirmation: the vault judges by its own clock.
	confirmSlack = 300 * time.Millisecond
	// longestWait bounds what a vault can make a person wait for.
	longestWait = time.Minute
	// withdrawPatience is how long a proposal that was not confirmed is tried to be taken back.
	withdrawPatience = 2 * time.Second
	// dangerousUses is how many changes dangerous mode is for unless told.
	dangerousUses = 200
)

func (a *app) dangerousCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dangerous",
		Short: "Let one session change things without asking, for a while",
		Long: `Dangerous mode lets one session of a key-bound client run every WRITE and DESTRUCTIVE tool without asking you.
What your rules deny, tools of others' servers and desktop control stay as they are; everything is recorded, and marked.

It takes a person: a typed phrase, your signature, and 5 seconds later a second signature by the same key. There
is no flag, file or API for it, and none over messaging. It ends with its time, its number of changes, the session,
a panic, a restart of the vault, or: durward dangerous disable`,
	}
	var sessionName string
	var length time.Duration
	var uses int
	enable := &cobra.Command{
		Use:     "enable --session S [--for 2h] [--uses 200]",
		Short:   "Turn it on for one session",
		Long:    "Shows what it means, asks you to type a phrase, signs, waits 5 seconds, asks again and signs again. It refuses without a terminal.",
		Example: "  durward sessions\n  durward dangerous enable --session s-6qza --for 30m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sessionName == "" {
				return cli.Usage("See: durward sessions", "say which session: --session")
			}
			return a.enableDangerous(cmd.Context(), sessionName, length, uses)
		},
	}
	enable.Flags().StringVar(&sessionName, "session", "", "the session, as durward sessions shows it, or its first characters")
	enable.Flags().DurationVar(&length, "for", scopeFor, "for so long, 8h at most")
	enable.Flags().IntVar(&uses, "uses", dangerousUses, "for so many changes, 1000 at most")
	var disableSession string
	disable := &cobra.Command{
		Use:     "disable",
		Short:   "Turn it off at once",
		Long:    "Ends dangerous mode of one session, or of all. It needs no key: ending is always safe.",
		Example: "  durward dangerous disable",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.revokeStanding(cmd.Context(), "", disableSession, "dangerous mode disabled", true)
		},
	}
	disable.Flags().StringVar(&disableSession, "session", "", "this session's alone")
	status := &cobra.Command{
		Use:     "status",
		Short:   "Which sessions are in dangerous mode",
		Example: "  durward dangerous status",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*vaultv1.ListStandingResponse, error) {
			list, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
			return &vaultv1.ListStandingResponse{Standing: cli.Dangers(list)}, err
		}, func(list *vaultv1.ListStandingResponse) {
			if len(list.GetStanding()) == 0 {
				a.Out.Printf("No session is in dangerous mode.\n")
			}
			for _, one := range list.GetStanding() {
				a.printStanding(one)
			}
		}),
	}
	cli.CompleteFlag(enable, "for", cli.OneOf("15m", "30m", "1h", "2h"))
	cmd.AddCommand(enable, disable, status)
	return cmd
}

func (a *app) enableDangerous(ctx context.Context, name string, length time.Duration, uses int) error {
	if !a.Interactive() {
		return cli.Denied("Run it at a terminal. There is no other way.", "dangerous mode is turned on by a person at a terminal alone")
	}
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		return a.askForDanger(ctx, s, name, length, uses)
	})
}

// askForDanger is the whole ceremony: show, typed phrase, signature, wait, question, second signature.
func (a *app) askForDanger(ctx context.Context, s *cli.Session, name string, length time.Duration, uses int) error {
	target, err := s.FindSession(ctx, name)
	if err != nil {
		return err
	}
	vault, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	executor, err := s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	if vault.GetHalted() || executor.GetHalted() {
		return cli.Denied("End the halt first: durward resume", "everything is halted")
	}
	signer := a.Signer(s)
	st, err := signer.Dangerous(target, length, uses, vault.GetEpoch(), executor.GetEpoch())
	switch {
	case errors.Is(err, approval.ErrWithin):
		return cli.Usage("", "%v", err)
	case err != nil:
		return cli.Denied("Approve its requests one by one.", "dangerous mode is not possible there: %v", err)
	}
	a.Out.Table(sessionHeader, [][]string{a.sessionRow(target, askSessions(ctx, s).numbers[target.GetSession()])})
	if err := a.ShowDocument(approval.Document{Statement: st}); err != nil {
		return err
	}
	phrase := approval.Phrase(target)
	typed, ok := a.Ask(ctx, fmt.Sprintf("Type this to go on: %s\n> ", a.Out.Bold(phrase)))
	if !ok || typed != phrase {
		return cli.Denied("", "that is not the phrase; nothing was done")
	}
	signed, err := a.Sign(ctx, s, st)
	if err != nil {
		return err
	}
	proposed, err := s.Vault.Standing.ProposeDangerous(ctx, &vaultv1.ProposeDangerousRequest{Statement: signed[0]})
	if err != nil {
		return err
	}
	confirmed, err := a.confirmDanger(ctx, s, st, signed[0], proposed)
	if err != nil {
		a.withdraw(ctx, s, proposed.GetStandingId(), signed[0])
		return err
	}
	a.Out.Printf("%s in force: %s\n", a.Out.Red("✓"), standingTitle(confirmed, a.Now()))
	a.Out.Printf("  End it: %s dangerous disable\n", a.Typed())
	return nil
}

func (a *app) confirmDanger(ctx context.Context, s *cli.Session, st *statement.Statement, signed *callv1.HumanStatement, proposed *vaultv1.ProposeDangerousResponse) (*vaultv1.Standing, error) {
	if err := a.countDown(ctx, dangerWait(proposed, a.Now())); err != nil {
		return nil, err
	}
	answer, ok := a.Ask(ctx, a.Out.Red("Once more: "+clean.Visible(st.Principal)+" changes things without asking you from now on. Sign again and put it into force?")+" [yes/N] ")
	if !ok || !strings.EqualFold(answer, "yes") {
		return nil, cli.Denied("", "it was not confirmed, and is not in force")
	}
	again, err := a.Sign(ctx, s, statement.Confirmation(st, signed.GetStatement(), grant.NewID(), a.Now()))
	if err != nil {
		return nil, err
	}
	confirmed, err := s.Vault.Standing.ConfirmDangerous(ctx, &vaultv1.ConfirmDangerousRequest{Statement: again[0]})
	return confirmed.GetStanding(), err
}

// withdraw takes back what was not confirmed, at the vault and at the sink. Ctrl-C has ended ctx.
func (a *app) withdraw(ctx context.Context, s *cli.Session, id string, signed *callv1.HumanStatement) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawPatience)
	defer cancel()
	_, err := s.Vault.Standing.RevokeStanding(ctx, &vaultv1.RevokeStandingRequest{StandingId: id, Reason: "it was not confirmed"})
	if fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		err = nil
	}
	if err := errors.Join(err, s.EndAtSinks(ctx, signed)); err != nil {
		a.Out.Remark("%s", a.Out.Red("It could not be withdrawn everywhere ("+cli.PublicText(err)+"); without your second signature it allows nothing."))
	}
}

// dangerWait is how long it takes until a proposal may be confirmed: five seconds at least, whatever the vault says.
func dangerWait(p *vaultv1.ProposeDangerousResponse, now time.Time) time.Duration {
	return min(max(p.GetNotBefore().AsTime().Sub(now), 5*time.Second)+confirmSlack, longestWait)
}

// countDown shows the seconds that pass.
func (a *app) countDown(ctx context.Context, d time.Duration) error {
	until := time.Now().Add(d)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		left := time.Until(until)
		if left <= 0 {
			a.Out.Printf("\r                                        \r")
			return nil
		}
		a.Out.Printf("\rAsking again in %d s … Ctrl-C ends it. ", int(left/time.Second)+1)
		select {
		case <-ctx.Done():
			return cli.Denied("", "it was not confirmed, and is not in force")
		case <-tick.C:
		case <-time.After(left):
		}
	}
}
