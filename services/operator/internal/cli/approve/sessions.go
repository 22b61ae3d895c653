package approve

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
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
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*vaultv1.ListSessionsResponse, error) {
			return s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
		}, func(list *vaultv1.ListSessionsResponse) {
			if len(list.GetSessions()) == 0 {
				a.Out.Printf("No session is open.\n")
				return
			}
			numbers := approval.SessionNumbers(list.GetSessions())
			a.Out.Table(sessionHeader, output.Each(list.GetSessions(), func(one *vaultv1.OpenSession) []string {
				return a.sessionRow(one, numbers[one.GetSession()])
			}))
		}),
	}
}

var sessionHeader = []string{"CLIENT", "#", "SESSION", "CHANNEL", "REACHES", "OPEN FOR", "NOTES"}

func (a *app) sessionRow(one *vaultv1.OpenSession, number int) []string {
	who := clean.Visible(one.GetPrincipal())
	if one.GetAgent() != "" {
		who += "/" + clean.Visible(one.GetAgent())
	}
	var notes []string
	note := func(text string) { notes = append(notes, text) }
	if until := one.GetDangerousUntil(); until != nil {
		note(a.Out.Red("DANGEROUS MODE until " + until.AsTime().Local().Format("15:04")))
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
		approval.Duration(a.Now().Sub(one.GetOpenedAt().AsTime()).Truncate(time.Second)), strings.Join(notes, ", ")}
}
