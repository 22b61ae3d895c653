package privacy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

func (a *app) sessionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sessions",
		Short: "How much personal data each session holds, by type",
		Long: `Lists the sessions for which the vault holds values, and how many of which types. Values are never shown. A session without
a client waits for it to come back after a restart of the vault, an hour at most.`,
		Example: "  durward privacy sessions\n  durward privacy sessions --json | jq '.sessions[].types'",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*vaultv1.ListPrivacySessionsResponse, error) {
			return s.Vault.Privacy.ListPrivacySessions(ctx, &vaultv1.ListPrivacySessionsRequest{})
		}, func(list *vaultv1.ListPrivacySessionsResponse) {
			if len(list.GetSessions()) == 0 {
				a.Out.Printf("No session holds anything.\n")
				return
			}
			a.Out.Table([]string{"CLIENT", "SESSION", "HOLDS"}, output.Each(list.GetSessions(), func(one *vaultv1.PrivacySession) []string {
				who := clean.Visible(one.GetPrincipal())
				if one.GetAgent() != "" {
					who += "/" + clean.Visible(one.GetAgent())
				}
				return []string{cmp.Or(who, "-"), clean.Visible(one.GetSession()), counts(one.GetTypes())}
			}))
		}),
	}
}

// counts is how many there are of which types, in order.
func counts(types map[string]uint32) string {
	return strings.Join(output.Each(slices.Sorted(maps.Keys(types)), func(name string) string {
		return fmt.Sprintf("%s %d", clean.Visible(name), types[name])
	}), ", ")
}

func (a *app) policyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "policy",
		Short: "What becomes references, and where values may go",
		Long: `Shows the vault's rules about personal data as they are in force. They are the block privacy of vault.yaml, which is read when
the vault starts; nothing else changes them.`,
		Example: "  durward privacy policy",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*vaultv1.GetPrivacyPolicyResponse, error) {
			return s.Vault.Privacy.GetPrivacyPolicy(ctx, &vaultv1.GetPrivacyPolicyRequest{})
		}, func(p *vaultv1.GetPrivacyPolicyResponse) {
			if len(p.GetTypes()) == 0 {
				a.Out.Printf("Personal data is left as it is (privacy.off). Credentials become references.\n")
			} else {
				a.Out.Printf("These become references: %s, and credentials.\n", clean.Line(strings.Join(p.GetTypes(), ", "), 1000))
			}
			if len(p.GetRules()) == 0 {
				a.Out.Printf("No value goes anywhere, but for what an agent sent itself: privacy.disclose names nothing.\n")
				return
			}
			a.Out.Table([]string{"TYPES", "SINK", "TOOL", "ARGUMENTS"}, output.Each(p.GetRules(), func(r *vaultv1.DisclosureRule) []string {
				return []string{
					clean.Line(strings.Join(r.GetTypes(), ", "), 300), clean.Visible(r.GetSink()), clean.Visible(r.GetTool()), clean.Line(strings.Join(r.GetArguments(), ", "), 300),
				}
			}))
			a.Out.Printf("Only in calls that you approve one by one; of one call %d values and %d bytes at most.\n", p.GetValues(), p.GetBytes())
		}),
	}
}

func (a *app) testCommand() *cobra.Command {
	var tool, argument string
	cmd := &cobra.Command{
		Use:   "test FILE|-",
		Short: "A text as an agent would be shown it, and where its values could go",
		Long: `Has the vault look through a text of your own by the rules in force, your own patterns among them, and prints it as an agent
would be shown it. With --tool and --argument it says which of the types in it a rule lets go there. Nothing is kept; the
references stand for nothing. "durward privacy detect" tells why a place was found.`,
		Example: "  durward privacy test mail.txt\n  durward privacy test mail.txt --tool start_service --argument /service_id",
		Args:    cobra.ExactArgs(1),
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, args []string) (*vaultv1.TestPrivacyResponse, error) {
			text, err := a.read(args[0])
			if err != nil {
				return nil, err
			}
			return s.Vault.Privacy.TestPrivacy(ctx, &vaultv1.TestPrivacyRequest{Text: text, Tool: tool, Argument: argument})
		}, func(r *vaultv1.TestPrivacyResponse) {
			a.Out.Printf("%s\n", strings.TrimSuffix(clean.Block(r.GetText(), clean.Whole), "\n"))
			if len(r.GetTypes()) == 0 {
				a.Out.Printf("Nothing in it becomes a reference.\n")
				return
			}
			a.Out.Printf("Replaced: %s.\n", counts(r.GetTypes()))
			for _, v := range r.GetVerdicts() {
				a.Out.Printf("%s: %s: %s.\n", clean.Visible(v.GetType()), map[bool]string{true: "may go there", false: "stays"}[v.GetAllowed()], clean.Line(v.GetWhy(), 600))
			}
		}),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	cmd.Flags().StringVar(&tool, "tool", "", "a tool that the values would go to")
	cmd.Flags().StringVar(&argument, "argument", "", "the JSON pointer of its argument, such as /body")
	cli.CompleteFlag(cmd, "tool", a.CompleteTools)
	cli.CompleteFlag(cmd, "argument", func(*cobra.Command, []string, string) (out []string, _ cobra.ShellCompDirective) {
		if known, ok := contract.Lookup(tool); ok {
			for i := range known.Method.Input().Fields().Len() {
				out = append(out, "/"+string(known.Method.Input().Fields().Get(i).Name()))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}
