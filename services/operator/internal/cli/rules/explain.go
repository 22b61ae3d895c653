package rules

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/tryout"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
)

func (a *app) policyExplainCommand() *cobra.Command {
	var as, agent string
	var dangerous bool
	cmd := &cobra.Command{
		Use:   "explain --as CLIENT TOOL [ARGUMENT=VALUE... | JSON]",
		Short: "What would become of a call, and by which rule",
		Long: `Asks the vault what it would decide on a call that nobody makes, with the rules that it has in force: whether it runs,
asks you or is denied, the rule that decides, and where that stands. Nothing is asked, counted or carried out.`,
		Example: `  durward policy explain --as cursor switch_mode mode_id=chat
  durward policy explain --as cursor stop_service '{"service_id":"demo-chat"}'
  durward policy explain --as cursor simulate_mode start=coder,embed context_overrides=coder=16384`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if as == "" {
				return cli.Usage("Say as whom: --as CLIENT", "a decision is about a client")
			}
			tool, err := a.lookupTool(args[0])
			if err != nil {
				return err
			}
			arguments, err := tryout.Arguments(tool, args[1:])
			if err != nil {
				return typed(err)
			}
			return a.explainCall(cmd.Context(), &vaultv1.ExplainCallRequest{Client: as, Tool: tool.Name, Arguments: arguments, Agent: agent, Dangerous: dangerous})
		},
	}
	cmd.ValidArgsFunction = a.CompleteTools
	cmd.Flags().StringVar(&as, "as", "", "the client that calls")
	cmd.Flags().StringVar(&agent, "agent", "", "one of the client's agents")
	cmd.Flags().BoolVar(&dangerous, "dangerous", false, "as if the session were in dangerous mode")
	return cmd
}

func (a *app) explainCall(ctx context.Context, request *vaultv1.ExplainCallRequest) error {
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		response, err := s.Vault.Policy.ExplainCall(ctx, request)
		if err != nil {
			return err
		}
		rule := response.GetRule()
		return a.Show(map[string]any{
			"client": request.GetClient(), "tool": request.GetTool(), "decision": response.GetDecision(), "tier": contract.TierName(response.GetTier()),
			"reason": response.GetReason(),
			"rule":   shownRule{rule.GetRule(), rule.GetLayer(), rule.GetFile(), rule.GetLine(), rule.GetForbids()},
		}, func() {
			a.Out.Printf("%s  %s %s  %s\n", a.decisionColour(response.GetDecision()), clean.Visible(request.GetClient()), clean.Visible(request.GetTool()),
				contract.TierName(response.GetTier()))
			if response.GetReason() != "" {
				a.Out.Printf("  %s\n", clean.Line(response.GetReason(), 500))
			}
			at := clean.Visible(place(rule.GetFile(), rule.GetLine()))
			a.Out.Printf("  rule %s  %s  %s\n", clean.Visible(rule.GetRule()), clean.Line(rule.GetLayer(), 16), at)
		})
	})
}

func (a *app) decisionColour(decision string) string {
	switch decision {
	case "runs":
		return a.Out.Green("runs")
	case "asks":
		return a.Out.Yellow("asks")
	}
	return a.Out.Red(clean.Line(decision, 16))
}

// lookupTool finds a tool of Durward's own, or one of another's server, which the installation's files name.
func (a *app) lookupTool(name string) (contract.Tool, error) {
	if tool, ok := contract.Native(name); ok {
		return tool, nil
	}
	_, missing := a.Config()
	tool, ok := contract.Lookup(name)
	if ok {
		return tool, nil
	}
	if missing != nil && strings.Contains(name, contract.Separator) {
		return tool, missing
	}
	near := config.Suggest(name, toolNames(contract.All()))
	return tool, cli.Usage(cli.DidYouMean(near, "Tools: "+strings.Join(toolNames(contract.Tools()), ", ")), "there is no tool %s", clean.Visible(name))
}

// typed says what is wrong with what was typed of a call.
func typed(err error) error {
	if wrong, ok := errors.AsType[*tryout.Error](err); ok {
		return cli.Usage(wrong.Next, "%s", wrong.Text)
	}
	return err
}

func toolNames(tools []contract.Tool) []string {
	return output.Each(tools, func(t contract.Tool) string { return t.Name })
}
