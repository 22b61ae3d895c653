package rules

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
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
			tool, err := lookupTool(args[0])
			if err != nil {
				return err
			}
			arguments, err := explainArguments(tool, args[1:])
			if err != nil {
				return err
			}
			return a.explainCall(cmd.Context(), &vaultv1.ExplainCallRequest{Client: as, Tool: tool.Name, Arguments: arguments, Agent: agent, Dangerous: dangerous})
		},
	}
	cmd.ValidArgsFunction = cli.CompleteTools
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

func lookupTool(name string) (contract.Tool, error) {
	tool, ok := contract.Lookup(name)
	if ok {
		return tool, nil
	}
	near := config.Suggest(name, toolNames())
	return tool, cli.Usage(cli.DidYouMean(near, "Tools: "+strings.Join(toolNames(), ", ")), "there is no tool %s", clean.Visible(name))
}

func toolNames() []string {
	return output.Each(contract.Tools(), func(t contract.Tool) string { return t.Name })
}

// explainArguments turns what was typed into the canonical arguments of a call, held to the contract as a call's would be.
func explainArguments(tool contract.Tool, words []string) ([]byte, error) {
	raw := []byte("{}")
	switch {
	case len(words) == 1 && strings.HasPrefix(strings.TrimSpace(words[0]), "{"):
		raw = []byte(words[0])
	case len(words) > 0:
		object := map[string]any{}
		for _, w := range words {
			name, value, ok := strings.Cut(w, "=")
			if !ok {
				return nil, cli.Usage("Write ARGUMENT=VALUE, or one JSON object.", "%q is no argument", clean.Visible(w))
			}
			typed, err := argumentValue(tool, name, collection(tool, name, value))
			if err != nil {
				return nil, err
			}
			object[name] = typed
		}
		var err error
		if raw, err = json.Marshal(object); err != nil {
			return nil, err
		}
	}
	return decodeArguments(tool, raw)
}

// collection writes words with commas between them as the JSON list that an argument is, and words with values, "chat=8192", as the
// JSON object. What is JSON already stays as it is, and so does what is neither.
func collection(tool contract.Tool, name, text string) string {
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, _ := properties[name].(map[string]any)
	if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
		return text
	}
	var value any
	switch property["type"] {
	case "array":
		value = strings.Split(text, ",")
	case "object":
		object := map[string]json.RawMessage{}
		for pair := range strings.SplitSeq(text, ",") {
			key, of, ok := strings.Cut(pair, "=")
			if _, twice := object[key]; !ok || twice || !json.Valid([]byte(of)) {
				return text
			}
			object[key] = json.RawMessage(of)
		}
		value = object
	default:
		return text
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return text
	}
	return string(raw)
}

// decodeArguments holds arguments to the contract, as edge and sink do.
func decodeArguments(tool contract.Tool, raw []byte) ([]byte, error) {
	var object map[string]any
	// A plan's digest says what was looked at, which nobody has here.
	if properties, _ := tool.InputSchema["properties"].(map[string]any); properties["plan_digest"] != nil && json.Unmarshal(raw, &object) == nil && object != nil {
		if _, given := object["plan_digest"]; !given {
			object["plan_digest"] = strings.Repeat("0", 64)
			if filled, err := json.Marshal(object); err == nil {
				raw = filled
			}
		}
	}
	flat, err := canonical.Transform(raw)
	if err != nil {
		return nil, cli.Usage("", "the arguments are not one JSON object")
	}
	message, err := tool.Decode(flat)
	if err != nil {
		return nil, cli.Usage("", "%s does not take these arguments: %s", tool.Name, clean.Line(err.Error(), 300))
	}
	arguments, err := contract.Canonical(message)
	if err != nil {
		return nil, cli.Usage("", "%s does not take these arguments", tool.Name)
	}
	return arguments, nil
}

// argumentValue reads a word as the argument's type has it.
func argumentValue(tool contract.Tool, name, value string) (any, error) {
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, ok := properties[name].(map[string]any)
	if !ok {
		next := "It takes none."
		if known := slices.Sorted(maps.Keys(properties)); len(known) > 0 {
			next = "It takes " + strings.Join(known, ", ")
		}
		return nil, cli.Usage(next, "%s has no argument %s", tool.Name, clean.Visible(name))
	}
	if property["type"] == "string" {
		return value, nil
	}
	var typed any
	if err := json.Unmarshal([]byte(value), &typed); err != nil {
		return nil, cli.Usage("Write it as JSON.", "%q is no value of %s", clean.Visible(value), name)
	}
	return typed, nil
}
