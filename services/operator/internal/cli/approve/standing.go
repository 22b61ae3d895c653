package approve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/statement"
)

// muteFor is how long a client is muted unless told.
const muteFor = time.Hour

func (a *app) standingCommand() *cobra.Command {
	list := a.Connected(a.listStanding)
	cmd := &cobra.Command{
		Use:   "standing",
		Short: "What sessions may do without asking you again",
		Long: `Lists the scopes and dangerous modes in force, and who is muted. They are in the vault's memory alone: they end
with the session, their time or uses, a panic, a restart of the vault, and when you revoke them.`,
		Example: "  durward standing\n  durward standing revoke 3f2a91c0\n  durward standing revoke --all",
		RunE:    list,
	}
	ls := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List what is in force", Example: "  durward standing list", RunE: list}
	var session, reason string
	var all bool
	revoke := &cobra.Command{
		Use:   "revoke [ID]",
		Short: "End it at once",
		Long: `Ends one scope or dangerous mode, all of a session's, or all there are. It needs no key: ending is always safe.
ID is the statement's id or its first 8 characters.`,
		Example:           "  durward standing revoke 3f2a91c0\n  durward standing revoke --session s-6qza\n  durward standing revoke --all",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeStanding,
		RunE: func(cmd *cobra.Command, args []string) error {
			given := len(args)
			if session != "" {
				given++
			}
			if all {
				given++
			}
			if given != 1 {
				return cli.Usage("", "say one of: an ID, --session or --all")
			}
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			return a.revokeStanding(cmd.Context(), id, session, reason, false)
		},
	}
	revoke.Flags().StringVar(&session, "session", "", "all of this session's")
	revoke.Flags().BoolVar(&all, "all", false, "all there are")
	revoke.Flags().StringVar(&reason, "reason", "", "for the record")
	cmd.AddCommand(ls, revoke)
	return cmd
}

func (a *app) listStanding(ctx context.Context, s *cli.Session, _ []string) error {
	list, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
	if err != nil {
		return err
	}
	return a.Show(list, func() {
		if len(list.GetStanding()) == 0 {
			a.Out.Printf("Every change is asked for: nothing stands.\n")
		}
		for _, one := range list.GetStanding() {
			if st := a.printStanding(one); st != nil && len(st.SubjectDigests) > 0 {
				a.printDefinitions(ctx, s, st)
			}
		}
		for _, m := range list.GetMuted() {
			line := fmt.Sprintf("%s is muted until %s, by %s", clean.Visible(m.GetPrincipal()), m.GetUntil().AsTime().Local().Format("15:04"), approval.Person(m.GetBy()))
			if m.GetReason() != "" {
				line += ": " + clean.Visible(m.GetReason())
			}
			a.Out.Printf("%s\n", line)
		}
	})
}

// standingTitle is one line about what stands.
func standingTitle(one *vaultv1.Standing, now time.Time) string {
	kind, uses := "scope", ""
	if one.GetUses() > 0 {
		uses = fmt.Sprintf(", %d of %d uses left", one.GetUsesLeft(), one.GetUses())
	}
	if one.GetKind() == string(statement.KindDangerous) {
		kind = "DANGEROUS MODE"
	}
	return fmt.Sprintf("%s  %s  %s, session %s%s, ends in %s, by %s", shortStanding(one.GetStandingId()), kind, clean.Visible(one.GetPrincipal()),
		clean.Visible(one.GetSession()), uses, approval.Duration(one.GetExpiresAt().AsTime().Sub(now)), clean.Visible(one.GetOperator()))
}

// printStanding says what one lets happen, and returns its statement; nil where it cannot be read.
func (a *app) printStanding(one *vaultv1.Standing) *statement.Statement {
	title := standingTitle(one, a.Now())
	if one.GetKind() == string(statement.KindDangerous) {
		title = a.Out.Red(title)
	}
	a.Out.Printf("%s\n", a.Out.Bold(title))
	st, err := statement.Parse(one.GetStatement().GetStatement())
	if err != nil {
		a.Out.Printf("  %s\n", a.Out.Red("the vault shows no statement for it that can be read"))
		return nil
	}
	for _, line := range approval.Words(st, a.Now())[1:] {
		a.Out.Printf("%s\n", line)
	}
	if st.Kind == statement.KindScope {
		names := output.Each(st.Tools, func(t statement.Tool) string { return clean.Visible(t.Name) })
		a.Out.Printf("  tools: %s\n", strings.Join(names, ", "))
	}
	return st
}

// definitionsPatience bounds how long the executor is asked what a scope's digests stand for.
const definitionsPatience = 3 * time.Second

// printDefinitions shows what a scope may act on: each of its digests, with the definition that has it as the executor's catalog
// is now.
func (a *app) printDefinitions(ctx context.Context, s *cli.Session, st *statement.Statement) {
	ctx, cancel := context.WithTimeout(ctx, definitionsPatience)
	defer cancel()
	var problem error
	calls := approval.CallsOf(st, func(kind string) []string {
		ids, err := candidates(ctx, s, kind)
		if err != nil {
			problem = err
		}
		return ids
	})
	subjects := map[string]*callv1.Subject{}
	for _, call := range calls {
		preview, err := s.Preview(ctx, call.Tool.Ref(), call.Arguments)
		if err != nil {
			problem = err
			continue
		}
		subjects[canonical.DigestText(preview.GetSubject().GetEntry())] = preview.GetSubject()
	}
	for _, digest := range st.SubjectDigests {
		subject, known := subjects[digest]
		switch {
		case known:
			a.Out.Printf("  it may act on %s (%s):\n", clean.Visible(subject.GetLabel()), clean.Visible(digest))
			for _, line := range approval.Lines(subject.GetEntry()) {
				a.Out.Printf("    %s\n", line)
			}
		case problem != nil:
			a.Out.Printf("  it may act on %s: %s\n", clean.Visible(digest), a.Out.Yellow("the executor does not show what that is: "+cli.PublicText(problem)))
		default:
			a.Out.Printf("  it may act on %s: nothing that the executor's catalogue has is defined so now\n", clean.Visible(digest))
		}
	}
}

// shortStandingLength is how many characters of a statement's id people are shown.
const shortStandingLength = 8

func shortStanding(id string) string {
	id = clean.Visible(id)
	return id[:min(len(id), shortStandingLength)]
}

var standingPattern = pattern.New(`^[0-9a-f]{8,32}$`)

// findStanding returns the whole id of what stands, by its beginning.
func findStanding(ctx context.Context, s *cli.Session, name string) (string, error) {
	name = strings.ToLower(name)
	if !standingPattern().MatchString(name) {
		return "", cli.Usage("See: durward standing", "%q is not the beginning of a statement's id: 8 characters 0-9 and a-f", clean.Visible(name))
	}
	list, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
	if err != nil {
		return "", err
	}
	var found []string
	for _, one := range list.GetStanding() {
		if strings.HasPrefix(one.GetStandingId(), name) {
			found = append(found, one.GetStandingId())
		}
	}
	switch len(found) {
	case 0:
		return "", cli.Failed("See: durward standing", "nothing in force has the id %s%s", name, endOf(ctx, s, name))
	case 1:
		return found[0], nil
	}
	return "", cli.Usage("Give more of its characters.", "%s fits %d of them", name, len(found))
}

// lastEnds is how many ends of standing authority are looked through for the one of an id.
const lastEnds = 100

// endOf is why what an id begins is in force no more, as the vault recorded it; "" where that cannot be told.
func endOf(ctx context.Context, s *cli.Session, name string) string {
	ctx, cancel := context.WithTimeout(ctx, askedPatience)
	defer cancel()
	found, err := s.Audit.SearchRecords(ctx, &auditv1.SearchRecordsRequest{
		Kinds: []auditv1.Kind{auditv1.Kind_KIND_STANDING_ENDED}, Writer: s.Config.Vault.Identity, Limit: lastEnds,
	})
	if err != nil {
		return ""
	}
	for _, e := range found.GetEntries() {
		if body := e.GetRecord().GetBody(); strings.HasPrefix(body.GetDetails()["statement"], name) && body.GetReason() != "" {
			return " any more: " + clean.Line(body.GetReason(), 200)
		}
	}
	return ""
}

// checkReason refuses a reason that is longer than the vault takes.
func checkReason(reason string) error {
	if len(reason) > 500 {
		return cli.Usage("", "--reason is at most 500 bytes")
	}
	return nil
}

// revokeStanding ends one, all of a session, or all; dangerousOnly leaves scopes alone.
func (a *app) revokeStanding(ctx context.Context, id, sessionName, reason string, dangerousOnly bool) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		request := &vaultv1.RevokeStandingRequest{Reason: reason}
		var err error
		if id != "" {
			if request.StandingId, err = findStanding(ctx, s, id); err != nil {
				return err
			}
		}
		if sessionName != "" {
			// A session that ended has nothing that stands; its whole reference is taken as it is all the same.
			if request.Session = sessionName; !sessionRef().MatchString(sessionName) {
				found, err := s.FindSession(ctx, sessionName)
				if err != nil {
					return err
				}
				request.Session = found.GetSession()
			}
		}
		list, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
		if err != nil {
			return err
		}
		requests := []*vaultv1.RevokeStandingRequest{request}
		if dangerousOnly {
			requests = nil
		}
		statements := map[string]*callv1.HumanStatement{}
		for _, one := range list.GetStanding() {
			if (id == "" || one.GetStandingId() == request.GetStandingId()) && (request.GetSession() == "" || one.GetSession() == request.GetSession()) &&
				(!dangerousOnly || one.GetKind() == string(statement.KindDangerous)) {
				statements[one.GetStandingId()] = one.GetStatement()
				if dangerousOnly {
					requests = append(requests, &vaultv1.RevokeStandingRequest{StandingId: one.GetStandingId(), Reason: reason})
				}
			}
		}
		all := &vaultv1.RevokeStandingResponse{}
		var refused error
		for _, r := range requests {
			response, err := s.Vault.Standing.RevokeStanding(ctx, r)
			if err != nil && !fault.Is(err, callv1.Code_CODE_NOT_FOUND) { // it ended meanwhile
				refused = err
			}
			all.Ended = append(all.Ended, response.GetEnded()...)
		}
		for _, one := range all.GetEnded() {
			statements[one.GetStandingId()] = one.GetStatement()
		}
		// Whatever the vault says: the sink has the last word on what begins.
		problem := errors.Join(refused, s.EndAtSinks(ctx, slices.Collect(maps.Values(statements))...))
		err = a.Show(all, func() {
			if len(all.GetEnded()) == 0 {
				a.Out.Printf("Nothing of it was in force.\n")
			}
			for _, one := range all.GetEnded() {
				a.Out.Printf("%s ended: %s\n", a.Out.Green("✓"), standingTitle(one, a.Now()))
			}
		})
		return errors.Join(problem, err)
	})
}

var sessionRef = pattern.New(`^s-[a-z2-7]{26}$`)

// completeStanding completes the ids of what stands.
func (a *app) completeStanding(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return cli.CompleteAsked(a.App, cmd, args, func(ctx context.Context, s *cli.Session) ([]*vaultv1.Standing, error) {
		list, err := s.Vault.Standing.ListStanding(ctx, &vaultv1.ListStandingRequest{})
		return list.GetStanding(), err
	}, func(one *vaultv1.Standing) (id, about string) {
		return shortStanding(one.GetStandingId()), clean.Line(one.GetKind()+" "+one.GetPrincipal(), 80)
	})
}

func (a *app) muteCommand() *cobra.Command {
	var length time.Duration
	var off bool
	var principal, reason string
	cmd := &cobra.Command{
		Use:   "mute CLIENT",
		Short: "Do not be asked by a client for a while",
		Long: `Refuses what a client asks you for, for a while, and what of it waits already. The client is told to come back
later. What your rules let it do without asking goes on. The scopes and dangerous modes of its sessions end, and
are not back when the mute is over.`,
		Example:           "  durward mute cursor --for 2h\n  durward mute cursor --off",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteClients,
		PreRunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case off && cmd.Flags().Changed("for"):
				return cli.Usage("", "--off and --for exclude each other")
			case !off && (length < time.Second || length > 24*time.Hour):
				return cli.Usage("", "--for is a second to 24 hours")
			case client.CheckName(args[0]) != nil:
				return cli.Usage("See: durward client list", "%q is not a client's name", clean.Visible(args[0]))
			}
			if off {
				length = 0
			}
			return checkReason(reason)
		},
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, args []string) (*vaultv1.MutePrincipalResponse, error) {
			principal = args[0]
			return mute(ctx, s, principal, length, reason)
		}, func(response *vaultv1.MutePrincipalResponse) {
			if response.GetMute() == nil {
				a.Out.Printf("%s may ask you again.\n", principal)
				return
			}
			a.Out.Printf("%s is muted until %s.", principal, response.GetMute().GetUntil().AsTime().Local().Format("15:04"))
			if n := response.GetDenied(); n > 0 {
				a.Out.Printf(" %d of its requests waited and were denied.", n)
			}
			a.Out.Printf("\n")
		}),
	}
	cmd.Flags().DurationVar(&length, "for", muteFor, "for so long, 24h at most")
	cmd.Flags().BoolVar(&off, "off", false, "let it ask again")
	cmd.Flags().StringVar(&reason, "reason", "", "for the record")
	cli.CompleteFlag(cmd, "for", cli.OneOf("15m", "1h", "8h"))
	return cmd
}

func mute(ctx context.Context, s *cli.Session, principal string, length time.Duration, reason string) (*vaultv1.MutePrincipalResponse, error) {
	return s.Vault.Standing.MutePrincipal(ctx, &vaultv1.MutePrincipalRequest{
		Principal: principal, ForS: uint32(length / time.Second), Reason: reason,
	})
}
