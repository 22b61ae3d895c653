package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/statement"
)

func (a *app) sessionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sessions",
		Short: "Which clients' sessions are open",
		Long: `Lists the open sessions: whose each is, how it came, how far what you let it do reaches, and whether it is in
dangerous mode. A session of a key-bound client is one "durward mcp"; what a bearer client is let is one call.

The number counts a client's sessions, the oldest is 1. Commands take the reference, or its first characters.`,
		Example: "  durward sessions\n  durward sessions --json | jq -r '.sessions[].session'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Message(list)
			}
			if len(list.GetSessions()) == 0 {
				a.out.Printf("No session is open.\n")
				return nil
			}
			numbers := approval.SessionNumbers(list.GetSessions())
			rows := make([][]string, 0, len(list.GetSessions()))
			for _, one := range list.GetSessions() {
				rows = append(rows, a.sessionRow(one, numbers[one.GetSession()]))
			}
			a.out.Table([]string{"CLIENT", "#", "SESSION", "CHANNEL", "REACHES", "OPEN FOR", "NOTES"}, rows)
			return nil
		},
	}
}

func (a *app) sessionRow(one *vaultv1.OpenSession, number int) []string {
	who := clean.Visible(one.GetPrincipal())
	if one.GetAgent() != "" {
		who += "/" + clean.Visible(one.GetAgent())
	}
	notes := ""
	note := func(text string) {
		if notes != "" {
			notes += ", "
		}
		notes += text
	}
	if until := one.GetDangerousUntil(); until != nil {
		note(a.out.Red("DANGEROUS MODE until " + until.AsTime().Local().Format("15:04")))
	}
	if ceiling := one.GetTierCeiling(); ceiling != optionsv1.Tier_TIER_UNSPECIFIED && ceiling < optionsv1.Tier_TIER_DESTRUCTIVE {
		note("at most " + contract.TierName(ceiling))
	}
	if name := one.GetClientName(); name != "" {
		note(fmt.Sprintf("calls itself %q", clean.Visible(name)))
	}
	if sender := one.GetSender(); sender != nil {
		note(fmt.Sprintf("for %q in %q", clean.Visible(sender.GetUser()), clean.Visible(sender.GetRoom())))
	}
	return []string{who, fmt.Sprint(number), clean.Visible(one.GetSession()), statement.ChannelName(one.GetChannel()), approval.Reach(one.GetKeyBound()),
		approval.Duration(a.now().Sub(one.GetOpenedAt().AsTime()).Truncate(time.Second)), notes}
}

// findSession returns the open session that a person named.
func (s *session) findSession(ctx context.Context, name string) (*vaultv1.OpenSession, error) {
	list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
	if err != nil {
		return nil, err
	}
	found, err := approval.FindSession(name, list.GetSessions())
	var ambiguous *approval.AmbiguousError
	switch {
	case errors.As(err, &ambiguous):
		return nil, usage("Say one of them.", "%s fits %d sessions", clean.Visible(name), len(ambiguous.Candidates))
	case err != nil:
		return nil, usage("See: durward sessions", "no open session is called %s", clean.Visible(name))
	}
	return found, nil
}

// completeSessions completes the references of open sessions.
func (a *app) completeSessions(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	a.forCompletion(cmd, func(ctx context.Context, s *session) error {
		list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
		for _, one := range list.GetSessions() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(one.GetSession(), 64), clean.Line(one.GetPrincipal(), 64)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
