package approve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/picture"
	"durward.internal/services/operator/internal/live"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/operator/internal/tui"
	"durward.internal/services/platform/clean"
)

// pastOperations is how many operations that ended the screen knows.
const pastOperations = 50

func (a *app) tuiCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tui",
		Short: "One screen: what waits, services, GPUs, history; one key for each decision",
		Long: `What waits for you is on top: a approves, s approves within a scope, d denies, m mutes the client, enter shows
everything. Below are the GPUs, the services and what happened. tab goes to the services: l shows a log, s starts,
x stops, z puts to sleep, w wakes, each by your own signed command. The mouse chooses and scrolls; it decides
nothing. p is panic, held or pressed three times, ? explains the keys, q ends it.

Your signing key stays open for 5 minutes after its passphrase at most; L locks it, and so does leaving. A key
that ssh-agent holds, or a security key, is asked each time. It goes on when a process is restarted.`,
		Example: "  durward tui",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.Interactive() || !a.Out.Draws {
				return cli.Denied("See what waits: durward approvals", "there is no terminal to draw on")
			}
			return a.Run(cmd.Context(), func(ctx context.Context, s *cli.Session) error {
				return a.runScreen(ctx, s, false)
			})
		},
	}
}

// runScreen shows the screen until it is left.
func (a *app) runScreen(ctx context.Context, s *cli.Session, small bool) error {
	d, err := a.newDesk(s)
	if err != nil {
		return err
	}
	defer d.key.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	model := tui.New(ctx, tui.Config{Backend: d, Small: small, Shell: live.HasShell(), Now: a.Now})
	// What says how a terminal draws.
	environment := cli.Environment(a.Streams.Getenv, "TERM", "COLORTERM", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM_PROGRAM", "TMUX")
	program := tea.NewProgram(model, tea.WithInput(a.Streams.In), tea.WithOutput(a.Streams.Out),
		tea.WithoutSignalHandler(), tea.WithEnvironment(environment))
	// Leaving is asked for: a program that its context kills closes the terminal's reader while it is being read.
	defer context.AfterFunc(ctx, program.Quit)()
	var following sync.WaitGroup
	following.Go(func() { d.Follow(ctx, program.Send) })
	_, err = program.Run()
	cancel()
	following.Wait()
	if err != nil {
		return fmt.Errorf("screen: %w", err)
	}
	return nil
}

// desk is what the screen works with.
type desk struct {
	a   *app
	s   *cli.Session
	key *signingkey.Holder
}

var _ tui.Backend = (*desk)(nil)

func (a *app) newDesk(s *cli.Session) (*desk, error) {
	key, err := signingkey.NewHolder(signingkey.HolderConfig{Open: func(ctx context.Context, ask signingkey.Asker) (*signingkey.Signer, error) {
		return a.KeySource(s, ask).Open(ctx)
	}})
	if err != nil {
		return nil, err
	}
	return &desk{a, s, key}, nil
}

// Follow passes on what the vault and the executor say. One goroutine owns the picture.
func (d *desk) Follow(ctx context.Context, tell func(tea.Msg)) {
	changes, end := picture.Gather(ctx,
		func(ctx context.Context, pass func(picture.Change) bool) {
			picture.WatchServices(ctx, d.s, func() {}, pass)
		},
		picture.WatchHost(d.s),
		func(ctx context.Context, pass func(picture.Change) bool) {
			known := &asked{}
			picture.Ask(ctx, "vault", picture.EverySecond, pass, func(ctx context.Context) (picture.Change, error) {
				said, err := known.vault(ctx, d.s)
				return func(*picture.Picture) []picture.News {
					tell(said)
					return nil
				}, err
			})
		},
	)
	defer end()
	p := picture.New()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-changes:
			c(p)
			tell(copied(p.Services))
			tell(tui.Host{GetHostResponse: p.Host})
			tell(tui.Problems(maps.Clone(p.Problems)))
		}
	}
}

// copied are the picture's services as they are now: it changes them in place.
func copied(services []*executorv1.ServiceSummary) tui.Services {
	return output.Each(services, proto.CloneOf)
}

// ended are the states of an operation that ended.
var ended = []vaultv1.OperationState{
	vaultv1.OperationState_OPERATION_STATE_DONE, vaultv1.OperationState_OPERATION_STATE_DENIED, vaultv1.OperationState_OPERATION_STATE_EXPIRED,
	vaultv1.OperationState_OPERATION_STATE_WITHDRAWN,
}

// asked asks the vault again and again. What ended does not change, so that is read again only where more may have ended: where the
// operations that go on are others, or the newest that ended is another. One goroutine uses it.
type asked struct {
	seen map[string]vaultv1.OperationState
	past []*vaultv1.Operation
}

// history is what ended, beside what goes on.
func (k *asked) history(ctx context.Context, s *cli.Session, live []*vaultv1.Operation) ([]*vaultv1.Operation, error) {
	seen := map[string]vaultv1.OperationState{}
	for _, op := range live {
		seen[op.GetOperationId()] = op.GetState()
	}
	if maps.Equal(seen, k.seen) {
		newest, err := s.Vault.ListOperations(ctx, &vaultv1.ListOperationsRequest{Limit: 1, States: ended})
		if err != nil {
			return nil, err
		}
		if slices.EqualFunc(newest.GetOperations(), k.past[:min(len(k.past), 1)], func(x, y *vaultv1.Operation) bool { return x.GetOperationId() == y.GetOperationId() }) {
			return k.past, nil
		}
	}
	past, err := s.Vault.ListOperations(ctx, &vaultv1.ListOperationsRequest{Limit: pastOperations, States: ended})
	if err != nil {
		return nil, err
	}
	k.seen, k.past = seen, past.GetOperations()
	return k.past, nil
}

// vault is everything that the vault says there is. Where it does not answer, all is read when it does again.
func (k *asked) vault(ctx context.Context, s *cli.Session) (said tui.Vault, err error) {
	defer func() {
		if err != nil {
			*k = asked{}
		}
	}()
	live, err := s.Operations(ctx, append(actionable[:len(actionable):len(actionable)], vaultv1.OperationState_OPERATION_STATE_RUNNING)...)
	if err != nil {
		return tui.Vault{}, err
	}
	past, err := k.history(ctx, s, live)
	if err != nil {
		return tui.Vault{}, err
	}
	standing, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
	if err != nil {
		return tui.Vault{}, err
	}
	status, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return tui.Vault{}, err
	}
	return tui.Vault{
		Operations: live, History: past, Standing: standing.GetStanding(), Muted: standing.GetMuted(),
		Halted: status.GetHalted(), Epoch: status.GetEpoch(),
	}, nil
}

func (d *desk) Card(ctx context.Context, op *vaultv1.Operation, number string) approval.Card {
	return card(ctx, d.s, op, number, askSessions(ctx, d.s))
}

func (d *desk) Approve(ctx context.Context, op *vaultv1.Operation, number string) (*tui.Proposal, error) {
	p, err := d.a.propose(ctx, d.s, askSessions(ctx, d.s), op, number, nil)
	return d.proposal(p, number, number+" approved.", err)
}

func (d *desk) Scope(ctx context.Context, op *vaultv1.Operation, number string, w approval.Within) (*tui.Proposal, error) {
	p, err := d.a.propose(ctx, d.s, askSessions(ctx, d.s), op, number, &w)
	return d.proposal(p, number, number+" approved; it may be repeated within the scope. r ends it.", err)
}

func (d *desk) proposal(p *proposal, number, said string, err error) (*tui.Proposal, error) {
	if err != nil {
		return nil, plain(err)
	}
	return &tui.Proposal{Number: number, Document: p.document, Card: p.card, Submit: func(ctx context.Context, signed *callv1.HumanStatement) (string, error) {
		op, err := p.submit(ctx, signed)
		said := said
		if err == nil && op.GetWaiters() == 0 {
			said += " No agent waits; its next wait_operation carries it out, or: " + d.a.Typed() + " approve " + number + " --run"
		}
		return said, plain(err)
	}}, nil
}

func (d *desk) Act(ctx context.Context, tool, service string) (*tui.Proposal, error) {
	call, document, err := d.a.ProposeCommand(ctx, d.s, tool, map[string]string{"service_id": service})
	if err != nil {
		return nil, plain(err)
	}
	what := clean.Visible(tool + " " + service)
	var grant *callv1.SignedGrant
	return &tui.Proposal{Number: what, Document: document,
		Submit: func(ctx context.Context, signed *callv1.HumanStatement) (string, error) {
			granted, err := d.s.Vault.GrantCommand(ctx, &vaultv1.GrantCommandRequest{Statement: signed})
			grant = granted.GetGrant()
			return what + " has begun.", plain(err)
		},
		Then: func(ctx context.Context) (string, error) {
			said, err := d.s.Carry(ctx, call, grant)
			return said, plain(err)
		},
	}, nil
}

func (d *desk) Logs(ctx context.Context, service string, tell func([]string)) error {
	return plain(d.s.FollowLog(ctx, d.a.Now, errors.New("the executor ended the log"), service, tui.KeptLines, func(said []string) error {
		tell(output.Each(said, func(line string) string { return clean.Text(line, cli.MaxLogLine) }))
		return nil
	}))
}

// plain is an error as people are shown it.
func plain(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(cli.PublicText(err))
}

func (d *desk) Deny(ctx context.Context, operationID, reason string) error {
	_, err := deny(ctx, d.s, &vaultv1.Operation{OperationId: operationID}, reason)
	return plain(err)
}

func (d *desk) Mute(ctx context.Context, principal string, length time.Duration) error {
	_, err := mute(ctx, d.s, principal, length, "")
	return plain(err)
}

func (d *desk) Revoke(ctx context.Context, standingID string) error {
	list, err := d.s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
	if err != nil {
		return plain(err)
	}
	response, err := d.s.Vault.Standing.RevokeStanding(ctx, &vaultv1.RevokeStandingRequest{StandingId: standingID})
	var statements []*callv1.HumanStatement
	for _, one := range append(list.GetStanding(), response.GetEnded()...) {
		if one.GetStandingId() == standingID {
			statements = append(statements, one.GetStatement())
		}
	}
	// Whatever the vault says: the sinks have the last word on what begins.
	return plain(errors.Join(err, d.s.EndAtSinks(ctx, statements...)))
}

func (d *desk) Halt(ctx context.Context) []tui.Halted {
	return output.Each(d.a.haltAll(ctx, d.s, "panic on the screen"), func(r haltResult) tui.Halted {
		return tui.Halted{Process: r.Process, Epoch: r.Epoch, Problem: r.Problem, Took: r.took}
	})
}

func (d *desk) NeedsPassphrase() (bool, error) {
	if _, held := d.key.Held(); held {
		return false, nil
	}
	needs, err := d.a.KeySource(d.s, nil).NeedsPassphrase()
	if errors.Is(err, os.ErrNotExist) {
		return false, errors.New("the signing key that config/operator.yaml names is missing")
	}
	return needs, err
}

func (d *desk) Sign(ctx context.Context, p *tui.Proposal, passphrase []byte) (string, error) {
	signed, err := d.key.Sign(ctx, p.Document.Statement, func(context.Context, string) ([]byte, error) {
		if passphrase == nil {
			return nil, signingkey.ErrNeedsHuman
		}
		// The one who asks clears what they are given.
		return append([]byte(nil), passphrase...), nil
	})
	if err != nil {
		return "", errors.New(clean.Line(err.Error(), 500))
	}
	return p.Submit(ctx, signed)
}

func (d *desk) Held() (time.Time, bool) { return d.key.Held() }

func (d *desk) Lock() { d.key.Lock() }
